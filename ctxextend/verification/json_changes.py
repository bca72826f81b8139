"""The differences between two JSON values."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ctxextend.positions.positions import Keys

MISSING = object()  # the value of a key that does not exist
MAX_VALUE_TEXT = 60  # characters

# Keys that no model uses.
INFORMATIONAL_KEYS = {("transformers_version",), ("_name_or_path",), ("_from_model_config",)}


class ValueChange(NamedTuple):
    """A value that differs between two JSON values."""

    path: Keys  # keys, and indices of lists as text
    before: Any  # `MISSING` if there is none
    after: Any


def changed_values(before: Any, after: Any, path: Keys = ()) -> Iterator[ValueChange]:
    """Yield every difference between two JSON values; 4 and 4.0 are equal, 1 and true are not."""
    if type(before) is type(after) and isinstance(before, dict | list):
        old = _items(before)
        new = _items(after)
        for key in dict.fromkeys((*old, *new)):
            inside = (*path, str(key))
            yield from changed_values(old.get(key, MISSING), new.get(key, MISSING), inside)
    elif before != after or not _have_one_type(before, after):
        yield ValueChange(path, before, after)


def json_text(value: Any) -> str:
    """Return a value as JSON for messages, shortened if it is long."""
    if value is MISSING:
        return "missing"
    text = json.dumps(value)
    if len(text) > MAX_VALUE_TEXT:
        return f"{text[: MAX_VALUE_TEXT - 3]}..."
    return text


def _items(value: dict[str, Any] | list[Any]) -> Mapping[Any, Any]:
    """Return the items of a list by index, or those of an object."""
    return dict(enumerate(value)) if isinstance(value, list) else value


def _have_one_type(first: Any, second: Any) -> bool:
    """Whether two values have the same JSON type: integers and floats are both numbers."""
    if type(first) is type(second):
        return True
    return type(first) in (int, float) and type(second) in (int, float)
