"""Sinusoidal position embeddings, and sums of sinusoids fitted to learned rows."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Orders of sines and cosines in transformers.
LAYOUTS = ("interleaved", "halves", "halves-log", "halves-log-cos")
# Relative error of an angle in float32: mostly that of exp(x), |x| < log(10000).
ANGLE_ROUNDING = 2.0**-20
FIT_VALUES = 2**18  # maximum number of values, in evenly spaced rows, to which layouts are fitted
BLOCK_ROWS = 256  # rows processed at once, to avoid a second table of the new length in memory
# Components below this share of the largest one's variance are rounding errors.
VARIANCE_ROUNDING = 1e-12
OVERSAMPLING = 8  # frequencies of the periodogram per cycle per table
# Residuals below this share of the curves' sum of squares are rounding errors.
RESIDUAL_ROUNDING = 1e-20
RESOLUTION = 0.75  # frequencies closer than this, in cycles per table, cannot be resolved
# Gauss-Newton steps.
MAX_STEPS = 20
MAX_HALVINGS = 4  # of each step
MIN_DECREASE = 1e-6  # relative decrease of the error below which they stop


def sinusoidal_rows(
    positions: NDArray[np.int64],
    width: int,
    layout: str = "interleaved",
    *,
    in_float32: bool = False,
) -> Floats:
    """Return sinusoidal embeddings PE(t), shape (m, d), of absolute positions t, shape (m,).

    ``interleaved``: PE(t)[2i] = sin(t / 10000^(2i/d)), PE(t)[2i+1] = cos(t / 10000^(2i/d)).
    ``halves``: all sines, then all cosines. ``halves-log``: as halves, of t / 10000^(i/(d/2 - 1)),
    for d ≥ 4. ``halves-log-cos``: cosines first. If d is odd, one more column is a sine, or zero
    for ``halves-log``. Cast to float32, they equal those of transformers bit for bit; `in_float32`
    is for models that compute with torch in float32.

    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762; ``halves-log`` as in tensor2tensor
    and fairseq.
    """
    sines, cosines = _columns(width, layout)
    result = np.zeros((len(positions), width))
    if in_float32:
        import torch

        if layout.startswith("halves-log"):
            step = math.log(10000) / (width // 2 - 1)
            frequencies = torch.exp(torch.arange(width // 2).float() * -step)
        else:
            frequencies = 1.0 / 10000 ** (torch.arange(0, width, 2) / width)
        phases = torch.from_numpy(positions).float()[:, None] * frequencies
        result[:, sines] = torch.sin(phases)
        result[:, cosines] = torch.cos(phases[:, : width // 2])
        return result
    angles = positions[:, None] / _wavelengths(width, layout)
    np.sin(angles, out=result[:, sines])
    np.cos(angles[:, : width // 2], out=result[:, cosines])
    return result


def _wavelengths(width: int, layout: str) -> Floats:
    """Return the positions per radian of each pair of columns.

    The shape is (ceil(d/2),), or (d//2,) for ``halves-log``.
    """
    if layout.startswith("halves-log"):
        step = math.log(10000) / max(width // 2 - 1, 1)
        return np.asarray(np.exp(np.arange(width // 2) * step))
    return np.asarray(10000.0 ** (np.arange(0, width, 2) / width))


def _columns(width: int, layout: str) -> tuple[slice, slice]:
    if layout == "interleaved":
        return slice(0, None, 2), slice(1, None, 2)
    pairs = width // 2
    if layout == "halves-log-cos":
        return slice(pairs, 2 * pairs), slice(pairs)
    sines = pairs
    if layout == "halves":
        sines += width % 2
    return slice(sines), slice(sines, sines + pairs)


def _minimum_width(layout: str) -> int:
    return 4 if layout.startswith("halves-log") else 2


class Formula(NamedTuple):
    """The sinusoidal formula of a table: row i is PE(start + i)."""

    layout: str  # one of `LAYOUTS`
    start: int


def find_formula(table: NDArray[Any], layout: str | None = None) -> Formula | None:
    """Return the formula that every row of a table equals within rounding, if there is one.

    Args:
        table: Shape (n, d), any float dtype. Angles may be rounded to float32.
        layout: The layout to return if several fit, as for one row; by default the first.
    """
    width = table.shape[1]
    first = table[:1].astype(np.float64)
    if not abs(float(np.vdot(first, first)) - width / 2) < 0.6:  # radius 1 each; NaN fails too
        return None
    slowest = width // 2 - 1  # the pair of columns that tells the position
    for candidate in sorted(LAYOUTS, key=lambda name: name != layout):
        if width < _minimum_width(candidate):
            continue
        sines, cosines = _columns(width, candidate)
        angle = float(np.arctan2(first[0, sines][slowest], first[0, cosines][slowest]))
        wavelength = _wavelengths(width, candidate)[slowest]
        formula = Formula(candidate, round(angle % (2 * np.pi) * wavelength))
        if first_deviation(table, formula) is None:
            return formula
    return None


def first_deviation(table: NDArray[Any], formula: Formula) -> int | None:
    """Return the index of the first row that differs from a formula by more than rounding."""
    import ml_dtypes  # knows all float dtypes

    eps = ml_dtypes.finfo(table.dtype).eps  # type: ignore[no-untyped-call]
    # A table in float64 may have been converted.
    rounding = 2 * float(max(eps, np.finfo(np.float32).eps))
    width = table.shape[1]
    layout, start = formula
    tolerance = np.zeros(width)
    slopes = ANGLE_ROUNDING / _wavelengths(width, layout)
    for columns in _columns(width, layout):
        tolerance[columns] = slopes[: len(tolerance[columns])]
    for row in range(0, len(table), BLOCK_ROWS):
        block = table[row : row + BLOCK_ROWS].astype(np.float64)
        positions = start + row + np.arange(len(block))
        errors = np.abs(block - sinusoidal_rows(positions, width, layout))
        deviates = ~(errors <= rounding + positions[:, None] * tolerance).all(axis=1)
        if deviates.any():
            return row + int(deviates.argmax())
    return None


@dataclass(frozen=True)
class LayoutFit:
    """How sinusoidal a table is; see `fit_layout`."""

    layout: str  # the one of `LAYOUTS` that explains most
    explained: float  # share of the table's variance that its sinusoids explain, 0 to 1
    is_formula: bool  # whether every row equals the formula
    first_deviating_row: int | None  # the first row that does not, if others do


def fit_layout(table: NDArray[Any], layout: str = "") -> LayoutFit | None:
    """Return how much of the variance of a table its best layout explains.

    The fit is m + r·PE(t): a mean row m, one radius r, and a phase for each pair of columns, so
    that rows can start at any position. With z_i(t) = cosine column + i·sine column of pair i, and
    w_i(t) = exp(iω_i·t), each minus its mean,

        explained = (Σ_i |⟨w_i, z_i⟩|)² / (Σ_i ‖w_i‖² · Σ_i ‖z_i‖²),

    about 1/n for random rows. Slow sinusoids with a radius each would fit the trends of any learned
    table. Large tables are sampled, and a last column without a partner is ignored.

    Args:
        table: Finite rows, shape (n, d), any float dtype.
        layout: The layout that the model computes, if any.

    Returns:
        The fit; None if the rows are equal, as a single row is.
    """
    width = table.shape[1]
    with np.errstate(all="ignore"):
        explained = {
            name: _explained(table, name) for name in LAYOUTS if width >= _minimum_width(name)
        }
    best = max(explained, key=lambda name: explained[name], default="")
    if not (best and explained[best] >= 0):
        return None
    expected = layout or best
    formula = find_formula(table, expected)
    if formula is not None:
        return LayoutFit(
            layout=formula.layout,
            explained=explained[formula.layout],
            is_formula=True,
            first_deviating_row=None,
        )
    deviating = _first_deviation_from_row(table, expected)
    if deviating is None and layout:
        deviating = 0
    return LayoutFit(
        layout=best,
        explained=explained[best],
        is_formula=False,
        first_deviating_row=deviating,
    )


def _first_deviation_from_row(table: NDArray[Any], layout: str) -> int | None:
    """Return the first row that deviates from the sinusoids that the first or a middle row starts.

    None if neither is a row of sinusoids.
    """
    for row in (0, len(table) // 2):
        single = find_formula(table[row : row + 1], layout)
        if single is not None and single.layout == layout:
            return first_deviation(table, Formula(layout, single.start - row))
    return None


def _explained(table: NDArray[Any], layout: str) -> float:
    """Return the share of a table's variance that a layout explains; NaN if there is none."""
    width = table.shape[1]
    pairs = width // 2
    rows = np.linspace(0, len(table) - 1, min(len(table), FIT_VALUES // width)).astype(np.intp)
    sampled = table[rows].astype(np.float64)
    sampled -= sampled[0]  # equal rows become exactly zero
    sines, cosines = _columns(width, layout)
    values = sampled[:, cosines][:, :pairs] + 1j * sampled[:, sines][:, :pairs]
    waves = np.exp(1j * rows[:, None] / _wavelengths(width, layout)[:pairs])
    values -= values.mean(axis=0)
    waves -= waves.mean(axis=0)
    products = np.abs(np.einsum("tp,tp->p", waves.conj(), values)).sum()
    variances = np.vdot(waves, waves).real * np.vdot(values, values).real
    return min(float(products**2 / variances), 1.0)


class PrincipalComponents(NamedTuple):
    """A table approximated as mean + coordinates @ directions."""

    mean: Floats  # shape (d,); NaN if a row is not finite
    coordinates: Floats  # shape (n, k)
    directions: Floats  # shape (k, d)


def principal_components(table: Floats, maximum: int) -> PrincipalComponents:
    """Return up to `maximum` leading principal components of a table, shape (n, d).

    There are none if it is constant or not finite.
    """
    count, width = table.shape
    mean = table.mean(axis=0)
    blocks = (table[start : start + BLOCK_ROWS] for start in range(0, count, BLOCK_ROWS))
    scale = max(np.abs(block - mean).max() for block in blocks)
    if not np.isfinite(scale):
        mean[:] = np.nan
    # Constant rows differ from their mean by rounding errors.
    if not scale > 1e-14 * np.abs(mean).max():
        return PrincipalComponents(
            mean=mean, coordinates=np.zeros((count, 0)), directions=np.zeros((0, width))
        )
    centred = table - mean
    centred /= scale  # so that squares neither overflow nor underflow
    is_wide = count < width
    values, vectors = np.linalg.eigh(centred @ centred.T if is_wide else centred.T @ centred)
    values = values[::-1][:maximum]
    vectors = vectors[:, ::-1][:, :maximum]
    kept = values > VARIANCE_ROUNDING * values[0]
    values = values[kept]
    vectors = vectors[:, kept]
    if not is_wide:
        return PrincipalComponents(
            mean=mean, coordinates=centred @ vectors, directions=scale * vectors.T
        )
    roots = np.sqrt(values)
    return PrincipalComponents(
        mean=mean,
        coordinates=vectors * roots,
        directions=scale * ((vectors / roots).T @ centred),
    )


def periodogram(positions: NDArray[np.intp], values: Floats) -> tuple[Floats, Floats]:
    """Return a Lomb-Scargle periodogram: frequencies, and the squares that each explains.

    Both have shape (f,). Fits a constant, a cosine and a sine per frequency to `values` at
    ascending `positions` ≥ 0, shape (n,), with least squares. Frequencies, in cycles per position,
    start at half a cycle per table in steps of 1/8 cycle per table; a plain Fourier transform would
    favour integer numbers of cycles.

    Source: Zechmeister & Kürster 2009, "The generalised Lomb-Scargle periodogram", section 2,
    arXiv:0901.2573.
    """
    length = int(positions[-1]) + 1
    count = len(positions)
    curve = np.zeros(length)
    curve[positions] = values - values.mean()
    ones = np.zeros(length)
    ones[positions] = 1
    # Bin k of the zero-padded transforms is the frequency k / (8·length).
    bins = np.arange(OVERSAMPLING // 2, OVERSAMPLING * length // 2)
    waves = np.fft.rfft(curve, OVERSAMPLING * length)[bins]
    window = np.fft.fft(ones, OVERSAMPLING * length)
    once = window[bins]
    twice = window[2 * bins % (OVERSAMPLING * length)]
    # As named in the paper: sums over positions of products of the curve (y), cosine (c) and sine
    # (s).
    cosine = once.real / count
    sine = -once.imag / count
    cc = (1 + twice.real / count) / 2 - cosine**2
    ss = (1 - twice.real / count) / 2 - sine**2
    cs = -twice.imag / count / 2 - cosine * sine
    yc = waves.real / count
    ys = -waves.imag / count
    determinant = cc * ss - cs**2
    divisor = np.where(determinant > 1e-12, determinant, np.inf)
    explained = (ss * yc**2 + cc * ys**2 - 2 * cs * yc * ys) / divisor
    return bins / (OVERSAMPLING * length), np.asarray(explained * count, dtype=np.float64)


def highest_peak(frequencies: Floats, power: Floats) -> tuple[float, float]:
    """Return the maximum power and its frequency.

    The frequency is refined with a parabola through the adjacent bins.
    """
    best = int(np.argmax(power))
    frequency = frequencies[best]
    adjacent = power[max(best - 1, 0) : best + 2]
    if len(adjacent) == 3 and adjacent[1] > max(adjacent[0], adjacent[2]):
        offset = (adjacent[2] - adjacent[0]) / (2 * (2 * adjacent[1] - adjacent[0] - adjacent[2]))
        frequency += offset * (frequencies[1] - frequencies[0])
    return float(power[best]), float(frequency)


class SinusoidFit:
    """A least-squares fit of several curves with a constant and sinusoids of common frequencies.

    `weights`, shape (1 + 2f, k), are those of the constant, each cosine and each sine per curve;
    `residual`, shape (n, k), is the curves minus the fit, and `error` its sum of squares.
    """

    def __init__(self, curves: Floats, frequencies: Floats) -> None:
        """Fit the weights for fixed frequencies to curves of shape (n, k)."""
        self.frequencies = frequencies
        self._middle = (len(curves) - 1) / 2
        left, sizes, right = np.linalg.svd(self._waves(np.arange(len(curves))), full_matrices=False)
        kept = sizes > 1e-9 * sizes[0]
        self._basis = left[:, kept]
        self.weights = right[kept].T @ ((self._basis.T @ curves) / sizes[kept, None])
        self.residual = self._residual_of(curves)
        self.error = float(np.square(self.residual).sum())

    def at(self, positions: NDArray[np.int64]) -> Floats:
        """Evaluate the fit at positions of shape (m,): shape (m, k)."""
        return np.asarray(self._waves(positions) @ self.weights)

    def newton_step(self) -> Floats:
        """Return the Gauss-Newton step of the frequencies, shape (f,), by variable projection.

        Source: Kaufman 1975, BIT 15, pages 49-57, on Golub & Pereyra 1973, SIAM J. Numer. Anal.
        10(2).
        """
        count = len(self.frequencies)
        positions = np.arange(len(self.residual))
        # The derivatives with respect to a frequency: -2πt·sin and 2πt·cos, times the weights of
        # its cosine and sine.
        waves = (positions - self._middle)[:, None] * self._waves(positions)[:, 1:]
        slopes = 2 * np.pi * self._residual_of(np.hstack([waves[:, count:], waves[:, :count]]))
        weights = np.vstack([-self.weights[1 : 1 + count], self.weights[1 + count :]])
        pairs = (weights @ weights.T) * (slopes.T @ slopes)
        products = pairs.reshape(2, count, 2, count).sum(axis=(0, 2))
        singles = (weights * (slopes.T @ self.residual)).sum(axis=1)
        sums = singles.reshape(2, count).sum(axis=0)
        return np.asarray(np.linalg.lstsq(products, sums, rcond=None)[0])

    def _waves(self, positions: NDArray[np.int64]) -> Floats:
        angles = 2 * np.pi * (positions - self._middle)[:, None] * self.frequencies
        return np.hstack([np.ones((len(positions), 1)), np.cos(angles), np.sin(angles)])

    def _residual_of(self, curves: Floats) -> Floats:
        return np.asarray(curves - self._basis @ (self._basis.T @ curves))


def fit_sinusoids(curves: Floats, maximum: int) -> SinusoidFit:
    """Fit a constant and sinusoids of common frequencies to finite curves, shape (n, k).

    Adds frequencies one by one, at most `maximum` and n / 4, each where a sinusoid explains most of
    the residual, and refines all of them after each. They are at least half a cycle per table, and
    far enough apart to be resolved.
    """
    fit = SinusoidFit(curves, np.zeros(0))
    positions = np.arange(len(curves))
    for _ in range(min(maximum, len(curves) // 4)):
        powers = [periodogram(positions, curve) for curve in fit.residual.T]
        frequencies = powers[0][0]
        power = np.sum([power for _, power in powers], axis=0)
        distances = np.abs(frequencies[:, None] - fit.frequencies)
        power[(distances < 1 / len(curves)).any(axis=1)] = 0
        highest, frequency = highest_peak(frequencies, power)
        if not highest > 0 or fit.error <= RESIDUAL_ROUNDING * np.square(curves).sum():
            break
        fit = _refine(curves, SinusoidFit(curves, np.append(fit.frequencies, frequency)))
    return fit


def _refine(curves: Floats, fit: SinusoidFit) -> SinusoidFit:
    """Minimise the error over the frequencies with Gauss-Newton steps."""
    for _ in range(MAX_STEPS):
        better = _better_fit(curves, fit)
        if better is None:
            return fit
        is_done = better.error > (1 - MIN_DECREASE) * fit.error
        fit = better
        if is_done:
            break
    return fit


def _better_fit(curves: Floats, fit: SinusoidFit) -> SinusoidFit | None:
    """Return a fit with a smaller error, one Gauss-Newton step or a part of it away."""
    step = fit.newton_step()
    for _ in range(MAX_HALVINGS):
        moved = fit.frequencies + step
        if _are_resolved(moved, len(curves)):
            better = SinusoidFit(curves, moved)
            if better.error < fit.error:
                return better
        step /= 2
    return None


def _are_resolved(frequencies: Floats, count: int) -> bool:
    """Whether frequencies are between half a cycle per table of `count` rows and half a cycle per
    row, and far enough apart.
    """
    cycles = np.sort(frequencies) * count
    is_inside = 2 * cycles[0] >= 1 and 2 * cycles[-1] <= count
    return bool(is_inside and (np.diff(cycles) >= RESOLUTION).all())
