"""Recreate the rows of position tables from the base, and compare them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.output.record import table_hash
from ctxextend.plan.choose import resize_rows
from ctxextend.plan.found_table import computed_shape
from ctxextend.plan.table_checks import width_fault
from ctxextend.plan.table_plan import TablePlan
from ctxextend.provenance import learned_before
from ctxextend.recipe import FROZEN
from ctxextend.tables.apply import equal_rows, learned_rows, nonfinite_rows
from ctxextend.verification.compare_rope import ComparedPositions, Mask, compare_positions
from ctxextend.verification.compare_tensors import TensorForm, WrongForm, find_wrong_form
from ctxextend.verification.expected import Expected, Recorded

TableValues = NDArray[Any]  # the values of a table, shape (rows, hidden_size)


class RecordedHash(Enum):
    """How the SHA-256 of a table compares with that in its recipe."""

    NONE = auto()  # the recipe has none
    SAME = auto()
    OTHER = auto()


@dataclass(frozen=True)
class ComputedTable:
    """A table that transformers computes from the config of the resized checkpoint."""

    table: TablePlan
    shape: tuple[int, int] | None  # None: the config is malformed
    error: str = ""


@dataclass(frozen=True)
class UncheckedRows:
    """A table whose rows cannot be recreated, because their method is not registered."""

    table: TablePlan
    method: str
    width_fault: str  # a config key that states another width; empty if none does
    # `RecordedHash.NONE` also if no training has changed some rows: these need their method.
    recorded_hash: RecordedHash


@dataclass(frozen=True)
class ChangedRows:
    """How much the learned rows of a table have changed."""

    shared: int  # rows that both tables have
    changed: Sequence[int] = ()
    largest: float = 0.0  # largest change of a row, as a norm
    median_norm: float = 0.0  # of the rows before


@dataclass(frozen=True)
class ComparedRows:
    """A stored table, compared with its recreated rows."""

    table: TablePlan
    width_fault: str  # a config key that states another width; empty if none does
    # Of rows that are not copied, relative to the median norm; 0: bit for bit.
    tolerance: float
    matching: int  # rows that are as expected
    wrong: Sequence[int]  # rows that are not, although no training has changed them
    nonfinite: Sequence[int]  # rows with NaN or infinity, which the resize does not have
    recorded_hash: RecordedHash
    learned: ChangedRows


TableComparison = ComparedPositions | ComputedTable | WrongForm | UncheckedRows | ComparedRows


def compare_table(expected: Expected, table: TablePlan, resized: Checkpoint) -> TableComparison:
    """Compare one position table, or positions without a table of rows.

    Raises:
        CheckpointError: A file cannot be read.
        ResizeError: The rows cannot be recreated.
    """
    if not table.has_rows:
        return compare_positions(table, resized)
    if not table.is_stored:
        return _compare_computed(table, resized)
    form = TensorForm(table.dtype, (table.rows_after, table.hidden_size))
    wrong_form = find_wrong_form(resized, table.name, form)
    if wrong_form is not None:
        return wrong_form
    method = expected.recorded.unregistered_method
    if method is not None and table.is_changed:
        return _unchecked_rows(expected.recorded, table, resized, method)
    return _compare_rows(expected, table, resized)


def _compare_computed(table: TablePlan, resized: Checkpoint) -> ComputedTable:
    try:
        shape = computed_shape(replace(table.location, config=resized.config))
    except CheckpointError as error:
        return ComputedTable(table, None, error.message)
    return ComputedTable(table, shape)


def _unchecked_rows(
    recorded: Recorded, table: TablePlan, resized: Checkpoint, method: str
) -> UncheckedRows:
    """Return a table whose rows are not recreated; its hash is enough if all of it was trained."""
    recorded_hash = RecordedHash.NONE
    if recorded.trainable in ("positions", "all"):
        after = resized.weights.read_floats(table.name)
        recorded_hash = _compare_hash(recorded, table, after)
    return UncheckedRows(
        table=table,
        method=method,
        width_fault=_width_fault(table, resized),
        recorded_hash=recorded_hash,
    )


def _compare_rows(expected: Expected, table: TablePlan, resized: Checkpoint) -> ComparedRows:
    """Recreate a stored table and compare: kept rows bit for bit, others within the tolerance."""
    choice = expected.plan.choice_of(table)
    before = expected.base.weights.read_floats(table.name)
    after = resized.weights.read_floats(table.name)
    recreated = resize_rows(table, before, choice)
    matches = equal_rows(recreated, after)
    tolerance = choice.facts.tolerance if expected.plan.creates_rows else 0.0
    if tolerance:
        learned = min(table.rows_before, table.rows_after) - table.reserved_rows
        exact = recreated.astype(np.float64)
        distances = np.linalg.norm(exact - after.astype(np.float64), axis=1)
        is_close = distances <= tolerance * np.median(np.linalg.norm(exact, axis=1))
        is_close[: table.reserved_rows + choice.kept_rows(learned)] = False
        matches |= is_close
    untrained = _untrained_rows(expected.recorded, table, before, recreated)
    nonfinite = {*nonfinite_rows(after)} - {*nonfinite_rows(recreated)}
    return ComparedRows(
        table=table,
        width_fault=_width_fault(table, resized),
        tolerance=tolerance,
        matching=int(matches.sum()),
        wrong=np.flatnonzero(untrained & ~matches).tolist(),
        nonfinite=sorted(nonfinite),
        recorded_hash=_compare_hash(expected.recorded, table, after),
        learned=_changed_rows(before, after),
    )


def _width_fault(table: TablePlan, resized: Checkpoint) -> str:
    """Describe a config key that states another width than the table has; empty if none does."""
    location = replace(table.location, config=resized.config)
    return width_fault(location, table.hidden_size, table.name)


def _compare_hash(recorded: Recorded, table: TablePlan, after: TableValues) -> RecordedHash:
    """Compare the hash of a table with the one with which it was written."""
    digest = recorded.hashes.get(table.name)
    if not digest:
        return RecordedHash.NONE
    if table_hash(after) == digest:
        return RecordedHash.SAME
    return RecordedHash.OTHER


def _untrained_rows(
    recorded: Recorded, table: TablePlan, before: TableValues, recreated: TableValues
) -> Mask:
    """Return which rows no training has changed, according to the recipe, shape (rows_after,)."""
    if recorded.trainable in FROZEN:
        return np.ones(table.rows_after, np.bool_)
    if recorded.trainable != "new":
        return np.zeros(table.rows_after, np.bool_)
    reserved = table.reserved_rows
    learned = learned_before(recorded.provenance, table.name, reserved, table.rows_after)
    if learned is None or len(learned) != table.rows_after - reserved:
        # The recipe does not say which rows were learned: the rows do.
        learned = learned_rows(before[reserved:], recreated[reserved:])
    return np.concatenate([np.ones(reserved, np.bool_), learned])


def _changed_rows(before: TableValues, after: TableValues) -> ChangedRows:
    """Compare the rows that both tables have."""
    shared = min(len(before), len(after))
    changed = ~equal_rows(before[:shared], after[:shared])
    if not changed.any():
        return ChangedRows(shared)
    with np.errstate(invalid="ignore", over="ignore"):
        old = before[:shared].astype(np.float64)
        new = after[:shared].astype(np.float64)
        largest = np.linalg.norm(new[changed] - old[changed], axis=1).max()
        median_norm = np.median(np.linalg.norm(old, axis=1))
    return ChangedRows(
        shared=shared,
        changed=np.flatnonzero(changed).tolist(),
        largest=float(largest),
        median_norm=float(median_norm),
    )
