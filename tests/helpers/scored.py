"""Results of `evaluate` from values, for tests of what shows them."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from ctxextend.lab.scores import (
    CHUNKS,
    NATS,
    ONE_PASS,
    SEPARATE,
    SLIDING,
    START,
    TRIALS,
    Part,
    Score,
)

BASE = "tiny-gpt2"
MODEL = "tiny-gpt2-512"
TITLES = {
    "position": "Perplexity by position",
    "context": "Perplexity by context length",
    "effective": "How far the model reads",
    "retrieval": "Document retrieval",
    "search": "Search",
}


def score(mean: float, model: str = MODEL, spread: float = 0.3, **fields: Any) -> Score:
    """Return a score of 16 documents with two values each, whose mean is as given.

    By default, it is the loss by position, read in one pass.
    """
    values = mean + spread * np.linspace(-1, 1, 16)
    defaults: dict[str, Any] = {
        "measure": "position",
        "name": "loss",
        "reading": ONE_PASS,
        "length": 512,
        "tokens": 512,
        "unit": NATS,
    }
    return Score(model, values=[np.array([v, v]) for v in values], **(defaults | fields))


def trials(hits: int, **fields: Any) -> Score:
    """Return the share of 16 needles that were found."""
    values = [np.array([float(number < hits)]) for number in range(16)]
    defaults: dict[str, Any] = {
        "model": MODEL,
        "measure": "effective",
        "name": "needle",
        "reading": ONE_PASS,
        "length": 512,
        "tokens": 512,
        "unit": TRIALS,
    }
    return Score(values=values, **(defaults | fields))


POSITIONS: tuple[Part, ...] = ((0, 128), (128, 256), (256, 512))
LENGTHS = (128, 256, 512)


def by_position(model: str = MODEL, growth: float = 0.0) -> list[Score]:
    """Return losses by position, and over all positions."""
    parts = []
    for number, part in enumerate(POSITIONS):
        parts.append(score(3.5 + growth * number, model, part=part))
    return [*parts, score(3.5 + growth, model)]


def of_base() -> list[Score]:
    """Return the base's losses by position in windows that overlap, and in those that do not."""
    scores = []
    for reading in (SLIDING, SEPARATE):
        for part in (*POSITIONS, None):
            scores.append(score(3.4, BASE, reading=reading, length=128, part=part))
    return scores


def by_length(model: str = MODEL, last: float = 3.2) -> list[Score]:
    """Return losses by context length."""
    means = zip(LENGTHS, (3.6, 3.4, last), strict=True)
    return [score(mean, model, measure="context", length=length) for length, mean in means]


def retrieval() -> list[Score]:
    """Return two scores of an encoder and its base, which reads the start or chunks."""
    scores = []
    for reading, model, mean in (
        (START, BASE, 0.42),
        (CHUNKS, BASE, 0.61),
        (ONE_PASS, MODEL, 0.57),
    ):
        length = 512 if model == MODEL else 128
        for name in ("recall@1", "MRR"):
            fields = {"measure": "retrieval", "name": name, "unit": "share"}
            scores.append(score(mean, model, 0.4, reading=reading, length=length, **fields))
    return scores


def effective() -> list[Score]:
    """Return what is found in two tasks by length, at three depths and at all."""
    scores = []
    for name, hits in (("needle", (16, 14, 9)), ("key", (15, 8, 3))):
        for length, found in zip(LENGTHS, hits, strict=True):
            scores.append(trials(found, name=name, length=length))
            for start in (0.0, 0.5):
                part = (start, start + 0.5)
                scores.append(trials(found, name=name, length=length, part=part))
    return scores


def evaluation(*scores: Score, **changes: Any) -> Any:
    """Return the result of `evaluate` with these scores."""
    names = dict.fromkeys(score.model for score in scores if score.model != BASE)
    fields: dict[str, Any] = {
        "scores": scores,
        "ranking": [next(one for one in scores if one.model == name) for name in names],
        "references": [],
        "base": SimpleNamespace(name=BASE, max_len=128),
        "models": [SimpleNamespace(name=name, max_len=512) for name in names],
        "length": 512,
        "verdict": f"`{MODEL}` is best at 512 tokens.",
        "notes": ("ctxextend.yaml states the base.",),
        "warnings": ("Few windows.",),
        "seed": 0,
        "precision": "float32",
        "documents": 16,
        "tokens": 8192,
        "differences": [],
    }
    return SimpleNamespace(**(fields | changes))
