"""Statistics of the rows of a position table."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import counted
from ctxextend.tables.layouts import BLOCK_ROWS, Floats

Table = NDArray[Any]
RowRange = tuple[int, int]  # half-open: start and stop

# Evenly spaced rows used for the spectrum; fewer above `WIDE_TABLE` rows and columns: time is cubic
# in the smaller of both.
SPECTRUM_ROWS = 8192
WIDE_TABLE = 768
WIDE_SPECTRUM_ROWS = 512
# Norms are plotted on a logarithmic scale if the largest is more than this multiple of the median.
WIDE_SPREAD = 4.0

NEIGHBOURHOOD = 8  # rows on either side that a row is compared with
# Converts a median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
OUTLIER_SIGMAS = 6.0  # standard deviations beyond which a row is an outlier
# Minimum deviations of an outlier, so that smooth tables have none.
NORM_FLOOR = 0.2
COSINE_FLOOR = 0.1
SHORTEST_LENGTH = 32  # the shortest old length whose seams are searched for when it is unknown
UNTRAINED_ERRORS = 4.5  # standard errors within which a row counts as randomly initialised
UNTRAINED_WIDTH = 64  # minimum width for this test
LISTED_RANGES = 10  # maximum number of row ranges that are listed


@dataclass(frozen=True)
class TableStats:
    """Statistics of a table's rows, without reserved rows."""

    norms: Floats  # Euclidean, shape (n,); NaN or infinity if the row contains one
    # Of each row to the next, shape (n - 1,); NaN if either norm is zero or not finite.
    cosines: Floats
    steps: Floats  # Euclidean distance of each row to the next, shape (n - 1,)
    mean_norm: float  # norm of the mean row; it and the fields below ignore non-finite rows
    eigenvalues: Floats  # variance along each principal component, descending
    nonfinite: tuple[int, ...]  # rows that contain NaN or infinity
    zeros: tuple[int, ...]  # rows that are all zero

    @cached_property
    def finite_norms(self) -> Floats:
        """The norms of the finite rows."""
        return np.extract(np.isfinite(self.norms), self.norms)

    @property
    def norm_variation(self) -> float:
        """Coefficient of variation of the norms: standard deviation / mean."""
        norms = self.finite_norms
        if not norms.size or not norms.mean() > 0:
            return 0.0
        return float(norms.std() / norms.mean())

    @property
    def worst_neighbours(self) -> int | None:
        """The row with the lowest cosine to the next one; None if all cosines are NaN."""
        if np.isnan(self.cosines).all():
            return None
        return int(np.nanargmin(self.cosines))

    @property
    def effective_rank(self) -> float:
        """The participation ratio of the spectrum, (Σλ)² / Σλ²: the effective number of dimensions.

        Source: Gao et al. 2017, "A theory of multineuronal dimensionality, dynamics and
        measurement", bioRxiv 214262.
        """
        if not self.eigenvalues.size or not self.eigenvalues[0] > 0:
            return 0.0
        shares = self.eigenvalues / self.eigenvalues[0]
        return float(shares.sum() ** 2 / np.square(shares).sum())


def measure(table: Table) -> TableStats:
    """Compute statistics of a table in float64.

    `table` has shape (n, d), any float dtype, without reserved rows.
    """
    norms, cosines, steps = norms_and_neighbours(table)
    finite = np.flatnonzero(np.isfinite(norms))
    mean = np.zeros(table.shape[1])
    for start in range(0, len(finite), BLOCK_ROWS):  # to avoid a second table in memory
        block = table[finite[start : start + BLOCK_ROWS]].astype(np.float64)
        mean = mean + block.sum(axis=0)
    mean = mean / max(len(finite), 1)
    return TableStats(
        norms=norms,
        cosines=cosines,
        steps=steps,
        mean_norm=float(np.linalg.norm(mean)),
        eigenvalues=_eigenvalues(table, finite, mean),
        nonfinite=tuple(np.flatnonzero(~np.isfinite(norms)).tolist()),
        zeros=tuple(np.flatnonzero(norms == 0).tolist()),
    )


def norms_and_neighbours(table: Table) -> tuple[Floats, Floats, Floats]:
    """Return the norms of rows, and the cosine and distance of each to the next.

    Args:
        table: Shape (n, d), any float dtype.

    Returns:
        Norms, shape (n,); cosines and distances, shape (n - 1,) each.
    """
    norms = np.empty(len(table))
    dots = np.empty(len(table) - 1)
    steps = np.empty(len(table) - 1)
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
            moves = block[1:] - block[:-1]
            steps[pairs] = np.sqrt(products(moves, moves))
        lengths = norms[1:] * norms[:-1]
        cosines = np.where(np.isfinite(lengths) & (lengths > 0), dots / lengths, np.nan)
    return norms, cosines, steps


def _eigenvalues(table: Table, rows: NDArray[np.intp], mean: Floats) -> Floats:
    """Return the variances along all principal components, descending.

    Of X, shape (n, d), with fewer rows than columns, the smaller matrix XXᵀ has the same
    eigenvalues as XᵀX.
    """
    if len(rows) < 2:
        return np.zeros(0)
    maximum = SPECTRUM_ROWS
    if min(len(rows), table.shape[1]) > WIDE_TABLE:
        maximum = WIDE_SPECTRUM_ROWS
    evenly = np.linspace(0, len(rows) - 1, min(len(rows), maximum)).astype(np.intp)
    centred = table[rows[evenly]].astype(np.float64)
    centred -= mean
    is_wide = centred.shape[0] < centred.shape[1]
    scatter = centred @ centred.T if is_wide else centred.T @ centred
    values = np.linalg.eigvalsh(scatter)[::-1]
    return np.asarray(np.maximum(values, 0) / len(centred))


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
    """Rows that occur more than once, bit-identical."""

    period: int | None  # of the tiled part, in rows; None if nothing is tiled
    start: int  # first row of the tiled part
    stop: int  # end of the tiled part
    # Other groups of equal rows, each ascending, without zero rows.
    groups: tuple[tuple[int, ...], ...]

    @property
    def copies(self) -> float:
        """The number of copies of the period."""
        return (self.stop - self.start) / self.period if self.period else 0.0


def find_repetition(table: Table) -> Repetition:
    """Find repeated rows of a table without reserved rows."""
    rows_of: dict[bytes, list[int]] = {}
    for row in range(len(table)):
        if table[row].any():
            rows_of.setdefault(table[row].tobytes(), []).append(row)
    groups = list(rows_of.values())
    period, start, stop = _tiling(len(table), groups)
    outside = []
    for rows in groups:
        is_tiled = period is not None and start <= rows[0] and rows[-1] < stop
        if len(rows) > 1 and not is_tiled:
            outside.append(tuple(rows))
    return Repetition(period=period, start=start, stop=stop, groups=tuple(outside))


def _tiling(rows: int, groups: list[list[int]]) -> tuple[int | None, int, int]:
    """Return the most common distance between equal rows, and the longest range with that period.

    Args:
        rows: The number of rows.
        groups: Groups of equal rows, each ascending.

    Returns:
        The period, and the first row and the end of the range; None and zeros if nothing is tiled.
    """
    distances = Counter[int]()
    for group in groups:
        distances.update(after - before for before, after in pairwise(group))
    if not distances:
        return None, 0, 0
    period = min(distances, key=lambda distance: (-distances[distance], distance))
    # Zero rows match each other, but are no evidence of tiling.
    group_of = np.zeros(rows, dtype=np.int64)
    for index, group in enumerate(groups, 1):
        group_of[group] = index
    is_repeated = group_of[period:] == group_of[:-period]
    runs = _runs(is_repeated)
    counts = [np.count_nonzero(group_of[start:stop]) for start, stop in runs]
    best = int(np.argmax(counts))
    if counts[best] < 2:
        return None, 0, 0
    start, stop = runs[best]
    return period, start, stop + period


def _runs(mask: NDArray[np.bool_]) -> list[RowRange]:
    """Return the ranges of a mask in which all values are true."""
    changes = np.diff(np.concatenate([[0], mask.astype(np.int8), [0]]))
    edges = np.flatnonzero(changes).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def find_seams(stats: TableStats, lengths: set[int]) -> dict[int, tuple[int, ...]]:
    """Find jumps of the table at multiples of an old length.

    A jump is a step that exceeds the median of the 8 steps on either side by more than 6 standard
    deviations (as in `find_outliers`) and by half. A table of 512 rows that was tiled to 2048 jumps
    at 512, 1024 and 1536, so that the old length is 512. Each jump is explained by one old length
    only: the first, and thus the shortest power of two.

    Args:
        stats: The statistics of the table.
        lengths: Old lengths that are tried first, before powers of two from 32 on.

    Returns:
        The positions of the jumps by old length.
    """
    rows = len(stats.norms)
    expected = _local_median(stats.steps)
    jumps = {step + 1 for step in _rows_beyond(stats.steps - expected, expected / 2)}
    powers = [2**k for k in range(SHORTEST_LENGTH.bit_length() - 1, rows.bit_length())]
    seams_of: dict[int, tuple[int, ...]] = {}
    for length in [*sorted(lengths), *powers]:
        if length not in jumps:
            continue
        # A step of exactly the same length as a learned one is between copies of the same two rows,
        # forwards or reflected, and not a seam.
        learned_steps = set(stats.steps[: length - 1].tolist())
        seams = []
        for position in range(length, rows, length):
            is_copied = stats.steps[position - 1] in learned_steps
            if position in jumps and not is_copied:
                seams.append(position)
        if seams:
            seams_of[length] = tuple(seams)
            jumps.difference_update(seams)
    return seams_of


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
    norms, cosines, _ = norms_and_neighbours(table)
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
