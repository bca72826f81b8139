"""Search in a corpus with judged queries: sets in the format of BEIR (Thakur et al. 2021,
arXiv:2104.08663).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ctxextend.errors import DataError, one_line
from ctxextend.evaluation.embedding import Embedder, read_prompts
from ctxextend.evaluation.eval_model import check_same_tokens, check_vocabulary
from ctxextend.evaluation.evaluation_result import CHUNKS, MODEL, TRUNCATED, SearchResult
from ctxextend.evaluation.retrieval import NDCG, DocumentTask
from ctxextend.recipe import Evaluate
from ctxextend.text_data import JSON_LINES, json_lines, without_surrogates


class SearchSet(NamedTuple):
    """Documents, queries with a relevant document, and the relevance of documents."""

    documents: tuple[str, ...]
    queries: tuple[str, ...]
    relevant: tuple[
        dict[int, int], ...
    ]  # of each query: relevance above 0, by index of the document
    notes: tuple[str, ...]


def read_search_set(settings: Evaluate) -> SearchSet | None:
    """Read and check the search set of an evaluation; None if it has none."""
    if settings.corpus is None or settings.queries is None or settings.qrels is None:
        return None
    documents, queries = _read_texts(settings.corpus), _read_texts(settings.queries)
    numbers = {name: index for index, name in enumerate(documents)}
    judged: dict[str, dict[int, int]] = {name: {} for name in queries}
    for where, row in read_rows(settings.qrels, "query-id", "corpus-id", "score"):
        query, document, score = str(row["query-id"]), str(row["corpus-id"]), str(row["score"])
        for name, known, path in (
            (query, queries, settings.queries),
            (document, documents, settings.corpus),
        ):
            if name not in known:
                raise DataError(
                    f"{where} has the unknown id {name!r}.",
                    f"Remove the line, or add it to {path}.",
                )
        if not score.isdecimal():
            raise DataError(
                f"{where} has the score {score!r}.", "Use integers from 0, which is not relevant."
            )
        if numbers[document] in judged[query]:
            raise DataError(
                f"{where} judges document {document!r} for query {query!r} again.",
                "Keep one judgement.",
            )
        judged[query][numbers[document]] = int(score)
    chosen = {
        query: above
        for query, pairs in judged.items()
        if (above := {n: s for n, s in pairs.items() if s})
    }
    if not chosen:
        raise DataError(
            f"{settings.qrels} has no score above 0.", "Give each query a relevant document."
        )
    without = (
        f"{len(queries) - len(chosen):,} of {len(queries):,} queries have no relevant document "
        "and are left out."
    )
    texts = tuple(documents.values()), tuple(queries[query] for query in chosen)
    return SearchSet(*texts, tuple(chosen.values()), (without,) * (len(chosen) < len(queries)))


def _read_texts(path: str) -> dict[str, str]:
    """Return the texts of a corpus or of queries by id; a title stands before its text, with a
    space, as in BEIR.
    """
    texts = dict[str, str]()
    for where, row in read_rows(path, "_id", "text"):
        name = row["_id"]
        title = row.get("title") or ""
        text = row["text"]
        if type(name) not in (str, int) or not isinstance(text, str) or not isinstance(title, str):
            raise DataError(f"{where} has an _id, title or text that is not text.", "Use strings.")
        if str(name) in texts:
            raise DataError(
                f"{where} has the id {name!r} of an earlier line.", "Give each its own id."
            )
        texts[str(name)] = without_surrogates(f"{title} {text}".strip())
        if not texts[str(name)]:
            raise DataError(f"{where} has no text.", "Remove it, or add its text.")
    return texts


def read_rows(path: str, *fields: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each row of a .jsonl or .tsv file is, for messages, and its values by field."""
    file = Path(path)
    where = ""
    parse = json_lines if file.suffix.lower() in JSON_LINES else partial(_table_rows, fields)
    try:
        with file.open(encoding="utf-8-sig") as stream:
            for where, row in parse(stream, file):
                if not isinstance(row, dict) or not {*fields} <= row.keys():
                    hint = (
                        "Write a JSON object per line (.jsonl), or separate columns by one tab "
                        "(.tsv)."
                    )
                    raise DataError(f"{where} does not have the fields {', '.join(fields)}.", hint)
                yield where, row
    except (OSError, UnicodeError) as error:
        raise DataError(
            f"{path} cannot be read: {one_line(error)}.", "Pass a readable file in UTF-8."
        ) from error
    if not where:
        raise DataError(f"{path} has no rows.", f"Each row has the fields {', '.join(fields)}.")


def _table_rows(
    fields: Sequence[str], lines: Iterable[str], file: Path
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield where each row of a .tsv file is, and its values by field; no values if it has too few
    or many columns.

    The first line is a header if it names all fields, else columns are in their order. Quotes have
    no meaning. Of the four columns of TREC's judgements, the second is unused.
    """
    columns = fields
    for number, line in enumerate(lines, start=1):
        cells = line.rstrip("\n").split("\t")
        if number == 1 and {*fields} <= {*cells}:
            columns = cells
        elif line.strip():
            if len(columns) == len(fields) == 3 and len(cells) == 4:
                del cells[1]
            is_whole = len(cells) == len(columns)
            yield (
                f"Line {number} of {file}",
                dict(zip(columns, cells, strict=True)) if is_whole else {},
            )


class SearchTask(DocumentTask):
    """A search set as tokens, and the scores so far."""

    ranked_by: ClassVar = NDCG

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures."""
        if MODEL not in self.found:
            return {}
        sizes = [self.length - self.special, *([self.base.model.max_text] if self.base else [])]
        longer = [sum(len(document) > size for document in self.documents) for size in sizes]
        counts = (
            self.length,
            len(self.documents),
            len(self.queries),
            longer[0],
            longer[1] if self.base else None,
        )
        scores = {
            mode: {name: self.mean(name, mode) for name in found}
            for mode, found in self.found.items()
        }
        changes = {
            mode: self.mean(NDCG, mode, TRUNCATED)
            for mode in ((CHUNKS, MODEL) if self.base else ())
        }
        against_chunks = self.mean(NDCG, MODEL, CHUNKS) if self.base else None
        return {
            "search": SearchResult(
                *counts, " + ".join(self.model.poolings), scores, changes, against_chunks
            )
        }


def plan_search(
    model: Embedder, base: Embedder | None, texts: SearchSet, length: int
) -> SearchTask:
    """Tokenize a search set, with the prompts that the model's folder states, for documents of at
    most `length`.
    """
    reader, encode = (base or model).model, model.model.tokenizer.encode
    query_prompt, document_prompt = read_prompts(model.model.root)
    documents = tuple(encode(document_prompt + text) for text in texts.documents)
    queries = tuple(encode(query_prompt + text)[: reader.max_text] for text in texts.queries)
    check_vocabulary(model.model, np.concatenate([*documents, *queries]))
    check_same_tokens(model.model, reader, documents[0])
    return SearchTask(model, base, length, documents, queries, texts.relevant)
