"""Where each tensor goes in the new file, decided from the old file and the new sizes alone.

File systems that share blocks share them at equal offsets modulo the block size. So the header is padded with
spaces until unchanged tensors stand where they stood modulo 4,096, and a new table takes its old place only
where the difference is whole blocks; elsewhere it goes last.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.dtypes import BITS
from ctxextend.checkpoints.headers import Entries, compact_metadata, counted
from ctxextend.checkpoints.headertext import Member, compact, read_member
from ctxextend.checkpoints.tensorfile import MAX_HEADER_BYTES, Described
from ctxextend.errors import CheckpointError

__all__ = ["BLOCK", "Layout", "Run", "plan_layout"]

BLOCK = 4096

# A shape and a dtype.
Kind = tuple[tuple[int, ...], str]

Numbers = NDArray[np.intp]


@dataclass(frozen=True)
class Run:
    """A stretch of the new file: tensors that move as one, or one that is new.

    Attributes:
        numbers: Which tensors of the old file these are, in the order of their bytes.
        start: Its first byte in the old file, counted from the end of the header.
        size: Bytes it takes in the new file.
        shape: The shape of a tensor that is new; else None.
    """

    numbers: Numbers
    start: int
    size: int
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Layout:
    """The whole of a new file.

    Attributes:
        header: Its first bytes: length, JSON, padding.
        runs: What stands behind it, in the order of the bytes.
        size: Bytes of the whole file.
        shareable: Bytes of it in whole blocks that stand at the same place of a block as in the old file, which file
            systems that clone need not write.
    """

    header: bytes
    runs: tuple[Run, ...]
    size: int
    shareable: int

    @property
    def tensor_bytes(self) -> int:
        """Bytes that its tensors take."""
        return self.size - len(self.header)


@dataclass(frozen=True)
class _Places:
    """Where tensors stand in the new file.

    Attributes:
        order: The numbers of those that it has, in the order of their bytes, shape (m,).
        starts: The first byte of every tensor of the old file, counted from the end of the new header, shape (n,);
            -1 for those that are left out.
        sizes: The bytes of each, shape (n,).
        new: What is new, by number.
    """

    order: Numbers
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    new: Mapping[int, Kind]


def plan_layout(
    file: Described,
    shapes: Mapping[str, tuple[int, ...]],
    dropped: Collection[str],
    dtypes: Mapping[str, str] | None = None,
) -> Layout:
    """Lay out the file that has new tensors in the place of some and lacks others.

    Args:
        file: The old file.
        shapes: The shapes of new tensors by their names.
        dropped: Names that are left out.
        dtypes: The dtypes of new tensors where they are others than before, as safetensors calls them.

    Raises:
        CheckpointError: The header would be longer than safetensors reads.
    """
    entries = file.entries
    new = {name: (shape, (dtypes or {}).get(name, entries[name].dtype)) for name, shape in shapes.items()}
    places = _place(entries, {_number(entries, name): kind for name, kind in new.items()}, dropped)
    runs = tuple(_runs(entries, places))
    header = _header(file, places, runs)
    size = len(header) + sum(run.size for run in runs)
    return Layout(header, runs, size, _shareable(runs, len(header), file.data_start))


def _shareable(runs: tuple[Run, ...], place: int, data_start: int) -> int:
    """Return the bytes of whole blocks that keep their place in them, the first run's new place being `place`."""
    found = 0
    for run in runs:
        before = data_start + run.start
        if run.shape is None and (place - before) % BLOCK == 0:
            found += max((before + run.size) // BLOCK * BLOCK - -(-before // BLOCK) * BLOCK, 0)
        place += run.size
    return found


def _number(entries: Entries, name: str) -> int:
    number = entries.number(name)
    if number is None:
        raise KeyError(name)
    return number


def _place(entries: Entries, new: Mapping[int, Kind], dropped: Collection[str]) -> _Places:
    sizes = entries.ends - entries.starts
    is_late, is_kept = np.zeros(len(entries), np.bool_), np.ones(len(entries), np.bool_)
    for number, kind in new.items():
        size = math.prod(kind[0]) * BITS[kind[1]] // 8
        is_late[number] = (size - sizes[number]) % BLOCK != 0
        sizes[number] = size
    is_kept[[_number(entries, name) for name in dropped]] = False
    order = entries.in_order_of_bytes()
    order = order[is_kept[order]]
    order = np.concatenate((order[~is_late[order]], order[is_late[order]]))
    starts = np.full(len(entries), -1, np.int64)
    starts[order] = np.cumsum(sizes[order]) - sizes[order]
    return _Places(order, starts, sizes, new)


def _runs(entries: Entries, places: _Places) -> Iterator[Run]:
    """Yield every stretch that moves as one; a new tensor is one of its own."""
    order = places.order
    is_new = np.zeros(len(entries), np.bool_)
    is_new[list(places.new)] = True
    shifts = places.starts[order] - entries.starts[order]
    begins = (np.diff(shifts) != 0) | is_new[order][1:] | is_new[order][:-1]
    for numbers in np.split(order, np.flatnonzero(begins) + 1):
        if numbers.size:
            first, size = int(numbers[0]), int(places.sizes[numbers].sum())
            yield Run(numbers, int(entries.starts[first]), size, places.new[first][0] if is_new[first] else None)


def _header(file: Described, places: _Places, runs: tuple[Run, ...]) -> bytes:
    """Write the header piece by piece: it may hold a million tensors."""
    header = BytesIO()
    header.write(bytes(8))
    mark = b"{"
    for member in _members(file.entries, places):
        header.write(mark)
        header.write(member)
        mark = b","
    header.write(b"}" if mark == b"," else b"{}")
    # The data's start modulo the block size for which most unchanged bytes keep their place in their block.
    wanted = (file.data_start - _commonest_shift(runs, places)) % BLOCK
    header.write(b" " * ((wanted - header.tell()) % BLOCK))
    length = header.tell() - 8
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{file.path}: its new header would be {length:,} bytes, over safetensors' limit of {MAX_HEADER_BYTES:,}.",
            "Split the checkpoint into shards.",
        )
    header.seek(0)
    header.write(length.to_bytes(8, "little"))
    return header.getvalue()


def _members(entries: Entries, places: _Places) -> Iterator[bytes]:
    """Yield the members of the new header as they stand there, in the order of the old one."""
    before = entries.metadata_place
    columns = (counted(column) for column in (entries.places, places.starts, places.sizes))
    for number, (place, start, size) in enumerate(zip(*columns, strict=True)):
        if before is not None and place > before:
            yield b'"__metadata__":' + compact_metadata(entries)
            before = None
        if start >= 0:
            member = read_member(entries.text, place)
            yield _member(member, places.new.get(number, (member.shape, member.dtype)), start, start + size)
    if before is not None:
        yield b'"__metadata__":' + compact_metadata(entries)


def _member(member: Member, kind: Kind, start: int, end: int) -> bytes:
    if member.value is None:
        return b'"%b":%b%d,%d]}' % (member.name, _described(*kind), start, end)
    value = {**member.value, "dtype": kind[1], "shape": kind[0], "data_offsets": [start, end]}
    return compact(member.name.decode()) + b":" + compact(value)


@lru_cache(1024)
def _described(shape: tuple[int, ...], dtype: str) -> bytes:
    return b'{"dtype":%b,"shape":%b,"data_offsets":[' % (compact(dtype), compact(shape))


def _commonest_shift(runs: tuple[Run, ...], places: _Places) -> int:
    sizes: dict[int, int] = {}
    for run in runs:
        if run.shape is None:
            shift = (int(places.starts[run.numbers[0]]) - run.start) % BLOCK
            sizes[shift] = sizes.get(shift, 0) + run.size
    return max(sizes, key=lambda shift: sizes[shift], default=0)
