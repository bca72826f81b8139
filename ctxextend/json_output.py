"""Results as plain values, for ``--json`` and for files."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# For `dataclasses.field(metadata=...)`: the field is left out of the JSON; {"json": NAME} gives it another name there.
not_in_json: Mapping[str, Any] = {"json": False}


def to_json(value: Any) -> Any:
    """Return a result as plain values that `json.dumps` takes.

    A dataclass becomes an object of its fields, in their order, without those marked with `not_in_json`, then of the
    properties that its class names in ``json_properties``, then of what its method ``json_more`` returns. Numbers that
    are not finite become null. A value without a form in JSON raises TypeError.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        marked = {field.name: field.metadata.get("json", field.name) for field in dataclasses.fields(value)}
        keys = {key: name for name, key in marked.items() if key}
        keys |= {name: name for name in getattr(value, "json_properties", ())}
        more = to_json(value.json_more()) if hasattr(value, "json_more") else {}
        return {key: to_json(getattr(value, name)) for key, name in keys.items()} | more
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset | set):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # arrays and scalars of numpy
        return to_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{type(value).__name__} has no form in JSON")


class Result:
    """What the library returns: equal where its JSON is, times apart, and shown on one line by some attributes."""

    _shown: str

    def __init_subclass__(cls, shows: str) -> None:
        cls._shown = shows

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints, as plain values, without the version of the schema and the command's name."""
        return {"warnings": list(getattr(self, "warnings", ())), **to_json(self)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return bool(_timeless(self.to_json()) == _timeless(other.to_json()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown.split())
        return f"{type(self).__name__}({shown})"


def _timeless(value: Any) -> Any:
    """Return plain values without what differs from run to run."""
    if isinstance(value, dict):
        measured = ("seconds", "peak_bytes", "tokens_per_second")
        return {key: _timeless(item) for key, item in value.items() if key not in measured}
    return list(map(_timeless, value)) if isinstance(value, list) else value
