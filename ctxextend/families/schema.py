"""The words in which a family is described, and how names and lengths follow from it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ctxextend.errors import CheckpointError

__all__ = ["Buffer", "Family", "Offset", "Table"]


@dataclass(frozen=True)
class Offset:
    """The rule for the rows in front of position 0.

    Attributes:
        rows: Rows that are always there.
        config_key: Key whose value counts as further rows; None where the offset is constant.
        inside_key: True where the length in the config counts the offset rows (514 rows, 512 positions).
    """

    rows: int = 0
    config_key: str | None = None
    inside_key: bool = False


@dataclass(frozen=True)
class Table:
    """One learned position table.

    Attributes:
        name: Its tensor, without the model's prefix.
        config_key: The key that states its length.
        aliases: Other names of that key, which transformers obeys too.
        unused_keys: Keys that state the same length and that transformers no longer reads.
        offset: The rows in front of position 0.
    """

    name: str
    config_key: str
    aliases: tuple[str, ...] = ()
    unused_keys: tuple[str, ...] = ()
    offset: Offset = Offset()

    def length_keys(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the keys that must state a new length: its own, and those others that the config states now."""
        others = (key for key in (*self.aliases, *self.unused_keys) if config.get(key) is not None)
        return (self.config_key, *others)

    def stated_length(self, positions: int, offset_rows: int) -> int:
        """Return what these keys say for so many usable positions."""
        return positions + offset_rows if self.offset.inside_key else positions


@dataclass(frozen=True)
class Buffer:
    """A tensor sized by the context length that is no weight: dropped from files, made anew in loaded models.

    Attributes:
        name: Its tensor, without the model's prefix; ``*`` stands for a layer's number.
        content: What it holds in a loaded model of shape (1, rows); ``mask`` is in old files only.
    """

    name: str
    content: Literal["arange", "zeros", "mask"]


@dataclass(frozen=True)
class Family:
    """The facts about one model type.

    Attributes:
        model_type: As in config.json.
        prefixes: What may stand in front of every tensor name: with a head, and bare.
        tables: Its position tables.
        buffers: Its position buffers.
        defaults: Values that transformers takes for config keys that are left out.
        requires: Values that keys must have, where present, for the table to be in use.
    """

    model_type: str
    prefixes: tuple[str, ...]
    tables: tuple[Table, ...]
    buffers: tuple[Buffer, ...]
    defaults: Mapping[str, int]
    requires: Mapping[str, str]

    def table_names(self, table: Table) -> tuple[str, ...]:
        """Return every name that the table can have in a file."""
        return tuple(prefix + table.name for prefix in self.prefixes)

    def buffer(self, name: str) -> Buffer | None:
        """Return the buffer of exactly that name, with or without a prefix, or None."""
        return next((buffer for buffer in self.buffers if self._is_buffer(buffer, name)), None)

    def _is_buffer(self, buffer: Buffer, name: str) -> bool:
        pattern = re.escape(buffer.name).replace(r"\*", r"\d+")
        return any(re.fullmatch(re.escape(prefix) + pattern, name) for prefix in self.prefixes)

    def offset_rows(self, table: Table, config: Mapping[str, Any]) -> int:
        """Return how many rows of the table stand in front of position 0.

        Raises:
            CheckpointError: The key that decides it is not a number.
        """
        key = table.offset.config_key
        return table.offset.rows + (self.config_value(key, config) if key else 0)

    def config_value(self, key: str, config: Mapping[str, Any]) -> int:
        """Return the whole number that the config states for a key, or transformers' default for it.

        Raises:
            CheckpointError: It is neither stated nor known, or not a whole number ≥ 0.
        """
        value = config.get(key, self.defaults.get(key))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CheckpointError(
                f"config.json: {key} is {value!r}, and a {self.model_type} model needs a whole number there.",
                "Correct config.json.",
            )
        return value
