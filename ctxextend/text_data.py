"""User text: files, folders and Hub datasets in, documents out, one at a time."""

import csv
import glob
import io
import json
import os
import re
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar

from ctxextend.checkpoints.filenames import CHECKPOINT_MARKS
from ctxextend.errors import CtxextendError, DataError, counted, one_line
from ctxextend.recipe import HUB_PREFIX

# What the Hub's text datasets call the column that holds the text.
TEXT_FIELD = "text"
JSON_LINES, PARQUET = (".jsonl", ".ndjson"), ".parquet"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABULAR = (PARQUET, *SEPARATORS)  # `datasets` reads them
SUFFIXES = (".txt", ".md", ".rst", ".text", *JSON_LINES, *TABULAR)  # the files of a folder that are read

CHUNK_SIZE = 1 << 20  # characters of a piece: a tokenizer needs about 160 bytes for each token of it
ROWS = 64  # rows of a Parquet file that are decoded at a time

SPELLING = "hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]"
HUB_NAME = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<config>[^/:@]+))?(?::(?P<split>[^:@]+))?(?:@(?P<revision>.+))?"
)


Paths: TypeAlias = Sequence[str | os.PathLike[str]]  # files, folders, and names of Hub datasets
# A file, or the name of a Hub dataset with its split.
TextSource: TypeAlias = Path | str
_T = TypeVar("_T")


def path_names(paths: str | os.PathLike[str] | Paths) -> tuple[str, ...]:
    """Return one path or several as strings."""
    return tuple(os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths))


def check_paths(paths: Paths) -> list[TextSource]:
    """Return the files and Hub datasets that some paths name, each once; datasets are not fetched yet.

    The files of a folder are sorted by name; checkpoints, training runs and hidden folders in it are left out.
    """
    found: dict[TextSource, TextSource] = {}
    for name in path_names(paths):
        if not name.startswith(HUB_PREFIX):
            for file in _files(Path(name)):
                found.setdefault(file.resolve(), file)
        elif parts := HUB_NAME.fullmatch(name):
            before, at, revision = name.partition("@")
            dataset = name if parts["split"] else f"{before}:train{at}{revision}"
            found[dataset] = dataset
        else:
            raise DataError(f"{name} names no dataset of the Hub.", f"Spell it {SPELLING}.")
    if not found:
        raise DataError("No text was named.", "Name files or folders: --data book.txt, --data articles.jsonl.")
    for source in found.values():
        if (isinstance(source, str) or source.suffix.lower() in TABULAR) and find_spec("datasets") is None:
            raise DataError(f"{source} needs datasets to be read.", "Install it: pip install 'ctxextend[train]'.")
    return list(found.values())


def _files(path: Path) -> list[Path]:
    is_file = os.path.isfile(path)  # noqa: PTH113 - unlike Path's, it raises for no name
    if not is_file and not os.path.isdir(path):  # noqa: PTH112
        raise DataError(f"There is no file or folder {path}.", "Name text that is there (no pipe): --data FILE.")
    found = [path] if is_file else [file for file in _user_texts(path) if file.stat().st_size]
    if not found:
        raise DataError(f"The folder {path} holds no text.", f"Files that end in {', '.join(SUFFIXES)} are read.")
    if is_file and path.stat().st_size == 0:
        raise DataError(f"{path} is empty.", "Name a file that holds text.")
    return found


def empty_files(paths: Paths) -> Iterator[str]:
    """Yield a note for each folder that holds empty files, which are skipped."""
    for folder in (path for path in map(Path, path_names(paths)) if path.is_dir()):
        if empty := [file.name for file in _user_texts(folder) if not file.stat().st_size]:
            names = ", ".join(empty[:3] + ["..."] * (len(empty) > 3))
            yield f"Skipped {counted(len(empty), 'empty file')} in {folder}: {names}"


def _user_texts(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if _is_user_text(file, folder))


def _is_user_text(file: Path, folder: Path) -> bool:
    """Whether a file in a folder is text, and not part of a checkpoint (vocab.txt) or a training run (its log)."""
    if file.suffix.lower() not in SUFFIXES or not file.is_file():
        return False
    parents = [folder / parent for parent in file.relative_to(folder).parents][:-1]
    is_hidden = any(parent.name.startswith(".") or parent.suffix == ".training" for parent in parents)
    is_part = any((parent / mark).exists() for parent in parents for mark in CHECKPOINT_MARKS)
    return not is_hidden and not is_part


def check_texts(paths: Paths, text_field: str = TEXT_FIELD) -> None:
    """Read the beginning of every file and dataset, so that faults show early; a file in a folder may be blank."""
    named = {*map(Path, path_names(paths))}
    for source in check_paths(paths):
        has_text = any(text.strip() for text, _ in read_chunks([str(source)], text_field))
        if not has_text and (isinstance(source, str) or source in named):
            raise DataError(f"{source} holds no text.", "Leave it out, or name the text's field: --text-field.")


def read_documents(paths: Paths, text_field: str = TEXT_FIELD, characters: int = sys.maxsize) -> Iterator[str]:
    """Yield the documents: a text file is one, and so is a line of JSONL and a row of Parquet, CSV or a Hub dataset.

    `text_field` is the key or column of the text; null is skipped. Of each, at most `characters` are read.
    """

    def read(stream: TextIO) -> list[str]:  # in pieces: a stream would take memory for all that it is asked for
        pieces = islice(iter(partial(stream.read, CHUNK_SIZE), ""), -(-characters // CHUNK_SIZE))
        return ["".join(pieces)[:characters]]

    return _read(paths, text_field, read)


def read_chunks(paths: Paths, text_field: str = TEXT_FIELD) -> Iterator[tuple[str, bool]]:
    """Yield all text in pieces of about a million characters, and whether a document ends with the piece; see `cut`."""
    return _read(paths, text_field, cut)


def cut(stream: TextIO, size: int = CHUNK_SIZE) -> Iterator[tuple[str, bool]]:
    """Yield a document in pieces of about, and at most twice, so many characters, and whether it ends with the piece.

    A piece ends before white space, where tokenizers split, so that no word is cut, or anywhere if there is none.
    """
    piece = stream.read(size)
    while following := stream.read(size):
        end = max(map(piece.rfind, string.whitespace))
        end = end if end > 0 else len(piece)
        yield piece[:end], False
        piece = piece[end:] + following
    yield piece, True


def _read(paths: Paths, text_field: str, read: Callable[[TextIO], Iterable[_T]]) -> Iterator[_T]:
    """Yield what is read of each document; whatever goes wrong is a DataError that names the file or dataset."""
    for source in check_paths(paths):
        try:
            for stream in _streams(source, text_field):
                yield from read(stream)
        except CtxextendError:
            raise
        except Exception as error:  # each format and each way to fail has its own
            words = one_line(error, 400).rstrip(".") or type(error).__name__
            hint = "Name a file that you may read and that holds UTF-8 text; iconv converts others."
            if isinstance(source, str):
                hint = f"Check its name, {SPELLING}, the network, and, for what is private, your login: hf auth login."
            raise DataError(f"{source} cannot be read: {words}.", hint) from error


def _streams(source: TextSource, text_field: str) -> Iterator[TextIO]:
    """Yield each document as a stream: a text file is one, and so is each line of JSONL or row that has text."""
    suffix = source.suffix.lower() if isinstance(source, Path) else ""
    if isinstance(source, Path) and suffix not in TABULAR:
        with source.open(encoding="utf-8-sig") as stream:  # programs on Windows write a byte order mark
            if suffix not in JSON_LINES:
                yield stream
                return
            for number, line in enumerate(stream, start=1):
                where = f"{source}, line {number},"
                try:
                    row = json.loads(line) if line.strip() else {text_field: None}
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{where} is no JSON: {str(error)[:200]}.", "Each must be one object.") from error
                yield from _text(row, text_field, where)
        return
    from datasets import load_dataset

    if isinstance(source, Path):
        settings: dict[str, Any] = {"data_files": glob.escape(str(source)), "split": "train", "streaming": True}
        if suffix == PARQUET:
            rows = load_dataset("parquet", **settings, batch_size=ROWS)
        else:
            with source.open(encoding="utf-8-sig", newline="") as stream:  # a file of a header alone has no rows
                header = next(csv.reader(stream, delimiter=SEPARATORS[suffix]), ())
            yield from _text(dict.fromkeys(header), text_field, str(source))
            # Without a converter, a column of numbers would be no text
            settings |= {"sep": SEPARATORS[suffix], "converters": {text_field: str}, "encoding": "utf-8-sig"}
            rows = load_dataset("csv", **settings, chunksize=ROWS)
    else:
        repo, config, split, revision = HUB_NAME.findall(source)[0]
        address = f"hf://datasets/{repo}"  # a local folder may have the bare name
        rows = load_dataset(address, config or None, split=split, revision=revision or None, streaming=True)
    if text_field in (rows.column_names or ()):  # then the others need not be decoded
        rows = rows.select_columns([text_field])
    for row in rows:
        yield from _text(row, text_field, str(source))


def _text(row: Any, text_field: str, where: str) -> Iterator[TextIO]:
    names = ", ".join(list(row)[:20]) if isinstance(row, dict) else f"a {type(row).__name__}"
    if not isinstance(row, dict) or text_field not in row:
        raise DataError(f"{where} has no field {text_field!r}; it has {names}.", "Name the text's: --text-field.")
    text = row[text_field]
    if isinstance(text, str):
        # Half of an escaped surrogate pair is no character, and no tokenizer accepts it.
        yield io.StringIO(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    elif text is not None:
        kind = type(text).__name__
        raise DataError(f"{where} has {kind} in the field {text_field!r}, no text.", "Name the text's: --text-field.")
