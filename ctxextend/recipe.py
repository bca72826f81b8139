"""One typed description of a run, and the YAML in which it is written beside every output."""

import operator
from dataclasses import dataclass
from typing import Any

import yaml

from ctxextend.errors import ResizeError
from ctxextend.tables.methods import MethodOptions

__all__ = ["DEFAULT_METHOD", "Recipe", "Resize"]

DEFAULT_METHOD = "copy"


@dataclass(frozen=True)
class Resize:
    """What to make of a position table.

    Attributes:
        to: Usable token positions wanted, ≥ 1; offset rows come on top.
        method: How new rows are made; None is `copy`, and all that a shorter table allows.
        keep_first: Positions at the start that the method neither reads nor changes.
        drop_last: Positions at the end that are no source for new rows.
        scope: For `sinusoidal`: ``new`` rows or ``all``.

    Raises:
        ResizeError: A value that no checkpoint could serve.
    """

    to: int
    method: str | None = None
    keep_first: int = 0
    drop_last: int = 0
    scope: str | None = None

    def __post_init__(self) -> None:
        for name in ("to", "keep_first", "drop_last"):
            object.__setattr__(self, name, _whole(getattr(self, name)))
        if isinstance(self.to, bool) or not isinstance(self.to, int) or self.to < 1:
            raise ResizeError(f"--to {self.to!r} is no length.", "Give a whole number of token positions, 1 or more.")
        _ = self.options

    @property
    def options(self) -> MethodOptions:
        """The method and its flags, checked."""
        return MethodOptions(self.method or DEFAULT_METHOD, self.keep_first, self.drop_last, self.scope)

    @property
    def method_flags(self) -> tuple[str, ...]:
        """The flags that were given and mean something only where new rows are made."""
        given = {
            "--method": self.method is not None,
            "--keep-first": self.keep_first > 0,
            "--drop-last": self.drop_last > 0,
            "--scope": self.scope is not None,
        }
        return tuple(flag for flag, is_given in given.items() if is_given)


def _whole(value: Any) -> Any:
    """Return numpy's whole numbers as Python's; anything else as it is."""
    return value if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)


@dataclass(frozen=True)
class Recipe:
    """The whole of what a user can ask for.

    Attributes:
        source: A folder, a bundled checkpoint's name, or a Hub id.
        resize: What to make of its position table.
        revision: A branch, tag or commit of the Hub.
    """

    source: str
    resize: Resize
    revision: str | None = None

    def to_yaml(self, makes_rows: bool, provenance: dict[str, Any]) -> str:
        """Write the recipe, and behind it how its output came about.

        Args:
            makes_rows: Whether the run made new rows; elsewhere the recipe must name no method.
            provenance: Plain values, for readers and for checks of the source.
        """
        content: dict[str, Any] = {"source": self.source}
        if self.revision is not None:
            content["revision"] = self.revision
        content["resize"] = {"to": self.resize.to} | (self._flags() if makes_rows else {})
        content["provenance"] = provenance
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)

    def _flags(self) -> dict[str, Any]:
        options = self.resize.options
        flags = {"method": options.method, "keep_first": options.keep_first, "drop_last": options.drop_last}
        return flags | options.flags
