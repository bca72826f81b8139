"""Positions that exist at every length, without settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ctxextend.errors import MethodError, ResizeError
from ctxextend.positions.change import Change
from ctxextend.positions.positions import PositionLengths, Positions, whole_number
from ctxextend.positions.rotary_settings import OLD_TYPE
from ctxextend.settings import Resize
from ctxextend.tables.method_facts import DEFAULT_METHOD, LIMITS, MethodChoice
from ctxextend.tables.rope_types import NEW, NONE, OLD, TRAINED, TYPE
from ctxextend.tables.rotary_methods import ROTARY_METHODS


@dataclass(frozen=True, kw_only=True)
class Unlimited(Positions):
    """Positions that exist at every length, without settings: only limits change.

    Scheme ``none``: rotary settings rotate nothing, so that only the causal mask tells the order.
    """

    scheme: Literal["ALiBi", "relative", "none"]  # type: ignore[misc]
    longer_inputs: str = "run"  # they ``fail`` if the biases are computed once

    @property
    def lengths(self) -> PositionLengths:
        """The stated length; without positions, the first trained one may be stated too."""
        stated = self.stated_length
        first_trained = stated
        if self.scheme == NONE:
            first_trained = whole_number(self.stated(TRAINED)) or stated
        return PositionLengths(first_trained=first_trained, stated=stated, served=stated)

    @property
    def dialects(self) -> tuple[str, ...]:  # type: ignore[override]
        """The keys of rotary settings that rotate nothing."""
        return tuple(key for key in (NEW, OLD) if self.stated(key) is not None)

    @property
    def removed_types(self) -> set[str]:
        """The rope types of settings that rotate nothing."""
        found = set[str]()
        for key in self.dialects:
            stated = self.stated(key)
            by_layer = [value for value in stated.values() if isinstance(value, Mapping)]
            for settings in by_layer or [stated]:
                found.add(settings.get(TYPE, settings.get(OLD_TYPE)))
        return found

    @property
    def needs_no_limit(self) -> bool:  # type: ignore[override]
        """Whether generated texts may exceed the length."""
        return self.longer_inputs == "run"

    def change(self, settings: Resize, after: int, *, has_others: bool = False) -> Change:
        """Return the change to another length, which changes only limits.

        Args:
            settings: With the method that applies to these positions.
            after: The length, in tokens.
            has_others: Whether the model has other positions that a resize of them would change.

        Raises:
            MethodError: A setting does not apply to these positions.
            ResizeError: The new length is shorter.
        """
        check_no_rows(self, settings)
        name = settings.choice.name
        if name not in (DEFAULT_METHOD, LIMITS):
            message = f"--method {name} does not apply to {self.scheme} positions."
            if self.scheme == NONE:
                message = f"--method {name} does not apply to a model without positions."
            raise MethodError(message, "Remove --method: only length limits change.")
        return change_limits(self, settings, after, has_others=has_others)


def check_no_rows(positions: Positions, settings: Resize) -> None:
    """Raise MethodError if settings keep rows of positions that have none."""
    if settings.keep_first:
        message = (
            f"--keep-first cannot be used with {positions.scheme} positions, which have no rows."
        )
        raise MethodError(message, "Remove --keep-first.")


def change_limits(
    positions: Positions, settings: Resize, after: int, *, has_others: bool
) -> Change:
    """Return a change of only limits, of positions without a table of rows.

    Raises:
        ResizeError: The new length is shorter.
    """
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
