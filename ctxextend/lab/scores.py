"""What models score: one record for all measures, and what follows from its values."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.json_output import not_in_json
from ctxextend.lab.statistics import (
    LOSS_BOUNDS,
    SHARE_BOUNDS,
    UNBOUNDED,
    Estimate,
    estimate,
    wilson_interval,
)

# How a text is read: in one pass; in windows that overlap by half or not at all, by a model that is
# too short for it; by an encoder, its first tokens only, or in chunks of which the mean is taken,
# of the whole text or of what the longer model reads of it.
ONE_PASS = "one_pass"
SLIDING = "sliding"
SEPARATE = "separate"
START = "start"
CHUNKS = "chunks"
SAME_TEXT = "same_text"
READING_NAMES = {  # after the name of a model
    SLIDING: "in sliding windows",
    SEPARATE: "in separate windows",
    START: "first tokens only",
    CHUNKS: "in chunks of the whole text",
    SAME_TEXT: "in chunks of the same text",
}

# Units of values: a loss in nats per token, of which lower is better; a share from 0 to 1; or 0 or
# 1 for each of several independent trials.
NATS = "nats"
SHARE = "share"
TRIALS = "trials"
MAX_LOSS = 700  # whose exponential is a float

Part = tuple[float, float]  # positions, or depths from 0 to 1: the first one, and the end


@dataclass(frozen=True, eq=False)
class Score:
    """What one model scores in a measure, reading in one way."""

    model: str  # name of the model, or of the method
    measure: str  # the name of a module of `lab.measures`
    name: str  # of what is scored: ``loss``, ``nDCG@10``, ``needle``
    reading: str
    length: int  # tokens read at once, at most
    # of each document, which is one sample: shape (k,)
    values: Sequence[NDArray[np.float64]] = field(metadata=not_in_json)
    tokens: int  # of a document that are read, the median
    unit: str = SHARE
    part: Part | None = None  # of each document; None: all of it
    chance: float | None = None  # the mean by guessing, if that is known

    json_properties: ClassVar = ("samples", "mean", "interval", "perplexity")

    @cached_property
    def estimate(self) -> Estimate:
        """The mean over all values."""
        return estimate(self.values, LOSS_BOUNDS if self.unit == NATS else SHARE_BOUNDS)

    @property
    def mean(self) -> float:
        """The mean over all values."""
        return self.estimate.mean

    @property
    def samples(self) -> int:
        """The number of documents or trials with a value."""
        return self.estimate.tokens if self.unit == TRIALS else self.estimate.samples

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 95 % confidence interval of the mean; None if it is unknown."""
        if self.unit != TRIALS:
            return self.estimate.interval
        found = int(sum(values.sum() for values in self.values))
        return wilson_interval(found, self.estimate.tokens)

    @property
    def perplexity(self) -> float | None:
        """exp(mean) of a loss; None of other scores."""
        return exponential(self.mean) if self.unit == NATS else None

    @property
    def label(self) -> str:
        """The model, and how it reads if that is not in one pass."""
        return f"{self.model} {READING_NAMES.get(self.reading, '')}".rstrip()

    def of_part(self, part: Part, values: Sequence[NDArray[np.float64]]) -> "Score":
        """Return the score of a part of each document, by its values."""
        return replace(self, part=part, values=values)

    def minus(self, other: "Score") -> "Difference":
        """Return the difference to another score of the same documents, paired by value."""
        pairs = zip(self.values, other.values, strict=True)
        bounds = UNBOUNDED if self.unit == NATS else (-1.0, 1.0)
        change = estimate([own - reference for own, reference in pairs], bounds)
        return Difference(score=self, other=other, change=change)


@dataclass(frozen=True)
class Difference:
    """How much better or worse a score is than another one."""

    score: Score
    other: Score
    change: Estimate  # the score minus the other one, paired by value

    json_properties: ClassVar = ("percent", "outcome")

    @property
    def outcome(self) -> int | None:
        """1 if the score is better, -1 if it is worse, 0 within chance, None if that is unknown."""
        sign = self.change.sign
        if sign is None or self.score.unit != NATS:
            return sign
        return -sign

    @property
    def percent(self) -> tuple[float, float, float]:
        """The difference and the ends of its 95 % interval, in per cent.

        Of perplexity, or in points of a share. Ends that are unknown are NaN.
        """
        low, high = self.change.interval or (math.nan, math.nan)
        values = []
        for value in (self.change.mean, low, high):
            if self.score.unit == NATS:
                value = exponential(value) - 1
            values.append(100 * value)
        return values[0], values[1], values[2]


def exponential(value: float) -> float:
    """Return exp(value), at most e^700."""
    return math.exp(min(value, MAX_LOSS))


def select(scores: Iterable[Score], **wanted: Any) -> Iterator[Score]:
    """Yield the scores whose fields have these values."""
    for score in scores:
        if all(getattr(score, name) == value for name, value in wanted.items()):
            yield score


def curves(scores: Iterable[Score], parts: int = sys.maxsize) -> dict[str, list[Score]]:
    """Return the scores of each curve by its label: by part if there are any, else by length.

    `parts` is how many of them a curve has at most; adjacent ones are then merged.
    """
    scores = list(scores)
    has_parts = any(score.part is not None for score in scores)
    by_label = dict[str, list[Score]]()
    for score in scores:
        if (score.part is not None) == has_parts:
            by_label.setdefault(score.label, []).append(score)
    for label, own in by_label.items():
        if not has_parts:
            by_label[label] = sorted(own, key=lambda score: score.length)
            continue
        size = math.ceil(len(own) / parts)
        by_label[label] = [_merged(own[i : i + size]) for i in range(0, len(own), size)]
    return by_label


def _merged(scores: Sequence[Score]) -> Score:
    """Return the score of adjacent parts of the same documents."""
    first, last = scores[0].part, scores[-1].part
    assert first is not None and last is not None
    of_documents = zip(*(score.values for score in scores), strict=True)
    values = [np.concatenate(of_document) for of_document in of_documents]
    return scores[0].of_part((first[0], last[1]), values)
