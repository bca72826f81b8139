"""JSON files: read with checks, and edited in place so that key order, formatting and all other bytes stay."""

import json
import stat
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ctxextend.checkpoints.copy import reading
from ctxextend.errors import CheckpointError

MAX_BYTES = 100_000_000  # far more than any side file holds, and what safetensors allows for a header
# Objects and lists in each other: more than any config has, and less than what recursive functions can follow.
MAX_DEPTH = 100

_DECODER = json.JSONDecoder()


def read_bytes(path: Path) -> bytes:
    """Read a whole text file of a checkpoint."""
    with reading(path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for, and a device never ends
            raise CheckpointError(f"{path} is not a regular file.", "Put the file itself there.")
        if status.st_size > MAX_BYTES:
            what = f"{path} has {status.st_size:,} bytes; no such file needs more than {MAX_BYTES:,}."
            raise CheckpointError(what, "Fetch the file again.")
        return path.read_bytes()


def read_text(path: Path) -> str:
    """Read a UTF-8 file, line ends untouched."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text (byte {error.start}).", "Fetch the file again.") from None


def load_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object."""
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}, not an object.", "Fetch the file again.")
    return value


def parse_json(text: str, where: str) -> Any:
    """Parse one JSON value; a key that stands twice in one object, and deep nesting, are refused as invalid."""
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
        level = [value]
        for _ in range(MAX_DEPTH + 1):
            groups = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
            level = [one for group in groups for one in group]
        if level:
            raise RecursionError
        return value
    except (RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise CheckpointError(f"{where} is not valid JSON: {reason}.", "Fetch the file again.") from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members; raise ValueError where a key stands twice. For `json.loads`."""
    members = dict(pairs)
    if len(members) < len(pairs):
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {repeated!r:.200} stands twice in one object")
    return members


class _Member(NamedTuple):  # where one member of an object is in the text
    start: int
    key_end: int
    value: int
    end: int


def edit(text: str, changes: Mapping[tuple[str, ...], Any]) -> str:
    """Return a JSON object's text with other values at some paths; a key that is missing in its object is put last."""
    for path, value in changes.items():
        (start, members), new = _members(text, path[:-1]), json.dumps(value, ensure_ascii=False)
        if found := members.get(path[-1]):
            text = text[: found.value] + new + text[found.end :]
        elif members:
            first, last = next(iter(members.values())), next(reversed(members.values()))
            colon = text[last.key_end : last.value]
            # A line break and its indentation, or on one line the space that is usual after a comma.
            space = text[start + 1 : first.start] or (" " if colon.endswith(" ") else "")
            text = f"{text[: last.end]},{space}{json.dumps(path[-1])}{colon}{new}{text[last.end :]}"
        else:
            text = f"{text[: start + 1]}{json.dumps(path[-1])}: {new}{text[start + 1 :]}"
    return text


def delete(text: str, path: Sequence[str], names: Collection[str]) -> str:
    """Return a JSON object's text without some members of the object at `path`."""
    members = _members(text, path)[1]
    kept = [text[member.start : member.end] for key, member in members.items() if key not in names]
    if len(kept) == len(members):
        return text
    all_members = list(members.values())
    # Between two members stands what stood between the first two: a comma, a line break and its indentation.
    between = text[all_members[0].end : all_members[1].start] if len(members) > 1 else ""
    return text[: all_members[0].start] + between.join(kept) + text[all_members[-1].end :]


def _members(text: str, path: Sequence[str], start: int = 0) -> tuple[int, dict[str, _Member]]:
    """Return where the object at `path` begins, and its members by key; the text is valid JSON, or has changed."""
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
        raise CheckpointError("A JSON file changed while it was read.", "Run the command again.") from None


def _skip(text: str, position: int) -> int:
    """Return where the next token begins, behind white space and what separates members."""
    while text[position] in " \t\r\n,:":
        position += 1
    return position
