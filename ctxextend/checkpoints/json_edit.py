"""JSON files: read with checks, and edited in place so that key order, formatting and all other bytes stay.

Values are found by scanning the text, so that a tokenizer.json of 17 MB is never built in memory.
"""

import json
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ctxextend.checkpoints.copy import reading
from ctxextend.errors import CheckpointError

# Far more than any side file holds, and what safetensors allows for a header.
MAX_BYTES = 100_000_000
# Objects and lists in each other: more than any config has, and less than what recursive functions can follow.
MAX_DEPTH = 100

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"[^\s,\]}]+")
# A lone quotation mark begins a string that does not end: looking for others after it would take n * n steps.
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        CheckpointError: It is missing or unreadable, no regular file, or longer than any text of a checkpoint.
    """
    with reading(path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for, and a device never ends
            raise CheckpointError(f"{path} is not a regular file.", "Put the file itself there.")
        if status.st_size > MAX_BYTES:
            raise CheckpointError(
                f"{path} has {status.st_size:,} bytes; no such file needs more than {MAX_BYTES:,}.",
                "Fetch the file again.",
            )
        return path.read_bytes()


def read_text(path: Path) -> str:
    """Read a UTF-8 file, line ends untouched.

    Raises:
        CheckpointError: As `read_bytes`, or it is not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text (byte {error.start}).", "Fetch the file again.") from None


def load_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        CheckpointError: It is missing, unreadable, not UTF-8, not JSON, or not an object.
    """
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}, not an object.", "Fetch the file again.")
    return value


def parse_json(text: str, where: str) -> Any:
    """Parse one JSON value; `where` names it in messages.

    Raises:
        CheckpointError: `text` is not JSON, has a key twice in one object, or is nested deeper than can be followed.
    """
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
        level = [value]
        for _ in range(MAX_DEPTH + 1):
            level = [inner for outer in level for inner in _items(outer) if isinstance(inner, dict | list)]
        if level:
            raise RecursionError
        return value
    except RecursionError:
        raise _invalid(where, "it is nested too deeply") from None
    except ValueError as error:
        raise _invalid(where, str(error)) from None


def _items(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members; raise ValueError where a key stands twice. For `json.loads`."""
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = sorted(key for key, _ in pairs)
        repeated = next(key for key, following in pairwise(keys) if key == following)
        raise ValueError(f"key {repeated!r:.200} stands twice in one object")
    return members


def _invalid(where: str, reason: str) -> CheckpointError:
    return CheckpointError(f"{where} is not valid JSON: {reason}.", "Fetch the file again.")


def read_member(text: str, key: str, where: str) -> Any:
    """Return the value of one key of the outermost object, or None, without parsing the rest of the text.

    Raises:
        CheckpointError: `text` is not a JSON object as far as it was read, or is cut short.
    """
    try:
        if not text.rstrip().endswith("}"):
            raise ValueError("it is cut short")
        found = _find(text, _object_start(text, ()), key)
    except (ValueError, IndexError, RecursionError) as error:
        raise _invalid(where, str(error)) from None
    return None if found is None else parse_json(text[found.value_start : found.end], where)


def edit(text: str, changes: Mapping[tuple[str, ...], Any]) -> str:
    """Return the text with other values at some paths; a key that is missing in its object is put last.

    Args:
        text: One valid JSON object.
        changes: From the path of keys to the value wanted there; every object on the way must exist.
    """
    for keys, value in changes.items():
        start, new = _object_start(text, keys[:-1]), json.dumps(value, ensure_ascii=False)
        members = list(_members(text, start))
        found = next((member for member in members if member.key == keys[-1]), None)
        if found:
            text = text[: found.value_start] + new + text[found.end :]
        elif members:
            last = members[-1]
            colon = text[last.key_end : last.value_start]
            # A line break and its indentation, or on one line the space that is usual after a comma.
            space = text[start + 1 : members[0].start] or (" " if colon.endswith(" ") else "")
            text = f"{text[: last.end]},{space}{json.dumps(keys[-1])}{colon}{new}{text[last.end :]}"
        else:
            text = f"{text[: start + 1]}{json.dumps(keys[-1])}: {new}{text[start + 1 :]}"
    return text


def delete(text: str, path: Sequence[str], names: Collection[str]) -> str:
    """Return the text without some members of the object at `path`."""
    members = list(_members(text, _object_start(text, path)))
    kept = [member for member in members if member.key not in names]
    if len(kept) == len(members):
        return text
    # Between two members stands what stood between the first two: a comma, a line break and its indentation.
    between = text[members[0].end : members[1].start] if len(members) > 1 else ""
    left = between.join(text[member.start : member.end] for member in kept)
    return text[: members[0].start] + left + text[members[-1].end :]


class _Member(NamedTuple):
    """One member of an object: its key, and where key and value are in the text."""

    key: str
    start: int
    key_end: int
    value_start: int
    end: int


def _object_start(text: str, path: Sequence[str]) -> int:
    position = _skip_space(text, 0)
    for key in path:
        found = _find(text, position, key)
        if found is None:
            message = f"A JSON file has no {key!r} any more."
            raise CheckpointError(message, "It changed meanwhile: run the command again.")
        position = found.value_start
    return position


def _find(text: str, start: int, key: str) -> _Member | None:
    return next((member for member in _members(text, start) if member.key == key), None)


def _members(text: str, start: int) -> Iterator[_Member]:
    """Yield the members of the object whose brace stands at `start`, reading no further than asked."""
    position = _skip_space(text, start + 1)
    while text[position] != "}":
        key, key_end = _DECODER.raw_decode(text, position)
        value_start = _skip_space(text, text.index(":", key_end) + 1)
        end = _value_end(text, value_start)
        yield _Member(key, position, key_end, value_start, end)
        position = _skip_space(text, end)
        if text[position] == ",":
            position = _skip_space(text, position + 1)


def _value_end(text: str, start: int) -> int:
    """Find where a value ends without building it."""
    if text[start] not in '{["':
        scalar = _SCALAR.match(text, start)
        if scalar is None:
            raise ValueError(f"no value at character {start}")
        return scalar.end()
    depth = 0
    for token in _BRACKETS.finditer(text, start):
        if token.group() == '"':
            break
        depth += _STEPS.get(token.group(), 0)
        if depth == 0:
            return token.end()
    raise ValueError(f"the value at character {start} does not end")


def _skip_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position
