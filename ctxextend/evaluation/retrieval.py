"""Documents found by queries that are cut from beyond what the base checkpoint reads.

The queries' vectors are the base's. The documents' are made in three ways: by the base from as much as it reads at
once, by the base as the mean of the vectors of consecutive chunks, and by the model from all of it. Each query's own
document is looked for among all by the cosine of their vectors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import Embedder, ranks
from ctxextend.evaluation.evaluation_result import CHUNKS, MODEL, TRUNCATED, Recall, Retrieval, estimate
from ctxextend.held_out import Ids

QUERY_TOKENS = 40  # of a query, where the base reads so many at once
SIXTHS = (2, 3, 4, 5)  # where queries start, of the way from the base's length to the document's

NOT_MEASURED = "Retrieval was not measured: "


@dataclass
class RetrievalTask:
    """Documents, what is asked of each, and the ranks that were measured so far."""

    model: Embedder
    base: Embedder
    length: int  # tokens of a document, special tokens included
    documents: tuple[Ids, ...]  # without special tokens, all of one length
    starts: tuple[int, ...]  # at which tokens of a document its queries start
    query_tokens: int  # without special tokens
    queries: NDArray[np.float32] = field(init=False)  # their vectors by the base, document by document, shape (q, d)
    # The rank of each query's own document among all, by how documents were read, shape (documents, queries of each).
    ranks: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens that the model reads: all documents, each of which is reported when it was read."""
        return self.length * len(self.documents)

    base_tokens = tokens

    def read_base(self, advance: Callable[[int], None]) -> None:
        """Let the base read everything, once for however many models."""
        queries, truncated, chunks = [], [], []
        for document in self.documents:
            asked = [document[start : start + self.query_tokens] for start in self.starts]
            queries.append(self.base.vectors(asked))
            truncated.append(self.base.vectors([document[: self.base.model.max_text]])[0])
            chunks.append(self.base.mean_of_chunks(document))
            advance(self.length)
        self.queries = np.concatenate(queries)
        self.ranks = {TRUNCATED: self._ranks(truncated), CHUNKS: self._ranks(chunks)}

    def measure(self, advance: Callable[[int], None]) -> None:
        """Let the model read the documents whole, and unless it did so before the base in its ways."""
        self.ranks.pop(MODEL, None)
        if not self.ranks:
            self.read_base(advance)
        rows = []
        for document in self.documents:
            rows.append(self.model.vectors([document])[0])
            advance(self.length)
        self.ranks[MODEL] = self._ranks(rows)

    def _ranks(self, vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.int64]:
        """Return the rank of each query's own document, from the vectors of documents, each of shape (d,)."""
        shape = len(self.documents), len(self.starts)
        return ranks(self.queries, np.stack(vectors), np.repeat(np.arange(shape[0]), shape[1])).reshape(shape)

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """What models are ranked by: 1 / rank of each document's queries, shape (k,)."""
        return tuple(1 / self.ranks[MODEL])

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that was measured."""
        if MODEL not in self.ranks:
            return {}
        truncated = self.ranks[TRUNCATED]
        modes = {way: recall_of(own, None if way == TRUNCATED else truncated) for way, own in self.ranks.items()}
        pooling = " + ".join(self.base.poolings)
        found = Retrieval(self.length, len(self.documents), truncated.size, self.query_tokens, pooling, modes)
        return {"retrieval": found}


def plan_retrieval(model: Embedder, base: Embedder | None, documents: Sequence[Ids], length: int) -> RetrievalTask:
    """Choose documents, ids of shape (k,), of `length` tokens with the special ones, and where to cut queries."""
    if base is None:
        raise DataError(f"{NOT_MEASURED}queries are cut from what the base cannot read, and the base is not known.")
    special, old = base.model.tokenizer.num_special, base.model.max_len
    size, query_tokens = length - special, min(QUERY_TOKENS, base.model.max_text)
    last = size - query_tokens
    if last < old:
        needed = old + query_tokens + special
        raise DataError(f"{NOT_MEASURED}a query beyond {old:,} tokens needs a length of {needed:,} or more.")
    chosen = tuple(document[:size] for document in documents if len(document) >= size)
    if len(chosen) < 2:
        has = f"{len(chosen) or 'none'} of {len(documents):,}"
        raise DataError(f"{NOT_MEASURED}it needs two documents of {size:,} tokens or more, and there is {has}.")
    starts = [old + (length - old) * sixth // 6 for sixth in SIXTHS]
    if starts[-1] > last:  # evenly, from the old length to the last place where a query fits
        starts = [old + (last - old) * i // (len(SIXTHS) - 1) for i in range(len(SIXTHS))]
    return RetrievalTask(model, base, length, chosen, tuple(dict.fromkeys(starts)), query_tokens)


def recall_of(found: NDArray[np.int64], truncated: NDArray[np.int64] | None) -> Recall:
    """Return what ranks, shape (documents, queries of each), come to, documents the samples, and against truncation."""
    first = (found == 1).astype(np.float64)
    change = None if truncated is None else estimate(list(first - (truncated == 1)))
    return Recall(estimate(list(first)), estimate(list(1 / found)), change)
