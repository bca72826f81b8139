"""Means over independent samples with 95 % confidence intervals, and shares of trials."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.json_output import not_in_json

# With fewer windows or documents, standard errors are unreliable, and a text is too short to choose
# a method by.
MIN_SAMPLES = 8
T_QUANTILES = (12.706, 4.303, 3.182)  # exact, by degrees of freedom from 1 on
Z_95 = 1.959964  # of the normal distribution, for 95 % intervals

Bounds = tuple[float, float]  # the smallest and the largest possible value of a mean
UNBOUNDED: Bounds = (-math.inf, math.inf)  # differences of losses
LOSS_BOUNDS: Bounds = (0.0, math.inf)
SHARE_BOUNDS: Bounds = (0.0, 1.0)  # reciprocal ranks, nDCG, recall and accuracy


@dataclass(frozen=True)
class Estimate:
    """A mean over independent windows or documents."""

    mean: float  # a loss or difference of losses in nats per token, or a share
    standard_error: float | None = field(metadata=not_in_json)  # None with fewer than two samples
    tokens: int  # scored tokens, or queries
    samples: int  # windows or documents
    bounds: Bounds = field(default=UNBOUNDED, compare=False, metadata=not_in_json)

    json_properties: ClassVar[tuple[str, ...]] = ("interval",)

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval before a bound cuts it; None if it is unknown."""
        if self.standard_error is None:
            return None
        half_width = t_quantile(self.samples) * self.standard_error
        if not math.isfinite(self.mean + half_width):
            return None
        return half_width

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 95 % confidence interval, inside the bounds; None if unknown."""
        half_width = self.half_width
        if half_width is None:
            return None
        lower, upper = self.bounds
        return max(self.mean - half_width, lower), min(self.mean + half_width, upper)

    @property
    def sign(self) -> int | None:
        """The sign of a significant difference; 0 if the interval contains 0, None if unknown."""
        half_width = self.half_width
        if half_width is None:
            return None
        if self.mean > half_width:
            return 1
        if self.mean < -half_width:
            return -1
        return 0


def t_quantile(samples: int) -> float:
    """Return half the width of a 95 % confidence interval of a mean, in standard errors.

    `samples` ≥ 2 is the number of values.

    Source: Abramowitz and Stegun 1964, 26.7.5, Student's t as a series, accurate to 0.3 % from 4
    degrees of freedom on.
    """
    freedom = max(samples - 1, 1)
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    return Z_95 + 2.372271 / freedom + 2.822499 / freedom**2 + 2.555850 / freedom**3


def estimate(windows: Sequence[NDArray[np.float64]], bounds: Bounds = UNBOUNDED) -> Estimate:
    """Return the mean over all tokens of independent windows, each of shape (k,), k ≥ 0.

    Source: the ratio estimator of cluster sampling, Cochran 1977, Sampling Techniques, 3rd edition,
        section 9A.4: with sums s and counts c of w windows and r = Σs / Σc, the variance of r is w
        / (w - 1) · Σ(s - r·c)² / (Σc)².
    """
    scored = [values for values in windows if len(values)]
    sums = np.array([values.sum() for values in scored])
    counts = np.array([len(values) for values in scored], np.int64)
    return estimate_ratio(sums, counts, bounds)


def estimate_ratio(
    sums: NDArray[np.float64], counts: NDArray[np.int64], bounds: Bounds = UNBOUNDED
) -> Estimate:
    """Return `estimate` of windows whose sums over their tokens are known.

    Args:
        sums: The sum of each window, shape (windows,).
        counts: The tokens of each window, at least 1, shape (windows,).
        bounds: As in `estimate`.
    """
    samples = len(counts)
    if samples == 0:
        return Estimate(math.nan, standard_error=None, tokens=0, samples=0, bounds=bounds)
    total = int(counts.sum())
    mean = float(sums.sum() / total)
    standard_error = None
    if samples > 1:
        with np.errstate(invalid="ignore"):  # for non-finite losses
            squares = float(((sums - mean * counts) ** 2).sum())
        standard_error = math.sqrt(squares * samples / (samples - 1)) / total
    return Estimate(
        mean, standard_error=standard_error, tokens=total, samples=samples, bounds=bounds
    )


def wilson_interval(found: int, trials: int) -> tuple[float, float]:
    """Return the ends of the 95 % confidence interval of a share.

    Source: Wilson 1927, Probable inference, the law of succession, and statistical inference,
    Journal of the American Statistical Association 22, equation 3.
    """
    share = found / trials
    weight = Z_95**2 / trials
    middle = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * share * (1 - share) + weight**2 / 4) / (1 + weight)
    # Without rounding errors at the ends.
    lower = middle - half if found else 0.0
    upper = middle + half if found < trials else 1.0
    return lower, upper


def binomial_tail(found: int, trials: int, chance: float) -> float:
    """Return the probability of at least so many successes by guessing."""
    probability = 0.0
    for hits in range(found, trials + 1):
        probability += math.comb(trials, hits) * chance**hits * (1 - chance) ** (trials - hits)
    return probability
