"""Formatting of numbers with 95 % confidence intervals."""

import math
from dataclasses import dataclass, replace

from ctxextend.evaluation.evaluation_result import Estimate

LOSS_UNIT = "nats/token"
MAX_EXPONENT = 700  # whose exponential is a float
ONE_WINDOW = "based on a single window (no confidence interval)"


@dataclass(frozen=True)
class NumberFormat:
    """Format numbers as ``value ± ci95``, where ci95 is half the width of the 95 % confidence
    interval.

    An interval that would leave the range of its measure is shown by its ends: ``0.90 (0.62 to
    1.00)``.
    """

    sign: str = "±"

    def head(self, text: str) -> str:
        """Return the header of a column of such numbers."""
        return f"{text} {self.sign} 95 %"

    def number(self, value: float | None, ci95: float | None, *, signed: bool = False) -> str:
        """Return a number with two digits of its interval, or three significant digits; ``-`` for
        None and NaN.
        """
        if value is None or math.isnan(value):
            return "-"
        sign = "+" if signed else ""
        if not ci95 or not math.isfinite(ci95):
            return _format(value, _decimals(abs(value) / 10), sign)
        decimals = _decimals(ci95)
        interval = (
            _format(ci95, decimals, "") if round(ci95, decimals) else f"{ci95:.0e}"
        )  # never shown as 0
        return f"{_format(value, decimals, sign)} {self.sign} {interval}"

    def ends(self, value: float, ends: tuple[float, float], *, signed: bool = False) -> str:
        """Return a number with the ends of an interval that is not symmetric: ``0.90 (0.62 to
        1.00)``.
        """
        lower, upper = ends
        decimals = _decimals((upper - lower) / 2)
        sign = "+" if signed else ""
        shown, first, last = (_format(number, decimals, sign) for number in (value, lower, upper))
        return f"{shown} ({first} to {last})"

    def estimate(self, estimate: Estimate | None, *, signed: bool = False) -> str:
        """Return a mean and its interval, or why it has none; ``-`` for None."""
        return "-" if estimate is None else self._scaled(estimate, 1, signed=signed)

    def perplexity(self, estimate: Estimate | None) -> str:
        """Return a perplexity and its interval, or why it has none; ``-`` for None.

        The interval is perplexity times the loss interval or, if that is not above the smallest
        possible perplexity, the exponentials of the loss interval's ends.
        """
        if estimate is None or math.isnan(estimate.mean):
            return "-"
        perplexity, half_width = estimate.perplexity, estimate.half_width
        if half_width is None or estimate.interval is None:
            return f"{self.number(perplexity, None)}{_no_interval(estimate)}"
        lowest = math.exp(estimate.bounds[0])
        if perplexity * (1 - half_width) > lowest or half_width == 0:
            return self.number(perplexity, perplexity * half_width)
        lower, upper = (math.exp(min(end, MAX_EXPONENT)) for end in estimate.interval)
        return self.ends(perplexity, (lower, upper))

    def change(self, estimate: Estimate | None) -> str:
        """Return a signed difference and its interval, or why it has none; ``-`` for None."""
        return self.estimate(estimate, signed=True)

    def percent(self, share: Estimate | None, *, signed: bool = False) -> str:
        """Return a share in percent, or a difference of shares in points; ``-`` for None."""
        return "-" if share is None else self._scaled(share, 100, signed=signed)

    def _scaled(self, estimate: Estimate, scale: int, *, signed: bool) -> str:
        mean = scale * estimate.mean
        if estimate.interval is None:
            return f"{self.number(mean, None, signed=signed)}{_no_interval(estimate)}"
        if estimate.ci95 is None:
            lower, upper = estimate.interval
            return self.ends(mean, (scale * lower, scale * upper), signed=signed)
        return self.number(mean, scale * estimate.ci95, signed=signed)

    def compared(self, change: Estimate, other: str, unit: str = LOSS_UNIT) -> str:
        """Describe a difference of losses, or of scores with another unit, to `other`."""
        if not math.isfinite(change.mean):
            return f"not comparable with {other}: a loss is not finite"
        if change.sign is None:
            amount = f"{self.number(abs(change.mean), None)} {unit}"
            return f"{amount} {'lower' if change.mean < 0 else 'higher'} than {other}, {ONE_WINDOW}"
        if change.sign == 0:
            return f"tied with {other} ({self.change(change)} {unit})"
        amount = f"{self.estimate(_absolute(change))} {unit}"
        return (
            f"{'better' if (change.mean < 0) == (unit == LOSS_UNIT) else 'worse'} than {other} "
            f"by {amount}"
        )


def _absolute(change: Estimate) -> Estimate:
    """Return the amount of a significant difference; bounds of differences are symmetric."""
    return replace(change, mean=abs(change.mean))


def _no_interval(estimate: Estimate) -> str:
    """Return why a mean has no interval, to follow it; empty if it is not a number or its interval
    is unlimited.
    """
    return " (one sample)" if estimate.samples == 1 and math.isfinite(estimate.mean) else ""


def _decimals(step: float) -> int:
    """Return the number of decimals that shows two significant digits of `step`."""
    return min(max(1 - math.floor(math.log10(step)), 0), 4) if 0 < step < math.inf else 2


def _format(value: float, decimals: int, sign: str) -> str:
    if abs(value) >= 1e6:
        return f"{value:{sign}.3g}"
    return f"{round(value, decimals) + 0.0:{sign},.{decimals}f}"  # + 0.0 turns -0.0 into 0.0
