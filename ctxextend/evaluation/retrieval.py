"""Document retrieval with queries cut from text beyond the base checkpoint's context length.

Queries are embedded by the base. Documents are embedded in three modes: by the base, truncated to
its context length; by the base, as the mean embedding of consecutive chunks; and by the model, in
full. Documents are ranked by cosine.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import Embedder, cosines
from ctxextend.evaluation.evaluation_result import (
    CHUNKS,
    MODEL,
    SHARE,
    TRUNCATED,
    Estimate,
    Recall,
    Retrieval,
    difference_bounds,
    estimate,
)
from ctxextend.held_out import Ids

Values = NDArray[np.float64]
QUERY_TOKENS = 40  # or the context length of the base, if shorter
SIXTHS = (
    2,
    3,
    4,
    5,
)  # query starts, in sixths between the base's context length and the end of the document
NDCG, RANK, FIRST = "nDCG@10", "MRR", "recall@1"  # names of scores
SKIPPED = "Retrieval was skipped: "


@dataclass
class DocumentTask:
    """Documents with queries, and the scores so far; all texts are without special tokens."""

    model: Embedder
    base: Embedder | None  # None: the model also embeds the queries, and no other mode is measured
    length: int  # maximum tokens of a document that the model reads, special tokens included
    documents: tuple[Ids, ...]
    queries: tuple[Ids, ...]
    relevant: tuple[
        Mapping[int, int], ...
    ]  # of each query: relevance above 0, by index of the document
    sample: int = 1  # consecutive queries that are one sample, because they are not independent
    embedded: NDArray[np.float32] | None = None  # queries, shape (q, d)
    found: dict[str, dict[str, Values]] = field(
        default_factory=dict
    )  # scores of queries, (q,), by mode and name

    ranked_by: ClassVar = RANK  # the score that ranks models

    def __post_init__(self) -> None:
        self.special = self.model.model.tokenizer.num_special
        self.whole = [document[: self.length - self.special] for document in self.documents]
        self.tokens = sum(
            len(text) + self.special for text in (*self.whole, *(() if self.base else self.queries))
        )
        size, texts = (
            (self.base.model.max_text, (*self.queries, *self.documents)) if self.base else (1, ())
        )
        self.base_tokens = sum(
            len(text) + self.special * max(-(-len(text) // size), 1) for text in texts
        )

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Embed queries and documents with the base, whose results are reused for each model."""
        if self.base is not None:
            self.embedded = self.base.embed(self.queries, advance)
            truncated, chunks = self.base.embed_chunks(self.documents, advance)
            self.found = {TRUNCATED: self._score(truncated), CHUNKS: self._score(chunks)}

    def measure(self, advance: Callable[[int], None]) -> None:
        """Embed full documents with the model, after the base if it was not measured yet."""
        self.found.pop(MODEL, None)
        if not self.found:
            self.run_base(advance)
        if self.base is None:
            self.embedded = self.model.embed(self.queries, advance)
        self.found[MODEL] = self._score(self.model.embed(self.whole, advance))

    def _score(self, documents: NDArray[np.float32]) -> dict[str, Values]:
        """Return the scores of each query by name, given the embeddings of documents, shape
        (documents, d).
        """
        assert self.embedded is not None
        return score_rankings(cosines(self.embedded, documents), self.relevant)

    @property
    def scores(self) -> tuple[Values, ...]:
        """The values that rank models, of each sample's queries, shape (k,)."""
        return tuple(self.found[MODEL][self.ranked_by].reshape(-1, self.sample))

    def mean(self, name: str, mode: str, other: str | None = None) -> Estimate:
        """Return the mean of a score, or of its difference to another mode, paired by query."""
        values = self.found[mode][name]
        bounds = SHARE
        if other is not None:
            values = values - self.found[other][name]
            bounds = difference_bounds(SHARE)
        return estimate([*values.reshape(-1, self.sample)], bounds)


class RetrievalTask(DocumentTask):
    """Documents that are equally long, with queries cut from them."""

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures."""
        if MODEL not in self.found:
            return {}
        modes = dict[str, Recall]()
        for mode in self.found:
            change = None if mode == TRUNCATED else self.mean(FIRST, mode, TRUNCATED)
            modes[mode] = Recall(self.mean(FIRST, mode), self.mean(RANK, mode), change)
        counts = self.length, len(self.documents), len(self.queries), len(self.queries[0])
        pooling = " + ".join(self.model.poolings)
        return {
            "retrieval": Retrieval(
                *counts, pooling, modes, against_chunks=self.mean(RANK, MODEL, CHUNKS)
            )
        }


def score_rankings(
    similar: Iterable[Values], relevant: Sequence[Mapping[int, int]]
) -> dict[str, Values]:
    """Return the scores of queries by name, each of shape (q,), given the cosines of each with all
    documents.

    Of equally similar documents, the least relevant ranks first; so do irrelevant documents if a
    cosine is NaN: a model that embeds all documents alike finds none.

    Source: trec_eval's ndcg_cut_10 (gain: the relevance; discount: log2(rank + 1); ideal: the best
        order of all documents), recip_rank (without a cutoff) and recall_k, as in BEIR and MTEB.
    """
    found: dict[str, list[float]] = {}
    for values, gains in zip(similar, relevant, strict=True):
        gain = np.zeros(len(values))
        gain[[*gains]] = [*gains.values()]
        values = np.where(np.isnan(values), np.where(gain > 0, -np.inf, np.inf), values)
        ranked, ideal = gain[np.lexsort((gain, -values))], np.sort(gain)[::-1]
        discount = 1 / np.log2(np.arange(2, len(gain[:10]) + 2))
        scores: dict[str, Any] = {NDCG: ranked[:10] @ discount / (ideal[:10] @ discount)}
        scores[RANK] = 1 / (1 + np.argmax(ranked > 0))
        # Recall at the number of documents is always 1.
        scores |= {
            f"recall@{k}": np.count_nonzero(ranked[:k]) / len(gains)
            for k in (1, 10, 100)
            if k < len(gain)
        }
        for name, value in scores.items():
            found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


def plan_retrieval(
    model: Embedder, base: Embedder | None, documents: Sequence[Ids], length: int
) -> RetrievalTask:
    """Choose documents of at least `length` tokens, special tokens included, and where to cut
    queries from them.
    """
    if base is None:
        raise DataError(
            f"{SKIPPED}it needs a base, because queries are cut from text beyond its context "
            "length."
        )
    special, base_len = base.model.tokenizer.num_special, base.model.max_len
    size = length - special
    query_tokens = min(QUERY_TOKENS, base.model.max_text)
    last = size - query_tokens
    if last < base_len:
        needed = base_len + query_tokens + special
        raise DataError(
            f"{SKIPPED}queries from beyond {base_len:,} tokens need a length of at least "
            f"{needed:,}."
        )
    chosen = tuple(document[:size] for document in documents if len(document) >= size)
    if len(chosen) < 2:
        count = f"{len(chosen)} of {len(documents):,} documents"
        raise DataError(
            f"{SKIPPED}it needs two documents of at least {size:,} tokens, but {count} are that "
            "long."
        )
    starts = query_starts(base_len, length, last)
    queries = tuple(
        document[start : start + query_tokens] for document in chosen for start in starts
    )
    relevant = tuple({index: 1} for index in range(len(chosen)) for _ in starts)
    return RetrievalTask(model, base, length, chosen, queries, relevant, sample=len(starts))


def query_starts(first: int, stop: int, last: int) -> tuple[int, ...]:
    """Return where queries start between two tokens of a document, at most at `last`; nowhere if
    that is below.
    """
    starts = [first + (stop - first) * sixth // 6 for sixth in SIXTHS]
    if starts[-1] > last:  # evenly spaced up to the last start that leaves room for a query
        starts = (
            [first + (last - first) * i // (len(SIXTHS) - 1) for i in range(len(SIXTHS))]
            if last >= first
            else []
        )
    return tuple(dict.fromkeys(starts))
