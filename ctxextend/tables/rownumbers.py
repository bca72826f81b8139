"""Row numbers as stretches, and in words."""

from collections.abc import Iterable

__all__ = ["Span", "range_words", "ranges", "spans"]

# The first row of a stretch, and the row behind its last.
Span = tuple[int, int]

# Stretches that are named one by one.
NAMED = 10


def spans(rows: Iterable[int]) -> list[Span]:
    """Return ascending row numbers as stretches."""
    found: list[Span] = []
    for row in rows:
        if found and found[-1][1] == row:
            found[-1] = (found[-1][0], row + 1)
        else:
            found.append((row, row + 1))
    return found


def ranges(rows: Iterable[int]) -> str:
    """Return ascending row numbers in words, such as ``0, 510-511``."""
    found = [range_words(*span) for span in spans(rows)]
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def range_words(start: int, stop: int) -> str:
    """Return one stretch in words; `stop` is the row behind its last."""
    return str(start) if stop == start + 1 else f"{start}-{stop - 1}"
