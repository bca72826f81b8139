"""Check that a resized checkpoint loads and runs in transformers, and compare its outputs with the base's."""

from collections.abc import Mapping
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.models.devices import running
from ctxextend.models.load import Loaded, check_loadable, largest_difference, load, read_text
from ctxextend.plan.plan import ResizePlan
from ctxextend.verification.checks import Check, ExpectedResize

WITHOUT = "Verify it without --deep."

# What a model gives for a text, by the table that it is read with and its length: a tensor; None where no text alone
# will do; or what torch says where it fails.
Outputs = Mapping[tuple[str, int], Any]


def check_loading(expected: ExpectedResize, resized: Checkpoint) -> list[Check]:
    """Load both checkpoints in transformers, run the new length, and compare what they give at old lengths.

    Both are run in float32 on the same texts, one after the other, so that one model is held at a time.
    """
    plan, base = expected.plan, expected.plan.checkpoint
    shared = min(min(table.max_len_before, table.max_len_after) for table in plan.tables)
    lengths = sorted({max(shared // 4, 1), max(shared // 2, 1), shared})
    check_loadable(base, WITHOUT)
    try:
        loaded = load(base, base.model_class)
    except CheckpointError as error:
        raise CheckpointError(error.message, WITHOUT) from error
    before, known = _read_texts(plan, loaded, lengths), _odd_keys(loaded)
    del loaded
    try:
        check_loadable(resized)
        loaded = load(resized, base.model_class)
    except CheckpointError as error:
        return [Check("loads", False, (error.message,))]
    after = _read_texts(plan, loaded, [*lengths, plan.max_len_after])
    wrong = [key for key in _odd_keys(loaded) if key not in known]  # what the base has too is no fault of the resize
    fine = f"it has no missing, unexpected or mismatched key{' of its own' * bool(known)}"
    evidence = (*(wrong or [fine]), *(f"{key}, in the base too" for key in known))
    checks = [Check("loads", not wrong, evidence), _check_runs(plan, after, before)]
    if any(not key.startswith("unexpected") for key in known):
        return [*checks, Check("outputs", True, ("not compared: the base lacks tensors",))]
    return [*checks, *_check_outputs(expected, before, after)]


def _odd_keys(loaded: Loaded) -> list[str]:
    kinds = ("missing", "unexpected", "mismatched")  # as transformers reports them
    return [f"{kind} key: {key}" for kind in kinds for key in getattr(loaded, kind)]


def _read_texts(plan: ResizePlan, loaded: Loaded, lengths: list[int]) -> Outputs:
    found: dict[tuple[str, int], Any] = {}
    parameters = {name for name, _ in loaded.model.named_parameters(remove_duplicate=False)}
    for table in plan.tables:
        # A table may have another name in the model than in the file.
        name = next((name for name in table.location.names if name in parameters), table.name)
        for length in lengths:
            try:
                with running(loaded.model, None):
                    found[table.name, length] = read_text(loaded.model, name, length)
            except (IndexError, RuntimeError, ValueError) as error:
                found[table.name, length] = f"{type(error).__name__}: {error}"[:200]
    return found


def _check_runs(plan: ResizePlan, after: Outputs, before: Outputs) -> Check:
    wrong, found = list[str](), list[str]()
    text = f"a text of {plan.max_len_after} tokens"
    was_finite = all(output.isfinite().all() for output in before.values() if hasattr(output, "isfinite"))
    for table in plan.tables:
        output = after[table.name, plan.max_len_after]
        if isinstance(output, str):
            wrong.append(f"{table.name}: {text} fails: {output}")
        elif output is None:
            found.append(f"{table.name}: not run, since nothing around it reads a text alone")
        elif was_finite and not output.isfinite().all():
            wrong.append(f"{table.name}: {text} gives NaN or infinity")
        else:
            found.append(f"{table.name}: {text} runs")
    return Check("runs", not wrong, (*wrong, *found))


def _check_outputs(expected: ExpectedResize, before: Outputs, after: Outputs) -> list[Check]:
    """Compare what both give for texts that the base could read; return nothing where it could read none."""
    plan = expected.plan
    parts = {table.name: f" ({table.part})" * bool(table.part) for table in plan.tables}
    found: dict[str, float | str] = {}  # the largest difference, or what fails, by the text
    for (name, length), old in before.items():
        new = after[name, length]
        if not hasattr(old, "shape"):
            continue
        text = f"{length} tokens{parts[name]}"
        if not hasattr(new, "shape"):
            found[text] = f"fails ({new})"
        else:
            is_alike = new.shape == old.shape
            found[text] = largest_difference(old, new) if is_alike else f"{list(new.shape)} for {list(old.shape)}"
    if not found:
        return []
    if not any(found.values()):
        return [Check("outputs", True, (f"texts of {', '.join(found)} give exactly what the base gives, bit for bit",))]
    shown = (f"{value if isinstance(value, str) else format(value, '.3g')} at {text}" for text, value in found.items())
    listed = f"largest difference: {'; '.join(shown)}"
    differences = [value for value in found.values() if not isinstance(value, str)]
    keeps = not plan.creates_rows or plan.keeps_learned_rows
    if len(differences) < len(found) or (keeps and expected.trainable in (None, "new")):
        return [Check("outputs", False, ("short texts should give what the base gives, and they do not", listed))]
    changed = f"short texts now behave differently: the outputs differ by up to {max(differences):.3g}"
    return [Check("outputs", True, (changed, listed))]
