"""User text: files, folders and Hub datasets in, documents out, one at a time."""

import glob
import io
import json
import os
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO, TypeGuard

from ctxextend.checkpoints.filenames import CHECKPOINT_MARKS
from ctxextend.errors import CtxextendError, DataError

# What the Hub's text datasets call the column that holds the text.
TEXT_FIELD = "text"
JSON_LINES, PARQUET = (".jsonl", ".ndjson"), ".parquet"
# The files of a folder that are read.
SUFFIXES = (".txt", ".md", ".rst", ".text", *JSON_LINES, PARQUET)

# Characters of a piece: a tokenizer needs about 160 bytes for each token of it.
PIECE = 1 << 20
# Rows of a Parquet file that are decoded at a time.
ROWS = 64
# Characters of each document that `check_texts` reads.
CHECKED = 1 << 16

HUB = "hf:"
SPELLING = "hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]"
HUB_NAME = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<config>[^/:@]+))?(?::(?P<split>[^:@]+))?(?:@(?P<revision>.+))?"
)


@dataclass(frozen=True)
class HubDataset:
    """A split of a Hub dataset.

    Attributes:
        repo: Its owner and name, with a slash between.
        config: One of its configurations; None if it has only one.
        split: One of its splits.
        revision: A branch, tag or commit; None is its main branch.
    """

    repo: str
    config: str | None
    split: str
    revision: str | None

    @classmethod
    def parse(cls, name: str) -> "HubDataset":
        """Parse ``hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]``; the default split is ``train``.

        Raises:
            DataError: It is spelled in another way, or the library that reads datasets is not installed.
        """
        found = HUB_NAME.fullmatch(name)
        if found is None:
            raise DataError(f"{name} names no data set of the Hub.", f"Spell it {SPELLING}.")
        _check_datasets_installed(name)
        return cls(found["repo"], found["config"], found["split"] or "train", found["revision"])

    def __str__(self) -> str:
        config = f"/{self.config}" if self.config else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB}{self.repo}{config}:{self.split}{revision}"


def path_names(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return one path or several as strings."""
    return tuple(os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths))


def check_paths(paths: Sequence[str | os.PathLike[str]]) -> list[Path | HubDataset]:
    """Return the files and Hub datasets that some paths name, each once; datasets are not fetched yet.

    The files of a folder are sorted by name; checkpoints, training runs and hidden folders in it are left out.

    Args:
        paths: Files, folders, and Hub datasets as `HubDataset.parse` reads them.

    Raises:
        DataError: A path does not exist, a folder holds no text, a file is empty, or a dataset's name is malformed.
    """
    found: dict[Path | HubDataset, Path | HubDataset] = {}
    for name in path_names(paths):
        for source in [HubDataset.parse(name)] if name.startswith(HUB) else _files(Path(name)):
            found.setdefault(_identity(source), source)
    if not found:
        raise DataError("No text was named.", "Name files or folders: --data book.txt, --data articles.jsonl.")
    return list(found.values())


def shared(
    paths: Sequence[str | os.PathLike[str]], others: Sequence[str | os.PathLike[str]]
) -> list[Path | HubDataset]:
    """Return the files and datasets that both arguments name.

    Raises:
        DataError: As `check_paths`.
    """
    named = {_identity(source) for source in check_paths(others)}
    return [source for source in check_paths(paths) if _identity(source) in named]


def _identity(source: Path | HubDataset) -> Path | HubDataset:
    return source.resolve() if isinstance(source, Path) else source


def _files(path: Path) -> list[Path]:
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.", "Name text that is there: --data FILE.") from error
    if not is_file and not is_folder:
        if path.exists():
            raise DataError(f"{path} is neither a file nor a folder.", "Write its text to a file, and name that.")
        raise DataError(f"There is no file or folder {path}.", "Name text that is there: --data FILE.")
    found = [path] if is_file else sorted(file for file in path.rglob("*") if _is_user_text(file, path))
    if not found:
        raise DataError(f"The folder {path} holds no text.", f"Files that end in {', '.join(SUFFIXES)} are read.")
    for file in found:
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty.", "Name a file that holds text.")
    return found


def _is_user_text(file: Path, folder: Path) -> bool:
    """Whether a file in a folder is text, and not part of a checkpoint (vocab.txt) or a training run (its log)."""
    if file.suffix.lower() not in SUFFIXES or not file.is_file():
        return False
    for parent in [*file.relative_to(folder).parents][:-1]:
        is_checkpoint = any((folder / parent / mark).exists() for mark in CHECKPOINT_MARKS)
        if is_checkpoint or parent.name.startswith(".") or parent.suffix == ".training":
            return False
    return True


def check_texts(paths: Sequence[str | os.PathLike[str]], text_field: str = TEXT_FIELD) -> None:
    """Read the beginning of every file and dataset, so that faults show before long work begins.

    Raises:
        DataError: As `read_documents`, or one of them holds no document.
    """
    for source in check_paths(paths):
        if not any(text.strip() for text in _documents(source, text_field, CHECKED)):
            raise DataError(f"{source} holds no text.", "Leave it out, or name the text's field: --text-field.")


def read_documents(
    paths: Sequence[str | os.PathLike[str]], text_field: str = TEXT_FIELD, characters: int | None = None
) -> Iterator[str]:
    """Yield the documents: a text file is one, and so is a line of JSONL and a row of Parquet or a Hub dataset.

    Args:
        paths: As for `check_paths`.
        text_field: The key of a line of JSONL, or the column, that holds the text; null is skipped.
        characters: Of each document, how many to read at most; None is all.

    Raises:
        DataError: As `check_paths`; a file is not UTF-8, JSONL or Parquet, the field is missing or holds no text, or a
            dataset cannot be read.
    """
    for source in check_paths(paths):
        yield from _documents(source, text_field, characters)


def _documents(source: Path | HubDataset, text_field: str, characters: int | None) -> Iterator[str]:
    if _is_plain(source):
        with _opened(source) as stream:
            # A stream allocates as much as it is asked for.
            yield stream.read(-1 if characters is None else min(characters, source.stat().st_size))
    else:
        yield from (text[:characters] for text in _rows(source, text_field))


def read_pieces(paths: Sequence[str | os.PathLike[str]], text_field: str = TEXT_FIELD) -> Iterator[tuple[str, bool]]:
    """Yield all text in pieces of about a million characters, and whether a document ends with the piece.

    A text file is never held whole; see `cut`.

    Args:
        paths: As for `check_paths`.
        text_field: As for `read_documents`.

    Raises:
        DataError: As `read_documents`.
    """
    for source in check_paths(paths):
        if _is_plain(source):
            with _opened(source) as stream:
                yield from cut(stream)
        else:
            for text in _rows(source, text_field):
                yield from cut(io.StringIO(text))


def cut(stream: TextIO, size: int = PIECE) -> Iterator[tuple[str, bool]]:
    """Yield a document in pieces, and whether it ends with the piece.

    A piece ends before white space, where tokenizers split, so that no word is cut; without white space it ends
    anywhere.

    Args:
        stream: The document.
        size: Approximate characters of a piece; none has more than twice as many.
    """
    piece = stream.read(size)
    while following := stream.read(size):
        end = max(map(piece.rfind, string.whitespace))
        end = end if end > 0 else len(piece)
        yield piece[:end], False
        piece = piece[end:] + following
    yield piece, True


# ---- formats


def _is_plain(source: Path | HubDataset) -> TypeGuard[Path]:
    return isinstance(source, Path) and source.suffix.lower() not in (*JSON_LINES, PARQUET)


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    try:
        # Programs on Windows write a byte order mark, which is not part of the text.
        with file.open(encoding="utf-8-sig") as stream:
            yield stream
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{error.object[error.start]:02x}, {error.reason}"
        raise DataError(f"{file} is not UTF-8: {wrong}.", "Convert it, for example with iconv.") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from error


def _rows(source: Path | HubDataset, text_field: str) -> Iterator[str]:
    """Yield the text of each row or line that has one."""
    if isinstance(source, Path) and source.suffix.lower() in JSON_LINES:
        with _opened(source) as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip() and (text := _line_text(line, text_field, f"{source}, line {number}")) is not None:
                    yield text
        return
    try:
        yield from _dataset_rows(source, text_field)
    except CtxextendError:
        raise
    except Exception as error:  # each format and each way to fail has its own
        words = " ".join(str(error).split())[:400].rstrip(".") or type(error).__name__
        raise DataError(f"{source} cannot be read: {words}.", _hint(source, error)) from error


def _line_text(line: str, text_field: str, where: str) -> str | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}, is no JSON: {str(error)[:200]}.", "Each line must be one JSON object.") from error
    if isinstance(content, dict) and text_field in content and content[text_field] is None:
        return None
    if not isinstance(content, dict) or not isinstance(content.get(text_field), str):
        names = (
            ", ".join(sorted(content)[:20]) or "none" if isinstance(content, dict) else f"a {type(content).__name__}"
        )
        raise DataError(f"{where}, has no text in a field {text_field!r}; it has {names}.", "Name it: --text-field.")
    # Half of an escaped surrogate pair is no character, and no tokenizer accepts it.
    text: str = content[text_field]
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _dataset_rows(source: Path | HubDataset, text_field: str) -> Iterator[str]:
    """Yield the texts of a column of a Parquet file or a Hub dataset, streamed."""
    _check_datasets_installed(source)
    from datasets import load_dataset

    if isinstance(source, Path):
        pattern = glob.escape(str(source))
        rows = load_dataset("parquet", data_files=pattern, split="train", streaming=True, batch_size=ROWS)
    else:
        address = f"hf://datasets/{source.repo}"  # a local folder may have the bare name
        rows = load_dataset(address, source.config, split=source.split, revision=source.revision, streaming=True)
    if rows.column_names is not None:  # then the others need not be decoded
        rows = rows.select_columns([_column(rows.column_names, text_field, source)])
    for row in rows:
        text = row[_column(row, text_field, source)]
        if text is not None and not isinstance(text, str):
            raise DataError(
                f"The column {text_field!r} of {source} holds {type(text).__name__}, no text.",
                "Name the text's: --text-field.",
            )
        if text is not None:
            yield text


def _column(columns: Iterable[str], text_field: str, source: Path | HubDataset) -> str:
    """Return the column of the text, if there is one."""
    if text_field not in columns:
        names = ", ".join(list(columns)[:20])
        raise DataError(f"{source} has no column {text_field!r}; it has {names}.", "Name the text's: --text-field.")
    return text_field


def _check_datasets_installed(source: object) -> None:
    if find_spec("datasets") is None:
        raise DataError(f"{source} needs datasets to be read.", "Install it: pip install 'ctxextend[train]'.")


def _hint(source: Path | HubDataset, error: Exception) -> str:
    from datasets.exceptions import DatasetNotFoundError

    if isinstance(source, Path):
        return "Name a file that holds text."
    if isinstance(error, DatasetNotFoundError):
        return f"Spell it {SPELLING}; what is private needs a login: hf auth login."
    if isinstance(error, ConnectionError):
        return "Check the network, or name files that are here."
    return f"Check its name, {SPELLING}, or name files that are here."
