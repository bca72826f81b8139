"""The terms in which a family is described; `lookup` applies them to the config of one checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class ReservedRows:
    """The rule for the rows before position 0."""

    rows: int = 0  # that are always there
    config_key: str | None = None  # whose value counts as further rows; None where the number is constant
    inside_key: bool = False  # whether the length in the config counts them (514 rows, 512 positions)


@dataclass(frozen=True)
class Buffer:
    """A tensor sized by the context length that is no weight and that files may hold.

    Its content: ``arange`` counts along the last axis, from the number of reserved rows on where these are on top of
    the key; ``zeros`` along the last axis; ``causal`` is a lower triangle in the last two; ``rows`` is zeros as long as
    the table.
    """

    name: str  # without the model's prefix; ``*`` stands for a layer's number
    content: Literal["arange", "zeros", "causal", "rows"]
    # Whether transformers saves it and misses it: it is created again at the new size. Others are dropped.
    is_kept: bool = False


@dataclass(frozen=True)
class PositionTable:
    """One learned position table."""

    name: str  # its tensor, without the model's prefix
    config_key: str  # states its length
    aliases: tuple[str, ...] = ()  # other names of that key, which transformers obeys too
    unused_keys: tuple[str, ...] = ()  # state the same length, and transformers no longer reads them
    reserved: ReservedRows = ReservedRows()
    buffers: tuple[Buffer, ...] = ()
    part: str = ""  # its name where a model has several tables: encoder, decoder, text, ...
    clamps: bool = False  # whether transformers reads every token past the end at the last position, and does not fail
    ahead: int = 0  # rows behind the last position that are read too, and so are no positions
    multiple_of: str | None = None  # a key whose value (of a list, the largest) must divide the length
    unless: tuple[str, str] | None = None  # a key and its value with which any length will do all the same


@dataclass(frozen=True)
class PositionScheme:
    """What a model uses instead of a learned position table, and how to make such a model read longer texts."""

    uses: str
    advice: str
    reads_tokens: bool = True  # whether it reads texts at all


@dataclass(frozen=True)
class Requirement:
    """A value that a key must have for the table to be in use; a config that leaves the key out has it."""

    key: str
    value: Any
    instead: PositionScheme  # used with any other value


@dataclass(frozen=True)
class Pin:
    """A key that must change so that what it decides stays as it was.

    ``length``: below 1 the key means the length, and is set to the old one. ``blocks``: the key is a number of blocks
    for each `block_size` tokens of the length, of which there must be as many as before.
    """

    key: str
    condition: str | None = None  # another key that must be true for this to matter
    keeps: Literal["length", "blocks"] = "length"
    block_size: int = 1  # in tokens


@dataclass(frozen=True)
class Part:
    """A model inside a model, with a config of its own."""

    name: str  # encoder, decoder, text, ...
    config_key: str  # holds its config; empty where it reads the outer one
    prefixes: tuple[str, ...]  # the possible ones of its tensors' names
    model_type: str  # its family where its config names none
    overrides: tuple[str, ...] = ()  # keys that hold another such config, whose values transformers prefers
    is_any: bool = False  # whether its config may name any other family; else `model_type` holds, whatever it says
    is_head: bool = False  # whether it is a model with a head, whose base model has a name of its own
    tokenizer: str | None = ""  # the folder of its own; empty: it reads what the model's gives; None: it reads no text
    only: str = ""  # the part of its family that it is, where it is not the whole


@dataclass(frozen=True)
class Family:
    """The facts about one model type."""

    model_type: str  # as in config.json
    prefixes: tuple[str, ...] = ("",)  # of every tensor name: first that of the base class, then with a head
    tables: tuple[PositionTable, ...] = ()  # the one that reads the tokenizer's texts first
    defaults: Mapping[str, int] = field(default_factory=dict)  # transformers' own, for config keys that are left out
    requires: tuple[Requirement, ...] = ()  # for the tables to be in use
    parts: tuple[Part, ...] = ()  # models inside it that are families themselves
    limits: tuple[str, ...] = ()  # keys that cut texts too, and follow the length
    pins: tuple[Pin, ...] = ()  # keys that must not follow it
    note: str = ""  # what users of this family should know, in a sentence
