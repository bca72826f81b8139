"""Text as one long row of tokens in a file, of which no more than a piece is ever held in memory."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import os_errors_as_output_error
from ctxextend.errors import DataError

__all__ = ["check_enough", "open_tokens", "pack", "split"]

Tokens = NDArray[np.int32]

# One token of how many is held out.
HELD_OUT = 20


def pack(
    pieces: Iterable[tuple[str, bool]],
    encode: Callable[[str], NDArray[np.int64]],
    separator: int | None,
    wanted: int,
    path: Path,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the tokens of a text into a file, one behind the other, until there are as many as are wanted.

    The file gets its name when it is complete. No more is read than is needed.

    Args:
        pieces: Of `read_pieces`: text, and whether a document ends with it.
        encode: Cuts a piece into tokens, shape (tokens,), without special ones.
        separator: The token behind each document; None is none.
        wanted: Tokens wanted, at most.
        path: The file: int32 in the machine's own byte order and nothing else.
        progress: Told how many tokens were written since the last call.

    Returns:
        How many tokens there are.

    Raises:
        DataError: As what gives the pieces.
        OutputError: The file cannot be written.
    """
    unfinished, written = path.with_name(f"{path.name}.unfinished"), 0
    try:
        with os_errors_as_output_error(path), unfinished.open("wb") as file:
            for ids in _tokens(pieces, encode, separator):
                part = ids[: wanted - written].astype(np.int32)
                file.write(part.data)
                written += len(part)
                if progress is not None:
                    progress(len(part))
                if written >= wanted:
                    break
            file.flush()
            os.fsync(file.fileno())
        with os_errors_as_output_error(path):
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return written


def _tokens(
    pieces: Iterable[tuple[str, bool]], encode: Callable[[str], NDArray[np.int64]], separator: int | None
) -> Iterator[NDArray[np.int64]]:
    for piece, is_end in pieces:
        yield encode(piece)
        if is_end and separator is not None:
            yield np.array([separator], np.int64)


def open_tokens(path: Path) -> Tokens:
    """Return the tokens that `pack` wrote, shape (tokens,), read from the file as they are asked for."""
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, np.int32)
    return np.memmap(path, np.int32, mode="r")


def split(tokens: Tokens, window: int) -> tuple[Tokens, Tokens]:
    """Part tokens in those to train on and those at their end, a twentieth of them, that are held out.

    Args:
        tokens: Shape (tokens,).
        window: Tokens of text in a sequence; at least so many are held out.

    Returns:
        Two views, which do not overlap.

    Raises:
        DataError: One of them would hold less than a window.
    """
    if len(tokens) < 2 * window:
        raise _too_few(len(tokens), f"{2 * window:,} are needed: a sequence to train on, and one held out")
    first = len(tokens) - max(len(tokens) // HELD_OUT, window)
    return tokens[:first], tokens[first:]


def check_enough(tokens: Tokens, window: int, what: str = "The text") -> None:
    """Refuse a text that is shorter than a sequence.

    Args:
        tokens: Shape (tokens,).
        window: Tokens of text in a sequence.
        what: What to call it.

    Raises:
        DataError: There are fewer tokens.
    """
    if len(tokens) < window:
        raise _too_few(len(tokens), f"a sequence takes {window:,}", what)


def _too_few(tokens: int, needed: str, what: str = "The text") -> DataError:
    return DataError(
        f"{what} has {tokens:,} tokens, and {needed}.",
        "Name more text with --data, text to measure on with --eval-data, or a shorter --seq-len or --window.",
    )
