"""Scores of an evaluation by their fields, and evaluations of scores that are made by hand."""

from typing import Any

import numpy as np

from ctxextend.json_output import to_json
from ctxextend.lab.evaluation import Evaluation, ModelFacts
from ctxextend.lab.scores import NATS, ONE_PASS, Score, select

BASE = "base"
BASE_LEN = 128
LENGTH = 512


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


def make_score(
    model: str, mean: float, *, samples: int = 48, noise: float = 0.0, **fields: Any
) -> Score:
    """Return a score of documents that differ alike for all models, but for this model's noise."""
    numbers = np.arange(samples)
    spread = np.sin(numbers) + noise * np.cos(numbers)
    values = mean + 0.02 * (spread - spread.mean())
    defaults = {
        "measure": "position",
        "name": "loss",
        "reading": ONE_PASS,
        "length": BASE_LEN if model == BASE else LENGTH,
        "tokens": LENGTH,
        "unit": NATS,
    }
    return Score(model=model, values=list(values[:, None]), **defaults | fields)


def make_evaluation(*scores: Score, kind: str = "causal", **fields: Any) -> Evaluation:
    """Return the evaluation of models with these scores, and of their base."""
    facts = {}
    for score in scores:
        facts[score.model] = ModelFacts(
            name=score.model,
            source=f"models/{score.model}",
            model_type="gpt2",
            kind=kind,
            scheme="learned",
            max_len=BASE_LEN if score.model == BASE else LENGTH,
            parameters=1000,
            bytes=4000,
        )
    defaults = {
        "base": facts.pop(BASE, None),
        "models": tuple(facts.values()),
        "length": LENGTH,
        "scores": scores,
        "documents": 37,
        "tokens": 24_576,
        "limited_by": "tokens",
        "seed": 0,
        "precision": "float32",
        "seconds": 41.25,
    }
    return Evaluation(**defaults | fields)
