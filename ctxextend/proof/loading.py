"""Whether a resized checkpoint loads and runs in transformers, and what became of short texts."""

from collections.abc import Iterator, Mapping
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.plan import ResizePlan
from ctxextend.proof.claims import Claim, listed
from ctxextend.running import Loaded, largest_difference, load, read_text
from ctxextend.tableplan import TablePlan

__all__ = ["check_loading"]

# The tensor that a model gives for a text, by the table that it is read with and its length; None where no text alone
# will do.
Outputs = Mapping[tuple[str, int], Any]


def check_loading(plan: ResizePlan, extended: Checkpoint, trainable: str | None) -> list[Claim]:
    """Load both checkpoints in transformers, run the new length, and compare what they give at old lengths.

    Both are run in float32 on the same texts, one after the other, so that one model is held at a time.

    Args:
        plan: What the resize should have changed.
        extended: What it is said to have become.
        trainable: What was trained after it; else None.
    """
    base = plan.checkpoint
    if base.is_adapter or not base.has_config:
        why = "an adapter" if base.is_adapter else "weights without a config.json"
        return [Claim("loads", False, (f"{why} cannot be loaded alone: verify without --deep",))]
    original, before = _original(plan)
    try:
        loaded = load(extended.root / extended.model, base.model_class, extended.stored.variant)
    except CheckpointError as error:
        return [Claim("loads", False, (error.message,))]
    return [_loads(loaded, original), _runs(plan, loaded), *_outputs(plan, loaded, before, trainable)]


def _original(plan: ResizePlan) -> tuple[Loaded | None, Outputs]:
    """Return what transformers said of the original, without its model, and what that gives at old lengths."""
    base = plan.checkpoint
    try:
        loaded = load(base.root / base.model, base.model_class, base.stored.variant)
    except CheckpointError:  # such as one of nanoGPT's, which transformers cannot read
        return None, {}
    given = {
        (table.name, length): read_text(loaded.model, _parameter(loaded, table), length)
        for table in plan.tables
        for length in _old_lengths(table)
    }
    return Loaded(None, loaded.missing, loaded.unexpected, loaded.mismatched), given


def _parameter(loaded: Loaded, table: TablePlan) -> str:
    """Return the name that a table has in the model, which may be another than in the file."""
    names = {name for name, _ in loaded.model.named_parameters(remove_duplicate=False)}
    return next((name for name in table.place.names if name in names), table.name)


def _old_lengths(table: TablePlan) -> list[int]:
    shared = min(table.max_len_before, table.max_len_after)
    return sorted({max(shared // 4, 1), max(shared // 2, 1), shared})


def _loads(loaded: Loaded, original: Loaded | None) -> Claim:
    """Compare what transformers says of the two: a key that the original lacks too is no fault of the resize."""
    wrong, known = [], []
    for kind in ("missing", "unexpected", "mismatched"):
        keys, before = getattr(loaded, kind), getattr(original, kind) if original else ()
        new = [key for key in keys if key not in before]
        wrong += [f"{kind} keys: {listed(new)}"] if new else []
        known += [f"{kind} in the original too: {listed(before)}"] if before else []
    fine = "it loads in transformers with no missing, unexpected or mismatched key"
    return Claim("loads", not wrong, (*(wrong or [f"{fine}{' of its own' * bool(known)}"]), *known))


def _runs(plan: ResizePlan, loaded: Loaded) -> Claim:
    wrong, found = [], []
    for table in plan.tables:
        length = table.max_len_after
        try:
            output = read_text(loaded.model, _parameter(loaded, table), length)
        except (IndexError, RuntimeError, ValueError) as error:
            wrong.append(f"{table.name}: a text of {length} tokens fails: {type(error).__name__}: {error}"[:300])
            continue
        if output is None:
            found.append(f"{table.name}: not run, since nothing around it reads a text alone")
        elif not output.isfinite().all():
            wrong.append(f"{table.name}: a text of {length} tokens gives NaN or infinity")
        else:
            found.append(f"{table.name}: a text of {length} tokens runs")
    return Claim("runs", not wrong, (*wrong, *found))


def _outputs(plan: ResizePlan, loaded: Loaded, before: Outputs, trainable: str | None) -> Iterator[Claim]:
    """Compare what both give for texts that the original could read."""
    if not any(output is not None for output in before.values()):
        return
    differences: dict[str, float] = {}
    for table in plan.tables:
        for length in _old_lengths(table):
            old = before.get((table.name, length))
            new = None if old is None else read_text(loaded.model, _parameter(loaded, table), length)
            if old is not None and new is not None:
                text = f"{length} tokens" + f" ({table.part})" * bool(table.part)
                differences[text] = largest_difference(old, new)
    must = trainable in (None, "new") and (not plan.makes_rows or plan.recipe.resize.options.keeps_learned_rows)
    equal = not any(differences.values())
    yield Claim("outputs", equal or not must, (_told(differences, equal=equal, must=must), *_shown(differences, equal)))


def _told(differences: Mapping[str, float], *, equal: bool, must: bool) -> str:
    lengths = ", ".join(differences)
    if equal:
        return f"texts of {lengths} give exactly what the original gives, bit for bit"
    if must:
        return "short texts should give exactly what the original gives, and they do not"
    return f"short texts now behave differently: the outputs differ by up to {max(differences.values()):.3g}"


def _shown(differences: Mapping[str, float], equal: bool) -> Iterator[Any]:
    if not equal:
        yield "largest difference: " + "; ".join(f"{value:.3g} at {text}" for text, value in differences.items())
