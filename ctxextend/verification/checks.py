"""The checks of `verify` that read files: every other tensor, the tables, and all that is no weights file."""

import filecmp
import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copy import open_source, reading
from ctxextend.checkpoints.filenames import IGNORED_NAMES, first_match
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import parse_json, read_bytes
from ctxextend.checkpoints.safetensors_file import METADATA, TensorEntry, TensorFile, read_floats
from ctxextend.errors import CheckpointError, counted
from ctxextend.families.lookup import nested
from ctxextend.json_output import not_in_json
from ctxextend.plan.edits import TablePlan, make_buffer
from ctxextend.plan.output_files import CARD_FILE
from ctxextend.plan.plan import ResizePlan
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import RECIPE_FILE
from ctxextend.recipe_file import Provenance, learned_before
from ctxextend.tables.apply import equal_rows, learned_rows, nonfinite_rows
from ctxextend.tables.stats import describe_rows

Table = NDArray[Any]
Mask = NDArray[np.bool_]

# Bytes of a tensor that are read at once: two blocks stay in the processor's cache until they are compared.
BLOCK = 1 << 18
# Keys of config.json that transformers writes of itself, and that no model obeys.
STAMPS = {("transformers_version",), ("_name_or_path",)}
# Files that may come, go and change without changing what the model does.
HARMLESS = (
    *(CARD_FILE, RECIPE_FILE, ".gitattributes", "trainer_state.json", "train_log.jsonl", "train_loss.png", "runs/*"),
    *(f"{name}{suffix}" for name in ("LICENSE", "LICENCE", "NOTICE") for suffix in ("", ".txt", ".md")),
)
MISSING = object()  # the value of a key that is not there


@dataclass(frozen=True)
class ExpectedResize:
    """The resize, and the training after it, that a checkpoint should have come from."""

    plan: ResizePlan  # planned again from the base checkpoint
    trainable: str | None  # what its recipe says was trained: ``new`` rows, ``positions``, ``all``, or nothing
    how: str  # how it is known, in a few words
    notes: tuple[str, ...] = ()
    chain: tuple[Provenance, ...] = ()  # that recipe and those of the base checkpoint, the newest first
    unregistered: str | None = None  # the method that its recipe names, where there is none of that name


@dataclass(frozen=True)
class Check:
    """One check and its evidence."""

    # ``readable``, ``tensors``, ``table``, ``files``, or with ``--deep`` also ``loads``, ``runs``, ``outputs``.
    name: str
    passed: bool
    evidence: tuple[str, ...]  # what was found, in sentences; failures first
    # Whether it did not pass because its method is not registered here, and for nothing else.
    is_unchecked: bool = field(default=False, metadata=not_in_json)


def check_tensors(plan: ResizePlan, resized: Checkpoint, progress: Progress = no_progress) -> Check:
    """Compare name, dtype, shape and every byte of all tensors but the tables, and the position buffers."""
    base = plan.checkpoint
    changed = {*(table.name for table in plan.tables), *plan.dropped, *(buffer.name for buffer in plan.rebuilt_buffers)}
    kept = [(file.entries[name], file) for name, file in base.names.items() if name not in changed]
    mismatches = {entry.name: _mismatch(resized, entry.name, entry.dtype, entry.shape) for entry, _ in kept}
    wrong = [mismatch for mismatch in mismatches.values() if mismatch]
    wrong += [f"{name} is not in the base" for name in resized.names if name not in base.names]
    gone = "is a position buffer of the old file and should be gone"
    wrong += [f"{name} {gone}" for name in plan.dropped if name in resized.names]
    for buffer in plan.rebuilt_buffers:
        mismatch = _mismatch(resized, buffer.name, buffer.dtype, buffer.shape)
        if mismatch or resized.names[buffer.name].read_bytes(buffer.name).tobytes() != make_buffer(buffer).tobytes():
            wrong.append(mismatch or f"{buffer.name} is not the position buffer of the new length")
    metadata = {resized.relative(file): file.header.get(METADATA) for file in resized.weights.values()}
    for name, file in base.weights.items():  # transformers reads from it whose tensors they are
        wanted = file.header.get(METADATA)
        if metadata.get(name, wanted) != wanted:
            wrong.append(f"{name} has the __metadata__ {metadata[name]}, and should have {wanted}")
    same = [(entry, file) for entry, file in kept if not mismatches[entry.name]]
    total = sum(entry.size for entry, _ in same)
    pool = ThreadPoolExecutor(2)  # one reads while the other compares
    try:
        differences = pool.map(partial(_first_difference, resized), same)
        for (entry, _), byte in zip(same, differences, strict=True):
            progress(entry.size, total)
            if byte is not None:
                number = byte * math.prod(entry.shape) // entry.size
                wrong.append(f"{entry.name} differs, first in its byte {byte:,} (number {number:,})")
    finally:
        pool.shutdown(cancel_futures=True)  # so that Ctrl-C waits for no more than two tensors
    read = f"{len(same):,} tensors, {total:,} bytes of each read and compared"
    fine = f"every other tensor has its name, dtype, shape and bytes: {read}"
    return Check("tensors", not wrong, (*wrong, read) if wrong else (fine,))


def _mismatch(resized: Checkpoint, name: str, dtype: str, shape: tuple[int, ...]) -> str:
    """Say how a tensor is not there in a dtype and shape; empty where it is."""
    if name not in resized.names:
        return f"{name} is missing"
    found = resized.entries[name]
    if (found.dtype, found.shape) == (dtype, shape):
        return ""
    return f"{name} is {found.dtype} {list(found.shape)}, and should be {dtype} {list(shape)}"


def _first_difference(resized: Checkpoint, tensor: tuple[TensorEntry, TensorFile]) -> int | None:
    """Return the first byte in which a tensor of a file differs from that of its name; None where it is equal."""
    entry, ours = tensor
    theirs = resized.names[entry.name]
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
    matches = equal_rows(expected, after)
    if plan.creates_rows and (tolerance := plan.settings.facts.tolerance):
        wanted = expected.astype(np.float64)
        norm = np.median(np.linalg.norm(wanted, axis=1))
        is_near = np.linalg.norm(wanted - after.astype(np.float64), axis=1) <= tolerance * norm
        kept = plan.settings.kept_of(min(len(before), len(after)) - table.reserved_rows)
        is_near[: table.reserved_rows + kept] = False  # the method promises that these are the learned ones
        matches |= is_near
    return TableComparison(before, after, expected, matches)


def check_tables(expected: ExpectedResize, resized: Checkpoint) -> Check:
    """Make the tables again and compare: their rows, their dtype, and what became of the learned rows."""
    wrong, unmade, found = list[str](), list[str](), list[str]()
    for table in expected.plan.tables:
        if mismatch := _mismatch(resized, table.name, table.dtype, (table.rows_after, table.hidden_size)):
            wrong.append(mismatch)
        elif expected.unregistered and table.is_changed:
            told = f"{table.name}: there is no method {expected.unregistered!r} here to make its rows again"
            (found if expected.trainable in ("positions", "all") else unmade).append(told)
        else:
            compared = compare_table(expected.plan, table, resized)
            wrong += _wrong_rows(expected, table, compared)
            found += _describe_rows(expected, table, compared)
    return Check("table", not (wrong or unmade), (*wrong, *unmade, *found), is_unchecked=not wrong and bool(unmade))


def _wrong_rows(expected: ExpectedResize, table: TablePlan, compared: TableComparison) -> Iterator[str]:
    """Yield which rows are not as expected; of a trained table only those that were not trained count."""
    must, method, first = np.ones(table.rows_after, np.bool_), expected.plan.method, table.reserved_rows
    reason = f"neither learned nor made by {method}"
    if expected.trainable == "new":
        learned = learned_before(expected.chain, table.name, first, table.rows_after)
        if learned is None or len(learned) != table.rows_after - first:  # the recipes do not say: the rows do
            learned = learned_rows(compared.before[first:], compared.expected[first:])
        must[first:] = learned
        reason = f"not what {method} makes of the learned ones, though new rows alone were trained"
    elif expected.trainable is not None:
        must[:] = False
    bad = np.flatnonzero(must & ~compared.matches)
    if bad.size:
        verb = "is" if len(bad) == 1 else "are"
        yield f"{table.name}: {len(bad)} of {len(must)} rows {verb} {reason}: {describe_rows(bad.tolist())}"
    # Training can leave rows that hold no numbers.
    nonfinite = sorted({*nonfinite_rows(compared.after)} - {*nonfinite_rows(compared.expected)})
    if nonfinite:
        yield f"{table.name}: {len(nonfinite)} rows hold NaN or infinity: {describe_rows(nonfinite)}"


def _describe_rows(expected: ExpectedResize, table: TablePlan, compared: TableComparison) -> Iterator[str]:
    """Say how many rows are those that the method makes, and what became of the learned ones."""
    plan, count = expected.plan, int(compared.matches.sum())
    tolerance = plan.settings.facts.tolerance if plan.creates_rows else 0.0
    exact = f"within {tolerance:g} of the median norm" if tolerance else "bit for bit"
    what = f"what {plan.method} makes" if plan.is_changed else "what they were"
    size = f"{table.name}: {table.rows_before} -> {table.rows_after} rows"
    trained = "; then it was trained" if expected.trainable else ""
    yield f"{size}; {count} of {table.rows_after} rows are {what} ({expected.how}), {exact}{trained}"
    shared = min(len(compared.before), len(compared.after))
    old, new = compared.before[:shared], compared.after[:shared]
    moved = ~equal_rows(old, new)
    text = f"{int((~moved).sum())} of {shared} learned rows are bit-equal"
    if moved.any():
        with np.errstate(invalid="ignore", over="ignore"):
            old, new = old.astype(np.float64), new.astype(np.float64)
            distance = np.linalg.norm(new[moved] - old[moved], axis=1).max()
            norm = np.median(np.linalg.norm(old, axis=1))
        where = describe_rows(np.flatnonzero(moved).tolist())
        text += f"; {where} moved by up to {distance:.3g} (their median norm was {norm:.3g})"
    yield text


def check_files(plan: ResizePlan, resized: Checkpoint) -> Check:
    """Compare every file that is no weights file with what the resize should have made of it: JSON by its content."""
    base = plan.checkpoint
    not_compared = set(base.weights)
    if {resized.relative(file) for file in resized.weights.values()} != not_compared:
        not_compared.add(base.index_file)  # saved in other shards, it has an index of its own
    kept = set(base.code) & set(resized.code)  # which an output may hold, and need not
    files = {*plan.texts, *plan.files["copied"], *kept} - not_compared
    compared = sorted(name for name in files if not _is_harmless(name))
    listed = resized.index["weight_map"] if resized.index else resized.names
    wrong = [f"{resized.index_file} does not list {name}" for name in resized.names if name not in listed]
    wrong += _unexpected_files(plan, resized)
    wrong += (fault for name in compared for fault in _differences(plan, resized, name))
    edits = "; ".join(f"{edit.file} {edit.key} {edit.after}" for edit in plan.edits)
    length = "the new length" if plan.is_changed else "its length"
    states = f"{length} is stated everywhere ({edits})" if edits else "no length had to change"
    count = f"{counted(len(compared), 'file')} compared, all but card, licences, logs and recipe"
    fine = f"{count}: {states}, and nothing else in them changed; no stale weights lie beside"
    return Check("files", not wrong, tuple(wrong) or (fine,))


def _is_harmless(name: str) -> bool:
    return first_match(PurePosixPath(name), HARMLESS) is not None


def _unexpected_files(plan: ResizePlan, resized: Checkpoint) -> Iterator[str]:
    """Yield stale weights, files that the base checkpoint has not, and weights of another variant."""
    base = plan.checkpoint
    for name, reason in resized.omitted.items():
        if PurePosixPath(name).name not in IGNORED_NAMES and name not in resized.code:
            yield f"{name} lies beside: {reason}"
    known = {*plan.file_sizes, *base.code}
    # Weights alone want a config.json, which must state the new lengths.
    lengths = {table.location.length_paths[0]: table.location.key_value(table.max_len_after) for table in plan.tables}
    if not base.has_config and all(nested(resized.config, path) == length for path, length in lengths.items()):
        known.add(resized.config_file)
    for name in (*resized.copied, *resized.code):
        if name not in known and not _is_harmless(name):
            yield f"{name} is not in the base"
    if base.variant != resized.variant:
        yield f"its weights are the variant {resized.variant}, and should be {base.variant or 'plain ones'}"


def _differences(plan: ResizePlan, resized: Checkpoint, name: str) -> Iterator[str]:
    """Yield how one file differs from what the resize should have made of it, which is what it was if not edited."""
    if name not in resized.files and name not in resized.code:
        if name not in resized.omitted:  # what is there and must not be read was named before
            yield f"{name} is missing"
        return
    path, original, wanted = resized.root / name, plan.checkpoint.root / name, plan.texts.get(name)
    try:
        if wanted is None:
            with reading(path):
                if filecmp.cmp(original, path, shallow=False):
                    return
            if path.suffix != ".json":
                yield f"{name} is not what it was, byte for byte"
                return
            wanted = read_bytes(original)
        found = read_bytes(path)
        if wanted == found:
            return
        before, after = (parse_json(text.decode("utf-8"), name) for text in (wanted, found))
    except CheckpointError as error:
        yield error.message
        return
    except UnicodeDecodeError as error:
        yield f"{name} is not UTF-8 text (byte {error.start})."
        return
    edits = {edit.path for edit in plan.edits if edit.file == name}
    for keys, old, new in _changed_values(before, after):
        if keys not in STAMPS or PurePosixPath(name).name != "config.json":
            reason = " (the new length)" if any(keys[: len(edit)] == edit for edit in edits) else ""
            yield f"{name}: {'.'.join(keys)} is {_shown(new)}, and should be {_shown(old)}{reason}"


def _changed_values(wanted: Any, found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield where two JSON values differ: the path of keys, what it should be, and what it is."""
    if type(wanted) is type(found) and isinstance(wanted, dict | list):
        one, other = (dict(enumerate(value)) if isinstance(value, list) else value for value in (wanted, found))
        for key in dict.fromkeys((*one, *other)):
            yield from _changed_values(one.get(key, MISSING), other.get(key, MISSING), (*path, str(key)))
    elif type(wanted) is not type(found) or wanted != found:
        yield path, wanted, found


def _shown(value: Any) -> str:
    text = "missing" if value is MISSING else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
