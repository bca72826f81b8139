"""What a position table looks like in numbers: norms, neighbours, spectrum, periods, and rows that stand out."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.sinusoids import BLOCK_ROWS, highest_peak, periodogram

Table = NDArray[Any]
Floats = NDArray[np.float64]
RowRange = tuple[int, int]
"""The first row of a range, and the row behind its last."""

# Components whose periods are measured, and the share of the variance below which one is only rounding.
LEADING_COMPONENTS = 4
ROUNDING = 1e-12
# The most rows that the spectrum is taken from, evenly spaced; of a table with more rows and columns than `WIDE`
# fewer, since the time grows with the cube of the smaller number.
SPECTRUM_ROWS = 8192
WIDE, WIDE_SPECTRUM_ROWS = 768, 512
# Where the highest norm is more than this many medians, norms are shown on a logarithmic scale.
WIDE_SPREAD = 4.0

# The rows on either side that a row is compared with.
NEIGHBOURHOOD = 8
# From a median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
# Standard deviations beyond which a row is an outlier.
OUTLIER_SIGMAS = 6.0
# The least deviation of an outlier, so that a table that is smooth throughout has none.
NORM_FLOOR, COSINE_FLOOR = 0.2, 0.1
# The shortest earlier length whose seams are looked for without being named.
SHORTEST_LENGTH = 32
# Standard errors within which a row counts as drawn by an initialiser, and the least width for that.
UNTRAINED_ERRORS, UNTRAINED_WIDTH = 4.5, 64
# Row ranges that are listed one by one.
LISTED_RANGES = 10


@dataclass(frozen=True)
class Component:
    """One principal component of a table, and the sinusoid over the positions that fits it best."""

    share: float  # of the variance around the mean row, 0 to 1
    period: float  # in positions; one longer than the table is an extrapolation
    fit: float  # the share of the component's own variance that the sinusoid explains, 0 to 1


@dataclass(frozen=True)
class TableStats:
    """Figures of a table's rows, reserved rows removed."""

    norms: Floats  # Euclidean, shape (n,); NaN or infinity where the row holds one
    cosines: Floats  # of each row to the next, shape (n - 1,); NaN where either has no direction
    steps: Floats  # Euclidean distance of each row to the next, shape (n - 1,)
    # From here on without the rows that are not finite.
    mean_norm: float  # distance of the mean row from zero
    eigenvalues: Floats  # variance along each principal component, descending
    components: tuple[Component, ...]  # the leading ones
    nonfinite: tuple[int, ...]  # rows that hold a NaN or an infinity
    zeros: tuple[int, ...]  # rows that are zero throughout

    @cached_property
    def finite_norms(self) -> Floats:
        """The norms of the finite rows."""
        return np.extract(np.isfinite(self.norms), self.norms)

    @property
    def norm_variation(self) -> float:
        """Coefficient of variation of the norms: standard deviation by mean."""
        norms = self.finite_norms
        return float(norms.std() / norms.mean()) if norms.size and norms.mean() > 0 else 0.0

    @property
    def worst_neighbours(self) -> int | None:
        """The row whose cosine to the next one is the lowest; None where no two rows have a direction."""
        return None if np.isnan(self.cosines).all() else int(np.nanargmin(self.cosines))

    @property
    def effective_rank(self) -> float:
        """The participation ratio of the spectrum, (Σλ)² / Σλ²: how many directions share the variance.

        Source: Gao et al. 2017, "A theory of multineuronal dimensionality, dynamics and measurement", bioRxiv 214262.
        """
        if not self.eigenvalues.size or not self.eigenvalues[0] > 0:
            return 0.0
        shares = self.eigenvalues / self.eigenvalues[0]
        return float(shares.sum() ** 2 / np.square(shares).sum())

    def components_for(self, share: float) -> int:
        """Return how many leading components hold a share (0 to 1) of the variance around the mean row."""
        total = self.eigenvalues.sum()
        if not total > 0:
            return 0
        return int(np.searchsorted(np.cumsum(self.eigenvalues) / total, share - 1e-12) + 1)


def measure(table: Table) -> TableStats:
    """Measure a table's rows, shape (n, d), any float dtype, reserved rows removed, in float64."""
    norms, cosines, steps = norms_and_neighbours(table)
    finite = np.flatnonzero(np.isfinite(norms))
    total = sum((block.sum(axis=0) for block in _blocks(table, finite)), np.zeros(table.shape[1]))
    mean = total / max(len(finite), 1)
    eigenvalues, components = _spectrum(table, finite, mean)
    return TableStats(
        norms=norms,
        cosines=cosines,
        steps=steps,
        mean_norm=float(np.linalg.norm(mean)),
        eigenvalues=eigenvalues,
        components=components,
        nonfinite=tuple(np.flatnonzero(~np.isfinite(norms)).tolist()),
        zeros=tuple(np.flatnonzero(norms == 0).tolist()),
    )


def norms_and_neighbours(table: Table) -> tuple[Floats, Floats, Floats]:
    """Return the norms of a table's rows, shape (n,), and cosine and distance of each to the next, shape (n - 1,)."""
    norms, dots, steps = np.empty(len(table)), np.empty(len(table) - 1), np.empty(len(table) - 1)
    products = partial(np.einsum, "ij,ij->i")  # half the time of numpy.linalg.norm, which copies
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for start in range(0, len(table), BLOCK_ROWS):
            block = table[start : start + BLOCK_ROWS + 1].astype(np.float64)
            own, pairs = slice(start, start + BLOCK_ROWS), slice(start, start + len(block) - 1)
            norms[own] = np.sqrt(products(block[:BLOCK_ROWS], block[:BLOCK_ROWS]))
            dots[pairs] = products(block[1:], block[:-1])
            moves = block[1:] - block[:-1]
            steps[pairs] = np.sqrt(products(moves, moves))
        lengths = norms[1:] * norms[:-1]
        cosines = np.where(np.isfinite(lengths) & (lengths > 0), dots / lengths, np.nan)
    return norms, cosines, steps


def _blocks(table: Table, rows: NDArray[np.intp]) -> Iterator[Floats]:
    """Yield rows as float64, a block at a time, so that no second table is held."""
    for start in range(0, len(rows), BLOCK_ROWS):
        yield table[rows[start : start + BLOCK_ROWS]].astype(np.float64)


def _spectrum(table: Table, rows: NDArray[np.intp], mean: Floats) -> tuple[Floats, tuple[Component, ...]]:
    """Return the variances of rows around the mean one along all principal components, and the leading components."""
    width, found = table.shape[1], list[Component]()
    if len(rows) < 2:
        return np.zeros(0), ()
    maximum = WIDE_SPECTRUM_ROWS if min(len(rows), width) > WIDE else SPECTRUM_ROWS
    centred = table[rows[np.linspace(0, len(rows) - 1, min(len(rows), maximum)).astype(np.intp)]].astype(np.float64)
    centred -= mean
    is_long = len(centred) >= width
    values, vectors = np.linalg.eigh(centred.T @ centred if is_long else centred @ centred.T)
    values, vectors = values[::-1], vectors[:, ::-1]
    leading = vectors[:, : np.count_nonzero(values[:LEADING_COMPONENTS] > ROUNDING * values.sum())]
    if not is_long:
        leading = centred.T @ leading
        leading /= np.linalg.norm(leading, axis=0)
    eigenvalues = np.maximum(values, 0) / len(centred)
    if leading.size and len(rows) >= 4:
        projected = np.concatenate([(block - mean) @ leading for block in _blocks(table, rows)])
        for curve, eigenvalue in zip(projected.T, eigenvalues, strict=False):
            highest, frequency = highest_peak(*periodogram(rows, curve))
            squares = float(np.square(curve - curve.mean()).sum())
            fit = min(highest / squares, 1.0) if squares > 0 else 0.0
            found.append(Component(float(eigenvalue / eigenvalues.sum()), 1 / frequency, fit))
    return eigenvalues, tuple(found)


def needs_log_scale(reserved_norms: Floats, norms: Floats) -> bool:
    """Whether the highest norm is so far above the median that a linear scale would show little of most.

    Of reserved rows a padding row, which is zero, does not count.
    """
    values = np.concatenate([reserved_norms[reserved_norms > 0], norms])
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0 and values.max() > WIDE_SPREAD * np.median(values))


def find_outliers(norms: Floats, cosines: Floats) -> dict[int, str]:
    """Return the rows that stand out from those around them, each with what stands out and what is usual there.

    Given are the norms, shape (n,), and the cosines of each row to the next, shape (n - 1,). Since norms drift along a
    table, each row is compared with the 8 on either side of it. It is an outlier where its norm differs from their
    median by more than 6 standard deviations and more than 20 % of it, or the better of its two cosines is below their
    median by more than 6 standard deviations and more than 0.1; one is 1.4826 times the median absolute deviation of
    all rows from their local medians. Rows that are zero or not finite do not count.
    """
    found: dict[int, list[str]] = {}
    norms = np.where(np.isfinite(norms) & (norms > 0), norms, np.nan)
    usual = _local_median(norms)
    for row in _rows_beyond(np.abs(norms - usual), np.abs(usual) * NORM_FLOOR):
        found.setdefault(row, []).append(f"norm {norms[row]:.3g} (usual {usual[row]:.3g})")
    padded = np.concatenate([[np.nan], cosines, [np.nan]])
    best = np.fmax(padded[1:], padded[:-1])
    usual = _local_median(best)
    for row in _rows_beyond(usual - best, COSINE_FLOOR):
        found.setdefault(row, []).append(f"nearer cosine {best[row]:.2f} (usual {usual[row]:.2f})")
    return {row: ", ".join(reason) for row, reason in sorted(found.items())}


def _rows_beyond(deviations: Floats, floors: Floats | float) -> list[int]:
    """Return the rows whose deviation is above its floor and above 6 standard deviations of all."""
    known = np.abs(deviations[~np.isnan(deviations)])
    if not known.size:
        return []
    sigma = MAD_TO_SIGMA * np.median(known)
    return [int(row) for row in np.flatnonzero(deviations > np.maximum(OUTLIER_SIGMAS * sigma, floors))]


def _local_median(values: Floats) -> Floats:
    """Return the median of the values around each one, itself included; NaN does not count."""
    if not len(values):
        return values
    padded = np.pad(values, NEIGHBOURHOOD, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBOURHOOD + 1)
    # np.nanmedian would warn of windows that are all NaN; sorting puts NaN last.
    known = np.count_nonzero(~np.isnan(windows), axis=1)
    middle = np.stack([(known - 1) // 2, known // 2], axis=1).clip(0)
    found: Floats = np.take_along_axis(np.sort(windows, axis=1), middle, axis=1).mean(axis=1)
    return found


@dataclass(frozen=True)
class Repetition:
    """Rows that occur more than once, byte for byte."""

    period: int | None  # rows after which the table repeats itself
    start: int  # the first row of the part that repeats
    stop: int  # the row behind it
    groups: tuple[tuple[int, ...], ...]  # other rows that are equal, each group ascending; zero rows are not among them

    @property
    def copies(self) -> float:
        """How many copies of the period there are."""
        return (self.stop - self.start) / self.period if self.period else 0.0


def find_repetition(table: Table) -> Repetition:
    """Find the rows of a table, reserved rows removed, that occur more than once."""
    found: dict[bytes, list[int]] = {}
    for row in range(len(table)):
        if table[row].any():
            found.setdefault(table[row].tobytes(), []).append(row)
    groups = list(found.values())
    period, start, stop = _tiling(len(table), groups)
    repeated = (rows for rows in groups if len(rows) > 1)
    outside = tuple(tuple(rows) for rows in repeated if period is None or not start <= rows[0] < rows[-1] < stop)
    return Repetition(period, start, stop, outside)


def _tiling(rows: int, groups: list[list[int]]) -> tuple[int | None, int, int]:
    """Return the commonest distance of a row to its equal before it, and the longest range that repeats after it."""
    distances = Counter(after - before for group in groups for before, after in pairwise(group))
    if not distances:
        return None, 0, 0
    period = min(distances, key=lambda distance: (-distances[distance], distance))
    group_of = np.zeros(rows, dtype=np.int64)  # zero rows are equal too, but show nothing by themselves
    for number, group in enumerate(groups, 1):
        group_of[group] = number
    same = group_of[period:] == group_of[:-period]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
    starts, stops = edges[::2], edges[1::2]
    counts = [np.count_nonzero(group_of[start:stop]) for start, stop in zip(starts, stops, strict=True)]
    best = int(np.argmax(counts))
    if counts[best] < 2:
        return None, 0, 0
    return period, int(starts[best]), int(stops[best]) + period


def find_seams(stats: TableStats, lengths: set[int]) -> dict[int, tuple[int, ...]]:
    """Find the positions at which the table jumps where an older one may have ended, by the older one's length.

    A jump is a step that is longer than the 8 on either side of it by more than 6 standard deviations (as in
    `find_outliers`) and half of their median. Known lengths are tried first, then powers of two from 32 on.
    """
    rows, usual = len(stats.norms), _local_median(stats.steps)
    jumps = {step + 1 for step in _rows_beyond(stats.steps - usual, usual / 2)}
    powers = [2**k for k in range(SHORTEST_LENGTH.bit_length() - 1, rows.bit_length())]
    found: dict[int, tuple[int, ...]] = {}
    for length in [*sorted(lengths), *powers]:
        if length in jumps:
            # A step as long as one within the older table is that step again: forwards, or back from a turn.
            learned = set(stats.steps[: length - 1].tolist())
            multiples = (position for position in range(length, rows, length) if position in jumps)
            seams = tuple(position for position in multiples if stats.steps[position - 1] not in learned)
            found |= {length: seams} if seams else {}
            jumps -= set(seams)
    return found


def find_untrained_rows(table: Table, stats: TableStats, deviations: tuple[float, ...]) -> dict[int, float]:
    """Find the rows that look as an initialiser left them, each with the given standard deviation that it fits.

    Of d independent normal numbers of deviation s the norm is s·√d, with a standard error of s/√2, the cosine to any
    other row 0 ± 1/√d, and the mean 0 ± s/√d; in such a row all of these hold within 4.5 standard errors. Tables less
    than 64 wide have none: there chance alone would do.
    """
    width = table.shape[1]
    if width < UNTRAINED_WIDTH:
        return {}
    padded = np.concatenate([[np.nan], stats.cosines, [np.nan]])
    unrelated = np.fmax(np.abs(padded[1:]), np.abs(padded[:-1])) < UNTRAINED_ERRORS / np.sqrt(width)
    found: dict[int, float] = {}
    for sigma in deviations:
        fits = np.abs(stats.norms - sigma * np.sqrt(width)) < UNTRAINED_ERRORS * sigma / np.sqrt(2)
        for row in np.flatnonzero(unrelated & fits):
            if abs(float(table[row].astype(np.float64).mean())) < UNTRAINED_ERRORS * sigma / np.sqrt(width):
                found.setdefault(int(row), sigma)
    return dict(sorted(found.items()))


def row_ranges(rows: Iterable[int]) -> list[RowRange]:
    """Return ascending row numbers as ranges."""
    found: list[RowRange] = []
    for row in rows:
        start = found.pop()[0] if found and found[-1][1] == row else row
        found.append((start, row + 1))
    return found


def describe_rows(rows: Iterable[int]) -> str:
    """Return ascending row numbers as text, such as ``0, 510-511``."""
    found = [describe_range(*one) for one in row_ranges(rows)]
    more = f" and {len(found) - LISTED_RANGES} more" if len(found) > LISTED_RANGES else ""
    return ", ".join(found[:LISTED_RANGES]) + more


def describe_range(start: int, stop: int) -> str:
    """Return one range as text; `stop` is the row behind its last."""
    return str(start) if stop == start + 1 else f"{start}-{stop - 1}"
