"""The positions of a model, of any kind: where they are, and how their lengths count."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ctxextend.errors import CheckpointError, ResizeError, UnsupportedModelError
from ctxextend.json_output import not_in_json
from ctxextend.notes import Note
from ctxextend.positions.facts import (
    LENGTH,
    NO_ROWS,
    Buffer,
    ConfigCondition,
    EngineKey,
    Family,
    ReservedRows,
)
from ctxextend.tables.method_facts import LIMITS
from ctxextend.tables.rope_types import NONE, Parameters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctxextend.checkpoint.checkpoint import Checkpoint
    from ctxextend.checkpoint.safetensors_file import TensorEntry
    from ctxextend.positions.change import Change, NewTensor
    from ctxextend.positions.position_report import PositionReport
    from ctxextend.provenance import Step
    from ctxextend.settings import Resize
    from ctxextend.tables.frequencies import Frequencies

Keys = tuple[str, ...]
ConfigValues = dict[Keys, Any]  # new values of a config by path of keys; None: no key

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


def with_values(config: Any, changes: Mapping[Keys, Any]) -> Any:
    """Return a config with other values, by path of keys, whose objects are created.

    None stands for a missing key: `nested` returns it for both.
    """
    for path, value in changes.items():
        if path:
            values = dict(config) if isinstance(config, Mapping) else {}
            values[path[0]] = with_values(values.get(path[0]), {path[1:]: value})
            value = values
        config = value
    return config


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model, which may be inside another one, with its location in weights and config."""

    family: Family = UNKNOWN
    config: Mapping[str, Any] = field(default_factory=dict)  # the whole config.json
    path: Keys = ()  # keys of its config
    override: Keys | None = None  # keys of the config that transformers uses instead
    part: str = ""  # its name inside the whole model, with dots if nested; empty for the whole
    prefixes: tuple[str, ...] = ("",)  # possible prefixes of its tensor names
    usual_prefix: str = ""  # prefix in files that transformers saves
    # Folder of its tokenizer; empty: the model's tokenizer; None: another part reads the tokens.
    tokenizer: str | None = ""
    file: str = "config.json"  # that states the config, for messages
    # The position of its first token. With 1, an input of the trained length reaches a position
    # beyond it, which already has the frequencies of longer inputs where these follow the length.
    first_position: int = 0

    def stated(self, key: str) -> Any:
        """Return the value of a key in this model's config; None if it is missing."""
        return nested(self.config, (*(self.override or self.path), *key.split(".")))

    def stated_or_default(self, key: str) -> Any:
        """Return the value of a key in this model's config, or transformers' default, if any."""
        value = self.stated(key)
        return self.family.defaults.get(key) if value is None else value

    def value(self, key: str) -> int:
        """Return the integer ≥ 0 of a key in this model's config, or transformers' default.

        Raises:
            CheckpointError: It is anything else, or there is neither.
        """
        value = self.stated_or_default(key)
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
        paths = (self.path, self.override or self.path)
        return tuple(dict.fromkeys((*path, *keys) for path in paths))

    def outer_paths(self) -> Iterator[Keys]:
        """Yield the paths of configs around a language model's, which may state the same values."""
        if self.path and self.path[-1].endswith(LANGUAGE_CONFIGS):
            for depth in range(len(self.path)):
                yield self.path[:depth]


@dataclass(frozen=True)
class PositionLengths:
    """The lengths of one kind of positions, in tokens: usable positions, without reserved ones.

    A model was first trained at 1024 tokens, and its ``yarn`` settings have factor 4, so that it
    serves 4096. Its context follows from the length that its config key states:

    - Stated 4096, the context is 4096.
    - Stated 2048, the context is 2048: engines read the key.
    - Stated 32768, the context is 4096: the settings serve no more.

    With ``linear`` or ``dynamic`` settings, the key may state 1024, the length before scaling
    (`key_is_first_trained`). Then the context is 4096: engines multiply the key by the factor.
    """

    first_trained: int  # of the first training, before any scaling
    stated: int  # by the config key of the length
    served: int  # up to which the settings need no further scaling
    # Whether the config key states the length before scaling.
    key_is_first_trained: bool = field(default=False, metadata=not_in_json)
    # Why the settings do not tell which length the config key states, and how to say it; empty if
    # they do.
    question: str = field(default="", metadata=not_in_json)
    answer: str = field(default="", metadata=not_in_json)

    @property
    def context(self) -> int:
        """The context length that engines read from the folder: at most what the settings serve."""
        if self.key_is_first_trained:
            return self.served
        return min(self.stated, self.served)


@dataclass(frozen=True)
class PositionComparison:
    """What positions of a checkpoint have that is not as planned, and what they have, as texts."""

    faults: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def _not_stored() -> "NDArray[Any]":
    raise AssertionError("no rows are stored")


@dataclass(frozen=True, kw_only=True)
class Positions(Model):
    """Positions of one kind.

    An entry of the registry has what is true of a model type. `families.registry` adds where they
    are in a config, and `sized_in` the name and size that they have in a checkpoint.

    A kind of positions has a `scheme`, its `lengths`, and what a resize makes of it: `change`. One
    with rows (`Rows`) also has names, a size and tensors; one with settings (`Rotary`) also states
    and compares them. Everything else has a default that fits positions without either.
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
    # Whether the config is that of a loaded model, which states rotary settings in one dialect.
    is_loaded: bool = False

    name: str = ""  # in the checkpoint: a tensor, or without rows a key of the config
    no_lm: str = ""  # why the model is not a language model; empty if it is one
    rows: int = 0  # reserved rows included; 0 without a table
    hidden_size: int = 0  # columns; 0 without a table
    dtype: str = ""  # as the file or the model spells it; empty if the rows are not stored
    weights_file: str = ""  # relative to the root; empty if the rows are not stored
    # Returns the stored values, shape (rows, hidden_size); it may raise CheckpointError.
    read: "Callable[[], NDArray[Any]]" = field(default=_not_stored, compare=False, repr=False)

    # What follows from these values.
    usual_name: str = field(init=False, default="")  # in files that transformers saves
    names: tuple[str, ...] = field(init=False, default=())  # all that they can have in a checkpoint
    length_key: str = field(init=False, default="")  # key of the length in the whole config
    # The key that transformers uses: aliases take precedence if the config has them.
    effective_key: str = field(init=False, default="")
    reserved_rows: int = field(init=False, default=0)  # rows before position 0
    other_rows: int = field(init=False, default=0)  # all rows that are no positions
    counted_rows: int = field(init=False, default=0)  # those that the key of the length counts

    scheme: ClassVar[str]  # learned, sinusoidal, rotary, ALiBi, relative or none
    # Raises CheckpointError if the config states no valid length, or malformed settings.
    lengths: ClassVar[PositionLengths]
    # Whether longer inputs fail, so that a tokenizer without a limit gets one.
    longer_inputs_fail: ClassVar = False
    is_computed: ClassVar = False
    ignores_stored_rows: ClassVar = False
    tensor: ClassVar[str] = ""
    settings_key: ClassVar[str] = ""  # of rotary settings
    multiple_of: ClassVar[str | None] = None  # key whose value must divide the length
    rotates: ClassVar[bool] = False  # whether rows are rotary angles
    stored_rows: ClassVar[str] = "trained"  # what transformers does with rows in a file
    extra_rows: ClassVar[int] = 0
    buffers: ClassVar[tuple[Buffer, ...]] = ()
    layout: ClassVar[str] = ""  # of sinusoids, if any
    layout_key: ClassVar[str | None] = None  # key that is true if the model starts with them
    initial_layout: ClassVar[str] = ""
    methods: ClassVar[tuple[str, ...]] = ()  # that scale them by settings in the config
    unscaled_name: ClassVar[str] = ""  # in rules of engines, if not the scheme
    dialects: ClassVar[tuple[str, ...]] = ()
    rope_types: ClassVar[Collection[str]] = ()  # of settings that rotate nothing
    layers: ClassVar[tuple[Any, ...]] = ()
    unchanged_method: ClassVar[str] = LIMITS  # of a resize to the length that they have
    needs_no_limit: ClassVar = False  # whether generated texts may exceed the length
    owner: ClassVar[str] = "model"  # of the length, as users call it
    layout_text: ClassVar[str] = ""  # how sinusoids are laid out, for lists of model types

    def __post_init__(self) -> None:
        if self.family is UNKNOWN:  # an entry of the registry, which is in no config yet
            return
        own = nested(self.config, self.override or self.path)
        stated = own if isinstance(own, Mapping) else {}
        usual_name = ".".join((*self.path, self.settings_key or self.config_key))
        names: tuple[str, ...] = (usual_name,)
        if self.tensor:
            usual_name = self.usual_prefix + self.tensor
            names = tuple(dict.fromkeys(prefix + self.tensor for prefix in self.prefixes))
        aliases = list[str]()
        for key in self.aliases:
            if nested(stated, tuple(key.split("."))) is not None:
                aliases.append(key)
        reserved = self.reserved.rows
        if self.reserved.config_key is not None:
            count = stated.get(self.reserved.config_key)
            if count is None:
                count = self.family.defaults.get(self.reserved.config_key)
            reserved += count if type(count) is int else 0  # `Rows.check_rows` refuses others
        counted = reserved if self.reserved.inside_key else 0
        values = {
            "usual_name": usual_name,
            "names": names,
            "length_key": ".".join((*self.path, self.config_key)),
            "effective_key": [self.config_key, *aliases][-1],
            "reserved_rows": reserved,
            "other_rows": reserved + self.extra_rows,
            "counted_rows": counted + self.extra_rows,
        }
        if self.layout and (self.layout_key is None or stated.get(self.layout_key)):
            values |= {"initial_layout": self.layout, "scheme": "sinusoidal"}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def names_among(self, names: Collection[str], *, is_only: bool) -> list[str]:
        """Return the names that they have in a model.

        Positions without a tensor have the key of the config as their name. There are no names if
        the model lacks a table, and several if it is not clear which tensor is the table.

        Args:
            names: The names of the model's tensors.
            is_only: Whether the model has no other positions.
        """
        return [self.usual_name]

    def sized_in(self, checkpoint: "Checkpoint") -> Self:
        """Return them with the size that a checkpoint has under their name.

        Raises:
            CheckpointError: The stored tensor has an invalid shape or dtype, or the config does not
                state the shape of a computed table.
        """
        return self

    @cached_property
    def engine_paths(self) -> Mapping[Keys, EngineKey]:
        """The keys that other engines need, by path.

        They read such a type only as a whole model: inside another one, it has no more keys than
        its config states.
        """
        paths = dict[Keys, EngineKey]()
        for key in self.engine_keys:
            if not self.path or self.stated(key.name) is not None:
                paths |= dict.fromkeys(self.paths_of(key.name), key)
        return paths

    @cached_property
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
    def path_in_use(self) -> Keys:
        """The path at which transformers reads the length."""
        return self.paths_of(self.effective_key)[-1]

    def key_value(self, positions: int) -> int:
        """Return the value of the key for a number of usable positions."""
        return positions + self.counted_rows

    def length_of_key(self, value: int) -> int:
        """Return the number of usable positions for a value of the key."""
        return value - self.counted_rows

    def buffer(self, name: str) -> Buffer | None:
        """Return the buffer with this tensor name, with or without a prefix, or None.

        ``*`` in its own name stands for the number of a layer.
        """
        names = (name, re.sub(r"\b[0-9]+\b", "*", name))
        for buffer in self.buffers:
            if any(prefix + buffer.name in names for prefix in self.prefixes):
                return buffer
        return None

    @property
    def stated_length(self) -> int:
        """The length that the config states, in usable positions."""
        return self.length_of_key(self.value(self.effective_key))

    def length(self) -> int:
        """Return the context length, in usable positions.

        Raises:
            CheckpointError: The config states no valid length.
        """
        length = self.lengths.context
        if length < 1:
            message = f"{self.file}: {self.length_key} must be at least 1, got {length}."
            raise CheckpointError(message, f"Correct {self.file}.")
        return length

    def change(self, settings: "Resize", after: int, *, has_others: bool = False) -> "Change":
        """Return what changes at another length.

        Args:
            settings: With the method of these positions.
            after: The new number of usable positions.
            has_others: Whether the model has other positions that a resize of them would change.

        Raises:
            CheckpointError: The config states another length, or rows cannot be read.
            ResizeError: A setting does not apply, or the length cannot be had.
        """
        raise NotImplementedError

    def resized(self, change: "Change", values: "NDArray[Any] | None" = None) -> "NDArray[Any]":
        """Return the stored table after a change, shape (rows_after, hidden_size).

        Args:
            change: What changes; it may extend only the first rows (`rows_before`).
            values: The stored values; by default they are read.

        Raises:
            CheckpointError: The rows cannot be read.
            ResizeError: The new table does not fit in memory.
        """
        raise NotImplementedError

    def new_buffer(self, entry: "TensorEntry", buffer: Buffer, length: int) -> "NewTensor":
        """Return a position buffer at another length.

        Args:
            entry: The buffer as it is stored.
            buffer: What it contains.
            length: The number of usable positions.

        Raises:
            CheckpointError: The stored tensor has another dtype or shape than such buffers have.
        """
        raise NotImplementedError

    def report(
        self, checkpoint: "Checkpoint", recipe: "Step | None", parameters: int
    ) -> "PositionReport":
        """Return their lengths, and what is measured of their rows or frequencies.

        Args:
            checkpoint: The checkpoint.
            recipe: The resize that made it, if any.
            parameters: The number of its parameters.

        Raises:
            CheckpointError: The rows cannot be read, or the rotary settings are invalid.
        """
        from ctxextend.positions.position_report import report_scheme

        return report_scheme(self)

    def frequencies(self, parameters: Parameters, tokens: int) -> "Frequencies":
        """Return the frequencies of rotary settings in inputs of a number of tokens."""
        raise NotImplementedError

    def compare(self, change: "Change", now: Self) -> PositionComparison:
        """Compare what a config says of positions of a checkpoint with what a change planned.

        Positions without settings or computed rows have nothing to compare: the result says so.

        Args:
            change: What changes.
            now: The positions as the checkpoint has them.
        """
        what = "no positions" if self.scheme == NONE else f"{self.scheme} positions"
        return PositionComparison(findings=[f"{self.name}: {what}, no settings changed"])

    def settings_paths(self, change: "Change") -> list[Keys]:
        """Return the paths of the keys that state rotary settings, in both dialects, if any."""
        return []

    def change_to_none(self, after: int, source: str) -> "Change":
        """Return the change to settings that rotate nothing, in all layers, of rotary positions.

        Args:
            after: The length, in tokens.
            source: The reference of the checkpoint, for messages.

        Raises:
            UnsupportedModelError: The positions are not rotary.
            MethodError: No settings of the classes stop the rotation.
        """
        name = f"{source} ({self.family.model_type})"
        if self.scheme == NONE:
            message = f"{name} has no positions already."
            hint = "For longer inputs, raise its length limits with ctxextend resize."
            raise UnsupportedModelError(message, hint)
        message = (
            f"{name} cannot be converted to no positions: its positions are {self.scheme}, and "
            "only rotary ones are removed by settings."
        )
        hint = "Resize it instead, with ctxextend resize."
        raise UnsupportedModelError(message, hint)

    def check_rows(self, *, has_config: bool = True) -> None:
        """Check that a table has a position, and the rows that its config states.

        Args:
            has_config: Whether the number of rows must be that of the config.

        Raises:
            CheckpointError: It does not.
        """

    def values_of_length(self, length: int) -> tuple[int, ...]:
        """Return the values of limits that agree with a length, and so follow when it changes.

        They are this length, and what its key states, which can be a length before scaling.
        """
        return (length, self.value(self.effective_key))

    def notes(self, change: "Change", *, generates: bool) -> Iterator[Note]:
        """Yield what to know of new rotary settings; of other positions, nothing.

        Args:
            change: What changes.
            generates: Whether the model generates text, so that an input can grow.
        """
        return iter(())

    def hint_to_shorten(self, after: int) -> str:
        """Return what to do instead of a resize to a length that the model already accepts."""
        if not self.file.endswith(".json"):
            return f"To use less memory, tell the engine to read {after} tokens (-c in llama.cpp)."
        limit = f'"model_max_length": {after}'
        return f"To truncate texts at {after} tokens, set {limit} in tokenizer_config.json."

    def as_computed(self) -> Self:
        """Return them with the size of rows that transformers computes, if it computes any.

        Raises:
            CheckpointError: The config does not state the shape of a computed table.
        """
        return self

    def as_none_if_unrotated(self) -> "Positions":
        """Return positions of scheme ``none`` instead of rotary ones that rotate nothing."""
        return self

    def values_for(
        self, settings: Mapping[str, Parameters], length: int | None = None
    ) -> ConfigValues:
        """Return the config values that give layers other rotary settings, in both dialects.

        Args:
            settings: New settings by type of layers; others stay.
            length: The length that the config states with them; by default it stays.
        """
        return {}

    def reason_to_state(self, path: Keys) -> str:
        """Return why a changed config states a value that it did not, for users; else nothing."""
        return ""


def of_part(found: Sequence[Positions], part: str | None) -> list[Positions]:
    """Return the positions of one part of a model, or all if `part` is None.

    Args:
        found: All positions of the model that can be resized.
        part: The part.

    Raises:
        ResizeError: The model does not have the part, or nothing to resize in it.
    """
    if part is None:
        return list(found)
    selected = [item for item in found if f"{item.part}.".startswith(f"{part}.")]
    if selected:
        return selected
    message = f"--part {part}: this model has no such part with positions of tokens."
    parts = dict.fromkeys(item.part for item in found if item.part)
    hint = f"Only {found[0].name} can be resized, without --part."
    if parts:
        flags = " or ".join(f"--part {name}" for name in parts)
        hint = f"Use {flags}."
    raise ResizeError(message, hint)
