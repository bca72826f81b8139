"""Check the weights: every other tensor is what it was, byte for byte, and the tables are what their method makes."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copy import first_difference
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import TensorEntry, TensorFile, read_floats
from ctxextend.plan.edits import TablePlan, make_buffer
from ctxextend.plan.plan import ResizePlan
from ctxextend.progress import Progress, no_progress
from ctxextend.provenance import learned_before
from ctxextend.tables.apply import learned_rows, nonfinite_rows
from ctxextend.tables.methods import METHODS
from ctxextend.tables.stats import describe_rows
from ctxextend.verification.checks import Check, ExpectedResize

Table = NDArray[Any]
Mask = NDArray[np.bool_]


def unchanged_tensors(plan: ResizePlan) -> list[tuple[TensorEntry, TensorFile]]:
    """Return the tensors that a resize leaves as they are, each with the file of the base that holds it."""
    changed = {*(table.name for table in plan.tables), *plan.dropped, *(buffer.name for buffer in plan.remade)}
    return [(file.entries[name], file) for name, file in plan.checkpoint.names.items() if name not in changed]


def check_tensors(plan: ResizePlan, resized: Checkpoint, progress: Progress = no_progress) -> Check:
    """Compare name, dtype, shape and every byte of all tensors but the tables and the position buffers.

    Raises:
        CheckpointError: A file cannot be read, or shrank meanwhile.
    """
    wrong: list[str] = []
    same: list[tuple[TensorEntry, TensorFile, TensorFile]] = []
    for entry, file in unchanged_tensors(plan):
        if entry.name not in resized.names:
            wrong.append(f"{entry.name} is missing")
            continue
        other = resized.names[entry.name]
        found = other.entries[entry.name]
        if (found.dtype, found.shape) == (entry.dtype, entry.shape):
            same.append((entry, file, other))
        else:
            wrong.append(
                f"{entry.name} is {found.dtype} {list(found.shape)}, and was {entry.dtype} {list(entry.shape)}"
            )
    wrong += [f"{name} is not in the original" for name in resized.names if name not in plan.checkpoint.names]
    wrong += _wrong_buffers(plan, resized)
    metadata = {resized.relative(file): file.metadata for file in resized.weights.values()}
    for name, file in plan.checkpoint.weights.items():  # transformers reads from it whose tensors they are
        if metadata.get(name, file.metadata) != file.metadata:
            wrong.append(f"{name} has the __metadata__ {metadata[name]}, and should have {file.metadata}")
    total = sum(entry.size for entry, _, _ in same)
    for entry, ours, theirs in same:
        byte = _first_difference(entry.name, entry.size, ours, theirs)
        progress(entry.size, total)
        if byte is not None:
            number = byte * math.prod(entry.shape) // entry.size
            wrong.append(f"{entry.name} differs, first in its byte {byte:,} (number {number:,})")
    read = f"{len(same):,} tensors, {total:,} bytes of each read and compared"
    fine = f"every other tensor has its name, dtype, shape and bytes: {read}"
    return Check("tensors", not wrong, (*wrong, read) if wrong else (fine,))


def _first_difference(name: str, size: int, ours: TensorFile, theirs: TensorFile) -> int | None:
    """Return the first byte in which a tensor differs between two files; None where it is equal."""
    our_offset, their_offset = ours.offset(name), theirs.offset(name)
    if our_offset is not None and their_offset is not None:
        return first_difference((ours.path, our_offset), (theirs.path, their_offset), size)
    one, other = ours.read_bytes(name), theirs.read_bytes(name)
    return None if np.array_equal(one, other) else int((one != other).argmax())


def _wrong_buffers(plan: ResizePlan, resized: Checkpoint) -> Iterator[str]:
    """Yield the position buffers that are not those of the new length."""
    for name in plan.dropped:
        if name in resized.names:
            yield f"{name} is a position buffer of the old file and should be gone"
    for buffer in plan.remade:
        if buffer.name not in resized.names:
            yield f"{buffer.name} is missing"
            continue
        file = resized.names[buffer.name]
        entry = file.entries[buffer.name]
        is_alike = (entry.dtype, entry.shape) == (buffer.dtype, buffer.shape)
        if not is_alike or file.read_bytes(buffer.name).tobytes() != make_buffer(buffer).tobytes():
            yield f"{buffer.name} is not the position buffer of the new length"


class TableComparison(NamedTuple):
    """A table as it was, as it is, and as its method makes it, each of shape (rows, hidden_size)."""

    before: Table
    after: Table
    expected: Table
    matches: Mask  # whether each row is as expected, shape (rows,)


def compare_table(plan: ResizePlan, table: TablePlan, resized: Checkpoint) -> TableComparison:
    """Make a table again, and compare: bit for bit, or within its method's tolerance where a row is new.

    Raises:
        CheckpointError: A table cannot be read.
        ResizeError: The flags leave no row to make new ones from, or the table does not fit in memory.
    """
    before = read_floats(plan.checkpoint.names[table.name], table.name)
    after = read_floats(resized.names[table.name], table.name)
    expected = plan.resized(table, before)
    matches = _equal_rows(expected, after)
    if plan.makes_rows and (tolerance := METHODS[plan.method].tolerance):
        wanted = expected.astype(np.float64)
        norm = np.median(np.linalg.norm(wanted, axis=1))
        is_near = np.linalg.norm(wanted - after.astype(np.float64), axis=1) <= tolerance * norm
        kept = plan.settings.kept_of(min(len(before), len(after)) - table.reserved_rows)
        is_near[: table.reserved_rows + kept] = False  # the method promises that these are the learned ones
        matches |= is_near
    return TableComparison(before, after, expected, matches)


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
        entry = resized.entries[table.name]
        shape = (table.rows_after, table.hidden_size)
        if (entry.dtype, entry.shape) == (table.dtype, shape):
            compared = compare_table(expected.plan, table, resized)
            wrong += _wrong_rows(expected, table, compared)
            found += [_rows_made(expected, table, compared), _rows_learned(compared)]
        else:
            is_now = f"{entry.dtype} {list(entry.shape)}"
            wrong.append(f"{table.name} is {is_now}, and should be {table.dtype} {list(shape)}")
    return Check("table", not wrong, (*wrong, *found))


def _wrong_rows(expected: ExpectedResize, table: TablePlan, compared: TableComparison) -> Iterator[str]:
    """Yield which rows are not as expected; of a trained table only those that were not trained count."""
    must, method, first = np.ones(table.rows_after, np.bool_), expected.plan.method, table.reserved_rows
    why = f"neither learned nor made by {method}"
    if expected.trainable == "new":
        learned = learned_before(expected.chain, table.name, first, table.rows_after)
        if learned is None or len(learned) != table.rows_after - first:  # the recipes do not say: the rows do
            learned = learned_rows(compared.before[first:], compared.expected[first:])
        must[first:] = learned
        why = f"not what {method} makes of the learned ones, though new rows alone were trained"
    elif expected.trainable is not None:
        must[:] = False
    bad = np.flatnonzero(must & ~compared.matches)
    if bad.size:
        verb = "is" if len(bad) == 1 else "are"
        yield f"{table.name}: {len(bad)} of {len(must)} rows {verb} {why}: {describe_rows(bad.tolist())}"
    # Training can leave rows that hold no numbers.
    nonfinite = sorted({*nonfinite_rows(compared.after)} - {*nonfinite_rows(compared.expected)})
    if nonfinite:
        yield f"{table.name}: {len(nonfinite)} rows hold NaN or infinity: {describe_rows(nonfinite)}"


def _rows_made(expected: ExpectedResize, table: TablePlan, compared: TableComparison) -> str:
    """Say how many rows are those that the method makes."""
    plan, count = expected.plan, int(compared.matches.sum())
    tolerance = METHODS[plan.method].tolerance if plan.makes_rows else 0.0
    exact = f"within {tolerance:g} of the median norm" if tolerance else "bit for bit"
    what = f"what {plan.method} makes" if plan.is_changed else "what they were"
    size = f"{table.name}: {table.rows_before} -> {table.rows_after} rows"
    trained = "; then it was trained" if expected.trainable else ""
    return f"{size}; {count} of {table.rows_after} rows are {what} ({expected.how}), {exact}{trained}"


def _rows_learned(compared: TableComparison) -> str:
    """Say what became of the learned rows: equal, or moved and by how much."""
    shared = min(len(compared.before), len(compared.after))
    old, new = compared.before[:shared], compared.after[:shared]
    moved = ~_equal_rows(old, new)
    text = f"{int((~moved).sum())} of {shared} learned rows are bit-equal"
    if not moved.any():
        return text
    with np.errstate(invalid="ignore", over="ignore"):
        old, new = old.astype(np.float64), new.astype(np.float64)
        distance = np.linalg.norm(new[moved] - old[moved], axis=1).max()
        norm = np.median(np.linalg.norm(old, axis=1))
    where = describe_rows(np.flatnonzero(moved).tolist())
    return f"{text}; {where} moved by up to {distance:.3g} (their median norm was {norm:.3g})"


def _equal_rows(one: Table, other: Table) -> Mask:
    """Return whether each row has the same bytes in two tables."""
    ours, theirs = (np.ascontiguousarray(table).view(np.uint8) for table in (one, other))
    found: Mask = (ours == theirs).all(axis=1)
    return found
