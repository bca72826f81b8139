"""How numbers with standard errors are written."""

import math
from dataclasses import dataclass

from ctxextend.evaluation.evaluation_result import Estimate

# Standard errors that a difference must be away from zero to be told as one.
BEYOND = 2.0
# From here on, figures are written as powers of ten.
LARGE = 1e6


@dataclass(frozen=True)
class NumberFormat:
    """How numbers with standard errors are written."""

    unicode: bool  # whether ± may stand between the two
    errors: float = 1.0  # how many standard errors are written behind it

    def number(self, value: float | None, error: float | None, *, signed: bool = False) -> str:
        """Return a number, to the second digit of its standard error, or in three digits; ``-`` for what is none."""
        if value is None or math.isnan(value):
            return "-"
        sign = "+" if signed else ""
        if not error or not math.isfinite(error):
            return _written(value, _places(abs(value) / 10), sign)
        error *= self.errors
        places = _places(error)
        # The error is not zero, and is not to look like it.
        written = _written(error, places, "") if round(error, places) else f"{error:.0e}"
        return f"{_written(value, places, sign)} {'±' if self.unicode else '+-'} {written}"

    def estimate(self, estimate: Estimate | None, *, signed: bool = False) -> str:
        """Return a mean and its standard error; ``-`` for none."""
        return "-" if estimate is None else self.number(estimate.mean, estimate.error, signed=signed)

    def perplexity(self, estimate: Estimate | None) -> str:
        """Return a perplexity and its standard error, that of the loss times the perplexity; ``-`` for none."""
        if estimate is None or math.isnan(estimate.mean):
            return "-"
        return self.number(estimate.perplexity, estimate.error and estimate.error * estimate.perplexity)

    def change(self, estimate: Estimate | None) -> str:
        """Return a difference of losses, with its sign; ``-`` for none."""
        return self.estimate(estimate, signed=True)

    def percent(self, share: float | None, error: float | None, *, signed: bool = False) -> str:
        """Return a share and its standard error in percent, or a difference of shares in points."""
        scaled = [None if value is None else 100 * value for value in (share, error)]
        return self.number(*scaled, signed=signed)

    def compared(self, change: Estimate, other: str) -> str:
        """Say what a difference of losses means against something."""
        amount = self.number(abs(change.mean), change.error)
        if not math.isfinite(change.mean):
            return f"not to be compared with {other}: a loss is no finite number"
        if change.error is None or not math.isfinite(change.error):
            which = "lower" if change.mean < 0 else "higher"
            return f"a {which} loss than {other} by {amount} nats a token, of one window, so that it may be chance"
        if not significant_sign(change.mean, change.error):
            return f"no sure difference from {other} ({self.change(change)} nats a token)"
        return f"{'better' if change.mean < 0 else 'worse'} than {other} by {amount} nats a token"


def significant_sign(difference: float | None, error: float | None) -> int:
    """Return on which side of zero a difference surely is, -1 or 1; 0 within two standard errors, or without any."""
    if difference is None or error is None or not (math.isfinite(difference) and math.isfinite(error)):
        return 0
    return (difference > BEYOND * error) - (difference < -BEYOND * error)


def twice(error: float | None) -> float:
    """Return two standard errors, as figures draw them; 0 where they are not known."""
    return BEYOND * error if error is not None and math.isfinite(error) else 0.0


def _places(step: float) -> int:
    """Return the decimal places of a number that is to show two digits of something."""
    return min(max(1 - math.floor(math.log10(step)), 0), 4) if 0 < step < math.inf else 2


def _written(value: float, places: int, sign: str) -> str:
    if abs(value) >= LARGE:
        return f"{value:{sign}.3g}"
    return f"{round(value, places) + 0.0:{sign},.{places}f}"  # + 0.0: a minus sign in front of zero says nothing
