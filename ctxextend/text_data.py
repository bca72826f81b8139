"""User text: reads files, folders and Hub datasets, one document at a time."""

import csv
import glob
import io
import json
import os
import re
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar

from ctxextend.checkpoint.filenames import CHECKPOINT_MARKS
from ctxextend.errors import CtxextendError, DataError, install_command, one_line
from ctxextend.recipe import HUB_PREFIX

TEXT_FIELD = "text"  # default text field: the name of the text column in the Hub's text datasets
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
# Files of a folder to read.
SUFFIXES = (".txt", ".md", ".rst", ".text", *JSON_LINES, PARQUET, *SEPARATORS)
LARGEST_FIELD = 2**31 - 1  # characters of a field of CSV: the most that all systems allow
CHUNK_SIZE = 1 << 20  # characters per chunk: a tokenizer needs about 160 bytes per token
ROWS = 64  # rows of a Parquet file to decode at a time
SET_FIELD = "Set the text field with --text-field."
HUB_FORMAT = "hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]"
HUB_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:/([^/:@]+))?(?::(?P<split>[^:@]+))?(?:@(.+))?")

Paths: TypeAlias = Sequence[str]  # files, folders, and names of Hub datasets
TextSource: TypeAlias = Path | str  # a file, or the name of a Hub dataset with its split
_T = TypeVar("_T")


def check_paths(paths: Paths) -> list[TextSource]:
    """Return the files and Hub datasets at paths, each once; those of a folder by name.

    Nothing is downloaded.

    Raises:
        DataError: A path does not exist, contains no text, is not a valid name of a dataset, or
            needs a library that is not installed.
    """
    sources: dict[TextSource, TextSource] = {}
    for name in paths:
        if not name.startswith(HUB_PREFIX):
            for file in _files(Path(name)):
                sources.setdefault(file.resolve(), file)
        else:
            parts = HUB_NAME.fullmatch(name)
            if parts is None:
                message = f"{name} is not a valid Hub dataset."
                raise DataError(message, f"Use the form {HUB_FORMAT}.")
            if not parts["split"]:
                before, at, revision = name.partition("@")
                name = f"{before}:train{at}{revision}"
            sources[name] = name
    if not sources:
        hint = "Pass files or folders."
        raise DataError("No text given.", hint)
    for source in sources.values():
        if _needs_datasets(source) and find_spec("datasets") is None:
            message = f"Reading {source} requires datasets, which is not installed."
            raise DataError(message, install_command("datasets"))
    return list(sources.values())


def _needs_datasets(source: TextSource) -> bool:
    return isinstance(source, str) or source.suffix.lower() == PARQUET


def _files(path: Path) -> list[Path]:
    if os.path.isfile(path):  # noqa: PTH113 - unlike Path.is_file, it never raises
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty.", "Pass a file that contains text.")
        return [path]
    if not os.path.isdir(path):  # noqa: PTH112 - as above
        exists = os.path.exists(path)  # noqa: PTH110 - as above
        problem = "is not a regular file or folder" if exists else "does not exist"
        raise DataError(f"{path} {problem}.", "Pass an existing file or folder.")
    files = [file for file in _user_texts(path) if file.stat().st_size]
    if not files:
        hint = f"Supported extensions: {', '.join(SUFFIXES)}."
        raise DataError(f"Folder {path} contains no text files.", hint)
    return files


def _user_texts(folder: Path) -> list[Path]:
    """Return the texts in a folder, in order.

    Those in a checkpoint (vocab.txt), in a training run or in a hidden folder are left out.
    """
    texts = []
    for file in folder.rglob("*"):
        if file.suffix.lower() in SUFFIXES and file.is_file():
            *parents, _ = (folder / parent for parent in file.relative_to(folder).parents)
            is_skipped = any(
                parent.name.startswith(".") or parent.suffix == ".training" for parent in parents
            )
            marks = (parent / mark for parent in parents for mark in CHECKPOINT_MARKS)
            if not is_skipped and not any(mark.exists() for mark in marks):
                texts.append(file)
    return sorted(texts)


def check_texts(
    paths: Paths, text_field: str = TEXT_FIELD, *, imports_datasets: bool = False
) -> None:
    """Read the start of every file and dataset, to report errors early.

    Args:
        paths: Files, folders and Hub datasets.
        text_field: The key or column of the text.
        imports_datasets: Whether to read Parquet files and Hub datasets too.

    Raises:
        DataError: One cannot be read, or is blank and not in a folder.
    """
    given = {*map(Path, paths)}
    for source in check_paths(paths):
        if not imports_datasets and _needs_datasets(source):
            continue
        has_text = any(text.strip() for text, _ in read_chunks([str(source)], text_field))
        if not has_text and (isinstance(source, str) or source in given):
            hint = "Remove it, or set the text field with --text-field."
            raise DataError(f"{source} contains no text.", hint)


def read_documents(
    paths: Paths, text_field: str = TEXT_FIELD, characters: int = sys.maxsize
) -> Iterator[str]:
    """Yield documents: text files, lines of JSONL, and rows of Parquet, CSV or Hub datasets.

    Args:
        paths: Files, folders and Hub datasets.
        text_field: The key or column of the text; null is skipped.
        characters: The most characters of a document that are read.

    Raises:
        DataError: A document cannot be read.
    """

    def read(stream: TextIO) -> list[str]:
        # In chunks: read(n) allocates n characters.
        chunks = iter(partial(stream.read, CHUNK_SIZE), "")
        count = -(-characters // CHUNK_SIZE)
        return ["".join(islice(chunks, count))[:characters]]

    return _read(paths, text_field, read)


def read_chunks(paths: Paths, text_field: str = TEXT_FIELD) -> Iterator[tuple[str, bool]]:
    """Yield all text in chunks of about a million characters, and whether each ends a document.

    See `split_chunks`.

    Raises:
        DataError: A document cannot be read.
    """
    return _read(paths, text_field, split_chunks)


def split_chunks(stream: TextIO, size: int = CHUNK_SIZE) -> Iterator[tuple[str, bool]]:
    """Yield chunks of a document, of `size` to twice as many characters, and whether each is the
    last.

    A chunk ends before whitespace, where tokenizers split, so that no word is split, or anywhere if
    there is none.
    """
    chunk = stream.read(size)
    while following := stream.read(size):
        end = max(map(chunk.rfind, string.whitespace))
        end = end if end > 0 else len(chunk)
        yield chunk[:end], False
        chunk = chunk[end:] + following
    yield chunk, True


def _read(paths: Paths, text_field: str, read: Callable[[TextIO], Iterable[_T]]) -> Iterator[_T]:
    """Yield the results of `read` for each document.

    Any error becomes a DataError that names the file or dataset.
    """
    for source in check_paths(paths):
        with _named_in_errors(source):
            for stream in _streams(source, text_field):
                yield from read(stream)


@contextmanager
def _named_in_errors(source: TextSource) -> Iterator[None]:
    try:
        yield
    except CtxextendError:
        raise
    except Exception as error:  # each format raises its own exceptions
        reason = one_line(error, 400).rstrip(".") or type(error).__name__
        hint = "Pass a readable file in UTF-8; convert other encodings with iconv."
        if isinstance(source, str):
            login = "your login for private data: hf auth login"
            hint = f"Check the name ({HUB_FORMAT}), the network, and {login}."
        raise DataError(f"{source} cannot be read: {reason}.", hint) from error


def _streams(source: TextSource, text_field: str) -> Iterator[TextIO]:
    """Yield each document as a stream: a text file, or the text of a line of JSONL or of a row."""
    if isinstance(source, str):
        from datasets import load_dataset

        ((repo, config, split, revision),) = HUB_NAME.findall(source)
        rows: Any = load_dataset(
            f"hf://datasets/{repo}",  # the bare name may be a local folder
            config or None,
            split=split,
            revision=revision or None,
            streaming=True,
        )
    elif source.suffix.lower() == PARQUET:
        from datasets import load_dataset

        files = glob.escape(str(source))
        rows = load_dataset(
            "parquet", data_files=files, split="train", streaming=True, batch_size=ROWS
        )
    elif source.suffix.lower() in SEPARATORS:
        yield from _table_texts(source, text_field)
        return
    else:
        with source.open(encoding="utf-8-sig") as stream:  # may have a byte order mark
            if source.suffix.lower() not in JSON_LINES:
                yield stream
                return
            for where, row in json_lines(stream, source):
                yield from _text(row, text_field, where)
        return
    if text_field in (rows.column_names or ()):  # to not decode the others
        rows = rows.select_columns([text_field])
    for row in rows:
        yield from _text(row, text_field, str(source))


def _table_texts(file: Path, text_field: str) -> Iterator[TextIO]:
    csv.field_size_limit(LARGEST_FIELD)
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream, delimiter=SEPARATORS[file.suffix.lower()])
        # A file without rows must have the column too.
        yield from _text(dict.fromkeys(rows.fieldnames or ()), text_field, str(file))
        for row in rows:
            if row[text_field]:
                yield from _text(row, text_field, str(file))


def json_lines(stream: TextIO, source: Path) -> Iterator[tuple[str, Any]]:
    """Yield where each line of JSONL is, for messages, and its value; blank lines are skipped.

    Raises:
        DataError: A line is not valid JSON.
    """
    for number, line in enumerate(stream, start=1):
        where = f"Line {number} of {source}"
        try:
            if line.strip():
                yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            hint = "Each line must be a JSON object."
            raise DataError(f"{where} is not valid JSON: {str(error)[:200]}.", hint) from error


def without_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which JSON can contain and no tokenizer accepts."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text(row: Any, text_field: str, where: str) -> Iterator[TextIO]:
    if not isinstance(row, dict) or text_field not in row:
        found = f"a {type(row).__name__}"
        if isinstance(row, dict):
            found = ", ".join(list(row)[:20])
        raise DataError(f"{where} has no field {text_field!r}; found {found}.", SET_FIELD)
    text = row[text_field]
    if isinstance(text, str):
        yield io.StringIO(without_surrogates(text))
    elif text is not None:
        found = type(text).__name__
        message = f"{where} has {found} instead of text in field {text_field!r}."
        raise DataError(message, SET_FIELD)
