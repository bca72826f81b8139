"""Read the rows of tables, choose the method of each once, and create its new rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint, no_lm
from ctxextend.errors import ResizeError
from ctxextend.plan.table_plan import TablePlan
from ctxextend.plan.untrained import find_untrained
from ctxextend.settings import Resize
from ctxextend.tables.apply import choose_method, deviation, resize_with_reserved
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import FORMULA, LIMITS
from ctxextend.tables.method_parser import default_choice
from ctxextend.tables.rotary_methods import ROTARY_METHODS


def read_rows(checkpoint: Checkpoint, table: TablePlan) -> NDArray[Any]:
    """Return the stored rows of a table, shape (rows_before, hidden_size).

    With held-out rows, these are fewer than the file has.

    Raises:
        CheckpointError: The file cannot be read.
    """
    return checkpoint.weights.read_floats(table.name)[: table.rows_before]


def resize_rows(table: TablePlan, before: NDArray[Any]) -> NDArray[Any]:
    """Resize a table, shape (rows_before, hidden_size), to (rows_after, hidden_size).

    Raises:
        ResizeError: The new table does not fit in memory.
    """
    positions = table.rows_after - table.reserved_rows
    try:
        return resize_with_reserved(before, table.reserved_rows, positions, table.choice)
    except MemoryError:
        shape = f"({table.rows_after:,}, {table.hidden_size:,})"
        message = f"Out of memory: {table.name} of shape {shape} is too large."
        raise ResizeError(message, "Use a smaller --to.") from None


def choose_methods(
    checkpoint: Checkpoint,
    tables: Sequence[TablePlan],
    settings: Resize,
    recorded: Mapping[str, MethodChoice],
) -> tuple[TablePlan, ...]:
    """Return tables with the method that extends each of them, and what is untrained in it.

    Stored tables that are extended, or whose limits are made to agree, are read once.

    Args:
        checkpoint: The source.
        tables: Its planned tables.
        settings: Their method and its settings, which may leave a choice to the rows.
        recorded: Methods that a recipe records, by table name; they replace the one in `settings`.

    Raises:
        CheckpointError: A table cannot be read.
        ResizeError: The method cannot extend a table.
    """
    chosen = list[TablePlan]()
    for table in tables:
        options = replace(settings, method=recorded.get(table.name, settings.method))
        if table.is_stored:
            if table.is_extended or settings.fix_limits:
                table = _with_rows(checkpoint, table, options)
        elif table.is_extended and table.has_rows:
            # Sinusoids that transformers computes have only one method.
            choice = default_choice(FORMULA).keeping(options.keep_first or 0)
            table = replace(table, choice=choice)
        elif table.is_extended:
            choices = [plan.choice for plan in table.rope] or [MethodChoice(ROTARY_METHODS[LIMITS])]
            reasons = dict.fromkeys(choice.reason for choice in choices if choice.reason)
            table = replace(table, choice=replace(choices[0], reason="; ".join(reasons)))
        chosen.append(table)
    return tuple(chosen)


def _with_rows(checkpoint: Checkpoint, table: TablePlan, options: Resize) -> TablePlan:
    """Return a stored table with its method, which can depend on its rows, and untrained rows."""
    checkpoint.check_unchanged()  # the rows of a file that was cut since cannot be mapped
    rows = read_rows(checkpoint, table)[table.reserved_rows :]
    untrained = find_untrained(checkpoint, table.location, rows)
    table = replace(table, untrained=untrained)
    if not table.is_extended:
        return table
    layout = table.location.initial_layout
    positions = table.rows_after - table.reserved_rows
    choice = choose_method(rows, positions, options.choice, layout, no_lm(checkpoint))
    if layout and choice.name != FORMULA:
        reasons = [reason for reason in (deviation(rows, layout), choice.reason) if reason]
        choice = replace(choice, reason="; ".join(reasons))
    if 2 * (len(untrained.random) + len(untrained.zero)) > table.max_len_before:
        choice = replace(choice, reason="")  # random rows are no reason for anything
    return replace(table, choice=choice)
