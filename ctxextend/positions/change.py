"""What a resize changes in the positions of a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, auto
from functools import cached_property
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ctxextend.errors import MethodError, ResizeError
from ctxextend.json_output import not_in_json
from ctxextend.positions.positions import (
    ConfigValues,
    PositionLengths,
    Positions,
    nested,
    with_values,
)
from ctxextend.positions.rotary_settings import RopeLayers
from ctxextend.settings import Resize
from ctxextend.tables.method_facts import LIMITS, MethodChoice
from ctxextend.tables.rope_types import NONE, Parameters
from ctxextend.tables.rotary_methods import ROTARY_METHODS


class ShortInputs(IntEnum):
    """What inputs up to the old length get, the least change first."""

    IDENTICAL = auto()  # the same as before, bit for bit
    ROUNDED = auto()  # the same within float32 rounding
    CHANGED = auto()  # others


class NewTensor(NamedTuple):
    """A tensor that an output has instead of that of the source."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    compute: Callable[[], NDArray[Any]]  # may raise CheckpointError or ResizeError
    is_table: bool = True  # else a position buffer


class UntrainedRows(NamedTuple):
    """The rows of a table that no training has changed, by position."""

    random: Mapping[int, float]  # those like random initialisation, with its standard deviation
    zero: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a resize changes in the positions of a model: all that later stages need."""

    positions: Positions = field(metadata=not_in_json)  # as they are
    max_len_before: int  # usable positions
    max_len_after: int
    # Usable positions that the config key must state: some rotary settings read it as the first
    # trained length.
    stated_after: int = field(metadata=not_in_json)
    # The method that extends them, with all settings, and why; None if they are not extended.
    choice: MethodChoice | None = field(default=None, metadata=not_in_json)
    short_inputs: ShortInputs = field(default=ShortInputs.IDENTICAL, metadata=not_in_json)
    # The longest input, in tokens, whose outputs can stay.
    same_up_to: int = field(metadata=not_in_json)
    # New rotary settings by type of layers; empty if no layers change.
    settings: Mapping[str, Parameters] = field(default_factory=dict, metadata=not_in_json)
    # Whether any position changes its meaning, and not only limits.
    scales: bool = field(default=False, metadata=not_in_json)
    # Whether only inputs beyond the old length get other frequencies.
    switches: bool = field(default=False, metadata=not_in_json)
    tensors: tuple[NewTensor, ...] = field(default=(), metadata=not_in_json)
    dropped: tuple[str, ...] = field(default=(), metadata=not_in_json)  # buffers not to write
    # Rows that no training has changed; None if they were not looked at.
    untrained: UntrainedRows | None = field(default=None, metadata=not_in_json)
    # Whether the tokenizer keeps the old limits: they are also the padding length, on which the
    # outputs of some model types depend.
    keeps_padding: bool = field(default=False, metadata=not_in_json)
    name: str = field(init=False)  # tensor in the checkpoint; without a table, a key of the config
    part: str = field(init=False)  # encoder, decoder, text, … in models with several; else empty
    file: str = field(init=False)  # of the weights, relative to the root; empty if not stored
    config_key: str = field(init=False)  # config key of the length, with dots for nested configs
    # Rows, or tokens without a table: reserved ones, positions, and a few after the last position.
    rows_before: int = field(init=False)
    rows_after: int = field(init=False)
    reserved_rows: int = field(init=False)  # rows before position 0, which are kept
    hidden_size: int = field(init=False)  # columns
    dtype: str = field(init=False)  # in safetensors' spelling; empty if the rows are not stored
    lengths: PositionLengths = field(init=False)  # before the change
    scheme: str = field(init=False)  # learned, sinusoidal, rotary, ALiBi, relative or none
    # Whether the length or any rotary setting changes.
    is_changed: bool = field(init=False, metadata=not_in_json)
    # Whether a method applies: the length grows, or rotary settings change at the same length.
    is_extended: bool = field(init=False, metadata=not_in_json)

    def __post_init__(self) -> None:
        positions = self.positions
        values = {
            "name": positions.name,
            "part": positions.part,
            "file": positions.weights_file,
            "config_key": positions.length_key,
            "rows_before": self.max_len_before + positions.other_rows,
            "rows_after": self.max_len_after + positions.other_rows,
            "reserved_rows": positions.reserved_rows,
            "hidden_size": positions.hidden_size,
            "dtype": positions.dtype,
            "lengths": positions.lengths,
            "scheme": positions.scheme,
            "is_changed": self.max_len_before != self.max_len_after or bool(self.settings),
            "is_extended": self.max_len_after > self.max_len_before or bool(self.settings),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def method(self) -> str:
        """The name of the method that extends them; empty if they are not extended."""
        return "" if self.choice is None else self.choice.name

    @property
    def changed_layers(self) -> list[tuple[RopeLayers, Parameters]]:
        """The layers whose rotary settings change, each with the new ones."""
        return [
            (layers, self.settings[layers.layer_type])
            for layers in self.positions.layers
            if layers.layer_type in self.settings
        ]

    def config_values(
        self, config: Mapping[str, Any] | None = None, *, fix_limits: bool = False
    ) -> ConfigValues:
        """Return the values of the config that the change needs.

        Args:
            config: The config to change; by default that of the positions.
            fix_limits: Whether statements of a length that stays are corrected.
        """
        positions = self.positions
        if config is not None:
            positions = replace(positions, config=config)
        changes = ConfigValues()
        if self.settings:
            changes |= positions.values_for(self.settings, self.stated_after)
        if not self.is_changed:
            if fix_limits:
                changes |= self._corrected_values(positions)
            return changes
        if self.stated_after != positions.lengths.stated:
            value = positions.key_value(self.stated_after)
            changes |= dict.fromkeys(positions.length_paths, value)
        # What other engines need, and keys whose effect must not change.
        for path, key in positions.engine_paths.items():
            if key.value and nested(positions.config, path) is None:
                changes[path] = key.value
        before = positions.key_value(self.max_len_before)
        after = positions.key_value(self.max_len_after)
        for pin in positions.family.pins:
            if pin.condition is not None and not positions.stated(pin.condition):
                continue
            pinned = pin.value(positions.stated_or_default(pin.key), before, after)
            if pinned is not None:
                changes |= dict.fromkeys(positions.paths_of(pin.key), pinned)
        return changes

    def _corrected_values(self, positions: Positions) -> ConfigValues:
        """Return the values that disagree with a length that stays the same.

        A missing key may stay missing if transformers' default is right.
        """
        value = positions.key_value(self.stated_after)
        changes = ConfigValues()
        for path in positions.length_paths:
            if nested(positions.config, path) not in (None, value):
                changes[path] = value
        key = positions.effective_key
        default = positions.family.defaults.get(key)
        if positions.stated(key) is None and default != value:
            changes |= dict.fromkeys(positions.length_paths, value)
        return changes

    @cached_property
    def positions_after(self) -> Positions:
        """The positions as the changed config states them."""
        config = with_values(self.positions.config, self.config_values())
        return replace(self.positions, config=config)


# Of positions without rows


def limits_change(
    positions: Positions, settings: Resize, after: int, *, has_others: bool
) -> Change:
    """Return a change of only limits, of positions without a table of rows.

    Raises:
        MethodError: The settings have ``--keep-first``.
        ResizeError: The new length is shorter.
    """
    if settings.keep_first:
        message = (
            f"--keep-first cannot be used with {positions.scheme} positions, which have no rows."
        )
        raise MethodError(message, "Remove --keep-first.")
    lengths = positions.lengths
    before = lengths.context
    if after < before:
        reason = f"its positions are {positions.scheme}"
        if positions.scheme == NONE:
            reason = "it has no positions"
        message = f"The model accepts {before} tokens: {reason}, so {after} need no change."
        hint = positions.hint_to_shorten(after)
        if has_others:
            hint = f"Resize other parts than {positions.part} with --part."
        raise ResizeError(message, hint)
    choice = None
    if after > before:
        choice = MethodChoice(ROTARY_METHODS[LIMITS])
    return Change(
        positions=positions,
        max_len_before=before,
        max_len_after=after,
        stated_after=lengths.first_trained if lengths.key_is_first_trained else after,
        choice=choice,
        same_up_to=before,
    )
