"""Conversion of results to JSON values, for ``--json`` and files."""

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from ctxextend.notes import Note

# For `dataclasses.field(metadata=...)`. {"json": NAME} renames a field in the JSON.
not_in_json: Mapping[str, Any] = {"json": False}


def to_json(value: Any) -> Any:
    """Convert a result to plain values that `json.dumps` accepts.

    A dataclass becomes an object of its fields in order, except those marked with `not_in_json`.
    The properties listed in ``json_properties`` and the keys returned by ``json_more`` follow. NaN
    and infinity become null.

    Raises:
        TypeError: A value has no JSON equivalent.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object_of(value)
    if isinstance(value, Note):
        return value._asdict()
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset | set):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return to_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{type(value).__name__} cannot be converted to JSON")


def _object_of(value: Any) -> dict[str, Any]:
    content = dict[str, Any]()
    for field in dataclasses.fields(value):
        marked = field.metadata.get("json", field.name)
        if marked is False:
            continue
        content[marked] = to_json(getattr(value, field.name))
    for name in getattr(value, "json_properties", ()):
        content[name] = to_json(getattr(value, name))
    if hasattr(value, "json_more"):
        content |= to_json(value.json_more())
    return content


class Result:
    """Base class of results: they print as the screen of their command, with a one-line repr."""

    _repr_names: tuple[str, ...]

    def __init_subclass__(cls, shows: tuple[str, ...]) -> None:
        cls._repr_names = shows

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may be wrong; most results have a field of this name instead."""
        return ()

    def to_json(self) -> dict[str, Any]:
        """Return the plain values that ``--json`` prints, without schema version and command.

        Of an inspection, ``--json`` prints fewer.
        """
        return {"warnings": list(self.warnings), **to_json(self)}

    def __str__(self) -> str:
        # The module with the screens of the command line knows every result.
        return str(import_module("ctxextend.cli.result_screens").as_text(self))

    def __repr__(self) -> str:
        attributes = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._repr_names)
        return f"{type(self).__name__}({attributes})"
