"""A safetensors header kept as its bytes: what it says of a tensor is read where that is asked for.

A million tensors as objects would take many times the memory of their header. So all that is held beside its bytes is
where each tensor stands in them, its byte range, and a hash of its name.
"""

import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["BITS", "FLOAT_DTYPES", "Entries", "Member", "TensorEntry", "read_entries", "read_member"]

FLOAT_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
}

BITS: Mapping[str, int] = {
    **{name: dtype.itemsize * 8 for name, dtype in FLOAT_DTYPES.items()},
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "C64": 64},
    **{"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64},
}

# A tensor as safetensors and json.dumps write it; one that is written otherwise is read by the JSON decoder.
_NUMBER = rb"(?:0|[1-9][0-9]{0,17})"
_USUAL = re.compile(
    rb'"([^"\\\x00-\x1f]*)": ?\{"dtype": ?"([A-Z0-9_]+)", ?"shape": ?\[((?:%b(?:, ?%b){0,15})?)\], ?'
    rb'"data_offsets": ?\[(%b), ?(%b)\]\}' % ((_NUMBER,) * 4)
)
_NAME = re.compile(rb'"([^"\\\x00-\x1f]*)"')
_METADATA, _NULL = b'"__metadata__"', b"null"
_SPACE = re.compile(rb"[ \t\r\n]*")

_NO_TEXTS = "its __metadata__ is not a mapping of texts"

# Bytes that are given to the JSON decoder at once, more only where a value does not end in these. What describes a
# tensor must end in the last: JSON of nested lists takes 20 times the memory of its text.
PIECES = (1 << 10, 1 << 16)


@dataclass(frozen=True, slots=True)
class TensorEntry:
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


class Member(NamedTuple):
    """One tensor as it stands in a header.

    Attributes:
        name: In UTF-8.
        dtype: As safetensors spells it.
        shape: Its dimensions.
        start: Its first byte, counted from the end of the header.
        end: The byte behind its last.
        stop: The header's byte behind the member.
        value: All that is said of it, where that is not written as usual; else None.
    """

    name: bytes
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    stop: int
    value: Mapping[str, Any] | None = None


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
        return (_name_at(self.text, place).decode() for place in counted(self.places))

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
        hashed = hash(wanted)
        first, behind = (int(np.searchsorted(self.hashes, hashed, side)) for side in ("left", "right"))
        found = self.numbers[first:behind].tolist()
        return next((number for number in found if _name_at(self.text, self.places[number]) == wanted), None)

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
    if not text.startswith(b"{", _behind_space(text, 0)):
        raise ValueError("its header is not an object")
    found = _Found(text)
    stop = _walk(text, 0, found.read)
    if _behind_space(text, stop) < len(text):
        raise _no_json("something behind its end", stop)
    hashes = np.asarray(found.hashes, np.int64)
    numbers = np.argsort(hashes, kind="stable").astype(np.uint32)
    places, starts, ends = np.asarray(found.places), np.asarray(found.starts), np.asarray(found.ends)
    entries = Entries(text, places, starts, ends, hashes[numbers], numbers, found.metadata_place)
    _check_unique(entries)
    return entries


def read_member(text: bytes, place: int) -> Member:
    """Read the tensor whose name begins at a byte of a header.

    Raises:
        ValueError: It is not described as a tensor.
    """
    found = _USUAL.match(text, place)
    if found is None:
        return _unusual(text, place)
    name, dtype, shape, start, end = found.groups()
    return Member(name, dtype.decode(), _shape(shape), int(start), int(end), found.end())


def compact_metadata(entries: Entries) -> bytes:
    """Return what ``__metadata__`` holds as JSON, formatted as in every header; ``null`` without it."""
    pieces, place = bytearray(), entries.metadata_place
    if place is None or entries.text.startswith(_NULL, place):
        return _NULL

    def append(place: int) -> int:
        *texts, stop = _pair(entries.text, place)
        pieces.extend(b",%b:%b" % tuple(map(compact, texts)))
        return stop

    _walk(entries.text, place, append)
    pieces[:1] = b"{"
    return bytes(pieces or b"{") + b"}"


def counted(numbers: NDArray[Any]) -> Iterable[int]:
    """Return an array's whole numbers one by one, without a list of all."""
    return memoryview(numbers)  # type: ignore[arg-type]


def compact(value: Any) -> bytes:
    """Return JSON as safetensors writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class _Found:
    """What was read of a header so far."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.places, self.starts, self.ends, self.hashes = array("I"), array("q"), array("q"), array("q")
        self.metadata_place: int | None = None

    def read(self, place: int) -> int:
        """Read the member at a byte and return the byte behind it."""
        if self.text.startswith(_METADATA, place):
            return self._metadata(_value_place(self.text, place))
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
        if self.text.startswith(_NULL, place):
            return place + len(_NULL)
        if not self.text.startswith(b"{", place):
            raise ValueError(_NO_TEXTS)
        keys = array("q")

        def count(place: int) -> int:
            key, _, stop = _pair(self.text, place)
            keys.append(hash(key))
            return stop

        stop = _walk(self.text, place, count)
        if len(np.unique(keys)) < len(keys):
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
        names = [_name_at(entries.text, int(entries.places[number])) for number in entries.numbers[first : first + 2]]
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


@lru_cache(1024)
def _shape(text: bytes) -> tuple[int, ...]:
    return tuple(map(int, text.split(b","))) if text else ()


def _unusual(text: bytes, place: int) -> Member:
    """Read a tensor that is written otherwise: with other keys, another order, more space, or escapes in its name."""
    name, _ = _decoded(text, place)
    value, stop = _decoded(text, _value_place(text, place))
    try:
        dtype, shape, (start, end) = value["dtype"], value["shape"], value["data_offsets"]
        more = [inner for key, inner in value.items() if key not in ("dtype", "shape", "data_offsets")]
        numbers = [*shape, start, end]
        if not isinstance(dtype, str) or not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise ValueError
        if not isinstance(shape, list) or any(isinstance(inner, list | dict) for inner in more):
            raise ValueError
        compact(value)
        return Member(name.encode(), dtype, tuple(shape), start, end, stop, value)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"its header describes {name!r:.200} in a way that cannot be read") from None


def _pair(text: bytes, place: int) -> tuple[str, str, int]:
    """Read a text and its name, and return them with the byte behind them."""
    key, _ = _decoded(text, place)
    value_place = _value_place(text, place)
    if not text.startswith(b'"', value_place):
        raise ValueError(_NO_TEXTS)
    value, stop = _decoded(text, value_place, len(text))
    if not isinstance(key, str) or not (_is_text(key) and _is_text(value)):
        raise ValueError(_NO_TEXTS)
    return key, value, stop


def _is_text(value: str) -> bool:
    """Whether it can be written: half a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_at(text: bytes, place: int) -> bytes:
    found = _NAME.match(text, place)
    return found[1] if found else str(_decoded(text, place)[0]).encode()


def _value_place(text: bytes, place: int) -> int:
    """Return where the value of the member begins whose name does at `place`."""
    found = _NAME.match(text, place)
    return _behind(text, found.end() if found else _decoded(text, place)[1], b":")


def _walk(text: bytes, place: int, read: Callable[[int], int]) -> int:
    """Have the members of an object read one by one: `read` is given where one begins, and returns where it ends.

    Returns:
        The byte behind the object.
    """
    place = _behind(text, place, b"{")
    if text.startswith(b"}", place):
        return place + 1
    while True:
        place = read(place)
        if text.startswith(b',"', place):
            place += 1
            continue
        place = _behind_space(text, place)
        if text.startswith(b"}", place):
            return place + 1
        place = _behind(text, place, b",")


def _behind(text: bytes, place: int, mark: bytes) -> int:
    """Return where what stands behind a punctuation mark begins, with or without space around it."""
    place = _behind_space(text, place)
    if not text.startswith(mark, place):
        raise _no_json(f"no {mark.decode()!r}", place)
    return _behind_space(text, place + 1)


def _behind_space(text: bytes, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _decoded(text: bytes, place: int, limit: int = PIECES[-1]) -> tuple[Any, int]:
    """Return the JSON value that begins at a byte, of at most so many bytes, and the byte behind it."""
    for size in (*PIECES, limit):
        piece = text[place : place + size].decode("utf-8", "ignore")
        is_cut = place + size < len(text)
        try:
            value, stop = _DECODER.raw_decode(piece)
        except json.JSONDecodeError as error:
            if is_cut and size < limit:
                continue
            what = f"a value of more than {limit:,} bytes" if is_cut else error.msg
            raise _no_json(what, place) from None
        except RecursionError:
            raise _no_json("nested too deeply", place) from None
        except ValueError as error:
            raise _no_json(str(error), place) from None
        if stop < len(piece) or not is_cut:
            return value, place + len(piece[:stop].encode())
    raise _no_json(f"a value of more than {limit:,} bytes", place)


def _no_json(what: str, place: int) -> ValueError:
    return ValueError(f"its header is not valid JSON: {what}, at byte {place:,}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return members


def _whole(text: str) -> int | float:
    """Return a number; -0 is none that counts bytes."""
    return -0.0 if text == "-0" else int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.20} is no number")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
