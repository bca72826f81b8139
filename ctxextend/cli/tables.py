"""Texts and tables as the lines of a screen.

rich.table would fold numbers where a window is narrow; here columns that do not fit go below the others.
"""

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence

from ctxextend.cli.output import Pieces, printable

# A text, or one with the name of its style.
Cell = str | tuple[str, str]

MARGIN = 12
GAP = 2
NARROWEST_TEXT = 18


def wrapped(text: str, width: int, style: str = "", indent: str = "") -> Iterator[Pieces]:
    """Yield a text in lines, those behind the first indented by two characters more."""
    text = printable(text)
    for sign in ("\u00b1", "+-"):  # a number stays in one line with its error
        text = text.replace(f" {sign} ", f"\0{sign}\0")
    # Hyphens stand in ranges and names, which stay whole.
    lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
    yield from ([(line.replace("\0", " "), style)] for line in lines)


def sentence(text: str, width: int, style: str = "") -> Iterator[Pieces]:
    """Yield a text in lines, beginning with a capital."""
    return wrapped(text[:1].upper() + text[1:], width, style)


def labelled(items: Iterable[tuple[str, str]], width: int, margin: int = MARGIN) -> Iterator[Pieces]:
    """Yield texts, each beside its label, in a column behind a margin."""
    for label, text in items:
        room = max(width - margin, NARROWEST_TEXT)
        lines = textwrap.wrap(printable(text), room, break_on_hyphens=False) or [""]
        yield [(f"{label:<{margin}}", "label"), (lines[0], "")]
        yield from ([(" " * margin + line, "")] for line in lines[1:])


def flowed(parts: Iterable[Pieces], width: int) -> Iterator[Pieces]:
    """Yield parts behind one another, in as many lines as that takes."""
    line: Pieces = []
    for part in parts:
        if line and sum(len(text) for text, _ in (*line, *part)) > width:
            yield line
            line = []
        line = [*line, *part]
    yield line


def table(
    header: Sequence[str], rows: Iterable[Sequence[Cell]], width: int | None = None, left: Collection[int] = (0,)
) -> Iterator[Pieces]:
    """Yield a table; columns that find no room stand below the others, behind the first column once more.

    Args:
        header: What stands above each column; empty for none.
        rows: As many cells each.
        width: Characters of a line; None is as many as it takes.
        left: The columns that are set to the left, the others to the right.
    """
    grid = [[(name, "label") for name in header]] * bool(header)
    grid += [[cell if isinstance(cell, tuple) else (cell, "") for cell in row] for row in rows]
    sizes = [max(len(text) for text, _ in column) for column in zip(*grid, strict=True)]
    parts: list[list[int]] = [[]]
    for column in range(1, len(sizes)):
        taken = sizes[0] + sum(sizes[other] + GAP for other in (*parts[-1], column))
        if width is not None and parts[-1] and taken > width:
            parts.append([])
        parts[-1].append(column)
    for columns in parts:
        for row in grid:
            yield [_padded(row[0], sizes[0], 0 in left)] + [
                _padded(row[column], sizes[column], column in left, " " * GAP) for column in columns
            ]


def _padded(cell: tuple[str, str], size: int, is_left: bool, gap: str = "") -> tuple[str, str]:
    text, style = cell
    return gap + (text.ljust(size) if is_left else text.rjust(size)), style


def end_of(text: str, room: int) -> str:
    """Return a text, or as much of its end as there is room for."""
    return text if len(text) <= room else f"...{text[len(text) - room + 3 :]}"
