"""Formatting of numbers with 95 % confidence intervals."""

import math
from dataclasses import dataclass

from ctxextend.evaluation.evaluation_result import Estimate

LOSS_UNIT = "nats/token"
ONE_WINDOW = "based on a single window (no confidence interval)"


@dataclass(frozen=True)
class NumberFormat:
    """Format numbers as ``value ± ci95``, where ci95 is half the width of the 95 % confidence interval."""

    sign: str = "±"

    def head(self, text: str) -> str:
        """Return the header of a column of such numbers."""
        return f"{text} {self.sign} 95 %"

    def number(self, value: float | None, ci95: float | None, *, signed: bool = False) -> str:
        """Return a number with two digits of its interval, or three significant digits; ``-`` for None and NaN."""
        if value is None or math.isnan(value):
            return "-"
        sign = "+" if signed else ""
        if not ci95 or not math.isfinite(ci95):
            return _format(value, _decimals(abs(value) / 10), sign)
        decimals = _decimals(ci95)
        interval = _format(ci95, decimals, "") if round(ci95, decimals) else f"{ci95:.0e}"  # never shown as 0
        return f"{_format(value, decimals, sign)} {self.sign} {interval}"

    def estimate(self, estimate: Estimate | None, *, signed: bool = False) -> str:
        """Return a mean and its interval; ``-`` for None."""
        return "-" if estimate is None else self.number(estimate.mean, estimate.ci95, signed=signed)

    def perplexity(self, estimate: Estimate | None) -> str:
        """Return a perplexity and its interval (perplexity times the loss interval); ``-`` for None."""
        if estimate is None or math.isnan(estimate.mean):
            return "-"
        return self.number(estimate.perplexity, estimate.ci95 and estimate.ci95 * estimate.perplexity)

    def change(self, estimate: Estimate | None) -> str:
        """Return a signed difference and its interval; ``-`` for None."""
        return self.estimate(estimate, signed=True)

    def percent(self, share: Estimate | None, *, signed: bool = False) -> str:
        """Return a share in percent, or a difference of shares in points; ``-`` for None."""
        scaled = (None, None) if share is None else (100 * share.mean, share.ci95 and 100 * share.ci95)
        return self.number(*scaled, signed=signed)

    def compared(self, change: Estimate, other: str, unit: str = LOSS_UNIT) -> str:
        """Describe a difference of losses, or of scores with another unit, to `other`."""
        amount = f"{self.number(abs(change.mean), change.ci95)} {unit}"
        if not math.isfinite(change.mean):
            return f"not comparable with {other}: a loss is not finite"
        if change.sign is None:
            return f"{amount} {'lower' if change.mean < 0 else 'higher'} than {other}, {ONE_WINDOW}"
        if change.sign == 0:
            return f"tied with {other} ({self.change(change)} {unit})"
        return f"{'better' if (change.mean < 0) == (unit == LOSS_UNIT) else 'worse'} than {other} by {amount}"


def _decimals(step: float) -> int:
    """Return the number of decimals that shows two significant digits of `step`."""
    return min(max(1 - math.floor(math.log10(step)), 0), 4) if 0 < step < math.inf else 2


def _format(value: float, decimals: int, sign: str) -> str:
    if abs(value) >= 1e6:
        return f"{value:{sign}.3g}"
    return f"{round(value, decimals) + 0.0:{sign},.{decimals}f}"  # + 0.0 turns -0.0 into 0.0
