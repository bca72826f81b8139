"""Compare the outputs of a loaded model with those of its base."""

from collections.abc import Mapping
from dataclasses import dataclass

from ctxextend.conversion.conversion import Conversion
from ctxextend.models.load import are_bit_identical, largest_difference
from ctxextend.positions.change import Change, ShortInputs
from ctxextend.verification.expected import Expected
from ctxextend.verification.observe import (
    Failed,
    NotRun,
    Outcomes,
    Ran,
    RunOutcome,
    Tensor,
    outcomes_of,
)

# Rounding of sums that a conversion stores, relative to outputs; measured: up to a seventh of it.
SUM_ROUNDING = {"BF16": 2**-6, "F16": 2**-9}
FLOAT32_STEP = 2**-23
STEPS_PER_LAYER = 8
# Of a rotary frequency of 1 radian per position; measured: up to a tenth of it.
STEPS_PER_POSITION = 8
HIDDEN_STATE = 1.0  # the size of hidden states after a layer norm
MAX_ROUNDING = 0.02  # of outputs, so that long inputs are compared too


@dataclass(frozen=True)
class OtherShape:
    """An output whose shape is not that of the base's."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class NoOutput:
    """Why a model has no output for an input on which its base runs."""

    reason: str


@dataclass(frozen=True)
class ValueDifference:
    """How the values of two outputs of one shape differ."""

    largest: float  # the largest absolute difference; NaN equals NaN, and is the one to a number
    is_bit_identical: bool  # whether NaN and the signs of zeros are the same too


OutputDifference = ValueDifference | OtherShape | NoOutput


@dataclass(frozen=True)
class UnrunTable:
    """A table for which the base ran on no input."""

    table: Change
    reason: NotRun | Failed


@dataclass(frozen=True)
class MustBeEqual:
    """Values must equal the base's; NaN equals NaN, and 0.0 equals -0.0."""


@dataclass(frozen=True)
class MustBeClose:
    """Values may differ from the base's as far as rounding explains."""

    tolerance: float


@dataclass(frozen=True)
class MayDiffer:
    """Values may differ by any amount: positions or trained weights have changed."""


Standard = MustBeEqual | MustBeClose | MayDiffer


@dataclass(frozen=True)
class ComparedOutputs:
    """The differences of outputs from the base's, on inputs that fit both."""

    differences: Mapping[str, OutputDifference]  # by input
    unrun: tuple[UnrunTable, ...]
    standard: Standard
    longest: int  # tokens of the longest input that the base ran on; 0 if it ran on none

    @property
    def of_values(self) -> list[ValueDifference]:
        """The differences of outputs that have the same shape."""
        return [item for item in self.differences.values() if isinstance(item, ValueDifference)]

    @property
    def have_values(self) -> bool:
        """Whether the values of all outputs were compared, and of at least one."""
        return 0 < len(self.of_values) == len(self.differences)

    @property
    def are_identical(self) -> bool:
        """Whether all outputs are bit-identical to the base's. False if none was compared."""
        return self.have_values and all(item.is_bit_identical for item in self.of_values)

    @property
    def are_equal(self) -> bool:
        """Whether all outputs equal the base's; NaN equals NaN. False if none was compared."""
        return self.have_values and all(item.largest == 0 for item in self.of_values)

    @property
    def are_right(self) -> bool:
        """Whether all differences meet the standard. False if none was compared."""
        if not self.have_values:
            return False
        match self.standard:
            case MustBeEqual():
                return self.are_equal
            case MustBeClose(tolerance):
                return all(item.largest <= tolerance for item in self.of_values)
            case MayDiffer():
                return True


def compare_outputs(expected: Expected, before: Outcomes, after: Outcomes) -> ComparedOutputs:
    """Compare the outputs of a model with those of its base, which ran on the same inputs."""
    differences: dict[str, OutputDifference] = {}
    unrun = list[UnrunTable]()
    for table in expected.plan.changes:
        differences |= _differences(table, before, after)
        reason = _why_unrun(table, before)
        if reason is not None:
            unrun.append(UnrunTable(table, reason))
    return ComparedOutputs(
        differences=differences,
        unrun=tuple(unrun),
        standard=_choose_standard(expected, before),
        longest=max((item.tokens for item in before.values() if isinstance(item, Ran)), default=0),
    )


def _choose_standard(expected: Expected, before: Outcomes) -> Standard:
    """Return what outputs on short inputs must be.

    1. Those of an untrained conversion to other positions, compared without positions: close. Those
       of one to attention windows too, unless its rows change.
    2. Those of a checkpoint that keeps the positions and weights that short inputs use: equal, or
       close if positions are kept within rounding.
    3. All others may differ.
    """
    if not _keeps_weights(expected):
        return MayDiffer()
    if expected.replaces_positions or (expected.windows and expected.keeps_positions):
        assert expected.conversion is not None
        return MustBeClose(tolerance=_tolerance(expected.conversion, before))
    if expected.keeps_positions:
        return MustBeEqual()
    if expected.plan.short_inputs is ShortInputs.ROUNDED:
        longest = max(table.max_len_before for table in expected.plan.changes)
        return MustBeClose(tolerance=frequency_rounding(longest) * _smallest_output(before))
    return MayDiffer()


def _keeps_weights(expected: Expected) -> bool:
    """Whether no training changed weights on which the outputs that are compared depend."""
    if expected.replaces_positions:
        return not expected.recorded.is_trained
    return expected.recorded.keeps_old_weights


def frequency_rounding(length: int) -> float:
    """Return how far the rounding of rotary frequencies can move outputs, relative to these.

    A frequency that is wrong by a step turns the last position by as many steps as there are
    positions.

    Args:
        length: Of the input, in tokens.
    """
    return min(STEPS_PER_POSITION * FLOAT32_STEP * length, MAX_ROUNDING)


def embedding_dtype(conversion: Conversion) -> str:
    """Return the dtype of the embeddings, to which a conversion rounds their sums.

    It is that of the source's position table, which is added to them.
    """
    model = conversion.model
    return model.checkpoint.weights.entries[model.tables[0].name].dtype


def _differences(table: Change, before: Outcomes, after: Outcomes) -> dict[str, OutputDifference]:
    """Return how outputs differ, by input, where the base has one."""
    differences: dict[str, OutputDifference] = {}
    for text, old in outcomes_of(table, before).items():
        if isinstance(old, Ran):
            label = f"{text} ({table.part})" if table.part else text
            differences[label] = output_difference(table, old, after.get((table.name, text)))
    return differences


def _why_unrun(table: Change, before: Outcomes) -> NotRun | Failed | None:
    """Return why the base ran on no input for a table: an error, if any; None if it ran on one.

    `run_inputs` runs on at least one input for each table.
    """
    reasons = list[NotRun | Failed]()
    for outcome in outcomes_of(table, before).values():
        if isinstance(outcome, Ran):
            return None
        reasons.append(outcome)
    for reason in reasons:
        if isinstance(reason, Failed):
            return reason
    return reasons[0]


def _tolerance(conversion: Conversion, before: Outcomes) -> float:
    """Return how far rounding can move the outputs of a conversion, which are sums over layers.

    Heads sum hidden states, which layer norms keep near 1: small sums are rounded as these.
    """
    layers = sum(int(conversion.config[key]) for key in conversion.twin.layer_keys)
    relative = STEPS_PER_LAYER * layers * FLOAT32_STEP
    if conversion.twin.adds_mean:
        relative += SUM_ROUNDING.get(embedding_dtype(conversion), 0.0)
    return relative * max(_smallest_output(before), HIDDEN_STATE)


def _smallest_output(outcomes: Outcomes) -> float:
    """Return the smallest size of an output, its largest absolute value.

    One tolerance is used for all inputs; without any output, nothing is compared with it.
    """
    sizes = list[float]()
    for outcome in outcomes.values():
        if isinstance(outcome, Ran):
            sizes.append(float(outcome.values.nan_to_num().abs().max()))
    return min(sizes, default=0.0)


def output_difference(table: Change, old: Ran, new: RunOutcome | None) -> OutputDifference:
    """Return how an output differs from one of the base."""
    if new is None:
        return NoOutput("transformers cannot load it")
    if isinstance(new, Failed):
        return NoOutput(new.error)
    if isinstance(new, NotRun):
        return NoOutput(new.reason)
    left = old.values
    right = new.values
    if old.tokens == new.tokens and _differ_only_in_length(table, left, right):
        left, right = _shared_parts(left, right)
    if left.shape != right.shape:
        return OtherShape(tuple(left.shape), tuple(right.shape))
    return ValueDifference(
        largest=largest_difference(left, right),
        is_bit_identical=are_bit_identical(left, right),
    )


def _shared_parts(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the start of both outputs along each axis, at the smaller of the two sizes."""
    sizes = zip(left.shape, right.shape, strict=True)
    shared = tuple(slice(min(pair)) for pair in sizes)
    return left[shared], right[shared]


def _differ_only_in_length(table: Change, old: Tensor, new: Tensor) -> bool:
    """Whether outputs have one shape, but for sizes that are the number of positions or rows.

    Some models have such outputs for an input of any length. What they share is compared.
    """
    if not table.is_changed or old.dim() != new.dim():
        return False
    resized = {(table.max_len_before, table.max_len_after), (table.rows_before, table.rows_after)}
    changed = [pair for pair in zip(old.shape, new.shape, strict=True) if pair[0] != pair[1]]
    return all(pair in resized for pair in changed)
