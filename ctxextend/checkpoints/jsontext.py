"""JSON files edited as text: values change, key order and formatting stay."""

import json
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from ctxextend.checkpoints.copying import reading
from ctxextend.errors import CheckpointError

__all__ = [
    "check_depth",
    "delete",
    "edit",
    "load_object",
    "open_brackets",
    "parse_json",
    "parse_object",
    "read_bytes",
    "read_member",
    "read_text",
]

Keys = Sequence[str]

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"[^\s,\]}]+")
# A quotation mark alone begins a string that does not end: looking for others behind it would take n * n steps.
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}

# Far more than any side file holds, and what safetensors allows for a header.
MOST_BYTES = 100_000_000
# Objects and lists in each other, far more than any config has.
DEEPEST = 100


def read_text(path: Path) -> str:
    """Read a UTF-8 file, line ends untouched.

    Raises:
        CheckpointError: It is missing, unreadable, or not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text (byte {error.start}).", "Fetch the file again.") from None


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        CheckpointError: It is missing or unreadable, no regular file, or longer than any text of a checkpoint.
    """
    with reading(path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for, and a device never ends
            raise CheckpointError(f"{path} is not a regular file.", "Put the file itself there.")
        if status.st_size > MOST_BYTES:
            raise CheckpointError(
                f"{path} has {status.st_size:,} bytes; no such file needs more than {MOST_BYTES:,}.",
                "Fetch the file again.",
            )
        return path.read_bytes()


def load_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        CheckpointError: It is missing, unreadable, not UTF-8, not JSON, or not an object.
    """
    value = parse_object(read_text(path), str(path))
    check_depth(value, str(path))
    return value


def check_depth(value: Any, where: str) -> None:
    """Raise CheckpointError where a JSON value is nested deeper than functions can follow it."""
    level = [value]
    for _ in range(DEEPEST):
        inside = (inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer))
        level = [inner for inner in inside if isinstance(inner, dict | list)]
        if not level:
            return
    raise CheckpointError(f"{where} is not valid JSON: it is nested too deeply.", "Fetch the file again.")


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parse one JSON object; `where` names it in messages.

    Raises:
        CheckpointError: `text` is not JSON, is not an object, or states a key twice.
    """
    value = parse_json(text, where)
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} holds a JSON {type(value).__name__}, not an object.", "Fetch the file again.")
    return value


def parse_json(text: str, where: str) -> Any:
    """Parse one JSON value; `where` names it in messages.

    Raises:
        CheckpointError: `text` is not JSON, or states a key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CheckpointError(f"{where} is not valid JSON: {reason}.", "Fetch the file again.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"key {next(key for key, count in counts.items() if count > 1)!r} stands twice in one object")
    return members


def open_brackets(text: str) -> int:
    """Return how many brackets of JSON or YAML are open at once at most, quotes not regarded."""
    steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", text))
    return max(accumulate(steps), default=0)


def read_member(text: str, key: str, where: str) -> Any:
    """Return the value of one key of the outermost object, or None, without parsing the rest of the text.

    Raises:
        CheckpointError: `text` is not a JSON object as far as it was read, or is cut short.
    """
    try:
        if not text.rstrip().endswith("}"):
            raise ValueError("it is cut short")
        found = _find(text, _object_start(text, ()), key)
        value = None if found is None else _DECODER.raw_decode(text, found.value_start)[0]
        check_depth([value], where)
        return value
    except (ValueError, IndexError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CheckpointError(f"{where} is not valid JSON: {reason}.", "Fetch the file again.") from None


def edit(text: str, changes: Mapping[tuple[str, ...], Any]) -> str:
    """Return the text with other values at some paths; a key that is missing in its object is put last.

    Args:
        text: One valid JSON object.
        changes: From the path of keys to the value wanted there; every object on the way must exist.
    """
    for keys, value in changes.items():
        text = _set(text, keys, json.dumps(value, ensure_ascii=False))
    return text


def delete(text: str, path: Keys, names: Collection[str]) -> str:
    """Return the text without some members of the object at `path`."""
    if not names:
        return text
    members = list(_members(text, _object_start(text, path)))
    kept = [i for i, member in enumerate(members) if member.key not in names]
    if len(kept) == len(members):
        return text
    pieces = [text[members[i].start : members[i + 1].start] for i in kept if i + 1 < len(members)]
    if kept and kept[-1] + 1 == len(members):
        pieces.append(text[members[-1].start : members[-1].value_end])
    elif kept:
        pieces[-1] = text[members[kept[-1]].start : members[kept[-1]].value_end]
    return text[: members[0].start] + "".join(pieces) + text[members[-1].value_end :]


class _Member(NamedTuple):
    """One member of an object: its key, and where key and value stand in the text."""

    key: str
    start: int
    key_end: int
    value_start: int
    value_end: int


def _set(text: str, keys: Keys, value: str) -> str:
    start = _object_start(text, keys[:-1])
    found = _find(text, start, keys[-1])
    if found:
        return text[: found.value_start] + value + text[found.value_end :]
    return _append(text, start, json.dumps(keys[-1]), value)


def _append(text: str, start: int, key: str, value: str) -> str:
    members = list(_members(text, start))
    if not members:
        return f"{text[: start + 1]}{key}: {value}{text[start + 1 :]}"
    last = members[-1]
    colon = text[last.key_end : last.value_start]
    # A line break and its indentation, or on one line the space that is usual behind a comma.
    space = text[start + 1 : members[0].start] or (" " if colon.endswith(" ") else "")
    return f"{text[: last.value_end]},{space}{key}{colon}{value}{text[last.value_end :]}"


def _object_start(text: str, path: Keys) -> int:
    position = _skip_space(text, 0)
    for key in path:
        found = _find(text, position, key)
        if found is None:
            raise CheckpointError(
                f"A JSON file has no {key!r} any more.", "It changed meanwhile: run the command again."
            )
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
        value_end = _value_end(text, value_start)
        yield _Member(key, position, key_end, value_start, value_end)
        position = _skip_space(text, value_end)
        if text[position] == ",":
            position = _skip_space(text, position + 1)


def _value_end(text: str, start: int) -> int:
    """Find where a value ends without building it: a vocabulary of 250,000 words costs no memory."""
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
