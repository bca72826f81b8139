"""The tasks of an evaluation: which ones apply to a model and a text, and their results."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError, ResizeError
from ctxextend.lab import eval_model
from ctxextend.lab.effective import EffectiveTask, plan_effective
from ctxextend.lab.embedding import Embedder, open_embedder
from ctxextend.lab.eval_model import CAUSAL, ENCODER, MASKED, EvalModel, ModelOrFiles
from ctxextend.lab.evaluation_result import Evaluation
from ctxextend.lab.losses import LossTask, plan_losses
from ctxextend.lab.retrieval import RetrievalTask, plan_retrieval
from ctxextend.lab.scorer import Scorer, open_scorer
from ctxextend.lab.search import SearchTask, plan_search
from ctxextend.lab.search_set import SearchSet
from ctxextend.lab.unseen_text import read_unseen
from ctxextend.lab.windows import (
    TextWindows,
    context_lengths,
    cut_windows,
    join_documents,
)
from ctxextend.held_out import Ids
from ctxextend.settings import ALL_MEASURES, MIN_WINDOW, Evaluate
from ctxextend.text_data import empty_files

LM_MEASURES = ("position", "context", "effective")
MEASURES_BY_KIND = {
    CAUSAL: LM_MEASURES,
    MASKED: LM_MEASURES,
    ENCODER: ("effective", "retrieval"),
}
KIND_NAMES = {
    CAUSAL: "a causal language model",
    MASKED: "a masked language model",
    ENCODER: "an encoder without an LM head",
}


Task = LossTask | RetrievalTask | SearchTask | EffectiveTask


@dataclass
class EvaluationRun:
    """The tasks of an evaluation and their results.

    `measure` can be called again after the positions of the model have changed.
    """

    model: EvalModel
    base: EvalModel | None  # None if unknown
    settings: Evaluate
    text: TextWindows  # windows as long as the longest context
    tasks: list[Task]  # the first one ranks models
    warnings: tuple[str, ...]
    notes: tuple[str, ...]  # among them why an applicable measure was skipped
    started: float = field(default_factory=time.perf_counter)

    @property
    def text_tokens(self) -> int:
        """The number of tokens of the windows, special tokens included."""
        special = self.model.tokenizer.num_special
        return sum(len(window) + special for window in self.text.windows)

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""
        return sum(task.tokens for task in self.tasks)

    @property
    def base_tokens(self) -> int:
        """The number of tokens that the base reads."""
        return sum(task.base_tokens for task in self.tasks)

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """The values that rank models, per window or document, each of shape (k,); maybe none."""
        return self.tasks[0].scores if self.tasks else ()

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Run the base, whose results are reused for each model."""
        for task in self.tasks:
            task.run_base(advance)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Run all tasks, keeping results as they arrive; `advance` gets the tokens of each step."""
        self.started = time.perf_counter()
        for task in self.tasks:
            task.measure(advance)

    def report(self) -> Evaluation:
        """Return the results."""
        model = self.model
        base = self.base
        warnings = [*self.warnings]
        measured: dict[str, Any] = {"tokens": self.text_tokens}
        for task in self.tasks:
            measured |= task.report()
            warnings += measured.pop("warnings", ())
        return Evaluation(
            source=model.name,
            model_type=model.model_type,
            kind=model.kind,
            max_len=model.max_len,
            base=None if base is None else base.name,
            base_max_len=None if base is None else base.max_len,
            documents=len(self.text.documents),
            limited_by=self.text.limited_by,
            seed=self.settings.seed,
            precision=model.precision,
            seconds=round(time.perf_counter() - self.started, 3),
            warnings=tuple(warnings),
            notes=self.notes,
            **measured,
        )


def plan_evaluation(
    model: EvalModel,
    base: EvalModel | None,
    settings: Evaluate,
    documents: Iterable[Ids] | None = None,
    *,
    search_set: SearchSet | None = None,
    short_hint: str = "",
    notes: Sequence[str] = (),
) -> EvaluationRun:
    """Choose tasks, and cut the text into windows as long as the longest context.

    Args:
        model: The model to evaluate.
        base: Its base; None if unknown.
        settings: What to measure, and on which text.
        documents: Token ids of each document; None: those of the settings.
        search_set: Judged queries, for encoders.
        short_hint: What to do if the text is shorter than a window; by default, to pass more text
            or to use shorter windows.
        notes: Notes about the model.

    Raises:
        ResizeError: A length or a measure does not apply to the model.
        CheckpointError: The tokenizer is not that of the model or of its base.
        DataError: The text is too short, or lacks what a measure needs.
        UnsupportedModelError: The model needs more than text.
    """
    measures = applicable_measures(model, settings)
    longest = max(settings.length, default=max(model.max_len, MIN_WINDOW))
    check_length(model, longest)
    base_len = None if base is None else base.max_len
    lengths = tuple(sorted(set(settings.length))) or context_lengths(longest, base_len)

    size = longest - model.tokenizer.num_special
    warnings = list[str]()
    if documents is None and settings.data:
        documents, warnings = read_unseen([model], settings, size)
    if documents is None:
        measures = ()
        text = TextWindows()
    else:
        text = cut_windows(
            documents,
            size,
            max(settings.tokens // longest, 1),
            model.tokenizer.separator,
            one_each="retrieval" in measures,
            short_hint=short_hint,
        )
    eval_model.check_vocabulary(model, text.ids)
    if base is not None and text.windows:
        eval_model.check_same_tokens(model, base, text.windows[0])

    run = EvaluationRun(
        model=model,
        base=base,
        settings=settings,
        text=text,
        tasks=[],
        warnings=tuple(warnings),
        notes=(*notes, *empty_files(settings.data)),
    )
    evaluator: Scorer | Embedder
    if model.kind == ENCODER:
        evaluator = _plan_encoder(run, measures, longest, search_set)
    else:
        evaluator = _plan_language_model(run, measures, lengths)
    if "effective" in measures:
        with _skipped_with_a_note(run):
            haystack = join_documents(text.documents, model.tokenizer.separator)
            effective = plan_effective(evaluator, haystack, longest, settings)
            run.tasks.append(effective)
            run.notes += effective.notes
    return run


def _plan_encoder(
    run: EvaluationRun, measures: Sequence[str], longest: int, search_set: SearchSet | None
) -> Embedder:
    batch_size = run.settings.batch_size
    embedder = open_embedder(run.model, batch_size)
    base = None if run.base is None else open_embedder(run.base, batch_size)
    if search_set is not None:
        run.tasks.append(plan_search(embedder, base, search_set, longest))
        run.notes += search_set.notes
    if "retrieval" in measures:
        with _skipped_with_a_note(run):
            run.tasks.append(plan_retrieval(embedder, base, run.text.documents, longest))
    return embedder


def _plan_language_model(
    run: EvaluationRun, measures: Sequence[str], lengths: Sequence[int]
) -> Scorer:
    batch_size = run.settings.batch_size
    scorer = open_scorer(run.model, batch_size)
    base = None if run.base is None else open_scorer(run.base, batch_size)
    if "position" in measures or "context" in measures:
        task = plan_losses(scorer, base, run.text.windows, lengths, run.settings.seed, measures)
        task.across_documents = run.text.across_documents
        run.tasks.append(task)
        if task.across_documents:
            warning = (
                f"Few documents have the {lengths[-1]:,} tokens of a window, so windows span "
                "several documents: text before a document's start helps little to predict it."
            )
            run.warnings = (*run.warnings, warning)
    return scorer


@contextmanager
def _skipped_with_a_note(run: EvaluationRun) -> Iterator[None]:
    """Note why a measure is skipped; raise DataError if it was requested by name."""
    try:
        yield
    except DataError as error:
        if run.settings.measure:
            raise
        run.notes = (*run.notes, error.message)


def check_length(model: ModelOrFiles, length: int) -> None:
    """Check that a model can read windows of a length.

    Raises:
        ResizeError: They are longer than its context length.
    """
    if length > model.max_len:
        message = (
            f"{model.name} has a context length of {model.max_len}, too short for windows of "
            f"{length} tokens."
        )
        raise ResizeError(message, f"Resize it first: ctxextend resize {model.name} --to {length}")


def check_measures(name: str, kind: str, settings: Evaluate) -> None:
    """Check that measures apply to a model of this name and kind.

    Raises:
        ResizeError: A requested measure, or the search set, does not apply to it.
    """
    applicable = MEASURES_BY_KIND[kind]
    described = f"{name}, {KIND_NAMES[kind]}"
    if settings.search is not None and kind != ENCODER:
        message = f"--search does not apply to {described}."
        raise ResizeError(message, f"Pass text with --data: it measures {', '.join(applicable)}.")
    for measure in settings.measure:
        if measure not in applicable:
            message = f"--measure {measure} does not apply to {described}."
            raise ResizeError(message, f"Use {', '.join(applicable)}.")


def applicable_measures(model: EvalModel, settings: Evaluate) -> tuple[str, ...]:
    """Return the requested measures, by default all that apply to the model.

    Raises:
        ResizeError: A requested measure, or the search set, does not apply to it.
    """
    check_measures(model.name, model.kind, settings)
    applicable = MEASURES_BY_KIND[model.kind]
    requested = settings.measure or applicable
    return tuple(name for name in ALL_MEASURES if name in requested)
