"""Sinusoids: the fixed formula of positions, and sums fitted to the principal components of learned rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Rows that are processed at once, so that no second table of the new length is held.
BLOCK_ROWS = 256
# The share of the largest component's variance below which a component is only rounding.
ROUNDING = 1e-12

# Frequencies of the periodogram in each cycle per table.
OVERSAMPLING = 8
# The share of the curves' sum of squares below which the residual is only rounding.
RESIDUAL_ROUNDING = 1e-20
# Frequencies closer to each other than this, in cycles per table, cannot be distinguished.
RESOLUTION = 0.75
# The most steps that refine the frequencies, how often a step that makes the fit worse is halved, and the share of the
# error that a step must remove for another to follow.
MAX_STEPS, MAX_HALVINGS, MIN_GAIN = 20, 4, 1e-6


def sinusoidal_rows(positions: NDArray[np.int64], width: int) -> Floats:
    """Return PE(t) for absolute positions t of shape (m,), shape (m, d): sin and cos interleaved.

    PE(t)[2i] = sin(t / 10000^(2i/d)), PE(t)[2i+1] = cos(t / 10000^(2i/d)); with an odd d the last column is a sine
    without its cosine.

    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762.
    """
    result = np.empty((len(positions), width))
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = positions[:, None] * frequencies
    np.sin(angles, out=result[:, 0::2])
    np.cos(angles[:, : width // 2], out=result[:, 1::2])
    return result


class PrincipalComponents(NamedTuple):
    """A table as mean + coordinates @ directions, as far as its leading components go."""

    mean: Floats  # shape (d,); NaN where a row is not finite
    coordinates: Floats  # shape (n, k)
    directions: Floats  # shape (k, d)


def principal_components(table: Floats, maximum: int) -> PrincipalComponents:
    """Return at most so many leading principal components of a table of shape (n, d) around its mean row.

    A constant table has none, nor has one with a row that is not finite.
    """
    mean = table.mean(axis=0)
    unit = max(np.abs(table[start : start + BLOCK_ROWS] - mean).max() for start in range(0, len(table), BLOCK_ROWS))
    if not np.isfinite(unit):
        mean[:] = np.nan
    if not unit > 1e-14 * np.abs(mean).max():  # constant rows may differ from their mean by rounding
        return PrincipalComponents(mean, np.zeros((len(table), 0)), np.zeros((0, table.shape[1])))
    centred = table - mean
    centred /= unit  # so that squares of very large and very small numbers neither overflow nor vanish
    is_wide = len(table) < table.shape[1]
    values, vectors = np.linalg.eigh(centred @ centred.T if is_wide else centred.T @ centred)
    values, vectors = values[::-1][:maximum], vectors[:, ::-1][:, :maximum]
    kept = values > ROUNDING * values[0]
    values, vectors = values[kept], vectors[:, kept]
    if is_wide:
        roots = np.sqrt(values)
        return PrincipalComponents(mean, vectors * roots, unit * ((vectors / roots).T @ centred))
    return PrincipalComponents(mean, centred @ vectors, unit * vectors.T)


def periodogram(positions: NDArray[np.intp], values: Floats) -> tuple[Floats, Floats]:
    """Fit a constant, a cosine and a sine to a curve by least squares, at closely spaced frequencies.

    The curve is known at ascending positions ≥ 0, shape (n,). Frequencies, in cycles per position, are an eighth of a
    cycle per table apart, from half a cycle per table on: a plain Fourier transform would favour whole cycles. Returned
    are these, and the sum of squares that each explains, shape (f,) both.

    Source: Zechmeister & Kürster 2009, "The generalised Lomb-Scargle periodogram", section 2, arXiv:0901.2573.
    """
    length, count = int(positions[-1]) + 1, len(positions)
    curve, ones = np.zeros(length), np.zeros(length)
    curve[positions], ones[positions] = values - values.mean(), 1
    # Bin k of the padded transforms is the frequency k / (8·length).
    bins = np.arange(OVERSAMPLING // 2, OVERSAMPLING * length // 2)
    waves = np.fft.rfft(curve, OVERSAMPLING * length)[bins]
    window = np.fft.fft(ones, OVERSAMPLING * length)
    once, twice = window[bins], window[2 * bins % (OVERSAMPLING * length)]
    # The names of the paper: sums over positions of products of the curve (y), cosine (c) and sine (s).
    cosine, sine = once.real / count, -once.imag / count
    cc = (1 + twice.real / count) / 2 - cosine**2
    ss = (1 - twice.real / count) / 2 - sine**2
    cs = -twice.imag / count / 2 - cosine * sine
    yc, ys = waves.real / count, -waves.imag / count
    determinant = cc * ss - cs**2
    explained = (ss * yc**2 + cc * ys**2 - 2 * cs * yc * ys) / np.where(determinant > 1e-12, determinant, np.inf)
    return bins / (OVERSAMPLING * length), np.asarray(explained * count, dtype=np.float64)


def highest_peak(frequencies: Floats, power: Floats) -> tuple[float, float]:
    """Return the highest of evenly spaced powers, and where the parabola through it and those beside it is highest."""
    best = int(np.argmax(power))
    frequency, three = frequencies[best], power[max(best - 1, 0) : best + 2]
    if len(three) == 3 and three[1] > max(three[0], three[2]):
        offset = (three[2] - three[0]) / (2 * (2 * three[1] - three[0] - three[2]))
        frequency += offset * (frequencies[1] - frequencies[0])
    return float(power[best]), float(frequency)


class SinusoidFit:
    """Several curves over the same positions, each a constant and sinusoids of the same frequencies, fitted.

    `weights`, shape (1 + 2f, k), are of the constant, each cosine and each sine in each curve; `residual`, shape (n,
    k), is the curves minus the fit, and `error` its sum of squares.
    """

    def __init__(self, curves: Floats, frequencies: Floats) -> None:
        """Fit the weights of given frequencies to curves of shape (n, k), by least squares."""
        self.frequencies = frequencies
        self._middle = (len(curves) - 1) / 2
        left, sizes, right = np.linalg.svd(self._waves(np.arange(len(curves))), full_matrices=False)
        kept = sizes > 1e-9 * sizes[0]
        self._basis = left[:, kept]
        self.weights = right[kept].T @ ((self._basis.T @ curves) / sizes[kept, None])
        self.residual = self._residual_of(curves)
        self.error = float(np.square(self.residual).sum())

    def at(self, positions: NDArray[np.int64]) -> Floats:
        """Return the curves' values at positions of shape (m,), shape (m, k)."""
        return np.asarray(self._waves(positions) @ self.weights)

    def newton_step(self) -> Floats:
        """Return the Gauss-Newton step of the frequencies, shape (f,), with the weights fitted again.

        Source: Kaufman 1975, BIT 15, pages 49-57, on Golub & Pereyra 1973, SIAM J. Numer. Anal. 10(2).
        """
        count, positions = len(self.frequencies), np.arange(len(self.residual))
        # The derivatives by a frequency are t·sin and t·cos, times 2π, with its cosine's and its sine's weights.
        waves = (positions - self._middle)[:, None] * self._waves(positions)[:, 1:]
        slopes = 2 * np.pi * self._residual_of(np.hstack([waves[:, count:], waves[:, :count]]))
        weights = np.vstack([-self.weights[1 : 1 + count], self.weights[1 + count :]])
        products = ((weights @ weights.T) * (slopes.T @ slopes)).reshape(2, count, 2, count).sum(axis=(0, 2))
        sums = (weights * (slopes.T @ self.residual)).sum(axis=1).reshape(2, count).sum(axis=0)
        return np.asarray(np.linalg.lstsq(products, sums, rcond=None)[0])

    def _waves(self, positions: NDArray[np.int64]) -> Floats:
        angles = 2 * np.pi * (positions - self._middle)[:, None] * self.frequencies
        return np.hstack([np.ones((len(positions), 1)), np.cos(angles), np.sin(angles)])

    def _residual_of(self, curves: Floats) -> Floats:
        """Return curves minus what sinusoids of these frequencies can express of them."""
        return np.asarray(curves - self._basis @ (self._basis.T @ curves))


def fit_sinusoids(curves: Floats, maximum: int) -> SinusoidFit:
    """Fit a constant and sinusoids of common frequencies to finite curves, shape (n, k).

    Frequencies are added one by one, at most `most` and a quarter of n, each where a sinusoid explains most of the
    residual of all curves, and all are refined after each. They are half a cycle per table or more, and far enough
    apart that none cancels another.
    """
    fit, positions = SinusoidFit(curves, np.zeros(0)), np.arange(len(curves))
    for _ in range(min(maximum, len(curves) // 4)):
        powers = [periodogram(positions, curve) for curve in fit.residual.T]
        frequencies, power = powers[0][0], np.sum([power for _, power in powers], axis=0)
        near = np.abs(frequencies[:, None] - fit.frequencies) < 1 / len(curves)
        power[near.any(axis=1)] = 0
        highest, frequency = highest_peak(frequencies, power)
        if not highest > 0 or fit.error <= RESIDUAL_ROUNDING * np.square(curves).sum():
            break
        fit = _refine(curves, SinusoidFit(curves, np.append(fit.frequencies, frequency)))
    return fit


def _refine(curves: Floats, fit: SinusoidFit) -> SinusoidFit:
    """Return the fit with its frequencies moved to where the error is least."""
    for _ in range(MAX_STEPS):
        step = fit.newton_step()
        for _ in range(MAX_HALVINGS):
            moved = fit.frequencies + step
            ordered = np.sort(moved) * len(curves)
            is_inside = 2 * ordered[0] >= 1 and 2 * ordered[-1] <= len(curves)
            if is_inside and (np.diff(ordered) >= RESOLUTION).all():
                better = SinusoidFit(curves, moved)
                if better.error < fit.error:
                    break
            step /= 2
        else:
            return fit
        is_done, fit = better.error > (1 - MIN_GAIN) * fit.error, better
        if is_done:
            break
    return fit
