"""How numbers with 95 % confidence intervals are written."""

import math
from dataclasses import dataclass

from ctxextend.evaluation.evaluation_result import Estimate

ONE_WINDOW = "on one window, so it may be chance"


@dataclass(frozen=True)
class NumberFormat:
    """How numbers are written with half the width of their 95 % confidence intervals."""

    sign: str = "±"  # between the two

    def head(self, text: str) -> str:
        """Return the head of a column of such numbers."""
        return f"{text} {self.sign} 95 %"

    def number(self, value: float | None, ci95: float | None, *, signed: bool = False) -> str:
        """Return a number, to the second digit of its interval, or in three digits; ``-`` for what is none."""
        if value is None or math.isnan(value):
            return "-"
        sign = "+" if signed else ""
        if not ci95 or not math.isfinite(ci95):
            return _written(value, _places(abs(value) / 10), sign)
        places = _places(ci95)
        # The interval is not zero, and is not to look like it.
        written = _written(ci95, places, "") if round(ci95, places) else f"{ci95:.0e}"
        return f"{_written(value, places, sign)} {self.sign} {written}"

    def estimate(self, estimate: Estimate | None, *, signed: bool = False) -> str:
        """Return a mean and its interval; ``-`` for none."""
        return "-" if estimate is None else self.number(estimate.mean, estimate.ci95, signed=signed)

    def perplexity(self, estimate: Estimate | None) -> str:
        """Return a perplexity and its interval, that of the loss times the perplexity; ``-`` for none."""
        if estimate is None or math.isnan(estimate.mean):
            return "-"
        return self.number(estimate.perplexity, estimate.ci95 and estimate.ci95 * estimate.perplexity)

    def change(self, estimate: Estimate | None) -> str:
        """Return a difference, with its sign; ``-`` for none."""
        return self.estimate(estimate, signed=True)

    def percent(self, share: Estimate | None, *, signed: bool = False) -> str:
        """Return a share in percent, or a difference of shares in points; ``-`` for none."""
        scaled = (None, None) if share is None else (100 * share.mean, share.ci95 and 100 * share.ci95)
        return self.number(*scaled, signed=signed)

    def compared(self, change: Estimate, other: str) -> str:
        """Say what a difference of losses means against something."""
        amount = self.number(abs(change.mean), change.ci95)
        if not math.isfinite(change.mean):
            return f"not comparable with {other}: a loss is not finite"
        if change.sign is None:
            which = "lower" if change.mean < 0 else "higher"
            return f"{which} in loss than {other} by {amount} nats/token, {ONE_WINDOW}"
        if change.sign == 0:
            return f"tied with {other} ({self.change(change)} nats/token)"
        return f"{'better' if change.mean < 0 else 'worse'} than {other} by {amount} nats/token"


def _places(step: float) -> int:
    """Return the decimal places of a number that is to show two digits of something."""
    return min(max(1 - math.floor(math.log10(step)), 0), 4) if 0 < step < math.inf else 2


def _written(value: float, places: int, sign: str) -> str:
    if abs(value) >= 1e6:
        return f"{value:{sign}.3g}"
    return f"{round(value, places) + 0.0:{sign},.{places}f}"  # + 0.0: a minus sign in front of zero says nothing
