"""One position table: found in a checkpoint, checked against its config, and given its new length."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.limits import Edit
from ctxextend.checkpoints.tensorfile import TensorFile, float_dtype
from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.families.schema import Family, Table
from ctxextend.recipe import Resize
from ctxextend.tables.resizing import check_source_rows

__all__ = ["TablePlan", "check_length", "check_rows", "config_edits", "plan_table"]


@dataclass(frozen=True)
class TablePlan:
    """What becomes of one position table.

    Attributes:
        name: Its tensor in the checkpoint.
        file: The file that holds it, below the checkpoint's root.
        config_key: The key of config.json that states its length.
        max_len_before: Usable token positions now.
        max_len_after: Usable token positions wanted.
        rows_before: Rows now: offset + max_len_before.
        rows_after: Rows wanted: offset + max_len_after.
        offset: Rows in front of position 0, which stay as they are.
        hidden_size: Columns.
        dtype: As safetensors spells it.
    """

    name: str
    file: str
    config_key: str
    max_len_before: int
    max_len_after: int
    rows_before: int
    rows_after: int
    offset: int
    hidden_size: int
    dtype: str


def plan_table(checkpoint: Checkpoint, family: Family, table: Table, settings: Resize) -> TablePlan:
    """Find a family's table in a checkpoint and say what becomes of it.

    Raises:
        CheckpointError: There is no such table, or two, or it disagrees with the config.
        ResizeError: The length or a flag cannot be served for this table.
    """
    file, name = _find_table(checkpoint, family, table)
    rows, hidden_size = _shape(file, name)
    check_rows(checkpoint.config, family, table, rows, name)
    offset = family.offset_rows(table, checkpoint.config)
    check_length(settings, rows - offset, name)
    return TablePlan(
        name=name,
        file=checkpoint.relative(file),
        config_key=table.config_key,
        max_len_before=rows - offset,
        max_len_after=settings.to,
        rows_before=rows,
        rows_after=settings.to + offset,
        offset=offset,
        hidden_size=hidden_size,
        dtype=file.entries[name].dtype,
    )


def check_length(settings: Resize, learned: int, name: str) -> None:
    """Refuse flags that mean nothing, or leave nothing, for a table of `learned` positions.

    Raises:
        ResizeError: A method's flag with a shorter table, or no row left to make new ones from.
    """
    if settings.to < learned and settings.method_flags:
        raise ResizeError(
            f"{', '.join(settings.method_flags)} has no meaning here: {settings.to} positions are fewer than the "
            f"{learned} that {name} has, and a shorter table is its first rows.",
            "Leave it out.",
        )
    if settings.to > learned:
        check_source_rows(learned, settings.options)


def check_rows(config: Mapping[str, Any], family: Family, table: Table, rows: int, name: str) -> None:
    """Refuse a table that is not as long as the config says.

    Raises:
        CheckpointError: They disagree, or no row is left behind the offset.
    """
    offset = family.offset_rows(table, config)
    for key in [key for key in (table.config_key, *table.aliases) if key in config] or [table.config_key]:
        value = family.config_value(key, config)
        expected = value if table.offset.inside_key else value + offset
        if rows != expected:
            how = "" if key in config else " (transformers' default, since the key is missing)"
            raise CheckpointError(
                f"config.json states {key} {value}{how}, so {name} should have {expected} rows, and it has {rows}.",
                "Correct config.json, or fetch config and weights again: they do not belong together.",
            )
    if rows <= offset:
        raise CheckpointError(
            f"{name} has {rows} rows, and {offset} of them stand in front of position 0.",
            f"Check {table.offset.config_key} in config.json.",
        )


def _find_table(checkpoint: Checkpoint, family: Family, table: Table) -> tuple[TensorFile, str]:
    names = family.table_names(table)
    found = [(match[0], name) for name in names if (match := checkpoint.find(name))]
    if not found:
        raise CheckpointError(
            f"{checkpoint.root}: no position table was found; a {family.model_type} model calls it "
            f"{' or '.join(names)}.",
            "Check that model_type in config.json and the weights belong together.",
        )
    if len(found) > 1:
        raise CheckpointError(
            f"{checkpoint.root}: there are two candidate tables, {' and '.join(name for _, name in found)}.",
            "Save the model again with save_pretrained, which writes one.",
        )
    return found[0]


def _shape(file: TensorFile, name: str) -> tuple[int, int]:
    shape = file.entries[name].shape
    float_dtype(file, name)
    if len(shape) != 2 or 0 in shape:
        raise CheckpointError(
            f"{file.path}: {name} has shape {list(shape)}, not rows by hidden size.", "Save it again."
        )
    return shape[0], shape[1]


def config_edits(checkpoint: Checkpoint, family: Family, tables: tuple[TablePlan, ...]) -> Iterator[Edit]:
    """Yield the changes to config.json that go with the tables' new lengths."""
    for table, plan in zip(family.tables, tables, strict=True):
        if plan.rows_before == plan.rows_after:
            continue
        length = table.stated_length(plan.max_len_after, plan.offset)
        for key in table.length_keys(checkpoint.config):
            yield Edit(checkpoint.config_file, (key,), checkpoint.config.get(key), length)
