"""Read search sets in the format of BEIR (Thakur et al. 2021, arXiv:2104.08663)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ctxextend.errors import DataError, one_line
from ctxextend.settings import Evaluate
from ctxextend.text_data import JSON_LINES, json_lines, without_surrogates

# Columns of TREC's judgements, of which the second is unused.
TREC_COLUMNS = 4
UNUSED_TREC_COLUMN = 1


class SearchSet(NamedTuple):
    """Documents, queries with a relevant document, and the relevance of documents."""

    documents: tuple[str, ...]
    queries: tuple[str, ...]
    # of each query: relevance above 0, by index of the document
    relevant: tuple[dict[int, int], ...]
    notes: tuple[str, ...]


def read_search_set(settings: Evaluate) -> SearchSet | None:
    """Read and check the search set of an evaluation; None if it has none.

    Raises:
        DataError: A file cannot be read, or the files do not fit together.
    """
    if settings.corpus is None or settings.queries is None or settings.qrels is None:
        return None
    documents = _read_texts(settings.corpus)
    queries = _read_texts(settings.queries)
    judged = _read_judgements(settings, queries, documents)
    chosen = dict[str, dict[int, int]]()
    for query, scores in judged.items():
        relevant = {document: score for document, score in scores.items() if score > 0}
        if relevant:
            chosen[query] = relevant
    if not chosen:
        message = f"{settings.qrels} has no score above 0."
        raise DataError(message, "Give each query a relevant document.")
    notes = tuple[str, ...]()
    left_out = len(queries) - len(chosen)
    if left_out:
        notes = (
            f"{left_out:,} of {len(queries):,} queries have no relevant document and are left out.",
        )
    return SearchSet(
        documents=tuple(documents.values()),
        queries=tuple(queries[query] for query in chosen),
        relevant=tuple(chosen.values()),
        notes=notes,
    )


def _read_judgements(
    settings: Evaluate, queries: Mapping[str, str], documents: Mapping[str, str]
) -> dict[str, dict[int, int]]:
    """Return the scores of documents, by their index, for each query, by its id."""
    numbers = {name: index for index, name in enumerate(documents)}
    judged: dict[str, dict[int, int]] = {name: {} for name in queries}
    for where, row in read_rows(str(settings.qrels), "query-id", "corpus-id", "score"):
        query = str(row["query-id"])
        document = str(row["corpus-id"])
        score = str(row["score"])
        _check_known(where, query, queries, settings.queries)
        _check_known(where, document, documents, settings.corpus)
        if not score.isdecimal():
            message = f"{where} has the score {score!r}."
            raise DataError(message, "Use integers from 0, which is not relevant.")
        if numbers[document] in judged[query]:
            message = f"{where} judges document {document!r} for query {query!r} again."
            raise DataError(message, "Keep one judgement.")
        judged[query][numbers[document]] = int(score)
    return judged


def _check_known(where: str, name: str, known: Mapping[str, str], path: str | None) -> None:
    if name not in known:
        message = f"{where} has the unknown id {name!r}."
        raise DataError(message, f"Remove the line, or add it to {path}.")


def _read_texts(path: str) -> dict[str, str]:
    """Return the texts of a corpus or of queries by id; a title stands before its text.

    They are joined by a space, as in BEIR.
    """
    texts = dict[str, str]()
    for where, row in read_rows(path, "_id", "text"):
        name = row["_id"]
        title = row.get("title") or ""
        text = row["text"]
        if type(name) not in (str, int) or not isinstance(text, str) or not isinstance(title, str):
            raise DataError(f"{where} has an _id, title or text that is not text.", "Use strings.")
        if str(name) in texts:
            message = f"{where} has the id {name!r} of an earlier line."
            raise DataError(message, "Give each its own id.")
        whole = without_surrogates(f"{title} {text}".strip())
        if not whole:
            raise DataError(f"{where} has no text.", "Remove it, or add its text.")
        texts[str(name)] = whole
    return texts


def read_rows(path: str, *fields: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each row of a .jsonl or .tsv file is, for messages, and its values by field.

    Raises:
        DataError: The file cannot be read, has no rows, or a row lacks a field.
    """
    file = Path(path)
    is_json = file.suffix.lower() in JSON_LINES
    is_empty = True
    try:
        with file.open(encoding="utf-8-sig") as stream:
            rows = json_lines(stream, file) if is_json else _table_rows(stream, file, fields)
            for where, row in rows:
                is_empty = False
                if not isinstance(row, dict) or not {*fields} <= row.keys():
                    message = f"{where} does not have the fields {', '.join(fields)}."
                    hint = (
                        "Write a JSON object per line (.jsonl), or separate columns by one tab "
                        "(.tsv)."
                    )
                    raise DataError(message, hint)
                yield where, row
    except (OSError, UnicodeError) as error:
        message = f"{path} cannot be read: {one_line(error)}."
        raise DataError(message, "Pass a readable file in UTF-8.") from error
    if is_empty:
        raise DataError(f"{path} has no rows.", f"Each row has the fields {', '.join(fields)}.")


def _table_rows(
    lines: Iterable[str], file: Path, fields: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield where each row of a .tsv file is, and its values by field.

    The first line is a header if it names all fields, else columns are in their order. Quotes have
    no meaning. A row with too few or many columns has no values.
    """
    columns = fields
    for number, line in enumerate(lines, start=1):
        cells = line.rstrip("\n").split("\t")
        if number == 1 and {*fields} <= {*cells}:
            columns = cells
            continue
        if not line.strip():
            continue
        if len(columns) == len(fields) == TREC_COLUMNS - 1 and len(cells) == TREC_COLUMNS:
            del cells[UNUSED_TREC_COLUMN]
        values = {}
        if len(cells) == len(columns):
            values = dict(zip(columns, cells, strict=True))
        yield f"Line {number} of {file}", values
