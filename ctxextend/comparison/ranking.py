"""From what methods gave to their ranking."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from ctxextend.comparison.measuring import Measured
from ctxextend.comparison.reports import LOSS, Outcome, Row
from ctxextend.comparison.settings import Asked
from ctxextend.evaluation.evaluation_result import Estimate, estimate, estimate_loss

__all__ = ["Standing", "rank"]


@dataclass
class Standing:
    """A method, as far as it was measured.

    Attributes:
        asked: The method.
        recipe: The recipe that makes its checkpoint, YAML.
        norms: Norms of the rows of its table, shape (m,).
        untrained: What it gives as it is made; None where that was not measured yet.
        trained: What it gives after the training.
        seconds: How long that took until now.
        keeps_learned_rows: Whether its table begins with the learned one.
    """

    asked: Asked
    recipe: str
    norms: tuple[float, ...] = ()
    untrained: Measured | None = None
    trained: Measured | None = None
    seconds: float = 0.0
    keeps_learned_rows: bool = False


def rank(standings: Sequence[Standing], metric: str) -> tuple[Row, ...]:
    """Return the methods that were measured, the best first; those that were not trained yet stand behind.

    Args:
        standings: The methods.
        metric: `LOSS` or `RECIPROCAL_RANK`.
    """
    known = [standing for standing in standings if standing.untrained is not None]
    sign = 1 if metric == LOSS else -1
    untrained = _outcomes([standing.untrained for standing in known], sign)
    trained = _outcomes([standing.trained for standing in known], sign)
    rows = [
        Row(
            standing.asked.name,
            standing.keeps_learned_rows,
            standing.recipe,
            standing.norms,
            before,
            after,
            round(standing.seconds, 3),
        )
        for standing, before, after in zip(known, untrained, trained, strict=True)
        if before is not None
    ]
    return tuple(sorted(rows, key=lambda row: (row.trained is None, _cost(row.final.score, sign))))


def _outcomes(found: Sequence[Measured | None], sign: int) -> list[Outcome | None]:
    """Return what methods were worth at one stage, each beside the best; None for those not measured at it."""
    mean = estimate_loss if sign == 1 else estimate
    scores = {id(measured): mean(measured.values) for measured in found if measured is not None}
    best = min(filter(None, found), key=lambda measured: _cost(scores[id(measured)], sign), default=None)
    return [None if measured is None else _outcome(measured, scores[id(measured)], best, sign) for measured in found]


def _outcome(measured: Measured, score: Estimate, best: Measured | None, sign: int) -> Outcome:
    behind = None
    if best is not None and measured is not best:
        pairs = zip(measured.values, best.values, strict=True)
        behind = estimate([sign * (own - other) for own, other in pairs])
    return Outcome(score, behind, measured.short, measured.evaluation)


def _cost(score: Estimate, sign: int) -> float:
    """Return what is less for the better; what is no number comes last."""
    return sign * score.mean if isfinite(score.mean) else inf
