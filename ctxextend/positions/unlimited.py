"""Positions that exist at every length, without settings."""

from dataclasses import dataclass
from typing import Literal

from ctxextend.errors import MethodError
from ctxextend.positions.change import Change, limits_change
from ctxextend.positions.positions import PositionLengths, Positions, whole_number
from ctxextend.settings import Resize
from ctxextend.tables.method_facts import DEFAULT_METHOD, LIMITS
from ctxextend.tables.rope_types import NONE, TRAINED


@dataclass(frozen=True, kw_only=True)
class Unlimited(Positions):
    """Positions that exist at every length, without settings: only limits change.

    Scheme ``none``: rotary settings rotate nothing, so that only the causal mask tells the order.
    """

    scheme: Literal["ALiBi", "relative", "none"]  # type: ignore[misc]
    longer_inputs: str = "run"  # they ``fail`` if the biases are computed once
    # Of scheme ``none``: the rope types of the settings, and the keys that state them.
    rope_types: frozenset[str] = frozenset()  # type: ignore[misc]
    dialects: tuple[str, ...] = ()  # type: ignore[misc]

    @property
    def lengths(self) -> PositionLengths:  # type: ignore[override]
        """The stated length; without positions, the first trained one may be stated too."""
        stated = self.stated_length
        first_trained = stated
        if self.scheme == NONE:
            first_trained = whole_number(self.stated(TRAINED)) or stated
        return PositionLengths(first_trained=first_trained, stated=stated, served=stated)

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
        name = settings.choice.name
        if name not in (DEFAULT_METHOD, LIMITS):
            message = f"--method {name} does not apply to {self.scheme} positions."
            if self.scheme == NONE:
                message = f"--method {name} does not apply to a model without positions."
            raise MethodError(message, "Remove --method: only length limits change.")
        return limits_change(self, settings, after, has_others=has_others)
