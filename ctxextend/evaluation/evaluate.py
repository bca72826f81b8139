"""Measure what a checkpoint's context length is worth on a text."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError, CtxextendError, DataError, ResizeError
from ctxextend.evaluation.embedding import Embedder, open_embedder
from ctxextend.evaluation.eval_model import (
    CAUSAL,
    ENCODER,
    MASKED,
    EvalModel,
    TextTokenizer,
    check_same_tokens,
    check_vocabulary,
    load_eval_model,
    open_eval_model,
    open_files,
    share_equal_tensors,
)
from ctxextend.evaluation.evaluation_result import MODEL, Evaluation
from ctxextend.evaluation.losses import LossMeasure, WindowLosses, plan_losses, sum_up_contexts, sum_up_positions
from ctxextend.evaluation.passkey import PasskeyTask, measure_passkey, plan_passkey, report_passkey
from ctxextend.evaluation.retrieval import (
    BaseVectors,
    RetrievalTask,
    embed_by_base,
    embed_documents,
    plan_retrieval,
    rank_documents,
    report_retrieval,
)
from ctxextend.evaluation.scoring import Scorer, batches, open_scorer
from ctxextend.evaluation.text_windows import TextWindows, context_lengths, cut_windows
from ctxextend.plan.find_tables import open_model
from ctxextend.progress import Progress, no_progress
from ctxextend.provenance import find_base
from ctxextend.recipe import LEAST_LENGTH, MEASURES, CheckpointRef, Evaluate
from ctxextend.text_data import TEXT_FIELD, check_paths, path_names, read_documents

# What each kind of model can be measured by.
FITTING = {
    CAUSAL: ("position", "context", "passkey"),
    MASKED: ("position", "context", "passkey"),
    ENCODER: ("passkey", "retrieval"),
}
KINDS = {CAUSAL: "a causal language model", MASKED: "a masked language model", ENCODER: "an encoder without a head"}

# Characters of a file that are read for each token that is wanted: words of few languages are longer.
CHARACTERS_PER_TOKEN = 100
# Those that are tokenized at first, which most often is enough: a tokenizer needs some 160 bytes for each.
CHARACTERS_AT_FIRST = 8

# With fewer windows a standard error is itself a guess.
FEW_WINDOWS = 8

NO_BASE = "Retrieval was not measured: queries are cut from what the original cannot read, and that is not known."
WHOLE_LOGITS = "Its head cannot be parted from the model, so the logits of a window are held whole."
ACROSS_DOCUMENTS = (
    "Few documents are as long as a window of {:,} tokens, so windows run over their ends: what stands before an end "
    "is of little use behind it."
)


class EvaluationInterrupted(KeyboardInterrupt):
    """Ctrl-C while an evaluation ran.

    Attributes:
        evaluation: What was measured until then, `complete` false.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__("interrupted")
        self.evaluation = evaluation


def evaluate(
    reference: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    original: str | os.PathLike[str] | None = None,
    alone: bool = False,
    length: Sequence[int] = (),
    tokens: int = 65_536,
    batch_size: int | None = None,
    precision: str = "auto",
    seed: int = 0,
    measure: Sequence[str] = (),
    text_field: str = TEXT_FIELD,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    family: str | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """Measure what a checkpoint's context length is worth, on a text.

    Of language models: the loss by position and by available context, and whether a number that stands far back is
    found again; of encoders: the latter, and whether documents are found. Where the base checkpoint is known, it reads
    the same tokens in pieces, as a user would have to do without the longer context.

    Args:
        reference: As in `plan_resize`.
        data: Files and folders that hold the text: .txt and its like are a document each, of .jsonl each line is one,
            of .parquet each row; or data sets of the Hub, ``hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]``.
        original: The base checkpoint; None is what the recipe beside the checkpoint says, if there is one.
        alone: Whether nothing is compared with the base.
        length: Contexts to measure, in tokens; empty is doublings up to the model's own.
        tokens: Tokens of the text to use, at most; every one is read several times.
        batch_size: Windows that are read at once; None is as many as hold 4,096 tokens.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: fp32 on a CPU, bf16 on an accelerator that has it.
        seed: Random seed of masks and numbers.
        measure: Which measures to take: ``position``, ``context``, ``passkey``, ``retrieval``; empty is all that fit.
        text_field: The key of a line of .jsonl, or the column, that holds the text.
        revision: As in `plan_resize`.
        subfolder: As in `plan_resize`.
        variant: As in `plan_resize`.
        family: As in `plan_resize`.
        progress: Told how many tokens were read since the last call, and how many there are to read in all.

    Raises:
        SourceError: Nothing is at that reference, or it cannot be reached.
        CheckpointError: A file is missing or malformed, transformers cannot load it, or the base does not fit.
        UnsupportedModelError: The model has no learned position table, or reads one text and writes another.
        DataError: The text cannot be read, or is shorter than one window.
        ResizeError: A length that the model does not read, or a measure that does not fit it.
        EvaluationInterrupted: Ctrl-C; it holds what was measured.
    """
    settings = Evaluate(
        data=path_names(data),
        original=None if original is None else os.fspath(original),
        alone=alone,
        length=tuple(length),
        tokens=tokens,
        batch_size=batch_size,
        precision=precision,
        seed=seed,
        measure=tuple(measure),
        text_field=text_field,
    )
    ref = CheckpointRef(os.fspath(reference), revision, subfolder, variant, family)
    return evaluate_checkpoint(ref, settings, progress)


def evaluate_checkpoint(ref: CheckpointRef, settings: Evaluate, progress: Progress = no_progress) -> Evaluation:
    """Measure a checkpoint; see `evaluate`.

    Raises:
        CtxextendError: As `evaluate`.
        EvaluationInterrupted: As `evaluate`.
    """
    check_paths(settings.data)
    files = open_files(open_model(ref, typed=("evaluate",)))
    model = load_eval_model(files, settings.precision)
    fitting_measures(model, settings)
    base, warnings, notes = _open_base(files.checkpoint, model, settings)
    run = plan_evaluation(model, base, settings, notes=(*model.notes, *notes))
    run.warnings = (*warnings, *run.warnings)
    if base is not None:
        share_equal_tensors(model, base)
    total = run.tokens_to_read
    try:
        run.measure(lambda tokens: progress(tokens, total))
    except KeyboardInterrupt:
        raise EvaluationInterrupted(run.report(complete=False)) from None
    return run.report(complete=True)


def _open_base(
    checkpoint: Checkpoint, model: EvalModel, settings: Evaluate
) -> tuple[EvalModel | None, tuple[str, ...], tuple[str, ...]]:
    """Return the base of a checkpoint, with warnings and notes; None where none is named and none can be found.

    Raises:
        CtxextendError: One was named that cannot be opened.
        CheckpointError: It is another kind of model.
    """
    base = None if settings.alone else find_base(checkpoint, settings.original)
    if base is None:
        hint = "No recipe says what it was made of: name that with --original to compare with it."
        return None, (), () if settings.alone else (hint,)
    try:
        found = open_eval_model(base.ref, settings.precision, base.hashes)
        _check_kind(model, found)
    except CtxextendError as error:
        if settings.original is not None:
            raise
        return None, (f"What it was made of cannot be compared with it: {error.message} Name it with --original.",), ()
    return found, (), found.notes


def _check_kind(model: EvalModel, base: EvalModel) -> None:
    if base.kind != model.kind:
        raise CheckpointError(
            f"{base.name} is {KINDS[base.kind]}, and {model.name} is {KINDS[model.kind]}.",
            "Name what it was made of: --original.",
        )


@dataclass(frozen=True)
class BaseReadings:
    """What a base gives, where it is read once for several models."""

    windows: tuple[WindowLosses, ...]  # empty where no loss is measured
    vectors: BaseVectors | None  # None where documents are not looked for


@dataclass
class EvaluationRun:
    """What is to be measured, and what was so far."""

    reader: Scorer | Embedder  # of the model
    base_reader: Scorer | Embedder | None  # None where the base is not known
    settings: Evaluate
    text: TextWindows  # in windows as long as the longest context
    losses: LossMeasure | None  # None where it is not measured, as of the next two
    passkey: PasskeyTask | None
    retrieval: RetrievalTask | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]  # and why something that was asked for is not measured
    base: BaseReadings | None = None  # from `read_base`; None reads the base along with the model
    started: float = field(default_factory=time.perf_counter)
    windows: list[WindowLosses] = field(default_factory=list)
    cells: dict[tuple[int, float], float] = field(default_factory=dict)  # of the passkey, by length and depth
    ranks: Mapping[str, NDArray[np.int64]] | None = None  # from `rank_documents`

    @property
    def tokens_to_read(self) -> int:
        """Tokens that the model and its base read in all."""
        losses = self.losses.tokens_to_read * len(self.text.windows) if self.losses else 0
        passkey = self.passkey.all_tokens if self.passkey else 0
        return losses + passkey + (2 * self.retrieval.tokens if self.retrieval else 0)

    @property
    def base_tokens(self) -> int:
        """Those of them that the base reads."""
        losses = self.losses.only(base=True).tokens_to_read * len(self.text.windows) if self.losses else 0
        return losses + (self.retrieval.tokens if self.retrieval else 0)

    def read_base(self, advance: Callable[[int], None]) -> None:
        """Read all that the model is compared with; `advance` is told the tokens of each step."""
        windows = tuple(self._read(self.losses.only(base=True), advance)) if self.losses else ()
        self.base = BaseReadings(windows, self._base_vectors(advance))

    def _base_vectors(self, advance: Callable[[int], None]) -> BaseVectors | None:
        if self.retrieval is None or not isinstance(self.base_reader, Embedder):
            return None
        return embed_by_base(self.base_reader, self.retrieval, advance)

    def fresh(self) -> "EvaluationRun":
        """Return the same run with nothing measured but the base."""
        return replace(self, started=time.perf_counter(), windows=[], cells={}, ranks=None)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Measure everything; what was measured is kept as it goes, and `advance` is told the tokens of each step."""
        if self.losses:
            losses = self.losses.only(base=False) if self.base else self.losses
            for window in self._read(losses, advance):
                others = self.base.windows[len(self.windows)] if self.base else window
                self.windows.append(window.merged(others))
        if self.passkey is not None:
            for length, depth, share in measure_passkey(self.passkey, self.reader):
                self.cells[length, depth] = share
                advance(self.passkey.tokens(length))
        by_base = self.base.vectors if self.base else self._base_vectors(advance)
        if self.retrieval and by_base and isinstance(self.reader, Embedder):
            vectors = embed_documents(self.reader, self.retrieval, advance)
            self.ranks = rank_documents(by_base, vectors, self.retrieval)

    def _read(self, losses: LossMeasure, advance: Callable[[int], None]) -> Iterator[WindowLosses]:
        """Yield the losses of all windows."""
        for batch in batches([losses.length] * len(self.text.windows), self.settings.batch_size):
            yield from losses.read(batch[0], [self.text.windows[i] for i in batch])
            advance(losses.tokens_to_read * len(batch))

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """What models are ranked by: losses of each window, or 1 / rank of each document's queries, each shape (k,)."""
        if self.ranks is not None:
            return tuple(1 / self.ranks[MODEL])
        return tuple(window.by_position[MODEL] for window in self.windows)

    def report(self, *, complete: bool) -> Evaluation:
        """Return what was measured."""
        model, base = self.reader.model, self.base_reader.model if self.base_reader else None
        warnings = self.warnings
        length = self.losses.length if self.losses else 0
        if 0 < len(self.windows) < FEW_WINDOWS:
            warnings += (
                f"{len(self.windows)} windows of {length:,} tokens were read: standard errors of so few "
                "are rough. Raise --tokens, or name more text.",
            )
        losses = [found for window in self.windows for found in window.by_position.values()]
        losses += [found for window in self.windows for found in window.by_context.values()]
        if not all(np.isfinite(found).all() for found in losses):
            warnings += (
                "Some losses are no finite numbers: a model gives NaN or infinity, or a token no chance at all.",
            )
        retrieval = None
        if self.retrieval and self.ranks and isinstance(self.base_reader, Embedder):
            retrieval = report_retrieval(self.retrieval, self.ranks, self.base_reader.pooling)
        return Evaluation(
            source=model.name,
            family=model.family,
            kind=model.kind,
            max_len=model.max_len,
            original=base.name if base else None,
            original_max_len=base.max_len if base else None,
            documents=len(self.text.documents),
            tokens=sum(map(len, self.text.windows[: len(self.windows) if self.losses else None])),
            across_documents=self.text.across_documents and self.losses is not None,
            seed=self.settings.seed,
            precision=str(model.model.dtype).removeprefix("torch."),
            positions=sum_up_positions(self.windows, length),
            contexts=sum_up_contexts(self.windows, base.max_len if base else None),
            passkey=report_passkey(self.passkey, self.cells) if self.passkey and self.cells else None,
            retrieval=retrieval,
            complete=complete,
            seconds=round(time.perf_counter() - self.started, 3),
            warnings=warnings,
            notes=self.notes,
        )


def plan_evaluation(
    model: EvalModel,
    base: EvalModel | None,
    settings: Evaluate,
    documents: Iterable[NDArray[np.int64]] | None = None,
    *,
    least: int = 1,
    notes: tuple[str, ...] = (),
) -> EvaluationRun:
    """Choose what is measured of models that are loaded, and cut the text; nothing is measured yet.

    Args:
        model: What is measured.
        base: Its base checkpoint; None where that is not known.
        settings: How.
        documents: Ids of the text to take in place of that which the settings name, each of shape (tokens of it,).
        least: Windows needed.
        notes: What should be known before anything else.

    Raises:
        CheckpointError: The two cut texts into different tokens, or how an encoder pools cannot be read.
        DataError: The text cannot be read, or is shorter than the windows needed, or a measure that was asked for by
            its name cannot be taken.
        ResizeError: A length that the model does not read, or a measure that does not fit it.
        UnsupportedModelError: The model does not read a text alone, or pools in a way that is not known here.
    """
    measures, lengths = fitting_measures(model, settings), _lengths(model, base, settings)
    size = max(lengths) - model.tokenizer.num_special
    wanted = max(settings.tokens // max(lengths), 1)
    documents = _documents(model, settings) if documents is None else documents
    separator, one_each = model.tokenizer.separator, "retrieval" in measures
    text = cut_windows(documents, size, wanted, separator, one_each=one_each, least=least)
    if base is not None:
        check_same_tokens(model, base, text.windows[0])
    reader, base_reader = _reader(model, settings), _reader(base, settings) if base else None
    has_losses = bool({"position", "context"} & set(measures))
    losses: LossMeasure | None = None
    if has_losses and isinstance(reader, Scorer) and not isinstance(base_reader, Embedder):
        losses = plan_losses(reader, base_reader, lengths, settings.seed, measures)
    passkey: PasskeyTask | str | None = None
    if "passkey" in measures:
        filler = np.concatenate(text.documents)
        passkey = plan_passkey(model, filler, lengths, tokens=settings.tokens, seed=settings.seed)
    retrieval: RetrievalTask | str | None = None
    if "retrieval" in measures:
        retrieval = NO_BASE if base is None else plan_retrieval(base, text.documents, max(lengths))
    why_not = tuple(task for task in (passkey, retrieval) if isinstance(task, str))
    if why_not and settings.measure:
        raise DataError(why_not[0], "Leave it out of --measure, or give what it needs.")
    notes = (*notes, *(passkey.notes if isinstance(passkey, PasskeyTask) else ()), *why_not)
    return EvaluationRun(
        reader,
        base_reader,
        settings,
        text,
        losses,
        passkey if isinstance(passkey, PasskeyTask) else None,
        retrieval if isinstance(retrieval, RetrievalTask) else None,
        warnings=(ACROSS_DOCUMENTS.format(size),) if has_losses and text.across_documents else (),
        notes=(*notes, WHOLE_LOGITS) if isinstance(reader, Scorer) and not reader.has_separate_head else notes,
    )


def _reader(model: EvalModel, settings: Evaluate) -> Scorer | Embedder:
    return (open_embedder if model.kind == ENCODER else open_scorer)(model, settings.batch_size)


def fitting_measures(model: EvalModel, settings: Evaluate) -> tuple[str, ...]:
    """Return the measures to take of a model: those that were asked for, or all that fit it.

    Raises:
        ResizeError: One that was asked for does not fit.
    """
    fitting = FITTING[model.kind]
    for name in settings.measure:
        if name not in fitting:
            raise ResizeError(
                f"--measure {name} has no meaning for {model.name}, {KINDS[model.kind]}.", f"Use {', '.join(fitting)}."
            )
    return tuple(name for name in MEASURES if name in (settings.measure or fitting))


def _lengths(model: EvalModel, base: EvalModel | None, settings: Evaluate) -> tuple[int, ...]:
    """Return the contexts to measure, the shortest first."""
    if model.max_len < LEAST_LENGTH:
        raise ResizeError(
            f"{model.name} reads {model.max_len} tokens, and the shortest context that is measured has {LEAST_LENGTH}.",
            f"Give it more first: ctxextend resize {model.name} --to {LEAST_LENGTH}",
        )
    longest = max(settings.length, default=model.max_len)
    if longest > model.max_len:
        raise ResizeError(
            f"--length {longest} is more than the {model.max_len} tokens that {model.name} reads.",
            f"Give it more first: ctxextend resize {model.name} --to {longest}",
        )
    return tuple(sorted(set(settings.length))) or context_lengths(longest, base.max_len if base else None)


def _documents(model: EvalModel, settings: Evaluate) -> Iterator[NDArray[np.int64]]:
    wanted = max(settings.tokens, model.max_len)
    for text in read_documents(settings.data, settings.text_field, CHARACTERS_PER_TOKEN * wanted):
        ids = _first_tokens(model.tokenizer, text, wanted)
        check_vocabulary(model, ids)
        yield ids


def _first_tokens(tokenizer: TextTokenizer, text: str, wanted: int) -> NDArray[np.int64]:
    """Return the first tokens of a text, as many as are wanted or all, without tokenizing much more of it."""
    characters = CHARACTERS_AT_FIRST * wanted
    ids = tokenizer.encode(text[:characters])
    while len(ids) <= wanted and characters < len(text):
        characters *= 4
        ids = tokenizer.encode(text[:characters])
    return ids[:wanted]  # a word that was cut off lies behind them
