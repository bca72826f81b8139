"""Whether a table's rows are those that its method makes, and what became of the learned ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.weights import read_floats
from ctxextend.plan.plan import ResizePlan
from ctxextend.plan.tableplan import TablePlan
from ctxextend.tables.apply import learned_rows, nonfinite_rows
from ctxextend.tables.methods import METHODS
from ctxextend.tables.stats import describe_rows
from ctxextend.verification.claims import Claim
from ctxextend.writtenrecipe import WrittenRecipe, learned_by

__all__ = ["Made", "Read", "check_tables", "made_rows"]

Table = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Read:
    """A table as it was and as it is.

    Attributes:
        plan: What should have become of it.
        before: Shape (rows_before, hidden_size).
        after: Shape (rows_after, hidden_size).
    """

    plan: TablePlan
    before: Table
    after: Table

    @classmethod
    def of(cls, plan: ResizePlan, table: TablePlan, extended: Checkpoint) -> "Read":
        """Read a table of both checkpoints.

        Raises:
            CheckpointError: One cannot be read.
        """
        before = read_floats(plan.checkpoint.holder(table.name), table.name)
        return cls(table, before, read_floats(extended.holder(table.name), table.name))

    @property
    def behind(self) -> tuple[Table, Table]:
        """Both without the rows in front of position 0."""
        return self.before[self.plan.offset :], self.after[self.plan.offset :]

    @property
    def shared(self) -> int:
        """Rows that both have."""
        return min(len(self.before), len(self.after))


@dataclass(frozen=True)
class Made:
    """A table beside what its method makes.

    Attributes:
        read: As it was and as it is.
        rows: As its method makes it, shape (rows_after, hidden_size).
        is_made: Of each row whether it is so, shape (rows_after,).
    """

    read: Read
    rows: Table
    is_made: Mask


def made_rows(plan: ResizePlan, read: Read) -> Made:
    """Make a table again, and compare: bit for bit, or within its method's tolerance where a row is made.

    Raises:
        ResizeError: The flags leave no row to make new ones from, or the table does not fit in memory.
    """
    rows = plan.resized(read.plan, read.before)
    is_made = _equal(rows, read.after)
    if plan.makes_rows and (tolerance := METHODS[plan.method].tolerance):
        is_made |= _near(rows, read.after, tolerance) & ~_kept(plan, read)
    return Made(read, rows, is_made)


def check_tables(
    plan: ResizePlan, extended: Checkpoint, trainable: str | None, how: str, chain: Sequence[WrittenRecipe]
) -> Claim:
    """Make the tables again and compare: their rows, their dtype, and what became of the learned rows.

    Args:
        plan: What the resize should have changed.
        extended: What it is said to have become.
        trainable: What was trained after it: ``new`` rows, ``positions``, ``all``, or None.
        how: How the method is known, in a few words.
        chain: The recipe that says so and those by which the original had been made, the newest first: rows that they
            made are no learned ones.

    Raises:
        CheckpointError: A table cannot be read.
        ResizeError: It does not fit in memory.
    """
    wrong: list[str] = []
    found: list[str] = []
    for table in plan.tables:
        faults = list(_described(table, extended))
        if not faults:
            made = made_rows(plan, Read.of(plan, table, extended))
            faults = [*_untrue(plan, made, trainable, chain), *_nonfinite(made)]
            found += [_told(plan, made, trainable, how), *_learned(made.read)]
        wrong += faults
    return Claim("table", not wrong, (*wrong, *found))


def _described(table: TablePlan, extended: Checkpoint) -> Iterator[str]:
    if table.name not in extended.names:
        yield f"{table.name} is missing"
        return
    entry = extended.holder(table.name).entries[table.name]
    if entry.shape != (table.rows_after, table.hidden_size) or entry.dtype != table.dtype:
        wanted = f"{table.dtype} {[table.rows_after, table.hidden_size]}"
        yield f"{table.name} is {entry.dtype} {list(entry.shape)}, and should be {wanted}"


def _equal(one: Table, other: Table) -> Mask:
    """Return of each row whether two tables have the same bytes there."""
    size = next(size for size in (8, 4, 2, 1) if one.shape[1] * one.itemsize % size == 0)  # bytes at once
    ours, theirs = (np.ascontiguousarray(table).view(f"u{size}") for table in (one, other))
    found: Mask = (ours == theirs).all(axis=1)
    return found


def _near(made: Table, after: Table, tolerance: float) -> Mask:
    """Return of each row whether it differs by no more than a share of the median norm."""
    norm = np.median(np.linalg.norm(made.astype(np.float64), axis=1))
    found: Mask = np.linalg.norm(made.astype(np.float64) - after.astype(np.float64), axis=1) <= tolerance * norm
    return found


def _kept(plan: ResizePlan, read: Read) -> Mask:
    """Return of each row whether the method promises that it is the learned one."""
    options, kept = plan.settings.options, np.zeros(len(read.after), dtype=np.bool_)
    kept[: read.plan.offset + options.kept_of(read.shared - read.plan.offset)] = True
    return kept


def _untrue(plan: ResizePlan, made: Made, trainable: str | None, chain: Sequence[WrittenRecipe]) -> Iterator[str]:
    """Yield what is not as it should be; of a trained table only the rows that were not trained count."""
    must, why = np.ones(len(made.rows), dtype=np.bool_), f"neither learned nor made by {plan.method}"
    if trainable == "new":
        must[made.read.plan.offset :] = _learned_before(made, chain)
        why = f"not what {plan.method} makes of the learned ones, though new rows alone were trained"
    elif trainable is not None:
        must[:] = False
    bad = np.flatnonzero(must & ~made.is_made)
    if bad.size:
        verb = "is" if len(bad) == 1 else "are"
        yield f"{made.read.plan.name}: {len(bad)} of {len(made.rows)} rows {verb} {why}: {describe_rows(bad.tolist())}"


def _learned_before(made: Made, chain: Sequence[WrittenRecipe]) -> Mask:
    """Return which rows of a table as its method makes it were learned, those in front of position 0 left out."""
    table, offset = made.read.plan, made.read.plan.offset
    told = learned_by(chain, table.name, offset, table.rows_after)
    if told is not None and len(told) == table.rows_after - offset:
        return told
    return learned_rows(made.read.before[offset:], made.rows[offset:])


def _nonfinite(made: Made) -> Iterator[str]:
    """Yield the rows that hold no numbers, where the method makes numbers: training can leave such."""
    bad = sorted({*nonfinite_rows(made.read.after)} - {*nonfinite_rows(made.rows)})
    if bad:
        yield f"{made.read.plan.name}: {len(bad)} rows hold NaN or infinity: {describe_rows(bad)}"


def _told(plan: ResizePlan, made: Made, trainable: str | None, how: str) -> str:
    table, total, count = made.read.plan, len(made.rows), int(made.is_made.sum())
    size = f"{table.name}: {table.rows_before} -> {table.rows_after} rows"
    if trainable is not None and not plan.is_changed:
        return f"{size} ({how}), then trained: {total - count} of them are no longer what they were"
    if trainable is not None:
        return f"{size}, made by {plan.method} ({how}), then trained: {total - count} rows are no longer what it made"
    tolerance = METHODS[plan.method].tolerance if plan.makes_rows else 0.0
    exact = f"within {tolerance:g} of the median norm" if tolerance else "bit for bit"
    what = f"what {plan.method} makes" if plan.is_changed else "what they were"
    return f"{size}; {count} of {total} rows are {what} ({how}), {exact}"


def _learned(read: Read) -> Iterator[str]:
    """Yield what became of the learned rows: equal, or moved and by how much."""
    old, new = read.before[: read.shared], read.after[: read.shared]
    moved = ~_equal(old, new)
    text = f"{int((~moved).sum())} of {read.shared} learned rows are bit-equal"
    if moved.any():
        with np.errstate(invalid="ignore", over="ignore"):
            far = np.linalg.norm(new[moved].astype(np.float64) - old[moved].astype(np.float64), axis=1).max()
            norm = np.median(np.linalg.norm(old.astype(np.float64), axis=1))
        where = describe_rows(np.flatnonzero(moved).tolist())
        text += f"; {where} moved by up to {far:.3g} (their median norm was {norm:.3g})"
    yield text
