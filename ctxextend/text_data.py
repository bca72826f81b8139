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
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar

from ctxextend.checkpoints.filenames import CHECKPOINT_MARKS
from ctxextend.errors import CtxextendError, DataError, counted, install_command, one_line
from ctxextend.recipe import HUB_PREFIX

TEXT_FIELD = "text"  # default text field: the name of the text column in the Hub's text datasets
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABULAR = (PARQUET, *SEPARATORS)  # read with `datasets`
SUFFIXES = (".txt", ".md", ".rst", ".text", *JSON_LINES, *TABULAR)  # files of a folder to read
CHUNK_SIZE = 1 << 20  # characters per chunk: a tokenizer needs about 160 bytes per token
ROWS = 64  # rows of a Parquet file to decode at a time
SET_FIELD = "Set the text field with --text-field."
HUB_FORMAT = "hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]"
HUB_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:/([^/:@]+))?(?::(?P<split>[^:@]+))?(?:@(.+))?")

Paths: TypeAlias = Sequence[str | os.PathLike[str]]  # files, folders, and names of Hub datasets
TextSource: TypeAlias = Path | str  # a file, or the name of a Hub dataset with its split
_T = TypeVar("_T")


def path_names(paths: str | os.PathLike[str] | Paths) -> tuple[str, ...]:
    """Return one or several paths as strings."""
    return tuple(
        os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)
    )


def check_paths(paths: Paths) -> list[TextSource]:
    """Return the files, by name in folders, and the Hub datasets at paths, each once, without
    downloading any.
    """
    sources: dict[TextSource, TextSource] = {}
    for name in path_names(paths):
        if not name.startswith(HUB_PREFIX):
            for file in _files(Path(name)):
                sources.setdefault(file.resolve(), file)
        elif parts := HUB_NAME.fullmatch(name):
            before, at, revision = name.partition("@")
            dataset = name if parts["split"] else f"{before}:train{at}{revision}"
            sources[dataset] = dataset
        else:
            raise DataError(f"{name} is not a valid Hub dataset.", f"Use the form {HUB_FORMAT}.")
    if not sources:
        raise DataError(
            "No text given.", "Pass files or folders: --data book.txt --data articles.jsonl."
        )
    for source in sources.values():
        if (isinstance(source, str) or source.suffix.lower() in TABULAR) and find_spec(
            "datasets"
        ) is None:
            message = f"Reading {source} requires datasets, which is not installed."
            raise DataError(message, install_command("datasets"))
    return list(sources.values())


def _files(path: Path) -> list[Path]:
    is_file = os.path.isfile(path)  # noqa: PTH113 - unlike Path.is_file, it never raises
    if not is_file and not os.path.isdir(path):  # noqa: PTH112
        problem = ("is not a regular file or folder") if os.path.exists(path) else "does not exist"  # noqa: PTH110
        raise DataError(f"{path} {problem}.", "Pass an existing file or folder.")
    files = [path] if is_file else [file for file in _user_texts(path) if file.stat().st_size]
    if not files:
        raise DataError(
            f"Folder {path} contains no text files.",
            f"Supported extensions: {', '.join(SUFFIXES)}.",
        )
    if is_file and path.stat().st_size == 0:
        raise DataError(f"{path} is empty.", "Pass a file that contains text.")
    return files


def empty_files(paths: Paths) -> Iterator[str]:
    """Yield a note for each folder with empty files, which are skipped."""
    for folder in (path for path in map(Path, path_names(paths)) if path.is_dir()):
        if empty := [file.name for file in _user_texts(folder) if not file.stat().st_size]:
            names = ", ".join(empty[:3] + ["..."] * (len(empty) > 3))
            yield f"Skipped {counted(len(empty), 'empty file')} in {folder}: {names}"


def _user_texts(folder: Path) -> list[Path]:
    """Return the texts in a folder that are not part of a checkpoint (vocab.txt), training run or
    hidden folder.
    """
    texts = []
    for file in folder.rglob("*"):
        if file.suffix.lower() in SUFFIXES and file.is_file():
            parents = [folder / parent for parent in file.relative_to(folder).parents][:-1]
            is_hidden = any(
                parent.name.startswith(".") or parent.suffix == ".training" for parent in parents
            )
            if not is_hidden and not any(
                (parent / mark).exists() for parent in parents for mark in CHECKPOINT_MARKS
            ):
                texts.append(file)
    return sorted(texts)


def check_texts(paths: Paths, text_field: str = TEXT_FIELD) -> None:
    """Read the start of every file and dataset, to report errors early; a file in a folder may be
    blank.
    """
    given = {*map(Path, path_names(paths))}
    for source in check_paths(paths):
        has_text = any(text.strip() for text, _ in read_chunks([str(source)], text_field))
        if not has_text and (isinstance(source, str) or source in given):
            raise DataError(
                f"{source} contains no text.", "Remove it, or set the text field with --text-field."
            )


def read_documents(
    paths: Paths, text_field: str = TEXT_FIELD, characters: int = sys.maxsize
) -> Iterator[str]:
    """Yield documents: text files, lines of JSONL, and rows of Parquet, CSV or Hub datasets.

    `text_field` is the key or column of the text; null is skipped. At most `characters` of each
    document are read.
    """

    def read(stream: TextIO) -> list[str]:  # in chunks: read(n) allocates n characters
        return [
            "".join(
                islice(iter(partial(stream.read, CHUNK_SIZE), ""), -(-characters // CHUNK_SIZE))
            )[:characters]
        ]

    return _read(paths, text_field, read)


def read_chunks(paths: Paths, text_field: str = TEXT_FIELD) -> Iterator[tuple[str, bool]]:
    """Yield all text in chunks of about a million characters, and whether each ends a document; see
    `split_chunks`.
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
    """Yield the results of `read` for each document; any error becomes a DataError that names the
    file or dataset.
    """
    for source in check_paths(paths):
        try:
            for stream in _streams(source, text_field):
                yield from read(stream)
        except CtxextendError:
            raise
        except Exception as error:  # each format raises its own exceptions
            reason = one_line(error, 400).rstrip(".") or type(error).__name__
            hint = "Pass a readable file in UTF-8; convert other encodings with iconv."
            if isinstance(source, str):
                hint = (
                    f"Check the name ({HUB_FORMAT}), the network, and your login for private "
                    "data: hf auth login."
                )
            raise DataError(f"{source} cannot be read: {reason}.", hint) from error


def _streams(source: TextSource, text_field: str) -> Iterator[TextIO]:
    """Yield each document as a stream: a text file, or the text of a line of JSONL or of a row."""
    suffix = source.suffix.lower() if isinstance(source, Path) else ""
    if isinstance(source, Path) and suffix not in TABULAR:
        with source.open(encoding="utf-8-sig") as stream:  # may have a byte order mark
            if suffix not in JSON_LINES:
                yield stream
                return
            for where, row in json_lines(stream, source):
                yield from _text(row, text_field, where)
        return
    from datasets import load_dataset

    if isinstance(source, Path):
        settings: dict[str, Any] = {
            "data_files": glob.escape(str(source)),
            "split": "train",
            "streaming": True,
        }
        if suffix == PARQUET:
            rows = load_dataset("parquet", **settings, batch_size=ROWS)
        else:
            with source.open(
                encoding="utf-8-sig", newline=""
            ) as stream:  # a file with only a header has no rows
                header = next(csv.reader(stream, delimiter=SEPARATORS[suffix]), ())
            yield from _text(dict.fromkeys(header), text_field, str(source))
            # Without a converter, a column of numbers would be parsed
            settings |= {
                "sep": SEPARATORS[suffix],
                "converters": {text_field: str},
                "encoding": "utf-8-sig",
            }
            rows = load_dataset("csv", **settings, chunksize=ROWS)
    else:
        repo, config, split, revision = HUB_NAME.findall(source)[0]
        address = f"hf://datasets/{repo}"  # the bare name may be a local folder
        rows = load_dataset(
            address, config or None, split=split, revision=revision or None, streaming=True
        )
    if text_field in (rows.column_names or ()):  # to not decode the others
        rows = rows.select_columns([text_field])
    for row in rows:
        yield from _text(row, text_field, str(source))


def json_lines(stream: TextIO, source: Path) -> Iterator[tuple[str, Any]]:
    """Yield where each line of JSONL is, for messages, and its value; blank lines are skipped."""
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
    fields = ", ".join(list(row)[:20]) if isinstance(row, dict) else f"a {type(row).__name__}"
    if not isinstance(row, dict) or text_field not in row:
        raise DataError(f"{where} has no field {text_field!r}; found {fields}.", SET_FIELD)
    text = row[text_field]
    if isinstance(text, str):
        yield io.StringIO(without_surrogates(text))
    elif text is not None:
        raise DataError(
            f"{where} has {type(text).__name__} instead of text in field {text_field!r}.", SET_FIELD
        )
