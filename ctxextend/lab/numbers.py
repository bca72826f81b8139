"""Numbers with their 95 % intervals, as the terminal and the page show them."""

import math

from ctxextend.lab.scores import NATS, Difference, Score, exponential

MAX_DECIMALS = 4
ROUNDED = 1e4  # from here on, three digits are shown
EXPONENTIAL = 1e6  # from here on, two digits and an exponent


def number(
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    *,
    signed: bool = False,
    suffix: str = "",
    digits: int = 2,
    most: int = MAX_DECIMALS,
) -> str:
    """Return a number with the ends of its 95 % interval: ``44.9 (36.8 to 54.8)``.

    Args:
        value: The number. None and NaN are ``-``.
        low: The lower end of its interval; None or NaN if it is unknown.
        high: The upper end.
        signed: Whether a positive number has a sign.
        suffix: What follows the number, before the interval.
        digits: How many digits of half the width of the interval are shown. Without an interval,
            the number has as many and one more.
        most: How many decimals are shown at most.
    """
    if value is None or math.isnan(value):
        return "-"
    sign = "+" if signed else ""
    if low is None or high is None or not math.isfinite(high - low) or low == high:
        decimals = min(_decimals(abs(value), digits + 1), most)
        return f"{_format(value, decimals, sign)}{suffix}"
    decimals = min(_decimals((high - low) / 2, digits), most)
    ends = f"{_format(low, decimals)} to {_format(high, decimals)}"
    return f"{_format(value, decimals, sign)}{suffix} ({ends})"


def shown_values(score: Score) -> tuple[float, float, float]:
    """Return a score and the ends of its interval: perplexities, or 100 times shares.

    The ends are NaN if they are unknown.
    """
    low, high = score.interval or (math.nan, math.nan)
    values = []
    for value in (score.mean, low, high):
        if score.unit == NATS and not math.isnan(value):
            values.append(exponential(value))
        else:
            values.append(100 * value)
    return values[0], values[1], values[2]


def score_text(score: Score, with_interval: bool = True) -> str:
    """Return a score: a perplexity, or 100 times a share."""
    value, low, high = shown_values(score)
    if with_interval and score.interval is not None:
        return number(value, low, high, digits=1)
    return number(value)


def difference_text(difference: Difference, with_interval: bool = True) -> str:
    """Return a difference: in per cent of perplexity, or in points of 100 times a share."""
    value, low, high = difference.percent
    if not with_interval:
        low = high = math.nan
    return percent_text(difference, value, low, high, signed=True)


def percent_text(
    difference: Difference, value: float, low: float, high: float, signed: bool = False
) -> str:
    """Return the values of `Difference.percent`, maybe with other signs."""
    suffix = " %" if difference.score.unit == NATS else " points"
    return number(value, low, high, signed=signed, suffix=suffix, digits=1, most=1)


def _decimals(step: float, digits: int) -> int:
    """Return the number of decimals that shows so many significant digits of `step`."""
    if not 0 < step < math.inf:
        return 2
    return max(digits - 1 - math.floor(math.log10(step)), 0)


def _format(value: float, decimals: int, sign: str = "") -> str:
    if abs(value) >= EXPONENTIAL:
        return f"{value:{sign}.1e}"
    if abs(value) >= ROUNDED:
        return f"{float(f'{value:.3g}'):{sign},.0f}"
    return f"{round(value, decimals) + 0.0:{sign},.{decimals}f}"  # + 0.0 turns -0.0 into 0.0
