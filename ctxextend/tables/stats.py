"""What a position table looks like, in numbers: norms, neighbours, spectrum, periods, and rows that stand out."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.components import BLOCK_ROWS
from ctxextend.tables.eigenvectors import leading_eigenvectors
from ctxextend.tables.medians import median
from ctxextend.tables.periodogram import periodogram, vertex

__all__ = ["Component", "TableStats", "along", "measure", "spreads"]

Table = NDArray[Any]
Floats = NDArray[np.float64]

# Components whose periods are measured, and the share of the variance below which one is nothing but rounding.
LEADING = 4
NOTHING = 1e-12
# Rows from which the spectrum is taken; of a longer table as many, evenly spaced. Of a table with more rows and columns
# than `WIDE` they are fewer: what a spectrum takes grows with the cube of the smaller number.
SPECTRUM_ROWS = 8192
WIDE, WIDE_ROWS = 768, 512
# Where the highest norm is more than so many medians, a picture shows equal factors as equal steps.
SPREAD = 4.0


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
        eigenvalues: Variance along each principal component, descending, float64, of the rows that `measure` takes for
            the spectrum; of a table whose largest number is beyond 1e75 or below 1e-75, in another unit, since squares
            of such are no numbers.
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
        Its figures, computed in float64. The spectrum of more than 8,192 rows is that of so many, evenly spaced; of a
        table with more than 768 rows and columns, that of 512 rows.
    """
    unit = _unit(table)
    if unit != 1:
        return _in_units(measure(table.astype(np.float64) / unit), unit)
    norms, cosines, steps = along(table)
    nonfinite = np.flatnonzero(~np.isfinite(norms))
    finite = np.delete(np.arange(len(table)), nonfinite) if nonfinite.size else np.arange(len(table))
    mean = _mean(table, finite)
    eigenvalues, directions = _spectrum(table, finite, mean)
    projected = _project(table, finite, mean, directions)
    components = _components(eigenvalues, finite, projected)
    zeros = np.flatnonzero(norms == 0)
    found = (tuple(map(int, rows)) for rows in (nonfinite, zeros))
    return TableStats(norms, cosines, steps, float(np.linalg.norm(mean)), eigenvalues, components, *found)


def _unit(table: Table) -> float:
    """Return 1, or for numbers whose squares are none the power of two by which to divide them."""
    if table.dtype != np.float64:
        return 1.0
    blocks = _blocks(table, np.arange(len(table)))
    largest = max((float(np.abs(block[np.isfinite(block)]).max(initial=0)) for block in blocks), default=0.0)
    if largest == 0 or 1e-75 < largest < 1e75:
        return 1.0
    return float(2.0 ** min(max(math.frexp(largest)[1], -1000), 1000))


def _in_units(stats: TableStats, unit: float) -> TableStats:
    """Return figures of a table that was divided by a unit as those of the table itself."""
    with np.errstate(over="ignore"):
        norms, steps = stats.norms * unit, stats.steps * unit
    return replace(stats, norms=norms, steps=steps, mean_norm=stats.mean_norm * unit)


def spreads(offset_norms: Floats, norms: Floats) -> bool:
    """Whether the highest norm is so far above the median that, drawn in equal steps, little were seen of most.

    Args:
        offset_norms: Those of rows in front of position 0; a padding row, which is zero, does not count.
        norms: The others.
    """
    values = np.concatenate([offset_norms[offset_norms > 0], norms])
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0 and values.max() > SPREAD * median(values))


def _blocks(table: Table, rows: NDArray[np.intp]) -> Iterator[Floats]:
    """Yield rows as float64, so many at a time that no second table is held."""
    for start in range(0, len(rows), BLOCK_ROWS):
        yield table[rows[start : start + BLOCK_ROWS]].astype(np.float64)


def along(table: Table) -> tuple[Floats, Floats, Floats]:
    """Return the norms, and cosine and distance of each row to the next."""
    norms, dots, steps = np.empty(len(table)), np.empty(len(table) - 1), np.empty(len(table) - 1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for start in range(0, len(table), BLOCK_ROWS):
            block = table[start : start + BLOCK_ROWS + 1].astype(np.float64)
            own, pairs = slice(start, start + BLOCK_ROWS), slice(start, start + len(block) - 1)
            norms[own] = np.sqrt(_dots(block[:BLOCK_ROWS], block[:BLOCK_ROWS]))
            dots[pairs] = _dots(block[1:], block[:-1])
            moves = block[1:] - block[:-1]
            steps[pairs] = np.sqrt(_dots(moves, moves))
        lengths = norms[1:] * norms[:-1]
        cosines = np.where(np.isfinite(lengths) & (lengths > 0), dots / lengths, np.nan)
    return norms, cosines, steps


def _dots(one: Floats, other: Floats) -> Floats:
    """Return the product of each row with that of the other; half the time of numpy.linalg.norm, which copies."""
    found: Floats = np.einsum("ij,ij->i", one, other)
    return found


def _mean(table: Table, rows: NDArray[np.intp]) -> Floats:
    total = np.zeros(table.shape[1])
    for block in _blocks(table, rows):
        total += block.sum(axis=0)
    return total / max(len(rows), 1)


def _spectrum(table: Table, rows: NDArray[np.intp], mean: Floats) -> tuple[Floats, Floats]:
    """Return the variances along all principal components, and the directions of the leading ones, shape (d, k)."""
    width = table.shape[1]
    most = WIDE_ROWS if min(len(rows), width) > WIDE else SPECTRUM_ROWS
    if len(rows) > most:
        rows = rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)]
    if len(rows) < 2:
        return np.zeros(0), np.zeros((width, 0))
    is_long = len(rows) >= width
    gram = _scatter(table, rows, mean) if is_long else _products(table, rows, mean)
    values = np.asarray(np.linalg.eigvalsh(gram)[::-1], dtype=np.float64)
    vectors = leading_eigenvectors(gram, values, _leading(values))
    directions = vectors if is_long else _directions(table, rows, mean, vectors)
    return np.maximum(values, 0) / len(rows), directions


def _scatter(table: Table, rows: NDArray[np.intp], mean: Floats) -> Floats:
    """Return the products of all columns, less the mean, with each other, shape (d, d)."""
    gram = np.zeros((table.shape[1], table.shape[1]))
    for block in _blocks(table, rows):
        block -= mean
        gram += block.T @ block  # of one array, of which BLAS computes a half
    return gram


def _directions(table: Table, rows: NDArray[np.intp], mean: Floats, vectors: Floats) -> Floats:
    """Return the directions, shape (d, k), of which eigenvectors of `_products` are the coordinates."""
    found = np.zeros((table.shape[1], vectors.shape[1]))
    for start, block in enumerate(_blocks(table, rows)):
        found += (block - mean).T @ vectors[start * BLOCK_ROWS : start * BLOCK_ROWS + len(block)]
    lengths = np.linalg.norm(found, axis=0)
    found /= np.where(lengths > 0, lengths, 1)
    return found


def _products(table: Table, rows: NDArray[np.intp], mean: Floats) -> Floats:
    """Return the products of all rows less the mean with each other, shape (n, n); of each pair one is computed."""
    gram = np.empty((len(rows), len(rows)))
    for start in range(0, len(rows), BLOCK_ROWS):
        own = slice(start, start + BLOCK_ROWS)
        block = table[rows[own]].astype(np.float64) - mean
        gram[own, own] = block @ block.T
        for place, other in enumerate(_blocks(table, rows[own.stop :])):
            behind = slice(own.stop + place * BLOCK_ROWS, own.stop + (place + 1) * BLOCK_ROWS)
            other -= mean
            gram[own, behind] = block @ other.T
            gram[behind, own] = gram[own, behind].T
    return gram


def _leading(values: Floats) -> int:
    """Return how many of the leading eigenvalues are more than rounding."""
    return int(np.count_nonzero(values[:LEADING] > NOTHING * values.sum()))


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
    """Return the period of the sinusoid that fits a curve best, and the share of its variance that this explains."""
    frequencies, power = periodogram(rows, values)
    best = int(np.argmax(power))
    total = float(np.square(values - values.mean()).sum())
    fit = min(float(power[best]) / total, 1.0) if total > 0 else 0.0
    step = frequencies[1] - frequencies[0] if len(frequencies) > 1 else 0.0
    return 1 / float(frequencies[best] + step * vertex(power[max(best - 1, 0) : best + 2])), fit
