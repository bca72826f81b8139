"""The position table that the user names with --table."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.errors import CheckpointError, ResizeError, UnsupportedModelError
from ctxextend.families.registry import FAMILIES, Architecture, find_architecture
from ctxextend.kinds import TableName
from ctxextend.positions.facts import LENGTH, Family, ReservedRows
from ctxextend.positions.positions import Positions, nested
from ctxextend.positions.rows import Rows

CHECK_FLAGS = "Check --table NAME:KEY:RESERVED."


def named_architecture(checkpoint: Checkpoint, table: TableName) -> Architecture:
    """Return an architecture with only the table that the user names; no registry entry is read.

    Raises:
        CheckpointError: The tensor does not have the shape of a table, or the config states another
            length.
    """
    config = checkpoint.config
    if table.tensor not in checkpoint.weights.entries:
        hint = table_flags(checkpoint) or CHECK_FLAGS
        if str(config.get("model_type")) in FAMILIES:
            hint = "Remove --table: the tables of this type are known."
        message = f"--table {table.tensor}: no such tensor in {checkpoint.root}."
        raise CheckpointError(message, hint)
    shape = checkpoint.weights.entries[table.tensor].shape
    if len(shape) != 2:
        message = (
            f"--table {table.tensor}: it has shape {list(shape)}, expected (rows, hidden_size)."
        )
        raise CheckpointError(message, table_flags(checkpoint) or CHECK_FLAGS)
    rows = shape[0]
    inside_key = False
    if checkpoint.has_config:
        hint = table_flags(checkpoint, table.tensor) or CHECK_FLAGS
        if table.config_key is None:
            message = f"--table {table}: the key in config.json that states its length is missing."
            raise CheckpointError(message, hint)
        stated = nested(config, tuple(table.config_key.split(".")))
        if stated not in (rows, rows - table.reserved_rows):
            message = (
                f"config.json: {table.config_key} is {stated!r}, but {table.tensor} has {rows} "
                f"rows, {table.reserved_rows} of them reserved."
            )
            raise CheckpointError(message, hint)
        inside_key = stated == rows
    *path, last = (table.config_key or LENGTH).split(".")  # a folder without a config needs no key
    family = Family(str(config.get("model_type") or "unknown"))
    tokenizer: str | None = ""
    if any(other.tokenizer is not None for other in _known_tables(checkpoint, table)):
        tokenizer = None  # that table reads the tokens
    location = Rows(
        family=family,
        tokenizer=tokenizer,
        config=config,
        path=tuple(path),
        tensor=table.tensor,
        config_key=last,
        reserved=ReservedRows(rows=table.reserved_rows, inside_key=inside_key),
    )
    return Architecture(family, (location,))


def check_named_table(checkpoint: Checkpoint, table: TableName) -> None:
    """Check that no other table of a known model type shares the length of the one in --table.

    Raises:
        ResizeError: One does.
    """
    for other in _known_tables(checkpoint, table):
        if other.length_key == table.config_key:
            message = (
                f"--table {table}: {other.name} shares the config key {other.length_key}, so both "
                "must be resized together."
            )
            raise ResizeError(message, "Remove --table.")


def _known_tables(checkpoint: Checkpoint, table: TableName) -> list[Positions]:
    """Return the other tables of a known model type."""
    try:
        architecture = find_architecture(checkpoint.config)
        # Its errors are not shown, so they need not say where the names are from.
        named = architecture.match_names(checkpoint.weights.entries, where="")
    except (CheckpointError, UnsupportedModelError):
        return []
    return [other for other in named if other.name != table.tensor]


def table_flags(checkpoint: Checkpoint, table: str | None = None) -> str:
    """Return a hint with the flags of the tensors that may be the position table.

    They have as many rows as an integer of the config. Tensors whose names differ only in a number
    are those of layers.

    Args:
        checkpoint: The model.
        table: The only tensor to consider, which the user named.

    Returns:
        Empty if there are none.
    """
    keys = dict[int, list[str]]()
    for key, value in _integers(checkpoint.config):
        keys.setdefault(value, []).append(key)
    names = list(checkpoint.weights.entries) if table is None else [table]
    alike = Counter(re.sub("[0-9]+", "*", name) for name in names)
    flags = list[str]()
    for name in names:
        shape = checkpoint.weights.entries[name].shape
        if len(shape) != 2 or alike[re.sub("[0-9]+", "*", name)] > 1:
            continue
        for key in keys.get(shape[0], ()):
            flags.append(shlex.join(["--table", f"{name}:{key}"]))
    if not flags:
        return ""
    listed = "; ".join(flags)
    return f"Name the table, which has as many rows as a key of config.json states: {listed}."


def _integers(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _integers(value, f"{path}{key}.")
        elif type(value) is int:
            yield f"{path}{key}", value
