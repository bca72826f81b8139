"""Held-out rows: judge new rows against the checkpoint's own, the reference rows.

The tables are cut to their first rows and extended back by a method. The same model reads the same
texts, which fit the original table, with the reference rows and with the new ones, so every
measurement has a known best value.
"""

from collections.abc import Callable, Iterable, Sequence
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
# Fields of `Recall` by score.
RANKING_FIELDS = {"recall": RECALL_AT_1, "reciprocal_rank": MRR}
COSINE_DECIMALS = 6  # embeddings are in float32

# Kept of each text: a language model's losses, (targets,), or an encoder's embedding, (d,).
KeptOfTexts = list[NDArray[Any]]


class HeldOutText(NamedTuple):
    """Texts with tokens beyond the first held-out row."""

    hold_out: int  # the first held-out row, a position
    text: TextWindows
    warnings: tuple[str, ...]


@dataclass
class ReferenceTask:
    """Texts, read with the reference rows and with the rows that the model has now."""

    evaluator: Scorer | Embedder
    hold_out: int  # rows that the cut tables have, without reserved rows
    length: int  # rows that the extended tables have
    texts: tuple[Ids, ...]  # without special tokens, of at most `length` tokens with them
    seed: int  # for the masks of a masked model
    reference: dict[str, KeptOfTexts] = field(default_factory=dict)  # by `BEYOND` and `SHORT`
    current: dict[str, KeptOfTexts] = field(default_factory=dict)  # the same
    # embeddings of the queries of each text, (queries, d), with the reference rows
    queries: KeptOfTexts = field(default_factory=list)

    @property
    def short_size(self) -> int:
        """The number of tokens of the short texts, without special tokens."""
        return self.hold_out - self.evaluator.model.tokenizer.num_special

    @property
    def first_target(self) -> int:
        """The first token of a text that a language model can predict."""
        model = self.evaluator.model
        return 0 if model.kind == MASKED or model.tokenizer.before else 1

    @property
    def first_beyond(self) -> int:
        """The first token of a text at a held-out position."""
        return self.hold_out - len(self.evaluator.model.tokenizer.before)

    @property
    def parts(self) -> dict[str, list[Ids]]:
        """What is read of each text, by `BEYOND` and `SHORT`."""
        return {
            BEYOND: [*self.texts],
            SHORT: [text[: self.short_size] for text in self.texts],
        }

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads with the rows that it has now."""
        return sum(len(text) for texts in self.parts.values() for text in texts)

    @property
    def base_tokens(self) -> int:
        """The number of tokens that the model reads with the reference rows."""
        return self.tokens

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Read the texts with the reference rows, which the model has now.

        An encoder also embeds its queries.
        """
        self.reference = self._read_parts(advance)
        if isinstance(self.evaluator, Embedder):
            self.queries = self._embed_queries(self.evaluator)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Read the texts with the rows that the model has now."""
        self.current = self._read_parts(advance)

    def _read_parts(self, advance: Callable[[int], None]) -> dict[str, KeptOfTexts]:
        return {part: self._read(texts, advance) for part, texts in self.parts.items()}

    def _read(self, texts: Sequence[Ids], advance: Callable[[int], None]) -> KeptOfTexts:
        """Read texts in the same batches each time, and return what is kept of each."""
        kept = dict[int, NDArray[Any]]()
        for batch in batches([len(text) for text in texts], self.evaluator.batch_size):
            inside = [texts[i] for i in batch]
            size = len(inside[0])
            if isinstance(self.evaluator, Embedder):
                values: Iterable[NDArray[Any]] = self.evaluator.embed(inside)
            else:
                values = self._losses(self.evaluator, batch, inside)
            kept |= zip(batch, values, strict=True)
            advance(size * len(batch))
        return [kept[i] for i in range(len(texts))]

    def _losses(self, scorer: Scorer, numbers: Sequence[int], texts: Sequence[Ids]) -> KeptOfTexts:
        """Return the losses of the targets of equally long texts, given their numbers."""
        size = len(texts[0])
        context = size + scorer.model.tokenizer.num_special
        mode = ReadingMode("position", MODEL, scorer, context=context, share=1)
        targets = []
        for number in numbers:
            indices = self._targets(number)
            targets.append(indices[indices < size])
        return [*mode.losses(texts, targets, (self.first_target, size))]

    def _targets(self, number: int) -> Ids:
        """Return the indices of a text's target tokens, of its short text first.

        These are all tokens or, for a masked model, a share of each part.
        """
        short = np.arange(self.first_target, self.short_size)
        beyond = np.arange(self.first_beyond, len(self.texts[number]))
        if self.evaluator.model.kind == MASKED:
            generator = np.random.default_rng([self.seed, number])
            short = choose_masked(short, generator)
            beyond = choose_masked(beyond, generator)
        return np.concatenate([short, beyond])

    def _embed_queries(self, embedder: Embedder) -> KeptOfTexts:
        """Embed queries that are cut from beyond the first rows of each text."""
        count = min(QUERY_TOKENS, self.short_size)
        embedded = []
        for text in self.texts:
            starts = query_starts(self.first_beyond, len(text), len(text) - count)
            queries = [text[start : start + count] for start in starts]
            embedded.append(embedder.embed(queries) if queries else np.empty(0))
        return embedded

    def _scores(self, read: dict[str, KeptOfTexts]) -> dict[str, KeptOfTexts]:
        """Return the scores of what was read, by name; those of each text have shape (k,)."""
        if isinstance(self.evaluator, Scorer):
            return {BEYOND: self._beyond(read[BEYOND]), SHORT: read[SHORT]}
        scores = {part: self._cosines(read[part], self.reference[part]) for part in self.parts}
        return scores | self._rankings(read[BEYOND])

    def _beyond(self, losses: KeptOfTexts) -> KeptOfTexts:
        """Return the losses at held-out positions."""
        beyond = []
        for number, own in enumerate(losses):
            beyond.append(own[self._targets(number) >= self.first_beyond])
        return beyond

    def _cosines(self, embeddings: KeptOfTexts, references: KeptOfTexts) -> KeptOfTexts:
        similar = np.einsum(
            "td,td->t", np.stack(embeddings), np.stack(references), dtype=np.float64
        )
        return [*np.round(similar, COSINE_DECIMALS)[:, None]]

    def _rankings(self, embeddings: KeptOfTexts) -> dict[str, KeptOfTexts]:
        """Return the scores of each text's queries by name; none if no text has queries."""
        counts = [len(queries) for queries in self.queries]
        if not any(counts):
            return {}
        queries = np.concatenate([queries for queries in self.queries if len(queries)])
        texts = np.repeat(np.arange(len(counts)), counts).tolist()
        relevant = [{text: 1} for text in texts]
        found = score_rankings(cosines(queries, np.stack(embeddings)), relevant)
        rankings = dict[str, KeptOfTexts]()
        for name, score in RANKING_FIELDS.items():
            rankings[name] = np.split(found[score], np.cumsum(counts)[:-1])
        return rankings

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """The values that rank methods: losses at held-out positions, or cosines of embeddings."""
        return tuple(self._scores(self.current)[BEYOND])

    def report(self) -> dict[str, Any]:
        """Return the fields of `Evaluation` that this task measures."""
        references = self._scores(self.reference)
        scores = dict[str, AgainstReference]()
        for name, values in self._scores(self.current).items():
            scores[name] = self._compare(name, values, references[name])
        warnings = []
        if not are_finite(self.current[BEYOND]):
            warnings.append(NOT_FINITE)
        held_out_rows = HeldOutRows(
            hold_out=self.hold_out,
            length=self.length,
            texts=len(self.texts),
            scores=scores,
            buckets=self._buckets() if isinstance(self.evaluator, Scorer) else (),
        )
        return {"held_out_rows": held_out_rows, "warnings": warnings}

    def _compare(self, name: str, values: KeptOfTexts, references: KeptOfTexts) -> AgainstReference:
        differences = [new - old for new, old in zip(values, references, strict=True)]
        if isinstance(self.evaluator, Scorer):
            return AgainstReference(
                model=estimate_loss(values),
                reference=estimate_loss(references),
                change=estimate(differences),
            )
        bounds = SHARE_BOUNDS if name in RANKING_FIELDS else COSINE_BOUNDS
        return AgainstReference(
            model=estimate(values, bounds),
            reference=estimate(references, bounds),
            change=estimate(differences, difference_bounds(bounds)),
        )

    def _buckets(self) -> tuple[Any, ...]:
        before = len(self.evaluator.model.tokenizer.before)
        positions = [self._targets(number) + before for number in range(len(self.texts))]
        losses_of = {MODEL: self.current[BEYOND], REFERENCE: self.reference[BEYOND]}
        return tuple(loss_buckets(positions, losses_of, self.length))


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
    if model.kind == ENCODER:
        evaluator: Scorer | Embedder = open_embedder(model, settings.batch_size)
    else:
        evaluator = open_scorer(model, settings.batch_size)
    task = ReferenceTask(
        evaluator=evaluator,
        hold_out=held_out.hold_out,
        length=model.max_len,
        texts=text.windows,
        seed=settings.seed,
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
