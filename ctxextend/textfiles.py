"""Files that hold text: plain ones, lines of JSON and parquet, read only as far as they are asked for."""

import io
import json
import string
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ctxextend.errors import DataError

__all__ = ["PIECE", "SUFFIXES", "cut", "read_file", "read_file_in_pieces"]

LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
# Of a folder, the files that are taken for text.
SUFFIXES = (".txt", ".md", ".rst", ".text", *LINES, PARQUET)

# Characters of a piece: a tokenizer needs some 160 bytes for each token of it.
PIECE = 1 << 20
# Rows of a parquet file that are held at once.
ROWS = 64


def read_file(file: Path, text_field: str, characters: int | None = None) -> Iterator[str]:
    """Yield the documents of a file: a plain one is one, of JSONL each line is, of parquet each row.

    Args:
        file: A file, what it holds told by how its name ends.
        text_field: The key of a line, or the column, that holds the text; what is null there is left out.
        characters: Of each document, how many to read at most; None is all.

    Raises:
        DataError: It cannot be read, is no UTF-8, no JSONL or no parquet, or has no such field.
    """
    read = {**dict.fromkeys(LINES, _lines), PARQUET: _column}.get(file.suffix.lower())
    if read is not None:
        yield from (text[:characters] for text in read(file, text_field))
        return
    with _opened(file) as stream:
        # A stream makes room for all that it is asked for.
        yield stream.read(-1 if characters is None else min(characters, file.stat().st_size))


def read_file_in_pieces(file: Path, text_field: str) -> Iterator[tuple[str, bool]]:
    """Yield what `read_file` does in pieces, and whether a document ends with each; see `cut`.

    Raises:
        DataError: As `read_file`.
    """
    if file.suffix.lower() in (*LINES, PARQUET):
        for text in read_file(file, text_field):
            yield from cut(io.StringIO(text))
        return
    with _opened(file) as stream:
        yield from cut(stream)


def cut(stream: TextIO, size: int = PIECE) -> Iterator[tuple[str, bool]]:
    """Yield a document in pieces that part no word, and whether it ends with each.

    A piece ends in front of white space, as tokenizers part words. Where there is none it ends anywhere.

    Args:
        stream: The document.
        size: Characters of a piece, about; none has more than twice as many.
    """
    piece = stream.read(size)
    while following := stream.read(size):
        end = max(map(piece.rfind, string.whitespace))
        end = end if end > 0 else len(piece)
        yield piece[:end], False
        piece = piece[end:] + following
    yield piece, True


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    try:
        # Windows' programs put a mark in front of UTF-8, which is no text.
        with file.open(encoding="utf-8-sig") as stream:
            yield stream
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{error.object[error.start]:02x}, {error.reason}"
        raise DataError(f"{file} is not UTF-8: {wrong}.", "Convert it, for example with iconv.") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from error


def _lines(file: Path, text_field: str) -> Iterator[str]:
    with _opened(file) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield from _text(line, text_field, f"{file}, line {number}")


def _text(line: str, text_field: str, where: str) -> Iterator[str]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}, is no JSON: {str(error)[:200]}.", "Each line must be one JSON object.") from error
    if isinstance(content, dict) and text_field in content and content[text_field] is None:
        return
    if not isinstance(content, dict) or not isinstance(content.get(text_field), str):
        names = some(sorted(content)) if isinstance(content, dict) else f"a {type(content).__name__}"
        raise DataError(f"{where}, has no text in a field {text_field!r}; it has {names}.", "Name it: --text-field.")
    # Half of an escaped pair stands for no character, and no tokenizer takes it.
    yield content[text_field].encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _column(file: Path, text_field: str) -> Iterator[str]:
    """Yield the texts of a column of parquet, a few rows held at once."""
    buffers = {"buffer_size": PIECE, "pre_buffer": False}  # or all rows that were written together are held
    with _explained(file) as parquet, parquet.ParquetFile(file, **buffers) as table:
        _check_column(table.schema_arrow, text_field, file)
        for batch in table.iter_batches(ROWS, columns=[text_field], use_threads=False):
            yield from (text for text in batch.column(text_field).to_pylist() if text is not None)


@contextmanager
def _explained(file: Path) -> Iterator[Any]:
    """Yield the library that reads parquet, and turn what it says of a file into a DataError."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{file} needs pyarrow to be read.", "Install it: pip install 'ctxextend[train]'.") from error
    try:
        yield parquet
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())[:200]
        raise DataError(f"{file} cannot be read as parquet: {said}.", "Name a file that holds text.") from error


def _check_column(schema: Any, text_field: str, file: Path) -> None:
    from pyarrow import types

    if text_field not in schema.names:
        raise DataError(
            f"{file} has no column {text_field!r}; it has {some(schema.names)}.", "Name the text's: --text-field."
        )
    kind = schema.field(text_field).type
    held = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(held) or types.is_large_string(held) or types.is_string_view(held)):
        raise DataError(f"The column {text_field!r} of {file} holds {kind}, no text.", "Name the text's: --text-field.")


def some(names: Iterable[str]) -> str:
    """Return the first names of many as they are listed in a message."""
    return ", ".join(list(names)[:20]) or "none"
