"""What ranks candidates: how scores are averaged, paired and named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from ctxextend.lab.eval_model import CAUSAL, ENCODER, MASKED
from ctxextend.lab.evaluation_result import (
    LOSS_BOUNDS,
    SHARE_BOUNDS,
    Bounds,
    Estimate,
    difference_bounds,
    estimate,
    estimate_loss,
)
from ctxextend.settings import Evaluate

# Values per window, document or query, one array each, of shape (k,).
Scores = Sequence[NDArray[np.float64]]

# Names of metrics, in JSON.
LOSS = "loss"
RECIPROCAL_RANK = "reciprocal_rank"
NDCG = "ndcg@10"
FOUND = "found"


@dataclass(frozen=True)
class Metric:
    """A score that ranks candidates."""

    bounds: Bounds  # of a mean
    column: str  # its name in tables
    phrase: str  # its name in sentences
    lower_is_better: bool = False

    def mean(self, scores: Scores) -> Estimate:
        """Return the mean score of a candidate."""
        if self.lower_is_better:
            return estimate_loss(scores)
        return estimate(scores, self.bounds)

    @property
    def sign(self) -> int:
        """What a score is multiplied by so that lower is better."""
        return 1 if self.lower_is_better else -1

    def cost(self, score: float) -> float:
        """Return a number to sort by, best first; NaN and infinity rank last."""
        return self.sign * score if isfinite(score) else inf

    def worsening(self, scores: Scores, references: Scores) -> Estimate:
        """Return how much worse scores are than others, paired; a negative mean is better."""
        pairs = zip(scores, references, strict=True)
        differences = [self.sign * (own - other) for own, other in pairs]
        return estimate(differences, difference_bounds(self.bounds))


METRICS: Mapping[str, Metric] = {
    LOSS: Metric(  # of language models
        bounds=LOSS_BOUNDS,
        column="perplexity",
        phrase="perplexity",
        lower_is_better=True,
    ),
    RECIPROCAL_RANK: Metric(  # of documents that the queries of an encoder were cut from
        bounds=SHARE_BOUNDS,
        column="MRR",
        phrase="mean reciprocal rank",
    ),
    NDCG: Metric(  # of an encoder in a search set
        bounds=SHARE_BOUNDS,
        column="nDCG@10",
        phrase="nDCG@10",
    ),
    FOUND: Metric(  # of models of which only the effective length is measured
        bounds=SHARE_BOUNDS,
        column="answers found",
        phrase="share of answers found",
    ),
}
METRIC_OF_KIND = {CAUSAL: LOSS, MASKED: LOSS, ENCODER: RECIPROCAL_RANK}


def choose_metric(kind: str, settings: Evaluate) -> str:
    """Return the name of the metric that ranks models of a kind."""
    if settings.measures_effective_only:
        return FOUND
    if settings.search is not None:
        return NDCG
    return METRIC_OF_KIND[kind]
