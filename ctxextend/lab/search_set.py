"""Read search sets in the format of BEIR (Thakur et al. 2021, arXiv:2104.08663)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ctxextend.errors import DataError, one_line
from ctxextend.settings import Evaluate
from ctxextend.text_data import JSON_LINES, json_lines, without_surrogates

LAYOUT = "A search set has corpus.jsonl, queries.jsonl and qrels/test.tsv, as in BEIR."


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
        DataError: A file is missing or cannot be read, or the files do not fit together.
    """
    if settings.search is None:
        return None
    folder = Path(settings.search)
    try:
        if not folder.is_dir():
            raise DataError(f"--search {folder} is not a folder.", LAYOUT)
        corpus = folder / "corpus.jsonl"
        query_file = folder / "queries.jsonl"
        for file in (corpus, query_file):
            if not file.is_file():
                raise DataError(f"{folder} has no {file.name}.", LAYOUT)
        qrels = _find_judgements(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {one_line(error)}.", LAYOUT) from error

    documents = _read_texts(corpus)
    queries = _read_texts(query_file)
    judged: dict[str, dict[int, int]] = {name: {} for name in queries}
    numbers = {name: index for index, name in enumerate(documents)}
    for where, row in read_rows(qrels, "query-id", "corpus-id", "score"):
        query = str(row["query-id"])
        document = str(row["corpus-id"])
        score = str(row["score"])
        _check_known(where, query, queries, query_file)
        _check_known(where, document, documents, corpus)
        if not score.isdecimal():
            message = f"{where} has the score {score!r}."
            raise DataError(message, "Use integers from 0, which is not relevant.")
        if numbers[document] in judged[query]:
            message = f"{where} judges document {document!r} for query {query!r} again."
            raise DataError(message, "Keep one judgement.")
        judged[query][numbers[document]] = int(score)

    chosen = dict[str, dict[int, int]]()
    for query, scores in judged.items():
        relevant = {document: score for document, score in scores.items() if score > 0}
        if relevant:
            chosen[query] = relevant
    if not chosen:
        message = f"{qrels} has no score above 0."
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


def _find_judgements(folder: Path) -> Path:
    """Return the judgements of a split called test, of the folder itself, or of the only split.

    Raises:
        DataError: There are none, or several splits and none is called test.
    """
    for file in (folder / "qrels" / "test.tsv", folder / "qrels.tsv"):
        if file.is_file():
            return file
    splits = sorted(folder.glob("qrels/*.tsv"))
    if len(splits) == 1:
        return splits[0]
    if splits:
        names = ", ".join(file.name for file in splits)
        message = f"{folder / 'qrels'} has {names}, and none of them is called test."
        raise DataError(message, "Keep one of them, or call it test.tsv.")
    raise DataError(f"{folder} has no qrels/test.tsv.", LAYOUT)


def _check_known(where: str, name: str, known: Mapping[str, str], file: Path) -> None:
    if name not in known:
        message = f"{where} has the unknown id {name!r}."
        raise DataError(message, f"Remove the line, or add it to {file}.")


def _read_texts(file: Path) -> dict[str, str]:
    """Return the texts of a corpus or of queries by id; a title stands before its text.

    They are joined by a space, as in BEIR.
    """
    texts = dict[str, str]()
    for where, row in read_rows(file, "_id", "text"):
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


def read_rows(file: Path, *fields: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each row of a .jsonl or .tsv file is, for messages, and its values by field.

    Raises:
        DataError: The file cannot be read, has no rows, or a row lacks a field.
    """
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
        message = f"{file} cannot be read: {one_line(error)}."
        raise DataError(message, "Pass a readable file in UTF-8.") from error
    if is_empty:
        raise DataError(f"{file} has no rows.", f"Each row has the fields {', '.join(fields)}.")


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
        values = {}
        if len(cells) == len(columns):
            values = dict(zip(columns, cells, strict=True))
        yield f"Line {number} of {file}", values
