"""Scores of an evaluation by their fields, and evaluations of scores that tests state."""

from typing import Any

from ctxextend.json_output import to_json
from ctxextend.lab.evaluation import Evaluation
from ctxextend.lab.scores import ONE_PASS, Score, select


def score_of(evaluation: Evaluation, **fields: Any) -> Score:
    """Return the only score with these fields, by default of whole texts in one pass."""
    (score,) = select(evaluation.scores, **{"reading": ONE_PASS, "part": None} | fields)
    return score


def scores_json(evaluation: Evaluation, model: str) -> list[dict[str, Any]]:
    """Return what ``--json`` prints of the scores of a model, without its name."""
    values = to_json([*select(evaluation.scores, model=model)])
    for score in values:
        del score["model"]
    return values  # type: ignore[no-any-return]
