"""Create the rows of a planned table."""

from typing import Any

from numpy.typing import NDArray

from ctxextend.errors import ResizeError
from ctxextend.plan.table_plan import TablePlan
from ctxextend.tables.apply import resize_with_reserved
from ctxextend.tables.choice import MethodChoice


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
