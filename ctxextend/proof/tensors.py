"""Whether every tensor but the tables is what it was, byte for byte."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctxextend.buffers import BufferPlan, make_buffer
from ctxextend.checkpoints.copying import first_difference, read_range
from ctxextend.checkpoints.folder import Checkpoint, WeightsFile
from ctxextend.checkpoints.tensorfile import TensorEntry, TensorFile
from ctxextend.checkpoints.torchfile import TorchFile, tensor_bytes
from ctxextend.plan import ResizePlan
from ctxextend.proof.claims import Claim

__all__ = ["bytes_to_compare", "check_tensors"]

# Called with the bytes compared since the last call, and all that there are.
Progress = Callable[[int, int], None]

# Bytes of each file that are one piece of work, and how many pieces are worked on at once.
CHUNK = 1 << 25
THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class _Pair:
    """A stretch of bytes that two checkpoints should share.

    Attributes:
        name: The tensor that it belongs to.
        base: The file that holds it in the original.
        extended: The file that holds it in the other.
        start: Its first byte, counted from the tensor's.
        size: Its bytes.
    """

    name: str
    base: WeightsFile
    extended: WeightsFile
    start: int
    size: int

    def differs(self) -> int | None:
        """Return the first byte of the tensor that differs here; None where none does."""
        if isinstance(self.base, TensorFile) and isinstance(self.extended, TensorFile):
            first = first_difference(self._range(self.base), self._range(self.extended), self.size)
            return None if first is None else self.start + first
        ours, theirs = (_bytes(file, self.name) for file in (self.base, self.extended))
        return None if np.array_equal(ours, theirs) else int((ours != theirs).argmax())

    def _range(self, file: TensorFile) -> tuple[Path, int]:
        return file.path, file.data_start + file.entries[self.name].start + self.start


def bytes_to_compare(plan: ResizePlan) -> int:
    """Return how many bytes of the original `check_tensors` reads."""
    return sum(entry.size for entry in _kept(plan).values())


def check_tensors(plan: ResizePlan, extended: Checkpoint, progress: Progress = lambda moved, total: None) -> Claim:
    """Compare every tensor but the tables and dropped buffers: name, dtype, shape and bytes, all of them read.

    Args:
        plan: What the resize should have changed.
        extended: What it is said to have become.
        progress: Called with the bytes that were compared since the last call, and with all that there are.

    Raises:
        CheckpointError: A file cannot be read, or shrank meanwhile.
    """
    kept = _kept(plan)
    there = {entry.name: entry for file in extended.weights for entry in file.entries.values()}
    wrong = [*_misdescribed(kept, there), *_unexpected(plan, kept, there), *_buffers(plan, extended)]
    wrong += _metadata(plan.checkpoint, extended)
    same = [entry for name, entry in kept.items() if name in there and _described(entry) == _described(there[name])]
    wrong += _different(plan.checkpoint, extended, same, progress)
    size = sum(entry.size for entry in same)
    total = f"{len(same):,} tensors, {size:,} bytes of each read and compared"
    fine = f"every other tensor has its name, dtype, shape and bytes: {total}"
    return Claim("tensors", not wrong, (*wrong, total) if wrong else (fine,))


def _kept(plan: ResizePlan) -> dict[str, TensorEntry]:
    """Return the tensors that a resize leaves as they are."""
    changed = {table.name for table in plan.tables} | {*plan.dropped} | {buffer.name for buffer in plan.remade}
    entries = (entry for file in plan.checkpoint.weights for entry in file.entries.values())
    return {entry.name: entry for entry in entries if entry.name not in changed}


def _described(entry: TensorEntry) -> tuple[str, tuple[int, ...]]:
    return entry.dtype, entry.shape


def _misdescribed(kept: dict[str, TensorEntry], there: dict[str, TensorEntry]) -> Iterator[str]:
    yield from (f"{name} is missing" for name in kept if name not in there)
    for name, entry in kept.items():
        if name in there and _described(entry) != _described(there[name]):
            ours, theirs = (f"{one.dtype} {list(one.shape)}" for one in (entry, there[name]))
            yield f"{name} is {theirs}, and was {ours}"


def _unexpected(plan: ResizePlan, kept: dict[str, TensorEntry], there: dict[str, TensorEntry]) -> Iterator[str]:
    known = {*kept, *(table.name for table in plan.tables), *plan.dropped, *(buffer.name for buffer in plan.remade)}
    yield from (f"{name} is not in the original" for name in there if name not in known)


def _buffers(plan: ResizePlan, extended: Checkpoint) -> Iterator[str]:
    """Yield the position buffers that are not what the new length asks for."""
    for name in plan.dropped:
        if name in extended.names:
            yield f"{name} is a position buffer of the old file and should be gone"
    for buffer in plan.remade:
        if buffer.name not in extended.names:
            yield f"{buffer.name} is missing"
        elif not _is_made(buffer, extended.holder(buffer.name)):
            yield f"{buffer.name} is not the position buffer of the new length"


def _metadata(base: Checkpoint, extended: Checkpoint) -> Iterator[str]:
    """Yield the files whose __metadata__ is another: transformers reads the format of the tensors from it."""
    there = {extended.relative(file): file.entries.metadata for file in extended.weights}
    for file in base.weights:
        name, wanted = base.output_name(file), file.entries.metadata
        if there.get(name, wanted) != wanted:
            yield f"{name} has the __metadata__ {there[name]}, and should have {wanted}"


def _is_made(buffer: BufferPlan, file: WeightsFile) -> bool:
    entry = file.entries[buffer.name]
    wanted = np.ascontiguousarray(make_buffer(buffer)).view(np.uint8).reshape(-1)
    return _described(entry) == (buffer.dtype, buffer.shape) and np.array_equal(_bytes(file, buffer.name), wanted)


def _different(
    base: Checkpoint, extended: Checkpoint, entries: Sequence[TensorEntry], progress: Progress
) -> Iterator[str]:
    """Yield the tensors whose bytes differ, each with where it first does."""
    first: dict[str, int] = {}
    total = sum(entry.size for entry in entries)
    pairs = _pairs(base, extended, entries)
    with ThreadPoolExecutor(THREADS) as pool:
        # So many at once: the list of all chunks of a large checkpoint would be submitted before any is read.
        while batch := list(islice(pairs, 4 * THREADS)):
            for pair, found in zip(batch, pool.map(_Pair.differs, batch), strict=True):
                progress(pair.size, total)
                if found is not None:
                    first.setdefault(pair.name, found)
    shapes = {entry.name: entry for entry in entries}
    for name, byte in first.items():
        number = byte * math.prod(shapes[name].shape) // shapes[name].size
        yield f"{name} differs, first in its byte {byte:,} (number {number:,})"


def _pairs(base: Checkpoint, extended: Checkpoint, entries: Sequence[TensorEntry]) -> Iterator[_Pair]:
    holders = {name: file for file in extended.weights for name in file.entries}
    originals = {name: file for file in base.weights for name in file.entries}
    for entry in entries:
        name = entry.name
        # A tensor of a torch file is not on the disk in one piece, and is compared as a whole.
        step = entry.size if isinstance(originals[name], TorchFile) or isinstance(holders[name], TorchFile) else CHUNK
        for start in range(0, entry.size, max(step, 1)):
            yield _Pair(name, originals[name], holders[name], start, min(step, entry.size - start))


def _bytes(file: WeightsFile, name: str) -> NDArray[np.uint8]:
    """Return all bytes of a tensor, as safetensors writes them."""
    if isinstance(file, TorchFile):
        return tensor_bytes(file, name)
    entry = file.entries[name]
    return np.frombuffer(read_range(file.path, file.data_start + entry.start, entry.size), np.uint8)
