"""Search in a corpus with judged queries: sets in the format of BEIR, and their scores.

Queries are embedded by the base. Documents are embedded as in `ctxextend.evaluation.retrieval`: truncated, in chunks
and in full. Without a base, the model embeds both.

Source: Thakur et al. 2021, BEIR, arXiv:2104.08663; loading and joining as in beir 2 (`GenericDataLoader`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError, one_line
from ctxextend.evaluation.embedding import Embedder, cosines, normalize, read_prompts
from ctxextend.evaluation.eval_model import check_same_tokens, check_vocabulary
from ctxextend.evaluation.evaluation_result import (
    CHUNKS,
    MODEL,
    TRUNCATED,
    Estimate,
    SearchResult,
    SearchScores,
    estimate,
)
from ctxextend.held_out import Ids
from ctxextend.recipe import Evaluate
from ctxextend.text_data import JSON_LINES, json_lines, without_surrogates

Values = NDArray[np.float64]

NDCG, CUTOFF = "nDCG@10", 10
RECALLS = (1, 10, 100)  # k of recall@k; those that reach the number of documents are left out

# Columns of .tsv files without a header; the first tuple has the fields that must be there.
TEXT_COLUMNS = (("_id", "text"),)
QRELS_COLUMNS = (("query-id", "corpus-id", "score"), ("query-id", "iteration", "corpus-id", "score"))  # BEIR's, TREC's


@dataclass(frozen=True)
class SearchSet:
    """Documents, queries with a relevant document, and the relevance of documents."""

    documents: tuple[str, ...]
    queries: tuple[str, ...]
    gains: tuple[Mapping[int, int], ...]  # scores above 0 of each query, by index of the document
    notes: tuple[str, ...] = ()


def read_search_set(settings: Evaluate) -> SearchSet | None:
    """Read and check the search set of an evaluation; None if it has none.

    Raises:
        DataError: A file cannot be read or is empty, an id is unknown or occurs twice, or no query has a relevant
            document.
    """
    if settings.corpus is None:
        return None
    assert settings.queries is not None
    assert settings.qrels is not None
    documents, queries = _read_texts(settings.corpus), _read_texts(settings.queries)
    numbers, gains = {name: index for index, name in enumerate(documents)}, dict[str, dict[int, int]]()
    seen = set[tuple[str, str]]()
    for where, row in _rows(settings.qrels, *QRELS_COLUMNS):
        query, document, score = str(row["query-id"]), str(row["corpus-id"]), str(row["score"])
        for name, known, path in ((query, queries, settings.queries), (document, numbers, settings.corpus)):
            if name not in known:
                raise DataError(f"{where} has the unknown id {name!r}.", f"{path} has no such id.")
        if not score.isdecimal():
            raise DataError(f"{where} has the score {score!r}.", "Use integers from 0, which is not relevant.")
        if (query, document) in seen:
            raise DataError(f"{where} judges document {document!r} for query {query!r} again.", "Keep one judgement.")
        seen.add((query, document))
        if int(score):
            gains.setdefault(query, {})[numbers[document]] = int(score)
    judged = [name for name in queries if name in gains]
    if not judged:
        raise DataError(f"No query in {settings.queries} has a relevant document in {settings.qrels}.")
    without = f"{len(queries) - len(judged):,} of {len(queries):,} queries have no relevant document and are left out."
    notes = (without,) if len(judged) < len(queries) else ()
    chosen = tuple(queries[name] for name in judged), tuple(gains[name] for name in judged)
    return SearchSet(tuple(documents.values()), *chosen, notes)


def _read_texts(path: str) -> dict[str, str]:
    """Return the texts of a corpus or of queries by id, each with its title before it, if any."""
    texts = dict[str, str]()
    for where, row in _rows(path, *TEXT_COLUMNS):
        name, title, text = row["_id"], row.get("title") or "", row["text"]
        if type(name) not in (str, int) or not isinstance(text, str) or not isinstance(title, str):
            raise DataError(f"{where} has an _id, title or text that is not text.", "Use strings.")
        if str(name) in texts:
            raise DataError(f"{where} has the id {name!r} of an earlier line.", "Ids must be unique.")
        texts[str(name)] = without_surrogates(f"{title} {text}".strip())
        if not texts[str(name)]:
            raise DataError(f"{where} has no text.", "Remove it, or add its text.")
    return texts


def _rows(path: str, *shapes: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each row of a .jsonl or .tsv file is, for messages, and its values by field."""
    file, is_empty = Path(path), True
    is_json, required = file.suffix.lower() in JSON_LINES, ", ".join(shapes[0])
    if not is_json and file.suffix.lower() != ".tsv":
        raise DataError(f"{path} is not a .jsonl or .tsv file.", "Convert it, or correct the path.")
    try:
        with file.open(encoding="utf-8-sig") as stream:
            for where, row in json_lines(stream, file) if is_json else _table_rows(stream, file, shapes):
                if not isinstance(row, dict) or not set(shapes[0]) <= row.keys():
                    hint = "Write a JSON object in each line." if is_json else "Separate columns by one tab."
                    raise DataError(f"{where} does not have the fields {required}.", hint)
                yield where, row
                is_empty = False
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path} cannot be read: {one_line(error)}.", "Pass a readable file in UTF-8.") from error
    if is_empty:
        raise DataError(f"{path} has no rows.", f"Each row has the fields {required}.")


def _table_rows(lines: Iterable[str], file: Path, shapes: Sequence[Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """Yield where each row of a .tsv file is, and its values by field; empty with an unknown number of columns.

    The first line is a header if it names all fields of the first shape; else the columns are those of the shape with
    as many. Quotes have no meaning, as in the files of MS MARCO and TREC.
    """
    for number, line in enumerate(lines, start=1):
        cells = line.rstrip("\n").split("\t")
        if number == 1 and set(shapes[0]) <= {*cells}:
            shapes = [cells]
        elif line.strip():
            columns = next((shape for shape in shapes if len(shape) == len(cells)), ())
            yield f"Line {number} of {file}", dict(zip(columns, cells, strict=False))


def score_rankings(cosines_by_query: Iterable[Values], gains: Sequence[Mapping[int, int]]) -> dict[str, Values]:
    """Return the scores of each query by name, each of shape (queries,), given its cosines with all documents.

    Of equally similar documents, the least relevant ranks first; so do irrelevant documents if a cosine is NaN.

    Source: trec_eval's ndcg_cut_10 (gain: the score; discount: log2(rank + 1); ideal: the highest scores of the query),
        recip_rank (without a cutoff) and recall_k, as in BEIR and MTEB.
    """
    found: dict[str, list[float]] = {}
    for similar, relevant in zip(cosines_by_query, gains, strict=True):
        gain = np.zeros(len(similar))
        gain[[*relevant]] = [*relevant.values()]
        similar = np.where(np.isnan(similar), np.where(gain > 0, -np.inf, np.inf), similar)
        ranked, ideal = gain[np.lexsort((gain, -similar))], np.sort(gain)[::-1]
        discount = 1 / np.log2(np.arange(2, len(gain[:CUTOFF]) + 2))
        scores: dict[str, Any] = {NDCG: ranked[:CUTOFF] @ discount / (ideal[:CUTOFF] @ discount)}
        scores["MRR"] = 1 / (1 + np.argmax(ranked > 0))
        # Recall at the number of documents is always 1.
        scores |= {f"recall@{k}": np.count_nonzero(ranked[:k]) / len(relevant) for k in RECALLS if k < len(gain)}
        for name, value in scores.items():
            found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


@dataclass
class SearchTask:
    """A search set as tokens without special tokens, and the scores so far."""

    model: Embedder
    base: Embedder | None
    queries: tuple[Ids, ...]
    gains: tuple[Mapping[int, int], ...]  # as in `SearchSet`
    documents: tuple[Ids, ...]  # cut to the model's length
    chunks: tuple[Ids, ...]  # of all documents, as the base reads them; empty without a base
    chunk_counts: tuple[int, ...]  # chunks of each document
    result: SearchResult  # without scores
    embedded: NDArray[np.float32] | None = None  # queries, shape (q, d)
    found: dict[str, dict[str, Values]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""
        return self._count(self.documents) + (0 if self.base else self._count(self.queries))

    @property
    def base_tokens(self) -> int:
        """The number of tokens that the base reads."""
        return self._count((*self.queries, *self.chunks)) if self.base else 0

    def _count(self, texts: Sequence[Ids]) -> int:
        return sum(map(len, texts)) + len(texts) * self.model.model.tokenizer.num_special

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Embed queries and documents with the base, whose results are reused for each model."""
        if self.base is None:
            return
        self.embedded = self.base.embed(self.queries, advance)
        chunks, counts = self.base.embed(self.chunks, advance), np.array(self.chunk_counts)
        first = counts.cumsum() - counts  # the first chunk is the truncated document
        means = np.add.reduceat(chunks, first)  # times the number of chunks
        self.found = {TRUNCATED: self._score(chunks[first]), CHUNKS: self._score(normalize(means))}

    def measure(self, advance: Callable[[int], None]) -> None:
        """Embed full documents with the model, after the base if it was not measured yet."""
        self.found.pop(MODEL, None)
        if self.base is None:
            self.embedded = self.model.embed(self.queries, advance)
        elif self.embedded is None:
            self.run_base(advance)
        self.found[MODEL] = self._score(self.model.embed(self.documents, advance))

    def _score(self, documents: NDArray[np.float32]) -> dict[str, Values]:
        """Return the scores of each query by name, given the embeddings of documents, shape (documents, d)."""
        assert self.embedded is not None
        exact = documents.astype(np.float64)
        return score_rankings((cosines(query, exact) for query in self.embedded), self.gains)

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """The values that rank models: nDCG@10 of each query, shape (1,)."""
        return tuple(self.found[MODEL][NDCG][:, None])

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures."""
        if MODEL not in self.found:
            return {}
        modes = dict[str, SearchScores]()
        for mode, found in self.found.items():
            scores = {name: estimate([*values[:, None]]) for name, values in found.items()}
            modes[mode] = SearchScores(scores, self._change(mode, TRUNCATED) if mode != TRUNCATED else None)
        return {"search": replace(self.result, modes=modes, against_chunks=self._change(MODEL, CHUNKS))}

    def _change(self, mode: str, other: str) -> Estimate | None:
        """Return the difference in nDCG@10 of two modes, paired by query; None without a base."""
        if other not in self.found:
            return None
        return estimate([*(self.found[mode][NDCG] - self.found[other][NDCG])[:, None]])


def plan_search(model: Embedder, base: Embedder | None, texts: SearchSet, length: int) -> SearchTask:
    """Tokenize a search set, and cut its documents to `length` tokens for the model and into chunks for the base."""
    tokenizer, reader = model.model.tokenizer, (base or model).model
    query_prompt, document_prompt = read_prompts(model.model.root)

    documents = [tokenizer.encode(document_prompt + text) for text in texts.documents]
    queries = [tokenizer.encode(query_prompt + text)[: reader.max_text] for text in texts.queries]
    check_vocabulary(model.model, np.concatenate([*documents, *queries]))
    prompt = min(len(tokenizer.encode(document_prompt)), reader.max_text // 2)  # each chunk repeats it
    chunks, size, counts = list[Ids](), reader.max_text - prompt, list[int]()
    check_same_tokens(model.model, reader, documents[0])
    for document in documents if base else ():
        starts = range(prompt, max(len(document), prompt + 1), size)
        chunks += [np.concatenate([document[:prompt], document[start : start + size]]) for start in starts]
        counts.append(len(starts))
    longer = [sum(len(text) > size for text in documents) for size in (length - tokenizer.num_special, reader.max_text)]
    result = SearchResult(
        length=length,
        documents=len(documents),
        queries=len(queries),
        longer_than_model=longer[0],
        longer_than_base=longer[1] if base else None,
        pooling=" + ".join(model.poolings),
        modes={},
    )
    whole = tuple(document[: length - tokenizer.num_special] for document in documents)
    return SearchTask(model, base, tuple(queries), texts.gains, whole, tuple(chunks), tuple(counts), result)
