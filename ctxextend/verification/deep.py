"""`verify --deep`: load both checkpoints in transformers, run the new one, and compare its outputs
with the base's.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.conversion.convert import Conversion, ConversionPlan
from ctxextend.conversion.twins import ANGLES, SOURCE_TYPES
from ctxextend.errors import CheckpointError, counted
from ctxextend.families.rope import read_rope, rotary_dim
from ctxextend.models.devices import torch_threads
from ctxextend.models.extend import to_tensor
from ctxextend.models.load import (
    LoadedModel,
    MoreThanTextError,
    check_loadable,
    largest_difference,
    load,
    padded_texts,
    run_on_tokens,
)
from ctxextend.plan.edits import TablePlan
from ctxextend.plan.plan import ResizePlan
from ctxextend.recipe_file import any_layer
from ctxextend.tables.rotary import frequencies
from ctxextend.verification.checks import Check, ExpectedResize, make_check

NOT_DEEP_HINT = "Run verify without --deep."
SUM_ROUNDING = {
    "BF16": 2**-6,
    "F16": 2**-9,
}  # of outputs, relative; measured: up to a seventh of it
# Relative rounding of frequencies: of transformers' float32 formulas, and of buffers that a file
# stores in 16 bits.
FREQUENCY_ROUNDING = {"F16": 2**-10, "BF16": 2**-7}
FLOAT32_ROUNDING = 1e-5
Tensor = Any  # of torch
SHORT_INPUT = 8  # tokens, to find out which parameters outputs depend on


@dataclass(frozen=True)
class Ran:
    """The output of a model."""

    values: Tensor
    tokens: int  # of the input

    @property
    def is_finite(self) -> bool:
        """Whether no value is NaN or infinity."""
        return bool(self.values.isfinite().all())


@dataclass(frozen=True)
class NotRun:
    """Why a model was not run: it does not run on text only."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The error of a model that runs on shorter texts."""

    error: str


Outcome = Ran | NotRun | Failed
Outcomes = Mapping[tuple[str, str], Outcome]  # by table and input


@dataclass(frozen=True)
class RandomParameters:
    """Parameters that transformers initialised at random, since weights for them are missing or
    have other shapes.
    """

    mismatched: tuple[str, ...]
    needed: tuple[str, ...]  # missing, and outputs depend on them
    unneeded: tuple[
        str, ...
    ]  # missing, but outputs do not depend on them, such as a pooler without a head for it
    unknown: tuple[str, ...]  # missing, and the model could not be run to tell

    @property
    def decisive(self) -> tuple[str, ...]:
        """Those that make outputs random, or may do so."""
        return (*self.mismatched, *self.needed, *self.unknown)


@dataclass(frozen=True)
class Observed:
    """What was seen of a loaded model; the model itself is dropped before the next one is
    loaded.
    """

    outcomes: Outcomes
    random: RandomParameters
    unexpected: tuple[str, ...]  # tensors for which the model has no place
    frequencies: Mapping[
        str, NDArray[np.float32]
    ]  # inverse frequencies of rotary positions, by name of the buffer


def check_loading(expected: ExpectedResize, resized: Checkpoint) -> list[Check]:
    """Load both checkpoints, run the resized one at its new length, and compare outputs on inputs
    that fit both.

    Both run in float32 on the same inputs, one after the other, so only one model is in memory at a
    time. A conversion and its base are compared without positions.
    """
    plan = expected.plan
    conversion = plan.conversion if isinstance(plan, ConversionPlan) else None
    base = conversion.model.checkpoint if conversion else plan.checkpoint
    shared = min(min(table.same_up_to, table.max_len_after) for table in plan.tables)
    shared = min(shared, plan.max_len_before) if conversion else shared
    lengths = sorted({max(shared // 4, 1), max(shared // 2, 1), shared})
    base_class = base.model_class
    if conversion:  # the class with the same head as the twin
        base_type = SOURCE_TYPES[conversion.model.architecture.family.model_type]
        head = conversion.model_class.removeprefix(conversion.twin.class_name)
        base_class = base_type.class_name + next(
            name for name, twin in base_type.heads.items() if twin == head
        )
    before: Observed | CheckpointError
    try:
        check_loadable(base)
        loaded = load(base, base_class)
    except CheckpointError as error:
        before = error
    else:
        frequencies_before = _read_frequencies(loaded)
        if conversion:
            _remove_positions(loaded.model, conversion)
        before = _observe(plan, base, loaded, lengths, frequencies_before)
        del loaded
    try:
        check_loadable(resized)
        _check_plain_names(resized)
        loaded = load(resized, plan.checkpoint.model_class)
    except CheckpointError as error:
        if isinstance(before, CheckpointError):
            raise CheckpointError(before.message, NOT_DEEP_HINT) from error
        return [make_check("loads", failures=(error.message,))]
    # Inputs change frequencies, so they are read first.
    after = _observe(
        plan, resized, loaded, [*lengths, plan.max_len_after], _read_frequencies(loaded)
    )
    alike = after.outcomes
    if conversion:
        _remove_positions(loaded.model, conversion)
        alike = _run_inputs(plan, resized, loaded, lengths)
    return [
        _check_loads(plan, resized, before, after),
        _check_runs(plan, before, after),
        _check_outputs(expected, before, replace(after, outcomes=alike)),
    ]


def _check_plain_names(resized: Checkpoint) -> None:
    """Raise CheckpointError if names of tensors are those of a wrapper: read here, but not by
    transformers.
    """
    if wrappers := ", ".join(resized.weights.wrappers):
        raise CheckpointError(
            f"Tensor names in {resized.root} have {wrappers}, which transformers does not load."
        )


def _remove_positions(model: Any, conversion: Conversion) -> None:
    """Make all positions alike in a twin or its source: no rotation, no ALiBi biases, the mean row
    everywhere.
    """
    (location, _), is_source = (
        conversion.model.tables[0],
        model.config.model_type != conversion.twin.model_type,
    )
    for name, values in (*model.named_buffers(), *model.named_parameters()):
        if name.endswith("inv_freq"):
            values.data[:] = 0
        elif name.endswith(ANGLES):
            values.data[:] = to_tensor(
                np.arange(values.shape[1]) >= values.shape[1] // 2
            )  # sines 0, cosines 1
        elif is_source and name.endswith(location.table.name):
            values.data[location.reserved_rows :] = to_tensor(conversion.mean_row)
    for module in model.modules():
        if (
            "alibi" in inspect.signature(module.forward).parameters
        ):  # its mask contains the biases, which are positive
            module.register_forward_pre_hook(
                lambda _, args, given: (
                    args,
                    given | {"attention_mask": given["attention_mask"].clamp(max=0)},
                ),
                with_kwargs=True,
            )


def _observe(
    plan: ResizePlan,
    checkpoint: Checkpoint,
    loaded: LoadedModel,
    lengths: list[int],
    frequencies: Mapping[str, NDArray[np.float32]],
) -> Observed:
    return Observed(
        outcomes=_run_inputs(plan, checkpoint, loaded, lengths),
        random=_find_random(plan, loaded, min(*lengths, SHORT_INPUT)),
        unexpected=loaded.unexpected,
        frequencies=frequencies,
    )


def _find_random(plan: ResizePlan, loaded: LoadedModel, length: int) -> RandomParameters:
    """Find the parameters with random values, and on which of them outputs depend: NaN in these
    reaches an output.

    Parameters of the same name in other layers count too, since inputs do not reach all experts.
    """
    state = dict(loaded.model.named_parameters(remove_duplicate=False)) | dict(
        loaded.model.named_buffers()
    )
    groups: dict[str, list[str]] = {}
    for name in loaded.missing:
        groups.setdefault(any_layer(name), []).append(name)
    normal = _count_finite(plan, loaded, length) if groups else 0
    needed, unneeded = list[str](), list[str]()
    for pattern, names in groups.items() if normal else ():
        tensors = [value for name, value in state.items() if any_layer(name) == pattern]
        with _filled_with_nan(tensors):
            found = _count_finite(plan, loaded, length)
        is_unneeded = bool(tensors) and found == normal
        (unneeded if is_unneeded else needed).extend(names)
    return RandomParameters(
        mismatched=loaded.mismatched,
        needed=tuple(needed),
        unneeded=tuple(unneeded),
        unknown=() if normal else loaded.missing,
    )


def _count_finite(plan: ResizePlan, loaded: LoadedModel, length: int) -> int:
    """Count the finite values of a model's outputs for a short input; 0 if it does not run."""
    found = [_run(plan, loaded, table, length) for table in plan.tables]
    return sum(
        int(outcome.values.isfinite().sum()) for outcome in found if isinstance(outcome, Ran)
    )


@contextmanager
def _filled_with_nan(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Set all float values to NaN meanwhile."""
    floats = [value for value in tensors if value.is_floating_point()]
    before = [value.detach().clone() for value in floats]
    for value in floats:
        value.data.fill_(np.nan)
    try:
        yield
    finally:
        for value, kept in zip(floats, before, strict=True):
            value.data.copy_(kept)


def _check_loads(
    plan: ResizePlan, resized: Checkpoint, before: Observed | CheckpointError, after: Observed
) -> Check:
    """Check that transformers finds weights for all parameters on which outputs depend, and the
    right frequencies.

    A parameter with random values is wrong even if the base has the same fault. Tensors of a
    conversion have other names than those of its base, so only its own count. If the base cannot be
    loaded, faults that it may have too are not judged.
    """
    random = after.random
    in_base = set[str]()
    if isinstance(before, Observed) and not isinstance(plan, ConversionPlan):
        in_base = {*before.random.decisive, *before.random.unneeded, *before.unexpected}

    def describe(kind: str, name: str, effect: str = "") -> str:
        also = " (also in the base)" if name in in_base else ""
        return f"{kind} key: {name}{also}{effect}"

    wrong = [describe("mismatched", name, ": its values are random") for name in random.mismatched]
    wrong += [
        describe("missing", name, ": its values are random, and outputs depend on it")
        for name in random.needed
    ]
    unchecked, notes = list[str](), list[str]()
    faults = (
        unchecked if isinstance(before, CheckpointError) else wrong
    )  # of names that the base is not known to have
    for name in random.unneeded:
        text = describe("missing", name, ": no output that is compared depends on it")
        (notes if name in in_base else faults).append(text)
    for name in random.unknown:
        text = describe(
            "missing", name, ": the model does not run on text only, so outputs may depend on it"
        )
        (unchecked if name in in_base else faults).append(text)
    for name in after.unexpected:
        (notes if name in in_base else faults).append(describe("unexpected", name))
    if not (wrong or unchecked):
        notes.insert(0, f"no{' other' if notes else ''} missing, unexpected or mismatched keys")
    frequencies_before = before.frequencies if isinstance(before, Observed) else {}
    for text, is_equal in _compare_frequencies(plan, resized, frequencies_before, after):
        if is_equal is None:
            unchecked.append(text)
        elif is_equal:
            notes.append(text)
        else:
            wrong.append(text)
    return make_check("loads", failures=wrong, unchecked=unchecked, findings=notes)


def _read_frequencies(loaded: LoadedModel) -> dict[str, NDArray[np.float32]]:
    """Return the inverse frequencies of rotary positions, as the model has loaded them, by name."""
    return {
        name: buffer.float().numpy().copy()
        for name, buffer in loaded.model.named_buffers()
        if name.endswith("inv_freq") and not name.endswith("original_inv_freq")
    }


def _compare_frequencies(
    plan: ResizePlan,
    resized: Checkpoint,
    before: Mapping[str, NDArray[np.float32]],
    after: Observed,
) -> Iterator[tuple[str, bool | None]]:
    """Yield whether the model's inverse frequencies are right, as text; None: there are none to
    compare.

    Where settings change, they are those of the new settings, in the precision in which a file
    stores them; else they may also be those of the base.
    """
    for table in plan.tables:
        facts = table.location.table.rope
        if facts is None:
            continue
        if not facts.methods:  # the classes ignore these settings, or read only some of them
            for name, values in after.frequencies.items():
                if name in before:
                    is_equal = np.array_equal(values, before[name])
                    yield (
                        f"{name} {'equals' if is_equal else 'differs from'} that of the base",
                        is_equal,
                    )
            continue
        location = replace(table.location, config=resized.config)
        changed = {
            rope.before.layers
            for rope in table.rope
            if rope.after.parameters != rope.before.parameters
        }
        for rope in read_rope(location):
            dim, max_len = (
                rotary_dim(location, rope.parameters),
                location.value(location.effective_key),
            )
            expected = frequencies(
                rope.parameters, dim, max_len, length=1
            ).inverse  # as for short inputs
            ending = f".{rope.layers}_inv_freq" if rope.layers else ".inv_freq"
            found = {
                name: values
                for name, values in after.frequencies.items()
                if f".{name}".endswith(ending) and values.shape == expected.shape
            }
            equal = [
                name for name, values in found.items() if _is_close(resized, name, values, expected)
            ]
            same = [
                name
                for name, values in found.items()
                if name in before and np.array_equal(values, before[name])
            ]
            if equal:
                yield f"{equal[0]} equals the frequencies of the rotary settings", True
            elif same and rope.layers not in changed:
                yield f"{same[0]} equals that of the base", True
            elif found:
                yield (
                    f"{next(iter(found))} differs from the frequencies of the rotary settings",
                    False,
                )
            elif rope.layers in changed:
                what = f"{table.name} {rope.layers}".strip()
                yield (
                    f"{what}: the model has no buffer of {len(expected)} inverse frequencies",
                    None,
                )


def _is_close(
    resized: Checkpoint, name: str, values: NDArray[np.float32], expected: NDArray[np.float64]
) -> bool:
    """Whether loaded frequencies are the expected ones, in the precision of the file if it stores
    them.
    """
    stored = next(
        (entry.dtype for entry in resized.entries.values() if entry.name.endswith(name)), "F32"
    )
    rounding = FREQUENCY_ROUNDING.get(stored, FLOAT32_ROUNDING)
    smallest = (
        2.0**-24 if stored == "F16" else 0.0
    )  # below 2^-14, float16 has fixed steps of this size
    return np.allclose(values, expected, rtol=rounding, atol=smallest)


def _run_inputs(
    plan: ResizePlan, checkpoint: Checkpoint, loaded: LoadedModel, lengths: list[int]
) -> Outcomes:
    outcomes: dict[tuple[str, str], Outcome] = {}
    for table in plan.tables:
        inputs: dict[str, Any] = {f"{length} tokens": length for length in lengths}
        if table.keeps_padding:
            folder = checkpoint.root / (table.location.tokenizer or checkpoint.model)
            inputs |= padded_texts(loaded.model, folder, table.max_len_before)
        for text, tokens in inputs.items():
            outcomes[table.name, text] = _run(plan, loaded, table, tokens)
    return outcomes


def _run(plan: ResizePlan, loaded: LoadedModel, table: TablePlan, tokens: int | Tensor) -> Outcome:
    modules = {name for name, _ in loaded.model.named_modules()}
    # A table can be named differently in the model than in the file.
    name = next(
        (name for name in table.location.names if name.rpartition(".")[0] in modules), table.name
    )
    try:
        with torch_threads(loaded.model, None):
            values = run_on_tokens(
                loaded.model, name, tokens, has_others=len(plan.model.tables) > 1
            )
    except MoreThanTextError as error:
        return NotRun(str(error))
    except Exception as error:  # model classes raise many types
        return Failed(f"{type(error).__name__}: {error}"[:200])
    return Ran(values, tokens if isinstance(tokens, int) else tokens.shape[-1])


def _not_run(table: TablePlan, outcomes: Outcomes) -> NotRun | None:
    """Return why a model ran on no input for a table; None if it ran on one, or failed."""
    found = [outcome for (name, _), outcome in outcomes.items() if name == table.name]
    reasons = [outcome for outcome in found if isinstance(outcome, NotRun)]
    return reasons[0] if len(reasons) == len(found) else None


def _needs_more(table: TablePlan, reason: NotRun) -> str:
    return f"{table.name}: the model does not run on text only: {reason.reason}"


def _random_values(random: RandomParameters, whose: str) -> str:
    """Say that outputs mean nothing, because parameters have random values."""
    names = random.decisive
    listed = ", ".join(names[:2]) + (", …" if len(names) > 2 else "")
    return (
        f"{counted(len(names), 'parameter')} of {whose} {'has' if len(names) == 1 else 'have'} "
        f"random values ({listed})"
    )


def _check_runs(plan: ResizePlan, before: Observed | CheckpointError, after: Observed) -> Check:
    wrong, unchecked, notes = list[str](), list[str](), list[str]()
    text = f"{plan.max_len_after} tokens"
    outcomes = before.outcomes if isinstance(before, Observed) else {}
    was_finite = all(outcome.is_finite for outcome in outcomes.values() if isinstance(outcome, Ran))
    for table in plan.tables:
        outcome = after.outcomes[table.name, text]
        if isinstance(outcome, Failed):
            wrong.append(f"{table.name}: fails on {text}: {outcome.error}")
        elif isinstance(outcome, NotRun) and (not outcomes or _not_run(table, outcomes)):
            unchecked.append(_needs_more(table, outcome))
        elif isinstance(outcome, NotRun):
            wrong.append(f"{table.name}: does not run on text, as the base does: {outcome.reason}")
        elif was_finite and not outcome.is_finite:
            wrong.append(f"{table.name}: NaN or infinity on {text}")
        else:
            notes.append(f"{table.name}: runs on {text}")
    if after.random.decisive:
        unchecked.insert(0, _random_values(after.random, "the model"))
    return make_check("runs", failures=wrong, unchecked=unchecked, findings=notes)


def _check_outputs(
    expected: ExpectedResize, before: Observed | CheckpointError, after: Observed
) -> Check:
    """Compare outputs on inputs that fit both."""
    plan = expected.plan
    if isinstance(before, CheckpointError):
        return make_check("outputs", unchecked=(before.message.removesuffix("."),))
    if before.random.decisive:
        return make_check("outputs", unchecked=(_random_values(before.random, "the base"),))
    diffs: dict[str, float | str] = {}  # the largest difference, or the failure, by input
    unchecked = list[str]()
    for table in plan.tables:
        found = {
            text: outcome for (name, text), outcome in before.outcomes.items() if name == table.name
        }
        compared = {text: outcome for text, outcome in found.items() if isinstance(outcome, Ran)}
        for text, old in compared.items():
            label = f"{text} ({table.part})" if table.part else text
            diffs[label] = _difference(table, old, after.outcomes.get((table.name, text)))
        failed = [outcome.error for outcome in found.values() if isinstance(outcome, Failed)]
        if reason := _not_run(table, before.outcomes):
            unchecked.append(_needs_more(table, reason))
        elif not compared:
            unchecked.append(f"{table.name}: the base fails on all inputs: {failed[0]}")
    if after.random.decisive:
        unchecked.insert(0, _random_values(after.random, "the model"))
    if not diffs:
        return make_check("outputs", unchecked=unchecked)
    is_right, findings = _judge(expected, before.outcomes, diffs)
    if is_right:
        return make_check("outputs", unchecked=unchecked, findings=findings)
    return make_check("outputs", failures=findings, unchecked=unchecked)


def _difference(table: TablePlan, old: Ran, new: Outcome | None) -> float | str:
    """Return the largest difference between an output of the base and one of the resized model, or
    how it fails.
    """
    if not isinstance(new, Ran):
        reason = "transformers cannot load it"
        if isinstance(new, Failed):
            reason = new.error
        elif isinstance(new, NotRun):
            reason = new.reason
        return f"fails ({reason})"
    left, right = old.values, new.values
    if old.tokens == new.tokens and _has_value_per_row(table, left, right):
        shared = tuple(slice(min(sizes)) for sizes in zip(left.shape, right.shape, strict=True))
        left, right = left[shared], right[shared]
    if left.shape != right.shape:
        return f"shape {list(right.shape)} instead of {list(left.shape)}"
    return largest_difference(left, right)


def _has_value_per_row(table: TablePlan, old: Tensor, new: Tensor) -> bool:
    """Whether outputs have a value for each position of the table, whatever the input, and differ
    only in that.
    """
    sizes = {(table.max_len_before, table.max_len_after), (table.rows_before, table.rows_after)}
    changed = [pair for pair in zip(old.shape, new.shape, strict=False) if pair[0] != pair[1]]
    return old.dim() == new.dim() and table.is_changed and all(pair in sizes for pair in changed)


def _judge(
    expected: ExpectedResize, before: Outcomes, diffs: Mapping[str, float | str]
) -> tuple[bool, tuple[str, ...]]:
    """Return whether differences of outputs, by input, are as expected, and what was found."""
    plan = expected.plan
    if not any(diffs.values()) and not isinstance(plan, ConversionPlan):
        return True, (f"bit-identical to the base's on inputs of {', '.join(diffs)}",)
    values = (
        f"{value if isinstance(value, str) else format(value, '.3g')} at {text}"
        for text, value in diffs.items()
    )
    listed = f"largest difference: {'; '.join(values)}"
    differences = [value for value in diffs.values() if not isinstance(value, str)]
    if isinstance(plan, ConversionPlan) and not (expected.trainable or expected.adapted):
        model = plan.conversion.model
        layers = plan.conversion.config["num_hidden_layers"]
        dtype = model.checkpoint.entries[model.tables[0].name].dtype
        limit = 8 * layers * 2**-23 + SUM_ROUNDING.get(dtype, 0)  # relative to the largest output
        found = [outcome.values for outcome in before.values() if isinstance(outcome, Ran)]
        limit *= min(float(values.nan_to_num().abs().max()) for values in found)
        is_equal = all(not isinstance(value, str) and value <= limit for value in diffs.values())
        relation = "equal the base's within" if is_equal else "differ from the base's by more than"
        rounding = (
            f"float32 rounding{f' and that of the embeddings to {dtype}' * (dtype in SUM_ROUNDING)}"
        )
        return is_equal, (
            f"without positions, outputs {relation} {rounding} (tolerance {limit:.2g})",
            listed,
        )
    keeps = not plan.creates_rows or plan.keeps_learned_rows
    if len(differences) < len(diffs) or (
        keeps and not expected.adapted and expected.trainable in (None, "new")
    ):
        return False, ("outputs on short inputs must be identical to the base's but differ", listed)
    changed = (
        f"outputs on short inputs differ from the base's by up to {max(differences):.3g}, as "
        "expected"
    )
    return True, (changed, listed)
