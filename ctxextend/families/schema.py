"""Schema of the registry; `lookup` applies its entries to the config of a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ctxextend.tables.method_facts import SCALING_METHODS


@dataclass(frozen=True)
class ReservedRows:
    """The rule for reserved rows, which come before position 0."""

    rows: int = 0  # constant number
    config_key: str | None = None  # its value is added to `rows`, such as ``pad_token_id``
    inside_key: bool = (
        False  # whether the length in the config includes them (514 for 512 positions)
    )


@dataclass(frozen=True)
class Buffer:
    """A buffer sized by the context length that weights files may contain.

    Its content: ``arange`` along the last axis, starting at the number of reserved rows if the key
    does not include them; ``zeros`` along the last axis; ``causal``, a triangle in the last two;
    ``rows``, zeros per table row.
    """

    name: str  # without the model's prefix; ``*`` matches a layer index
    content: Literal["arange", "zeros", "causal", "rows"]
    is_kept: bool = (
        False  # whether it is persistent, and so rebuilt at the new size; others are dropped
    )


ROTARY, ALIBI, RELATIVE = "rotary", "ALiBi", "relative"  # schemes without a table of rows
# What to expect of them beyond the trained length if only length limits change, as a clause.
BEYOND = {
    ROTARY: "positions continue beyond the trained angles, and quality falls soon "
    "(Chen et al. 2023, "
    "arXiv:2306.15595)",
    ALIBI: "biases continue: the loss hardly grows, but far tokens count little "
    "(Press et al. 2022, "
    "arXiv:2108.12409)",
    RELATIVE: "all far tokens share a bias: quality falls slowly, unless the task "
    "needs their order "
    "(arXiv:1910.10683)",
}


@dataclass(frozen=True)
class RotaryFacts:
    """How the classes of a model type read the rotary settings of their config."""

    # Default ``rope_theta`` by layer type; the key is empty if all layers have the same settings.
    theta: Mapping[str, float] = field(default_factory=lambda: {"": 10_000.0})
    # Further settings by layer type, such as ``rope_type``, of a config that states none.
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    local: tuple[
        str, ...
    ] = ()  # layer types with a sliding window, which see no further and are not scaled
    reads_old: bool = True  # whether they read ``rope_scaling`` of old configs
    theta_keys: Mapping[str, str] = field(
        default_factory=dict
    )  # keys of old configs, by layer type; else rope_theta
    # Whether ``rope_scaling`` of old configs applies to `local` layers too, so that it cannot state
    # other settings.
    scales_local: bool = False
    partial: float = (
        1.0  # default ``partial_rotary_factor``: the share of each head that is rotated
    )
    partial_key: str = "partial_rotary_factor"  # key of old configs
    type_names: Mapping[str, str] = field(
        default_factory=dict
    )  # other names of rope types, as its files state them
    dim_key: str = (
        "head_dim"  # key of the size of a head; if missing: hidden_size / num_attention_heads
    )
    needs_dim: bool = (
        False  # whether transformers needs this key for other rope types than ``default``
    )
    methods: tuple[str, ...] = SCALING_METHODS  # that the classes apply; none: limits only
    # Whether ``alpha`` makes the base of ``dynamic`` settings a fixed one: the same for inputs of
    # every length.
    reads_alpha: bool = False
    # Whether released files of the default length state the length after scaling, not that of the
    # first training.
    releases_are_scaled: bool = False


@dataclass(frozen=True)
class PositionTable:
    """The positions of a model: a table of rows (learned, or sinusoids that are stored or
    computed), or a rule.

    A rule, such as rotary positions, has no tensor: `name` is the config key of its settings.
    """

    name: str  # tensor name without the model's prefix
    config_key: str  # key of its length
    aliases: tuple[str, ...] = ()  # other names of that key that transformers accepts
    unused_keys: tuple[str, ...] = ()  # keys of the same length that transformers no longer reads
    reserved: ReservedRows = ReservedRows()
    buffers: tuple[Buffer, ...] = ()
    part: str = ""  # name of the table if the model has several: encoder, decoder, text, ...
    # of its sinusoids (`tables.sinusoids.LAYOUTS`), unless the file has learned rows; empty:
    # learned
    layout: str = ""
    layout_key: str | None = (
        None  # key that is true if the model starts with these sinusoids, else with learned rows
    )
    width_key: str | None = (
        None  # key of its hidden size if transformers computes the rows that the file lacks
    )
    # a module next to that of a computed table, whose tensors only models with the table have
    next_to: str = ""
    clamps: bool = False  # whether transformers clamps positions past the end to the last one
    rotates: bool = False  # whether its sinusoids are rotary angles
    grows: bool = False  # whether transformers computes more rows for longer inputs
    # whether longer inputs fail, although there are no rows: angles or biases are computed once
    fails: bool = False
    # whether transformers reads stored rows without gradients, so that none can be trained
    is_fixed: bool = False
    extra_rows: int = 0  # rows after the last position, which are not usable positions
    multiple_of: str | None = None  # key whose value (or largest list item) must divide the length
    unless: tuple[str, str] | None = None  # key and value that lift this requirement
    scheme: str = ""  # ``rotary``, ``ALiBi`` or ``relative``; empty: a table of rows
    rope: RotaryFacts | None = None  # of rotary positions
    when: tuple[str, tuple[Any, ...]] | None = (
        None  # key and values (None: missing) with which a model has these
    )

    @property
    def ignores_stored_rows(self) -> bool:
        """Whether transformers computes the rows even if a file has them: they are no part of its
        state dict.
        """
        return self.width_key is not None and not self.is_fixed


@dataclass(frozen=True)
class PositionScheme:
    """What a model uses instead of a position table, and how to extend its context."""

    uses: str
    advice: str
    name: str = "other"  # of the scheme, for lists
    reads_tokens: bool = True  # whether its input is text


@dataclass(frozen=True)
class Requirement:
    """A value that a config key must have for the table to be used; it is also the default."""

    key: str
    value: Any
    instead: PositionScheme  # used with other values


@dataclass(frozen=True)
class Pin:
    """A config key that is adjusted so that its effect does not change with the length.

    ``length``: values below 1 mean the length, so the key is set to the old length. ``blocks``: the
    key is a number of blocks per `block_size` tokens of the length, and is scaled to keep the
    total.
    """

    key: str
    condition: str | None = None  # another key that must be true for this to apply
    keeps: Literal["length", "blocks"] = "length"
    block_size: int = 1  # in tokens


@dataclass(frozen=True)
class Part:
    """A model inside a model, with its config."""

    name: str  # encoder, decoder, text, ...
    config_key: str  # contains its config; empty if it uses the outer one
    prefixes: tuple[str, ...]  # possible prefixes of its tensor names
    model_type: str  # its model type if its config has none
    overrides: tuple[
        str, ...
    ] = ()  # keys of another copy of its config, which transformers prefers
    # whether its config may state another model type; otherwise `model_type` always applies
    is_any: bool = False
    is_head: bool = (
        False  # whether it has a head, so its tensor names have the prefix of its base model
    )
    tokenizer: str | None = (
        ""  # its tokenizer folder; empty: the model's tokenizer; None: no text input
    )
    only: str = ""  # the table part of its model type that it uses; empty: all
    is_flat: bool = False  # whether old configs have its keys in the outer config


@dataclass(frozen=True)
class Family:
    """The facts about one model type: an entry of the registry."""

    model_type: str  # as in config.json
    prefixes: tuple[str, ...] = (
        "",
    )  # of tensor names: first in the base class, then in classes with a head
    tables: tuple[PositionTable, ...] = ()  # the one that reads the tokens first
    defaults: Mapping[str, int] = field(
        default_factory=dict
    )  # transformers' defaults for missing config keys
    requires: tuple[Requirement, ...] = ()  # for the tables to be used
    parts: tuple[Part, ...] = ()  # models inside it
    limits: tuple[str, ...] = ()  # keys that also truncate inputs, and follow the length
    pins: tuple[Pin, ...] = ()  # keys whose effect must not change
    padding_effect: str = (
        ""  # how outputs depend on the padding length, even with an attention mask, as a clause
    )
    note: str = ""  # a caveat for users, as a clause
