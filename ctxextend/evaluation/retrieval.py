"""Documents found by queries from what lies beyond the original's length."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.embedding import Embedder, ranks
from ctxextend.evaluation.readers import Reader
from ctxextend.evaluation.reports import CHUNKS, MODEL, TRUNCATED, Recall, Retrieval
from ctxextend.evaluation.statistics import estimate

__all__ = [
    "Readings",
    "RetrievalTask",
    "find_documents",
    "measure_retrieval",
    "plan_retrieval",
    "read_original",
    "read_whole",
    "report_retrieval",
]

Vectors = NDArray[np.float32]

# Tokens of a query, where the original reads so many at once.
QUERY_TOKENS = 40

# Where queries start, in sixths of the way from the original's length to the document's.
SIXTHS = (2, 3, 4, 5)


@dataclass(frozen=True)
class RetrievalTask:
    """Documents, and what is asked of each.

    Attributes:
        length: Tokens of a document, special tokens included.
        documents: Their ids without special tokens, each of the same length.
        starts: At which tokens of a document its queries start.
        query_tokens: Tokens of a query, without special tokens.
    """

    length: int
    documents: tuple[NDArray[np.int64], ...]
    starts: tuple[int, ...]
    query_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of all documents, of which each reading of them tells as it goes."""
        return self.length * len(self.documents)

    def queries(self, document: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the queries cut from a document, each of shape (query_tokens,)."""
        return [document[start : start + self.query_tokens] for start in self.starts]


def plan_retrieval(original: Reader, documents: Sequence[NDArray[np.int64]], length: int) -> RetrievalTask | str:
    """Choose documents that are long enough, and where to cut queries from them.

    Args:
        original: The encoder that embeds the queries.
        documents: Ids without special tokens, each of shape (k,); every document counts from its own start.
        length: Tokens of a document as it is to be read, special tokens included; at most what the model reads.

    Returns:
        The task, or why there is none.
    """
    old, room = original.max_len, length - original.special
    query_tokens = min(QUERY_TOKENS, old - original.special)
    if room - query_tokens < old:
        needed = old + query_tokens + original.special
        return f"Retrieval was not measured: a query beyond {old:,} tokens needs a length of {needed:,} or more."
    chosen = tuple(document[:room] for document in documents if len(document) >= room)
    if len(chosen) < 2:
        has = f"{len(chosen) or 'none'} of {len(documents):,}"
        return f"Retrieval was not measured: it needs two documents of {room:,} tokens or more, and there is {has}."
    return RetrievalTask(length, chosen, _starts(old, length, room - query_tokens), query_tokens)


def _starts(old: int, length: int, last: int) -> tuple[int, ...]:
    """Return where queries start: wholly beyond the old length, and no later than at the last place there is."""
    wanted = [old + (length - old) * sixth // 6 for sixth in SIXTHS]
    if wanted[-1] > last:
        wanted = [old + (last - old) * i // (len(SIXTHS) - 1) for i in range(len(SIXTHS))]
    return tuple(dict.fromkeys(wanted))


@dataclass(frozen=True)
class Readings:
    """What the original gives, with which any longer model is compared.

    Attributes:
        queries: Vectors of the queries, those of a document one behind the other, shape (documents · starts, d).
        documents: Vectors of the documents, each of shape (documents, d): `TRUNCATED`, of as much as the original reads
            at once, and `CHUNKS`, the means of those of consecutive pieces.
        pooling: How the vectors of a text's tokens become one.
    """

    queries: Vectors
    documents: Mapping[str, Vectors]
    pooling: str


def read_original(original: Embedder, task: RetrievalTask, progress: Callable[[int], None]) -> Readings:
    """Read the queries, and the documents in the two ways in which the original can.

    Args:
        original: What a model was made of.
        task: From `plan_retrieval`.
        progress: Told the tokens of each document when that was read.
    """
    queries: list[Vectors] = []
    found: dict[str, list[Vectors]] = {TRUNCATED: [], CHUNKS: []}
    for document in task.documents:
        queries.append(original.vectors(task.queries(document)))
        found[TRUNCATED] += list(original.vectors([document[: original.room]]))
        found[CHUNKS].append(original.mean_of_chunks(document))
        progress(task.length)
    return Readings(np.concatenate(queries), {way: np.stack(rows) for way, rows in found.items()}, original.pooling)


def read_whole(model: Embedder, task: RetrievalTask, progress: Callable[[int], None]) -> Vectors:
    """Return the vectors of whole documents by the model that was given another length, shape (documents, d).

    Args:
        model: The model.
        task: From `plan_retrieval`.
        progress: Told the tokens of each document when that was read.
    """
    rows = []
    for document in task.documents:
        rows.append(model.vectors([document])[0])
        progress(task.length)
    return np.stack(rows)


def find_documents(readings: Readings, vectors: Vectors, task: RetrievalTask) -> dict[str, NDArray[np.int64]]:
    """Return which place each query's own document takes among all, by the way documents were read.

    Args:
        readings: From `read_original`.
        vectors: From `read_whole`.
        task: From `plan_retrieval`.

    Returns:
        For `TRUNCATED`, `CHUNKS` and `MODEL` each, shape (documents, queries of each), from 1.
    """
    shape = len(task.documents), len(task.starts)
    owners = np.repeat(np.arange(shape[0]), shape[1])
    ways = {**readings.documents, MODEL: vectors}
    return {way: ranks(readings.queries, rows, owners).reshape(shape) for way, rows in ways.items()}


def report_retrieval(task: RetrievalTask, places: Mapping[str, NDArray[np.int64]], pooling: str) -> Retrieval:
    """Return what was found, from `find_documents`."""
    ways = {way: _recall(found, None if way == TRUNCATED else places[TRUNCATED]) for way, found in places.items()}
    queries = places[MODEL].size
    return Retrieval(task.length, len(task.documents), queries, task.query_tokens, pooling, ways)


def measure_retrieval(
    model: Embedder, original: Embedder, task: RetrievalTask, progress: Callable[[int], None]
) -> Retrieval:
    """Find each query's own document among all by the cosine of their vectors.

    The queries' vectors are the original's. The documents' are made in three ways: by the original from as much as it
    reads at once, by the original as the mean of the vectors of consecutive chunks, and by the model from all of it.

    Args:
        model: The model that was given another length.
        original: What it was made of.
        task: From `plan_retrieval`.
        progress: Told the tokens of each document whenever that was read, by the original and by the model.
    """
    readings = read_original(original, task, progress)
    places = find_documents(readings, read_whole(model, task, progress), task)
    return report_retrieval(task, places, readings.pooling)


def _recall(places: NDArray[np.int64], base: NDArray[np.int64] | None) -> Recall:
    """Return what ranks, shape (documents, queries of each), come to, and how recall differs from that of others.

    Documents are independent of each other, and not the queries of one: errors are over the means of documents.
    """
    first = (places == 1).astype(np.float64)
    change = (None, None) if base is None else _mean_and_error(first - (base == 1))
    return Recall(*_mean_and_error(first), *_mean_and_error(1 / places), *change)


def _mean_and_error(documents: NDArray[np.float64]) -> tuple[float, float | None]:
    found = estimate(list(documents))
    return found.mean, found.error
