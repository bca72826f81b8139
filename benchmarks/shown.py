"""How benchmarks show means with their 95 % intervals: in tables, and as points of figures."""

import math
from collections.abc import Mapping
from typing import Any

from ctxextend.lab.numbers import number
from ctxextend.lab.scores import exponential
from ctxextend.lab.statistics import Estimate

__all__ = [
    "Point",
    "Values",
    "against_text",
    "mean_text",
    "perplexity_text",
    "point",
    "ratio_point",
    "ratio_text",
]

Values = Estimate | Mapping[str, Any]  # a mean, or its fields as a file has them
Point = tuple[float, float]  # a score, and half the width of its 95 % interval
DIGITS = 7  # after the decimal point


def mean_text(values: Values, signed: bool = False) -> str:
    """Return a mean."""
    mean = _read(values)
    low, high = mean.interval or (None, None)
    return number(mean.mean, low, high, signed=signed)


def perplexity_text(values: Values) -> str:
    """Return the perplexity of a loss."""
    loss = _read(values)
    low, high = loss.interval or (math.nan, math.nan)
    return number(exponential(loss.mean), exponential(low), exponential(high))


def ratio_text(values: Values) -> str:
    """Return the ratio of two perplexities, from the difference of their losses."""
    return f"x {perplexity_text(values)}"


def against_text(loss: Values, change: Values) -> str:
    """Return a perplexity, and its ratio to another one, from the difference of their losses."""
    return f"{exponential(_read(loss).mean):.4g}, {ratio_text(change)}"


def point(mean: Estimate) -> Point:
    """Return a mean as a point."""
    return round(mean.mean, DIGITS), round(mean.half_width or 0.0, DIGITS)


def ratio_point(values: Values) -> Point:
    """Return the ratio of two perplexities as a point, from the difference of their losses."""
    change = _read(values)
    ratio = exponential(change.mean)
    return round(ratio, DIGITS), round(ratio * (change.half_width or 0.0), DIGITS)


def _read(values: Values) -> Estimate:
    return values if isinstance(values, Estimate) else Estimate(**values)
