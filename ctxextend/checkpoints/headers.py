"""A safetensors header kept as its bytes: what it says of a tensor is read where that is asked for.

A million tensors as objects would take many times the memory of their header. So all that is held beside its bytes is
where each tensor stands in them, its byte range, and a hash of its name.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.dtypes import BITS
from ctxextend.checkpoints.headertext import (
    METADATA,
    NO_TEXTS,
    NULL,
    Member,
    behind_space,
    compact,
    name_at,
    no_json,
    read_member,
    read_pair,
    value_place,
    walk,
)

__all__ = ["Entries", "TensorEntry", "compact_metadata", "counted", "name_hash", "read_entries"]


class TensorEntry(NamedTuple):
    """One tensor of a file.

    Attributes:
        name: As in the header.
        dtype: As safetensors spells it (F32, BF16, …).
        shape: Its dimensions.
        start: Its first byte, counted from the end of the header.
        end: The byte behind its last.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return self.end - self.start


@dataclass(frozen=True, eq=False)
class Entries(Mapping[str, TensorEntry]):
    """The tensors of a header by name, in its order.

    Attributes:
        text: The header's bytes.
        places: Where each tensor's member begins in them, shape (n,).
        starts: Each tensor's first byte, counted from the end of the header, shape (n,).
        ends: The byte behind its last, shape (n,).
        hashes: The hashes of their names, sorted, shape (n,).
        numbers: The number of the tensor that each hash is of, shape (n,).
        metadata_place: Where the value of ``__metadata__`` begins in `text`; None without one.
    """

    text: bytes
    places: NDArray[np.uint32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    hashes: NDArray[np.int64]
    numbers: NDArray[np.uint32]
    metadata_place: int | None

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[str]:
        return (name_at(self.text, place).decode() for place in counted(self.places))

    def __getitem__(self, name: str) -> TensorEntry:
        number = self.number(name)
        if number is None:
            raise KeyError(name)
        return self.entry(number)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.number(name) is not None

    def values(self) -> ValuesView[TensorEntry]:
        """Return the tensors, in the header's order."""
        return _Values(self)

    @property
    def size(self) -> int:
        """Bytes that all of them take."""
        return int((self.ends - self.starts).sum())

    @property
    def metadata(self) -> dict[str, str] | None:
        """What ``__metadata__`` holds; None without it."""
        found: dict[str, str] | None = json.loads(compact_metadata(self))
        return found

    def number(self, name: str) -> int | None:
        """Return which tensor of the header has a name, counted from 0; None where none has."""
        wanted = name.encode("utf-8", "surrogatepass")
        hashed = name_hash(name)
        first, behind = (int(np.searchsorted(self.hashes, hashed, side)) for side in ("left", "right"))
        found = self.numbers[first:behind].tolist()
        return next((number for number in found if name_at(self.text, self.places[number]) == wanted), None)

    def entry(self, number: int) -> TensorEntry:
        """Return a tensor by its number."""
        member = read_member(self.text, int(self.places[number]))
        return TensorEntry(member.name.decode(), *member[1:5])

    def in_order_of_bytes(self) -> NDArray[np.intp]:
        """Return the tensors' numbers in the order of their bytes, shape (n,)."""
        return np.lexsort((self.ends, self.starts))


class _Values(ValuesView[TensorEntry]):
    """The tensors read one behind the other, none looked up by its name."""

    _mapping: Entries

    def __iter__(self) -> Iterator[TensorEntry]:
        return map(self._mapping.entry, range(len(self._mapping)))


def read_entries(text: bytes) -> Entries:
    """Read a whole header and check each tensor by itself; whether they fill the file is not looked at.

    Args:
        text: UTF-8.

    Raises:
        ValueError: It is no header, in words that go on from the file's name.
    """
    if not text.startswith(b"{", behind_space(text, 0)):
        raise ValueError("its header is not an object")
    found = _Found(text)
    stop = walk(text, 0, found.read)
    if behind_space(text, stop) < len(text):
        raise no_json("something behind its end", stop)
    hashes = np.asarray(found.hashes, np.int64)
    numbers = np.argsort(hashes, kind="stable").astype(np.uint32)
    places, starts, ends = np.asarray(found.places), np.asarray(found.starts), np.asarray(found.ends)
    entries = Entries(text, places, starts, ends, hashes[numbers], numbers, found.metadata_place)
    _check_unique(entries)
    return entries


def compact_metadata(entries: Entries) -> bytes:
    """Return what ``__metadata__`` holds as JSON, formatted as in every header; ``null`` without it."""
    pieces, place = bytearray(), entries.metadata_place
    if place is None or entries.text.startswith(NULL, place):
        return NULL

    def append(place: int) -> int:
        *texts, stop = read_pair(entries.text, place)
        pieces.extend(b",%b:%b" % tuple(map(compact, texts)))
        return stop

    walk(entries.text, place, append)
    pieces[:1] = b"{"
    return bytes(pieces or b"{") + b"}"


def name_hash(name: str) -> int:
    """Return the hash of a tensor's name, as in `Entries.hashes`."""
    return hash(name.encode("utf-8", "surrogatepass"))


def counted(numbers: NDArray[Any]) -> Iterable[int]:
    """Return an array's whole numbers one by one, without a list of all."""
    return memoryview(numbers)  # type: ignore[arg-type]


class _Found:
    """What was read of a header so far."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.places, self.starts, self.ends, self.hashes = array("I"), array("q"), array("q"), array("q")
        self.metadata_place: int | None = None

    def read(self, place: int) -> int:
        """Read the member at a byte and return the byte behind it."""
        if self.text.startswith(METADATA, place):
            return self._metadata(value_place(self.text, place))
        member = read_member(self.text, place)
        _check_size(member)
        self.places.append(place)
        self.starts.append(member.start)
        self.ends.append(member.end)
        self.hashes.append(hash(member.name))
        return member.stop

    def _metadata(self, place: int) -> int:
        if self.metadata_place is not None:
            raise ValueError("its header is not valid JSON: key '__metadata__' stands twice in one object")
        self.metadata_place = place
        if self.text.startswith(NULL, place):
            return place + len(NULL)
        if not self.text.startswith(b"{", place):
            raise ValueError(NO_TEXTS)
        keys = array("q")

        def count(place: int) -> int:
            key, _, stop = read_pair(self.text, place)
            keys.append(hash(key))
            return stop

        stop = walk(self.text, place, count)
        # Not np.unique, which would import numpy.ma.
        if (np.diff(np.sort(keys)) == 0).any():
            raise ValueError("its __metadata__ states a key twice")
        return stop


def _check_size(member: Member) -> None:
    size = member.end - member.start
    bits = (_usual_bits if member.value is None else _bits)(member.dtype, member.shape)
    if bits == size * 8:
        return
    name, shape = member.name.decode(), str(list(member.shape))
    if member.dtype not in BITS:
        raise ValueError(f"{name!r:.200} has the unknown dtype {member.dtype!r:.200}")
    raise ValueError(f"{name!r:.200} is {member.dtype} {shape:.200}, which does not fill its {size:,} bytes")


def _check_unique(entries: Entries) -> None:
    """Refuse a name that stands twice: its hash does, next to itself."""
    for first in np.flatnonzero(entries.hashes[1:] == entries.hashes[:-1]):
        names = [name_at(entries.text, int(entries.places[number])) for number in entries.numbers[first : first + 2]]
        if names[0] == names[1]:
            name = names[0].decode()
            raise ValueError(f"its header is not valid JSON: key {name!r:.200} stands twice in one object")


def _bits(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bits that a tensor takes; -1 where the dtype is not known or 64 bits cannot count them."""
    if dtype not in BITS:
        return -1
    count = 1
    for size in shape:
        count *= size
        if count >= 2**64:
            return -1
    return count * BITS[dtype]


_usual_bits = lru_cache(1024)(_bits)
