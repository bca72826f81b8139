"""Whether every tensor but the tables is what it was, byte for byte."""

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.comparing import first_difference
from ctxextend.checkpoints.copying import read_range
from ctxextend.checkpoints.folder import Checkpoint, WeightsFile
from ctxextend.checkpoints.tensorfile import TensorEntry, TensorFile
from ctxextend.plan.buffers import BufferPlan, make_buffer
from ctxextend.plan.plan import ResizePlan
from ctxextend.verification.claims import Claim

__all__ = ["bytes_to_compare", "check_tensors"]

# Called with the bytes compared since the last call, and all that there are.
Progress = Callable[[int, int], None]

# Bytes of each file that are one piece of work, how many pieces are worked on at once, and how many wait for it.
CHUNK = 1 << 27
THREADS = min(4, os.cpu_count() or 1)
AHEAD = 4 * THREADS


@dataclass(frozen=True)
class _Stretch:
    """Tensors that stand one behind the other in two files, and should be the same.

    Attributes:
        base: The file that holds them in the original.
        extended: The file that holds them in the other.
        numbers: Which tensors of `base` these are, in the order of their bytes.
        start: The first byte in `extended`, counted from the end of its header.
    """

    base: WeightsFile
    extended: WeightsFile
    numbers: NDArray[np.intp]
    start: int

    @property
    def first(self) -> int:
        """The first byte in `base`, counted from the end of its header."""
        return int(self.base.entries.starts[self.numbers[0]])

    @property
    def size(self) -> int:
        """Bytes it takes in each."""
        return int(self.base.entries.ends[self.numbers[-1]]) - self.first

    def difference(self, start: int, size: int) -> int | None:
        """Return the first byte that differs in a part of it, counted from the stretch's first; None without one."""
        name = self.base.entries.entry(int(self.numbers[0])).name
        ours, theirs = _place(self.base, name, self.first), _place(self.extended, name, self.start)
        if ours is not None and theirs is not None:
            found = first_difference((self.base.path, ours + start), (self.extended.path, theirs + start), size)
            return None if found is None else start + found
        one, other = (_bytes(file, name) for file in (self.base, self.extended))
        return None if np.array_equal(one, other) else int((one != other).argmax())


@dataclass(frozen=True)
class _Piece:
    """A part of a stretch that is compared at once: its first byte, counted from the stretch's, and its bytes."""

    stretch: _Stretch
    start: int
    size: int

    def differs(self) -> bool:
        """Whether any byte does."""
        return self.stretch.difference(self.start, self.size) is not None

    def differing(self) -> Iterator[tuple[TensorEntry, int]]:
        """Yield each tensor that differs in this part, with the first byte of it that does."""
        stretch, entries = self.stretch, self.stretch.base.entries
        for number in stretch.numbers:
            begin, end = (int(column[number]) - stretch.first for column in (entries.starts, entries.ends))
            start, stop = max(begin, self.start), min(end, self.start + self.size)
            if start < stop and (byte := stretch.difference(start, stop - start)) is not None:
                yield entries.entry(int(number)), byte - begin


def bytes_to_compare(plan: ResizePlan) -> int:
    """Return how many bytes of the original `check_tensors` reads."""
    base = plan.checkpoint
    changed = sum(base.holder(name).entries[name].size for name in _changed(plan))
    return sum(file.entries.size for file in base.weights) - changed


def check_tensors(plan: ResizePlan, extended: Checkpoint, progress: Progress = lambda moved, total: None) -> Claim:
    """Compare every tensor but the tables and dropped buffers: name, dtype, shape and bytes, all of them read.

    Args:
        plan: What the resize should have changed.
        extended: What it is said to have become.
        progress: Called with the bytes that were compared since the last call, and with all that there are.

    Raises:
        CheckpointError: A file cannot be read, or shrank meanwhile.
    """
    wrong, stretches = _same(plan, extended)
    wrong += [*_unexpected(plan, extended), *_buffers(plan, extended), *_metadata(plan.checkpoint, extended)]
    wrong += _different(stretches, progress)
    size, count = sum(stretch.size for stretch in stretches), sum(stretch.numbers.size for stretch in stretches)
    total = f"{count:,} tensors, {size:,} bytes of each read and compared"
    fine = f"every other tensor has its name, dtype, shape and bytes: {total}"
    return Claim("tensors", not wrong, (*wrong, total) if wrong else (fine,))


def _changed(plan: ResizePlan) -> frozenset[str]:
    """Return the tensors that a resize does not leave as they are."""
    return frozenset((*(table.name for table in plan.tables), *plan.dropped, *(buffer.name for buffer in plan.remade)))


def _described(entry: TensorEntry) -> tuple[str, tuple[int, ...]]:
    return entry.dtype, entry.shape


def _same(plan: ResizePlan, extended: Checkpoint) -> tuple[list[str], list[_Stretch]]:
    """Return what is wrong with the headers' words of the tensors that stay, and those of which they say the same."""
    missing, misdescribed, stretches = list[str](), list[str](), list[_Stretch]()
    changed = _changed(plan)
    for file in plan.checkpoint.weights:
        holders, starts = np.full(len(file.entries), -1, np.int32), np.zeros(len(file.entries), np.int64)
        for number, entry in enumerate(file.entries.values()):
            place = None if entry.name in changed else extended.names.find(entry.name)
            if place is not None:
                theirs = extended.weights[place[0]].entries.entry(place[1])
                if _described(entry) == _described(theirs):
                    holders[number], starts[number] = place[0], theirs.start
                else:
                    ours, other = (f"{one.dtype} {list(one.shape)}" for one in (entry, theirs))
                    misdescribed.append(f"{entry.name} is {other}, and was {ours}")
            elif entry.name not in changed:
                missing.append(f"{entry.name} is missing")
        stretches += _stretches(file, extended.weights, holders, starts)
    return [*missing, *misdescribed], stretches


def _stretches(
    file: WeightsFile, others: Sequence[WeightsFile], holders: NDArray[np.int32], starts: NDArray[np.int64]
) -> Iterator[_Stretch]:
    """Yield the tensors of a file that others hold too, those together that stand so in both.

    Args:
        file: The file.
        others: The others.
        holders: Which of them holds each tensor, shape (n,); -1 for those that are not compared.
        starts: The first byte of each there, shape (n,).
    """
    order = file.entries.in_order_of_bytes()
    order = order[holders[order] >= 0]
    sizes = (file.entries.ends - file.entries.starts)[order]
    begins = np.diff(holders[order]) != 0
    for places in (file.entries.starts, starts):
        begins |= np.diff(places[order]) != sizes[:-1]
    if not all(isinstance(one, TensorFile) for one in (file, *others)):
        begins[:] = True  # a tensor of a torch file is not on the disk in one piece, and is compared as a whole
    for numbers in np.split(order, np.flatnonzero(begins) + 1):
        if numbers.size:
            yield _Stretch(file, others[holders[numbers[0]]], numbers, int(starts[numbers[0]]))


def _unexpected(plan: ResizePlan, extended: Checkpoint) -> Iterator[str]:
    names = plan.checkpoint.names
    yield from (f"{name} is not in the original" for name in extended.names if name not in names)


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


def _different(stretches: Sequence[_Stretch], progress: Progress) -> Iterator[str]:
    """Yield the tensors whose bytes differ, each with where it first does."""
    first: dict[str, str] = {}
    total = sum(stretch.size for stretch in stretches)
    for piece, differs in _compared(_pieces(stretches), total):
        progress(piece.size, total)
        for entry, byte in piece.differing() if differs else ():
            number = byte * math.prod(entry.shape) // entry.size
            first.setdefault(entry.name, f"first in its byte {byte:,} (number {number:,})")
    yield from (f"{name} differs, {where}" for name, where in first.items())


def _compared(pieces: Iterator[_Piece], total: int) -> Iterator[tuple[_Piece, bool]]:
    """Yield every piece and whether any byte of it differs, in order, while others are compared."""
    if total <= CHUNK:  # read sooner than threads are imported and begin
        yield from ((piece, piece.differs()) for piece in pieces)
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[tuple[_Piece, Future[bool]]] = deque()
        try:
            for piece in pieces:
                waiting.append((piece, pool.submit(piece.differs)))
                if len(waiting) > AHEAD:  # never all: there may be a million
                    first, future = waiting.popleft()
                    yield first, future.result()
            yield from ((piece, future.result()) for piece, future in waiting)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # an error, or Ctrl-C, waits for no piece that has not begun


def _pieces(stretches: Sequence[_Stretch]) -> Iterator[_Piece]:
    for stretch in stretches:
        is_whole = not (isinstance(stretch.base, TensorFile) and isinstance(stretch.extended, TensorFile))
        step = stretch.size if is_whole else CHUNK
        for start in range(0, stretch.size, max(step, 1)):
            yield _Piece(stretch, start, min(step, stretch.size - start))


def _place(file: WeightsFile, name: str, start: int) -> int | None:
    """Return the file's byte where a stretch begins; None where it does not stand there as safetensors writes it."""
    if isinstance(file, TensorFile):
        return file.data_start + start
    from ctxextend.checkpoints.torchfile import place_in

    return place_in(file, name)


def _bytes(file: WeightsFile, name: str) -> NDArray[np.uint8]:
    """Return all bytes of a tensor, as safetensors writes them."""
    if isinstance(file, TensorFile):
        entry = file.entries[name]
        return np.frombuffer(read_range(file.path, file.data_start + entry.start, entry.size), np.uint8)
    from ctxextend.checkpoints.torchfile import tensor_bytes

    return tensor_bytes(file, name)
