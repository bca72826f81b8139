"""What a position table looks like, in numbers: norms, neighbours, spectrum, periods, and rows that stand out."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.methods import BLOCK_ROWS

__all__ = ["Component", "Repetition", "TableStats", "measure", "outlier_rows", "repetition", "seams", "untrained_rows"]

Table = NDArray[Any]
Floats = NDArray[np.float64]

# Components whose periods are measured, and the share of the variance below which one is nothing but rounding.
LEADING = 4
NOTHING = 1e-12
# Rows from which the spectrum is taken; of a longer table as many, evenly spaced.
SPECTRUM_ROWS = 8192
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


@dataclass(frozen=True)
class Component:
    """One principal component of a table.

    Attributes:
        share: Its share of the variance around the mean row, 0 to 1.
        period: The period, in positions, of the sinusoid that fits it best; one longer than the table is an
            extrapolation.
        fit: The share of the component's own variance that this sinusoid explains, 0 to 1.
    """

    share: float
    period: float
    fit: float


@dataclass(frozen=True)
class TableStats:
    """Figures of a table's rows, the offset rows removed.

    Attributes:
        norms: Euclidean norm of each row, shape (n,), float64; NaN or infinity where the row holds one.
        cosines: Cosine of each row to the next, shape (n - 1,), float64; NaN where either has no direction.
        steps: Euclidean distance of each row to the next, shape (n - 1,), float64.
        mean_norm: Distance of the mean row from zero.
        eigenvalues: Variance along each principal component, descending, float64.
        components: The leading ones, with their periods.
        nonfinite: Rows that hold a NaN or an infinity; they are left out of all that follows the cosines.
        zeros: Rows that are zero throughout.
    """

    norms: Floats
    cosines: Floats
    steps: Floats
    mean_norm: float
    eigenvalues: Floats
    components: tuple[Component, ...]
    nonfinite: tuple[int, ...]
    zeros: tuple[int, ...]

    @cached_property
    def finite_norms(self) -> Floats:
        """The norms of the rows that are numbers."""
        found: Floats = self.norms[np.isfinite(self.norms)]
        return found

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
        shares = self.eigenvalues / self.eigenvalues[0]  # the squares of large ones would be no numbers any more
        return float(shares.sum() ** 2 / np.square(shares).sum())

    def components_for(self, share: float) -> int:
        """Return how many leading components hold a share (0 to 1) of the variance around the mean row."""
        total = self.eigenvalues.sum()
        if not total > 0:
            return 0
        return int(np.searchsorted(np.cumsum(self.eigenvalues) / total, share - 1e-12) + 1)


def measure(table: Table) -> TableStats:
    """Measure a table's rows.

    Args:
        table: Shape (n, d), any float dtype, offset rows removed.

    Returns:
        Its figures, computed in float64. The spectrum of more than 8,192 rows is that of so many, evenly spaced.
    """
    norms, cosines, steps = _along(table)
    nonfinite = np.flatnonzero(~np.isfinite(norms))
    finite = np.delete(np.arange(len(table)), nonfinite) if nonfinite.size else np.arange(len(table))
    mean = _mean(table, finite)
    eigenvalues, directions = _spectrum(table, finite, mean)
    projected = _project(table, finite, mean, directions)
    components = _components(eigenvalues, finite, projected)
    zeros = np.flatnonzero(norms == 0)
    found = (tuple(map(int, rows)) for rows in (nonfinite, zeros))
    return TableStats(norms, cosines, steps, float(np.linalg.norm(mean)), eigenvalues, components, *found)


def _blocks(table: Table, rows: NDArray[np.intp]) -> Iterator[Floats]:
    """Yield rows as float64, so many at a time that no second table is held."""
    for start in range(0, len(rows), BLOCK_ROWS):
        yield table[rows[start : start + BLOCK_ROWS]].astype(np.float64)


def _along(table: Table) -> tuple[Floats, Floats, Floats]:
    """Return the norms, and cosine and distance of each row to the next."""
    norms, dots, steps = np.empty(len(table)), np.empty(len(table) - 1), np.empty(len(table) - 1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for start in range(0, len(table), BLOCK_ROWS):
            block = table[start : start + BLOCK_ROWS + 1].astype(np.float64)
            own, pairs = slice(start, start + BLOCK_ROWS), slice(start, start + len(block) - 1)
            norms[own] = np.linalg.norm(block[:BLOCK_ROWS], axis=1)
            dots[pairs] = np.einsum("ij,ij->i", block[1:], block[:-1])
            steps[pairs] = np.linalg.norm(np.diff(block, axis=0), axis=1)
        lengths = norms[1:] * norms[:-1]
        cosines = np.where(np.isfinite(lengths) & (lengths > 0), dots / lengths, np.nan)
    return norms, cosines, steps


def _mean(table: Table, rows: NDArray[np.intp]) -> Floats:
    total = np.zeros(table.shape[1])
    for block in _blocks(table, rows):
        total += block.sum(axis=0)
    return total / max(len(rows), 1)


def _spectrum(table: Table, rows: NDArray[np.intp], mean: Floats) -> tuple[Floats, Floats]:
    """Return the variances along all principal components, and the directions of the leading ones, shape (d, k)."""
    if len(rows) > SPECTRUM_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, SPECTRUM_ROWS).astype(np.intp)]
    width = table.shape[1]
    if len(rows) < 2:
        return np.zeros(0), np.zeros((width, 0))
    if len(rows) >= width:
        gram = np.zeros((width, width))
        for block in _blocks(table, rows):
            gram += (block - mean).T @ (block - mean)
        values = np.asarray(np.linalg.eigvalsh(gram)[::-1], dtype=np.float64)
        directions = _leading(gram, values)
    else:
        gram = np.concatenate([_project(table, rows, mean, (block - mean).T).T for block in _blocks(table, rows)])
        values = np.asarray(np.linalg.eigvalsh(gram)[::-1], dtype=np.float64)
        vectors = _leading(gram, values)
        directions = np.zeros((width, vectors.shape[1]))
        for start, block in enumerate(_blocks(table, rows)):
            directions += (block - mean).T @ vectors[start * BLOCK_ROWS : start * BLOCK_ROWS + len(block)]
        lengths = np.linalg.norm(directions, axis=0)
        directions /= np.where(lengths > 0, lengths, 1)
    return np.maximum(values, 0) / len(rows), directions


def _leading(gram: Floats, values: Floats) -> Floats:
    """Return the eigenvectors of the largest eigenvalues, shape (n, k), by inverse iteration.

    All eigenvectors at once would take four times the memory, and only a few are wanted.

    Source: Golub & Van Loan 2013, "Matrix Computations", 4th edition, section 7.6.1.
    """
    found = np.zeros((len(gram), 0))
    squares = np.arange(1, len(gram) + 1) ** 2.0
    for number, value in enumerate(values[:LEADING][values[:LEADING] > NOTHING * values.sum()], 1):
        shifted = gram / values[0]
        # A little beside the eigenvalue: exactly on it there is nothing to solve.
        shifted.flat[:: len(gram) + 1] -= value / values[0] + 1e-9
        # One step does, from any start that is not orthogonal; each has its own, since eigenvalues may be equal.
        vector = np.linalg.solve(shifted, np.cos(number * squares))
        vector -= found @ (found.T @ vector)
        found = np.column_stack([found, vector / np.linalg.norm(vector)])
    return found


def _project(table: Table, rows: NDArray[np.intp], mean: Floats, directions: Floats) -> Floats:
    blocks = [(block - mean) @ directions for block in _blocks(table, rows)]
    return np.concatenate(blocks) if blocks else np.zeros((0, directions.shape[1]))


def _components(eigenvalues: Floats, rows: NDArray[np.intp], projected: Floats) -> tuple[Component, ...]:
    total = eigenvalues.sum()
    if not total > 0 or len(rows) < 4:
        return ()
    shares = (float(eigenvalue / total) for eigenvalue in eigenvalues[: projected.shape[1]])
    return tuple(Component(share, *_period(rows, projected[:, k])) for k, share in enumerate(shares))


def _period(rows: NDArray[np.intp], values: Floats) -> tuple[float, float]:
    """Return the period of the sinusoid that fits a curve best, and the share of its variance that this explains.

    A constant, a cosine and a sine are fitted by least squares at frequencies an eighth of a cycle per table apart,
    from half a cycle per table on. A plain Fourier transform would favour whole cycles.

    Source: Zechmeister & Kürster 2009, "The generalised Lomb-Scargle periodogram", section 2, arXiv:0901.2573.
    """
    length = int(rows[-1]) + 1
    curve, ones = np.zeros(length), np.zeros(length)
    curve[rows], ones[rows] = values - values.mean(), 1
    # Of the padded transforms, bin j is the frequency j / (8·length) cycles a position.
    bins = np.arange(4, 4 * length)
    waves = np.fft.rfft(curve, 8 * length)[bins]
    window = np.fft.fft(ones, 8 * length)
    count, once, twice = len(rows), window[bins], window[2 * bins % (8 * length)]
    power = _explained(waves, once, twice, count)
    best = int(np.argmax(power))
    total = float(np.square(curve).sum())
    fit = min(float(power[best]) / total, 1.0) if total > 0 else 0.0
    return 8 * length / (float(bins[best]) + _vertex(power[max(best - 1, 0) : best + 2])), fit


def _vertex(three: Floats) -> float:
    """Return how far from the middle one of three values, in steps, the parabola through them is highest."""
    if len(three) < 3 or three[1] <= max(three[0], three[2]):
        return 0.0
    return float((three[2] - three[0]) / (2 * (2 * three[1] - three[0] - three[2])))


def _explained(waves: Any, once: Any, twice: Any, count: int) -> Floats:
    """Return the sum of squares that a sinusoid with a constant explains, from Fourier sums, at each frequency."""
    cosine, sine = once.real / count, -once.imag / count
    cc = (1 + twice.real / count) / 2 - cosine**2
    ss = (1 - twice.real / count) / 2 - sine**2
    cs = -twice.imag / count / 2 - cosine * sine
    yc, ys = waves.real / count, -waves.imag / count
    determinant = cc * ss - cs**2
    explained = (ss * yc**2 + cc * ys**2 - 2 * cs * yc * ys) / np.where(determinant > 1e-12, determinant, np.inf)
    return np.asarray(explained * count, dtype=np.float64)


def outlier_rows(stats: TableStats) -> dict[int, str]:
    """Return the rows that stand out from those around them, each with what stands out and what is usual there.

    A table's norms drift and its neighbours grow apart along the way, so that a rule for the whole table flags what is
    merely at its end. Each row is therefore compared with the 8 on either side of it. A row is an outlier where

    - its norm differs from their median by more than 6 standard deviations and more than 20 % of it, or
    - the better of its two cosines to its neighbours is below their median by more than 6 standard deviations and
      more than 0.1,

    the standard deviation being 1.4826 times the median absolute deviation of all rows from their local medians. Rows
    that are zero or hold no numbers are not counted here.
    """
    found: dict[int, list[str]] = {}
    norms = np.where(np.isfinite(stats.norms) & (stats.norms > 0), stats.norms, np.nan)
    usual = _local_median(norms)
    for row in _beyond(np.abs(norms - usual), np.abs(usual) * NORM_FLOOR):
        found.setdefault(row, []).append(f"norm {norms[row]:.3g} (usual {usual[row]:.3g})")
    padded = np.concatenate([[np.nan], stats.cosines, [np.nan]])
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
    sigma = MAD_TO_SIGMA * float(np.median(known))
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
    distances, counts = np.unique(repeated, return_counts=True)
    period = int(distances[np.argmax(counts)])
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
            found[length] = tuple(position for position in range(length, rows, length) if position in jumps)
            jumps -= set(found[length])
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
