"""What an evaluation found, as data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "CHUNKS",
    "MODEL",
    "SLIDING",
    "TRUNCATED",
    "Bucket",
    "ContextLosses",
    "ContextPoint",
    "Estimate",
    "Evaluation",
    "Passkey",
    "PositionLosses",
    "Recall",
    "Retrieval",
]

# The ways of reading a long text: the model as it is, and the original on pieces that it can read.
MODEL, TRUNCATED, SLIDING, CHUNKS = "model", "truncated", "sliding", "chunks"


@dataclass(frozen=True)
class Estimate:
    """A mean, and how far from it the true one may lie.

    Attributes:
        mean: Of losses in nats per token.
        error: Its standard error, over windows; None where there are fewer than two.
        tokens: Tokens that were scored.
    """

    mean: float
    error: float | None
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp(mean)."""
        return math.exp(self.mean) if self.mean < 700 else math.inf

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values; a number that is not finite is None."""
        error = None if self.error is None or not math.isfinite(self.error) else self.error
        finite = math.isfinite(self.mean)
        perplexity = self.perplexity if finite and math.isfinite(self.perplexity) else None
        values = {"mean": self.mean if finite else None, "error": error, "perplexity": perplexity}
        return values | {"tokens": self.tokens}

    def difference_as_dict(self) -> dict[str, Any]:
        """Return it as plain values where it is a difference of losses, which has no perplexity."""
        return {name: value for name, value in self.as_dict().items() if name != "perplexity"}


@dataclass(frozen=True)
class Bucket:
    """Losses of the tokens at some positions.

    Attributes:
        start: The first position.
        stop: One behind the last.
        losses: By the way of reading, `MODEL` first.
    """

    start: int
    stop: int
    losses: Mapping[str, Estimate]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        losses = {name: estimate.as_dict() for name, estimate in self.losses.items()}
        return {"start": self.start, "stop": self.stop, "losses": losses}


@dataclass(frozen=True)
class PositionLosses:
    """Loss by position, of windows as long as the longest length.

    Attributes:
        length: Tokens of a window.
        windows: Windows that were read.
        losses: Over all positions, by the way of reading: `MODEL`, and where the original is known `TRUNCATED` (its
            own windows one behind the other) and `SLIDING` (windows that overlap by half), on the same tokens.
        changes: Loss of `MODEL` minus that of each other way, paired by token; below 0 the model is better.
        buckets: The same by position.
    """

    length: int
    windows: int
    losses: Mapping[str, Estimate]
    changes: Mapping[str, Estimate]
    buckets: tuple[Bucket, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "length": self.length,
            "windows": self.windows,
            "losses": {name: estimate.as_dict() for name, estimate in self.losses.items()},
            "changes": {name: estimate.difference_as_dict() for name, estimate in self.changes.items()},
            "buckets": [bucket.as_dict() for bucket in self.buckets],
        }


@dataclass(frozen=True)
class ContextPoint:
    """Losses of the same tokens with so much text around them.

    Attributes:
        context: Tokens of the window that each was scored in, special tokens included; at least three fourths of them
            stand before a token for causal models, and at least three eighths on either side for masked ones.
        loss: By the model.
        change: Loss here minus the loss with the reference context, paired by token; below 0 this context is better.
        original: By the original; None where it is not known or cannot read so much.
        against_original: Loss here minus the original's with its own longest context, or where the window is shorter
            with all of that, paired by token; None where there is no original.
    """

    context: int
    loss: Estimate
    change: Estimate
    original: Estimate | None
    against_original: Estimate | None

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "context": self.context,
            "loss": self.loss.as_dict(),
            "change": self.change.difference_as_dict(),
            "original": self.original and self.original.as_dict(),
            "against_original": self.against_original and self.against_original.difference_as_dict(),
        }


@dataclass(frozen=True)
class ContextLosses:
    """Loss by available context.

    Attributes:
        reference: The context that `ContextPoint.change` is against: the original's length where that is known and was
            measured, else the shortest.
        windows: Windows whose tokens were scored.
        points: By context, the shortest first.
    """

    reference: int
    windows: int
    points: tuple[ContextPoint, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        points = [point.as_dict() for point in self.points]
        return {"reference": self.reference, "windows": self.windows, "points": points}


@dataclass(frozen=True)
class Passkey:
    """Whether a number that stands somewhere in a long text is found again.

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

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        found = [list(row) for row in self.found]
        values = {"how": self.how, "lengths": list(self.lengths), "depths": list(self.depths), "found": found}
        return values | {"trials": self.trials, "chance": self.chance}


@dataclass(frozen=True)
class Recall:
    """How well documents were found by one way to make their vectors.

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

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class Retrieval:
    """Documents found by queries from what the original could not read of them.

    Attributes:
        length: Tokens of a document, special tokens included.
        documents: How many there are.
        queries: How many there are.
        query_tokens: Tokens of each, without special tokens.
        pooling: How the vectors of a text's tokens become one.
        ways: By the way documents were read: ``truncated`` and ``chunks`` by the original, ``model``.
    """

    length: int
    documents: int
    queries: int
    query_tokens: int
    pooling: str
    ways: Mapping[str, Recall]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return dict(vars(self)) | {"ways": {name: recall.as_dict() for name, recall in self.ways.items()}}


@dataclass(frozen=True)
class Evaluation:
    """What a context length is worth, on one text.

    Attributes:
        source: What was measured.
        family: Its model type.
        kind: ``causal``, ``masked`` or ``encoder``.
        max_len: Tokens that it reads at once.
        original: What it was made of; None where that is not known.
        original_max_len: Tokens that the original reads at once.
        documents: Documents of the text that were read.
        tokens: Tokens of the windows that were cut from them.
        across_documents: Whether windows run over the ends of documents, since few are as long as a window.
        seed: What masks and numbers were drawn with.
        precision: The dtype that models were run in.
        positions: Loss by position; None where it was not measured.
        contexts: Loss by available context.
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
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return all of it but the warnings as plain values."""
        values = {name: value for name, value in vars(self).items() if name != "warnings"}
        parts = ("positions", "contexts", "passkey", "retrieval")
        values |= {name: values[name] and values[name].as_dict() for name in parts}
        return values | {"seconds": round(self.seconds, 3), "notes": list(self.notes)}
