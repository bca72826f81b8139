"""Documents found by queries that are cut from beyond what the base checkpoint reads.

The queries' vectors are the base's. The documents' are made in three ways: by the base from as much as it reads at
once, by the base as the mean of the vectors of consecutive chunks, and by the model from all of it. Each query's own
document is looked for among all by the cosine of their vectors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.embedding import Embedder, ranks
from ctxextend.evaluation.eval_model import EvalModel
from ctxextend.evaluation.evaluation_result import CHUNKS, MODEL, TRUNCATED, Recall, Retrieval, estimate

Ids = NDArray[np.int64]
Vectors = NDArray[np.float32]

# Tokens of a query, where the base reads so many at once.
QUERY_TOKENS = 40

# Where queries start, in sixths of the way from the base's length to the document's.
SIXTHS = (2, 3, 4, 5)


@dataclass(frozen=True)
class RetrievalTask:
    """Documents, and what is asked of each."""

    length: int  # tokens of a document, special tokens included
    documents: tuple[Ids, ...]  # without special tokens, all of one length
    starts: tuple[int, ...]  # at which tokens of a document its queries start
    query_tokens: int  # without special tokens

    @property
    def tokens(self) -> int:
        """Tokens of all documents, each reading of which is reported as it goes."""
        return self.length * len(self.documents)

    def queries(self, document: Ids) -> list[Ids]:
        """Return the queries cut from a document, each of shape (query_tokens,)."""
        return [document[start : start + self.query_tokens] for start in self.starts]


def plan_retrieval(base: EvalModel, documents: Sequence[Ids], length: int) -> RetrievalTask | str:
    """Choose documents that are long enough, and where to cut queries from them.

    Args:
        base: The encoder that embeds the queries.
        documents: Ids without special tokens, each of shape (k,); every document counts from its own start.
        length: Tokens of a document as it is to be read, special tokens included; at most what the model reads.

    Returns:
        The task, or why there is none.
    """
    special, old = base.tokenizer.num_special, base.max_len
    size, query_tokens = length - special, min(QUERY_TOKENS, base.max_text)
    last = size - query_tokens
    if last < old:
        needed = old + query_tokens + special
        return f"Retrieval was not measured: a query beyond {old:,} tokens needs a length of {needed:,} or more."
    chosen = tuple(document[:size] for document in documents if len(document) >= size)
    if len(chosen) < 2:
        has = f"{len(chosen) or 'none'} of {len(documents):,}"
        return f"Retrieval was not measured: it needs two documents of {size:,} tokens or more, and there is {has}."
    starts = [old + (length - old) * sixth // 6 for sixth in SIXTHS]
    if starts[-1] > last:  # evenly, from the old length to the last place where a query fits
        starts = [old + (last - old) * i // (len(SIXTHS) - 1) for i in range(len(SIXTHS))]
    return RetrievalTask(length, chosen, tuple(dict.fromkeys(starts)), query_tokens)


@dataclass(frozen=True)
class BaseVectors:
    """What the base gives, with which any longer model is compared."""

    queries: Vectors  # document after document, shape (documents · starts, d)
    # Each of shape (documents, d): `TRUNCATED`, of as much as the base reads at once, and `CHUNKS`, the means of those
    # of consecutive chunks.
    documents: Mapping[str, Vectors]


def embed_by_base(base: Embedder, task: RetrievalTask, advance: Callable[[int], None]) -> BaseVectors:
    """Return the vectors of the queries, and of the documents in the two ways in which the base can read them.

    Args:
        base: The base of a model.
        task: From `plan_retrieval`.
        advance: Told the tokens of each document when that was read.
    """
    queries: list[Vectors] = []
    found: dict[str, list[Vectors]] = {TRUNCATED: [], CHUNKS: []}
    for document in task.documents:
        queries.append(base.vectors(task.queries(document)))
        found[TRUNCATED] += list(base.vectors([document[: base.model.max_text]]))
        found[CHUNKS].append(base.mean_of_chunks(document))
        advance(task.length)
    return BaseVectors(np.concatenate(queries), {way: np.stack(rows) for way, rows in found.items()})


def embed_documents(model: Embedder, task: RetrievalTask, advance: Callable[[int], None]) -> Vectors:
    """Return the vectors of whole documents by the longer model, shape (documents, d).

    Args:
        model: The model.
        task: From `plan_retrieval`.
        advance: Told the tokens of each document when that was read.
    """
    rows = []
    for document in task.documents:
        rows.append(model.vectors([document])[0])
        advance(task.length)
    return np.stack(rows)


def rank_documents(base: BaseVectors, vectors: Vectors, task: RetrievalTask) -> dict[str, NDArray[np.int64]]:
    """Return the rank of each query's own document among all, by how documents were read.

    Args:
        base: From `embed_by_base`.
        vectors: From `embed_documents`.
        task: From `plan_retrieval`.

    Returns:
        For `TRUNCATED`, `CHUNKS` and `MODEL` each, shape (documents, queries of each), from 1.
    """
    shape = len(task.documents), len(task.starts)
    owners = np.repeat(np.arange(shape[0]), shape[1])
    ways = {**base.documents, MODEL: vectors}
    return {way: ranks(base.queries, rows, owners).reshape(shape) for way, rows in ways.items()}


def report_retrieval(task: RetrievalTask, found: Mapping[str, NDArray[np.int64]], pooling: str) -> Retrieval:
    """Return what was found, from `rank_documents`."""
    ways = {way: _recall(own, None if way == TRUNCATED else found[TRUNCATED]) for way, own in found.items()}
    return Retrieval(task.length, len(task.documents), found[MODEL].size, task.query_tokens, pooling, ways)


def _recall(found: NDArray[np.int64], truncated: NDArray[np.int64] | None) -> Recall:
    """Return what ranks, shape (documents, queries of each), come to, and how recall differs from truncation's.

    Documents are independent of each other, and not the queries of one: errors are over the means of documents.
    """
    first = (found == 1).astype(np.float64)
    recall, reciprocal_rank = estimate(list(first)), estimate(list(1 / found))
    whole = Recall(recall.mean, recall.error, reciprocal_rank.mean, reciprocal_rank.error)
    if truncated is None:
        return whole
    change = estimate(list(first - (truncated == 1)))
    return replace(whole, change=change.mean, change_error=change.error)
