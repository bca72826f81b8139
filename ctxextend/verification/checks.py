"""File checks of `verify`: all other tensors, the position tables, and config, tokenizer and side
files.
"""

import filecmp
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copy import open_source, reading
from ctxextend.checkpoints.filenames import IGNORED_NAMES, first_match
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import load_object, parse_json, read_bytes
from ctxextend.checkpoints.safetensors_file import (
    METADATA,
    NUMPY_DTYPES,
    TensorEntry,
    TensorFile,
    read_floats,
)
from ctxextend.conversion.convert import ConversionPlan
from ctxextend.errors import CheckpointError, counted
from ctxextend.families.lookup import Keys, TableLocation, nested
from ctxextend.families.rope import NEW, OLD, read_rope, rotary_dim
from ctxextend.limits.statements import GENERATION_CONFIG
from ctxextend.plan.edits import BUFFER_AXES, BufferPlan, TablePlan, new_buffer
from ctxextend.plan.find_tables import computed_shape, width_fault
from ctxextend.plan.output_files import CARD_FILE
from ctxextend.plan.plan import ResizePlan, table_hash
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import FROZEN, RECIPE_FILE, TRAINABLE
from ctxextend.recipe_file import Provenance, any_layer, learned_before
from ctxextend.tables.apply import equal_rows, learned_rows, nonfinite_rows
from ctxextend.tables.rotary import THETA, frequencies
from ctxextend.tables.stats import describe_rows

Table = NDArray[Any]
Mask = NDArray[np.bool_]
Change = tuple[Keys, Any, Any]  # path of keys, value before and after
BLOCK = 1 << 18  # bytes read at a time: two blocks stay in the CPU cache until they are compared
# Keys that no model uses, and the files that have them.
INFORMATIONAL_KEYS = {("transformers_version",), ("_name_or_path",), ("_from_model_config",)}
INFORMED_FILES = ("config.json", GENERATION_CONFIG)
NOT_COMPARED = (  # files that do not affect the model
    *(
        CARD_FILE,
        RECIPE_FILE,
        ".gitattributes",
        "trainer_state.json",
        "train_log.jsonl",
        "train_loss.png",
        "runs/*",
    ),
    *(
        f"{name}{suffix}"
        for name in ("LICENSE", "LICENCE", "NOTICE")
        for suffix in ("", ".txt", ".md")
    ),
)
TORCH_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
MISSING = object()  # value of a key that does not exist


@dataclass(frozen=True)
class ExpectedResize:
    """The resize, and any training after it, that should have produced a checkpoint."""

    plan: ResizePlan  # replanned from the base checkpoint
    trainable: str | None  # what was trained according to the recipe: one of `TRAINABLE`, or None
    how: str  # how the method was determined
    notes: tuple[str, ...] = ()
    chain: tuple[Provenance, ...] = ()  # its recipe and those of its base checkpoints, newest first
    unregistered: str | None = None  # the method that its recipe names, if it is not registered
    adapted: frozenset[str] = frozenset()  # tensors that adapters changed, with ``*`` for layers
    written: Mapping[str, str] = field(
        default_factory=dict
    )  # SHA-256 of each table, from the checkpoint's own recipe


Status = Literal["passed", "failed", "not checked"]


@dataclass(frozen=True)
class Check:
    """One check and its evidence."""

    # ``readable``, ``tensors``, ``table``, ``files``; with ``--deep`` also ``loads``, ``runs``,
    # ``outputs``
    name: str
    status: Status  # ``not checked``: nothing failed, but something could not be checked
    evidence: tuple[
        str, ...
    ]  # failures first, then what was not checked and why, then other findings

    json_properties: ClassVar = ("passed",)

    @property
    def passed(self) -> bool:
        """Whether everything was checked, and nothing failed."""
        return self.status == "passed"

    @property
    def failed(self) -> bool:
        """Whether something was checked and is wrong."""
        return self.status == "failed"


def make_check(
    name: str,
    failures: Sequence[str] = (),
    unchecked: Sequence[str] = (),
    findings: Sequence[str] = (),
) -> Check:
    """Return a check with the status that its findings give."""
    status: Status = "passed"
    if failures:
        status = "failed"
    elif unchecked:
        status = "not checked"
    return Check(name, status, (*failures, *unchecked, *findings))


def run_checks(expected: ExpectedResize, resized: Checkpoint, progress: Progress) -> list[Check]:
    """Compare the files of a resized checkpoint with those that the resize should have written."""
    tensors = check_tensors(expected.plan, resized, progress, expected.adapted)
    plan = expected.plan
    if expected.trainable in ("all-but-positions", "all"):
        kind = "conversion" if isinstance(plan, ConversionPlan) else "resize"
        reason = (
            f"{TRAINABLE[expected.trainable]} were trained according to the recipe, so this is "
            f"not a pure {kind}"
        )
        tensors = make_check("tensors", failures=(reason, *tensors.evidence))
    return [tensors, check_tables(expected, resized), check_files(plan, resized)]


def check_tensors(
    plan: ResizePlan,
    resized: Checkpoint,
    progress: Progress = no_progress,
    adapted: Collection[str] = (),
) -> Check:
    """Compare tensors except the tables, and only name, dtype and shape of `adapted` ones; check
    position buffers.
    """
    base = plan.checkpoint
    changed = {
        *(table.name for table in plan.stored),
        *plan.dropped,
        *(buffer.name for buffer in plan.rebuilt_buffers),
    }
    kept = [(file.entries[name], file) for name, file in base.names.items() if name not in changed]
    mismatches = {
        entry.name: _mismatch(resized, entry.name, entry.dtype, entry.shape) for entry, _ in kept
    }
    wrong = [mismatch for mismatch in mismatches.values() if mismatch]
    wrong += [
        f"names of tensors have {wrapper}, which transformers does not load"
        for wrapper in resized.weights.wrappers
    ]
    added = [name for name in resized.names if name not in base.names]
    wrong += [
        f"{name} is not in the base"
        for name in added
        if not _is_position_buffer(plan, resized, name)
    ]
    outdated = [name for name in plan.dropped if name in resized.names]
    outdated = [name for name in outdated if not _is_position_buffer(plan, resized, name)]
    wrong += [f"{name} is an outdated position buffer" for name in outdated]
    for buffer in plan.rebuilt_buffers:
        if buffer.name not in resized.names or not _is_position_buffer(plan, resized, buffer.name):
            mismatch = _mismatch(resized, buffer.name, buffer.dtype, buffer.shape)
            wrong.append(mismatch or f"{buffer.name} is not the position buffer for the new length")
    metadata = {
        resized.relative(file): file.header.get(METADATA) for file in resized.weights.files.values()
    }
    for (
        name,
        file,
    ) in base.weights.files.items():  # transformers reads the tensors' framework from it
        expected = file.header.get(METADATA)
        if metadata.get(name, expected) != expected:
            wrong.append(f"{name} has __metadata__ {metadata[name]}, expected {expected}")
    skipped = {entry.name for entry, _ in kept if any_layer(entry.name) in adapted}
    same = [
        (entry, file)
        for entry, file in kept
        if not mismatches[entry.name] and entry.name not in skipped
    ]
    total = sum(entry.size for entry, _ in same)
    # One thread reads while the other compares; one tensor at a time if they are computed in
    # memory.
    pool = ThreadPoolExecutor(1 if isinstance(plan, ConversionPlan) else 2)
    try:
        for (entry, _), byte in zip(
            same, pool.map(partial(_first_difference, resized), same), strict=True
        ):
            progress(entry.size, total)
            if byte is not None:
                element = byte * math.prod(entry.shape) // entry.size
                wrong.append(f"{entry.name} differs, first at byte {byte:,} (element {element:,})")
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits for at most two tensors
    identical = "" if wrong else "are byte-identical "
    summary = (
        f"{len(same):,} {'other ' * bool(plan.stored)}tensors {identical}({total:,} bytes compared)"
    )
    if isinstance(plan, ConversionPlan):
        counts = ", ".join(f"{count} {how}" for how, count in plan.conversion.counts.items())
        identical = "compared with" if wrong else "are byte-identical to"
        summary = (
            f"{len(same):,} tensors {identical} those computed from the base ({total:,} bytes): "
            f"{counts}"
        )
    summary += f"; {len(skipped):,} with adapters not compared" * bool(skipped)
    return make_check("tensors", failures=wrong, findings=(summary,))


def _is_position_buffer(plan: ResizePlan, resized: Checkpoint, name: str) -> bool:
    """Whether a tensor is a position buffer with the values for the new length, in the dtype in
    which it is stored.
    """
    entry = resized.entries[name]
    for table in plan.tables:
        buffer = table.location.buffer(name)
        if buffer is None or entry.dtype not in NUMPY_DTYPES:
            continue
        axes = BUFFER_AXES[buffer.content]
        length = table.location.key_value(table.max_len_after)
        if len(entry.shape) < len(axes) or any(entry.shape[axis] != length for axis in axes):
            return False
        start = 0 if table.location.table.reserved.inside_key else table.reserved_rows
        expected = new_buffer(BufferPlan(name, buffer.content, entry.shape, entry.dtype, start))
        return bool(resized.names[name].read_bytes(name).tobytes() == expected.tobytes())
    return False


def _mismatch(resized: Checkpoint, name: str, dtype: str, shape: tuple[int, ...]) -> str:
    """Describe a tensor that is missing or has another dtype or shape; empty if it matches."""
    if name not in resized.names:
        return f"{name} is missing"
    entry = resized.entries[name]
    if (entry.dtype, entry.shape) == (dtype, shape):
        return ""
    return f"{name} is {entry.dtype} {list(entry.shape)}, expected {dtype} {list(shape)}"


def _first_difference(resized: Checkpoint, tensor: tuple[TensorEntry, TensorFile]) -> int | None:
    """Return the first byte at which a tensor of the base differs in the resized checkpoint; None
    if it does not.
    """
    entry, base = tensor
    other = resized.names[entry.name]
    base_offset, other_offset = base.offset(entry.name), other.offset(entry.name)
    if base_offset is None or other_offset is None:  # torch files can store it with other strides
        first, second = base.read_bytes(entry.name), other.read_bytes(entry.name)
        return None if np.array_equal(first, second) else int((first != second).argmax())
    with (
        open_source(base.path) as base_file,
        open_source(other.path) as file,
        reading(f"{base.path} or {other.path}"),
    ):
        base_file.seek(base_offset)
        file.seek(other_offset)
        for start in range(0, entry.size, BLOCK):
            left, right = (
                stream.read(min(BLOCK, entry.size - start)) for stream in (base_file, file)
            )
            if left != right or not left:  # a file truncated in the meantime differs too
                return start + next(
                    (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0
                )
    return None


class TableComparison(NamedTuple):
    """A table before and after the resize and as recreated by its method, each of shape (rows,
    hidden_size).
    """

    before: Table
    after: Table
    expected: Table
    matches: Mask  # whether each row matches the expected one, shape (rows,)


def compare_table(plan: ResizePlan, table: TablePlan, resized: Checkpoint) -> TableComparison:
    """Recreate a table and compare: learned rows bit for bit, new rows within the method's
    tolerance.
    """
    before = read_floats(plan.checkpoint.names[table.name], table.name)
    after = read_floats(resized.names[table.name], table.name)
    expected = plan.resized(table, before)
    matches = equal_rows(expected, after)
    if plan.creates_rows and (tolerance := plan.options_of(table).facts.tolerance):
        exact = expected.astype(np.float64)
        norm = np.median(np.linalg.norm(exact, axis=1))
        is_close = np.linalg.norm(exact - after.astype(np.float64), axis=1) <= tolerance * norm
        kept = plan.options_of(table).kept_rows(min(len(before), len(after)) - table.reserved_rows)
        is_close[: table.reserved_rows + kept] = False  # kept rows must be identical
        matches |= is_close
    return TableComparison(before, after, expected, matches)


class RopeComparison(NamedTuple):
    """Rotary settings of a resized checkpoint, compared with those of its method."""

    wrong: tuple[str, ...]  # differences, as text
    notes: tuple[str, ...]
    matches: Mask  # whether each inverse frequency is that of the method, of all types of layers


def compare_rope(table: TablePlan, resized: Checkpoint) -> RopeComparison:
    """Compare rotary settings with those of the method, and the frequencies of both at the new
    length.
    """
    wrong = list[str]()
    notes = list[str]()
    matches = [np.ones(0, np.bool_)]
    before = table.location
    now = replace(table.location, config=resized.config)
    changes = {plan.before.layers: plan.after for plan in table.rope}
    try:
        actual = (
            {item.layers: item.parameters for item in read_rope(now)} if before.table.rope else {}
        )
    except CheckpointError as error:
        return RopeComparison((error.message,), (), np.zeros(1, np.bool_))
    for item in read_rope(before) if actual else ():
        name, change = ".".join(filter(None, (table.name, item.layers))), changes.get(item.layers)
        stated = actual[item.layers]
        expected = change.parameters if change else item.parameters
        for key in (key for key in {**expected, **stated} if expected.get(key) != stated.get(key)):
            is_now, should_be = (
                _json_text(values.get(key, MISSING)) for values in (stated, expected)
            )
            wrong.append(f"{name}: {key} is {is_now}, expected {should_be}")
        if change is None:
            continue
        dim = rotary_dim(before, expected)
        old = before.value(before.effective_key)
        length = table.max_len_after
        ours = frequencies(expected, dim, before.key_value(table.key_length), length).inverse
        theirs = frequencies(stated, dim, now.value(now.effective_key), length).inverse
        matches.append(np.isclose(ours, theirs, rtol=1e-12, atol=0))
        if differ := int((~matches[-1]).sum()):
            wrong.append(
                f"{name}: {differ} of {len(ours)} frequencies are not those of {change.method}"
            )
        base = frequencies(item.parameters, dim, old).inverse
        slower = np.divide(base, ours, out=np.ones_like(base), where=ours != 0)
        at = (
            f"at {length} tokens, " * change.keeps_max_len
        )  # at the trained length, all are unchanged
        kept = f"{at}{np.isclose(slower, 1).sum()} of {len(base)} frequencies unchanged"
        notes.append(
            f"{name}: {change.method}: {kept}, the others up to {slower.max():.3g}x slower"
        )
    notes = notes or [f"{table.name}: {table.scheme} positions, no settings changed"]
    return RopeComparison(tuple(wrong), tuple(notes), np.concatenate(matches))


def check_tables(expected: ExpectedResize, resized: Checkpoint) -> Check:
    """Recreate the tables and compare their shape, dtype and rows; compare rotary settings."""
    wrong, unchecked, notes = list[str](), list[str](), list[str]()
    plan = expected.plan
    for table in plan.tables:
        if not table.has_rows:
            rope = compare_rope(table, resized)
            wrong += rope.wrong
            notes += (
                [f"{table.name}: {plan.conversion.positions}"]
                if isinstance(plan, ConversionPlan)
                else rope.notes
            )
        elif not table.is_stored:
            wrong += _wrong_computed(table, resized)
            notes.append(
                f"{table.name}: {table.rows_before} -> {table.rows_after} rows, computed by "
                "transformers"
            )
        elif mismatch := _mismatch(
            resized, table.name, table.dtype, (table.rows_after, table.hidden_size)
        ):
            wrong.append(mismatch)
        elif expected.unregistered and table.is_changed:
            wrong += _wrong_width(table, resized)
            message = (
                f"{table.name}: rows not checked, method {expected.unregistered!r} is not "
                "registered"
            )
            if expected.trainable in ("positions", "all") and table.name in expected.written:
                after = read_floats(resized.names[table.name], table.name)
                wrong += _wrong_since_written(expected, table, after)
                notes.append(message)
            else:
                unchecked.append(message)
        else:
            wrong += _wrong_width(table, resized)
            compared = compare_table(plan, table, resized)
            wrong += _wrong_rows(expected, table, compared)
            notes += _describe_rows(expected, table, compared)
    return make_check("table", failures=wrong, unchecked=unchecked, findings=notes)


def _wrong_computed(table: TablePlan, resized: Checkpoint) -> Iterator[str]:
    """Yield how the table that transformers computes from the config differs from the planned
    one.
    """
    planned = table.rows_after, table.hidden_size
    try:
        computed, _, _ = computed_shape(replace(table.location, config=resized.config))
    except CheckpointError as error:
        yield error.message
        return
    if computed != planned:
        yield (
            f"{table.name}: transformers computes a table of {list(computed)}, expected "
            f"{list(planned)}"
        )


def _wrong_width(table: TablePlan, resized: Checkpoint) -> Iterator[str]:
    """Yield the config key that states another width than the table has."""
    if fault := width_fault(
        replace(table.location, config=resized.config), table.hidden_size, table.name
    ):
        yield fault


def _wrong_since_written(expected: ExpectedResize, table: TablePlan, after: Table) -> Iterator[str]:
    """Yield that a table is not the one whose hash its recipe states."""
    recorded = expected.written.get(table.name)
    if recorded and recorded != table_hash(after):
        yield (
            f"{table.name} has changed since it was written: its SHA-256 is not that in "
            f"{RECIPE_FILE}"
        )


def _wrong_rows(
    expected: ExpectedResize, table: TablePlan, compared: TableComparison
) -> Iterator[str]:
    """Yield which rows do not match; of a trained table, only rows that were not trained count."""
    frozen = np.ones(table.rows_after, np.bool_)
    first = table.reserved_rows
    reason = ""
    if expected.trainable == "new":
        learned = learned_before(expected.chain, table.name, first, table.rows_after)
        if (
            learned is None or len(learned) != table.rows_after - first
        ):  # not in the recipes: compare the rows
            learned = learned_rows(compared.before[first:], compared.expected[first:])
        frozen[first:] = learned
        reason = ", although only new rows were trained"
    elif expected.trainable not in FROZEN:
        frozen[:] = False
    elif expected.trainable:
        reason = ", although the table was not trained"
    if (bad := np.flatnonzero(frozen & ~compared.matches)).size:
        difference = f"do not match method {expected.plan.method_of(table)}{reason}"
        if isinstance(expected.plan, ConversionPlan):
            difference = "are not the angles of their positions"
        yield (
            f"{table.name}: {len(bad)} of {len(frozen)} rows {difference}: "
            f"{describe_rows(bad.tolist())}"
        )
    else:
        yield from _wrong_since_written(expected, table, compared.after)
    nonfinite = sorted(
        {*nonfinite_rows(compared.after)} - {*nonfinite_rows(compared.expected)}
    )  # from training
    if nonfinite:
        yield (
            f"{table.name}: {counted(len(nonfinite), 'row')} with NaN or infinity: "
            f"{describe_rows(nonfinite)}"
        )


def _describe_rows(
    expected: ExpectedResize, table: TablePlan, compared: TableComparison
) -> Iterator[str]:
    """Yield how many rows match the method, and how much the learned rows changed."""
    plan = expected.plan
    count = int(compared.matches.sum())
    if isinstance(plan, ConversionPlan):
        yield (
            f"{table.name}: {count} of {table.rows_after} rows are the angles of their "
            "positions, bit for bit"
        )
        return
    tolerance = plan.options_of(table).facts.tolerance if plan.creates_rows else 0.0
    exact = f"within {tolerance:g} of the median norm" if tolerance else "bit for bit"
    origin = f"method {plan.method_of(table)}" if plan.is_changed else "the base"
    size = f"{table.name}: {table.rows_before} -> {table.rows_after} rows"
    trained = (
        f"; {'not ' * (expected.trainable in FROZEN)}trained afterwards"
        if expected.trainable
        else ""
    )
    trained += ", SHA-256 as recorded" * (bool(trained) and table.name in expected.written)
    yield (
        f"{size}; {count} of {table.rows_after} rows match {origin} ({expected.how}) "
        f"{exact}{trained}"
    )
    shared = min(len(compared.before), len(compared.after))
    old, new = compared.before[:shared], compared.after[:shared]
    changed = ~equal_rows(old, new)
    text = f"{int((~changed).sum())} of {shared} learned rows are bit-identical"
    if changed.any():
        with np.errstate(invalid="ignore", over="ignore"):
            old, new = old.astype(np.float64), new.astype(np.float64)
            distance = np.linalg.norm(new[changed] - old[changed], axis=1).max()
            norm = np.median(np.linalg.norm(old, axis=1))
        rows = (
            f"{'rows' if changed.sum() > 1 else 'row'} "
            f"{describe_rows(np.flatnonzero(changed).tolist())}"
        )
        text += f"; {rows} changed by up to {distance:.3g} (median norm {norm:.3g})"
    yield text


def check_files(plan: ResizePlan, resized: Checkpoint) -> Check:
    """Compare all files except weights with what the resize should have written; JSON files by
    content.
    """
    base = plan.checkpoint
    excluded = set(base.weights.files)
    if {resized.relative(file) for file in resized.weights.files.values()} != excluded:
        excluded.add(base.weights.index_file)  # other shards need another index
    code = set(base.code) & set(resized.code)  # code files are optional in an output
    files = {*plan.texts, *plan.files["copied"], *code} - excluded
    compared = sorted(name for name in files if not _is_not_compared(name))
    listed = resized.weights.index["weight_map"] if resized.weights.index else resized.names
    wrong = [
        f"{resized.weights.index_file} does not list {name}"
        for name in resized.names
        if name not in listed
    ]
    wrong += _unexpected_files(plan, resized)
    wrong += (difference for name in compared for difference in _differences(plan, resized, name))
    edits = "; ".join(f"{edit.file} {edit.key} {edit.after}" for edit in plan.edits)
    settings = "rotary settings and " * any(table.rope for table in plan.tables)
    changes = f"only the {settings}length limits changed ({edits})" if edits else "nothing changed"
    changes += f"; {', '.join(sorted(base.generated))} generated" * bool(base.generated)
    if isinstance(plan, ConversionPlan):
        changes = ", ".join(("as the conversion writes them", *filter(None, (edits,))))
    count = (
        f"{counted(len(compared), 'file')} compared (model card, licenses, logs and recipe "
        "excluded)"
    )
    if wrong:
        return make_check("files", failures=wrong)
    return make_check("files", findings=(f"{count}: {changes}", "no stale weight files"))


def _is_not_compared(name: str) -> bool:
    return first_match(PurePosixPath(name), NOT_COMPARED) is not None


def _unexpected_files(plan: ResizePlan, resized: Checkpoint) -> Iterator[str]:
    base = plan.checkpoint
    for name, reason in resized.omitted.items():
        if PurePosixPath(name).name not in IGNORED_NAMES and name not in resized.code:
            yield f"unexpected {name}: {reason}"
    expected = {*plan.file_sizes, *base.code}
    # A bare weights file needs a config.json, which must state the new lengths.
    lengths = {
        table.location.length_paths[0]: table.location.key_value(table.max_len_after)
        for table in plan.tables
    }
    if not base.has_config and all(
        nested(resized.config, path) == length for path, length in lengths.items()
    ):
        expected.add(resized.config_file)
    for name in (*resized.copied, *resized.code):
        if (
            name not in expected
            and not _is_not_compared(name)
            and not _repeats_config(resized, name)
        ):
            yield f"{name} is not in the base"
    if base.weights.variant != resized.weights.variant:
        yield f"the weights are variant {resized.weights.variant}, expected {base.weights.variant or 'no variant'}"


def _repeats_config(resized: Checkpoint, name: str) -> bool:
    """Whether a file is a generation config that states only what config.json states: transformers
    adds one.
    """
    if PurePosixPath(name) != PurePosixPath(resized.config_file).with_name(GENERATION_CONFIG):
        return False
    try:
        content = load_object(resized.root / name)
    except CheckpointError:
        return False
    stated = {key: value for key, value in content.items() if (key,) not in INFORMATIONAL_KEYS}
    return all(resized.config.get(key, MISSING) == value for key, value in stated.items())


def _differences(plan: ResizePlan, resized: Checkpoint, name: str) -> Iterator[str]:
    """Yield how one file differs from what the resize should have written: the base's file, with
    its edits.
    """
    if name not in resized.files and name not in resized.code:
        if name not in resized.omitted:  # those are reported as unexpected
            yield f"{name} is missing"
        return
    path = resized.root / name
    base_path = plan.checkpoint.root / name
    expected = plan.texts.get(name)
    try:
        if expected is None:
            with reading(path):
                if filecmp.cmp(base_path, path, shallow=False):
                    return
            if path.suffix != ".json":
                yield f"{name} is not byte-identical to the base's"
                return
            expected = read_bytes(base_path)
        actual = read_bytes(path)
        if expected == actual:
            return
        before, after = (parse_json(text.decode("utf-8"), name) for text in (expected, actual))
    except CheckpointError as error:
        yield error.message
        return
    except UnicodeDecodeError as error:
        yield f"{name} is not UTF-8 text (byte {error.start})."
        return
    changes = list(_changed_values(before, after))
    if PurePosixPath(name).name in INFORMED_FILES:
        changes = [change for change in changes if change[0] not in INFORMATIONAL_KEYS]
    if name == plan.checkpoint.config_file and changes:
        changes = _changed_meaning(plan, before, after, changes)
    edits = {
        edit.path
        for edit in plan.edits
        if edit.file == name and not any("rope" in key for key in edit.path)
    }
    for keys, old, new in changes:
        reason = " (the new length)" if any(keys[: len(edit)] == edit for edit in edits) else ""
        yield f"{name}: {'.'.join(keys)} is {_json_text(new)}, expected {_json_text(old)}{reason}"


def _changed_meaning(
    plan: ResizePlan, before: Any, after: Any, changes: list[Change]
) -> list[Change]:
    """Return the changes of a model's config that are more than another spelling.

    Rotary settings are compared by `compare_rope`, in either dialect. Of other keys, transformers
    says what they mean: it is imported only if some differ, for example since it has saved the
    checkpoint again, with all of its defaults.
    """
    rotary = {path for table in plan.tables for path in _rotary_paths(table.location)}

    def is_rotary(path: Keys) -> bool:
        return any(path[: len(start)] == start for start in rotary)

    changes = [change for change in changes if not is_rotary(change[0])]
    if not changes or not isinstance(after, dict):
        return changes
    from ctxextend.models.load import read_config

    expected, actual = read_config(before), read_config(after)
    if expected is None or actual is None:
        return changes
    (old, renamed), (new, _) = expected, actual
    # A key that transformers does not keep under its name or another one has no other spelling.
    unread = [
        change
        for change in changes
        if _parent(change[0], old, new) is None and change[0][-1] not in renamed
    ]
    found = [change for change in _changed_values(old, new) if not is_rotary(change[0])]
    found = [change for change in found if change[0] not in INFORMATIONAL_KEYS]
    found = [change for change in found if not _is_stored_dtype(plan.checkpoint, change)]
    stated = {change[0]: change for change in changes}
    return [*unread, *(stated.get(change[0], change) for change in found)]


def _is_stored_dtype(checkpoint: Checkpoint, change: Change) -> bool:
    """Whether a config only states the dtype of the weights, which transformers uses if none is
    stated.
    """
    (*_, key), old, new = change
    stored = {
        TORCH_NAMES[entry.dtype]
        for entry in checkpoint.entries.values()
        if entry.dtype in TORCH_NAMES
    }
    return key == "dtype" and old in (None, MISSING) and stored == {new}


def _parent(path: Keys, *configs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the first config, or object nested in one, that has a path of keys; None if there is
    none.
    """
    for config in configs:
        parent = nested(config, path[:-1])
        if isinstance(parent, list) or (isinstance(parent, Mapping) and path[-1] in parent):
            return config
    return None


def _rotary_paths(location: TableLocation) -> Iterator[Keys]:
    """Yield the paths of the keys that state rotary settings, in both dialects."""
    if facts := location.table.rope:
        keys = {NEW, OLD, THETA, facts.partial_key, *facts.theta_keys.values()} - {""}
        for key in sorted(keys):
            yield from location.paths_of(key)


def _changed_values(left: Any, right: Any, path: Keys = ()) -> Iterator[Change]:
    """Yield the path, left value and right value of every difference between two JSON values: 4 and
    4.0 are equal.
    """
    numbers = [type(value) in (int, float) for value in (left, right)]
    if type(left) is type(right) and isinstance(left, dict | list):
        before, after = (
            dict(enumerate(value)) if isinstance(value, list) else value for value in (left, right)
        )
        for key in dict.fromkeys((*before, *after)):
            yield from _changed_values(
                before.get(key, MISSING), after.get(key, MISSING), (*path, str(key))
            )
    elif left != right or (type(left) is not type(right) and not all(numbers)):
        yield path, left, right


def _json_text(value: Any) -> str:
    text = "missing" if value is MISSING else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
