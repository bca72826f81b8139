"""Document retrieval with queries cut from text beyond the base checkpoint's context length.

Queries are embedded by the base. Documents are embedded in three modes: by the base, truncated to its context length;
by the base, as the mean embedding of consecutive chunks; and by the model, in full. Documents are ranked by cosine.
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

QUERY_TOKENS = 40  # or the context length of the base, if shorter
SIXTHS = (2, 3, 4, 5)  # query starts, in sixths between the base's context length and the end of the document

SKIPPED = "Retrieval was skipped: "


@dataclass
class RetrievalTask:
    """Documents, their queries, and the ranks so far."""

    model: Embedder
    base: Embedder
    length: int  # tokens of a document, special tokens included
    documents: tuple[Ids, ...]  # without special tokens, all equally long
    starts: tuple[int, ...]  # where queries start in a document
    query_tokens: int  # without special tokens
    queries: NDArray[np.float32] = field(init=False)  # embedded by the base, document by document, shape (q, d)
    # Rank of each query's own document among all documents, by mode, shape (documents, queries per document).
    ranks: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""
        return self.length * len(self.documents)

    base_tokens = tokens

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Embed queries and documents with the base, whose results are reused for each model."""
        queries, truncated, chunks = [], [], []
        for document in self.documents:
            texts = [document[start : start + self.query_tokens] for start in self.starts]
            queries.append(self.base.embed(texts))
            truncated.append(self.base.embed([document[: self.base.model.max_text]])[0])
            chunks.append(self.base.embed_chunks(document))
            advance(self.length)
        self.queries = np.concatenate(queries)
        self.ranks = {TRUNCATED: self._ranks(truncated), CHUNKS: self._ranks(chunks)}

    def measure(self, advance: Callable[[int], None]) -> None:
        """Embed full documents with the model, after the base if it was not measured yet."""
        self.ranks.pop(MODEL, None)
        if not self.ranks:
            self.run_base(advance)
        embeddings = []
        for document in self.documents:
            embeddings.append(self.model.embed([document])[0])
            advance(self.length)
        self.ranks[MODEL] = self._ranks(embeddings)

    def _ranks(self, documents: Sequence[NDArray[np.float32]]) -> NDArray[np.int64]:
        """Return the rank of each query's own document, given the embeddings of documents, each of shape (d,)."""
        shape = len(self.documents), len(self.starts)
        return ranks(self.queries, np.stack(documents), np.repeat(np.arange(shape[0]), shape[1])).reshape(shape)

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """The values that rank models: 1 / rank for each document's queries, shape (k,)."""
        return tuple(1 / self.ranks[MODEL])

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures."""
        if MODEL not in self.ranks:
            return {}
        truncated = self.ranks[TRUNCATED]
        modes = {
            mode: recall_at_1(values, None if mode == TRUNCATED else truncated) for mode, values in self.ranks.items()
        }
        pooling = " + ".join(self.base.poolings)
        sizes = self.length, len(self.documents), truncated.size, self.query_tokens
        against_chunks = estimate(list(1 / self.ranks[MODEL] - 1 / self.ranks[CHUNKS]))
        return {"retrieval": Retrieval(*sizes, pooling, modes, against_chunks)}


def plan_retrieval(model: Embedder, base: Embedder | None, documents: Sequence[Ids], length: int) -> RetrievalTask:
    """Choose documents of at least `length` tokens, special tokens included, and where to cut queries from them."""
    if base is None:
        raise DataError(f"{SKIPPED}it needs a base, because queries are cut from text beyond its context length.")
    special, base_len = base.model.tokenizer.num_special, base.model.max_len
    size, query_tokens = length - special, min(QUERY_TOKENS, base.model.max_text)
    last = size - query_tokens
    if last < base_len:
        needed = base_len + query_tokens + special
        raise DataError(f"{SKIPPED}queries from beyond {base_len:,} tokens need a length of at least {needed:,}.")
    chosen = tuple(document[:size] for document in documents if len(document) >= size)
    if len(chosen) < 2:
        count = f"{len(chosen)} of {len(documents):,} documents"
        raise DataError(f"{SKIPPED}it needs two documents of at least {size:,} tokens, but {count} are that long.")
    return RetrievalTask(model, base, length, chosen, query_starts(base_len, length, last), query_tokens)


def query_starts(first: int, stop: int, last: int) -> tuple[int, ...]:
    """Return where queries start between two tokens of a document, at most at `last`; nowhere if that is below."""
    starts = [first + (stop - first) * sixth // 6 for sixth in SIXTHS]
    if starts[-1] > last:  # evenly spaced up to the last start that leaves room for a query
        starts = [first + (last - first) * i // (len(SIXTHS) - 1) for i in range(len(SIXTHS))] if last >= first else []
    return tuple(dict.fromkeys(starts))


def recall_at_1(query_ranks: NDArray[np.int64], truncated: NDArray[np.int64] | None) -> Recall:
    """Return recall@1, MRR and the change from truncation, given ranks of shape (documents, queries per document)."""
    first = (query_ranks == 1).astype(np.float64)
    change = None if truncated is None else estimate(list(first - (truncated == 1)))
    return Recall(estimate(list(first)), estimate(list(1 / query_ranks)), change)
