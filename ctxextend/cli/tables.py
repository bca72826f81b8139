"""Terminal pages: wrapped text, label-value lists and tables, fitted to a width."""

import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from ctxextend.cli.console import Pieces
from ctxextend.errors import printable

if TYPE_CHECKING:
    from ctxextend.report.numbers import NumberFormat

Cell = str | tuple[str, str]  # text, or (text, style name)
Grid = list[list[tuple[str, str]]]  # rows of (text, style name)

INDENT = "  "  # of lines of a text after the first
MARGIN = 12  # width of a column of labels
GAP = 2  # spaces between columns
MIN_WIDTH = 40  # minimum line width; text is unreadable below
MIN_VALUE_WIDTH = 18
CHART_CHARACTERS = "\u28ff\u2588\u00d7\u2524"


@dataclass
class Page:
    """Lines to print, and the properties of the terminal."""

    width: int = sys.maxsize  # characters per line
    unicode: bool = True  # whether charts and numbers may use non-ASCII characters
    has_charts: bool = False  # whether curves are drawn, by a library that takes time to import
    lines: list[Pieces] = field(default_factory=list)

    @classmethod
    def for_stdout(cls) -> "Page":
        """Return an empty page, as wide as ``COLUMNS`` or the terminal says, or 80 characters."""
        columns = shutil.get_terminal_size((80, 24)).columns
        encoding = getattr(sys.stdout, "encoding", None) or "ascii"
        encoded = CHART_CHARACTERS.encode(encoding, "replace")
        unicode = b"?" not in encoded
        return cls(
            width=max(columns, MIN_WIDTH),
            unicode=unicode,
            has_charts=unicode and sys.stdout.isatty(),
        )

    @classmethod
    def for_terminal(cls) -> "Page":
        """Return an empty page that wraps on a terminal, and has no width in a pipe."""
        if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
            return cls.for_stdout()
        return cls()

    @cached_property
    def numbers(self) -> "NumberFormat":
        """The number format for this page's encoding."""
        from ctxextend.report.numbers import NumberFormat

        return NumberFormat("±" if self.unicode else "+-")

    def line(self, *cells: Cell) -> None:
        """Add a line without wrapping; an empty line without arguments."""
        self.lines.append(_with_styles(cells))

    def text(self, text: str, style: str = "", indent: str = "") -> None:
        """Add wrapped text; lines after the first are indented by two more characters."""
        for line in _wrap(printable(text), self.width, indent, f"{indent}{INDENT}"):
            self.line((line, style))

    def verdict(self, text: str, *, is_good: bool) -> None:
        """Add wrapped text in the style of a good or of a bad result."""
        style = "right" if is_good else "wrong"
        self.text(text, style)

    def command(self, label: str, command: str) -> None:
        """Add a label and a shell command on one line, so that it can be copied.

        A command that does not fit next to the label goes below it, and may be longer than a line.
        """
        shown = printable(command)
        if len(label) + len(shown) > self.width:
            self.line((label.rstrip(), "title"))
            label = INDENT
        self.line((f"{label}{shown}", "title"))

    def values(
        self, items: Iterable[tuple[str, str]], margin: int = MARGIN, style: str = "label"
    ) -> None:
        """Add (label, text) pairs in two columns; a repeated label is left blank."""
        width = max(self.width - margin, MIN_VALUE_WIDTH)
        previous = ""
        for label, text in items:
            shown = "" if label == previous else label
            for line in _wrap(printable(text), width) or [""]:
                self.line((f"{shown:<{margin}}", style), line)
                shown = ""
            previous = label or previous

    def flow(self, parts: Iterable[Pieces]) -> None:
        """Add parts from left to right, wrapping between parts."""
        line: Pieces = []
        for part in parts:
            if line and sum(len(text) for text, _ in (*line, *part)) > self.width:
                self.lines.append(line)
                line = []
            line = [*line, *part]
        self.lines.append(line)

    def table(
        self,
        header: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        left: Collection[int] = (0,),
        *,
        wrap: bool = False,
    ) -> None:
        """Add a table; columns in `left` are left-aligned.

        Columns that do not fit go below the others, with the first column repeated (rich.table
        would wrap numbers); with `wrap`, the widest columns are narrowed first, at most to their
        longest word. Texts wider than their column wrap at words.
        """
        body = [_with_styles(row) for row in rows]
        grid = list(body)
        if header:
            grid.insert(0, [(name, "label") for name in header])
        widths = _widest(grid)
        words = list[int]()  # the length of the longest one of each column
        for cells in zip(*grid, strict=True):
            found = chain.from_iterable(text.split() for text, _ in cells)
            words.append(max(map(len, found), default=0))
        gaps = GAP * (len(widths) - 1)
        while wrap and sum(widths) + gaps > self.width:
            wider = [column for column, width in enumerate(widths) if width > words[column]]
            if not wider:
                break
            widest = max(wider, key=lambda column: widths[column])
            widths[widest] -= 1
        fewest = _widest(body) if body else [0] * len(widths)
        for column in range(1, len(widths)):
            # Only column names wrap if they do not fit next to the first column.
            most = max(self.width - widths[0] - GAP, fewest[column], words[column], 1)
            widths[column] = min(widths[column], most)
        # If it is too wide, each part begins with the first column.
        parts = [[0]]
        taken = widths[0]
        for column in range(1, len(widths)):
            if len(parts[-1]) > 1 and taken + GAP + widths[column] > self.width:
                parts.append([0])
                taken = widths[0]
            parts[-1].append(column)
            taken += GAP + widths[column]
        for columns in parts:
            for row in grid:
                self.lines += _row_lines(row, columns, widths, left)


def _wrap(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _with_styles(cells: Iterable[Cell]) -> Pieces:
    return [(cell, "") if isinstance(cell, str) else cell for cell in cells]


def _widest(grid: Grid) -> list[int]:
    return [max(len(text) for text, _ in column) for column in zip(*grid, strict=True)]


def _row_lines(
    row: Pieces, columns: Sequence[int], widths: Sequence[int], left: Collection[int]
) -> Iterator[Pieces]:
    wrapped = [_wrap(row[column][0], widths[column]) or [""] for column in columns]
    for texts in zip_longest(*wrapped, fillvalue=""):
        line: Pieces = []
        for column, text in zip(columns, texts, strict=True):
            align = str.ljust if column in left else str.rjust
            padded = align(text, widths[column])
            if line:
                padded = f"{'':{GAP}}{padded}"
            line.append((padded, row[column][1]))
        yield line
