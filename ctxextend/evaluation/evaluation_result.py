"""What an evaluation found; `ctxextend.json_output.to_json` makes the object that ``--json`` prints."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.json_output import not_in_json

# How a text is read: by the model as it is, and by the base model in pieces that it can read.
MODEL, TRUNCATED, SLIDING, CHUNKS = "model", "truncated", "sliding", "chunks"


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error.

    Attributes:
        mean: A loss or a difference of losses in nats per token, or a mean reciprocal rank.
        error: Its standard error, over windows or documents; None where there are fewer than two.
        tokens: Tokens that were scored, or queries.
    """

    mean: float
    error: float | None
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp(mean), of a loss."""
        return math.exp(self.mean) if self.mean < 700 else math.inf


@dataclass(frozen=True)
class LossEstimate(Estimate):
    """A mean loss, whose JSON has its perplexity."""

    json_properties: ClassVar = ("perplexity",)


def estimate(windows: Sequence[NDArray[np.float64]]) -> Estimate:
    """Return the mean over all tokens, with a standard error that takes windows, not tokens, to be independent.

    Tokens of a window share its text, so their number says little about how sure a mean is.

    Args:
        windows: Values of each window's tokens, each of shape (tokens,); a window may have none.

    Source: the ratio estimator of cluster sampling, Cochran 1977, Sampling Techniques, 3rd edition, section 9A.4: with
        sums s and counts c of w windows and r = Σs / Σc, the variance of r is w / (w - 1) · Σ(s - r·c)² / (Σc)².
    """
    sums = np.array([values.sum() for values in windows if len(values)])
    counts = np.array([len(values) for values in windows if len(values)])
    if not len(sums):
        return Estimate(math.nan, None, 0)
    total = int(counts.sum())
    mean = float(sums.sum() / total)
    if len(sums) < 2:
        return Estimate(mean, None, total)
    with np.errstate(invalid="ignore"):  # of losses that are not finite
        spread = float(((sums - mean * counts) ** 2).sum()) * len(sums) / (len(sums) - 1)
    return Estimate(mean, math.sqrt(spread) / total, total)


def estimate_loss(windows: Sequence[NDArray[np.float64]]) -> LossEstimate:
    """Return `estimate` of losses."""
    return LossEstimate(**vars(estimate(windows)))


def binomial_tail(found: int, trials: int, chance: float) -> float:
    """Return the probability that guessing finds so many or more of the trials, each with the same chance."""
    terms = (math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(found, trials + 1))
    return min(sum(terms), 1.0)


@dataclass(frozen=True)
class Bucket:
    """Losses of the tokens at positions `start` to `stop` - 1, by how the text was read, `MODEL` first."""

    start: int
    stop: int
    losses: Mapping[str, LossEstimate]


@dataclass(frozen=True)
class PositionLosses:
    """Loss by position, of windows as long as the longest length.

    Attributes:
        length: Tokens of a window.
        windows: Windows that were read.
        losses: Over all positions, by how the text was read: `MODEL`, and where the base is known `TRUNCATED` (its
            own windows back to back) and `SLIDING` (windows that overlap by half), on the same tokens.
        changes: Loss of `MODEL` minus each other one, paired by token; below 0 the model is better.
        buckets: The same by position.
    """

    length: int
    windows: int
    losses: Mapping[str, LossEstimate]
    changes: Mapping[str, Estimate]
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True)
class ContextPoint:
    """Losses of the same tokens at one context length.

    Attributes:
        context: Tokens of the window that each was scored in, special tokens included; at least three fourths of them
            stand before a token for causal models, and at least three eighths on either side for masked ones.
        loss: By the model.
        change: Loss here minus the loss with the reference context, paired by token; below 0 this context is better.
        original: By the base; None where it is not known or cannot read so much.
        against_original: Loss here minus the base's with its own longest context, or where the window is shorter with
            all of that, paired by token; None where there is no base.
    """

    context: int
    loss: LossEstimate
    change: Estimate
    original: LossEstimate | None
    against_original: Estimate | None


@dataclass(frozen=True)
class ContextLosses:
    """Loss by context length.

    Attributes:
        reference: The context that `ContextPoint.change` is against: the base's length where that is known and was
            measured, else the shortest.
        windows: Windows whose tokens were scored.
        points: The shortest context first.
    """

    reference: int
    windows: int
    points: tuple[ContextPoint, ...]


@dataclass(frozen=True)
class Passkey:
    """Whether a number hidden in a long text is found again.

    Attributes:
        how: How it was asked for: ``loss rank`` or ``retrieval``.
        lengths: Tokens of the texts.
        depths: Where the number stood, from 0, the start, to 1, the end.
        found: For each length, for each depth, the share of trials that found it; None where that was not measured.
        trials: How often a number was asked for in a cell.
        chance: The share that guessing finds.
    """

    how: str
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    found: tuple[tuple[float | None, ...], ...]
    trials: int
    chance: float


@dataclass(frozen=True)
class Recall:
    """How well documents were found by one way to embed them.

    Attributes:
        recall: Share of queries whose own document came first.
        recall_error: Its standard error, over documents.
        reciprocal_rank: Mean of 1 / rank of a query's own document.
        reciprocal_rank_error: Its standard error, over documents.
        change: Recall here minus recall by truncation, paired by query; None for truncation itself.
        change_error: Its standard error.
    """

    recall: float
    recall_error: float | None
    reciprocal_rank: float
    reciprocal_rank_error: float | None
    change: float | None = None
    change_error: float | None = None


@dataclass(frozen=True)
class Retrieval:
    """Documents found by queries that were cut from what the base cannot read of them.

    Attributes:
        length: Tokens of a document, special tokens included.
        documents: How many there are.
        queries: How many there are.
        query_tokens: Tokens of each, without special tokens.
        pooling: How the states of a text's tokens become one vector.
        ways: By how documents were read: `TRUNCATED` and `CHUNKS` by the base, `MODEL`.
    """

    length: int
    documents: int
    queries: int
    query_tokens: int
    pooling: str
    ways: Mapping[str, Recall]


@dataclass(frozen=True)
class Evaluation:
    """What a context length is worth, on one text.

    Attributes:
        source: What was measured.
        family: Its model type.
        kind: ``causal``, ``masked`` or ``encoder``.
        max_len: Tokens that it reads at once.
        original: Its base; None where that is not known.
        original_max_len: Tokens that the base reads at once.
        documents: Documents of the text that were read.
        tokens: Tokens of the windows that were cut from them.
        across_documents: Whether windows run over the ends of documents, since few are as long as a window.
        seed: Random seed of masks and numbers.
        precision: The dtype that models were run in.
        positions: Loss by position; None where it was not measured, as of the next three.
        contexts: Loss by context length.
        passkey: Numbers found again.
        retrieval: Documents found.
        complete: Whether everything that was asked for was measured.
        seconds: How long it took, loading left out.
        warnings: What should not be missed.
        notes: What should be known.
    """

    source: str
    family: str
    kind: str
    max_len: int
    original: str | None
    original_max_len: int | None
    documents: int = 0
    tokens: int = 0
    across_documents: bool = False
    seed: int = 0
    precision: str = "float32"
    positions: PositionLosses | None = None
    contexts: ContextLosses | None = None
    passkey: Passkey | None = None
    retrieval: Retrieval | None = None
    complete: bool = True
    seconds: float = 0.0
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)
    notes: tuple[str, ...] = ()
