"""Check that a table's rows are those that its method makes, and see what became of the learned ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.plan.edits import TablePlan
from ctxextend.plan.plan import ResizePlan
from ctxextend.provenance import learned_before
from ctxextend.tables.apply import learned_rows, nonfinite_rows
from ctxextend.tables.methods import METHODS
from ctxextend.tables.stats import describe_rows
from ctxextend.verification.checks import Check, ExpectedResize

Table = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class TableComparison:
    """A table as it was, as it is, and as its method makes it.

    Attributes:
        table: What should have become of it.
        before: Its rows in the base checkpoint, shape (rows_before, hidden_size).
        after: Its rows in the resized one, shape (rows_after, hidden_size).
        expected: The rows that its method makes, shape (rows_after, hidden_size).
        matches: Whether each row is as expected, shape (rows_after,).
    """

    table: TablePlan
    before: Table
    after: Table
    expected: Table
    matches: Mask


def compare_table(plan: ResizePlan, table: TablePlan, resized: Checkpoint) -> TableComparison:
    """Make a table again, and compare: bit for bit, or within its method's tolerance where a row is new.

    Raises:
        CheckpointError: A table cannot be read.
        ResizeError: The flags leave no row to make new ones from, or the table does not fit in memory.
    """
    before = read_floats(plan.checkpoint.holder(table.name), table.name)
    after = read_floats(resized.holder(table.name), table.name)
    expected = plan.resized(table, before)
    matches = _equal_rows(expected, after)
    if plan.makes_rows and (tolerance := METHODS[plan.method].tolerance):
        norm = np.median(np.linalg.norm(expected.astype(np.float64), axis=1))
        is_near = np.linalg.norm(expected.astype(np.float64) - after.astype(np.float64), axis=1) <= tolerance * norm
        kept = plan.settings.options.kept_of(min(len(before), len(after)) - table.offset)
        is_near[: table.offset + kept] = False  # the method promises that these are the learned ones
        matches |= is_near
    return TableComparison(table, before, after, expected, matches)


def check_tables(expected: ExpectedResize, resized: Checkpoint) -> Check:
    """Make the tables again and compare: their rows, their dtype, and what became of the learned rows.

    Raises:
        CheckpointError: A table cannot be read.
        ResizeError: It does not fit in memory.
    """
    wrong: list[str] = []
    found: list[str] = []
    for table in expected.plan.tables:
        if table.name not in resized.names:
            wrong.append(f"{table.name} is missing")
            continue
        entry = resized.holder(table.name).entries[table.name]
        shape = (table.rows_after, table.hidden_size)
        if (entry.dtype, entry.shape) != (table.dtype, shape):
            described = f"{entry.dtype} {list(entry.shape)}, and should be {table.dtype} {list(shape)}"
            wrong.append(f"{table.name} is {described}")
            continue
        compared = compare_table(expected.plan, table, resized)
        wrong += _wrong_rows(expected, compared)
        found += [_summary(expected, compared), _learned_rows(compared)]
    return Check("table", not wrong, (*wrong, *found))


def _wrong_rows(expected: ExpectedResize, compared: TableComparison) -> Iterator[str]:
    """Yield which rows are not as expected; of a trained table only those that were not trained count."""
    table, method = compared.table, expected.plan.method
    must, why = np.ones(len(compared.expected), dtype=np.bool_), f"neither learned nor made by {method}"
    if expected.trainable == "new":
        must[table.offset :] = _were_learned(expected, compared)
        why = f"not what {method} makes of the learned ones, though new rows alone were trained"
    elif expected.trainable is not None:
        must[:] = False
    bad = np.flatnonzero(must & ~compared.matches)
    if bad.size:
        verb = "is" if len(bad) == 1 else "are"
        yield f"{table.name}: {len(bad)} of {len(must)} rows {verb} {why}: {describe_rows(bad.tolist())}"
    # Training can leave rows that hold no numbers.
    bad_numbers = sorted({*nonfinite_rows(compared.after)} - {*nonfinite_rows(compared.expected)})
    if bad_numbers:
        yield f"{table.name}: {len(bad_numbers)} rows hold NaN or infinity: {describe_rows(bad_numbers)}"


def _were_learned(expected: ExpectedResize, compared: TableComparison) -> Mask:
    """Return which rows after the reserved ones were learned, by the recipes or else by the rows themselves."""
    table = compared.table
    learned = learned_before(expected.chain, table.name, table.offset, table.rows_after)
    if learned is not None and len(learned) == table.rows_after - table.offset:
        return learned
    return learned_rows(compared.before[table.offset :], compared.expected[table.offset :])


def _summary(expected: ExpectedResize, compared: TableComparison) -> str:
    plan, table, how = expected.plan, compared.table, expected.how
    total, count = len(compared.expected), int(compared.matches.sum())
    size = f"{table.name}: {table.rows_before} -> {table.rows_after} rows"
    if expected.trainable is not None and not plan.is_changed:
        return f"{size} ({how}), then trained: {total - count} of them are no longer what they were"
    if expected.trainable is not None:
        return f"{size}, made by {plan.method} ({how}), then trained: {total - count} rows are no longer what it made"
    tolerance = METHODS[plan.method].tolerance if plan.makes_rows else 0.0
    exact = f"within {tolerance:g} of the median norm" if tolerance else "bit for bit"
    what = f"what {plan.method} makes" if plan.is_changed else "what they were"
    return f"{size}; {count} of {total} rows are {what} ({how}), {exact}"


def _learned_rows(compared: TableComparison) -> str:
    """Say what became of the learned rows: equal, or moved and by how much."""
    shared = min(len(compared.before), len(compared.after))
    old, new = compared.before[:shared], compared.after[:shared]
    moved = ~_equal_rows(old, new)
    text = f"{int((~moved).sum())} of {shared} learned rows are bit-equal"
    if moved.any():
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.linalg.norm(new[moved].astype(np.float64) - old[moved].astype(np.float64), axis=1).max()
            norm = np.median(np.linalg.norm(old.astype(np.float64), axis=1))
        where = describe_rows(np.flatnonzero(moved).tolist())
        text += f"; {where} moved by up to {distance:.3g} (their median norm was {norm:.3g})"
    return text


def _equal_rows(one: Table, other: Table) -> Mask:
    """Return whether each row has the same bytes in two tables."""
    ours, theirs = (np.ascontiguousarray(table).view(np.uint8) for table in (one, other))
    found: Mask = (ours == theirs).all(axis=1)
    return found
