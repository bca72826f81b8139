"""Check that every tensor but the tables is what it was, byte for byte."""

import math
from collections.abc import Iterator

import numpy as np

from ctxextend.checkpoints.copy import first_difference
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import TensorEntry, TensorFile
from ctxextend.plan.edits import make_buffer
from ctxextend.plan.plan import ResizePlan
from ctxextend.progress import Progress, no_progress
from ctxextend.verification.checks import Check


def bytes_to_compare(plan: ResizePlan) -> int:
    """Return how many bytes of the base checkpoint `check_tensors` reads."""
    changed = _changed_names(plan)
    return sum(
        entry.size for file in plan.checkpoint.weights for entry in file.entries.values() if entry.name not in changed
    )


def check_tensors(plan: ResizePlan, resized: Checkpoint, progress: Progress = no_progress) -> Check:
    """Compare every tensor but the tables and dropped buffers: name, dtype, shape and bytes, all of them read.

    Raises:
        CheckpointError: A file cannot be read, or shrank meanwhile.
    """
    changed = _changed_names(plan)
    wrong: list[str] = []
    same: list[tuple[TensorEntry, TensorFile, TensorFile]] = []
    for file in plan.checkpoint.weights:
        for entry in file.entries.values():
            if entry.name in changed:
                continue
            if entry.name not in resized.names:
                wrong.append(f"{entry.name} is missing")
                continue
            other = resized.holder(entry.name)
            found = other.entries[entry.name]
            if (found.dtype, found.shape) == (entry.dtype, entry.shape):
                same.append((entry, file, other))
            else:
                wrong.append(f"{entry.name} is {_described(found)}, and was {_described(entry)}")
    wrong += [f"{name} is not in the original" for name in resized.names if name not in plan.checkpoint.names]
    wrong += [*_wrong_buffers(plan, resized), *_wrong_metadata(plan.checkpoint, resized)]
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


def _changed_names(plan: ResizePlan) -> set[str]:
    """Return the tensors that a resize does not leave as they are."""
    return {*(table.name for table in plan.tables), *plan.dropped, *(buffer.name for buffer in plan.remade)}


def _described(entry: TensorEntry) -> str:
    return f"{entry.dtype} {list(entry.shape)}"


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
        file, wanted = resized.holder(buffer.name), make_buffer(buffer)
        entry = file.entries[buffer.name]
        is_alike = (entry.dtype, entry.shape) == (buffer.dtype, buffer.shape)
        if not is_alike or file.read_bytes(buffer.name).tobytes() != wanted.tobytes():
            yield f"{buffer.name} is not the position buffer of the new length"


def _wrong_metadata(base: Checkpoint, resized: Checkpoint) -> Iterator[str]:
    """Yield the files whose __metadata__ is another: transformers reads the format of the tensors from it."""
    found = {resized.relative(file): file.metadata for file in resized.weights}
    for file in base.weights:
        name, wanted = base.output_name(file), file.metadata
        if found.get(name, wanted) != wanted:
            yield f"{name} has the __metadata__ {found[name]}, and should have {wanted}"
