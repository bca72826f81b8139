"""Windows of equal length, cut from documents, and the context lengths to measure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from ctxextend.errors import DataError
from ctxextend.held_out import Ids
from ctxextend.lab.reader import Reader
from ctxextend.lab.search_set import SearchSet
from ctxextend.settings import MIN_WINDOW

SHORTEST_CONTEXT = 128
DOUBLINGS = 3  # start from a shorter context if fewer would fit
SEARCH_FACTOR = 8  # tokens read to find long documents, per requested token


@dataclass(frozen=True)
class Texts:
    """What models read: documents, windows of equal length that are cut from them, a search set."""

    windows: tuple[Ids, ...] = ()  # each of shape (tokens,), in text order, without special tokens
    documents: tuple[Ids, ...] = ()  # the documents read, each of shape (tokens,)
    across_documents: bool = False  # whether windows span several documents
    # what limited the windows: ``tokens``, or the end of the ``text``; empty without any
    limited_by: str = ""
    length: int = 0  # tokens of a window, special tokens included
    lengths: tuple[int, ...] = ()  # context lengths to measure, shortest first
    seed: int = 0  # for masks and needles
    search_set: SearchSet | None = None
    base: Reader | None = None  # which has read all of it before any other model does
    memory: dict[Any, Any] = field(default_factory=dict)  # what measures compute once


def cut_windows(
    documents: Iterable[Ids],
    size: int,
    count: int,
    separator: int | None,
    *,
    one_each: bool = False,
) -> Texts:
    """Cut documents, each of shape (tokens,), into windows that do not overlap.

    Windows stay inside documents, unless that would leave more than half of the text unused: then
    documents are joined with a separator. Reading stops at the last document needed.

    Args:
        documents: Token ids of each document.
        size: Tokens of a window.
        count: Maximum number of windows.
        separator: The token between joined documents, or None.
        one_each: Take only the first window of each document.

    Raises:
        DataError: It is.
    """
    inside = list[Ids]()
    read = []
    tokens = 0
    limited_by = "text"
    for ids in documents:
        read.append(ids)
        tokens += len(ids)
        own = _cut(ids, size)
        inside += own[:1] if one_each else own
        if len(inside) >= count or tokens >= SEARCH_FACTOR * count * size:
            limited_by = "tokens"
            break
    inside = inside[:count]
    joined = _cut(join_documents(read, separator), size)[:count]
    if not joined:
        refuse_short_text(tokens, size)
    across = 2 * len(inside) < len(joined)
    windows = joined if across else inside
    if len(windows) == count:
        limited_by = "tokens"
    return Texts(
        windows=tuple(windows),
        documents=tuple(read),
        across_documents=across,
        limited_by=limited_by,
    )


def join_documents(documents: Sequence[Ids], separator: int | None) -> Ids:
    """Return all documents with a separator after each."""
    parts = [np.empty(0, np.int64)]
    for ids in documents:
        parts.append(ids)
        if separator is not None:
            parts.append(np.array([separator], np.int64))
    return np.concatenate(parts)


def _cut(ids: Ids, size: int) -> list[Ids]:
    return [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]


def refuse_short_text(tokens: int, size: int) -> NoReturn:
    """Refuse a text of so many tokens, fewer than a window of `size`.

    Raises:
        DataError: Always.
    """
    hint = "Pass more text with --data"
    shorter = 2 ** max(tokens.bit_length() - 1, 0)
    if shorter >= MIN_WINDOW:
        hint += f", or use shorter windows with --length {shorter}"
    raise DataError(f"The text has {tokens:,} tokens; one window needs {size:,}.", f"{hint}.")


def context_lengths(longest: int, base: int | None) -> tuple[int, ...]:
    """Return the context lengths to measure: doublings from a short one, and the base's length.

    The shortest is 128 or, if fewer than three doublings would fit, an eighth of the longest.
    """
    lengths = {longest}
    if base is not None:
        lengths.add(base)
    context = max(min(SHORTEST_CONTEXT, longest >> DOUBLINGS), 1)
    while context < longest:
        lengths.add(context)
        context *= 2
    return tuple(sorted(length for length in lengths if MIN_WINDOW <= length <= longest))
