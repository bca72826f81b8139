"""Read JSON files with checks, and edit their text in place.

Key order, formatting and all other bytes are kept.
"""

import json
import stat
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ctxextend.checkpoint.copy import reading
from ctxextend.errors import CheckpointError
from ctxextend.json_output import not_in_json

MAX_BYTES = 100_000_000  # far more than any side file needs; also safetensors' limit for headers
# Nested objects and lists: more than any config has, and below Python's recursion limit.
MAX_JSON_DEPTH = 100
MAX_ITEMS_SHOWN = 4  # of a list in messages
_DECODER = json.JSONDecoder()


def read_text(path: Path, errors: str = "strict") -> str:
    """Read a UTF-8 file, keeping its line endings.

    Args:
        path: The file.
        errors: What to do with other bytes, as in `bytes.decode`.

    Raises:
        CheckpointError: It cannot be read, is not a regular file, is too large, or is not UTF-8.
    """
    try:
        with reading(path):
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # a pipe blocks, and a device may never end
                message = f"{path} is not a regular file."
                raise CheckpointError(message, "Replace it with the file itself.")
            if status.st_size > MAX_BYTES:
                message = f"{path} has {status.st_size:,} bytes; the maximum is {MAX_BYTES:,}."
                raise CheckpointError(message, "Download the file again.")
            return path.read_bytes().decode("utf-8", errors)
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text (byte {error.start})."
        raise CheckpointError(message, "Download the file again.") from None


def load_object(path: Path) -> dict[str, Any]:
    """Read a file that contains one JSON object.

    Raises:
        CheckpointError: It cannot be read, or contains something else.
    """
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, dict):
        message = f"{path} is a JSON {type(value).__name__}, not an object."
        raise CheckpointError(message, "Download the file again.")
    return value


def parse_json(text: str, location: str) -> Any:
    """Parse one JSON value.

    Raises:
        CheckpointError: The text is not valid, has duplicate keys, or is nested too deeply.
    """
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
        level = [value]
        for _ in range(MAX_JSON_DEPTH + 1):
            below = list[Any]()
            for node in level:
                if isinstance(node, dict):
                    below += node.values()
                elif isinstance(node, list):
                    below += node
            level = below
        if level:
            raise RecursionError
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:  # also for a number with thousands of digits
        reason = str(error)
    else:
        return value
    message = f"{location} is not valid JSON: {reason}."
    raise CheckpointError(message, "Correct it, or download it again.")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members, as `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: A key is given twice, which JSON allows and readers do not agree about.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {key!r:.200}")
    return members


@dataclass(frozen=True)
class Edit:
    """One changed value in a JSON file."""

    file: str  # relative to the checkpoint's root
    path: tuple[str, ...] = field(metadata=not_in_json)
    before: Any  # None if the key was missing
    after: Any
    # Whether it is a number of tokens that texts are truncated to.
    is_limit: bool = field(default=False, metadata=not_in_json)
    is_generation: bool = field(default=False, metadata=not_in_json)  # of generated texts
    reason: str = ""  # shown to the user if the change is not obvious

    json_properties: ClassVar = ("key",)

    @property
    def key(self) -> str:
        """The key path, joined with dots."""
        return ".".join(self.path)


def shown_value(value: Any) -> str:
    """Return a value for messages: of a list of factors, how many there are."""
    if isinstance(value, list) and len(value) > MAX_ITEMS_SHOWN:
        return f"[{len(value)} numbers, {min(value):.4g} to {max(value):.4g}]"
    if isinstance(value, dict):
        items = (f"{key!r}: {_shown_item(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    return str(value)


def _shown_item(value: Any) -> str:
    """Return a value inside another for messages: text with quotes."""
    return repr(value) if isinstance(value, str) else shown_value(value)


class _Member(NamedTuple):
    """Where one member of an object is in the text."""

    start: int
    key_end: int
    value: int
    end: int


def edit(text: str, changes: Mapping[tuple[str, ...], Any]) -> str:
    """Return a JSON object's text with new values.

    Args:
        text: The text.
        changes: The new values, by path of keys. A missing key is appended to its object.

    Raises:
        CheckpointError: The text does not have the objects.
    """
    for (*above, key), value in changes.items():
        new = json.dumps(value, ensure_ascii=False)
        start, members = _members(text, above)
        if key in members:
            member = members[key]
            text = text[: member.value] + new + text[member.end :]
            continue
        end = start + 1
        comma = ""
        colon = ": "
        if members:
            first, *_ = members.values()
            *_, last = members.values()
            end = last.end
            colon = text[last.key_end : last.value]
            # A line break and its indentation; on a single line, a space if one follows each colon.
            comma = f",{text[start + 1 : first.start]}"
            if comma == "," and colon.endswith(" "):
                comma = ", "
        text = f"{text[:end]}{comma}{json.dumps(key)}{colon}{new}{text[end:]}"
    return text


def delete(text: str, key: str, names: Collection[str]) -> str:
    """Return a JSON object's text without some members of an object in it.

    If it has any of them, the text is indented by 2, as transformers writes it.

    Args:
        text: The text.
        key: The key of the object in it.
        names: The keys of the members.
    """
    content = json.loads(text)
    kept = {name: value for name, value in content[key].items() if name not in names}
    if len(kept) == len(content[key]):
        return text
    return json.dumps({**content, key: kept}, indent=2, ensure_ascii=False) + "\n"


def line_of_key(text: str, key: str) -> int | None:
    """Return the line of a key in a JSON object's text, from 1; None if it is not found.

    Args:
        text: The text.
        key: The path of keys, joined with dots; keys may contain dots themselves.

    Raises:
        CheckpointError: The text is not an object.
    """
    position = 0
    while True:
        _, members = _members(text, (), position)
        names = [name for name in members if f"{key}.".startswith(f"{name}.")]
        if not names:
            return None
        name = max(names, key=len)
        if name == key:
            return text.count("\n", 0, members[name].start) + 1
        key = key.removeprefix(f"{name}.")
        position = members[name].value


def _members(text: str, path: Sequence[str], start: int = 0) -> tuple[int, dict[str, _Member]]:
    """Return the start of the object at `path` in valid JSON text, and its members by key."""
    members: dict[str, _Member] = {}
    try:
        start = _skip(text, start)
        position = _skip(text, start + 1)
        while text[position] != "}":
            key, key_end = _DECODER.raw_decode(text, position)
            value = _skip(text, key_end)
            _, end = _DECODER.raw_decode(text, value)
            members[key] = _Member(position, key_end, value, end)
            position = _skip(text, end)
        if not path:
            return start, members
        return _members(text, path[1:], members[path[0]].value)
    except (LookupError, ValueError):
        message = "A JSON file changed while it was read."
        raise CheckpointError(message, "Run the command again.") from None


def _skip(text: str, position: int) -> int:
    """Return the start of the next token, after whitespace, commas and colons."""
    while text[position] in " \t\r\n,:":
        position += 1
    return position
