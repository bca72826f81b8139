"""Compare the outputs of a loaded model with those of its base."""

from collections.abc import Mapping
from dataclasses import dataclass

from ctxextend.conversion.conversion import Conversion
from ctxextend.models.load import largest_difference
from ctxextend.plan.table_plan import TablePlan
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


@dataclass(frozen=True)
class OtherShape:
    """An output whose shape is not that of the base's."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class NoOutput:
    """Why a model has no output for an input on which its base runs."""

    reason: str


OutputDifference = float | OtherShape | NoOutput  # a number: the largest absolute difference


@dataclass(frozen=True)
class UnrunTable:
    """A table for which the base ran on no input."""

    table: TablePlan
    reason: NotRun | Failed


@dataclass(frozen=True)
class ComparedOutputs:
    """The differences of outputs from the base's, on inputs that fit both."""

    differences: Mapping[str, OutputDifference]  # by input
    unrun: tuple[UnrunTable, ...]
    # What rounding explains, of the outputs of a conversion without positions; None: of a resize,
    # or of a trained checkpoint.
    tolerance: float | None
    must_be_identical: bool

    @property
    def numbers(self) -> list[float]:
        """The differences of outputs that have the same shape."""
        return [value for value in self.differences.values() if isinstance(value, float)]

    @property
    def are_identical(self) -> bool:
        """Whether all outputs are bit-identical to the base's."""
        return not any(self.differences.values())

    @property
    def are_right(self) -> bool:
        """Whether all differences are as expected."""
        if len(self.numbers) < len(self.differences):
            return False
        if self.tolerance is not None:
            return all(value <= self.tolerance for value in self.numbers)
        return self.are_identical or not self.must_be_identical


def compare_outputs(expected: Expected, before: Outcomes, after: Outcomes) -> ComparedOutputs:
    """Compare the outputs of a model with those of its base, which ran on the same inputs."""
    differences: dict[str, OutputDifference] = {}
    unrun = list[UnrunTable]()
    for table in expected.tables:
        differences |= _differences(table, before, after)
        reason = _why_unrun(table, before)
        if reason is not None:
            unrun.append(UnrunTable(table, reason))
    recorded = expected.recorded
    keeps_weights = not recorded.adapted and recorded.trainable in (None, "new")
    return ComparedOutputs(
        differences=differences,
        unrun=tuple(unrun),
        tolerance=_tolerance(expected, before),
        must_be_identical=expected.keeps_positions and keeps_weights,
    )


def stored_dtype(conversion: Conversion) -> str:
    """Return the dtype of the embeddings, to which a conversion rounds their sums."""
    model = conversion.model
    return model.checkpoint.weights.entries[model.tables[0].name].dtype


def _differences(
    table: TablePlan, before: Outcomes, after: Outcomes
) -> dict[str, OutputDifference]:
    """Return how outputs differ, by input, where the base has one."""
    differences: dict[str, OutputDifference] = {}
    for text, old in outcomes_of(table, before).items():
        if isinstance(old, Ran):
            label = f"{text} ({table.part})" if table.part else text
            differences[label] = _difference(table, old, after.get((table.name, text)))
    return differences


def _why_unrun(table: TablePlan, before: Outcomes) -> NotRun | Failed | None:
    """Return why the base ran on no input for a table: an error, if any; None if it ran on one."""
    reasons = list[NotRun | Failed]()
    for outcome in outcomes_of(table, before).values():
        if isinstance(outcome, Ran):
            return None
        reasons.append(outcome)
    for reason in reasons:
        if isinstance(reason, Failed):
            return reason
    return reasons[0]


def _tolerance(expected: Expected, before: Outcomes) -> float | None:
    """Return how far rounding can move the outputs of a conversion, which are sums over layers.

    None if training does too, or if it is a resize.
    """
    conversion = expected.conversion
    recorded = expected.recorded
    found = [outcome.values for outcome in before.values() if isinstance(outcome, Ran)]
    if conversion is None or recorded.trainable or recorded.adapted or not found:
        return None
    relative = STEPS_PER_LAYER * int(conversion.config["num_hidden_layers"]) * FLOAT32_STEP
    relative += SUM_ROUNDING.get(stored_dtype(conversion), 0.0)
    return relative * min(float(values.nan_to_num().abs().max()) for values in found)


def _difference(table: TablePlan, old: Ran, new: RunOutcome | None) -> OutputDifference:
    """Return how an output differs from one of the base."""
    if new is None:
        return NoOutput("transformers cannot load it")
    if isinstance(new, Failed):
        return NoOutput(new.error)
    if isinstance(new, NotRun):
        return NoOutput(new.reason)
    left = old.values
    right = new.values
    if old.tokens == new.tokens and _has_value_per_row(table, left, right):
        sizes = zip(left.shape, right.shape, strict=True)
        shared = tuple(slice(min(pair)) for pair in sizes)
        left = left[shared]
        right = right[shared]
    if left.shape != right.shape:
        return OtherShape(tuple(left.shape), tuple(right.shape))
    return largest_difference(left, right)


def _has_value_per_row(table: TablePlan, old: Tensor, new: Tensor) -> bool:
    """Whether outputs differ only in the size that is the number of positions, for any input."""
    if not table.is_changed or old.dim() != new.dim():
        return False
    sizes = {(table.max_len_before, table.max_len_after), (table.rows_before, table.rows_after)}
    changed = [pair for pair in zip(old.shape, new.shape, strict=True) if pair[0] != pair[1]]
    return all(pair in sizes for pair in changed)
