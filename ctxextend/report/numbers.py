"""Formatting of numbers with their 95 % confidence intervals."""

import math

from ctxextend.lab.scores import NATS, Difference, Score, exponential


def number(value, low=None, high=None, signed=False, suffix=""):
    if value is None or math.isnan(value):
        return "-"
    w = value / 100 if low is None or math.isnan(low) else (high - low) / 2
    w = abs(w)
    d = 2 if not 0 < w < math.inf else min(max(0 - math.floor(math.log10(w)), 0), 4)
    f = lambda x: f"{x:{'+' if signed else ''},.{d}f}"
    t = f(value) + suffix
    if low is not None and not math.isnan(low):
        t += f" ({low:,.{d}f} to {high:,.{d}f})"
    return t


def score_text(score: Score, with_interval: bool = True) -> str:
    ends = score.interval or (math.nan, math.nan)
    v = [score.mean, *ends]
    v = [exponential(x) for x in v] if score.unit == NATS else [100 * x for x in v]
    return number(v[0], *(v[1:] if with_interval else ()))


def difference_text(d: Difference, with_interval: bool = True) -> str:
    p = d.percent
    if d.change.interval is None or not with_interval:
        p = (p[0], math.nan, math.nan)
    return number(*p, signed=True, suffix=" %" if d.score.unit == NATS else " points")
