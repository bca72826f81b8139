"""Measure how much a checkpoint's context length helps on a text."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend import held_out
from ctxextend.errors import CheckpointError, CtxextendError, DataError, ResizeError
from ctxextend.evaluation import eval_model
from ctxextend.evaluation.embedding import Embedder, open_embedder
from ctxextend.evaluation.eval_model import (
    CAUSAL,
    ENCODER,
    MASKED,
    PASS_BASE,
    EvalModel,
    ModelOrFiles,
    Task,
)
from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.evaluation.losses import Scorer, open_scorer, plan_losses
from ctxextend.evaluation.passkey import plan_passkey
from ctxextend.evaluation.retrieval import plan_retrieval
from ctxextend.evaluation.search import SearchSet, plan_search, read_search_set
from ctxextend.evaluation.shift import plan_shift
from ctxextend.held_out import Ids
from ctxextend.models.devices import torch_threads
from ctxextend.plan.find_tables import open_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import (
    MEASURES,
    MIN_LENGTH,
    CheckpointRef,
    Evaluate,
    accepts_settings,
    split_ref,
)
from ctxextend.recipe_file import TABLE_KEYS, BaseCheckpoint, find_base, read_provenance
from ctxextend.text_data import TextSource, check_paths, empty_files, path_names, read_documents

LM_MEASURES = ("position", "context", "passkey")
MEASURES_BY_KIND = {CAUSAL: LM_MEASURES, MASKED: LM_MEASURES, ENCODER: ("passkey", "retrieval")}
KINDS = {
    CAUSAL: "a causal language model",
    MASKED: "a masked language model",
    ENCODER: "an encoder without an LM head",
}
SHORTEST_CONTEXT, DOUBLINGS = 128, 3  # start from a shorter context if fewer doublings would fit
# Per requested token: characters read per document (tokens are rarely longer), and tokens read to
# find long documents.
CHARACTERS_PER_TOKEN, TOKENS_SEARCHED = 100, 8


class EvaluationInterrupted(KeyboardInterrupt):
    """Ctrl-C during an evaluation; `evaluation` has the results so far, with `complete` False."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__("interrupted")
        self.evaluation = evaluation


@accepts_settings(CheckpointRef, Evaluate, without=TABLE_KEYS)
def evaluate(
    reference: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    progress: Progress = no_progress,
    **settings: Any,
) -> Evaluation:
    """Measure how much a checkpoint's context length helps on a text.

    Language models: loss by position, loss by context length and passkey retrieval. Encoders:
    passkey retrieval and document retrieval. If the base checkpoint is known, it reads the same
    tokens in chunks and sliding windows, as a user without the longer context would.

    Args:
        reference: As in `resize`.
        data: Files and folders with text: a document per text file, per line of .jsonl or per row
            of .parquet; or Hub datasets, ``hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]``. Of files
            that the checkpoint's recipe lists as training data (recognised by content), only the
            held-out windows are used, or everything with a warning. Not recognised: training with
            other tools, the same text in another file, changes after the first 64 MiB, and files
            after the first 200 of a training. Optional with ``corpus``, ``queries`` and ``qrels``:
            a search set as in BEIR.
        progress: Called with the number of tokens read since the last call, and the total.
        settings: The other fields of `Evaluate`: ``length``, ``tokens``, ``measure``, …; and
            ``revision``, ``subfolder``, ``variant`` and ``model_type`` as in `resize`.

    Raises:
        CtxextendError: The checkpoint or its base cannot be loaded, the text cannot be read or is
            shorter than one window, or a length or a measure does not apply to the model.
        EvaluationInterrupted: Ctrl-C was pressed; it has the results so far.
    """
    ref, settings = split_ref(reference, settings)
    return evaluate_checkpoint(ref, Evaluate(data=path_names(data), **settings), progress)


def evaluate_checkpoint(
    ref: CheckpointRef, settings: Evaluate, progress: Progress = no_progress
) -> Evaluation:
    """Evaluate a checkpoint; see `evaluate`."""
    if settings.data:
        check_paths(settings.data)
    search_set = read_search_set(settings)
    files = eval_model.open_files(open_model(ref))
    model = eval_model.load_eval_model(files, settings.precision, settings.device)
    applicable_measures(model, settings)
    stated = (
        None
        if settings.no_base
        else find_base(read_provenance(files.checkpoint), settings.base, ref.tokenizer)
    )
    base, warnings = open_base(stated, settings, model.name, model.kind)
    notes = [*model.notes, *(base.notes if base else ())]
    if stated is None and not settings.no_base:
        notes.append(f"Not compared with a base checkpoint: no recipe names one. {PASS_BASE}")
    elif base and stated and any(step.trainable for step in stated.chain):
        notes.append(
            f"The base was not trained with the model. To compare with one that was: {PASS_BASE}"
        )
    run = plan_evaluation(model, base, settings, search_set=search_set, notes=notes)
    run.warnings = (*(f"{warning} {PASS_BASE}" for warning in warnings), *run.warnings)
    total = run.tokens + run.base_tokens
    try:
        with torch_threads(model.model, settings.threads):
            run.measure(lambda tokens: progress(tokens, total))
    except KeyboardInterrupt:
        raise EvaluationInterrupted(run.report(complete=False)) from None
    return run.report(complete=True)


def open_base(
    stated: BaseCheckpoint | None, settings: Evaluate, name: str, kind: str
) -> tuple[EvalModel | None, list[str]]:
    """Load the base of a model of this name and kind; None and a warning if only a recipe names it,
    and it fails.
    """
    if stated is None:
        return None, []
    try:
        base = eval_model.open_eval_model(
            stated.ref, settings.precision, stated.hashes, settings.device
        )
        if base.kind != kind:
            raise CheckpointError(
                f"{base.name} is {KINDS[base.kind]}, but {name} is {KINDS[kind]}.", PASS_BASE
            )
    except CtxextendError as error:
        if settings.base is not None:
            raise
        return None, [f"Not compared with the base checkpoint: {error.message}"]
    return base, []


@dataclass(frozen=True)
class TextWindows:
    """Windows of equal length, cut from documents."""

    windows: tuple[Ids, ...] = ()  # each of shape (tokens,), in text order
    documents: tuple[Ids, ...] = ()  # the documents read, each of shape (tokens,)
    across_documents: bool = False  # whether windows span several documents
    # what limited the windows: ``tokens``, ``time``, or the end of the ``text``; empty without
    limited_by: str = ""


@dataclass
class EvaluationRun:
    """The tasks of an evaluation and their results so far; `measure` again after changing the
    model's tables.
    """

    model: EvalModel
    base: EvalModel | None  # None if unknown
    settings: Evaluate
    text: TextWindows  # windows as long as the longest context
    tasks: tuple[Task, ...]  # the first one ranks models
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
        """The values that rank models; see `Task.scores`."""
        return self.tasks[0].scores if self.tasks else ()

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Run the base, whose results are reused for each model."""
        for task in self.tasks:
            task.run_base(advance)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Run all tasks, keeping results as they arrive; call `advance` with the tokens of each
        step.
        """
        self.started = time.perf_counter()
        for task in self.tasks:
            task.measure(advance)

    def report(self, *, complete: bool) -> Evaluation:
        """Return the results so far."""
        model = self.model
        base = self.base
        warnings = [*self.warnings]
        values: dict[str, Any] = {"tokens": self.text_tokens, "limited_by": self.text.limited_by}
        for task in self.tasks:
            values |= task.report()
            warnings += values.pop("warnings", ())
        models = model.name, model.model_type, model.kind, model.max_len
        base_values = base.name if base else None, base.max_len if base else None
        values |= {
            "documents": len(self.text.documents),
            "warnings": tuple(warnings),
            "notes": self.notes,
        }
        values |= {
            "seed": self.settings.seed,
            "precision": str(model.model.dtype).removeprefix("torch."),
        }
        values |= {"complete": complete, "seconds": round(time.perf_counter() - self.started, 3)}
        return Evaluation(*models, *base_values, **values)


def plan_evaluation(
    model: EvalModel,
    base: EvalModel | None,
    settings: Evaluate,
    documents: Iterable[Ids] | None = None,
    *,
    search_set: SearchSet | None = None,
    minimum: int = 1,
    short_hint: str = "",
    notes: Sequence[str] = (),
) -> EvaluationRun:
    """Choose tasks, and cut documents, by default those of the settings, into at least `minimum`
    windows to measure.

    `short_hint` says what to do if the text has fewer; by default, to pass more or to use shorter
    windows.
    """
    measures = applicable_measures(model, settings)
    longest = max(settings.length, default=max(model.max_len, MIN_LENGTH))
    check_length(model, longest)
    lengths = tuple(sorted(set(settings.length))) or context_lengths(
        longest, base.max_len if base else None
    )
    size = longest - model.tokenizer.num_special
    count = max(settings.tokens // longest, 1)
    warnings = list[str]()
    notes = [*notes, *empty_files(settings.data)]
    if documents is None and settings.data:
        documents, warnings = read_unseen([model], settings, size * minimum)
    separator = model.tokenizer.separator
    one_each = "retrieval" in measures
    if documents is None:
        measures = ()
        text = TextWindows()
    else:
        text = cut_windows(
            documents,
            size,
            count,
            separator,
            one_each=one_each,
            minimum=minimum,
            short_hint=short_hint,
        )
    text_ids = np.concatenate([np.empty(0, np.int64), *text.documents])
    eval_model.check_vocabulary(model, text_ids)
    if base is not None and text.windows:
        eval_model.check_same_tokens(model, base, text.windows[0])

    @contextmanager
    def optional() -> Iterator[None]:
        """Note why a measure is skipped; raise if it was requested by name."""
        try:
            yield
        except DataError as error:
            if settings.measure:
                raise DataError(
                    error.message, "Remove it from --measure, or provide what it needs."
                ) from None
            notes.append(error.message)

    tasks = list[Task]()
    evaluator: Scorer | Embedder
    if model.kind == ENCODER:
        evaluator = embedder = open_embedder(model, settings.batch_size)
        base_embedder = open_embedder(base, settings.batch_size) if base else None
        if search_set is not None:
            tasks.append(plan_search(embedder, base_embedder, search_set, longest))
            notes += search_set.notes
        if "retrieval" in measures:
            with optional():
                tasks.append(plan_retrieval(embedder, base_embedder, text.documents, longest))
    else:
        evaluator = scorer = open_scorer(model, settings.batch_size)
        base_scorer = open_scorer(base, settings.batch_size) if base else None
        if "position" in measures or "context" in measures:
            losses = plan_losses(
                scorer, base_scorer, text.windows, lengths, settings.seed, measures
            )
            losses.across_documents = text.across_documents
            tasks.append(losses)
            if text.across_documents:
                across = (
                    f"Few documents have the {longest:,} tokens of a window, so windows span "
                    "several documents"
                )
                warnings.append(
                    f"{across}: text before a document's start helps little to predict it."
                )
    if "passkey" in measures:
        with optional():
            passkey = plan_passkey(
                evaluator, text_ids, lengths, tokens=settings.tokens, seed=settings.seed
            )
            tasks.append(passkey)
            notes += passkey.notes
    if "shift" in measures:
        tasks.append(
            plan_shift(
                evaluator, text.windows, longest, base.max_len if base else None, settings.seed
            )
        )
    return EvaluationRun(model, base, settings, text, tuple(tasks), tuple(warnings), tuple(notes))


def check_length(model: ModelOrFiles, length: int) -> None:
    """Raise ResizeError if windows are longer than a model's context length."""
    if length > model.max_len:
        message = (
            f"{model.name} has a context length of {model.max_len}, too short for windows of "
            f"{length} tokens."
        )
        raise ResizeError(message, f"Resize it first: ctxextend resize {model.name} --to {length}")


def read_unseen(
    models: Sequence[ModelOrFiles], settings: Evaluate, minimum: int
) -> tuple[Iterator[Ids], list[str]]:
    """Return the documents of a text, and warnings; of files that a model was trained on, the
    held-out windows.

    Files with unknown held-out windows are used in full. So are all files if each has held-out
    windows, but together they have fewer than `minimum` tokens.
    """
    maximum = max(settings.tokens, *(model.max_len for model in models))
    tokenizer = models[0].tokenizer
    trained_on = held_out.trained_texts(run for model in models for run in model.trainings)
    unseen, seen, sources = (
        dict[TextSource, list[Ids]](),
        list[TextSource](),
        check_paths(settings.data),
    )
    for source in sources if trained_on else ():
        runs = [*trained_on.get(held_out.text_key(held_out.fingerprint(source)), ())]
        rule, first, text_field = runs[0] if runs else (None, 0, "")
        if rule is not None and len(runs) == 1 and text_field == settings.text_field:
            count = min(rule.tokens - first, (2 * max(maximum, minimum) + rule.window) * rule.every)
            ids = held_out.read_ids(
                [str(source)], text_field, tokenizer.encode, tokenizer.separator, count
            )
            windows = held_out.held_out_windows(
                np.concatenate([np.empty(0, np.int64), *ids]), rule, first
            )
            unseen[source] = held_out.split_documents(windows, tokenizer.separator)
        elif runs:
            seen.append(source)
    tokens = sum(len(document) for documents in unseen.values() for document in documents)
    if tokens < minimum and len(unseen) == len(sources):
        seen += unseen
        unseen.clear()

    def read() -> Iterator[Ids]:
        for source in sources:
            texts = read_documents(
                [str(source)], settings.text_field, CHARACTERS_PER_TOKEN * maximum
            )
            yield from unseen.get(
                source, (_first_tokens(tokenizer, text, maximum) for text in texts)
            )

    only_held_out = f": only the {tokens:,} held-out tokens are used."
    names = [model.name for model in models if model.trainings]
    name = f"One of {', '.join(names)}" if len(names) > 1 else "".join(names)
    warnings = held_out.trained_on_warnings(name, seen, f"{held_out.NO_HELD_OUT} text with --data.")
    return read(), [*warnings, *held_out.trained_on_warnings(name, unseen, only_held_out)]


def applicable_measures(model: EvalModel, settings: Evaluate) -> tuple[str, ...]:
    """Return the requested measures, by default all that apply to the model; raise if one or a
    search set does not.
    """
    applicable = MEASURES_BY_KIND[model.kind]
    if settings.corpus is not None and model.kind != ENCODER:
        message = f"--corpus does not apply to {model.name}, {KINDS[model.kind]}."
        raise ResizeError(message, f"Pass text with --data: it measures {', '.join(applicable)}.")
    for name in settings.measure:
        if name not in (*applicable, "shift"):
            message = f"--measure {name} does not apply to {model.name}, {KINDS[model.kind]}."
            raise ResizeError(message, f"Use {', '.join(applicable)}.")
    return tuple(name for name in MEASURES if name in (settings.measure or applicable))


def cut_windows(
    documents: Iterable[Ids],
    size: int,
    count: int,
    separator: int | None,
    *,
    one_each: bool = False,
    minimum: int = 1,
    short_hint: str = "",
) -> TextWindows:
    """Cut documents, each of shape (tokens,), into at most `count` windows of `size` tokens that do
    not overlap.

    Windows stay inside documents, unless that would leave more than half of the text unused or give
    fewer than `minimum` windows: then documents are joined with a separator. Reading stops at the
    last document needed. `one_each` takes only the first window of each document; `short_hint` is
    for a text with too few windows.
    """
    inside = list[Ids]()
    read = list[Ids]()
    tokens = 0
    limited_by = "text"
    for ids in documents:
        read.append(ids)
        tokens += len(ids)
        inside += _cut(ids, size)[: 1 if one_each else None]
        if len(inside) >= count or tokens >= TOKENS_SEARCHED * count * size:
            limited_by = "tokens"
            break
    inside = inside[:count]
    between = np.array([] if separator is None else [separator], np.int64)
    joined = _cut(
        np.concatenate([between[:0], *(part for ids in read for part in (ids, between))]), size
    )[:count]
    if len(joined) < minimum:
        hint = ""
        shorter = 2 ** max(tokens.bit_length() - 1, 0)
        if minimum == 1 and shorter >= MIN_LENGTH:
            hint = f", or use shorter windows with --length {shorter}"
        needed = (
            f"one window needs {size:,}"
            if minimum == 1
            else f"{minimum} windows of {size:,} are needed"
        )
        short_hint = short_hint or f"Pass more text with --data{hint}."
        raise DataError(f"The text has {tokens:,} tokens; {needed}.", short_hint)
    across = 2 * len(inside) < len(joined) or len(inside) < minimum
    windows = joined if across else inside
    if len(windows) == count:
        limited_by = "tokens"
    return TextWindows(tuple(windows), tuple(read), across, limited_by)


def _first_tokens(tokenizer: eval_model.TextTokenizer, text: str, maximum: int) -> Ids:
    """Return the first tokens of a text, shape (k,), k ≤ `maximum`, without tokenizing much more of
    it.
    """
    size = 8 * maximum
    while len(ids := tokenizer.encode(text[:size])) <= maximum and size < len(text):
        size *= 4
    return ids[:maximum]


def _cut(ids: Ids, size: int) -> list[Ids]:
    return [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]


def context_lengths(longest: int, base: int | None) -> tuple[int, ...]:
    """Return the context lengths to measure: doublings from 128 or an eighth of the longest, and
    the base's length.
    """
    shortest = max(min(SHORTEST_CONTEXT, longest >> DOUBLINGS), 1)
    lengths = {longest, base or longest, *(shortest << i for i in range(longest.bit_length()))}
    return tuple(sorted(context for context in lengths if MIN_LENGTH <= context <= longest))
