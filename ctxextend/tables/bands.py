"""A table in two bands: a slow curve, where in the text a row stands, and a fast one, which neighbour it is.

Interpolation keeps the first and ruins the second, by which heads find the token before theirs; copying keeps the
second and breaks the first at every seam. `bands` stretches the one and repeats the other.
"""

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.bandsplit import SEAM, Split, choose_split, default_gain, smoothed
from ctxextend.tables.components import BLOCK_ROWS

__all__ = ["bands"]

Rows = NDArray[np.float64]
Places = NDArray[np.int64]


def bands(
    table: Rows,
    rows: int,
    *,
    keep: int = 0,
    sigma: float | None = None,
    repeat: tuple[int, int] | None = None,
    gain: float | None = None,
) -> Rows:
    """Stretch the slow band of the learned rows, and repeat the fast one as it was learned.

    The slow band S is the rows smoothed by a Gaussian of `sigma` rows (local linear, so that its ends do not bend), the
    fast band F what that leaves. Row t is mean + gain·(S(u) - mean + F(v)): u is where linear interpolation that keeps
    both ends reads the table, and v runs on row by row, from `repeat`'s end back to its start, blended over 8 rows on
    either side. Rows at either end that are unlike the others are no part of it; those in front stay.

    Args:
        table: Learned rows, shape (n, d), float64.
        rows: Rows wanted, m ≥ n.
        keep: Rows at the start that stay as they are; the slow band is stretched from the last of them on, and held
            where all stay.
        sigma: Rows, ≥ 0; at 0 nothing is fast, and it is linear interpolation, widened by `gain`. None is chosen from
            the table.
        repeat: The source rows that repeat, from the first to one behind the last. None is chosen from the table.
        gain: By how much rows lie farther from the mean than they were learned: longer texts have more to attend to.
            None is 1 + 0.2·log2(m / n), or where far rows are much like near ones 1 + 0.1·log2(m / n), at most 1.6.

    Returns:
        Shape (m, d), float64.

    Source: our own; after YaRN, Peng et al. 2023, sections 3.2 and 3.4, arXiv:2309.00071 (rotary positions), which
        stretches slow rotations, keeps fast ones, and sharpens attention with length.
    """
    if rows == len(table):
        return table.copy()
    split = choose_split(table, keep=keep, sigma=sigma, repeat=repeat)
    source = table[split.head : split.stop]
    slow = smoothed(source, split.sigma) if split.sigma else source
    mean = _mean(slow)
    widened = default_gain(split, len(table), rows) if gain is None else gain
    first = max(split.head, keep)
    places = _places(max(split.head, keep - 1), split.stop - 1, rows) - split.head
    old, new, share = _turns(split, np.arange(rows)) if split.sigma else (places, places, places)
    result = np.empty((rows, table.shape[1]))
    result[:first] = table[:first]
    for start in range(first, rows, BLOCK_ROWS):
        block = slice(start, min(start + BLOCK_ROWS, rows))
        made = _read(slow, places[block])
        if split.sigma:
            weight = share[block, None]
            made += (1 - weight) * (source[old[block]] - slow[old[block]])
            made += weight * (source[new[block]] - slow[new[block]])
        result[block] = made + (widened - 1) * (made - mean)
    return result


def _mean(rows: Rows) -> Rows:
    """Return the mean of the rows that are numbers: one that is not must not spoil all others."""
    finite = np.isfinite(rows).all(axis=1)
    if finite.all():
        return np.asarray(rows.mean(axis=0), np.float64)
    return rows[finite].mean(axis=0) if finite.any() else np.zeros(rows.shape[1])


def _places(first: int, last: int, rows: int) -> Rows:
    """Return where each row of a longer table is read: to `first` in place, from there to `last` in equal steps."""
    steps = np.maximum(np.arange(rows) - first, 0)
    return np.minimum(np.arange(rows), first) + steps * (max(last - first, 0) / max(rows - 1 - first, 1))


def _read(rows: Rows, places: Rows) -> Rows:
    """Return rows between rows, linearly, and behind the last that."""
    places = np.minimum(places, len(rows) - 1)
    lower = np.clip(np.floor(places).astype(np.int64), 0, max(len(rows) - 2, 0))
    weight = (places - lower)[:, None]
    return (1 - weight) * rows[lower] + weight * rows[np.minimum(lower + 1, len(rows) - 1)]


def _turns(split: Split, rows: Places) -> tuple[Places, Places, Rows]:
    """Return for each row of a longer table its row of the fast band, the one that it fades into, and how far."""
    start, stop = (end - split.head for end in split.repeat)
    last, length = split.stop - split.head - 1, max(stop - start, 1)
    run = rows - split.head - stop
    since = run % length
    step = np.where(length - since <= SEAM, since - length, since)  # from the nearest seam, where one is near
    near = (run >= -SEAM) & (step < SEAM)
    old = np.where(near, stop + step, np.where(run < 0, rows - split.head, start + since))
    new = np.where(near, start + step, old)
    share = np.where(old > last, 1.0, np.where(near, (step + SEAM + 0.5) / (2 * SEAM), 0.0))
    return old.clip(0, last), new.clip(0, last), share
