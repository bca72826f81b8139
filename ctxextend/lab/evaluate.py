"""Measure models on one text, side by side, and next to their base."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np

from ctxextend.checkpoint.source import resolve_source
from ctxextend.errors import CheckpointError, CtxextendError, DataError, ResizeError
from ctxextend.held_out import Ids
from ctxextend.keywords import keyword_arguments
from ctxextend.lab import candidates as models
from ctxextend.lab.candidates import LoadedModel, MethodPlans
from ctxextend.lab.eval_model import (
    CAUSAL,
    ENCODER,
    PASS_BASE,
    EvalModel,
    ModelFiles,
    check_same_tokens,
    check_vocabulary,
    load_eval_model,
    open_files,
)
from ctxextend.lab.evaluation import Evaluation, ModelFacts
from ctxextend.lab.measures import Measure, all_measures
from ctxextend.lab.numbers import percent_text
from ctxextend.lab.python_text import default_documents
from ctxextend.lab.reader import Reader
from ctxextend.lab.scores import NATS, SEPARATE, SLIDING, Score, select
from ctxextend.lab.search_set import SearchSet, read_search_set
from ctxextend.lab.stated_files import StatedFiles, open_to_evaluate
from ctxextend.lab.texts import Texts, context_lengths, cut_windows
from ctxextend.lab.unseen_text import read_start, read_unseen
from ctxextend.models.devices import torch_threads
from ctxextend.opening.opened_model import open_model
from ctxextend.progress import Progress, no_progress
from ctxextend.provenance import BaseCheckpoint, find_base, read_provenance
from ctxextend.settings import MIN_WINDOW, NO_BASE, Candidates, CheckpointRef, Evaluate
from ctxextend.text_data import check_texts

PYTHON_TEXT = "The text is Python's documentation. Pass your own with --data."
TRAINED_AND_BASE = (
    "The model was trained and its base was not: differences are those of the new positions and of "
    "the training together. To see the longer context by itself, compare with a base that was "
    "trained on the same text: --base MODEL (evaluate.base in a recipe)."
)
NOT_FINITE = (
    "Some losses are NaN or infinite: a model returns NaN or infinity, or gives a token "
    "probability 0."
)
UNSUITABLE_TEXT = (
    "This text does not show what a longer context is worth: the base reads it worse in sliding "
    "windows, with more context, than in separate ones, with a perplexity {amount} higher. Pass "
    "other text, such as long documents. If no text helps, the base does not use its context."
)


@keyword_arguments(CheckpointRef, Candidates, Evaluate, without=("source", "table"))
def evaluate(
    ref: CheckpointRef,
    candidates: Candidates,
    settings: Evaluate,
    progress: Progress = no_progress,
) -> Evaluation:
    """Measure models on a text, side by side, and next to their base.

    Models are checkpoints as they are or, with ``to``, one checkpoint resized by several methods,
    in memory, with the numbers of the folders that `resize` would write. All read the same windows,
    so differences are paired; the base reads them in sliding windows or chunks, as a user without
    the longer context would.

    Of files that a model's recipe lists as training data (recognised by content), only the held-out
    windows are used, or everything with a warning. Not recognised: training with other tools, the
    same text in another file, changes after the first 64 MiB, and files after the first 200 of a
    training. A causal language model of transformers that cannot be resized is read at the length
    that its files state, or at ``length``.

    Raises:
        CtxextendError: A model or its base cannot be loaded, the text cannot be read or is shorter
            than one window, models are of several kinds or cut the text differently, or a length, a
            method or a measure does not apply.
    """
    return evaluate_models(ref, candidates, settings, progress)


def evaluate_models(
    ref: CheckpointRef,
    candidates: Candidates,
    settings: Evaluate,
    progress: Progress = no_progress,
) -> Evaluation:
    """Measure models; see `evaluate`. `ref` says how they are read, without their name."""
    check_start(settings)
    remarks = Remarks()
    search_set = read_search_set(settings)
    if search_set is not None:
        remarks.notes += search_set.notes
    refs = [replace(ref, source=model) for model in candidates.models]
    files, methods, length = _open_candidates(refs, candidates, settings)
    sample, documents = _open_documents(files, settings, length, search_set, remarks)

    if methods is None:
        loading = models.load_checkpoints(files, settings)
        first = next(loading)
        base = _open_base(files, settings, first[1].kind, remarks)
    else:
        model = load_eval_model(files[0], settings.precision, settings.device)
        name = models.base_name(files[0].name, methods.plans)
        base = models.model_facts(name, files[0], model), model
        loading = models.load_methods(base[0], model, methods)
        first = next(loading)
    remarks.notes += first[1].notes
    if base is not None and methods is None:
        remarks.notes += base[1].notes

    measures = _choose_measures(files[0].name, first[1].kind, settings)
    if base is not None:
        check_same_tokens(first[1], base[1], sample)
    texts = _cut_texts(first[1], base, settings, length, documents, measures, remarks)
    texts = replace(texts, search_set=search_set)
    reader = Reader(first[0].name, first[1], settings.batch_size)
    measures, of_base, of_each = _plan(measures, texts, reader, settings, remarks)
    total = of_base + of_each * (len(files) if methods is None else len(methods.plans))

    started = time.perf_counter()
    scores = list[Score]()
    measured = list[ModelFacts]()
    first_ones = [first] if base is None else [base, first]
    files_of = {one.name: one for one in files}
    with torch_threads(first[1].model, settings.threads):
        for facts, model in chain(first_ones, loading):
            reader = Reader(facts.name, model, settings.batch_size)
            if base is not None and facts is base[0]:
                assert texts.base is not None
                reader = texts.base
            else:
                measured.append(facts)
            reader.advance = partial(_advance, progress, total, facts.name)
            for measure in measures:
                with models.length_errors(files_of.get(facts.source), length):
                    scores += measure.scores(reader, texts)
    remarks.warnings += _doubtful(scores)
    special = first[1].tokenizer.num_special
    return Evaluation(
        models=tuple(measured),
        base=None if base is None else base[0],
        length=length,
        scores=tuple(scores),
        documents=len(texts.documents),
        tokens=sum(len(window) + special for window in texts.windows),
        limited_by=texts.limited_by,
        seed=settings.seed,
        precision=first[1].precision,
        seconds=round(time.perf_counter() - started, 3),
        auto="" if methods is None else methods.auto,
        skipped={} if methods is None else methods.skipped,
        warnings=tuple(dict.fromkeys(remarks.warnings)),
        notes=tuple(dict.fromkeys(remarks.notes)),
    )


@dataclass
class Remarks:
    """What is said before the result, next to it."""

    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def check_start(settings: Evaluate) -> None:
    """Check what can be checked before any library is imported: text and base.

    Raises:
        DataError: A text cannot be read.
        SourceError: The base that the settings name does not exist.
    """
    if settings.data:
        check_texts(settings.data, settings.text_field)
    if settings.base not in (None, NO_BASE):
        resolve_source(settings.base, only_headers=True)


def _open_candidates(
    refs: Sequence[CheckpointRef], candidates: Candidates, settings: Evaluate
) -> tuple[list[ModelFiles], MethodPlans | None, int]:
    """Return the files of the models, the methods if there are any, and the length of a window."""
    files = list[ModelFiles]()
    methods: MethodPlans | None = None
    if candidates.to is not None:
        resizable = open_files(open_model(refs[0]))
        files.append(resizable)
        methods = models.plan_methods(resizable, candidates)
        length = methods.max_len
        if max(settings.length, default=0) > length:
            raise ResizeError(f"--length must be at most --to {length}.", "Use a larger --to.")
    else:
        files += [open_to_evaluate(ref, settings.length) for ref in refs]
        shortest = min(one.max_len for one in files)
        length = max(settings.length, default=max(shortest, MIN_WINDOW))
        for one in files:
            if length > one.max_len:
                message = (
                    f"{one.name} has a context length of {one.max_len}, too short for windows of "
                    f"{length} tokens."
                )
                hint = f"Resize it first: ctxextend resize {one.name} --to {length}"
                raise ResizeError(message, hint)
    for one in files:
        if one.stated_kind == CAUSAL:  # of others, the weights decide
            _choose_measures(one.name, CAUSAL, settings)
    return files, methods, length


def _open_documents(
    files: Sequence[ModelFiles],
    settings: Evaluate,
    length: int,
    search_set: SearchSet | None,
    remarks: Remarks,
) -> tuple[Ids, Iterator[Ids] | None]:
    """Return tokens to compare tokenizers by, and the documents if there are any but a search set.

    Raises:
        DataError: The text is too short for a window.
        CheckpointError: The tokenizers of models differ.
    """
    tokenizer = files[0].tokenizer
    documents: Iterator[Ids] | None = None
    if settings.data:
        documents, warnings = read_unseen(files, settings, length)
        remarks.warnings += warnings
    elif settings.search is None:
        documents = map(tokenizer.encode, default_documents(files[0].checkpoint.source.kind))
        remarks.notes.append(PYTHON_TEXT)
    if documents is not None:
        size = length - tokenizer.num_special
        sample, documents = read_start(documents, size, tokenizer.separator)
    else:
        assert search_set is not None
        sample = tokenizer.encode(search_set.documents[0])
    for one in files[1:]:
        check_same_tokens(one, files[0], sample, "Evaluate models that share a tokenizer.")
    return sample, documents


def _choose_measures(name: str, kind: str, settings: Evaluate) -> list[Measure]:
    """Return the requested measures, by default all that apply to a kind of models.

    Raises:
        ResizeError: A requested one, or the search set, does not apply.
    """
    measures = [measure for measure in all_measures() if kind in measure.kinds]
    names = [measure.name for measure in measures]
    described = f"{name}, {models.KIND_NAMES[kind]}"
    if settings.search is not None and "search" not in names:
        message = f"--search does not apply to {described}."
        raise ResizeError(message, f"Pass text with --data: it measures {', '.join(names)}.")
    for requested in settings.measure:
        if requested not in names:
            message = f"--measure {requested} does not apply to {described}."
            raise ResizeError(message, f"Use {', '.join(names)}.")
    chosen = list[Measure]()
    for measure in measures:
        if measure.name == "search":
            is_chosen = settings.search is not None
        elif settings.measure:
            is_chosen = measure.name in settings.measure
        else:
            is_chosen = bool(settings.data) or settings.search is None
        if is_chosen:
            chosen.append(measure)
    return chosen


def _open_base(
    files: Sequence[ModelFiles], settings: Evaluate, kind: str, remarks: Remarks
) -> LoadedModel | None:
    """Load the base that all recipes name; of several models, one without a recipe is its own base.

    Raises:
        CtxextendError: The base that the settings name cannot be loaded, or is of another kind.
    """
    if settings.base == NO_BASE:
        return None
    bases = dict[str, BaseCheckpoint]()
    for one in files:
        base = find_base(read_provenance(one.checkpoint), settings.base, one.ref.tokenizer)
        if base is None and (len(files) == 1 or isinstance(one, StatedFiles)):
            if not isinstance(one, StatedFiles):  # which has no shorter base
                note = f"Not compared with a base checkpoint: no recipe names one. {PASS_BASE}"
                remarks.notes.append(note)
            return None
        if base is None:
            base = BaseCheckpoint(one.ref, one.checkpoint.weights.fingerprint())
        elif base.provenance and base.provenance.trainable is not None:
            remarks.notes.append(TRAINED_AND_BASE)
        bases[base.fingerprint or base.ref.source] = base
    if len(bases) > 1:
        return None
    (base,) = bases.values()
    name = files[0].name
    try:
        base_files = open_files(open_model(base.ref), base.fingerprint)
        model = load_eval_model(base_files, settings.precision, settings.device)
        if model.kind != kind:
            message = (
                f"{model.name} is {models.KIND_NAMES[model.kind]}, but {name} is "
                f"{models.KIND_NAMES[kind]}."
            )
            raise CheckpointError(message, PASS_BASE)
    except CtxextendError as error:
        if settings.base is not None:
            raise
        warning = f"Not compared with the base checkpoint: {error.message} {PASS_BASE}"
        remarks.warnings.append(warning)
        return None
    names = models.short_names([one.name for one in files])
    base_name = models.base_name(base_files.name, names)
    return models.model_facts(base_name, base_files, model), model


def _cut_texts(
    model: EvalModel,
    base: LoadedModel | None,
    settings: Evaluate,
    length: int,
    documents: Iterable[Ids] | None,
    measures: Sequence[Measure],
    remarks: Remarks,
) -> Texts:
    """Return what is read.

    Raises:
        CheckpointError: The tokenizer has tokens that the model does not have.
    """
    texts = Texts()
    if documents is not None:
        texts = cut_windows(
            documents,
            length - model.tokenizer.num_special,
            max(settings.tokens // length, 1),
            model.tokenizer.separator,
            one_each="retrieval" in (measure.name for measure in measures),
        )
        check_vocabulary(model, np.concatenate(texts.documents))
    reads_windows = any(measure.name != "effective" for measure in measures)
    if texts.across_documents and model.kind != ENCODER and reads_windows:
        remarks.warnings.append(
            f"Few documents have the {length:,} tokens of a window, so windows span several "
            "documents: text before a document's start helps little to predict it."
        )
    lengths = tuple(sorted({*settings.length, length}))
    if not settings.length:
        lengths = context_lengths(length, None if base is None else base[1].max_len)
    reader = None
    if base is not None:
        reader = Reader(base[0].name, base[1], settings.batch_size)
    return replace(texts, length=length, lengths=lengths, seed=settings.seed, base=reader)


def _plan(
    measures: Sequence[Measure],
    texts: Texts,
    reader: Reader,
    settings: Evaluate,
    remarks: Remarks,
) -> tuple[list[Measure], int, int]:
    """Return the measures that the texts suffice for, and how many tokens base and model read.

    Raises:
        DataError: They do not suffice for a measure that was requested, or for any that ranks.
    """
    counts: tuple[list[int], list[int]] = ([], [])
    readers = list[Reader]()
    if texts.base is not None:
        dry_base = replace(texts.base, is_dry=True, advance=counts[0].append, memory={})
        texts = replace(texts, base=dry_base)
        readers.append(dry_base)
    readers.append(replace(reader, is_dry=True, advance=counts[1].append, memory={}))
    possible = list[Measure]()
    failure: DataError | None = None
    for measure in measures:
        try:
            for one in readers:
                for _ in measure.scores(one, texts):
                    pass
        except DataError as error:
            if settings.measure:
                raise
            failure = error
            remarks.notes.append(error.message)
        else:
            possible.append(measure)
    if failure is not None and not possible:
        raise failure
    return possible, sum(counts[0]), sum(counts[1])


def _advance(progress: Progress, total: int, name: str, tokens: int) -> None:
    progress(tokens, total, name)


def _doubtful(scores: Sequence[Score]) -> Iterator[str]:
    """Yield warnings about scores that do not say what a longer context is worth."""
    losses = [*select(scores, unit=NATS)]
    if not all(np.isfinite(values).all() for score in losses for values in score.values):
        yield NOT_FINITE
    sliding = select(losses, measure="position", reading=SLIDING, part=None)
    separate = select(losses, measure="position", reading=SEPARATE, part=None)
    for one, other in zip(sliding, separate, strict=True):
        cost = one.minus(other)
        if cost.outcome == -1:
            yield UNSUITABLE_TEXT.format(amount=percent_text(cost, *cost.percent))
