"""Positions that exist at every length, without settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ctxextend.errors import MethodError
from ctxextend.positions.change import Change, limits_change, refuse_keep_first
from ctxextend.positions.positions import PositionLengths, Positions, whole_number
from ctxextend.positions.rotary_settings import OLD_TYPE
from ctxextend.settings import Resize
from ctxextend.tables.method_facts import DEFAULT_METHOD, LIMITS
from ctxextend.tables.rope_types import NEW, NONE, OLD, TRAINED, TYPE


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
    def unrotated_types(self) -> set[str]:
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
        refuse_keep_first(self, settings)
        name = settings.choice.name
        if name not in (DEFAULT_METHOD, LIMITS):
            message = f"--method {name} does not apply to {self.scheme} positions."
            if self.scheme == NONE:
                message = f"--method {name} does not apply to a model without positions."
            raise MethodError(message, "Remove --method: only length limits change.")
        return limits_change(self, settings, after, has_others=has_others)
