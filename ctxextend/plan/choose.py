"""Read the rows of tables, choose the method of each once, and create its new rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint, no_lm
from ctxextend.errors import ResizeError
from ctxextend.plan.table_plan import TablePlan
from ctxextend.plan.untrained import UntrainedRows, find_untrained
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


def resize_rows(table: TablePlan, before: NDArray[Any], choice: MethodChoice) -> NDArray[Any]:
    """Resize a table, shape (rows_before, hidden_size), to (rows_after, hidden_size).

    Raises:
        ResizeError: The new table does not fit in memory.
    """
    positions = table.rows_after - table.reserved_rows
    try:
        return resize_with_reserved(before, table.reserved_rows, positions, choice)
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
        if not table.has_rows:
            table = replace(table, choice=_rotary_choice(table))
        elif not table.is_stored:
            table = replace(table, choice=_formula_choice(table, options))
        elif table.is_extended or settings.fix_limits:
            table = _with_rows(checkpoint, table, options)
        chosen.append(table)
    return tuple(chosen)


def _rotary_choice(table: TablePlan) -> MethodChoice | None:
    """Return the method of rotary settings that change, or of length limits only."""
    if not table.is_extended:
        return None
    choices = [plan.choice for plan in table.rope] or [MethodChoice(ROTARY_METHODS[LIMITS])]
    reasons = dict.fromkeys(choice.reason for choice in choices if choice.reason)
    return replace(choices[0], reason="; ".join(reasons))


def _formula_choice(table: TablePlan, options: Resize) -> MethodChoice | None:
    """Return the only method of sinusoids that transformers computes."""
    if not table.is_extended:
        return None
    return default_choice(FORMULA).keeping(options.keep_first or 0)


def _with_rows(checkpoint: Checkpoint, table: TablePlan, options: Resize) -> TablePlan:
    """Return a stored table with its method, which can depend on its rows, and untrained rows."""
    checkpoint.check_unchanged()  # the rows of a file that was cut since cannot be mapped
    rows = read_rows(checkpoint, table)[table.reserved_rows :]
    untrained = find_untrained(checkpoint, table.location, rows)
    if not table.is_extended:
        return replace(table, untrained=untrained)
    choice = _choose(rows, table, options.choice, no_lm(checkpoint))
    if _is_mostly_untrained(untrained, table):
        choice = replace(choice, reason="")  # random rows are no reason for anything
    return replace(table, choice=choice, untrained=untrained)


def _choose(
    rows: NDArray[Any], table: TablePlan, requested: MethodChoice, no_lm: str
) -> MethodChoice:
    """Return the method of a stored table, with the reason for what its rows decide."""
    layout = table.location.layout
    positions = table.rows_after - table.reserved_rows
    choice = choose_method(rows, positions, requested, layout, no_lm)
    if not layout or choice.name == FORMULA:
        return choice
    reasons = [reason for reason in (deviation(rows, layout), choice.reason) if reason]
    return replace(choice, reason="; ".join(reasons))


def _is_mostly_untrained(untrained: UntrainedRows, table: TablePlan) -> bool:
    """Whether training has changed less than half of the rows of a table."""
    count = len(untrained.random) + len(untrained.zero)
    return 2 * count > table.max_len_before
