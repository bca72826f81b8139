"""Compare all tensors but tables: names, forms, buffers and bytes."""

from collections.abc import Iterator

from ctxextend.checkpoint.checkpoint import Checkpoint, layer_pattern
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.checkpoint.safetensors_file import (
    METADATA,
    TensorEntry,
    TensorFile,
)
from ctxextend.conversion.conversion import count_origins
from ctxextend.errors import CheckpointError, counted
from ctxextend.progress import Progress
from ctxextend.settings import TRAINABLE
from ctxextend.verification.checks import Check, Evidence
from ctxextend.verification.compare_bytes import find_wrong_bytes
from ctxextend.verification.compare_links import changed_links
from ctxextend.verification.expected import Expected


def check_tensors(expected: Expected, resized: Checkpoint, progress: Progress) -> Check:
    """Compare all tensors but tables, and check position buffers.

    Of tensors that adapters changed, only name, dtype and shape are compared. `progress` is called
    with the bytes compared since the last call, and the total.

    Raises:
        CheckpointError: A file cannot be read.
        ResizeError: A tensor of a conversion cannot be computed.
    """
    base = expected.base
    faults = list[str]()
    trainable = expected.recorded.trainable
    if trainable in ("all-but-positions", "all"):
        faults.append(
            f"{TRAINABLE[trainable]} were trained according to the recipe, so this is not a pure "
            f"{expected.kind}"
        )
    for name in changed_links(expected, resized):
        faults.append(
            f"{name} is the same file as the base's, and the base's weights are not those of "
            f"{RECIPE_FILE}: one of them was edited in place, or the base was changed before"
        )
    same = list[tuple[TensorEntry, TensorFile]]()
    adapted = 0
    for name, entry in _kept_tensors(expected).items():
        fault = wrong_form(resized, name, entry.dtype, entry.shape)
        is_adapted = layer_pattern(name) in expected.recorded.adapted
        adapted += is_adapted
        if fault is not None:
            faults.append(fault)
        elif not is_adapted:
            same.append((entry, base.weights.file_of[name]))
    for wrapper in resized.weights.wrappers:
        faults.append(f"names of tensors have {wrapper}, which transformers does not load")
    faults += _wrong_names(expected, resized)
    faults += _wrong_buffers(expected, resized)
    faults += _wrong_metadata(base, resized)
    # One thread reads while the other compares; tensors that are computed fill memory, so one at a
    # time.
    threads = 1 if expected.conversion else 2
    faults += find_wrong_bytes(same, resized, threads, progress)
    size = sum(entry.size for entry, _ in same)
    summary = _summary(expected, len(same), size, are_identical=not faults)
    if adapted:
        summary += f"; {adapted:,} with adapters not compared"
    return Evidence(failures=faults, findings=[summary]).check("tensors")


def _summary(expected: Expected, count: int, size: int, *, are_identical: bool) -> str:
    """Say how many tensors were compared, and how those of a conversion are computed."""
    tables = [table.name for table in expected.plan.stored]
    if expected.conversion is None:
        tensors = counted(count, "other tensor" if tables else "tensor")
        if are_identical:
            tensors += " is byte-identical" if count == 1 else " are byte-identical"
        return f"{tensors} ({size:,} bytes compared)"
    relation = "are byte-identical to" if are_identical else "compared with"
    origins = expected.conversion.origins
    adapted = [name for name in origins if layer_pattern(name) in expected.recorded.adapted]
    counts = count_origins(expected.conversion, without={*tables, *adapted})
    computed = ", ".join(f"{number} {how}" for how, number in counts.items())
    return f"{count:,} tensors {relation} those computed from the base ({size:,} bytes): {computed}"


def wrong_form(resized: Checkpoint, name: str, dtype: str, shape: tuple[int, ...]) -> str | None:
    """Say how a tensor differs from the expected dtype and shape; None if it does not."""
    entry = resized.weights.entries.get(name)
    if entry is None:
        return f"{name} is missing"
    if (entry.dtype, entry.shape) == (dtype, shape):
        return None
    return f"{name} is {entry.dtype} {list(entry.shape)}, expected {dtype} {list(shape)}"


def _kept_tensors(expected: Expected) -> dict[str, TensorEntry]:
    """Return the tensors of the base that stay as they are, by name."""
    changed = {
        *expected.plan.tensors,
        *expected.plan.dropped,
    }
    return {
        name: entry for name, entry in expected.base.weights.entries.items() if name not in changed
    }


def _wrong_names(expected: Expected, resized: Checkpoint) -> Iterator[str]:
    """Yield tensors that should not exist; position buffers for the new length may."""
    for name in resized.weights.entries:
        if name not in expected.base.weights.entries:
            if not _is_right_buffer(expected, resized, name):
                yield f"{name} is not in the base"
        elif name in expected.plan.dropped and not _is_right_buffer(expected, resized, name):
            yield f"{name} is an outdated position buffer"


def _wrong_buffers(expected: Expected, resized: Checkpoint) -> Iterator[str]:
    for name, tensor in expected.plan.tensors.items():
        if tensor.is_table:
            continue
        if name not in resized.weights.entries or not _is_right_buffer(expected, resized, name):
            fault = wrong_form(resized, name, tensor.dtype, tensor.shape)
            yield fault or f"{name} is not the position buffer for the new length"


def _is_right_buffer(expected: Expected, resized: Checkpoint, name: str) -> bool:
    """Whether a tensor is a position buffer for the new length, in the dtype of the file."""
    entry = resized.weights.entries[name]
    for change in expected.plan.changes:
        buffer = change.positions.buffer(name)
        if buffer is None:
            continue
        try:
            tensor = change.positions.new_buffer(entry, buffer, change.max_len_after)
        except CheckpointError:
            return False
        if tensor.shape != entry.shape:
            return False
        found = resized.weights.file_of[name].read_bytes(name).tobytes()
        return found == tensor.compute().tobytes()
    return False


def _wrong_metadata(base: Checkpoint, resized: Checkpoint) -> Iterator[str]:
    """Yield the weights files whose metadata differ from those of the base's file of that name."""
    found = {
        resized.relative(file): file.header.get(METADATA) for file in resized.weights.files.values()
    }
    for name, file in base.weights.files.items():
        expected = file.header.get(METADATA)
        if name in found and found[name] != expected:
            yield f"{name} has __metadata__ {found[name]}, expected {expected}"
