"""Check the weights: every other tensor is what it was, byte for byte, and the tables are what their method makes."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copy import open_source, reading
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import METADATA, TensorEntry, TensorFile, read_floats
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

# Bytes of a tensor that are read at once: two blocks stay in the processor's cache until they are compared.
BLOCK = 1 << 18


def check_tensors(plan: ResizePlan, resized: Checkpoint, progress: Progress = no_progress) -> Check:
    """Compare name, dtype, shape and every byte of all tensors but the tables, and the position buffers."""
    base = plan.checkpoint
    changed = {*(table.name for table in plan.tables), *plan.dropped, *(buffer.name for buffer in plan.remade)}
    kept = [(file.entries[name], file) for name, file in base.names.items() if name not in changed]
    misfits = {entry.name: _misfit(resized, entry.name, entry.dtype, entry.shape) for entry, _ in kept}
    wrong = [misfit for misfit in misfits.values() if misfit]
    wrong += [f"{name} is not in the original" for name in resized.names if name not in base.names]
    wrong += [
        f"{name} is a position buffer of the old file and should be gone"
        for name in plan.dropped
        if name in resized.names
    ]
    for buffer in plan.remade:
        misfit = _misfit(resized, buffer.name, buffer.dtype, buffer.shape)
        if misfit or resized.names[buffer.name].read_bytes(buffer.name).tobytes() != make_buffer(buffer).tobytes():
            wrong.append(misfit or f"{buffer.name} is not the position buffer of the new length")
    metadata = {resized.relative(file): file.header.get(METADATA) for file in resized.weights.values()}
    for name, file in base.weights.items():  # transformers reads from it whose tensors they are
        wanted = file.header.get(METADATA)
        if metadata.get(name, wanted) != wanted:
            wrong.append(f"{name} has the __metadata__ {metadata[name]}, and should have {wanted}")
    same = [(entry, file) for entry, file in kept if not misfits[entry.name]]
    total = sum(entry.size for entry, _ in same)
    for entry, file in same:
        byte = _first_difference(entry, file, resized.names[entry.name])
        progress(entry.size, total)
        if byte is not None:
            number = byte * math.prod(entry.shape) // entry.size
            wrong.append(f"{entry.name} differs, first in its byte {byte:,} (number {number:,})")
    read = f"{len(same):,} tensors, {total:,} bytes of each read and compared"
    fine = f"every other tensor has its name, dtype, shape and bytes: {read}"
    return Check("tensors", not wrong, (*wrong, read) if wrong else (fine,))


def _misfit(resized: Checkpoint, name: str, dtype: str, shape: tuple[int, ...]) -> str:
    """Say how a tensor is not there in a dtype and shape; empty where it is."""
    if name not in resized.names:
        return f"{name} is missing"
    found = resized.entries[name]
    if (found.dtype, found.shape) == (dtype, shape):
        return ""
    return f"{name} is {found.dtype} {list(found.shape)}, and should be {dtype} {list(shape)}"


def _first_difference(entry: TensorEntry, ours: TensorFile, theirs: TensorFile) -> int | None:
    """Return the first byte in which a tensor differs between two files; None where it is equal."""
    our_offset, their_offset = ours.offset(entry.name), theirs.offset(entry.name)
    if our_offset is None or their_offset is None:  # torch files may hold it in other strides
        first, second = ours.read_bytes(entry.name), theirs.read_bytes(entry.name)
        return None if np.array_equal(first, second) else int((first != second).argmax())
    with open_source(ours.path) as one, open_source(theirs.path) as other, reading(f"{ours.path} or {theirs.path}"):
        one.seek(our_offset)
        other.seek(their_offset)
        for start in range(0, entry.size, BLOCK):
            left, right = (file.read(min(BLOCK, entry.size - start)) for file in (one, other))
            if left != right or not left:  # a file that becomes shorter differs too
                return start + next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
    return None


class TableComparison(NamedTuple):
    """A table as it was, as it is, and as its method makes it, each of shape (rows, hidden_size)."""

    before: Table
    after: Table
    expected: Table
    matches: Mask  # whether each row is as expected, shape (rows,)


def compare_table(plan: ResizePlan, table: TablePlan, resized: Checkpoint) -> TableComparison:
    """Make a table again, and compare: bit for bit, or within its method's tolerance where a row is new."""
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
    """Make the tables again and compare: their rows, their dtype, and what became of the learned rows."""
    wrong: list[str] = []
    found: list[str] = []
    for table in expected.plan.tables:
        if misfit := _misfit(resized, table.name, table.dtype, (table.rows_after, table.hidden_size)):
            wrong.append(misfit)
        else:
            compared = compare_table(expected.plan, table, resized)
            wrong += _wrong_rows(expected, table, compared)
            found += _describe_rows(expected, table, compared)
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


def _describe_rows(expected: ExpectedResize, table: TablePlan, compared: TableComparison) -> Iterator[str]:
    """Say how many rows are those that the method makes, and what became of the learned ones."""
    plan, count = expected.plan, int(compared.matches.sum())
    tolerance = METHODS[plan.method].tolerance if plan.makes_rows else 0.0
    exact = f"within {tolerance:g} of the median norm" if tolerance else "bit for bit"
    what = f"what {plan.method} makes" if plan.is_changed else "what they were"
    size = f"{table.name}: {table.rows_before} -> {table.rows_after} rows"
    trained = "; then it was trained" if expected.trainable else ""
    yield f"{size}; {count} of {table.rows_after} rows are {what} ({expected.how}), {exact}{trained}"
    shared = min(len(compared.before), len(compared.after))
    old, new = compared.before[:shared], compared.after[:shared]
    moved = ~_equal_rows(old, new)
    text = f"{int((~moved).sum())} of {shared} learned rows are bit-equal"
    if moved.any():
        with np.errstate(invalid="ignore", over="ignore"):
            old, new = old.astype(np.float64), new.astype(np.float64)
            distance = np.linalg.norm(new[moved] - old[moved], axis=1).max()
            norm = np.median(np.linalg.norm(old, axis=1))
        text += f"; {describe_rows(np.flatnonzero(moved).tolist())} moved by up to {distance:.3g}"
        text += f" (their median norm was {norm:.3g})"
    yield text


def _equal_rows(one: Table, other: Table) -> Mask:
    """Return whether each row has the same bytes in two tables."""
    ours, theirs = (np.ascontiguousarray(table).view(np.uint8) for table in (one, other))
    found: Mask = (ours == theirs).all(axis=1)
    return found
