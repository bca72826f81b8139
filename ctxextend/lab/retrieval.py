"""Document retrieval with queries cut from text beyond the base checkpoint's context length.

Queries are embedded by the base. Documents are embedded in up to four modes: by the base, truncated
to its context length; by the base, as the mean embedding of consecutive chunks, of the tokens that
the model reads and of the whole document; and by the model. Documents are ranked by cosine.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError
from ctxextend.lab.embedding import EmbeddedChunks, Embedder, cosines, cut_ends
from ctxextend.lab.evaluation_result import (
    CHUNKS,
    MODEL,
    SAME_TEXT,
    SHARE_BOUNDS,
    TRUNCATED,
    Estimate,
    Recall,
    Retrieval,
    TokensRead,
    difference_bounds,
    estimate,
)
from ctxextend.held_out import Ids

QueryScores = NDArray[np.float64]  # shape (queries,)
NamedScores = dict[str, QueryScores]  # by name

QUERY_TOKENS = 40  # or the context length of the base, if shorter
# Where queries start, in sixths between the base's context length and the end of the document.
START_SIXTHS = (2, 3, 4, 5)
# Names of scores.
NDCG_AT_10 = "nDCG@10"
MRR = "MRR"
RECALL_AT_1 = "recall@1"
RECALL_CUTOFFS = (1, 10, 100)
SKIPPED = "Retrieval was skipped: "


@dataclass
class BaseReading:
    """What the base has read of documents and queries, for models of any length."""

    queries: NDArray[np.float32]  # embeddings, shape (q, d)
    documents: EmbeddedChunks
    truncated: NamedScores
    chunks: NamedScores  # of whole documents
    # of chunks of the first tokens of each document, by how many, without special tokens
    same_text: dict[int, NamedScores] = field(default_factory=dict)


@dataclass
class DocumentTask:
    """Documents with queries, and their scores; all texts are without special tokens."""

    model: Embedder
    base: Embedder | None  # None: the model also embeds the queries, and no other mode is measured
    length: int  # maximum tokens of a document that the model reads, special tokens included
    documents: tuple[Ids, ...]
    queries: tuple[Ids, ...]
    # of each query: relevance above 0, by index of the document
    relevant: tuple[Mapping[int, int], ...]
    sample: int = 1  # consecutive queries that are one sample, because they are not independent
    base_reading: BaseReading | None = None
    embedded: NDArray[np.float32] | None = None  # queries, shape (q, d)
    found: dict[str, NamedScores] = field(default_factory=dict)  # scores of queries, by mode

    ranked_by: ClassVar = MRR  # the score that ranks models

    @property
    def read_size(self) -> int:
        """Maximum tokens of a document that the model reads, without special tokens."""
        return self.length - self.model.model.tokenizer.num_special

    @property
    def read_documents(self) -> list[Ids]:
        """The documents as far as the model reads them."""
        return [document[: self.read_size] for document in self.documents]

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""
        texts = self.read_documents
        if self.base is None:
            texts += self.queries
        return sum(map(len, texts)) + len(texts) * self.model.model.tokenizer.num_special

    @property
    def base_tokens(self) -> int:
        """The number of tokens that the base reads, in chunks with special tokens each."""
        if self.base is None:
            return 0
        size = self.base.model.max_text
        special = self.model.model.tokenizer.num_special
        tokens = 0
        for text in (*self.queries, *self.documents):
            chunks = max(-(-len(text) // size), 1)
            tokens += len(text) + special * chunks
        for end in cut_ends(self.documents, self.read_size, size).values():
            tokens += len(end) + special
        return tokens

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Embed queries and documents with the base, whose results are reused for each model.

        Of what the base has read already, for a model of another length too, nothing is read again.
        """
        if self.base is None:
            return
        if self.base_reading is None:
            self.embedded = self.base.embed(self.queries, advance)
            documents = self.base.embed_chunks(self.documents, advance)
            self.base_reading = BaseReading(
                queries=self.embedded,
                documents=documents,
                truncated=self._score(documents.chunks[documents.first[:-1]]),
                chunks=self._score(documents.means),
            )
        reading = self.base_reading
        self.embedded = reading.queries
        self.found = {TRUNCATED: reading.truncated}
        size = self.read_size
        if any(len(document) > size for document in self.documents):
            if size not in reading.same_text:
                reading.same_text[size] = self._score(
                    reading.documents.means_of_starts(size, advance)
                )
            self.found[SAME_TEXT] = reading.same_text[size]
        self.found[CHUNKS] = reading.chunks

    def measure(self, advance: Callable[[int], None]) -> None:
        """Embed documents with the model, after the base if it was not measured yet."""
        self.found.pop(MODEL, None)
        if not self.found:
            self.run_base(advance)
        if self.base is None:
            self.embedded = self.model.embed(self.queries, advance)
        self.found[MODEL] = self._score(self.model.embed(self.read_documents, advance))

    def _score(self, documents: NDArray[np.float32]) -> NamedScores:
        assert self.embedded is not None
        return score_rankings(cosines(self.embedded, documents), self.relevant)

    @property
    def scores(self) -> tuple[QueryScores, ...]:
        """The values that rank models, of each sample's queries, shape (k,)."""
        return tuple(self.found[MODEL][self.ranked_by].reshape(-1, self.sample))

    def mean(self, name: str, mode: str, *, minus: str | None = None) -> Estimate:
        """Return the mean of a score in a mode, or of it minus that in another, paired by query."""
        values = self.found[mode][name]
        bounds = SHARE_BOUNDS
        if minus is not None:
            values = values - self.found[minus][name]
            bounds = difference_bounds(SHARE_BOUNDS)
        return estimate([*values.reshape(-1, self.sample)], bounds)

    @property
    def differences(self) -> dict[str, dict[str, Estimate]]:
        """The means of scores of the model minus those of the base, by mode and name."""
        differences = dict[str, dict[str, Estimate]]()
        for mode in self.found:
            if mode != MODEL:
                differences[mode] = {
                    name: self.mean(name, MODEL, minus=mode) for name in self.found[MODEL]
                }
        return differences

    @property
    def tokens_read(self) -> dict[str, TokensRead]:
        """How many tokens of each document are read, by mode."""
        special = self.model.model.tokenizer.num_special
        counts = [len(document) + special for document in self.documents]
        read = dict[str, TokensRead]()
        for mode in self.found:
            limit: int | None = self.length
            if mode == CHUNKS:
                limit = None
            elif mode == TRUNCATED and self.base is not None:
                limit = self.base.model.max_len
            median = statistics.median_low([min(count, limit or count) for count in counts])
            read[mode] = TokensRead(limit=limit, median=median)
        return read


class RetrievalTask(DocumentTask):
    """Documents that are equally long, with queries cut from them."""

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures."""
        modes = dict[str, Recall]()
        for mode in self.found:
            change = None
            if mode != TRUNCATED:
                change = self.mean(RECALL_AT_1, mode, minus=TRUNCATED)
            modes[mode] = Recall(
                recall=self.mean(RECALL_AT_1, mode),
                reciprocal_rank=self.mean(MRR, mode),
                change=change,
            )
        retrieval = Retrieval(
            length=self.length,
            documents=len(self.documents),
            queries=len(self.queries),
            query_tokens=len(self.queries[0]),
            pooling=self.model.pooling,
            modes=modes,
            tokens_read=self.tokens_read,
            differences=self.differences,
        )
        return {"retrieval": retrieval}


def score_rankings(
    similar: Iterable[NDArray[np.float64]], relevant: Sequence[Mapping[int, int]]
) -> NamedScores:
    """Return the scores of queries by name.

    Of equally similar documents, the least relevant ranks first; so do irrelevant documents if a
    cosine is NaN: a model that embeds all documents alike finds none.

    Args:
        similar: Cosines of each query with all documents, shape (documents,).
        relevant: Relevance above 0 of documents, by index, for each query.

    Source: trec_eval's ndcg_cut_10 (gain: the relevance; discount: log2(rank + 1); ideal: the best
        order of all documents), recip_rank (without a cutoff) and recall_k, as in BEIR and MTEB.
    """
    found = dict[str, list[float]]()
    for cosines_of_query, gains in zip(similar, relevant, strict=True):
        gain = np.zeros(len(cosines_of_query))
        gain[[*gains]] = [*gains.values()]
        for name, score in _score_query(cosines_of_query, gain).items():
            found.setdefault(name, []).append(score)
    return {name: np.array(scores) for name, scores in found.items()}


def _score_query(similar: NDArray[np.float64], gain: NDArray[np.float64]) -> dict[str, float]:
    without_cosine = np.where(gain > 0, -np.inf, np.inf)
    similar = np.where(np.isnan(similar), without_cosine, similar)
    ranked = gain[np.lexsort((gain, -similar))]
    ideal = np.sort(gain)[::-1]
    discount = 1 / np.log2(np.arange(2, len(gain[:10]) + 2))
    scores: dict[str, Any] = {
        NDCG_AT_10: ranked[:10] @ discount / (ideal[:10] @ discount),
        MRR: 1 / (1 + np.argmax(ranked > 0)),
    }
    relevant = np.count_nonzero(gain)
    for cutoff in RECALL_CUTOFFS:
        if cutoff < len(gain):  # recall at the number of documents is always 1
            scores[f"recall@{cutoff}"] = np.count_nonzero(ranked[:cutoff]) / relevant
    return scores


def plan_retrieval(
    model: Embedder, base: Embedder | None, documents: Sequence[Ids], length: int
) -> RetrievalTask:
    """Choose documents of at least `length` tokens, and where to cut queries from them.

    The length includes special tokens.

    Raises:
        DataError: It has no base, its context is too long, or there are too few documents.
    """
    if base is None:
        message = (
            f"{SKIPPED}it needs a base, because queries are cut from text beyond its context "
            "length."
        )
        raise DataError(message, "Pass it with --base.")
    special = base.model.tokenizer.num_special
    base_len = base.model.max_len
    size = length - special
    query_tokens = min(QUERY_TOKENS, base.model.max_text)
    last = size - query_tokens
    if last < base_len:
        needed = base_len + query_tokens + special
        message = (
            f"{SKIPPED}queries from beyond {base_len:,} tokens need a length of at least "
            f"{needed:,}."
        )
        raise DataError(message, f"Pass --length {needed} or more.")
    chosen = tuple(document[:size] for document in documents if len(document) >= size)
    if len(chosen) < 2:
        count = f"{len(chosen)} of {len(documents):,} documents"
        message = (
            f"{SKIPPED}it needs two documents of at least {size:,} tokens, but {count} are that "
            "long."
        )
        raise DataError(message, "Pass longer documents with --data.")
    starts = query_starts(base_len, length, last)
    queries = []
    relevant = []
    for index, document in enumerate(chosen):
        for start in starts:
            queries.append(document[start : start + query_tokens])
            relevant.append({index: 1})
    return RetrievalTask(
        model=model,
        base=base,
        length=length,
        documents=chosen,
        queries=tuple(queries),
        relevant=tuple(relevant),
        sample=len(starts),
    )


def query_starts(first: int, stop: int, last: int) -> tuple[int, ...]:
    """Return where queries start between two tokens of a document, at most at `last`.

    If `last` is below the first token, they start nowhere.
    """
    starts = [first + (stop - first) * sixth // 6 for sixth in START_SIXTHS]
    if starts[-1] > last:
        if last < first:
            return ()
        # Evenly spaced up to the last start that leaves room for a query.
        count = len(START_SIXTHS)
        starts = [first + (last - first) * i // (count - 1) for i in range(count)]
    return tuple(dict.fromkeys(starts))
