"""Check that a config states the rows and the width of a position table."""

import reprlib

from ctxextend.errors import CheckpointError
from ctxextend.families.registry import fact
from ctxextend.positions.positions import Positions, whole_number

# Config keys of the width of a position table. Each model type states one of them, or, if it has
# its own, the first of these that its config states; a table with none is not as wide as any key
# says.
WIDTH_KEYS = ("d_model", "n_embd", "emb_dim", "embed_dim", "dim", "hidden_size")
OWN_WIDTH_KEYS = fact("width_keys")
OTHER_WIDTH_PARTS = {("lilt", "layout")}  # whose width is only a share of hidden_size


def check_rows(table: Positions, *, has_config: bool = True) -> None:
    """Check that a table of rows has a position, and the rows that its config states.

    Args:
        table: The table.
        has_config: Whether the number of rows must be that of the config.

    Raises:
        CheckpointError: It does not.
    """
    location = table
    if has_config:
        key = location.effective_key
        value = location.value(key)
        expected = location.rows_for(value)
        if table.rows != expected:
            default = ""
            if location.stated(key) is None:
                default = " (transformers' default, because the key is missing)"
            path = ".".join((*location.path, key))
            message = (
                f"{location.file}: {path} is {reprlib.repr(value)}{default}, so {table.name} "
                f"should have {reprlib.repr(expected)} rows, but has {table.rows}."
            )
            hint = (
                f"Correct {location.file} (see ctxextend inspect MODEL --check), resize with "
                "--fix-limits, which takes the length of the table, or download config and weights "
                "again."
            )
            raise CheckpointError(message, hint)
    if location.positions_in(table.rows) >= 1:
        return
    after = ""
    if location.extra_rows:
        after = f" and {location.extra_rows} come after the last position"
    message = (
        f"{table.name} has {table.rows} rows, of which {location.reserved_rows} are "
        f"reserved{after}: no position is left."
    )
    reserved = location.reserved.config_key or "the number of reserved rows"
    raise CheckpointError(message, f"Check {reserved} and {location.length_key}.")


def stated_width(location: Positions, columns: int) -> tuple[str, int] | None:
    """Return the config key, with dots, that states the width of a table, and its value.

    A config may state a width twice, under the name that its model type uses and under another: the
    one that is right counts.

    Args:
        location: The table.
        columns: Its width.

    Returns:
        None if the config states no such key, so that transformers' default applies, or if the key
        is unknown.
    """
    family = location.family
    is_named_by_user = not family.tables  # no more is known of it
    if is_named_by_user or (family.model_type, location.part) in OTHER_WIDTH_PARTS:
        return None
    own = OWN_WIDTH_KEYS.get(family.model_type)
    prefix = location.config_key.rpartition(".")[0]
    widths = list[tuple[str, int]]()
    for key in own or WIDTH_KEYS:
        if prefix:
            key = f"{prefix}.{key}"
        value = whole_number(location.stated(key))
        if value is not None:
            widths.append((".".join((*location.path, key)), value))
    if own == () or not widths:
        return None
    if own is None:
        for key, value in widths:
            if value == columns:
                return key, value
    return widths[0]


def check_width(location: Positions, columns: int, name: str) -> None:
    """Check that the config states no other width than a stored table has.

    Raises:
        CheckpointError: It does.
    """
    stated = stated_width(location, columns)
    if stated is None:
        return
    key, value = stated
    if value != columns:
        message = (
            f"{location.file}: {key} is {reprlib.repr(value)}, but {name} has {columns} columns."
        )
        hint = (
            "Correct config.json, or download config and weights again: transformers cannot load "
            "them together."
        )
        raise CheckpointError(message, hint)
