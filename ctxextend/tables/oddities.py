"""Rows of a position table that are unlike the others: outliers, repetitions, seams, and rows that nobody trained."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.medians import median
from ctxextend.tables.stats import TableStats

__all__ = ["Repetition", "outlier_rows", "repetition", "seams", "untrained_rows"]

Table = NDArray[Any]
Floats = NDArray[np.float64]

# Half the rows around a row that it is compared with.
NEIGHBOURHOOD = 8
# From a median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
# Deviations beyond which a row is an outlier.
OUTLYING = 6.0
# What a deviation must be besides, so that a table that is smooth throughout has no outliers.
NORM_FLOOR = 0.2
COSINE_FLOOR = 0.1
# The shortest length whose seams are looked for without being asked.
SHORTEST_LENGTH = 32
# Standard errors within which a row is taken for one that an initialiser drew.
DRAWN = 4.5
NARROWEST = 64


def outlier_rows(norms: Floats, cosines: Floats) -> dict[int, str]:
    """Return the rows that stand out from those around them, each with what stands out and what is usual there.

    A table's norms drift and its neighbours grow apart along the way, so that a rule for the whole table flags what is
    merely at its end. Each row is therefore compared with the 8 on either side of it. A row is an outlier where

    - its norm differs from their median by more than 6 standard deviations and more than 20 % of it, or
    - the better of its two cosines to its neighbours is below their median by more than 6 standard deviations and
      more than 0.1,

    the standard deviation being 1.4826 times the median absolute deviation of all rows from their local medians. Rows
    that are zero or hold no numbers are not counted here.

    Args:
        norms: Norm of each row, shape (n,).
        cosines: Cosine of each row to the next, shape (n - 1,).
    """
    found: dict[int, list[str]] = {}
    norms = np.where(np.isfinite(norms) & (norms > 0), norms, np.nan)
    usual = _local_median(norms)
    for row in _beyond(np.abs(norms - usual), np.abs(usual) * NORM_FLOOR):
        found.setdefault(row, []).append(f"norm {norms[row]:.3g} (usual {usual[row]:.3g})")
    padded = np.concatenate([[np.nan], cosines, [np.nan]])
    best = np.fmax(padded[1:], padded[:-1])
    usual = _local_median(best)
    for row in _beyond(usual - best, np.full(len(best), COSINE_FLOOR), np.abs(usual - best)):
        found.setdefault(row, []).append(f"nearer cosine {best[row]:.2f} (usual {usual[row]:.2f})")
    return {row: ", ".join(why) for row, why in sorted(found.items())}


def _beyond(deviations: Floats, floors: Floats, spread: Floats | None = None) -> list[int]:
    spread = deviations if spread is None else spread
    known = spread[~np.isnan(spread)]
    if not known.size:
        return []
    sigma = MAD_TO_SIGMA * median(known)
    with np.errstate(invalid="ignore"):
        return [int(row) for row in np.flatnonzero(deviations > np.maximum(OUTLYING * sigma, floors))]


def _local_median(values: Floats) -> Floats:
    """Return the median of the values around each one, itself included, fewer at both ends."""
    if not len(values):
        return values
    padded = np.pad(values, NEIGHBOURHOOD, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBOURHOOD + 1)
    # Not nanmedian, which would import numpy.ma: sorted, what is missing stands last.
    known = np.count_nonzero(~np.isnan(windows), axis=1)
    places = np.stack([(known - 1) // 2, known // 2], axis=1).clip(0)
    found: Floats = np.take_along_axis(np.sort(windows, axis=1), places, axis=1).mean(axis=1)
    return found


@dataclass(frozen=True)
class Repetition:
    """Rows that are there more than once, byte for byte.

    Attributes:
        period: Rows after which the table repeats itself; None where it does not.
        start: The first row of the part that repeats.
        stop: The row behind it.
        groups: Other rows that are equal, each group ascending; zero rows are not among them.
    """

    period: int | None
    start: int
    stop: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def copies(self) -> float:
        """How often the period stands there."""
        return (self.stop - self.start) / self.period if self.period else 0.0


def repetition(table: Table) -> Repetition:
    """Find the rows that are there more than once.

    Args:
        table: Shape (n, d), any dtype, offset rows removed.
    """
    found: dict[bytes, list[int]] = {}
    for row in range(len(table)):
        if table[row].any():
            found.setdefault(table[row].tobytes(), []).append(row)
    groups = list(found.values())
    period, start, stop = _tiled(len(table), groups)
    others = (rows for rows in groups if len(rows) > 1)
    outside = tuple(tuple(rows) for rows in others if period is None or not start <= rows[0] < rows[-1] < stop)
    return Repetition(period, start, stop, outside)


def _tiled(rows: int, groups: list[list[int]]) -> tuple[int | None, int, int]:
    """Return the commonest distance of a row to its equal before it, and the stretch that repeats after it most."""
    repeated = [after - before for group in groups for before, after in pairwise(group)]
    if not repeated:
        return None, 0, 0
    counts = Counter(repeated)
    period = min(counts, key=lambda distance: (-counts[distance], distance))
    which = np.zeros(rows, dtype=np.int64)  # zero rows are equal too, but tell nothing by themselves
    for number, group in enumerate(groups, 1):
        which[group] = number
    same = which[period:] == which[:-period]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
    starts, stops = edges[::2], edges[1::2]
    told = [np.count_nonzero(which[start:stop]) for start, stop in zip(starts, stops, strict=True)]
    best = int(np.argmax(told))
    if told[best] < 2:
        return None, 0, 0
    return period, int(starts[best]), int(stops[best]) + period


def seams(stats: TableStats, lengths: set[int]) -> dict[int, tuple[int, ...]]:
    """Find the positions at which the table jumps where an older one may have ended.

    A jump is a step from one row to the next that is longer than the 8 on either side of it by more than 6 standard
    deviations (as in `outlier_rows`) and more than half of their median.

    Args:
        stats: The table's figures.
        lengths: Lengths that it is known to have had; powers of two from 32 on are tried after them.

    Returns:
        By each length that it jumps at, those of its multiples at which it jumps, each position once.
    """
    rows, usual = len(stats.norms), _local_median(stats.steps)
    jumps = {step + 1 for step in _beyond(stats.steps - usual, usual / 2, np.abs(stats.steps - usual))}
    powers = [2**k for k in range(SHORTEST_LENGTH.bit_length() - 1, rows.bit_length())]
    found: dict[int, tuple[int, ...]] = {}
    for length in [*sorted(lengths), *powers]:
        if length in jumps:
            # A step as long as one within the older table is that step, seen again: forwards, or back from a turn.
            learned = set(stats.steps[: length - 1].tolist())
            places = (position for position in range(length, rows, length) if position in jumps)
            here = tuple(position for position in places if stats.steps[position - 1] not in learned)
            found |= {length: here} if here else {}
            jumps -= set(here)
    return found


def untrained_rows(table: Table, stats: TableStats, deviations: tuple[float, ...]) -> dict[int, float]:
    """Find the rows that look as an initialiser left them: independent normal numbers of a known deviation.

    Of d such numbers the norm is s·√d within s/√2, and the cosine to any other row is 0 within 1/√d, both as
    standard errors; their mean is 0 within s/√d. A row for which all of these hold within 4.5 standard errors, the
    cosines to both neighbours included, is taken for one.

    Args:
        table: Shape (n, d), any float dtype, offset rows removed.
        stats: Its figures.
        deviations: The standard deviations s that an initialiser may have had.

    Returns:
        The rows, each with the s that it fits; none of tables less than 64 wide, where chance alone would do.
    """
    width = table.shape[1]
    if width < NARROWEST:
        return {}
    padded = np.concatenate([[np.nan], stats.cosines, [np.nan]])
    apart = np.fmax(np.abs(padded[1:]), np.abs(padded[:-1])) < DRAWN / np.sqrt(width)
    found: dict[int, float] = {}
    for sigma in deviations:
        with np.errstate(invalid="ignore"):
            near = np.abs(stats.norms - sigma * np.sqrt(width)) < DRAWN * sigma / np.sqrt(2)
        for row in np.flatnonzero(apart & near):
            if abs(float(table[row].astype(np.float64).mean())) < DRAWN * sigma / np.sqrt(width):
                found.setdefault(int(row), sigma)
    return dict(sorted(found.items()))
