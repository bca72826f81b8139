"""Statistics of the rows of a position table."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import counted
from ctxextend.tables.layouts import BLOCK_ROWS, Floats

Table = NDArray[Any]
RowRange = tuple[int, int]  # half-open: start and stop

# Norms are plotted on a logarithmic scale if the largest is more than this multiple of the median.
WIDE_SPREAD = 4.0

NEIGHBOURHOOD = 8  # rows on either side that a row is compared with
# Converts a median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
OUTLIER_SIGMAS = 6.0  # standard deviations beyond which a row is an outlier
# Minimum deviations of an outlier, so that smooth tables have none.
NORM_FLOOR = 0.2
COSINE_FLOOR = 0.1
UNTRAINED_ERRORS = 4.5  # standard errors within which a row counts as randomly initialised
UNTRAINED_WIDTH = 64  # minimum width for this test
LISTED_RANGES = 10  # maximum number of row ranges that are listed


@dataclass(frozen=True)
class TableStats:
    """Statistics of a table's rows, without reserved rows."""

    norms: Floats  # Euclidean, shape (n,); NaN or infinity if the row contains one
    # Of each row to the next, shape (n - 1,); NaN if either norm is zero or not finite.
    cosines: Floats
    nonfinite: tuple[int, ...]  # rows that contain NaN or infinity
    zeros: tuple[int, ...]  # rows that are all zero


def measure(table: Table) -> TableStats:
    """Compute statistics of a table in float64.

    `table` has shape (n, d), any float dtype, without reserved rows.
    """
    norms, cosines = norms_and_cosines(table)
    return TableStats(
        norms=norms,
        cosines=cosines,
        nonfinite=tuple(np.flatnonzero(~np.isfinite(norms)).tolist()),
        zeros=tuple(np.flatnonzero(norms == 0).tolist()),
    )


def norms_and_cosines(table: Table) -> tuple[Floats, Floats]:
    """Return the norms of rows, and the cosine of each to the next.

    Args:
        table: Shape (n, d), any float dtype.

    Returns:
        Norms, shape (n,), and cosines, shape (n - 1,).
    """
    norms = np.empty(len(table))
    dots = np.empty(len(table) - 1)
    # Half the time of numpy.linalg.norm, which makes a copy.
    products = partial(np.einsum, "ij,ij->i")
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for start in range(0, len(table), BLOCK_ROWS):
            # With the first row of the next block, which is the neighbour of this one's last row.
            block = table[start : start + BLOCK_ROWS + 1].astype(np.float64)
            own_rows = slice(start, start + BLOCK_ROWS)
            pairs = slice(start, start + len(block) - 1)
            norms[own_rows] = np.sqrt(products(block[:BLOCK_ROWS], block[:BLOCK_ROWS]))
            dots[pairs] = products(block[1:], block[:-1])
        lengths = norms[1:] * norms[:-1]
        cosines = np.where(np.isfinite(lengths) & (lengths > 0), dots / lengths, np.nan)
    return norms, cosines


def median(values: Floats) -> float:
    """Return the median of one or more values without NaN.

    np.median imports numpy.ma, which takes longer than to resize a small checkpoint.
    """
    ordered = np.sort(values)
    middle = ordered[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return float(middle.mean())


def needs_log_scale(reserved_norms: Floats, norms: Floats) -> bool:
    """Whether a linear plot would hide most norms below the largest.

    Reserved rows of zeros are ignored.
    """
    values = np.concatenate([reserved_norms[reserved_norms > 0], norms])
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0 and values.max() > WIDE_SPREAD * median(values))


def find_outliers(norms: Floats, cosines: Floats) -> dict[int, str]:
    """Find outlier rows, and say why they are.

    Norms drift along a table, so each row is compared with the median of the 8 rows on either side.
    It is an outlier if its norm differs from that by more than 6 standard deviations and 20 %, or
    if the larger of its two cosines is lower by more than 6 standard deviations and 0.1. The
    standard deviation is 1.4826 times the median absolute deviation of all rows from their local
    medians. Rows that are zero or not finite are ignored.

    Args:
        norms: The norms of the rows, shape (n,).
        cosines: The cosines to the next row, shape (n - 1,).

    Returns:
        A reason by row.
    """
    reasons: dict[int, list[str]] = {}
    norms = np.where(np.isfinite(norms) & (norms > 0), norms, np.nan)
    expected = _local_median(norms)
    for row in _rows_beyond(np.abs(norms - expected), np.abs(expected) * NORM_FLOOR):
        reasons.setdefault(row, []).append(f"norm {norms[row]:.3g} (expected {expected[row]:.3g})")
    # Of each row with the one before and after it; the first and the last row have one neighbour.
    best = np.fmax(np.append(cosines, np.nan), np.append(np.nan, cosines))
    expected = _local_median(best)
    for row in _rows_beyond(expected - best, COSINE_FLOOR):
        reason = f"max cosine {best[row]:.2f} (expected {expected[row]:.2f})"
        reasons.setdefault(row, []).append(reason)
    return {row: ", ".join(texts) for row, texts in sorted(reasons.items())}


def _rows_beyond(deviations: Floats, floors: Floats | float) -> list[int]:
    """Return the rows whose deviation exceeds its floor and 6 standard deviations.

    Deviations may have a sign: negative ones count for the standard deviation, and are never
    beyond.
    """
    known = np.sort(np.abs(deviations[~np.isnan(deviations)]))
    if not known.size:
        return []
    middle = known[(len(known) - 1) // 2 : len(known) // 2 + 1]  # as of `median`
    sigma = MAD_TO_SIGMA * float(middle.mean())
    is_beyond = deviations > np.maximum(OUTLIER_SIGMAS * sigma, floors)
    return [int(row) for row in np.flatnonzero(is_beyond)]


def _local_median(values: Floats) -> Floats:
    """Return the median of each value and the 8 on either side, ignoring NaN."""
    if not len(values):
        return values
    padded = np.pad(values, NEIGHBOURHOOD, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBOURHOOD + 1)
    # np.nanmedian warns about windows that are all NaN. Sorting puts NaN last, so that the middle
    # of the others has these two indices, which are equal if their count is odd.
    ordered = np.sort(windows, axis=1)
    counts = np.count_nonzero(~np.isnan(windows), axis=1)
    middle = np.stack([(counts - 1) // 2, counts // 2], axis=1).clip(0)
    return np.asarray(np.take_along_axis(ordered, middle, axis=1).mean(axis=1))


class Repetition(NamedTuple):
    """The range of rows that repeats, bit-identical."""

    period: int  # in rows
    start: int  # first row
    stop: int  # end

    @property
    def copies(self) -> float:
        """The number of copies of the period."""
        return (self.stop - self.start) / self.period


def find_repetition(table: Table) -> Repetition | None:
    """Return the longest range with the most common distance between equal rows, if any.

    Zero rows match each other, but are no evidence.

    Args:
        table: Shape (n, d), any float dtype, without reserved rows.
    """
    group_of = np.zeros(len(table), dtype=np.int64)  # of equal rows; 0: zero rows
    groups = dict[bytes, int]()
    latest = dict[int, int]()
    distances = Counter[int]()
    for row in np.flatnonzero(table.any(axis=1)).tolist():
        group = groups.setdefault(table[row].tobytes(), len(groups) + 1)
        group_of[row] = group
        if group in latest:
            distances[row - latest[group]] += 1
        latest[group] = row
    if not distances:
        return None
    period = min(distances, key=lambda distance: (-distances[distance], distance))
    is_repeated = group_of[period:] == group_of[:-period]
    runs = row_ranges(np.flatnonzero(is_repeated).tolist())
    counts = [np.count_nonzero(group_of[start:stop]) for start, stop in runs]
    best = int(np.argmax(counts))
    if counts[best] < 2:
        return None
    start, stop = runs[best]
    return Repetition(period, start, stop + period)


def find_untrained_rows(table: Table, deviations: tuple[float, ...]) -> dict[int, float]:
    """Find rows that look randomly initialised.

    For d independent normal values with deviation s, the norm is s·√d with a standard error of
    s/√2, the cosine to other rows 0 ± 1/√d, and the mean 0 ± s/√d. An untrained row is within 4.5
    standard errors of all three.

    Args:
        table: Shape (n, d), any float dtype. If d is less than 64, no rows are found, because
            trained ones would pass by chance.
        deviations: The standard deviations with which rows may have been initialised.

    Returns:
        The first fitting deviation by row.
    """
    width = table.shape[1]
    if width < UNTRAINED_WIDTH:
        return {}
    norms, cosines = norms_and_cosines(table)
    related = np.abs(cosines)
    nearest = np.fmax(np.append(related, np.nan), np.append(np.nan, related))
    unrelated = nearest < UNTRAINED_ERRORS / np.sqrt(width)
    untrained: dict[int, float] = {}
    for sigma in deviations:
        fits = np.abs(norms - sigma * np.sqrt(width)) < UNTRAINED_ERRORS * sigma / np.sqrt(2)
        largest_mean = UNTRAINED_ERRORS * sigma / np.sqrt(width)
        for row in np.flatnonzero(unrelated & fits):
            mean = float(table[row].astype(np.float64).mean())
            if abs(mean) < largest_mean:
                untrained.setdefault(int(row), sigma)
    return dict(sorted(untrained.items()))


def row_ranges(rows: Iterable[int]) -> list[RowRange]:
    """Merge ascending row indices into half-open ranges."""
    ranges: list[RowRange] = []
    for row in rows:
        start = row
        if ranges and ranges[-1][1] == row:
            start, _ = ranges.pop()
        ranges.append((start, row + 1))
    return ranges


def describe_rows(rows: Iterable[int]) -> str:
    """Format ascending row indices as text, such as ``0, 510-511``."""
    ranges = [describe_range(start, stop) for start, stop in row_ranges(rows)]
    listed = ", ".join(ranges[:LISTED_RANGES])
    if len(ranges) > LISTED_RANGES:
        listed += f" and {len(ranges) - LISTED_RANGES} more"
    return listed


def describe_range(start: int, stop: int) -> str:
    """Format a half-open range as text."""
    if stop == start + 1:
        return str(start)
    return f"{start}-{stop - 1}"


def describe_random(rows: Mapping[int, float]) -> Iterator[str]:
    """Yield a clause for each standard deviation of rows like random initialisation."""
    for std in dict.fromkeys(rows.values()):
        matching = [row for row, fitted in rows.items() if fitted == std]
        count = counted(len(matching), "row")
        yield (
            f"looks untrained: {describe_rows(matching)} ({count} like random initialisation with "
            f"std {std:g})"
        )
