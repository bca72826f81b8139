"""Measure what a checkpoint's context length is worth on a text."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import CheckpointError, CtxextendError, DataError, ResizeError
from ctxextend.evaluation.embedding import Embedder, open_embedder
from ctxextend.evaluation.eval_model import (
    CAUSAL,
    ENCODER,
    MASKED,
    NAME_BASE,
    EvalModel,
    check_same_tokens,
    check_vocabulary,
    load_eval_model,
    open_eval_model,
    open_files,
)
from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.evaluation.losses import LossTask, Scorer, open_scorer, plan_losses
from ctxextend.evaluation.passkey import PasskeyTask, plan_passkey
from ctxextend.evaluation.retrieval import RetrievalTask, plan_retrieval
from ctxextend.held_out import (
    NO_HELD_OUT,
    Ids,
    fingerprint,
    held_out_windows,
    read_ids,
    split_documents,
    text_key,
    trained_on_warnings,
)
from ctxextend.models.devices import running
from ctxextend.plan.find_tables import open_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import MEASURES, MIN_LENGTH, CheckpointRef, Evaluate, accepts_settings, split_ref
from ctxextend.recipe_file import TABLE_KEYS, find_base, read_provenance
from ctxextend.text_data import TextSource, check_paths, empty_files, path_names, read_documents

# What each kind of model can be measured by.
FITTING = dict.fromkeys((CAUSAL, MASKED), ("position", "context", "passkey")) | {ENCODER: ("passkey", "retrieval")}
KINDS = {CAUSAL: "a causal language model", MASKED: "a masked language model", ENCODER: "an encoder without a head"}

SHORTEST_CONTEXT, DOUBLINGS = 128, 3  # the shortest context measured, where that leaves so many doublings
# For each token that is wanted, characters of a document that are read (tokens of few texts are longer), and tokens
# that are looked through for documents as long as a window.
CHARACTERS_PER_TOKEN, LOOKED_THROUGH = 100, 8


class EvaluationInterrupted(KeyboardInterrupt):
    """Ctrl-C while an evaluation ran; `evaluation` is what was measured until then, not `complete`."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__("interrupted")
        self.evaluation = evaluation


@accepts_settings(CheckpointRef, Evaluate, without=TABLE_KEYS)
def evaluate(
    reference: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    progress: Progress = no_progress,
    **settings: Any,
) -> Evaluation:
    """Measure what a checkpoint's context length is worth, on a text.

    Of language models: the loss by position and by available context, and whether a number that stands far back is
    found again; of encoders: the latter, and whether documents are found. Where the base checkpoint is known, it reads
    the same tokens in pieces, as a user would have to do without the longer context.

    Args:
        reference: As in `plan_resize`.
        data: Files and folders that hold the text: .txt and its like are a document each, of .jsonl each line is one,
            of .parquet each row; or data sets of the Hub, ``hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]``. Of a file that
            the recipe beside the checkpoint knows to be trained on, by its content, only the windows that training held
            out are read, or all of it with a warning. Unseen go trainings by other tools, the same text in another
            file, changes behind the first 64 MiB, and files beyond the first 200 of a training.
        progress: Told how many tokens were read since the last call, and how many there are to read in all.
        settings: The other fields of `Evaluate`, by name: ``length``, ``tokens``, ``measure``, …; and ``revision``,
            ``subfolder``, ``variant`` and ``model_type`` as in `plan_resize`.

    Raises:
        CtxextendError: The checkpoint or its base cannot be loaded, the text cannot be read or is shorter than one
            window, or a length or a measure does not fit the model.
        EvaluationInterrupted: Ctrl-C; it holds what was measured.
    """
    ref, settings = split_ref(reference, settings)
    return evaluate_checkpoint(ref, Evaluate(data=path_names(data), **settings), progress)


def evaluate_checkpoint(ref: CheckpointRef, settings: Evaluate, progress: Progress = no_progress) -> Evaluation:
    """Measure a checkpoint; see `evaluate`."""
    check_paths(settings.data)
    files = open_files(open_model(ref))
    model = load_eval_model(files, settings.precision, settings.device)
    fitting_measures(model, settings)
    base, warnings, notes = None, list[str](), list(model.notes)
    known = None if settings.no_base else find_base(read_provenance(files.checkpoint), settings.base, ref.tokenizer)
    if known is not None:
        try:
            base = open_eval_model(known.ref, settings.precision, known.hashes, settings.device)
            if base.kind != model.kind:
                what = f"{base.name} is {KINDS[base.kind]}, and {model.name} is {KINDS[model.kind]}."
                raise CheckpointError(what, NAME_BASE)
            notes += base.notes
        except CtxextendError as error:
            if settings.base is not None:
                raise
            base = None
            warnings.append(f"It is not compared with its base checkpoint: {error.message} {NAME_BASE}")
    elif not settings.no_base:
        notes.append(f"It is not compared with its base checkpoint: no recipe names that. {NAME_BASE}")
    run = plan_evaluation(model, base, settings, notes=notes)
    run.warnings = (*warnings, *run.warnings)
    total = run.tokens + run.base_tokens
    try:
        with running(model.model, settings.threads):
            run.measure(lambda tokens: progress(tokens, total))
    except KeyboardInterrupt:
        raise EvaluationInterrupted(run.report(complete=False)) from None
    return run.report(complete=True)


@dataclass(frozen=True)
class TextWindows:
    """Windows of one length, cut from documents."""

    windows: tuple[Ids, ...]  # each of shape (tokens,), in the order of the text
    documents: tuple[Ids, ...]  # those that were read, each of shape (tokens of it,)
    across_documents: bool  # whether windows run over the ends of documents


@dataclass
class EvaluationRun:
    """What is to be measured, and what was so far; it can be measured again once the model's tables were changed."""

    model: EvalModel
    base: EvalModel | None  # None where it is not known
    settings: Evaluate
    text: TextWindows  # in windows as long as the longest context
    losses: LossTask | None  # None where it is not measured, as of the next two
    passkey: PasskeyTask | None
    retrieval: RetrievalTask | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]  # and why something that fits the model is not measured
    started: float = field(default_factory=time.perf_counter)

    @property
    def tasks(self) -> list[LossTask | PasskeyTask | RetrievalTask]:
        """All that is measured."""
        return [task for task in (self.losses, self.passkey, self.retrieval) if task is not None]

    @property
    def tokens(self) -> int:
        """Tokens that the model reads."""
        return sum(task.tokens for task in self.tasks)

    @property
    def base_tokens(self) -> int:
        """Tokens that the base reads."""
        return sum(task.base_tokens for task in (self.losses, self.retrieval) if task is not None)

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """What models are ranked by: losses of each window, or 1 / rank of each document's queries, each shape (k,)."""
        ranking = self.losses or self.retrieval
        return ranking.scores if ranking else ()

    def read_base(self, advance: Callable[[int], None]) -> None:
        """Let the base read everything, once for however many models."""
        for task in (self.losses, self.retrieval):
            if task is not None:
                task.read_base(advance)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Measure everything; what was measured is kept as it goes, and `advance` is told the tokens of each step."""
        self.started = time.perf_counter()
        for task in self.tasks:
            task.measure(advance)

    def report(self, *, complete: bool) -> Evaluation:
        """Return what was measured."""
        model, base, losses = self.model, self.base, self.losses
        found: dict[str, Any] = {}
        for task in self.tasks:
            found |= task.report()
        models = model.name, model.model_type, model.kind, model.max_len
        of_base = base.name if base else None, base.max_len if base else None
        tokens = sum(map(len, self.text.windows[: losses.windows if losses else None]))
        across_documents = self.text.across_documents and losses is not None
        found |= {"documents": len(self.text.documents), "tokens": tokens, "across_documents": across_documents}
        found |= {"seed": self.settings.seed, "precision": str(model.model.dtype).removeprefix("torch.")}
        found |= {"complete": complete, "seconds": round(time.perf_counter() - self.started, 3), "notes": self.notes}
        found["warnings"] = (*self.warnings, *(losses.warnings if losses else ()))
        return Evaluation(*models, *of_base, **found)


def plan_evaluation(
    model: EvalModel,
    base: EvalModel | None,
    settings: Evaluate,
    documents: Iterable[Ids] | None = None,
    *,
    minimum: int = 1,
    notes: Sequence[str] = (),
) -> EvaluationRun:
    """Choose what is measured of loaded models, and cut the text, by default that of the settings; measure nothing yet.

    `documents` are ids, each of shape (tokens of it,), and `least` is the number of windows needed.
    """
    measures = fitting_measures(model, settings)
    longest = max(settings.length, default=max(model.max_len, MIN_LENGTH))
    if longest > model.max_len:
        what = f"{model.name} reads {model.max_len} tokens at once, and a context of {longest} is to be measured."
        raise ResizeError(what, f"Give it more first: ctxextend resize {model.name} --to {longest}")
    lengths = tuple(sorted(set(settings.length))) or context_lengths(longest, base.max_len if base else None)
    size, wanted = longest - model.tokenizer.num_special, max(settings.tokens // longest, 1)
    warnings, notes = list[str](), [*notes, *empty_files(settings.data)]
    if documents is None:
        documents, warnings = read_unseen(model, settings, size * minimum)
    separator, one_each = model.tokenizer.separator, "retrieval" in measures
    text = cut_windows(documents, size, wanted, separator, one_each=one_each, minimum=minimum)
    read = np.concatenate(text.documents)
    check_vocabulary(model, read)
    if base is not None:
        check_same_tokens(model, base, text.windows[0])

    @contextmanager
    def optional() -> Iterator[None]:
        """Make a note of why something cannot be measured, unless it was asked for by its name."""
        try:
            yield
        except DataError as error:
            if settings.measure:
                raise DataError(error.message, "Leave it out of --measure, or give what it needs.") from None
            notes.append(error.message)

    losses, passkey, retrieval = None, None, None
    reader: Scorer | Embedder
    if model.kind == ENCODER:
        reader = embedder = open_embedder(model, settings.batch_size)
        base_embedder = open_embedder(base, settings.batch_size) if base else None
        if "retrieval" in measures:
            with optional():
                retrieval = plan_retrieval(embedder, base_embedder, text.documents, longest)
    else:
        reader = scorer = open_scorer(model, settings.batch_size)
        base_scorer = open_scorer(base, settings.batch_size) if base else None
        if "position" in measures or "context" in measures:
            losses = plan_losses(scorer, base_scorer, text.windows, lengths, settings.seed, measures)
            if text.across_documents:
                across = f"Few documents are as long as a window of {size:,} tokens, so windows run over their ends"
                warnings.append(f"{across}: what stands before an end is of little use behind it.")
    if "passkey" in measures:
        with optional():
            passkey = plan_passkey(reader, read, lengths, tokens=settings.tokens, seed=settings.seed)
            notes += passkey.notes
    return EvaluationRun(model, base, settings, text, losses, passkey, retrieval, tuple(warnings), tuple(notes))


def read_unseen(model: EvalModel, settings: Evaluate, minimum: int) -> tuple[Iterator[Ids], list[str]]:
    """Return the documents of a text, and warnings; of a file that the model was trained on, only what was held out.

    Where that is not known, or fewer than `least` tokens were held out in all, the whole file is read.
    """
    maximum, tokenizer, sources = max(settings.tokens, model.max_len), model.tokenizer, check_paths(settings.data)
    held_out, seen = dict[TextSource, list[Ids]](), list[TextSource]()
    for source in sources if model.trained_on else ():
        runs = [*model.trained_on.get(text_key(fingerprint(source)), ())]
        rule, first, text_field = runs[0] if runs else (None, 0, "")
        if rule is not None and len(runs) == 1 and text_field == settings.text_field:
            count = min(rule.tokens - first, (2 * max(maximum, minimum) + rule.window) * rule.every)
            pieces = read_ids([str(source)], text_field, tokenizer.encode, tokenizer.separator, count)
            windows = held_out_windows(np.concatenate([np.empty(0, np.int64), *pieces]), rule, first)
            held_out[source] = split_documents(windows, tokenizer.separator)
        elif runs:
            seen.append(source)
    tokens = sum(len(piece) for pieces in held_out.values() for piece in pieces)
    if tokens < minimum and len(held_out) == len(sources):
        seen += held_out
        held_out.clear()

    def documents() -> Iterator[Ids]:
        for source in sources:
            texts = read_documents([str(source)], settings.text_field, CHARACTERS_PER_TOKEN * maximum)
            yield from (
                held_out[source] if source in held_out else (_first_tokens(model, text, maximum) for text in texts)
            )

    measured = f": it is measured on {tokens:,} tokens held out of that."
    warnings = trained_on_warnings(model.name, seen, f"{NO_HELD_OUT} text with --data.")
    return documents(), [*warnings, *trained_on_warnings(model.name, held_out, measured)]


def fitting_measures(model: EvalModel, settings: Evaluate) -> tuple[str, ...]:
    """Return the measures to take of a model: those that were asked for, or all that fit it."""
    fitting = FITTING[model.kind]
    for name in settings.measure:
        if name not in fitting:
            what = f"--measure {name} has no meaning for {model.name}, {KINDS[model.kind]}."
            raise ResizeError(what, f"Use {', '.join(fitting)}.")
    return tuple(name for name in MEASURES if name in (settings.measure or fitting))


def cut_windows(
    documents: Iterable[Ids], size: int, wanted: int, separator: int | None, *, one_each: bool = False, minimum: int = 1
) -> TextWindows:
    """Cut documents, each of shape (tokens of it,), into windows of `size` tokens that do not overlap.

    Windows lie inside documents, unless those that are long enough would leave more than half of the text unused, or
    are fewer than `least`: then documents are joined, with a separator between. No more is read than is needed.
    `one_each` takes of each document no window but the first.
    """
    inside, read, tokens = list[Ids](), list[Ids](), 0
    for ids in documents:
        read.append(ids)
        tokens += len(ids)
        inside += _cut(ids, size)[: 1 if one_each else None]
        if len(inside) >= wanted or tokens >= LOOKED_THROUGH * wanted * size:
            break
    inside = inside[:wanted]
    between = np.array([] if separator is None else [separator], np.int64)
    joined = _cut(np.concatenate([between[:0], *(piece for ids in read for piece in (ids, between))]), size)[:wanted]
    if len(joined) < minimum:
        hint, shorter = "", 2 ** max(tokens.bit_length() - 1, 0)
        if minimum == 1 and shorter >= MIN_LENGTH:
            hint = f", or measure shorter windows with --length {shorter}"
        needed = f"one window takes {size:,}" if minimum == 1 else f"{minimum} windows of {size:,} are needed"
        raise DataError(f"The text has {tokens:,} tokens, and {needed}.", f"Name more text with --data{hint}.")
    across = 2 * len(inside) < len(joined) or len(inside) < minimum
    return TextWindows(tuple(joined if across else inside), tuple(read), across)


def _first_tokens(model: EvalModel, text: str, maximum: int) -> Ids:
    """Return the tokens that a text begins with, shape (k,), k ≤ `most`, without tokenizing much more of it."""
    size = 8 * maximum
    while len(ids := model.tokenizer.encode(text[:size])) <= maximum and size < len(text):
        size *= 4
    return ids[:maximum]


def _cut(ids: Ids, size: int) -> list[Ids]:
    return [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]


def context_lengths(longest: int, base: int | None) -> tuple[int, ...]:
    """Return the contexts to measure: doublings from 128, or an eighth of the longest, up to it, and the base's."""
    shortest = max(min(SHORTEST_CONTEXT, longest >> DOUBLINGS), 1)
    found = {longest, base or longest, *(shortest << i for i in range(longest.bit_length()))}
    return tuple(sorted(context for context in found if MIN_LENGTH <= context <= longest))
