"""An evaluation as it goes on: what is to be measured, and what was."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import Embedder
from ctxextend.evaluation.losses import LossMeasure, WindowLosses
from ctxextend.evaluation.opening import Prepared
from ctxextend.evaluation.passkey import Cell, PasskeyTask, measure_passkey, plan_passkey, report_passkey
from ctxextend.evaluation.readers import ENCODER
from ctxextend.evaluation.reports import Evaluation, Retrieval
from ctxextend.evaluation.retrieval import RetrievalTask, measure_retrieval, plan_retrieval
from ctxextend.evaluation.scoring import Scorer, batches
from ctxextend.evaluation.summaries import sum_up_contexts, sum_up_positions
from ctxextend.recipe import Evaluate

__all__ = ["Run", "open_run"]

NO_ORIGINAL = "Retrieval was not measured: queries are cut from what the original cannot read, and that is not known."
# With fewer windows a standard error is itself a guess.
FEW_WINDOWS = 8

# Trials of a cell of the passkey map below which finding says little.
LEAST_TRIALS = 4

WHOLE_LOGITS = "Its head cannot be parted from the model, so the logits of a window are held whole."


@dataclass
class Run:
    """What is to be measured, and what was so far.

    Attributes:
        on: What is measured, on what.
        seed: What masks and numbers are drawn with.
        batch_size: Windows that are read at once; None is as many as hold 4,096 tokens.
        judge: The model, by the losses of a language model or by the vectors of an encoder.
        base: The original; None where that is not known.
        losses: How windows are read; None where no loss is measured.
        passkey: What is hidden, in what; None where that is not measured.
        retrieval: What is looked for; None where that is not measured.
        notes: What should be known, and why something that was asked for is not measured.
        started: Seconds of the clock when it began.
        windows: What was measured of windows.
        cells: What was found of hidden numbers.
        found: What was found of documents.
    """

    on: Prepared
    seed: int
    batch_size: int | None
    judge: Scorer | Embedder
    base: Scorer | Embedder | None
    losses: LossMeasure | None
    passkey: PasskeyTask | None
    retrieval: RetrievalTask | None
    notes: tuple[str, ...]
    started: float = field(default_factory=time.perf_counter)
    windows: list[WindowLosses] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    found: Retrieval | None = None

    @property
    def tokens_to_read(self) -> int:
        """Tokens that the models read in all."""
        losses = self.losses.tokens_to_read * len(self.on.text.windows) if self.losses else 0
        passkey = self.passkey.all_tokens(self.on.model.kind) if self.passkey else 0
        return losses + passkey + (2 * self.retrieval.tokens if self.retrieval else 0)

    def measure(self, progress: Callable[[int], None]) -> None:
        """Measure everything; what was measured is kept as it goes, and `progress` is told the tokens of each step."""
        if self.losses is not None:
            for batch in batches([self.losses.length] * len(self.on.text.windows), self.batch_size):
                self.windows += self.losses.read(batch[0], [self.on.text.windows[i] for i in batch])
                progress(self.losses.tokens_to_read * len(batch))
        if self.passkey is not None:
            for cell in measure_passkey(self.passkey, self.judge):
                self.cells.append(cell)
                progress(cell.tokens)
        if self.retrieval is not None and isinstance(self.judge, Embedder) and isinstance(self.base, Embedder):
            self.found = measure_retrieval(self.judge, self.base, self.retrieval, progress)

    def report(self, *, complete: bool) -> Evaluation:
        """Return what was measured."""
        model, original = self.on.model, self.on.original
        return Evaluation(
            source=model.name,
            family=model.family,
            kind=model.kind,
            max_len=model.max_len,
            original=original.name if original else None,
            original_max_len=original.max_len if original else None,
            documents=len(self.on.text.documents),
            tokens=sum(map(len, self.on.text.windows[: len(self.windows) if self.losses else None])),
            across_documents=self.on.text.across_documents and self.losses is not None,
            seed=self.seed,
            precision=str(model.model.dtype).removeprefix("torch."),
            positions=sum_up_positions(self.windows, max(self.on.lengths)),
            contexts=sum_up_contexts(self.windows, original.max_len if original else None),
            passkey=report_passkey(self.passkey, model.kind, self.cells) if self.passkey and self.cells else None,
            retrieval=self.found,
            complete=complete,
            seconds=time.perf_counter() - self.started,
            warnings=(*self.on.warnings, *self._cautions()),
            notes=self.notes,
        )

    def _cautions(self) -> Iterator[str]:
        """Yield what should not be missed of what was measured."""
        if 0 < len(self.windows) < FEW_WINDOWS:
            yield (
                f"{len(self.windows)} windows of {max(self.on.lengths):,} tokens were read: standard errors of so few "
                "are rough. Raise --tokens, or name more text."
            )
        losses = [
            found for window in self.windows for found in (*window.by_position.values(), *window.by_context.values())
        ]
        if not all(np.isfinite(found).all() for found in losses):
            yield "Some losses are no finite numbers: a model gives NaN or infinity, or a token no chance at all."


def open_run(on: Prepared, settings: Evaluate) -> Run:
    """Return a run that has measured nothing yet.

    Raises:
        CheckpointError: How an encoder pools cannot be read.
        UnsupportedModelError: It pools in a way that is not known here.
        DataError: A measure that was asked for by its name cannot be taken.
    """
    kind = Embedder if on.model.kind == ENCODER else Scorer
    judge = kind.of(on.model, settings.batch_size)
    base = kind.of(on.original, settings.batch_size) if on.original else None
    losses = _losses(on, judge, base, settings.seed)
    passkey = _passkey(on, settings) if "passkey" in on.measures else None
    retrieval = _retrieval(on) if "retrieval" in on.measures else None
    why_not = [task for task in (passkey, retrieval) if isinstance(task, str)]
    if why_not and settings.measure:
        raise DataError(why_not[0], "Leave it out of --measure, or give what it needs.")
    notes = (*on.notes, *(passkey.notes if isinstance(passkey, PasskeyTask) else ()), *why_not)
    notes += (WHOLE_LOGITS,) if isinstance(judge, Scorer) and not judge.is_apart else ()
    tasks = None if isinstance(passkey, str) else passkey, None if isinstance(retrieval, str) else retrieval
    return Run(on, settings.seed, settings.batch_size, judge, base, losses, *tasks, notes)


def _losses(on: Prepared, judge: Scorer | Embedder, base: Scorer | Embedder | None, seed: int) -> LossMeasure | None:
    if isinstance(judge, Embedder) or isinstance(base, Embedder) or not {"position", "context"} & set(on.measures):
        return None
    found = LossMeasure.of(judge, base, on.lengths, seed)
    whole = found.whole if "position" in on.measures else ()
    return replace(found, whole=whole, contexts=found.contexts if "context" in on.measures else ())


def _passkey(on: Prepared, settings: Evaluate) -> PasskeyTask | str:
    """Return what is hidden, in what, with as many trials as the tokens allow; or why nothing is."""
    task = plan_passkey(on.model, np.concatenate(on.text.documents), on.lengths, seed=settings.seed)
    if isinstance(task, str):
        return task
    once = task.all_tokens(on.model.kind) // task.trials
    return replace(task, trials=min(max(settings.tokens // once, LEAST_TRIALS), task.trials))


def _retrieval(on: Prepared) -> RetrievalTask | str:
    if on.original is None:
        return NO_ORIGINAL
    return plan_retrieval(on.original, on.text.documents, max(on.lengths))
