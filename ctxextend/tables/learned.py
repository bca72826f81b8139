"""Which rows of a resized table are new, and which still are learned ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.options import MethodOptions
from ctxextend.tables.resizing import resize_table

__all__ = ["learned_rows", "still_learned"]

Mask = NDArray[np.bool_]

# Numbers of a row of the table that is resized to see which rows of any table are learned ones.
TRIED_WIDTH = 8


def learned_rows(before: NDArray[np.generic], after: NDArray[np.generic]) -> Mask:
    """Return which rows of a table were learned before it was resized.

    A row that stands where it stood, and is what it was, is a learned one. So is the first that equals a learned row
    which is no longer in its own place: interpolation in whole steps puts row i at i times the step, and the rows in
    between are new (Zhu et al. 2024, LongEmbed, section 4.3, arXiv:2404.12096, which tunes those alone). A second copy
    of a learned row is new.

    Args:
        before: The table as it was, rows in front of position 0 left out, shape (n, d).
        after: The table as it is, in the same dtype, shape (m, d).

    Returns:
        Shape (m,), true for learned rows.
    """
    stayed = _equal_rows(before[: len(after)], after[: len(before)])
    learned = np.zeros(len(after), np.bool_)
    learned[: len(stayed)] = stayed
    gone = (place for place in range(len(before)) if place >= len(stayed) or not stayed[place])
    moved = {before[place].tobytes() for place in gone}
    for place in np.flatnonzero(~learned):
        key = after[place].tobytes()
        if key in moved:
            learned[place] = True
            moved.discard(key)
    return learned


def still_learned(learned: int, resizes: Sequence[tuple[int, MethodOptions]]) -> Mask:
    """Return which rows of a table are learned ones after it was resized, whatever their values.

    A coarse dtype can make rows between two learned ones equal to one of them; here they are new all the same.

    Args:
        learned: Rows that it had at first, rows in front of position 0 left out.
        resizes: The rows that each resize gave it, and how.

    Returns:
        Shape (m,), true for learned rows.

    Raises:
        ResizeError: A resize that cannot be.
    """
    before = table = np.random.default_rng(0).normal(size=(learned, TRIED_WIDTH)).astype(np.float32)
    for rows, options in resizes:
        table = resize_table(table, rows, options)
    return learned_rows(before, table)


def _equal_rows(one: NDArray[np.generic], other: NDArray[np.generic]) -> Mask:
    """Return which rows of two tables of one shape are equal, bit for bit."""
    bits = (np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1) for rows in (one, other))
    return np.asarray(np.equal(*bits).all(axis=1), np.bool_)
