"""What an evaluation found; `ctxextend.json_output.to_json` makes the object that ``--json`` prints."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.json_output import Result, not_in_json

# How a text is read: by the model as it is, and by the base in pieces that it can read.
MODEL, TRUNCATED, SLIDING, CHUNKS = "model", "truncated", "sliding", "chunks"

# What guessing does more rarely than this was not done by guessing: above a 95 % interval.
UNLIKELY = 0.025


@dataclass(frozen=True)
class Estimate:
    """A mean over windows or documents that are independent of each other."""

    mean: float  # a loss or a difference of losses in nats per token, or a share, or a mean reciprocal rank
    standard_error: float | None = field(metadata=not_in_json)  # None where there are fewer than two samples
    tokens: int  # tokens that were scored, or queries
    samples: int  # windows or documents

    json_properties: ClassVar[tuple[str, ...]] = ("ci95",)

    @property
    def ci95(self) -> float | None:
        """Half the width of the 95 % confidence interval; None where there are fewer than two samples."""
        return None if self.standard_error is None else t_quantile(self.samples) * self.standard_error

    @property
    def sign(self) -> int | None:
        """-1 or 1 where the interval lies below or above 0, 0 where it contains 0 (a tie), None where it is unknown."""
        if self.ci95 is None or not math.isfinite(self.mean + self.ci95):
            return None
        return (self.mean > self.ci95) - (self.mean < -self.ci95)

    @property
    def perplexity(self) -> float:
        """exp(mean), of a loss."""
        return math.exp(self.mean) if self.mean < 700 else math.inf


@dataclass(frozen=True)
class LossEstimate(Estimate):
    """A mean loss, whose JSON has its perplexity."""

    json_properties: ClassVar[tuple[str, ...]] = ("ci95", "perplexity")


def t_quantile(samples: int) -> float:
    """Return half the width of a 95 % interval in standard errors, by Student's t: of a mean of so many samples, ≥ 2.

    Source: Abramowitz and Stegun 1964, 26.7.5, a series that is right within 0.3 % from four degrees of freedom on.
    """
    freedom = max(samples - 1, 1)
    if freedom < 4:
        return (12.706, 4.303, 3.182)[freedom - 1]
    return 1.959964 + 2.372271 / freedom + 2.822499 / freedom**2 + 2.555850 / freedom**3


def estimate(windows: Sequence[NDArray[np.float64]]) -> Estimate:
    """Return the mean of windows' values, each of shape (k,), k ≥ 0; its interval takes windows to be independent.

    Source: the ratio estimator of cluster sampling, Cochran 1977, Sampling Techniques, 3rd edition, section 9A.4: with
        sums s and counts c of w windows and r = Σs / Σc, the variance of r is w / (w - 1) · Σ(s - r·c)² / (Σc)².
    """
    sums = np.array([values.sum() for values in windows if len(values)])
    counts = np.array([len(values) for values in windows if len(values)])
    if not len(sums):
        return Estimate(math.nan, None, 0, 0)
    total = int(counts.sum())
    mean = float(sums.sum() / total)
    if len(sums) < 2:
        return Estimate(mean, None, total, 1)
    with np.errstate(invalid="ignore"):  # of losses that are not finite
        spread = float(((sums - mean * counts) ** 2).sum()) * len(sums) / (len(sums) - 1)
    return Estimate(mean, math.sqrt(spread) / total, total, len(sums))


def estimate_loss(windows: Sequence[NDArray[np.float64]]) -> LossEstimate:
    """Return `estimate` of losses."""
    return LossEstimate(**vars(estimate(windows)))


@dataclass(frozen=True)
class Bucket:
    """Losses of the tokens at positions `start` to `stop` - 1."""

    start: int
    stop: int
    losses: Mapping[str, LossEstimate]  # by how the text was read, `MODEL` first


@dataclass(frozen=True)
class PositionLosses:
    """Loss by position. Where the base is known, it reads the same tokens back to back and overlapping by half."""

    length: int  # tokens of a window: the longest length
    windows: int  # windows that were read
    losses: Mapping[str, LossEstimate]  # over all positions: `MODEL`, and by the base `TRUNCATED` and `SLIDING`
    changes: Mapping[str, Estimate]  # the loss of `MODEL` minus each other one, paired by token
    buckets: tuple[Bucket, ...]  # the losses by position


@dataclass(frozen=True)
class ContextPoint:
    """Losses of the same tokens at one context length.

    At least three fourths of the context stand before a token for causal models, and at least three eighths on either
    side for masked ones. Differences are paired by token; below 0 this context is better.
    """

    context: int  # tokens of the window that each was scored in, special tokens included
    loss: LossEstimate  # by the model
    change: Estimate  # minus the loss with the reference context
    base: LossEstimate | None  # by the base; None where it is not known or cannot read so much
    against_base: Estimate | None  # minus the base's with the longest context that it reads; None without a base


@dataclass(frozen=True)
class ContextLosses:
    """Loss by context length."""

    # What changes are against: the base's length where that is known and was measured, else the shortest.
    reference: int
    windows: int  # windows whose tokens were scored
    points: tuple[ContextPoint, ...]  # the shortest context first


@dataclass(frozen=True)
class Passkey:
    """Whether a number hidden in a long text is found again."""

    how: str  # ``loss rank`` or ``retrieval``
    lengths: tuple[int, ...]  # tokens of the texts
    depths: tuple[float, ...]  # where the number stood, from 0, the start, to 1, the end
    found: tuple[tuple[float | None, ...], ...]  # share of trials, by length and depth; None: not measured
    trials: int  # how often a number was asked for in a cell
    chance: float  # the share that guessing finds

    json_properties: ClassVar = ("is_above_chance",)

    @property
    def is_above_chance(self) -> bool:
        """Whether more was found than guessing would find, at any length."""
        return any(self.beats_chance(shares, UNLIKELY / len(self.found)) for shares in self.found)

    def beats_chance(self, shares: Sequence[float | None], unlikely: float = UNLIKELY) -> bool:
        """Return whether guessing finds so much or more in these cells with a probability below `unlikely`."""
        known = [share for share in shares if share is not None and math.isfinite(share)]
        found, trials, chance = round(sum(known) * self.trials), self.trials * len(known), self.chance
        tail = (math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(found, trials + 1))
        return sum(tail) < unlikely


@dataclass(frozen=True)
class Recall:
    """How well documents were found by one way to embed them; documents are the samples."""

    recall: Estimate  # share of queries whose own document came first
    reciprocal_rank: Estimate  # mean of 1 / rank of a query's own document
    change: Estimate | None = None  # recall minus recall by truncation, paired by query; None for truncation itself


@dataclass(frozen=True)
class Retrieval:
    """Documents found by queries that were cut from what the base cannot read of them."""

    length: int  # tokens of a document, special tokens included
    documents: int
    queries: int
    query_tokens: int  # of each, without special tokens
    pooling: str  # how the states of a text's tokens become one vector
    modes: Mapping[str, Recall]  # by how documents were read: `TRUNCATED` and `CHUNKS` by the base, `MODEL`


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Result, shows="source base max_len tokens complete"):
    """What a context length is worth, on one text."""

    source: str  # what was measured
    model_type: str
    kind: str  # ``causal``, ``masked`` or ``encoder``
    max_len: int  # tokens that it reads at once
    base: str | None  # its base; None where that is not known
    base_max_len: int | None  # tokens that the base reads at once
    documents: int = 0  # documents of the text that were read
    tokens: int = 0  # of the windows that were cut from them
    across_documents: bool = False  # whether windows run over the ends of documents, since few are as long as a window
    seed: int = 0  # of masks and numbers
    precision: str = "float32"  # the dtype that models were run in
    positions: PositionLosses | None = None  # None where it was not measured, as of the next three
    contexts: ContextLosses | None = None
    passkey: Passkey | None = None
    retrieval: Retrieval | None = None
    complete: bool = True  # whether everything that was asked for was measured
    seconds: float = 0.0  # loading left out
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)
    notes: tuple[str, ...] = ()
