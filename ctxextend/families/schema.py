"""The terms in which a family is described; `lookup` applies them to the config of one checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class ReservedRows:
    """The rule for the rows before position 0.

    Attributes:
        rows: Rows that are always there.
        config_key: Key whose value counts as further rows; None where the number is constant.
        inside_key: True where the length in the config counts the reserved rows (514 rows, 512 positions).
    """

    rows: int = 0
    config_key: str | None = None
    inside_key: bool = False


@dataclass(frozen=True)
class Buffer:
    """A tensor sized by the context length that is no weight and that files may hold.

    Attributes:
        name: Its tensor, without the model's prefix; ``*`` stands for a layer's number.
        content: What it holds: ``arange`` counts along the last axis, from the number of reserved rows on where these
            are on top of the key; ``zeros`` along the last axis; ``causal`` is a lower triangle in the last two;
            ``rows`` is zeros as long as the table.
        is_kept: True where transformers saves it and misses it: it is created again at the new size. Elsewhere only old
            files hold it, and it is dropped.
    """

    name: str
    content: Literal["arange", "zeros", "causal", "rows"]
    is_kept: bool = False


@dataclass(frozen=True)
class PositionTable:
    """One learned position table.

    Attributes:
        name: Its tensor, without the model's prefix.
        config_key: The key that states its length.
        aliases: Other names of that key, which transformers obeys too.
        unused_keys: Keys that state the same length and that transformers no longer reads.
        reserved: The rows before position 0.
        buffers: Its position buffers.
        part: What it is called where a model has several tables: encoder, decoder, text, …; else empty.
        clamps: True where transformers reads a text that is too long, every token past the end at the last position.
        ahead: Rows behind the last position that are read too, and so are no positions.
        multiple_of: A key whose value (of a list, the largest) must divide the length; None where any length will do.
        unless: A key and its value with which any length will do all the same.
    """

    name: str
    config_key: str
    aliases: tuple[str, ...] = ()
    unused_keys: tuple[str, ...] = ()
    reserved: ReservedRows = ReservedRows()
    buffers: tuple[Buffer, ...] = ()
    part: str = ""
    clamps: bool = False
    ahead: int = 0
    multiple_of: str | None = None
    unless: tuple[str, str] | None = None


@dataclass(frozen=True)
class PositionScheme:
    """What a model uses instead of a learned position table.

    Attributes:
        uses: What it uses, in words.
        advice: How to make such a model read longer texts.
        reads_tokens: Whether it reads texts at all.
    """

    uses: str
    advice: str
    reads_tokens: bool = True


@dataclass(frozen=True)
class Requirement:
    """A value that a key must have for the table to be in use.

    Attributes:
        key: The key of the config.
        value: What it must be; a config that leaves the key out has it.
        instead: What the model uses with any other value.
    """

    key: str
    value: Any
    instead: PositionScheme


@dataclass(frozen=True)
class Pin:
    """A key that must change so that what it decides stays as it was.

    Attributes:
        key: The key.
        condition: Another key that must be true for this to matter; None where it always does.
        keeps: ``length``: below 1 the key means the length, and is set to the old one. ``blocks``: the key is a number
            of blocks for each `block_size` tokens of the length, of which there must be as many as before.
        block_size: Tokens of a block.
    """

    key: str
    condition: str | None = None
    keeps: Literal["length", "blocks"] = "length"
    block_size: int = 1


@dataclass(frozen=True)
class Part:
    """A model inside a model, with a config of its own.

    Attributes:
        name: What it is called: encoder, decoder, text, ….
        config_key: The key that holds its config; empty where it reads the outer one.
        prefixes: The possible prefixes of its tensors' names.
        model_type: Its family where its config names none.
        overrides: Keys that hold another such config, whose values transformers prefers.
        is_any: Whether its config may name any other family; elsewhere `model_type` holds, whatever the config says.
        is_head: Whether it is a model with a head, whose base model has a name of its own.
        tokenizer: The folder of its own tokenizer; empty where it reads what the model's tokenizer gives, None where it
            reads no text.
        only: The part of its family that it is, where it is not the whole; else empty.
    """

    name: str
    config_key: str
    prefixes: tuple[str, ...]
    model_type: str
    overrides: tuple[str, ...] = ()
    is_any: bool = False
    is_head: bool = False
    tokenizer: str | None = ""
    only: str = ""


@dataclass(frozen=True)
class Family:
    """The facts about one model type.

    Attributes:
        model_type: As in config.json.
        prefixes: The possible prefixes of every tensor name: first that of the base class, then with a head.
        tables: Its position tables, the one that reads the tokenizer's texts first.
        defaults: Values that transformers takes for config keys that are left out.
        requires: Values that keys must have for the tables to be in use.
        parts: Models inside it that are families themselves.
        raised: Keys that cut texts too, and follow the length.
        pins: Keys that must not follow it.
        note: What users of this family should know, in a sentence; else empty.
    """

    model_type: str
    prefixes: tuple[str, ...] = ("",)
    tables: tuple[PositionTable, ...] = ()
    defaults: Mapping[str, int] = field(default_factory=dict)
    requires: tuple[Requirement, ...] = ()
    parts: tuple[Part, ...] = ()
    raised: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    note: str = ""
