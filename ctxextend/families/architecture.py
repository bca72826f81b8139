"""A checkpoint's architecture: its families' tables, each at its place in the model and in the config."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ctxextend.errors import CheckpointError
from ctxextend.families.schema import Buffer, Family, Table

__all__ = ["Architecture", "Place", "Refusal", "nested"]

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """One table of a family, where a certain model has it.

    Attributes:
        table: The table.
        family: Its family.
        part: What it is called in this model, with dots where parts have parts; empty where it is the only one.
        prefixes: What may stand in front of its name.
        path: The keys that lead to its config.
        overrides: Keys that lead to configs whose values transformers prefers.
        config: The whole config.
        tokenizer: The folder of the tokenizer whose texts it reads; empty is the model's own, None where another part,
            without such a table, reads those first.
        usual_prefix: What stands in front of its name in files that transformers writes of the model itself.
    """

    table: Table
    family: Family
    part: str
    prefixes: tuple[str, ...]
    path: Keys
    overrides: tuple[Keys, ...]
    config: Mapping[str, Any]
    tokenizer: str | None = ""
    usual_prefix: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that the table can have in a file."""
        return tuple(dict.fromkeys(prefix + self.table.name for prefix in self.prefixes))

    @property
    def usual_name(self) -> str:
        """The name that it has in files that transformers writes of the model itself."""
        return self.usual_prefix + self.table.name

    @property
    def config_key(self) -> str:
        """The key that states its length, with dots."""
        return ".".join((*self.path, self.table.config_key))

    @property
    def offset(self) -> int:
        """How many of its rows stand in front of position 0.

        Raises:
            CheckpointError: The key that decides it is not a whole number ≥ 0.
        """
        rule = self.table.offset
        return rule.rows + (self.value(rule.config_key) if rule.config_key else 0)

    def stated(self, key: str) -> Any:
        """Return what the config says for a key of this model's own config; None where it says nothing."""
        return nested(self.config, (*self._obeyed, *key.split(".")))

    @property
    def _obeyed(self) -> Keys:
        """Where its config stands: an overriding one takes the place of the other, and its gaps are not filled."""
        overriding = (path for path in self.overrides if isinstance(nested(self.config, path), Mapping))
        return next(overriding, self.path)

    def value(self, key: str) -> int:
        """Return the whole number that the config states for a key, or transformers' default for it.

        Raises:
            CheckpointError: It is neither stated nor known, or not a whole number ≥ 0.
        """
        value = self.stated(key)
        value = self.family.defaults.get(key) if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CheckpointError(
                f"config.json: {'.'.join((*self.path, key))} is {value!r}, and a {self.family.model_type} model needs "
                "a whole number there.",
                "Correct config.json.",
            )
        return value

    @property
    def obeyed_key(self) -> str:
        """The key of its own config that transformers obeys: an alias, where one is stated, wins."""
        stated = (key for key in reversed(self.table.aliases) if self.stated(key) is not None)
        return next(stated, self.table.config_key)

    @property
    def obeyed_path(self) -> Keys:
        """The keys that lead to the length that transformers obeys."""
        return (*self._obeyed, *self.obeyed_key.split("."))

    def paths_of(self, key: str) -> tuple[Keys, ...]:
        """Return where a key must state a new value: in its own config, and in the one that overrides it."""
        split = tuple(key.split("."))
        return tuple(dict.fromkeys(((*self.path, *split), (*self._obeyed, *split))))

    @property
    def length_paths(self) -> tuple[Keys, ...]:
        """Where a new length must be stated: by its own key, and by other names of it that are stated now."""
        others = (*self.table.aliases, *self.table.unused_keys)
        keys = (self.table.config_key, *(key for key in others if self.stated(key) is not None))
        return tuple(path for key in keys for path in self.paths_of(key))

    def key_value(self, positions: int) -> int:
        """Return what the key says for so many usable positions."""
        inside = self.offset if self.table.offset.inside_key else 0
        return positions + self.table.ahead + inside

    def rows(self, value: int) -> int:
        """Return the table's rows where the key says `value`."""
        return value if self.table.offset.inside_key else value + self.offset

    def positions(self, rows: int) -> int:
        """Return how many positions so many rows are."""
        return rows - self.offset - self.table.ahead

    def buffer(self, name: str) -> Buffer | None:
        """Return the buffer of exactly that name, with or without a prefix, or None."""
        if not name.endswith(self._endings):
            return None
        return next((buffer for buffer in self.table.buffers if self._has(buffer, name)), None)

    @cached_property
    def _endings(self) -> tuple[str, ...]:
        """How the buffers' names end: of the names in a file, which may be a million, nearly all end otherwise."""
        return tuple(buffer.name.rpartition("*")[2] for buffer in self.table.buffers)

    def _has(self, buffer: Buffer, name: str) -> bool:
        before, star, after = buffer.name.partition("*")
        for prefix in self.prefixes:
            start = prefix + before
            if not star and name == start:
                return True
            layer = name[len(start) : len(name) - len(after)]
            if star and name == start + layer + after and layer.isdecimal() and layer.isascii():
                return True
        return False


@dataclass(frozen=True)
class Refusal:
    """A model in this model that has no learned table.

    Attributes:
        part: What it is called; empty for the outermost.
        message: What it uses instead.
        advice: What to do.
        reads_tokens: Whether it reads texts all the same.
    """

    part: str
    message: str
    advice: str
    reads_tokens: bool = False


@dataclass(frozen=True)
class Architecture:
    """What the registry knows of one model.

    Attributes:
        family: The family of the outermost model.
        places: Every table that it can have; a file need not hold all.
        refusals: Those of its parts that have none.
    """

    family: Family
    places: tuple[Place, ...]
    refusals: tuple[Refusal, ...] = ()


def nested(config: Mapping[str, Any], path: Keys) -> Any:
    """Return the value at a path of keys; None where the path ends early."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
