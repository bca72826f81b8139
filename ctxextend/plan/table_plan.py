"""What a resize changes in one position table, or in positions without a table of rows."""

from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import NamedTuple

from ctxextend.families.lengths import PositionLengths
from ctxextend.families.rope import RopeLayers
from ctxextend.json_output import not_in_json
from ctxextend.plan.untrained import UntrainedRows
from ctxextend.positions.positions import Positions
from ctxextend.positions.rows import Rows
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.rope_types import TRAINED, Parameters


class ShortInputs(IntEnum):
    """What new rotary settings give inputs up to the old length, the least change first."""

    IDENTICAL = auto()  # the angles and the attention of the old ones, bit for bit
    ROUNDED = auto()  # the same within float32 rounding
    CHANGED = auto()  # others


class RopePlan(NamedTuple):
    """The planned change to the rotary settings of all layers of one type."""

    before: RopeLayers
    after: Parameters
    choice: MethodChoice  # the method that changes them
    keeps_max_len: bool  # whether the config key of the length keeps the first trained length
    scales: bool  # whether any angle changes
    short_inputs: ShortInputs
    # Settings that give inputs of any length what the new ones give inputs beyond the old length;
    # None unless the method is `switch`.
    long_inputs_as: Parameters | None = None


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """The planned change to one position table, or to positions without a table of rows."""

    name: str  # tensor name in the checkpoint
    part: str  # encoder, decoder, text, … in models with several tables; else empty
    file: str  # weights file, relative to the root; empty if transformers computes the rows
    config_key: str  # config key of its length, with dots for nested configs
    max_len_before: int  # usable positions
    max_len_after: int
    # `reserved_rows` + `max_len_before`, plus rows after the last position in a few model types.
    rows_before: int
    rows_after: int
    reserved_rows: int  # rows before position 0, which are kept
    hidden_size: int  # columns
    dtype: str  # in safetensors' spelling; empty if transformers computes the rows
    location: Positions = field(metadata=not_in_json)  # its registry entry
    # Whether it is a table of rows, stored or computed.
    has_rows: bool = field(metadata=not_in_json)
    # Whether the checkpoint contains its rows; otherwise transformers computes them.
    is_stored: bool = field(metadata=not_in_json)
    rope: tuple[RopePlan, ...] = field(default=(), metadata=not_in_json)  # of rotary settings
    # The dialects that state the rotary settings of the output, each completely:
    # ``rope_parameters``, which transformers 5 reads, and ``rope_scaling``, which others read.
    rope_dialects: tuple[str, ...] = field(default=(), metadata=not_in_json)
    # Whether the tokenizer keeps the old limits: they are also the padding length, on which the
    # outputs of some model types depend.
    keeps_padding: bool = field(default=False, metadata=not_in_json)
    # First trained, stated and served length before the resize; None of a table of rows.
    lengths: PositionLengths | None = None
    # The method that extends it, with all settings; None if it is not extended.
    choice: MethodChoice | None = field(default=None, metadata=not_in_json)
    # Rows that no training has changed; None if its limits do not rise.
    untrained: UntrainedRows | None = field(default=None, metadata=not_in_json)
    scheme: str  # learned, sinusoidal, rotary, ALiBi, relative or none

    @property
    def is_changed(self) -> bool:
        """Whether the number of rows changes, or any rotary setting."""
        return self.rows_before != self.rows_after or bool(self.rope)

    @property
    def is_extended(self) -> bool:
        """Whether rows are created, or rotary settings are to change."""
        return self.rows_after > self.rows_before or bool(self.rope)


def stated_length(table: TablePlan) -> int:
    """Return the context length that its config key states before the resize, in positions."""
    if table.lengths is None:
        return table.max_len_before
    return table.lengths.stated


def length_to_state(table: TablePlan) -> int:
    """Return the context length that its config key must state after the resize, in positions.

    Some rotary settings read the key as the first trained length; otherwise it is the new length.
    """
    if table.lengths is None:
        return table.max_len_after
    states_first_trained = table.lengths.key_is_first_trained
    if table.rope:
        states_first_trained = any(plan.keeps_max_len for plan in table.rope)
    if states_first_trained:
        return table.lengths.first_trained
    return table.max_len_after


def pads_with_positions(table: TablePlan) -> bool:
    """Whether a model pads inputs to full attention windows, and padding has positions."""
    entry = table.location
    return isinstance(entry, Rows) and entry.multiple_of is not None


def scales(table: TablePlan) -> bool:
    """Whether any rotary setting changes what positions mean: not if only limits change."""
    return any(plan.scales for plan in table.rope)


def switches(table: TablePlan) -> bool:
    """Whether only inputs beyond the old length get other frequencies, by a separate list."""
    return any(plan.long_inputs_as is not None for plan in table.rope)


def same_up_to(table: TablePlan) -> int:
    """Return the longest input, in tokens, whose outputs can stay.

    With ``dynamic`` settings, this is the trained length. If settings switch, it is the length at
    which they do, which the base may serve although it states a shorter one.
    """
    if switches(table):
        switching = [plan for plan in table.rope if plan.long_inputs_as is not None]
        lengths: list[int] = [plan.after[TRAINED] for plan in switching]
        return min(lengths)
    is_dynamic = any(plan.before.parameters["rope_type"] == "dynamic" for plan in table.rope)
    if is_dynamic:
        return min(stated_length(table), length_to_state(table))
    return table.max_len_before
