"""A table of sinusoids, computed or stored, unless the file has learned rows."""

from dataclasses import dataclass
from typing import Literal

from ctxextend.positions.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Sinusoids(Rows):
    """A table of sinusoids, computed or stored, unless the file has learned rows."""

    layout: str  # one of `tables.layouts.LAYOUTS`
    # Key of its hidden size if transformers computes the rows that the file lacks.
    width_key: str | None = None
    # A module next to that of a computed table, whose tensors only models with the table have:
    # ``.embed_tokens`` of SpeechT5, whose other models read no text.
    next_to: str = ""
    # What transformers does with rows in a file:
    #
    # - ``trained``: it reads them as a parameter (FSMT).
    # - ``frozen``: its class creates them as a constant (Pegasus, Marian), which loaded models do
    #   not train before 5.24.
    # - ``ignored``: it always computes the rows (M2M-100).
    stored_rows: Literal["trained", "frozen", "ignored"] = "trained"
    rotates: bool = False  # whether the sinusoids are rotary angles

    @property
    def is_computed(self) -> bool:  # type: ignore[override]
        """Whether transformers computes the rows that the file lacks."""
        return self.width_key is not None

    @property
    def ignores_stored_rows(self) -> bool:  # type: ignore[override]
        """Whether transformers computes the rows even if a file has them.

        They are no part of its state dict.
        """
        return self.stored_rows == "ignored"

    @property
    def initial_layout(self) -> str:  # type: ignore[override]
        """The layout of the sinusoids."""
        return self.layout

    @property
    def neighbor_prefix(self) -> str:
        """The start of the names, after the model's prefix, of tensors that come with the table.

        They are in the module around that of the table, and in `next_to` in it:
        ``encoder.embed_positions.weights`` with `next_to` ``.embed_tokens`` gives
        ``encoder.embed_tokens``.
        """
        module, _, _ = self.tensor.rpartition(".")
        outer_module, _, _ = module.rpartition(".")
        return outer_module + self.next_to
