"""Held-out rows: judge new rows against the checkpoint's own, the reference rows.

The tables are cut to their first rows and extended back by a method. The same model reads the same
texts, which fit the original table, with the reference rows and with the new ones, so every
measurement has a known best value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError, counted
from ctxextend.evaluation.embedding import Embedder, cosines, open_embedder
from ctxextend.evaluation.eval_model import (
    ENCODER,
    MASKED,
    EvalModel,
    ModelFiles,
    batches,
    check_vocabulary,
)
from ctxextend.evaluation.evaluation_result import (
    COSINE_BOUNDS,
    MIN_SAMPLES,
    MODEL,
    REFERENCE,
    SHARE_BOUNDS,
    AgainstReference,
    Bucket,
    HeldOutRows,
    difference_bounds,
    estimate,
    estimate_loss,
)
from ctxextend.evaluation.evaluation_run import EvaluationRun
from ctxextend.evaluation.losses import (
    NOT_FINITE,
    ReadingMode,
    are_finite,
    choose_masked,
    loss_buckets,
)
from ctxextend.evaluation.retrieval import (
    MRR,
    QUERY_TOKENS,
    RECALL_AT_1,
    query_starts,
    score_rankings,
)
from ctxextend.evaluation.scorer import Scorer, open_scorer
from ctxextend.evaluation.unseen_text import read_unseen
from ctxextend.evaluation.windows import TOKENS_SEARCHED, TextWindows
from ctxextend.held_out import Ids
from ctxextend.recipe import Evaluate
from ctxextend.text_data import empty_files

# What is read of each text: all of it, and its first tokens by themselves, as many as there are
# rows in the cut tables.
BEYOND = "beyond"
SHORT = "short"
# Scores of queries by field of `HeldOutRows.scores`.
RANKING_FIELDS = {"recall": RECALL_AT_1, "reciprocal_rank": MRR}
COSINE_DECIMALS = 6  # embeddings are in float32

# Kept of each text: a language model's losses, (targets,), or an encoder's embedding, (d,).
KeptOfTexts = list[NDArray[Any]]
KeptByPart = dict[str, KeptOfTexts]  # by `BEYOND` and `SHORT`


class HeldOutText(NamedTuple):
    """Texts with tokens beyond the first held-out row."""

    hold_out: int  # the first held-out row, a position
    text: TextWindows
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class LossReader:
    """Reads texts with a language model: what is kept are losses."""

    scorer: Scorer
    texts: tuple[Ids, ...]  # without special tokens
    hold_out: int  # the first held-out row
    seed: int  # for the masks of a masked model

    def read(self, numbers: Sequence[int], texts: Sequence[Ids]) -> KeptOfTexts:
        """Return the losses of the targets of equally long texts, given their numbers."""
        size = len(texts[0])
        context = size + self.scorer.model.tokenizer.num_special
        mode = ReadingMode(
            measure="position",
            name=MODEL,
            scorer=self.scorer,
            context=context,
            share=1,
        )
        targets = []
        for number in numbers:
            indices = self._targets(number)
            targets.append(indices[indices < size])
        return mode.losses(texts, targets, (self._first_target, size))

    @property
    def _first_target(self) -> int:
        """The first token of a text that the model can predict."""
        model = self.scorer.model
        return 0 if model.kind == MASKED or model.tokenizer.before else 1

    @property
    def _first_beyond(self) -> int:
        """The first token of a text at a held-out position."""
        return self.hold_out - len(self.scorer.model.tokenizer.before)

    def _targets(self, number: int) -> Ids:
        """Return the indices of a text's target tokens, of its short text first.

        These are all tokens or, for a masked model, a share of each part.
        """
        short_size = self.hold_out - self.scorer.model.tokenizer.num_special
        short = np.arange(self._first_target, short_size)
        beyond = np.arange(self._first_beyond, len(self.texts[number]))
        if self.scorer.model.kind == MASKED:
            generator = np.random.default_rng([self.seed, number])
            short = choose_masked(short, generator)
            beyond = choose_masked(beyond, generator)
        return np.concatenate([short, beyond])

    def scores(self, read: KeptByPart, reference: KeptByPart) -> KeptByPart:
        """Return the losses at held-out positions, and those of short texts, each of shape (k,)."""
        beyond = []
        for number, losses in enumerate(read[BEYOND]):
            beyond.append(losses[self._targets(number) >= self._first_beyond])
        return {BEYOND: beyond, SHORT: read[SHORT]}

    def compare(self, name: str, new: KeptOfTexts, old: KeptOfTexts) -> AgainstReference:
        """Return losses with the new rows, and with the reference rows."""
        differences = [losses - others for losses, others in zip(new, old, strict=True)]
        return AgainstReference(
            model=estimate_loss(new),
            reference=estimate_loss(old),
            change=estimate(differences),
        )

    def buckets(self, read: KeptByPart, reference: KeptByPart, length: int) -> tuple[Bucket, ...]:
        """Return losses by position, of `length` positions."""
        before = len(self.scorer.model.tokenizer.before)
        positions = [self._targets(number) + before for number in range(len(self.texts))]
        losses_of = {MODEL: read[BEYOND], REFERENCE: reference[BEYOND]}
        return tuple(loss_buckets(positions, losses_of, length))


@dataclass(frozen=True)
class EmbeddingReader:
    """Reads texts with an encoder: what is kept are embeddings."""

    embedder: Embedder
    texts: tuple[Ids, ...]  # without special tokens
    hold_out: int  # the first held-out row
    # embeddings of the queries of each text, (queries, d), with the reference rows
    queries: KeptOfTexts = field(default_factory=list)

    def read(self, numbers: Sequence[int], texts: Sequence[Ids]) -> KeptOfTexts:
        """Return the embeddings of equally long texts."""
        return [*self.embedder.embed(texts)]

    def read_queries(self) -> None:
        """Embed queries that are cut from beyond the first rows of each text."""
        tokenizer = self.embedder.model.tokenizer
        first_beyond = self.hold_out - len(tokenizer.before)
        count = min(QUERY_TOKENS, self.hold_out - tokenizer.num_special)
        self.queries.clear()
        for text in self.texts:
            starts = query_starts(first_beyond, len(text), len(text) - count)
            queries = [text[start : start + count] for start in starts]
            self.queries.append(self.embedder.embed(queries) if queries else np.empty(0))

    def scores(self, read: KeptByPart, reference: KeptByPart) -> KeptByPart:
        """Return cosines to the reference embeddings, and scores of queries, each (k,)."""
        scores = {part: _cosines_of_texts(read[part], reference[part]) for part in (BEYOND, SHORT)}
        counts = [len(queries) for queries in self.queries]
        if not any(counts):
            return scores
        queries = np.concatenate([queries for queries in self.queries if len(queries)])
        texts = np.repeat(np.arange(len(counts)), counts).tolist()
        relevant = [{text: 1} for text in texts]
        found = score_rankings(cosines(queries, np.stack(read[BEYOND])), relevant)
        for name, score in RANKING_FIELDS.items():
            scores[name] = np.split(found[score], np.cumsum(counts)[:-1])
        return scores

    def compare(self, name: str, new: KeptOfTexts, old: KeptOfTexts) -> AgainstReference:
        """Return a score with the new rows, and with the reference rows."""
        bounds = SHARE_BOUNDS if name in RANKING_FIELDS else COSINE_BOUNDS
        differences = [values - others for values, others in zip(new, old, strict=True)]
        return AgainstReference(
            model=estimate(new, bounds),
            reference=estimate(old, bounds),
            change=estimate(differences, difference_bounds(bounds)),
        )


def _cosines_of_texts(embeddings: KeptOfTexts, references: KeptOfTexts) -> KeptOfTexts:
    """Return the cosine of each text to its reference embedding, each of shape (1,)."""
    similar = np.einsum("td,td->t", np.stack(embeddings), np.stack(references), dtype=np.float64)
    return [*np.round(similar, COSINE_DECIMALS)[:, None]]


@dataclass
class ReferenceTask:
    """Texts, read with the reference rows and with the rows that the model has now."""

    reader: LossReader | EmbeddingReader
    model: EvalModel
    batch_size: int | None  # texts per batch; None: as many as fit 4,096 tokens
    hold_out: int  # the first held-out row
    texts: tuple[Ids, ...]  # without special tokens, of at most `model.max_len` tokens with them
    reference: KeptByPart = field(default_factory=dict)
    current: KeptByPart = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, list[Ids]]:
        """What is read of each text, by `BEYOND` and `SHORT`."""
        size = self.hold_out - self.model.tokenizer.num_special
        return {BEYOND: [*self.texts], SHORT: [text[:size] for text in self.texts]}

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads with the rows that it has now."""
        return sum(len(text) for texts in self.parts.values() for text in texts)

    @property
    def base_tokens(self) -> int:
        """The number of tokens that the model reads with the reference rows."""
        return self.tokens

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Read the texts with the reference rows, which the model has now, and queries if any."""
        self.reference = self._read(advance)
        if isinstance(self.reader, EmbeddingReader):
            self.reader.read_queries()

    def measure(self, advance: Callable[[int], None]) -> None:
        """Read the texts with the rows that the model has now."""
        self.current = self._read(advance)

    def _read(self, advance: Callable[[int], None]) -> KeptByPart:
        """Read all texts in the same batches each time, and return what is kept of each."""
        read = dict[str, KeptOfTexts]()
        for part, texts in self.parts.items():
            kept = dict[int, NDArray[Any]]()
            for batch in batches([len(text) for text in texts], self.batch_size):
                inside = [texts[number] for number in batch]
                kept |= zip(batch, self.reader.read(batch, inside), strict=True)
                advance(sum(map(len, inside)))
            read[part] = [kept[number] for number in range(len(texts))]
        return read

    def _scores(self, read: KeptByPart) -> KeptByPart:
        return self.reader.scores(read, self.reference)

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """The values that rank methods: losses at held-out positions, or cosines of embeddings."""
        return tuple(self._scores(self.current)[BEYOND])

    def report(self) -> dict[str, Any]:
        """Return the fields of `Evaluation` that this task measures."""
        references = self._scores(self.reference)
        scores = dict[str, AgainstReference]()
        for name, values in self._scores(self.current).items():
            scores[name] = self.reader.compare(name, values, references[name])
        buckets = tuple[Bucket, ...]()
        if isinstance(self.reader, LossReader):
            buckets = self.reader.buckets(self.current, self.reference, self.model.max_len)
        warnings = []
        if not are_finite(self.current[BEYOND]):
            warnings.append(NOT_FINITE)
        held_out_rows = HeldOutRows(
            hold_out=self.hold_out,
            length=self.model.max_len,
            texts=len(self.texts),
            scores=scores,
            buckets=buckets,
        )
        return {"held_out_rows": held_out_rows, "warnings": warnings}


def read_texts(
    files: ModelFiles, settings: Evaluate, hold_out: int, length: int, advice: str
) -> HeldOutText:
    """Cut documents into texts with tokens beyond the first held-out row; no model is loaded.

    The first text of each document is preferred to the others.

    Args:
        files: The checkpoint.
        settings: Which text to read, and how much.
        hold_out: The first held-out row.
        length: Maximum tokens of a text, special tokens included.
        advice: What to use if the text is too short to choose a method, for the hint.

    Raises:
        DataError: There are too few such texts.
    """
    tokenizer = files.tokenizer
    size = length - tokenizer.num_special
    minimum = hold_out - len(tokenizer.before)
    documents, warnings = read_unseen([files], settings, MIN_SAMPLES * (minimum + 1))
    enough = TOKENS_SEARCHED * max(settings.tokens, MIN_SAMPLES * size)
    read = list[Ids]()
    pieces = list[tuple[int, Ids]]()  # with the number of each inside its document
    tokens = 0
    limited_by = "text"
    for ids in documents:
        read.append(ids)
        for number, start in enumerate(range(0, len(ids), size)):
            piece = ids[start : start + size]
            if len(piece) > minimum:
                pieces.append((number, piece))
                tokens += len(piece)
        if tokens >= enough:
            limited_by = "tokens"
            break
    pieces.sort(key=lambda item: item[0])  # from as many documents as possible
    texts = [piece for _, piece in pieces]
    if len(texts) < MIN_SAMPLES:
        longest = max(map(len, read), default=0) + tokenizer.num_special
        raise _too_few_texts(len(texts), hold_out, longest, advice)
    ends = np.cumsum([len(text) for text in texts])
    count = int(np.searchsorted(ends, settings.tokens, "right"))
    chosen = texts[: max(count, MIN_SAMPLES)]
    if len(chosen) < len(texts) or sum(map(len, chosen)) >= settings.tokens:
        limited_by = "tokens"
    text = TextWindows(windows=tuple(chosen), documents=tuple(read), limited_by=limited_by)
    return HeldOutText(hold_out=hold_out, text=text, warnings=tuple(warnings))


def _too_few_texts(count: int, hold_out: int, longest: int, advice: str) -> DataError:
    found = f"{counted(count, 'text')} of more than {hold_out:,} tokens, each inside one document"
    message = (
        f"--hold-out {hold_out} needs {MIN_SAMPLES} texts, but --data has {found} (the longest "
        f"document has {longest:,})."
    )
    hint = f"Pass more or longer texts with --data, or lower --hold-out. {advice}"
    return DataError(message, hint)


def plan_held_out_rows(
    model: EvalModel, settings: Evaluate, held_out: HeldOutText
) -> EvaluationRun:
    """Return the measurement of a model whose tables have their reference rows.

    Raises:
        CheckpointError: The tokenizer is not that of the model.
        UnsupportedModelError: The model needs more than text.
    """
    text = held_out.text
    check_vocabulary(model, text.ids)
    texts = text.windows
    if model.kind == ENCODER:
        embedder = open_embedder(model, settings.batch_size)
        reader: LossReader | EmbeddingReader = EmbeddingReader(
            embedder=embedder, texts=texts, hold_out=held_out.hold_out
        )
    else:
        scorer = open_scorer(model, settings.batch_size)
        reader = LossReader(
            scorer=scorer, texts=texts, hold_out=held_out.hold_out, seed=settings.seed
        )
    task = ReferenceTask(
        reader=reader,
        model=model,
        batch_size=settings.batch_size,
        hold_out=held_out.hold_out,
        texts=texts,
    )
    return EvaluationRun(
        model=model,
        base=None,
        settings=settings,
        text=text,
        tasks=(task,),
        warnings=held_out.warnings,
        notes=(*model.notes, *empty_files(settings.data)),
    )
