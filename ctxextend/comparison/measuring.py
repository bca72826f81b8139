"""What one method after the other gives, and what the original gives once for all of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctxextend.comparison.reports import LOSS, RECIPROCAL_RANK
from ctxextend.evaluation.embedding import Embedder
from ctxextend.evaluation.evaluate import EvaluationRun
from ctxextend.evaluation.evaluation_result import CHUNKS, MODEL, SLIDING, Estimate, Evaluation, estimate, estimate_loss
from ctxextend.evaluation.losses import WindowLosses
from ctxextend.evaluation.retrieval import BaseVectors, embed_by_base, embed_documents, rank_documents, report_retrieval

__all__ = ["Base", "Measured", "measure", "metric_of", "original_score", "read_base", "read_ranked"]

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Base:
    """What the original gives.

    Attributes:
        windows: Its losses of each window.
        readings: Its vectors of queries and documents; None where documents are not looked for.
    """

    windows: tuple[WindowLosses, ...] = ()
    readings: BaseVectors | None = None


@dataclass(frozen=True)
class Measured:
    """What a method gives.

    Attributes:
        evaluation: All of it.
        values: What it is ranked by: the losses of each window, or 1 / rank of each document's queries; each of shape
            (k,), the same for every method.
        short: Its loss minus the original's with the original's own longest context; None where that was not measured.
    """

    evaluation: Evaluation
    values: tuple[Values, ...]
    short: Estimate | None


def metric_of(run: EvaluationRun) -> str:
    """Return what methods are ranked by."""
    return RECIPROCAL_RANK if run.losses is None else LOSS


def base_tokens(run: EvaluationRun) -> int:
    """Return the tokens that `read_base` reads."""
    losses = run.losses.only(base=True).tokens_to_read * len(run.text.windows) if run.losses else 0
    return losses + (run.retrieval.tokens if run.retrieval else 0)


def read_base(run: EvaluationRun, progress: Callable[[int], None]) -> Base:
    """Let the original read all that it is compared by.

    Args:
        run: What is to be measured.
        progress: Told the tokens of each step.
    """
    theirs = replace(run, losses=run.losses and run.losses.only(base=True))
    windows = [window for found in theirs.read_windows(progress) for window in found]
    if run.retrieval is None or not isinstance(run.base_reader, Embedder):
        return Base(tuple(windows))
    return Base(tuple(windows), embed_by_base(run.base_reader, run.retrieval, progress))


def measure(run: EvaluationRun, base: Base, progress: Callable[[int], None]) -> Measured:
    """Measure the method whose tables the model has now.

    Args:
        run: What is to be measured.
        base: From `read_base`.
        progress: Told the tokens of each step.
    """
    own = _own(run)
    own.measure(progress)
    own.windows = [mine.merged(other) for mine, other in zip(own.windows, base.windows, strict=True)]
    if run.retrieval is None or base.readings is None or not isinstance(run.reader, Embedder):
        values = tuple(window.by_position[MODEL] for window in own.windows)
        return Measured(own.report(complete=True), values, _short(own))
    places = rank_documents(base.readings, embed_documents(run.reader, run.retrieval, progress), run.retrieval)
    own.found = report_retrieval(run.retrieval, places, base.readings.pooling)
    return Measured(own.report(complete=True), tuple(1 / places[MODEL]), None)


def read_ranked(run: EvaluationRun, base: Base, progress: Callable[[int], None]) -> tuple[Values, ...]:
    """Return what the method whose tables the model has now is ranked by, `Measured.values`, and measure no more.

    Args:
        run: What is to be measured; language models need no original.
        base: From `read_base`; of encoders alone.
        progress: Told the tokens of each step.
    """
    if run.retrieval is None or base.readings is None or not isinstance(run.reader, Embedder):
        own = _own(run)
        own.measure(progress)
        return tuple(window.by_position[MODEL] for window in own.windows)
    places = rank_documents(base.readings, embed_documents(run.reader, run.retrieval, progress), run.retrieval)
    return tuple(1 / places[MODEL])


def own_tokens(run: EvaluationRun) -> int:
    """Return the tokens that `measure` reads."""
    return _own(run).tokens_to_read + (run.retrieval.tokens if run.retrieval else 0)


def _own(run: EvaluationRun) -> EvaluationRun:
    """Return a run of what the model alone gives, that has measured nothing yet."""
    losses = run.losses and run.losses.only(base=False)
    return replace(run, losses=losses, retrieval=None, started=time.perf_counter(), windows=[], cells=[], found=None)


def _short(run: EvaluationRun) -> Estimate | None:
    if run.base_reader is None or not run.windows:
        return None
    contexts, known = [window.by_context for window in run.windows], run.base_reader.model.max_len
    if (MODEL, known) not in contexts[0]:
        return None
    return estimate([losses[MODEL, known] - losses[SLIDING, known] for losses in contexts])


def original_score(run: EvaluationRun, base: Base) -> Estimate | None:
    """Return the score of the original, which reads the same in pieces."""
    if base.windows:
        return estimate_loss([window.by_position[SLIDING] for window in base.windows])
    if base.readings is None or run.retrieval is None:
        return None
    places = rank_documents(base.readings, base.readings.documents[CHUNKS], run.retrieval)
    return estimate(list(1 / places[CHUNKS]))
