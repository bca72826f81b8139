"""Positions that exist at every length, without settings."""

from dataclasses import dataclass
from typing import Literal

from ctxextend.positions.positions import Positions


@dataclass(frozen=True, kw_only=True)
class Unlimited(Positions):
    """Positions that exist at every length, without settings: only limits change.

    Scheme ``none``: rotary settings rotate nothing, so that only the causal mask tells the order.
    """

    scheme: Literal["ALiBi", "relative", "none"]  # type: ignore[misc]
    longer_inputs: str = "run"  # they ``fail`` if the biases are computed once
