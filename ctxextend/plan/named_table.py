"""The position table that the user names with --tensor, --config-key and --reserved-rows."""

from contextlib import suppress

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError, ResizeError, UnsupportedModelError
from ctxextend.families.lookup import Architecture, TableLocation, find_architecture, nested
from ctxextend.families.registry import FAMILIES
from ctxextend.families.schema import LENGTH, Family, LearnedTable, ReservedRows
from ctxextend.plan.table_names import find_names
from ctxextend.recipe import CheckpointRef

CHECK_FLAGS = "Check --tensor, --config-key and --reserved-rows."


def named_architecture(checkpoint: Checkpoint, ref: CheckpointRef) -> Architecture:
    """Return the architecture of a model with only the table that the user names.

    Raises:
        CheckpointError: It does not have the shape of a table, or the config states another length.
    """
    table = str(ref.tensor)
    rows = _rows_of(checkpoint, table)
    key = ref.config_key
    stated = nested(checkpoint.config, tuple((key or "").split(".")))
    if checkpoint.has_config:
        if key is None:
            raise CheckpointError(
                f"--tensor {table}: add --config-key, the key in config.json that states its "
                "length.",
                _hint(checkpoint, table),
            )
        if stated not in (rows, rows - ref.reserved_rows):
            raise CheckpointError(
                f"config.json: {key} is {stated!r}, but {table} has {rows} rows, "
                f"{ref.reserved_rows} of them reserved.",
                _hint(checkpoint, table),
            )
    *path, last = (key or LENGTH).split(".")
    family = Family(str(checkpoint.config.get("model_type") or "unknown"))
    location = TableLocation(
        family=family,
        config=checkpoint.config,
        path=tuple(path),
        table=LearnedTable(
            table,
            config_key=last,
            reserved=ReservedRows(ref.reserved_rows, inside_key=stated == rows),
        ),
    )
    return Architecture(family, (location,))


def _rows_of(checkpoint: Checkpoint, table: str) -> int:
    """Return the number of rows of a tensor.

    Raises:
        CheckpointError: The tensor is missing, or has another number of dimensions.
    """
    shape = checkpoint.weights.entries[table].shape if table in checkpoint.weights.names else ()
    if len(shape) == 2:
        return shape[0]
    fault = f"no such tensor in {checkpoint.root}"
    hint = _hint(checkpoint)
    if shape:
        fault = f"it has shape {list(shape)}, expected (rows, hidden_size)"
    elif checkpoint.config.get("model_type") in FAMILIES:
        hint = "Remove --tensor: the tables of this type are known."
    raise CheckpointError(f"--tensor {table}: {fault}.", hint)


def check_named_table(checkpoint: Checkpoint, ref: CheckpointRef) -> None:
    """Check that no other table of a known model type shares the length of the one in --tensor.

    Raises:
        ResizeError: One does.
    """
    if ref.tensor is None:
        return
    with suppress(CheckpointError, UnsupportedModelError):  # of other types, nothing more is known
        architecture = find_architecture(checkpoint.config)
        for location, name in find_names(architecture, checkpoint.weights.names, ""):
            if name != ref.tensor and location.config_key == ref.config_key:
                raise ResizeError(
                    f"--tensor {ref.tensor}: {name} shares the config key {location.config_key}, "
                    "so both must be resized together.",
                    "Remove --tensor.",
                )


def _hint(checkpoint: Checkpoint, table: str | None = None) -> str:
    """Return the flags that fit the weights, where there are any."""
    from ctxextend.plan.suggestions import suggest_tensor  # only errors need it

    return suggest_tensor(checkpoint, table) or CHECK_FLAGS
