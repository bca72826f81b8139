"""From documents to windows of one length, and from a window to the pieces of it that are read at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError
from ctxextend.recipe import LEAST_LENGTH

Ids = NDArray[np.int64]

# The shortest context measured where that leaves at least three doublings.
SHORTEST_CONTEXT = 128
DOUBLINGS = 3
# Tokens that are looked through for documents as long as a window, for each token that is wanted.
LOOKED_THROUGH = 8


@dataclass(frozen=True)
class TextWindows:
    """Windows of one length, cut from documents."""

    windows: tuple[Ids, ...]  # each of shape (tokens,), in the order of the text
    documents: tuple[Ids, ...]  # those that were read, each of shape (tokens of it,)
    across_documents: bool  # whether windows run over the ends of documents


def cut_windows(
    documents: Iterable[Ids], size: int, wanted: int, separator: int | None, *, one_each: bool = False, least: int = 1
) -> TextWindows:
    """Cut documents into windows that do not overlap.

    Windows lie inside documents, unless those that are long enough would leave more than half of the text unused, or
    are too few: then documents are joined. No more is read than is needed.

    Args:
        documents: Token ids, each of shape (tokens of it,).
        size: Tokens of a window.
        wanted: Windows wanted, at most.
        separator: The token between documents that are joined; None is none.
        one_each: Whether a document gives one window, its first, and no more.
        least: Windows needed.

    Raises:
        DataError: The text is shorter than the windows needed.
    """
    inside: list[Ids] = []
    read: list[Ids] = []
    tokens = 0
    for ids in documents:
        read.append(ids)
        tokens += len(ids)
        inside += _cut(ids, size)[: 1 if one_each else None]
        if len(inside) >= wanted or tokens >= LOOKED_THROUGH * wanted * size:
            break
    inside = inside[:wanted]
    between = np.array([] if separator is None else [separator], np.int64)
    joined = _cut(np.concatenate([piece for ids in read for piece in (ids, between)]), size)[:wanted]
    if not joined and least == 1:
        shorter = next((2**power for power in range(20, 2, -1) if 2**power <= tokens), None)
        hint = f", or measure shorter windows with --length {shorter}" if shorter and shorter >= LEAST_LENGTH else ""
        raise DataError(
            f"The text has {tokens:,} tokens, and one window takes {size:,}.", f"Name more text with --data{hint}."
        )
    if len(joined) < least:
        raise DataError(
            f"The text has {tokens:,} tokens, and {least} windows of {size:,} are needed: fewer say nothing sure.",
            "Name more text.",
        )
    across = 2 * len(inside) < len(joined) or len(inside) < least
    return TextWindows(tuple(joined if across else inside), tuple(read), across)


def _cut(ids: Ids, size: int) -> list[Ids]:
    return [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]


def context_lengths(longest: int, base: int | None) -> tuple[int, ...]:
    """Return the contexts to measure: doublings up to the longest, and the length that the base reads.

    They begin at 128, or where `longest` is below 1,024 at an eighth of it.

    Args:
        longest: Tokens of the longest.
        base: Tokens that the base reads; None where it is not known.
    """
    context = min(SHORTEST_CONTEXT, longest >> DOUBLINGS)
    found = {longest} | ({base} if base is not None and base < longest else set())
    while context < longest:
        found |= {context} if context >= LEAST_LENGTH else set()
        context = max(2 * context, 1)
    return tuple(sorted(found))


@dataclass(frozen=True)
class Span:
    """A piece of a text that is read at once, `start` to `stop` - 1, whose tokens `first` to `last` - 1 are scored."""

    start: int
    stop: int
    first: int
    last: int


def spans(scored: tuple[int, int], tokens: int, size: int, stride: int, *, centred: bool) -> Iterator[Span]:
    """Yield the pieces of a text by which some of its tokens are scored, each of them once.

    Args:
        scored: The first token to score, and one behind the last.
        tokens: Tokens of the text.
        size: Tokens that are read at once, at most.
        stride: Tokens that are scored of each piece, at most.
        centred: Whether they stand in the middle of their piece, as masked tokens should, or at its end. At the end of
            the text they stand at the end of a piece as long as the others, or of a shorter one.
    """
    stride = min(stride, scored[1] - scored[0])
    before = (size - stride) // 2 if centred else size - stride
    for first in range(scored[0], scored[1], stride):
        last, start = min(first + stride, scored[1]), max(first - before, 0)
        if centred:
            start = min(start, max(tokens - size, 0))
        yield Span(start, min(start + size, tokens) if centred else last, first, last)
