"""Whether a table's rows are those that its method makes, and what became of the learned ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.weights import read_floats
from ctxextend.plan import ResizePlan
from ctxextend.proof.claims import Claim
from ctxextend.tableplan import TablePlan
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rownumbers import ranges

__all__ = ["check_tables", "rows_made"]

Table = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class _Rows:
    """A table as it was, as its method makes it, and as it is.

    Attributes:
        plan: What should have become of it.
        before: Shape (rows_before, hidden_size).
        made: Shape (rows_after, hidden_size).
        after: Shape (rows_after, hidden_size).
        is_made: Of each row whether it is as its method makes it, shape (rows_after,).
    """

    plan: TablePlan
    before: Table
    made: Table
    after: Table
    is_made: Mask

    @property
    def shared(self) -> int:
        """Rows that both tables have."""
        return min(len(self.before), len(self.after))


def check_tables(plan: ResizePlan, extended: Checkpoint, trainable: str | None, how: str) -> Claim:
    """Make the tables again and compare: their rows, their dtype, and what became of the learned rows.

    Args:
        plan: What the resize should have changed.
        extended: What it is said to have become.
        trainable: What was trained after it: ``new`` rows, ``positions``, ``all``, or None.
        how: How the method is known, in a few words.

    Raises:
        CheckpointError: A table cannot be read.
        ResizeError: It does not fit in memory.
    """
    wrong: list[str] = []
    found: list[str] = []
    for table in plan.tables:
        faults = list(_described(table, extended))
        if not faults:
            rows = _rows(plan, table, extended)
            faults = list(_untrue(plan, rows, trainable))
            found += [_told(plan, rows, trainable, how), *_learned(rows)]
        wrong += faults
    return Claim("table", not wrong, (*wrong, *found))


def rows_made(plan: ResizePlan, extended: Checkpoint) -> int:
    """Return how many rows of all tables are as the plan makes them; -1 where a table is of another shape or dtype."""
    if any(fault for table in plan.tables for fault in _described(table, extended)):
        return -1
    return sum(int(_rows(plan, table, extended).is_made.sum()) for table in plan.tables)


def _described(table: TablePlan, extended: Checkpoint) -> Iterator[str]:
    if table.name not in extended.names:
        yield f"{table.name} is missing"
        return
    entry = extended.holder(table.name).entries[table.name]
    if entry.shape != (table.rows_after, table.hidden_size) or entry.dtype != table.dtype:
        wanted = f"{table.dtype} {[table.rows_after, table.hidden_size]}"
        yield f"{table.name} is {entry.dtype} {list(entry.shape)}, and should be {wanted}"


def _rows(plan: ResizePlan, table: TablePlan, extended: Checkpoint) -> _Rows:
    before = read_floats(plan.checkpoint.holder(table.name), table.name)
    after = read_floats(extended.holder(table.name), table.name)
    made = plan.resized(table, before)
    tolerance = METHODS[plan.method].tolerance if plan.makes_rows else 0.0
    return _Rows(table, before, made, after, _equal(made, after) | _near(made, after, tolerance))


def _equal(one: Table, other: Table) -> Mask:
    """Return of each row whether two tables have the same bytes there."""
    ours, theirs = (np.ascontiguousarray(table).view(np.uint8) for table in (one, other))
    found: Mask = (ours == theirs).all(axis=1)
    return found


def _near(made: Table, after: Table, tolerance: float) -> Mask:
    """Return of each row whether it differs by no more than a share of the median norm."""
    if not tolerance:
        return np.zeros(len(made), dtype=np.bool_)
    norm = np.median(np.linalg.norm(made.astype(np.float64), axis=1))
    found: Mask = np.linalg.norm(made.astype(np.float64) - after.astype(np.float64), axis=1) <= tolerance * norm
    return found


def _kept(plan: ResizePlan, rows: _Rows) -> Mask:
    """Return of each row whether the method promises that it is the learned one."""
    options, kept = plan.recipe.resize.options, np.zeros(len(rows.after), dtype=np.bool_)
    is_whole = not plan.makes_rows or options.keeps_learned_rows
    kept[: rows.shared if is_whole else rows.plan.offset + options.keep_first] = True
    return kept


def _untrue(plan: ResizePlan, rows: _Rows, trainable: str | None) -> Iterator[str]:
    """Yield what is not as it should be; of a trained table only the rows that were not trained count."""
    if trainable is None:
        must, why = np.ones(len(rows.after), dtype=np.bool_), f"neither learned nor made by {plan.method}"
    elif trainable == "new":
        must, why = _kept(plan, rows), "learned rows that changed, though new ones alone were trained"
    else:
        return
    bad = np.flatnonzero(must & ~rows.is_made)
    if bad.size:
        yield f"{rows.plan.name}: {len(bad)} of {len(rows.after)} rows are {why}: {ranges(bad.tolist())}"


def _told(plan: ResizePlan, rows: _Rows, trainable: str | None, how: str) -> str:
    table = rows.plan
    size = f"{table.name}: {table.rows_before} -> {table.rows_after} rows"
    if trainable is not None:
        trained = int((~rows.is_made).sum())
        return f"{size}, made by {plan.method} ({how}), then trained: {trained} rows are no longer what it made"
    count = f"{int(rows.is_made.sum())} of {len(rows.after)} rows are what {plan.method} makes ({how})"
    tolerance = METHODS[plan.method].tolerance if plan.makes_rows else 0.0
    exact = f"within {tolerance:g} of the median norm" if tolerance else "bit for bit"
    return f"{size}; {count}, {exact}"


def _learned(rows: _Rows) -> Iterator[str]:
    """Yield what became of the learned rows: equal, or moved and by how much."""
    old, new = rows.before[: rows.shared], rows.after[: rows.shared]
    same = _equal(old, new)
    text = f"{int(same.sum())} of {rows.shared} learned rows are bit-equal"
    if not same.all():
        moved = np.linalg.norm(new[~same].astype(np.float64) - old[~same].astype(np.float64), axis=1)
        norm = float(np.median(np.linalg.norm(old.astype(np.float64), axis=1)))
        where = ranges(np.flatnonzero(~same).tolist())
        text += f"; rows {where} moved by up to {moved.max():.3g} (their median norm was {norm:.3g})"
    yield text
