"""From a table as it is stored to the same table at another length, in the same dtype."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import ResizeError
from ctxextend.tables.bandsplit import SHORTEST
from ctxextend.tables.components import BLOCK_ROWS
from ctxextend.tables.options import MethodOptions
from ctxextend.tables.registry import METHODS

__all__ = ["cast", "check_source_rows", "explain_choice", "nonfinite_rows", "resize_behind", "resize_table"]

Table = NDArray[Any]


def resize_table(table: Table, rows: int, options: MethodOptions | None = None) -> Table:
    """Return the table with another number of rows.

    A shorter table is the first rows, and an equal one the same rows: `options` is read only to make new rows.
    The method works in float64, unless it repeats rows. It sees rows [keep_first : n - drop_last] and is asked for
    rows - keep_first rows, so that row t continues the source as if the dropped rows had never been learned; learned
    rows that stay are then put back as they were stored, without a cast. Methods that read what is kept are given it
    too.

    Args:
        table: Learned rows, shape (n, d), any float dtype (ml_dtypes' too), offset rows removed.
        rows: Rows wanted, m ≥ 1.
        options: The method and its flags; None is `copy`.

    Returns:
        Shape (m, d), `table`'s dtype, contiguous, a copy.

    Raises:
        ResizeError: As `check_source_rows`.
    """
    options = options or MethodOptions()
    learned = len(table)
    if rows <= learned:
        return table[:rows].copy()
    check_source_rows(learned, rows, options)
    first = options.kept_first
    method = METHODS[options.method]
    unread = 0 if method.reads_kept else first
    source = table[unread : learned - options.drop_last]
    flags = options.flags | ({"start": first} if method.takes_start else {})
    flags |= {"keep": first} if method.reads_kept else {}
    kept = options.kept_of(learned)
    result = np.empty((rows, table.shape[1]), dtype=table.dtype)
    result[:kept] = table[:kept]
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is for the caller to find and to name
        made = method.function(source if method.repeats_rows else source.astype(np.float64), rows - unread, **flags)
        for start in range(kept, rows, BLOCK_ROWS):
            block = made[start - unread : start - unread + BLOCK_ROWS]
            result[start : start + BLOCK_ROWS] = block if method.repeats_rows else cast(block, table.dtype)
    return result


def explain_choice(table: Table, rows: int, options: MethodOptions) -> str | None:
    """Say in words what a method chose by a table's own figures; None where it chooses nothing.

    Args:
        table: Learned rows, shape (n, d), any float dtype, offset rows removed.
        rows: Rows wanted, m > n.
        options: The method and its flags.
    """
    explain = METHODS[options.method].explain
    if explain is None:
        return None
    source = table[: len(table) - options.drop_last].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return explain(source, rows, keep=options.kept_first, **options.flags)


def resize_behind(table: Table, offset: int, positions: int, options: MethodOptions) -> Table:
    """Return the table with another number of positions behind its offset rows, which stay as they are.

    Args:
        table: Shape (offset + n, d), any float dtype.
        offset: Rows in front of position 0.
        positions: Positions wanted, m ≥ 1.
        options: The method and its flags.

    Returns:
        Shape (offset + m, d), `table`'s dtype, contiguous, a copy.

    Raises:
        ResizeError: As `resize_table`.
    """
    resized = resize_table(table[offset:], positions, options)
    return np.concatenate([table[:offset], resized]) if offset else resized


def check_source_rows(learned: int, rows: int, options: MethodOptions) -> None:
    """Refuse flags that leave no learned row to make new ones from, and more rows than a method can make.

    Args:
        learned: Learned rows, n.
        rows: Rows wanted, m > n.
        options: The method and its flags.

    Raises:
        ResizeError: keep_first + drop_last ≥ n, or m is beyond the method's bound.
    """
    first, last = options.kept_first, options.drop_last
    method = METHODS[options.method]
    if first >= learned and options.keep_first is None:
        raise ResizeError(
            f"--method {method.name} keeps the first {first} positions as they are, and of {learned} learned ones none "
            "is left to make new rows from.",
            f"Type how many it shall keep: --keep-first {learned // 2}, or any number up to {learned - 1}.",
        )
    if method.reads_kept and first <= learned:
        first = 0  # what is kept is a source too
    for flag, value in (("--keep-first", first), ("--drop-last", last)):
        if value >= learned:
            raise ResizeError(
                f"{flag} {value} takes all {learned} learned positions and leaves none to make new rows from.",
                f"Use at most {learned if method.reads_kept and flag == '--keep-first' else learned - 1}.",
            )
    if first + last >= learned:
        raise ResizeError(
            f"--keep-first {first} and --drop-last {last} together take all {learned} "
            "learned positions and leave none to make new rows from.",
            "Make one of them smaller.",
        )
    if (options.repeat or options.sigma) and learned - last < SHORTEST:
        raise ResizeError(
            f"--{'repeat' if options.repeat else 'sigma'} parts a table of {SHORTEST} rows or more, and "
            f"{learned - last} are read.",
            "Leave it out: shorter tables are stretched.",
        )
    if options.repeat and options.repeat[1] > learned - last:
        raise ResizeError(
            f"--repeat {options.repeat[0]}:{options.repeat[1]} goes beyond the {learned - last} rows that are read.",
            f"Let it end at {learned - last} or before.",
        )
    source = learned - first - last
    if method.most and rows > first + method.most(source):
        most = first + method.most(source)
        raise ResizeError(
            f"--method {method.name} makes {method.most(source)} positions of {source} learned ones and no more, and "
            f"{rows} are wanted.",
            f"Use --to {most} or fewer, or another method." if most > learned else "Use another method.",
        )


def cast(rows: NDArray[np.float64], dtype: np.dtype[Any]) -> Table:
    """Round float64 rows to a float dtype exactly as `torch.Tensor.to` does.

    16- and 8-bit floats go by way of float32, as torch's own conversions do; a value can so be rounded twice.
    """
    if dtype.itemsize >= 4:
        return rows.astype(dtype)
    if dtype.name == "float8_e4m3fn":  # it has no infinity, and torch stops at its largest number
        rows = rows.clip(-448, 448)
    return rows.astype(np.float32).astype(dtype)


def nonfinite_rows(table: Table) -> list[int]:
    """Return the indices of the rows that hold a NaN or an infinity."""
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(table.astype(np.float32) if table.dtype.itemsize < 4 else table)
    return [int(row) for row in np.flatnonzero(~finite.all(axis=1))]
