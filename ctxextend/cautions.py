"""What the user should know of a resize, before it and after it."""

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from ctxextend.changes import Changes
from ctxextend.outputtexts import limits_below
from ctxextend.tableplan import TablePlan
from ctxextend.tables.resizing import nonfinite_rows

__all__ = ["cautions", "nonfinite"]


def cautions(changes: Changes) -> Iterator[str]:
    """Yield a sentence for whatever is not as one would expect, known from shapes alone."""
    yield from _equal_length(changes)
    yield from limits_below(changes)
    yield from _without_config(changes)
    yield from _of_an_adapter(changes)
    yield from _left_alone(changes)
    yield from _code_files(changes)


def _equal_length(changes: Changes) -> Iterator[str]:
    if not changes.is_changed:
        flags = changes.recipe.resize.method_flags
        ignored = f" {', '.join(flags)} had nothing to do." if flags else ""
        what = "the same weights as safetensors" if changes.rewritten else "a copy"
        what += ", with the limits mended" if changes.edits else ""
        yield f"The table has {changes.max_len_before} positions already: the output is {what}.{ignored}"


def _without_config(changes: Changes) -> Iterator[str]:
    if not changes.checkpoint.has_config and not changes.checkpoint.is_adapter:
        lengths = {table.config_key: table.place.key_value(table.max_len_after) for table in changes.tables}
        keys = ", ".join(f"{key} {length}" for key, length in lengths.items())
        yield f"There is no config.json: the one that transformers will need must state {keys}."


def _of_an_adapter(changes: Changes) -> Iterator[str]:
    if changes.checkpoint.is_adapter and changes.is_changed:
        yield (
            f"The adapter now fits {changes.checkpoint.base} at {changes.max_len_after} positions alone: resize that "
            "too, and load the adapter onto the result, since adapter_config.json still names the old one."
        )


def _left_alone(changes: Changes) -> Iterator[str]:
    """Yield what may follow the length too in a model that was described by hand."""
    if changes.recipe.resize.table is None or not changes.is_changed:
        return
    lengths = {length for table in changes.tables for length in (table.rows_before, table.max_len_before)}
    names = {table.name for table in changes.tables}
    for file in changes.checkpoint.weights:
        for entry in file.entries.values():
            if entry.name not in names and "pos" in entry.name and lengths & set(entry.shape):
                yield f"{entry.name} {list(entry.shape)} may follow the length too, and is left as it is."


def _code_files(changes: Changes) -> Iterator[str]:
    code = [name for name in changes.copied if name.endswith(".py")]
    if code:
        yield f"The folder holds code, which was not run and is copied: {', '.join(code)}."


def nonfinite(table: TablePlan, before: NDArray[Any], after: NDArray[Any]) -> Iterator[str]:
    """Yield a sentence where a table holds what is no number, or got it by the method or the dtype.

    Args:
        table: What became of it.
        before: Its rows, shape (rows_before, hidden_size).
        after: Its new rows, shape (rows_after, hidden_size).
    """
    bad, written = nonfinite_rows(before), len(nonfinite_rows(after))
    if bad:
        listed = ", ".join(map(str, bad[:10])) + (f" and {len(bad) - 10} more" if len(bad) > 10 else "")
        plural = "s" if len(bad) > 1 else ""
        yield (
            f"{table.name} holds NaN or infinity in row{plural} {listed}; "
            f"{written} of the {len(after)} rows that were written hold them."
        )
    elif written:
        yield f"{written} new rows of {table.name} go beyond what {table.dtype} can hold, and are infinite."
