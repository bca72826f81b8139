"""The points of figures: what benchmarks keep in `results` of the scores that their tables show."""

from ctxextend.lab.evaluation_result import Estimate

__all__ = ["Point", "point", "ratio_point"]

Point = tuple[float, float]  # a score, and half the width of its 95 % interval
DIGITS = 7  # after the decimal point


def point(score: Estimate) -> Point:
    """Return a score with its interval."""
    return round(score.mean, DIGITS), round(score.half_width or 0.0, DIGITS)


def ratio_point(change: Estimate) -> Point:
    """Return the ratio of two perplexities, from the difference of their losses."""
    half_width = change.perplexity * (change.half_width or 0.0)
    return round(change.perplexity, DIGITS), round(half_width, DIGITS)
