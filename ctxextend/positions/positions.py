"""The positions of a model, of any kind: where they are, and how their lengths count."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ctxextend.errors import CheckpointError
from ctxextend.positions.facts import (
    LENGTH,
    NO_ROWS,
    Buffer,
    ConfigCondition,
    EngineKey,
    Family,
    ReservedRows,
    RotaryFacts,
)

Keys = tuple[str, ...]

UNKNOWN = Family("")
# Keys of the config of a language model, inside that of a larger model.
LANGUAGE_CONFIGS = ("text_config", "language_config", "llm_config")


def whole_number(value: Any) -> int | None:
    """Return an integer, also one that is written as 512.0; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def positive_numbers(value: Any) -> list[int]:
    """Return the integers above 0 of a value or list."""
    values = value if isinstance(value, list) else [value]
    return [number for number in values if type(number) is int and number > 0]


def nested(config: Mapping[str, Any], path: Keys) -> Any:
    """Return the value at a path of keys; None if the path does not exist."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model, which may be inside another one, with its location in weights and config."""

    family: Family = UNKNOWN
    config: Mapping[str, Any] = field(default_factory=dict)  # the whole config.json
    path: Keys = ()  # keys of its config
    overrides: tuple[Keys, ...] = ()  # keys of configs that take precedence in transformers
    part: str = ""  # its name inside the whole model, with dots if nested; empty for the whole
    prefixes: tuple[str, ...] = ("",)  # possible prefixes of its tensor names
    usual_prefix: str = ""  # prefix in files that transformers saves
    # Folder of its tokenizer; empty: the model's tokenizer; None: another part reads the tokens.
    tokenizer: str | None = ""
    file: str = "config.json"  # that states the config, for messages

    @property
    def _effective_path(self) -> Keys:
        """Keys of the config that transformers uses: an override replaces the other one."""
        for path in self.overrides:
            if isinstance(nested(self.config, path), Mapping):
                return path
        return self.path

    def stated(self, key: str) -> Any:
        """Return the value of a key in this model's config; None if it is missing."""
        return nested(self.config, (*self._effective_path, *key.split(".")))

    def value(self, key: str) -> int:
        """Return the integer ≥ 0 of a key in this model's config, or transformers' default.

        Raises:
            CheckpointError: It is anything else, or there is neither.
        """
        value = self.stated(key)
        if value is None:
            value = self.family.defaults.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            path = ".".join((*self.path, key))
            model = f"for a {self.family.model_type} model"
            message = f"{self.file}: {path} must be an integer {model}, got {value!r:.100}."
            raise CheckpointError(message, f"Correct {self.file}.")
        return value

    def paths_of(self, key: str) -> tuple[Keys, ...]:
        """Return the paths at which to set a key.

        They are in this model's config and, last, in the one that transformers uses.
        """
        keys = key.split(".")
        paths = ((*self.path, *keys), (*self._effective_path, *keys))
        return tuple(dict.fromkeys(paths))

    def around(self) -> Iterator[Keys]:
        """Yield the paths of configs around a language model's, which may state the same values."""
        if self.path and self.path[-1].endswith(LANGUAGE_CONFIGS):
            for depth in range(len(self.path)):
                yield self.path[:depth]


@dataclass(frozen=True, kw_only=True)
class Positions(Model):
    """Positions of one kind.

    An entry of the registry has what is true of a model type. `families.lookup` adds where they
    are in a config, and `found_in` the name and size that they have in a checkpoint.
    """

    config_key: str = LENGTH  # key of its length, in the model's own config
    aliases: tuple[str, ...] = ()  # other names of the key that transformers accepts
    unused_keys: tuple[str, ...] = ()  # keys of the same length that transformers no longer reads
    # Keys that an output states even if its source does not.
    engine_keys: tuple[EngineKey, ...] = ()
    reserved: ReservedRows = NO_ROWS
    # Of types with several kinds of positions: when a model has this one. Falcon has ALiBi with
    # ``alibi`` true, else rotary positions.
    when: ConfigCondition | None = None
    longer_inputs: str = "run"  # what happens to inputs beyond the length; see the kinds
    # The length of the first training, as the user states it, in tokens.
    trained_length: int | None = None
    # Lengths that other files and keys state, if the settings do not tell, in tokens.
    seen_lengths: tuple[int, ...] = ()
    # Whether scaled rotary settings must not be stated as ``rope_scaling``, since an engine joins
    # this config with another one and fails.
    without_scaling_key: bool = False

    name: str = ""  # in the checkpoint: a tensor, or without rows a key of the config
    rows: int = 0  # reserved rows included; 0 without a table
    hidden_size: int = 0  # columns; 0 without a table
    dtype: str = ""  # as the file or the model spells it; empty if the rows are not stored
    weights_file: str = ""  # relative to the root; empty if the rows are not stored

    scheme: ClassVar[str]  # learned, sinusoidal, rotary, ALiBi, relative or none
    has_rows: ClassVar = False
    is_computed: ClassVar = False
    ignores_stored_rows: ClassVar = False
    tensor: ClassVar[str] = ""
    extra_rows: ClassVar[int] = 0
    buffers: ClassVar[tuple[Buffer, ...]] = ()
    rope: ClassVar[RotaryFacts | None] = None
    initial_layout: ClassVar[str] = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that they can have in a checkpoint."""
        return (self.usual_name,)

    @property
    def usual_name(self) -> str:
        """Their name in files that transformers saves."""
        return self.length_key

    @property
    def length_key(self) -> str:
        """The key of the length in the whole config, with dots."""
        return ".".join((*self.path, self.config_key))

    @property
    def reserved_rows(self) -> int:
        """The number of reserved rows before position 0."""
        if self.reserved.config_key is None:
            return self.reserved.rows
        return self.reserved.rows + self.value(self.reserved.config_key)

    @property
    def effective_key(self) -> str:
        """The key that transformers uses: aliases take precedence if the config has them."""
        for key in reversed(self.aliases):
            if self.stated(key) is not None:
                return key
        return self.config_key

    @property
    def path_in_use(self) -> Keys:
        """The path at which transformers reads the length."""
        return self.paths_of(self.effective_key)[-1]

    @property
    def length_paths(self) -> tuple[Keys, ...]:
        """The paths at which to set a new length.

        They are its key, others of it that the config has, and those that other engines need.
        """
        paths = list(self.paths_of(self.config_key))
        for key in (*self.aliases, *self.unused_keys):
            if self.stated(key) is not None:
                paths += self.paths_of(key)
        paths += [path for path, key in self.engine_paths.items() if not key.value]
        return tuple(paths)

    @property
    def engine_paths(self) -> dict[Keys, EngineKey]:
        """The keys that other engines need, by path.

        They read such a type only as a whole model: inside another one, it has no more keys than
        its config states.
        """
        paths = dict[Keys, EngineKey]()
        for key in self.engine_keys:
            if not self.path or self.stated(key.name) is not None:
                paths |= dict.fromkeys(self.paths_of(key.name), key)
        return paths

    def key_value(self, positions: int) -> int:
        """Return the value of the key for a number of usable positions."""
        value = positions + self.extra_rows
        if self.reserved.inside_key:
            value += self.reserved_rows
        return value

    def rows_for(self, value: int) -> int:
        """Return the number of rows for a value of the key."""
        return value if self.reserved.inside_key else value + self.reserved_rows

    def positions_in(self, rows: int) -> int:
        """Return the number of usable positions for a number of rows."""
        return rows - self.reserved_rows - self.extra_rows

    def buffer(self, name: str) -> Buffer | None:
        """Return the buffer with exactly this tensor name, with or without a prefix, or None."""
        names = (name, re.sub(r"\b[0-9]+\b", "*", name))
        for buffer in self.buffers:
            if any(prefix + buffer.name in names for prefix in self.prefixes):
                return buffer
        return None

    def after_first_position(self) -> "Positions":
        """Return them in a model whose tokens have the positions from 1 on."""
        return self
