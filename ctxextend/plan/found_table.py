"""The position tables of a model, with their rows and columns."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.foreign_files import FROM_BASE
from ctxextend.checkpoints.safetensors_file import TensorEntry, TensorFile, float_dtype
from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.families.lengths import position_lengths
from ctxextend.positions.positions import Positions
from ctxextend.positions.sinusoids import Sinusoids

MLX_DTYPE = "U32"  # of integers that MLX packs


def measure_table(checkpoint: Checkpoint, location: Positions, name: str) -> Positions:
    """Return a table of a checkpoint, by its name.

    Raises:
        CheckpointError: The stored tensor has an invalid shape or dtype, or the config does not
            state the shape of a computed table.
    """
    is_stored = name in checkpoint.weights.entries and not location.ignores_stored_rows
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
    checkpoint: Checkpoint, location: Positions, file: TensorFile, entry: TensorEntry
) -> Positions:
    """Return a table that a weights file contains, as a tensor of shape (rows, hidden_size)."""
    rows, hidden_size = entry.shape
    return replace(
        location,
        name=entry.name,
        rows=rows,
        hidden_size=hidden_size,
        dtype=entry.dtype,
        weights_file=checkpoint.relative(file),
    )


def unstored_table(location: Positions, name: str) -> Positions:
    """Return a table that transformers computes from the config, or positions without a table.

    Raises:
        CheckpointError: The config does not state the shape of a computed table.
    """
    if not location.has_rows:
        return replace(location, name=name)
    rows, hidden_size = computed_shape(location)
    return replace(location, name=name, rows=rows, hidden_size=hidden_size)


def computed_shape(location: Positions) -> tuple[int, int]:
    """Return rows and hidden size of the table that transformers computes from the config.

    Raises:
        CheckpointError: The config does not state them.
    """
    assert isinstance(location, Sinusoids)
    rows = location.rows_for(location.value(location.effective_key))
    return rows, location.value(str(location.width_key))


def context_length(table: Positions) -> int:
    """Return the usable positions of a table, or of positions without a table.

    Raises:
        CheckpointError: The config states no valid length of positions without a table.
    """
    location = table
    if table.has_rows:
        return location.positions_in(table.rows)
    length = position_lengths(location).context
    if length < 1:
        message = f"{location.file}: {location.length_key} must be at least 1, got {length}."
        raise CheckpointError(message, f"Correct {location.file}.")
    return length


def tables_of_part(tables: Sequence[Positions], part: str | None) -> list[Positions]:
    """Return the tables of one part of a model, or all tables if `part` is None.

    Raises:
        ResizeError: The model does not have the part.
    """
    if part is None:
        return list(tables)
    selected = [table for table in tables if f"{table.part}.".startswith(f"{part}.")]
    if selected:
        return selected
    parts = dict.fromkeys(table.part for table in tables if table.part)
    hint = "The model has one position table: remove --part."
    if parts:
        flags = " or ".join(f"--part {name}" for name in parts)
        hint = f"Use {flags}."
    raise ResizeError(f"--part {part}: this model has no such part with a position table.", hint)


def ignored_tensors(checkpoint: Checkpoint, tables: Sequence[Positions]) -> Iterator[str]:
    """Yield a note for each stored table that transformers ignores, as it computes the rows."""
    for table in tables:
        if table.ignores_stored_rows and table.name in checkpoint.weights.entries:
            yield (
                f"transformers computes the rows of {table.name} and ignores the stored ones, "
                "which stay as they are."
            )
