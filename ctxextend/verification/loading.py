"""Whether a resized checkpoint loads and runs in transformers, and what became of short texts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.models.load import Loaded, check_loadable, largest_difference, load, read_text
from ctxextend.plan.plan import ResizePlan
from ctxextend.plan.tableplan import TablePlan
from ctxextend.verification.claims import Claim

__all__ = ["check_loading"]

# What a model gives for a text, by the table that it is read with and its length: a tensor; None where no text alone
# will do; or what torch says where it fails.
Outputs = Mapping[tuple[str, int], Any]


def check_loading(plan: ResizePlan, extended: Checkpoint, trainable: str | None) -> list[Claim]:
    """Load both checkpoints in transformers, run the new length, and compare what they give at old lengths.

    Both are run in float32 on the same texts, one after the other, so that one model is held at a time.

    Args:
        plan: What the resize should have changed.
        extended: What it is said to have become.
        trainable: What was trained after it; else None.

    Raises:
        CheckpointError: The original cannot be loaded, so that there is nothing to compare with.
    """
    original, before = _original(plan)
    try:
        check_loadable(extended)
        loaded = load(extended.root / extended.model, plan.checkpoint.model_class, extended.stored.variant)
    except CheckpointError as error:
        return [Claim("loads", False, (error.message,))]
    after = _read(plan, loaded, [*_old_lengths(plan), plan.max_len_after])
    return [_loads(loaded, original), _runs(plan, after, before), *_outputs(plan, before, after, original, trainable)]


def _original(plan: ResizePlan) -> tuple[Loaded | None, Outputs]:
    """Return what transformers said of the original, without its model, and what that gives at old lengths.

    Raises:
        CheckpointError: It cannot be loaded.
    """
    base = plan.checkpoint
    check_loadable(base, WITHOUT)
    if base.stored.config is not None:  # one of nanoGPT's, which transformers cannot read
        return None, {}
    try:
        loaded = load(base.root / base.model, base.model_class, base.stored.variant)
    except CheckpointError as error:
        raise CheckpointError(error.message, WITHOUT) from error
    return replace(loaded, model=None), _read(plan, loaded, _old_lengths(plan))


WITHOUT = "Verify it without --deep."


def _old_lengths(plan: ResizePlan) -> list[int]:
    """Return lengths that every table could and can read: one module may read several."""
    shared = min(min(table.max_len_before, table.max_len_after) for table in plan.tables)
    return sorted({max(shared // 4, 1), max(shared // 2, 1), shared})


def _read(plan: ResizePlan, loaded: Loaded, lengths: list[int]) -> Outputs:
    found: dict[tuple[str, int], Any] = {}
    for table in plan.tables:
        name = _parameter(loaded, table)
        for length in lengths:
            try:
                found[table.name, length] = read_text(loaded.model, name, length)
            except (IndexError, RuntimeError, ValueError) as error:
                found[table.name, length] = f"{type(error).__name__}: {error}"[:200]
    return found


def _parameter(loaded: Loaded, table: TablePlan) -> str:
    """Return the name that a table has in the model, which may be another than in the file."""
    names = {name for name, _ in loaded.model.named_parameters(remove_duplicate=False)}
    return next((name for name in table.place.names if name in names), table.name)


def _loads(loaded: Loaded, original: Loaded | None) -> Claim:
    """Compare what transformers says of the two: a key that the original lacks too is no fault of the resize."""
    wrong: list[str] = []
    known: list[str] = []
    for kind in ("missing", "unexpected", "mismatched"):
        before = getattr(original, kind) if original else ()
        wrong += [f"{kind} key: {key}" for key in getattr(loaded, kind) if key not in before]
        known += [f"{kind} in the original too: {key}" for key in before]
    own = " of its own" if known else ""
    return Claim("loads", not wrong, (*(wrong or [f"it has no missing, unexpected or mismatched key{own}"]), *known))


def _runs(plan: ResizePlan, after: Outputs, before: Outputs) -> Claim:
    wrong: list[str] = []
    found: list[str] = []
    length = plan.max_len_after
    was_finite = all(output.isfinite().all() for output in before.values() if hasattr(output, "isfinite"))
    for table in plan.tables:
        output = after[table.name, length]
        if isinstance(output, str):
            wrong.append(f"{table.name}: a text of {length} tokens fails: {output}")
        elif output is None:
            found.append(f"{table.name}: not run, since nothing around it reads a text alone")
        elif was_finite and not output.isfinite().all():
            wrong.append(f"{table.name}: a text of {length} tokens gives NaN or infinity")
        else:
            found.append(f"{table.name}: a text of {length} tokens runs")
    return Claim("runs", not wrong, (*wrong, *found))


def _outputs(
    plan: ResizePlan, before: Outputs, after: Outputs, original: Loaded | None, trainable: str | None
) -> Iterator[Claim]:
    """Compare what both give for texts that the original could read."""
    if original is None or original.missing or original.mismatched:
        why = "transformers cannot read the original" if original is None else "the original lacks tensors"
        yield Claim("outputs", True, (f"not compared: {why}",))
        return
    parts = {table.name: f" ({table.part})" * bool(table.part) for table in plan.tables}
    differences = {
        f"{length} tokens{parts[name]}": _difference(output, after[name, length])
        for (name, length), output in before.items()
        if hasattr(output, "shape")
    }
    if differences:
        keeps = not plan.makes_rows or plan.keeps_learned_rows
        yield _compared(differences, must=trainable in (None, "new") and keeps)


def _difference(old: Any, new: Any) -> float | str:
    """Return the largest difference of two outputs; in words where they cannot be compared."""
    if not hasattr(new, "shape"):
        return f"fails ({new})"
    return (
        largest_difference(old, new) if old.shape == new.shape else f"{list(new.shape)} in place of {list(old.shape)}"
    )


def _compared(differences: Mapping[str, float | str], *, must: bool) -> Claim:
    lengths = ", ".join(differences)
    numbers = [difference for difference in differences.values() if not isinstance(difference, str)]
    if not any(differences.values()):
        return Claim("outputs", True, (f"texts of {lengths} give exactly what the original gives, bit for bit",))
    shown = (f"{value:.3g}" if not isinstance(value, str) else value for value in differences.values())
    listed = "largest difference: " + "; ".join(
        f"{value} at {text}" for text, value in zip(differences, shown, strict=True)
    )
    if must or len(numbers) < len(differences):
        return Claim("outputs", False, ("short texts should give what the original gives, and they do not", listed))
    told = f"short texts now behave differently: the outputs differ by up to {max(numbers):.3g}"
    return Claim("outputs", True, (told, listed))
