"""The user's own text: files, folders and data sets of the Hub in, documents out, one at a time."""

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ctxextend.checkpoints.destination import MARKS
from ctxextend.checkpoints.redaction import redacted
from ctxextend.errors import DataError
from ctxextend.hubtexts import PREFIX, HubText, named, read_data_set
from ctxextend.textfiles import SUFFIXES, cut, read_file, read_file_in_pieces

__all__ = ["TEXT_FIELD", "check_paths", "check_texts", "path_names", "read_documents", "read_pieces", "shared"]

# What the Hub's text data sets call the column that holds the text.
TEXT_FIELD = "text"
# Characters of each file that are looked at before anything is done with them.
LOOKED_AT = 1 << 16


def path_names(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the names of one path or of several."""
    return tuple(os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths))


def check_paths(paths: Sequence[str | os.PathLike[str]]) -> list[Path | HubText]:
    """Return what holds the text: files, those of a folder by their names, and data sets of the Hub, not yet asked for.

    Below a folder, checkpoints, trainings that were stopped, and hidden folders are left out. What is
    named twice, or lies in a folder that is named too, is read once.

    Args:
        paths: Files, folders, and words spelled ``hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]``.

    Raises:
        DataError: Nothing is there, a folder holds no text, a file is empty, or a data set is spelled in another way.
    """
    found = [source for path in paths for source in _sources(os.fspath(path))]
    if not found:
        raise DataError("No text was named.", "Name files or folders: --data book.txt, --data articles.jsonl.")
    for source in found:
        if isinstance(source, Path) and source.stat().st_size == 0:
            raise DataError(f"{source} is empty.", "Name a file that holds text.")
    once: dict[Path | HubText, Path | HubText] = {}
    for source in found:
        once.setdefault(_itself(source), source)
    return [*once.values()]


def _itself(source: Path | HubText) -> Path | HubText:
    """Return a name that all names of the same text have in common."""
    return source.resolve() if isinstance(source, Path) else source


def shared(paths: Sequence[str | os.PathLike[str]], others: Sequence[str | os.PathLike[str]]) -> list[Path | HubText]:
    """Return what two lists of texts both name.

    Raises:
        DataError: As `check_paths`.
    """
    named_too = {_itself(source) for source in check_paths(others)}
    return [source for source in check_paths(paths) if _itself(source) in named_too]


def check_texts(paths: Sequence[str | os.PathLike[str]], text_field: str = TEXT_FIELD) -> None:
    """Read the beginning of everything that is named, so that what is wrong with it shows before long work begins.

    Raises:
        DataError: As `read_documents`, or something holds no document.
    """
    for source in check_paths(paths):
        if not any(text.strip() for text in _documents(source, text_field, LOOKED_AT)):
            raise DataError(f"{source} holds no text.", "Leave it out, or name the text's field: --text-field.")


def _sources(path: str) -> list[Path | HubText]:
    return [named(path)] if path.startswith(PREFIX) else [*_files(Path(path))]


def _files(path: Path) -> list[Path]:
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.", "Name text that is there: --data FILE.") from error
    if is_file:
        return [path]
    if path.exists() and not is_folder:
        raise DataError(f"{path} is neither a file nor a folder.", "Write its text to a file, and name that.")
    if not is_folder:
        raise DataError(redacted(f"There is no file or folder {path}."), "Name text that is there: --data FILE.")
    found = sorted(file for file in path.rglob("*") if _is_text(file, path))
    if not found:
        raise DataError(f"The folder {path} holds no text.", f"Files that end in {', '.join(SUFFIXES)} are read.")
    return found


def _is_text(file: Path, folder: Path) -> bool:
    """Whether a file below a folder holds text of the user's own: a checkpoint's vocabulary and its log do not."""
    between = [*file.relative_to(folder).parents][:-1]
    return file.suffix.lower() in SUFFIXES and file.is_file() and not any(_is_apart(folder / name) for name in between)


def _is_apart(folder: Path) -> bool:
    return (
        folder.name.startswith(".") or folder.suffix == ".training" or any((folder / name).exists() for name in MARKS)
    )


def read_documents(
    paths: Sequence[str | os.PathLike[str]], text_field: str = TEXT_FIELD, characters: int | None = None
) -> Iterator[str]:
    """Yield the documents: each text file is one, and so is each line of JSONL and each row of parquet or a data set.

    Everything is opened as it is reached. JSONL is read line by line, parquet a few rows at a time, and a data set of
    the Hub as it arrives.

    Args:
        paths: As for `check_paths`.
        text_field: The key of a line of JSONL, or the column, that holds the text; what is null there is left out.
        characters: Of each document, how many to read at most; None is all.

    Raises:
        DataError: As `check_paths`; a file is no UTF-8, no JSONL or no parquet, there is no such field, or a data set
            cannot be reached.
    """
    for source in check_paths(paths):
        yield from _documents(source, text_field, characters)


def _documents(source: Path | HubText, text_field: str, characters: int | None) -> Iterator[str]:
    if isinstance(source, HubText):
        return (text[:characters] for text in read_data_set(source, text_field))
    return read_file(source, text_field, characters)


def read_pieces(paths: Sequence[str | os.PathLike[str]], text_field: str = TEXT_FIELD) -> Iterator[tuple[str, bool]]:
    """Yield all text in pieces of about a million characters, and whether a document ends with each.

    No word is parted, unless there is no white space in so many characters; no text file is ever held as a whole.

    Args:
        paths: As for `check_paths`.
        text_field: As for `read_documents`.

    Raises:
        DataError: As `read_documents`.
    """
    for source in check_paths(paths):
        if isinstance(source, HubText):
            for text in read_data_set(source, text_field):
                yield from cut(io.StringIO(text))
        else:
            yield from read_file_in_pieces(source, text_field)
