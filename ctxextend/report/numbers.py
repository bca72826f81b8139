"""Formatting of numbers with 95 % confidence intervals."""

import math
from dataclasses import dataclass, replace

from ctxextend.lab.evaluation_result import Estimate

LOSS_UNIT = "nats/token"
MAX_EXPONENT = 700  # whose exponential is a float
ONE_WINDOW = "based on a single window (no confidence interval)"


def finite_perplexity(loss: float) -> float:
    """Return the perplexity of a loss in nats per token; at most e^700."""
    return math.exp(min(loss, MAX_EXPONENT))


@dataclass(frozen=True)
class NumberFormat:
    """Format numbers as ``value ± ci95``, with half the width of the 95 % confidence interval.

    An interval that would leave the range of its measure is shown by its ends: ``0.90 (0.62 to
    1.00)``.
    """

    sign: str = "±"

    def head(self, text: str) -> str:
        """Return the header of a column of such numbers."""
        return f"{text} {self.sign} 95 %"

    def number(self, value: float | None, ci95: float | None, *, signed: bool = False) -> str:
        """Return a number with two digits of its interval; ``-`` for None and NaN.

        Without an interval, it has three significant digits. It never has more than four decimals,
        and below 10^6, no digit before the point is dropped.
        """
        if value is None or math.isnan(value):
            return "-"
        sign = "+" if signed else ""
        if not ci95 or not math.isfinite(ci95):
            return _format(value, _decimals(abs(value) / 10), sign)
        decimals = _decimals(ci95)
        interval = _format(ci95, decimals, "")
        if round(ci95, decimals) == 0:  # never shown as 0
            interval = f"{ci95:.0e}"
        return f"{_format(value, decimals, sign)} {self.sign} {interval}"

    def ends(self, value: float, ends: tuple[float, float], *, signed: bool = False) -> str:
        """Return a number with the ends of its interval: ``0.90 (0.62 to 1.00)``."""
        lower, upper = ends
        decimals = _decimals((upper - lower) / 2)
        sign = "+" if signed else ""
        shown = _format(value, decimals, sign)
        return f"{shown} ({_format(lower, decimals, sign)} to {_format(upper, decimals, sign)})"

    def estimate(self, estimate: Estimate | None, *, signed: bool = False) -> str:
        """Return a mean and its interval, or why it has none; ``-`` for None."""
        if estimate is None:
            return "-"
        return self._scaled(estimate, 1, signed=signed)

    def perplexity(self, estimate: Estimate | None) -> str:
        """Return a perplexity and its interval, or why it has none; ``-`` for None.

        Half its width is the perplexity times that of the loss, since d exp(x) = exp(x) dx. If such
        an interval would reach below the smallest possible perplexity, the ends are shown instead:
        the exponentials of those of the loss.
        """
        if estimate is None or math.isnan(estimate.mean):
            return "-"
        loss_half_width = estimate.half_width
        if loss_half_width is None or estimate.interval is None:
            return f"{self.number(estimate.perplexity, None)}{_no_interval(estimate)}"
        smallest_loss, _ = estimate.bounds
        half_width = estimate.perplexity * loss_half_width
        fits = estimate.perplexity - half_width > math.exp(smallest_loss)
        if fits or half_width == 0:
            return self.number(estimate.perplexity, half_width)
        lower, upper = estimate.interval
        return self.ends(estimate.perplexity, (finite_perplexity(lower), finite_perplexity(upper)))

    def change(self, estimate: Estimate | None) -> str:
        """Return a signed difference and its interval, or why it has none; ``-`` for None."""
        return self.estimate(estimate, signed=True)

    def percent(self, share: Estimate | None, *, signed: bool = False) -> str:
        """Return a share in percent, or a difference of shares in points; ``-`` for None."""
        if share is None:
            return "-"
        return self._scaled(share, 100, signed=signed)

    def _scaled(self, estimate: Estimate, scale: int, *, signed: bool) -> str:
        mean = scale * estimate.mean
        if estimate.interval is None:
            return f"{self.number(mean, None, signed=signed)}{_no_interval(estimate)}"
        if estimate.ci95 is None:  # a bound cuts the interval
            lower, upper = estimate.interval
            return self.ends(mean, (scale * lower, scale * upper), signed=signed)
        return self.number(mean, scale * estimate.ci95, signed=signed)

    def compared(self, change: Estimate, other: str, unit: str = LOSS_UNIT) -> str:
        """Describe a difference to `other`, in a sentence without a subject.

        Differences in `LOSS_UNIT` are of losses: a negative one is better. Those in another unit
        are of scores: a positive one is better.
        """
        if not math.isfinite(change.mean):
            return f"not comparable with {other}: a loss is not finite"
        if change.sign is None:
            amount = f"{self.number(abs(change.mean), None)} {unit}"
            direction = "lower" if change.mean < 0 else "higher"
            return f"{amount} {direction} than {other}, {ONE_WINDOW}"
        if change.sign == 0:
            return f"tied with {other} ({self.change(change)} {unit})"
        is_lower_better = unit == LOSS_UNIT
        direction = "better" if (change.mean < 0) == is_lower_better else "worse"
        absolute = replace(change, mean=abs(change.mean))  # bounds of differences are symmetric
        amount = f"{self.estimate(absolute)} {unit}"
        return f"{direction} than {other} by {amount}"


NUMBERS = NumberFormat()  # in Unicode


def _no_interval(estimate: Estimate) -> str:
    """Return why a mean has no interval, to follow it; empty unless it has one sample."""
    if estimate.samples == 1 and math.isfinite(estimate.mean):
        return " (one sample)"
    return ""


def _decimals(step: float) -> int:
    """Return the number of decimals that shows two significant digits of `step`."""
    if not 0 < step < math.inf:
        return 2
    return min(max(1 - math.floor(math.log10(step)), 0), 4)


def _format(value: float, decimals: int, sign: str) -> str:
    if abs(value) >= 1e6:
        return f"{value:{sign}.3g}"
    return f"{round(value, decimals) + 0.0:{sign},.{decimals}f}"  # + 0.0 turns -0.0 into 0.0
