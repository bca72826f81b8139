"""A table of sinusoids, computed or stored, unless the file has learned rows."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Self

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.positions.change import Change
from ctxextend.positions.positions import PositionComparison
from ctxextend.positions.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Sinusoids(Rows):
    """A table of sinusoids, computed or stored, unless the file has learned rows."""

    layout: str  # type: ignore[misc]  # one of `tables.layouts.LAYOUTS`
    scheme: str = field(init=False, default="sinusoidal")  # type: ignore[misc]
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
    stored_rows: str = "trained"  # type: ignore[misc]
    rotates: bool = False  # type: ignore[misc]  # whether the sinusoids are rotary angles

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

    def names_among(self, names: Collection[str], *, is_only: bool) -> list[str]:
        """Return the name of the table; one that is computed is named after tensors next to it.

        A file with ``model.encoder.layers.0.fc1.weight`` has the table
        ``model.encoder.embed_positions.weight``, whether it is stored or not.
        """
        stored = super().names_among(names, is_only=is_only)
        if stored or not self.is_computed:
            return stored
        module, _, _ = self.tensor.rpartition(".")
        neighbor = module.rpartition(".")[0] + self.next_to
        for prefix in reversed(self.prefixes):  # those of classes with a head first
            if any(name.startswith(prefix + neighbor) for name in names):
                return [prefix + self.tensor]
        return [self.usual_name] if is_only else []  # the file may use other names

    def sized_in(self, checkpoint: Checkpoint) -> Self:
        """Return the table with its size: that in a checkpoint, or else the computed one.

        Raises:
            CheckpointError: The stored tensor is malformed, or the config does not state the shape.
        """
        entries = checkpoint.weights.entries
        if self.name in entries and not self.ignores_stored_rows:
            return super().sized_in(checkpoint)
        return replace(self.as_computed(), stored_buffers=self.buffers_among(entries))

    def as_computed(self) -> Self:
        """Return the table that transformers computes.

        Raises:
            CheckpointError: The config does not state its shape.
        """
        rows, hidden_size = self.computed_shape()
        return replace(self, rows=rows, hidden_size=hidden_size)

    def compare(self, change: Change, now: Self) -> PositionComparison:
        """Compare the size of the table that transformers computes with that of a change."""
        result = PositionComparison()
        planned = (change.rows_after, self.hidden_size)
        try:
            shape = now.computed_shape()
        except CheckpointError as error:
            result.faults.append(error.message)
        else:
            if shape != planned:
                result.faults.append(
                    f"{self.name}: transformers computes a table of {list(shape)}, expected "
                    f"{list(planned)}"
                )
        size = f"{self.name}: {change.rows_before} -> {change.rows_after} rows"
        result.findings.append(f"{size}, computed by transformers")
        return result

    def computed_shape(self) -> tuple[int, int]:
        """Return rows and columns of the table that transformers computes from the config.

        Raises:
            CheckpointError: The config does not state them.
        """
        if self.reserved.config_key is not None:
            self.value(self.reserved.config_key)
        rows = self.stated_length + self.other_rows
        return rows, self.value(str(self.width_key))
