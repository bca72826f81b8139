"""Rotary positions: settings in the config, and no rows."""

from dataclasses import dataclass, replace
from typing import ClassVar

from ctxextend.positions.facts import ROTARY, RotaryFacts
from ctxextend.positions.positions import Positions
from ctxextend.tables.method_facts import FOLLOWING_METHODS
from ctxextend.tables.rope_types import NEW


@dataclass(frozen=True, kw_only=True)
class Rotary(Positions):
    """Rotary positions: settings in the config, and no rows."""

    rope: RotaryFacts  # type: ignore[misc]
    longer_inputs: str = "run"  # they ``fail`` if the angles are computed once
    settings_key: str = NEW
    scheme: ClassVar = ROTARY

    @property
    def usual_name(self) -> str:
        """The key of the settings in the whole config, with dots."""
        return ".".join((*self.path, self.settings_key))

    def after_first_position(self) -> "Rotary":
        """Return them in a model whose tokens have the positions from 1 on.

        An input of the trained length then has a position beyond it, which gets other frequencies
        where these follow the length of the input: such methods do not apply.
        """
        methods = tuple(name for name in self.rope.methods if name not in FOLLOWING_METHODS)
        return replace(self, rope=self.rope._replace(methods=methods))
