"""The position tables of a model, with their rows and columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.foreign_files import FROM_BASE
from ctxextend.checkpoints.safetensors_file import TensorEntry, TensorFile, float_dtype
from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.families.lengths import position_lengths
from ctxextend.families.lookup import TableLocation
from ctxextend.families.schema import SinusoidalTable

MLX_DTYPE = "U32"  # of integers that MLX packs


@dataclass(frozen=True)
class FoundTable:
    """A position table of a model, or positions without a table of rows."""

    location: TableLocation  # its registry entry, with its location in weights and config
    name: str  # its tensor name; files lack the tensor if transformers computes the rows
    rows: int  # reserved rows included; 0 without a table
    hidden_size: int  # columns; 0 without a table
    dtype: str = ""  # as the file or the model spells it; empty if the rows are not stored
    file: str = ""  # weights file, relative to the root; empty if the rows are not stored

    @property
    def has_rows(self) -> bool:
        """Whether it is a table of rows, stored or computed."""
        return self.location.table.has_rows


def measure_table(checkpoint: Checkpoint, location: TableLocation, name: str) -> FoundTable:
    """Return a table of a checkpoint, by its name.

    Raises:
        CheckpointError: The stored tensor has an invalid shape or dtype, or the config does not
            state the shape of a computed table.
    """
    is_stored = name in checkpoint.weights.entries and not location.table.ignores_stored_rows
    if not is_stored:
        return unstored_table(location, name)
    file = checkpoint.weights.file_of[name]
    entry = file.entries[name]
    scales = f"{name.removesuffix('.weight')}.scales"
    if entry.dtype == MLX_DTYPE and scales in file.entries:
        message = f"{file.path}: {name} is quantised by MLX, and cannot be resized."
        raise CheckpointError(message, FROM_BASE)
    _ = float_dtype(file, name)
    if len(entry.shape) != 2 or 0 in entry.shape:
        message = (
            f"{file.path}: {name} has shape {list(entry.shape)}, expected (rows, hidden_size)."
        )
        raise CheckpointError(message, "Save it again.")
    return stored_table(checkpoint, location, file, entry)


def stored_table(
    checkpoint: Checkpoint, location: TableLocation, file: TensorFile, entry: TensorEntry
) -> FoundTable:
    """Return a table that a weights file contains, as a tensor of shape (rows, hidden_size)."""
    rows, hidden_size = entry.shape
    return FoundTable(
        location=location,
        name=entry.name,
        rows=rows,
        hidden_size=hidden_size,
        dtype=entry.dtype,
        file=checkpoint.relative(file),
    )


def unstored_table(location: TableLocation, name: str) -> FoundTable:
    """Return a table that transformers computes from the config, or positions without a table.

    Raises:
        CheckpointError: The config does not state the shape of a computed table.
    """
    if not location.table.has_rows:
        return FoundTable(location, name, rows=0, hidden_size=0)
    rows, hidden_size = computed_shape(location)
    return FoundTable(location, name, rows=rows, hidden_size=hidden_size)


def computed_shape(location: TableLocation) -> tuple[int, int]:
    """Return rows and hidden size of the table that transformers computes from the config.

    Raises:
        CheckpointError: The config does not state them.
    """
    assert isinstance(location.table, SinusoidalTable)
    rows = location.rows(location.value(location.effective_key))
    return rows, location.value(str(location.table.width_key))


def context_length(table: FoundTable) -> int:
    """Return the usable positions of a table, or of positions without a table.

    Raises:
        CheckpointError: The config states no valid length of positions without a table.
    """
    location = table.location
    if table.has_rows:
        return location.positions(table.rows)
    length = position_lengths(location).context
    if length < 1:
        message = f"{location.file}: {location.config_key} must be at least 1, got {length}."
        raise CheckpointError(message, f"Correct {location.file}.")
    return length


def tables_of_part(tables: Sequence[FoundTable], part: str | None) -> list[FoundTable]:
    """Return the tables of one part of a model, or all tables if `part` is None.

    Raises:
        ResizeError: The model does not have the part.
    """
    if part is None:
        return list(tables)
    selected = [table for table in tables if f"{table.location.part}.".startswith(f"{part}.")]
    if selected:
        return selected
    parts = dict.fromkeys(table.location.part for table in tables if table.location.part)
    hint = "The model has one position table: remove --part."
    if parts:
        flags = " or ".join(f"--part {name}" for name in parts)
        hint = f"Use {flags}."
    raise ResizeError(f"--part {part}: this model has no such part with a position table.", hint)


def ignored_tensors(checkpoint: Checkpoint, tables: Sequence[FoundTable]) -> Iterator[str]:
    """Yield a note for each stored table that transformers ignores, as it computes the rows."""
    for table in tables:
        if table.location.table.ignores_stored_rows and table.name in checkpoint.weights.entries:
            yield (
                f"transformers computes the rows of {table.name} and ignores the stored ones, "
                "which stay as they are."
            )
