"""Held-out rows: judge new rows against the checkpoint's own, the reference rows.

The tables are cut to their first rows and extended back by a method. The same model reads the same
texts, which fit the original table, with the reference rows and with the new ones, so every
measurement has a known best value.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError, counted
from ctxextend.evaluation.embedding import Embedder, cosines, open_embedder
from ctxextend.evaluation.eval_model import (
    ENCODER,
    MASKED,
    EvalModel,
    ResizableFiles,
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
    split_by_text,
)
from ctxextend.evaluation.retrieval import (
    MRR,
    QUERY_TOKENS,
    RECALL_AT_1,
    query_starts,
    score_rankings,
)
from ctxextend.evaluation.scorer import Losses, Scorer, open_scorer
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.evaluation.unseen_text import read_unseen
from ctxextend.evaluation.windows import SEARCH_FACTOR, TextWindows
from ctxextend.held_out import Ids
from ctxextend.recipe import Evaluate
from ctxextend.text_data import empty_files

# Names of `HeldOutRows.scores`: of each text beyond the first held-out row, of the short texts, and
# of queries.
BEYOND_CUT = "beyond"
SHORT = "short"
RANKING_FIELDS = {"recall": RECALL_AT_1, "reciprocal_rank": MRR}
COSINE_DECIMALS = 6  # embeddings are in float32

# One array per text: what a model returns of it, which is a language model's losses, (targets,), or
# an encoder's embedding, (d,); or scores that are computed from these, (k,).
ArrayPerText = list[NDArray[Any]]
Scores = dict[str, ArrayPerText]  # by name, as in `HeldOutRows.scores`


class TextPart(Enum):
    """A part of each text that a model reads by itself."""

    WHOLE = auto()  # the text as it is, which reaches beyond the first held-out row
    SHORT = auto()  # the first tokens, as many as fit the cut tables


Outputs = dict[TextPart, ArrayPerText]  # what a model returns of each part of the texts


class HeldOutText(NamedTuple):
    """Texts with tokens beyond the first held-out row."""

    hold_out: int  # the first held-out row, a position
    text: TextWindows
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class TextParts:
    """Texts of which two parts are read: each text as it is, and its first tokens by themselves.

    A model reads special tokens around a text, here one on each side. With 8 rows in the cut
    tables, of a text of 11 tokens::

        positions    0   1   2   3   4   5   6   7   8   9  10  11  12
        whole text  [B]  0   1   2   3   4   5   6   7   8   9  10  [A]    first_beyond is 7
        short text  [B]  0   1   2   3   4   5  [A]                        short_size is 6
    """

    texts: tuple[Ids, ...]  # without special tokens, each of more than `first_beyond` tokens
    hold_out: int  # the first held-out row, a position
    tokenizer: TextTokenizer

    @property
    def first_beyond(self) -> int:
        """The index of the first token of a whole text at a held-out position."""
        return self.hold_out - len(self.tokenizer.before)

    @property
    def short_size(self) -> int:
        """The number of tokens of a short text."""
        return self.hold_out - self.tokenizer.num_special

    @cached_property
    def by_part(self) -> dict[TextPart, list[Ids]]:
        """What is read of each text."""
        return {
            TextPart.WHOLE: list(self.texts),
            TextPart.SHORT: [text[: self.short_size] for text in self.texts],
        }

    @property
    def tokens(self) -> int:
        """The number of tokens of all parts of all texts."""
        total = 0
        for texts in self.by_part.values():
            total += sum(len(text) for text in texts)
        return total


class PartReader(Protocol):
    """Reads the texts with one kind of model, and scores what it returns."""

    def read(self, part: TextPart, numbers: Sequence[int]) -> ArrayPerText:
        """Return what the model returns of a part of some texts, given their numbers.

        All of these parts have the same number of tokens.
        """

    def keep_reference(self, outputs: Outputs) -> None:
        """Keep what the model returns with the reference rows, which it still has."""

    def scores_of(self, outputs: Outputs) -> Scores:
        """Return the scores of outputs, with the reference rows or with others."""

    def compare(self, name: str, new: ArrayPerText, old: ArrayPerText) -> AgainstReference:
        """Compare the scores of a name with the new rows and with the reference rows."""

    def buckets(self, outputs: Outputs) -> tuple[Bucket, ...]:
        """Return the losses of whole texts by position, next to those of the reference rows."""


@dataclass(kw_only=True)
class ReferenceTask:
    """Texts, read with the reference rows and with the rows that the model has now.

    It is an evaluation task (`task.Task`) whose base is the same model with its reference rows:
    `run_base` reads all texts before the rows are replaced, and `measure` reads them after it, once
    for each method. `report` and `scores` are of the last measurement.
    """

    reader: PartReader
    parts: TextParts
    model: EvalModel  # texts have at most its `max_len` tokens, special tokens included
    batch_size: int | None  # texts per batch; None: as many as fit 4,096 tokens
    reference_outputs: Outputs = field(default_factory=dict)  # with the reference rows
    current_outputs: Outputs = field(default_factory=dict)  # with the rows of the last measurement

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads with the rows that it has now."""
        return self.parts.tokens

    @property
    def base_tokens(self) -> int:
        """The number of tokens of the texts that the model reads with the reference rows.

        Queries, which are short, are not counted.
        """
        return self.parts.tokens

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Read the texts with the reference rows, which the model must have now."""
        self.reference_outputs = self._read_all(advance)
        self.reader.keep_reference(self.reference_outputs)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Read the texts with the rows that the model has now."""
        self.current_outputs = self._read_all(advance)

    def _read_all(self, advance: Callable[[int], None]) -> Outputs:
        """Read both parts of all texts, in the same batches each time."""
        outputs = Outputs()
        for part, texts in self.parts.by_part.items():
            sizes = [len(text) for text in texts]
            output_of_text = dict[int, NDArray[Any]]()
            for batch in batches(sizes, self.batch_size):
                output_of_text.update(zip(batch, self.reader.read(part, batch), strict=True))
                advance(sum(sizes[number] for number in batch))
            outputs[part] = [output_of_text[number] for number in range(len(texts))]
        return outputs

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """The values that rank methods: losses at held-out positions, or cosines of embeddings."""
        return tuple(self.reader.scores_of(self.current_outputs)[BEYOND_CUT])

    def report(self) -> dict[str, Any]:
        """Return the fields of `Evaluation` that this task measures."""
        old = self.reader.scores_of(self.reference_outputs)
        compared = dict[str, AgainstReference]()
        for name, new in self.reader.scores_of(self.current_outputs).items():
            compared[name] = self.reader.compare(name, new, old[name])
        warnings = []
        if not are_finite(self.current_outputs[TextPart.WHOLE]):
            warnings.append(NOT_FINITE)
        held_out_rows = HeldOutRows(
            hold_out=self.parts.hold_out,
            length=self.model.max_len,
            texts=len(self.parts.texts),
            scores=compared,
            buckets=self.reader.buckets(self.current_outputs),
        )
        return {"held_out_rows": held_out_rows, "warnings": warnings}


class TextTargets(NamedTuple):
    """The indices of the target tokens of a whole text, sorted, each of shape (k,)."""

    short: Ids  # targets that the short text has too
    beyond: Ids  # targets at held-out positions

    @property
    def all(self) -> Ids:
        """All targets, the short text's first."""
        return np.concatenate([self.short, self.beyond])

    def select_beyond(self, losses: Losses) -> Losses:
        """Return the losses at held-out positions, given the losses of all targets."""
        return losses[len(self.short) :]


@dataclass(kw_only=True)
class ReferenceLosses:
    """A `PartReader` of language models: outputs are the losses of the targets of texts."""

    parts: TextParts
    scorer: Scorer
    seed: int  # for the masks of a masked model
    reference: Outputs = field(default_factory=dict)  # with the reference rows

    def read(self, part: TextPart, numbers: Sequence[int]) -> ArrayPerText:
        """Return the losses of each text's targets, in the order of `TextTargets.all`."""
        texts = [self.parts.by_part[part][number] for number in numbers]
        targets = [self._targets_in(part, number) for number in numbers]
        size = len(texts[0])
        mode = ReadingMode.of_whole_texts(self.scorer, size)
        losses: list[Losses] = mode.score(texts, targets, range(self._first_target, size))
        return losses

    def keep_reference(self, outputs: Outputs) -> None:
        """Keep the losses with the reference rows."""
        self.reference = outputs

    def _targets_in(self, part: TextPart, number: int) -> Ids:
        """Return the targets in a part of a text."""
        targets = self._targets(number)
        return targets.short if part == TextPart.SHORT else targets.all

    @property
    def _is_masked(self) -> bool:
        return self.scorer.model.kind == MASKED

    @property
    def _first_target(self) -> int:
        """The index of the first token of a text that the model can predict."""
        if self._is_masked or self.parts.tokenizer.before:
            return 0
        return 1  # nothing precedes the first token of the text

    def _targets(self, number: int) -> TextTargets:
        """Return the targets of a text: all tokens or, for a masked model, a share of each part.

        They are the same with the reference rows and with the new ones.
        """
        short = np.arange(self._first_target, self.parts.short_size)
        beyond = np.arange(self.parts.first_beyond, len(self.parts.texts[number]))
        if self._is_masked:
            generator = np.random.default_rng([self.seed, number])
            short = choose_masked(short, generator)
            beyond = choose_masked(beyond, generator)
        return TextTargets(short=short, beyond=beyond)

    def scores_of(self, outputs: Outputs) -> Scores:
        """Return the losses at held-out positions, and those of short texts, each of shape (k,)."""
        beyond = list[NDArray[Any]]()
        for number, losses in enumerate(outputs[TextPart.WHOLE]):
            beyond.append(self._targets(number).select_beyond(losses))
        return {BEYOND_CUT: beyond, SHORT: outputs[TextPart.SHORT]}

    def compare(self, name: str, new: ArrayPerText, old: ArrayPerText) -> AgainstReference:
        """Return losses with the new rows, and with the reference rows."""
        return AgainstReference(
            model=estimate_loss(new),
            reference=estimate_loss(old),
            change=estimate(_differences(new, old)),
        )

    def buckets(self, outputs: Outputs) -> tuple[Bucket, ...]:
        """Return the losses of whole texts by position, next to those of the reference rows."""
        before = len(self.parts.tokenizer.before)
        positions = list[Ids]()
        for number in range(len(self.parts.texts)):
            positions.append(self._targets(number).all + before)
        losses_of = {
            MODEL: outputs[TextPart.WHOLE],
            REFERENCE: self.reference[TextPart.WHOLE],
        }
        return tuple(loss_buckets(positions, losses_of, self.scorer.model.max_len))


@dataclass(kw_only=True)
class ReferenceEmbeddings:
    """A `PartReader` of encoders: outputs are the embeddings of texts, which have length 1."""

    parts: TextParts
    embedder: Embedder
    reference: Outputs = field(default_factory=dict)  # with the reference rows
    # Embeddings of the queries of each text, (queries, d), with the reference rows; they serve all
    # measurements.
    queries: ArrayPerText = field(default_factory=list)

    def keep_reference(self, outputs: Outputs) -> None:
        """Keep the embeddings with the reference rows, and embed the queries with these rows."""
        self.reference = outputs
        self.queries = self._read_queries()

    def read(self, part: TextPart, numbers: Sequence[int]) -> ArrayPerText:
        """Return the embeddings of texts, each of shape (d,)."""
        texts = [self.parts.by_part[part][number] for number in numbers]
        return [*self.embedder.embed(texts)]

    def _read_queries(self) -> ArrayPerText:
        """Embed the queries of each text, which are cut from its tokens at held-out positions.

        A text with fewer tokens there than a query has none.
        """
        size = min(QUERY_TOKENS, self.parts.short_size)
        no_queries = np.empty((0, self._width), np.float32)
        embedded = list[NDArray[Any]]()
        for text in self.parts.texts:
            last_start = len(text) - size
            starts = query_starts(first=self.parts.first_beyond, stop=len(text), last=last_start)
            queries = [text[start : start + size] for start in starts]
            embedded.append(self.embedder.embed(queries) if queries else no_queries)
        return embedded

    @property
    def _width(self) -> int:
        """The width d of embeddings."""
        return len(self.reference[TextPart.WHOLE][0])

    def scores_of(self, outputs: Outputs) -> Scores:
        """Return cosines to the reference embeddings, and scores of queries, each (k,).

        The cosines of the reference embeddings themselves are 1. Queries are the same for all
        outputs.
        """
        whole = outputs[TextPart.WHOLE]
        short = outputs[TextPart.SHORT]
        scores = {
            BEYOND_CUT: _cosines_of_texts(whole, self.reference[TextPart.WHOLE]),
            SHORT: _cosines_of_texts(short, self.reference[TextPart.SHORT]),
        }
        if any(len(queries) for queries in self.queries):
            scores |= self._query_scores(np.stack(whole))
        return scores

    def _query_scores(self, documents: NDArray[np.float32]) -> Scores:
        """Rank all texts, (texts, d), for each query; return scores by field, (queries,) per text.

        The text that a query was cut from is the one to find.
        """
        counts = [len(queries) for queries in self.queries]
        text_of_query = np.repeat(np.arange(len(counts)), counts)  # [0, 0, 1] of 2 queries and 1
        relevant = [{text: 1} for text in text_of_query.tolist()]
        all_queries = np.concatenate(self.queries)
        found = score_rankings(cosines(all_queries, documents), relevant)
        scores = Scores()
        for name, score in RANKING_FIELDS.items():
            scores[name] = split_by_text(found[score], counts)
        return scores

    def compare(self, name: str, new: ArrayPerText, old: ArrayPerText) -> AgainstReference:
        """Return a score with the new rows, and with the reference rows."""
        bounds = SHARE_BOUNDS if name in RANKING_FIELDS else COSINE_BOUNDS
        return AgainstReference(
            model=estimate(new, bounds),
            reference=estimate(old, bounds),
            change=estimate(_differences(new, old), difference_bounds(bounds)),
        )

    def buckets(self, outputs: Outputs) -> tuple[Bucket, ...]:
        """Return nothing: embeddings of whole texts have no losses by position."""
        return ()


def _differences(new: ArrayPerText, old: ArrayPerText) -> ArrayPerText:
    """Return new minus old scores of each text, each of shape (k,)."""
    return [values - others for values, others in zip(new, old, strict=True)]


def _cosines_of_texts(embeddings: ArrayPerText, references: ArrayPerText) -> ArrayPerText:
    """Return the cosine of each text to its reference embedding, each of shape (1,).

    It is the dot product, since all embeddings have length 1.
    """
    products = np.einsum("td,td->t", np.stack(embeddings), np.stack(references), dtype=np.float64)
    return [*np.round(products, COSINE_DECIMALS)[:, None]]


def read_texts(
    files: ResizableFiles, settings: Evaluate, hold_out: int, length: int, advice: str
) -> HeldOutText:
    """Cut documents into texts with tokens beyond the first held-out row; no model is loaded.

    The first text of each document is preferred to the others.

    Args:
        files: The checkpoint.
        settings: Which text to read, and how much.
        hold_out: The first held-out row.
        length: Maximum tokens of a text, special tokens included.
        advice: The end of the error's hint: what to use if the text is too short.

    Raises:
        DataError: There are too few such texts.
    """
    tokenizer = files.tokenizer
    max_text = length - tokenizer.num_special
    min_text = hold_out - len(tokenizer.before) + 1  # the last token is at a held-out position
    tokens_needed = MIN_SAMPLES * min_text
    documents, warnings = read_unseen([files], settings, tokens_needed)
    found = _find_texts(documents, requested=settings.tokens, min_text=min_text, max_text=max_text)
    if len(found.texts) < MIN_SAMPLES:
        longest = max(map(len, found.documents), default=0) + tokenizer.num_special
        raise _too_few_texts(len(found.texts), hold_out, longest, advice)
    chosen = _choose_texts(found.texts, settings.tokens)
    text = TextWindows(
        windows=tuple(chosen),
        documents=tuple(found.documents),
        limited_by=_limited_by(found, chosen, settings.tokens),
    )
    return HeldOutText(hold_out=hold_out, text=text, warnings=tuple(warnings))


class FoundTexts(NamedTuple):
    """Texts that are long enough, and the documents that they were cut from."""

    texts: list[Ids]  # the first text of each document, then the second ones, and so on
    documents: list[Ids]  # those that were read
    stopped_early: bool  # since there were enough texts


def _limited_by(found: FoundTexts, chosen: Sequence[Ids], requested: int) -> str:
    """Return what limited the texts: ``text`` if all were chosen and are too few, or ``tokens``."""
    is_all_chosen = not found.stopped_early and len(chosen) == len(found.texts)
    is_too_little = sum(map(len, chosen)) < requested
    return "text" if is_all_chosen and is_too_little else "tokens"


def _find_texts(
    documents: Iterator[Ids], *, requested: int, min_text: int, max_text: int
) -> FoundTexts:
    """Cut documents into texts, until these have several times the tokens that are needed.

    Args:
        documents: Token ids of each document, shape (tokens,).
        requested: Tokens of all texts that will be chosen.
        min_text: Minimum tokens of a text; shorter ones are left out.
        max_text: Maximum tokens of a text.
    """
    enough = SEARCH_FACTOR * max(requested, MIN_SAMPLES * max_text)
    read = list[Ids]()
    texts_by_number = defaultdict[int, list[Ids]](list)  # number of a text inside its document
    total = 0
    stopped_early = False
    for ids in documents:
        read.append(ids)
        for number, start in enumerate(range(0, len(ids), max_text)):
            text = ids[start : start + max_text]
            if len(text) >= min_text:
                texts_by_number[number].append(text)
                total += len(text)
        if total >= enough:
            stopped_early = True
            break
    texts = list[Ids]()
    for number in sorted(texts_by_number):
        texts += texts_by_number[number]
    return FoundTexts(texts=texts, documents=read, stopped_early=stopped_early)


def _choose_texts(texts: Sequence[Ids], most: int) -> list[Ids]:
    """Return the first texts with at most `most` tokens in all, but at least `MIN_SAMPLES`."""
    chosen = list[Ids]()
    total = 0
    for text in texts:
        total += len(text)
        if total > most and len(chosen) >= MIN_SAMPLES:
            break
        chosen.append(text)
    return chosen


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
    parts = TextParts(texts=text.windows, hold_out=held_out.hold_out, tokenizer=model.tokenizer)
    batch_size = settings.batch_size
    reader: PartReader
    if model.kind == ENCODER:
        reader = ReferenceEmbeddings(parts=parts, embedder=open_embedder(model, batch_size))
    else:
        scorer = open_scorer(model, batch_size)
        reader = ReferenceLosses(parts=parts, scorer=scorer, seed=settings.seed)
    task = ReferenceTask(reader=reader, parts=parts, model=model, batch_size=batch_size)
    return EvaluationRun(
        model=model,
        base=None,
        settings=settings,
        text=text,
        tasks=(task,),
        warnings=held_out.warnings,
        notes=(*model.notes, *empty_files(settings.data)),
    )
