"""Texts and tables as the lines of a screen."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ctxextend.cli.chart import Pieces
from ctxextend.cli.output import one_line

__all__ = ["Cell", "Screen", "end_of", "flowed", "labelled", "table", "wrapped"]

# A text with the name of its style.
Cell = tuple[str, str]

MARGIN = 12
GAP = 2
NARROWEST_TEXT = 18
# Between a number and its error, which stay in one line.
SIGNS = ("\u00b1", "+-")


@dataclass(frozen=True)
class Screen:
    """What lines are made for.

    Attributes:
        width: Characters of a line.
        height: Lines of a chart.
        unicode: Whether more than ASCII may be used.
    """

    width: int
    height: int
    unicode: bool

    def says(self, text: str, style: str = "") -> Iterator[Pieces]:
        """Yield a sentence in lines."""
        return wrapped("", text[:1].upper() + text[1:], self.width, style)


def wrapped(indent: str, text: str, width: int, style: str = "") -> Iterator[Pieces]:
    """Yield a text in lines, those behind the first indented by two characters more."""
    behind, text = indent + "  ", one_line(text)
    for sign in SIGNS:
        text = text.replace(f" {sign} ", f"\0{sign}\0")
    # Hyphens stand in ranges and names, which stay whole.
    lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=behind, break_on_hyphens=False)
    yield from ([(line.replace("\0", " "), style)] for line in lines)


def labelled(items: Iterable[tuple[str, str]], width: int, margin: int = MARGIN) -> Iterator[Pieces]:
    """Yield texts, each beside its label, in a column behind a margin."""
    for label, text in items:
        lines = textwrap.wrap(one_line(text), max(width - margin, NARROWEST_TEXT), break_on_hyphens=False) or [""]
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


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> Iterator[Pieces]:
    """Yield a table; columns that find no room stand below the others, behind the first column once more.

    Args:
        header: What stands above each column.
        rows: As many cells each; the first is set to the left, the others to the right.
        width: Characters of a line.
    """
    grid = [[(name, "label") for name in header], *rows]
    sizes = [max(len(row[column][0]) for row in grid) for column in range(len(header))]
    for columns in _beside_each_other(sizes, width):
        for row in grid:
            first = f"{row[0][0]:<{sizes[0]}}", row[0][1]
            yield [first, *((f"{row[column][0]:>{sizes[column] + GAP}}", row[column][1]) for column in columns)]


def _beside_each_other(sizes: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield which columns but the first fit into a line each time."""
    columns: list[int] = []
    for column in range(1, len(sizes)):
        room = width - sizes[0] - sum(sizes[other] + GAP for other in columns)
        if columns and sizes[column] + GAP > room:
            yield columns
            columns = []
        columns.append(column)
    yield columns


def end_of(text: str, room: int) -> str:
    """Return a text, or as much of its end as there is room for."""
    return text if len(text) <= room else f"...{text[len(text) - room + 3 :]}"
