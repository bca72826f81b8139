"""Results of an evaluation, as printed with ``--json``, and how they are estimated."""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import counted
from ctxextend.lab.effective_result import Effective
from ctxextend.json_output import Result, not_in_json

# How a text is read: by the model; by the base in back-to-back windows, in sliding windows, or in
# chunks, either of the whole text or of the tokens that the model reads.
MODEL = "model"
TRUNCATED = "truncated"
SLIDING = "sliding"
CHUNKS = "chunks"
SAME_TEXT = "chunks_of_same_text"
# With fewer windows or documents, standard errors are unreliable, and a text is too short to choose
# a method by.
MIN_SAMPLES = 8

Bounds = tuple[float, float]  # the smallest and the largest possible value of a mean
UNBOUNDED: Bounds = (-math.inf, math.inf)  # differences of losses
LOSS_BOUNDS: Bounds = (0.0, math.inf)
SHARE_BOUNDS: Bounds = (0.0, 1.0)  # reciprocal ranks, nDCG, recall and accuracy


def difference_bounds(bounds: Bounds) -> Bounds:
    """Return the bounds of the difference of two means with these bounds."""
    width = bounds[1] - bounds[0]
    return -width, width


@dataclass(frozen=True)
class Estimate:
    """A mean over independent windows or documents."""

    # a loss or difference of losses in nats per token, a share, or a mean reciprocal rank
    mean: float
    standard_error: float | None = field(metadata=not_in_json)  # None with fewer than two samples
    tokens: int  # scored tokens, or queries
    samples: int  # windows or documents
    bounds: Bounds = field(default=UNBOUNDED, compare=False, metadata=not_in_json)

    json_properties: ClassVar[tuple[str, ...]] = ("ci95", "interval")

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval before a bound cuts it; None with one sample."""
        if self.standard_error is None:
            return None
        return t_quantile(self.samples) * self.standard_error

    @property
    def _finite_half_width(self) -> float | None:
        """The same; None also if the mean or the width is not finite."""
        half_width = self.half_width
        if half_width is None or not math.isfinite(self.mean + half_width):
            return None
        return half_width

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 95 % confidence interval, inside the bounds; None if unknown."""
        half_width = self._finite_half_width
        if half_width is None:
            return None
        lower, upper = self.bounds
        return max(self.mean - half_width, lower), min(self.mean + half_width, upper)

    @property
    def ci95(self) -> float | None:
        """Half the width of the interval; None if unknown, or if a bound cuts it."""
        half_width = self.half_width
        if half_width is None:
            return None
        lower, upper = self.bounds
        if self.mean - half_width < lower or self.mean + half_width > upper:
            return None
        return half_width

    @property
    def sign(self) -> int | None:
        """The sign of a significant difference; 0 if the interval contains 0, None if unknown."""
        half_width = self._finite_half_width
        if half_width is None:
            return None
        if self.mean > half_width:
            return 1
        if self.mean < -half_width:
            return -1
        return 0

    @property
    def perplexity(self) -> float:
        """exp(mean), of a loss."""
        return math.exp(self.mean) if self.mean < 700 else math.inf


@dataclass(frozen=True)
class LossEstimate(Estimate):
    """A mean loss; its JSON includes the perplexity."""

    bounds: Bounds = field(default=LOSS_BOUNDS, compare=False, metadata=not_in_json)

    json_properties: ClassVar[tuple[str, ...]] = ("ci95", "interval", "perplexity")


# What limited the text that was read, for messages.
TEXT_LIMITS = {
    "tokens": "limited by --tokens",
    "text": "limited by the end of the text",
}


def text_summary(documents: int, tokens: int, limited_by: str) -> str:
    """Return how much text was read, and what limited it, for messages."""
    parts = [f"{tokens:,} tokens, {counted(documents, 'document')}"]
    if limited_by:
        parts.append(TEXT_LIMITS[limited_by])
    return "; ".join(parts)


T_QUANTILES = (12.706, 4.303, 3.182)  # exact, by degrees of freedom from 1 on


def t_quantile(samples: int) -> float:
    """Return half the width of a 95 % confidence interval of a mean, in standard errors.

    `samples` ≥ 2 is the number of values.

    Source: Abramowitz and Stegun 1964, 26.7.5, Student's t as a series, accurate to 0.3 % from 4
    degrees of freedom on.
    """
    freedom = max(samples - 1, 1)
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    return 1.959964 + 2.372271 / freedom + 2.822499 / freedom**2 + 2.555850 / freedom**3


def estimate(windows: Sequence[NDArray[np.float64]], bounds: Bounds = UNBOUNDED) -> Estimate:
    """Return the mean over all tokens of independent windows, each of shape (k,), k ≥ 0.

    Source: the ratio estimator of cluster sampling, Cochran 1977, Sampling Techniques, 3rd edition,
        section 9A.4: with sums s and counts c of w windows and r = Σs / Σc, the variance of r is w
        / (w - 1) · Σ(s - r·c)² / (Σc)².
    """
    scored = [values for values in windows if len(values)]
    sums = np.array([values.sum() for values in scored])
    counts = np.array([len(values) for values in scored], np.int64)
    return estimate_ratio(sums, counts, bounds)


def estimate_ratio(
    sums: NDArray[np.float64], counts: NDArray[np.int64], bounds: Bounds = UNBOUNDED
) -> Estimate:
    """Return `estimate` of windows whose sums over their tokens are known.

    Args:
        sums: The sum of each window, shape (windows,).
        counts: The tokens of each window, at least 1, shape (windows,).
        bounds: As in `estimate`.
    """
    samples = len(counts)
    if samples == 0:
        return Estimate(math.nan, standard_error=None, tokens=0, samples=0, bounds=bounds)
    total = int(counts.sum())
    mean = float(sums.sum() / total)
    standard_error = None
    if samples > 1:
        with np.errstate(invalid="ignore"):  # for non-finite losses
            squares = float(((sums - mean * counts) ** 2).sum())
        standard_error = math.sqrt(squares * samples / (samples - 1)) / total
    return Estimate(
        mean, standard_error=standard_error, tokens=total, samples=samples, bounds=bounds
    )


def estimate_loss(windows: Sequence[NDArray[np.float64]]) -> LossEstimate:
    """Return `estimate` of losses."""
    mean = estimate(windows, LOSS_BOUNDS)
    return LossEstimate(
        mean.mean,
        standard_error=mean.standard_error,
        tokens=mean.tokens,
        samples=mean.samples,
    )


@dataclass(frozen=True)
class Bucket:
    """Losses of the tokens at positions `start` to `stop` - 1."""

    start: int
    stop: int
    losses: Mapping[str, LossEstimate]  # by reading mode, `MODEL` first


@dataclass(frozen=True)
class PositionLosses:
    """Loss by position; a base reads the same tokens back to back, and in sliding windows."""

    length: int  # tokens of a window: the longest length
    windows: int  # number of windows
    # over all positions: of `MODEL`, and of the base `TRUNCATED` and `SLIDING`
    losses: Mapping[str, LossEstimate]
    changes: Mapping[str, Estimate]  # loss of `MODEL` minus each other loss, paired by token
    buckets: tuple[Bucket, ...]  # losses by position


@dataclass(frozen=True)
class ContextPoint:
    """Losses of the same target tokens at one context length.

    At least 3/4 of the context precede each target of a causal model; a masked model has at least
    3/8 of it on either side. Differences are paired by token; negative means that this context is
    better.
    """

    context: int  # window length in tokens, special tokens included
    loss: LossEstimate  # of the model
    change: Estimate  # minus the loss at the reference context
    # of the base; None if unknown or if the context is longer than the base's
    base: LossEstimate | None
    # minus the loss of the base at its longest context; None without a base
    against_base: Estimate | None


@dataclass(frozen=True)
class ContextLosses:
    """Loss by context length, with the same target tokens."""

    # the context that changes refer to: the base's context length if it was measured, else the
    # shortest
    reference: int
    windows: int  # number of windows with scored tokens
    points: tuple[ContextPoint, ...]  # shortest context first


@dataclass(frozen=True)
class Recall:
    """Retrieval of documents that were embedded in one mode; documents are the samples."""

    recall: Estimate  # recall@1 of queries
    reciprocal_rank: Estimate  # mean reciprocal rank (MRR) of queries
    # recall minus recall with truncation, paired by query; None for truncation itself
    change: Estimate | None = None


@dataclass(frozen=True)
class TokensRead:
    """How much of each document is read in one mode, special tokens counted once a document."""

    limit: int | None  # maximum tokens of a document; None: whole documents
    median: int  # tokens that are read, over documents; the lower one of two


# Of scores of a model minus those of the base in a mode, by mode and by name of the score.
Differences = Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True)
class Retrieval:
    """Retrieval of documents by queries cut from text beyond the base's context length."""

    length: int  # tokens of a document, special tokens included
    documents: int
    queries: int
    query_tokens: int  # without special tokens
    pooling: str  # how hidden states become one embedding
    # By how documents are embedded: `TRUNCATED`, `SAME_TEXT` and `CHUNKS` with the base, `MODEL`.
    # Without `SAME_TEXT` if the model reads whole documents, as it does here: `CHUNKS` is the same.
    modes: Mapping[str, Recall]
    tokens_read: Mapping[str, TokensRead]  # by mode
    # ``nDCG@10``, ``MRR`` and ``recall@k`` of `MODEL` minus those of each other mode, paired by
    # query
    differences: Differences

    ranked_by: ClassVar = "MRR"
    json_properties: ClassVar = ("against_chunks", "against_same_text")

    @property
    def ranking_scores(self) -> Mapping[str, Estimate]:
        """The MRR by mode."""
        return {mode: recall.reciprocal_rank for mode, recall in self.modes.items()}

    @property
    def against_chunks(self) -> Estimate | None:
        """MRR of `MODEL` minus that of `CHUNKS`, paired by query; None if not measured."""
        return _difference(self, CHUNKS)

    @property
    def against_same_text(self) -> Estimate | None:
        """MRR of `MODEL` minus that of chunks of the text that it reads, paired by query."""
        return _difference(self, mode_of_same_text(self.tokens_read))

    @property
    def scores(self) -> Mapping[str, Mapping[str, Estimate]]:
        """Scores by mode and name."""
        scores = dict[str, Mapping[str, Estimate]]()
        for mode, recall in self.modes.items():
            scores[mode] = {
                "MRR": recall.reciprocal_rank,
                "recall@1": recall.recall,
            }
        return scores


@dataclass(frozen=True)
class SearchResult:
    """Search in a corpus with judged queries, as in BEIR."""

    length: int  # maximum tokens of a document that the model reads, special tokens included
    documents: int
    queries: int  # with a relevant document
    longer_than_model: int  # documents of more than `length` tokens
    # documents longer than the base's context length; None without a base
    longer_than_base: int | None
    pooling: str  # how hidden states become one embedding
    # By mode, as in `Retrieval` (without a base, only `MODEL`), and by name: ``nDCG@10``, ``MRR``
    # and ``recall@k``.
    scores: Mapping[str, Mapping[str, Estimate]]
    tokens_read: Mapping[str, TokensRead]  # by mode
    # nDCG@10 by mode minus that of `TRUNCATED`, paired by query; empty without a base
    changes: Mapping[str, Estimate]
    # scores of `MODEL` minus those of each other mode, paired by query; empty without a base
    differences: Differences

    ranked_by: ClassVar = "nDCG@10"
    json_properties: ClassVar = ("against_chunks", "against_same_text")

    @property
    def ranking_scores(self) -> Mapping[str, Estimate]:
        """nDCG@10 by mode."""
        return {mode: scores[self.ranked_by] for mode, scores in self.scores.items()}

    @property
    def against_chunks(self) -> Estimate | None:
        """nDCG@10 of `MODEL` minus that of `CHUNKS`, paired by query; None without a base."""
        return _difference(self, CHUNKS)

    @property
    def against_same_text(self) -> Estimate | None:
        """nDCG@10 of `MODEL` minus that of chunks of the text that it reads, paired by query."""
        return _difference(self, mode_of_same_text(self.tokens_read))

    @property
    def summary(self) -> str:
        """What was searched, for messages."""
        documents = f"{self.documents:,} documents, {self.longer_than_model:,} of them cut"
        return f"{self.queries:,} queries, {documents}"


DocumentScores = Retrieval | SearchResult


def mode_of_same_text(modes: Container[str]) -> str:
    """Return the mode in which the base reads, in chunks, the text that the model reads.

    If the model reads whole documents, only `CHUNKS` is measured.
    """
    return SAME_TEXT if SAME_TEXT in modes else CHUNKS


def _difference(measured: DocumentScores, mode: str) -> Estimate | None:
    return measured.differences.get(mode, {}).get(measured.ranked_by)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Result, shows=("source", "base", "max_len", "tokens")):
    """How much a checkpoint's context length helps on a text."""

    source: str  # the evaluated checkpoint
    model_type: str
    kind: str  # ``causal``, ``masked`` or ``encoder``
    max_len: int  # context length in tokens
    base: str | None  # base checkpoint; None if unknown
    base_max_len: int | None  # context length of the base in tokens
    documents: int = 0  # documents read
    tokens: int = 0  # tokens of the windows cut from them, special tokens included
    # what limited the text: ``tokens``, or its own end, ``text``; empty without text
    limited_by: str = ""
    # whether windows span several documents, because few are as long as a window
    across_documents: bool = False
    seed: int = 0  # for masks and needles
    precision: str = "float32"  # dtype of the forward passes
    positions: PositionLosses | None = None  # None if not measured, also for the next four
    contexts: ContextLosses | None = None
    effective: Effective | None = None
    retrieval: Retrieval | None = None
    search: SearchResult | None = None
    seconds: float = 0.0  # without loading
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)
    notes: tuple[str, ...] = ()

    json_properties: ClassVar = ("verdict",)

    @property
    def verdict(self) -> str:
        """One or two sentences: whether the longer context helps, or else what was measured."""
        verdicts: Any = import_module("ctxextend.report.verdicts")  # which knows all results
        return str(verdicts.evaluation_verdict(self))

    @property
    def has_other_measures(self) -> bool:
        """Whether anything but the effective length was measured."""
        others = (self.positions, self.contexts, self.retrieval, self.search)
        return any(measure is not None for measure in others)
