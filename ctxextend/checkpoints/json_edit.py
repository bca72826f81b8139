"""Read JSON files with checks, and edit their text in place: key order, formatting and all other
bytes are kept.
"""

import json
import stat
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ctxextend.checkpoints.copy import reading
from ctxextend.errors import CheckpointError

MAX_BYTES = 100_000_000  # far more than any side file needs; also safetensors' limit for headers
MAX_DEPTH = (
    100  # nested objects and lists: more than any config has, and below Python's recursion limit
)
_DECODER = json.JSONDecoder()


def read_bytes(path: Path) -> bytes:
    """Read a text file of a checkpoint as bytes."""
    with reading(path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe blocks, and a device may never end
            raise CheckpointError(
                f"{path} is not a regular file.", "Replace it with the file itself."
            )
        if status.st_size > MAX_BYTES:
            message = f"{path} has {status.st_size:,} bytes; the maximum is {MAX_BYTES:,}."
            raise CheckpointError(message, "Download the file again.")
        return path.read_bytes()


def read_text(path: Path) -> str:
    """Read a UTF-8 file, keeping its line endings."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path} is not UTF-8 text (byte {error.start}).", "Download the file again."
        ) from None


def load_object(path: Path) -> dict[str, Any]:
    """Read a file that contains one JSON object."""
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} is a JSON {type(value).__name__}, not an object.", "Download the file again."
        )
    return value


def parse_json(text: str, location: str) -> Any:
    """Parse one JSON value; raise CheckpointError also for duplicate keys and deep nesting."""
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
        level = [value]
        for _ in range(MAX_DEPTH + 1):
            nested = [node for node in level if isinstance(node, dict | list)]
            level = [
                value
                for node in nested
                for value in (node.values() if isinstance(node, dict) else node)
            ]
        if level:
            raise RecursionError
        return value
    except (RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise CheckpointError(
            f"{location} is not valid JSON: {reason}.", "Download the file again."
        ) from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members, as `object_pairs_hook` of `json.loads`; raise ValueError for
    duplicate keys.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError(
            f"duplicate key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r:.200}"
        )
    return members


class _Member(NamedTuple):  # positions of one member of an object in the text
    start: int
    key_end: int
    value: int
    end: int


def edit(text: str, changes: Mapping[tuple[str, ...], Any]) -> str:
    """Return a JSON object's text with new values at these paths; missing keys are appended to
    their object.
    """
    for path, value in changes.items():
        (start, members), new = _members(text, path[:-1]), json.dumps(value, ensure_ascii=False)
        if member := members.get(path[-1]):
            text = text[: member.value] + new + text[member.end :]
        elif members:
            first, last = next(iter(members.values())), next(reversed(members.values()))
            colon = text[last.key_end : last.value]
            # A line break and its indentation; on a single line, a space if one follows each colon.
            space = text[start + 1 : first.start] or (" " if colon.endswith(" ") else "")
            text = f"{text[: last.end]},{space}{json.dumps(path[-1])}{colon}{new}{text[last.end :]}"
        else:
            text = f"{text[: start + 1]}{json.dumps(path[-1])}: {new}{text[start + 1 :]}"
    return text


def delete(text: str, path: Sequence[str], names: Collection[str]) -> str:
    """Return a JSON object's text without the named members of the object at `path`."""
    members = _members(text, path)[1]
    kept = [text[member.start : member.end] for key, member in members.items() if key not in names]
    if len(kept) == len(members):
        return text
    all_members = list(members.values())
    # The text between the first two members: a comma, a line break and its indentation.
    separator = text[all_members[0].end : all_members[1].start] if len(members) > 1 else ""
    return text[: all_members[0].start] + separator.join(kept) + text[all_members[-1].end :]


def _members(text: str, path: Sequence[str], start: int = 0) -> tuple[int, dict[str, _Member]]:
    """Return the start of the object at `path` in valid JSON text, and its members by key."""
    members: dict[str, _Member] = {}
    try:
        start = _skip(text, start)
        position = _skip(text, start + 1)
        while text[position] != "}":
            key, key_end = _DECODER.raw_decode(text, position)
            value = _skip(text, key_end)
            end = _DECODER.raw_decode(text, value)[1]
            members[key] = _Member(position, key_end, value, end)
            position = _skip(text, end)
        return _members(text, path[1:], members[path[0]].value) if path else (start, members)
    except (LookupError, ValueError):
        raise CheckpointError(
            "A JSON file changed while it was read.", "Run the command again."
        ) from None


def _skip(text: str, position: int) -> int:
    """Return the start of the next token, after whitespace, commas and colons."""
    while text[position] in " \t\r\n,:":
        position += 1
    return position
