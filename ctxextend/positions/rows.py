"""A table of learned rows."""

from dataclasses import dataclass
from typing import ClassVar

from ctxextend.positions.facts import Buffer, ConfigCondition
from ctxextend.positions.positions import Positions


@dataclass(frozen=True, kw_only=True)
class Rows(Positions):
    """A table of learned rows, one for each position."""

    tensor: str  # type: ignore[misc]  # name without the model's prefix
    buffers: tuple[Buffer, ...] = ()  # type: ignore[misc]
    extra_rows: int = 0  # type: ignore[misc]  # after the last position, which are not usable
    # ``fail``, ``share the last position`` or, of sinusoids, ``get computed rows``.
    longer_inputs: str = "fail"
    # Key whose value (or largest list item) must divide the length: ``attention_window`` of
    # Longformer.
    multiple_of: str | None = None
    # When `multiple_of` does not apply: with full attention, BigBird has no blocks.
    multiple_unless: ConfigCondition | None = None
    # Key that is true if the model starts with sinusoids of `layout`, else with learned rows:
    # ``sinusoidal_pos_embds`` of DistilBERT.
    layout_key: str | None = None
    layout: str = ""

    has_rows: ClassVar = True
    is_computed: ClassVar = False
    ignores_stored_rows: ClassVar = False

    @property
    def names(self) -> tuple[str, ...]:
        """All names that the table can have in a checkpoint."""
        return tuple(dict.fromkeys(prefix + self.tensor for prefix in self.prefixes))

    @property
    def usual_name(self) -> str:
        """The name of the table in files that transformers saves."""
        return self.usual_prefix + self.tensor

    @property
    def initial_layout(self) -> str:  # type: ignore[override]
        """The layout of the sinusoids that the model starts with; empty if it has none."""
        if self.layout_key is None:
            return ""
        return self.layout if self.stated(self.layout_key) else ""

    @property
    def scheme(self) -> str:
        """``sinusoidal`` if the model starts with sinusoids, else ``learned``."""
        return "sinusoidal" if self.initial_layout else "learned"
