"""A safetensors header as text: its members are read one by one from its bytes, and never all at once.

JSON of nested lists takes 20 times the memory of its text, so nothing but a short piece of a header is given to the
JSON decoder.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = [
    "METADATA",
    "NO_TEXTS",
    "NULL",
    "Member",
    "behind_space",
    "compact",
    "name_at",
    "no_json",
    "read_member",
    "read_pair",
    "value_place",
    "walk",
]

# A tensor as safetensors and json.dumps write it; one that is written otherwise is read by the JSON decoder.
_NUMBER = rb"(?:0|[1-9][0-9]{0,17})"
_USUAL = re.compile(
    rb'"([^"\\\x00-\x1f]*)": ?\{"dtype": ?"([A-Z0-9_]+)", ?"shape": ?\[((?:%b(?:, ?%b){0,15})?)\], ?'
    rb'"data_offsets": ?\[(%b), ?(%b)\]\}' % ((_NUMBER,) * 4)
)
_NAME = re.compile(rb'"([^"\\\x00-\x1f]*)"')
_PAIR = re.compile(rb'"([^"\\\x00-\x1f]{0,1000})": ?"([^"\\\x00-\x1f]{0,1000})"')
# Where a short text with escapes, or a short object of no objects, is likely to end.
_SHORT = re.compile(rb'"[^"\\\x00-\x1f]{0,400}(?:\\.[^"\\\x00-\x1f]{0,400}){0,50}"|\{[^{}\\]{0,1000}\}')
METADATA, NULL = b'"__metadata__"', b"null"
_SPACE = re.compile(rb"[ \t\r\n]*")

NO_TEXTS = "its __metadata__ is not a mapping of texts"

# Bytes that are given to the JSON decoder at first, more only where a value does not end in these, and the most that a
# name or description of a tensor may take.
FIRST_PIECE, MAX_MEMBER_BYTES = 1 << 10, 1 << 16


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


def compact(value: Any) -> bytes:
    """Return JSON as safetensors writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@lru_cache(1024)
def _shape(text: bytes) -> tuple[int, ...]:
    return tuple(map(int, text.split(b","))) if text else ()


def _unusual(text: bytes, place: int) -> Member:
    """Read a tensor that is written otherwise: with other keys, another order, more space, or escapes in its name."""
    name, behind = _decoded(text, place)
    value, stop = _decoded(text, _behind(text, behind, b":"))
    # Half a surrogate pair can be written in this way alone.
    is_text = text.find(b"\\u", place, stop) < 0 or _is_text(json.dumps([name, value], ensure_ascii=False))
    if not (isinstance(name, str) and name != "__metadata__" and is_text and _is_description(value)):
        raise ValueError(f"its header describes {name!r:.200} in a way that cannot be read")
    start, end = value["data_offsets"]
    return Member(name.encode(), value["dtype"], tuple(value["shape"]), start, end, stop, value)


def _is_description(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    shape, offsets = value.get("shape"), value.get("data_offsets")
    if not (isinstance(value.get("dtype"), str) and isinstance(shape, list) and isinstance(offsets, list)):
        return False
    has_more = sum(isinstance(inner, list | dict) for inner in value.values()) > 2
    numbers = all(type(number) is int and 0 <= number < 2**63 for number in (*shape, *offsets))
    return len(offsets) == 2 and numbers and not has_more


def read_pair(text: bytes, place: int) -> tuple[str, str, int]:
    """Return the name and the text of a member of ``__metadata__``, and the byte behind it.

    Raises:
        ValueError: It is no text.
    """
    found = _PAIR.match(text, place)
    if found is not None:
        return found[1].decode(), found[2].decode(), found.end()
    key, behind = _decoded(text, place)
    behind = _behind(text, behind, b":")
    if not text.startswith(b'"', behind):
        raise ValueError(NO_TEXTS)
    value, stop = _decoded(text, behind, len(text))
    if not isinstance(key, str) or not (_is_text(key) and _is_text(value)):
        raise ValueError(NO_TEXTS)
    return key, value, stop


def _is_text(value: str) -> bool:
    """Whether it can be written: half a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_at(text: bytes, place: int) -> bytes:
    """Return the name of the member that begins at a byte, in UTF-8."""
    found = _NAME.match(text, place)
    return found[1] if found else str(_decoded(text, place)[0]).encode()


def value_place(text: bytes, place: int) -> int:
    """Return where the value of the member begins whose name does at `place`."""
    found = _NAME.match(text, place)
    return _behind(text, found.end() if found else _decoded(text, place)[1], b":")


def walk(text: bytes, place: int, read: Callable[[int], int]) -> int:
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
        place = behind_space(text, place)
        if text.startswith(b"}", place):
            return place + 1
        place = _behind(text, place, b",")


def _behind(text: bytes, place: int, mark: bytes) -> int:
    """Return where what stands behind a punctuation mark begins, with or without space around it."""
    place = behind_space(text, place)
    if not text.startswith(mark, place):
        raise no_json(f"no {mark.decode()!r}", place)
    return behind_space(text, place + 1)


def behind_space(text: bytes, place: int) -> int:
    """Return where what is no space begins, not before a byte."""
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _decoded(text: bytes, place: int, limit: int = MAX_MEMBER_BYTES) -> tuple[Any, int]:
    """Return the JSON value that begins at a byte, of at most so many bytes, and the byte behind it."""
    short = _SHORT.match(text, place, place + FIRST_PIECE)
    # One byte more, by which a value that ends there is known to do so.
    size = short.end() - place + 1 if short else FIRST_PIECE
    while True:
        piece = text[place : place + size].decode("utf-8", "ignore")
        is_cut = place + size < len(text)
        try:
            value, stop = _DECODER.raw_decode(piece)
            if stop < len(piece) or not is_cut:
                return value, place + len(piece[:stop].encode())
        except RecursionError:
            raise no_json("nested too deeply", place) from None
        except ValueError as error:
            if not (is_cut and isinstance(error, json.JSONDecodeError)):
                raise no_json(getattr(error, "msg", str(error)), place) from None
        if size >= limit:
            raise no_json(f"a value of more than {limit:,} bytes", place)
        size = size * 8 if size >= FIRST_PIECE else FIRST_PIECE


def no_json(what: str, place: int) -> ValueError:
    """Return the error of a header that breaks JSON's rules at a byte."""
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
