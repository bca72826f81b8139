"""Pages of a terminal: texts, lists of labels and values, and tables, as wide as what shows them.

rich.table would fold numbers where a window is narrow; here columns that do not fit go below the others.
"""

import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING

from ctxextend.cli.output import Pieces
from ctxextend.errors import printable

if TYPE_CHECKING:
    from ctxextend.report.numbers import NumberFormat

# A text, or one with the name of its style.
Cell = str | tuple[str, str]

MARGIN, GAP = 12, 2
MIN_WIDTH = 40  # texts cannot be wrapped any narrower and still be read
NARROWEST_VALUE = 18


@dataclass
class Page:
    """Lines, and what they are made for."""

    width: int = sys.maxsize  # characters of a line
    unicode: bool = True  # whether charts and figures may use more than ASCII
    lines: list[Pieces] = field(default_factory=list)

    @classmethod
    def of_stdout(cls, width: int | None = None) -> "Page":
        """Return an empty page as wide as was asked for, as the terminal, or of 80 columns in a pipe."""
        shown = "\u28ff\u2588\u2524".encode(getattr(sys.stdout, "encoding", None) or "ascii", "replace")
        return cls(max(width or shutil.get_terminal_size((80, 24)).columns, MIN_WIDTH), b"?" not in shown)

    @cached_property
    def numbers(self) -> "NumberFormat":
        """How numbers with errors are written here."""
        from ctxextend.report.numbers import NumberFormat

        return NumberFormat("±" if self.unicode else "+-")

    def line(self, *cells: Cell) -> None:
        """Add a line as it is; an empty one without any text."""
        self.lines.append([(cell, "") if isinstance(cell, str) else cell for cell in cells])

    def text(self, text: str, style: str = "", indent: str = "") -> None:
        """Add a text in lines, those behind the first indented by two characters more."""
        text = re.sub(r" (±|\+-) ", "\0\\1\0", printable(text))  # a number stays in one line with its error
        behind = f"{indent}  "
        # Hyphens stand in ranges and names, which stay whole.
        lines = textwrap.wrap(text, self.width, initial_indent=indent, subsequent_indent=behind, break_on_hyphens=False)
        for line in lines:
            self.line((line.replace("\0", " "), style))

    def command(self, label: str, command: str) -> None:
        """Add a command behind its label, in lines that a shell joins again; no word of it is broken."""
        line = label
        for word in (printable(shlex.quote(word)) for word in shlex.split(command)):
            if len(line) > len(label) and len(line) + len(word) > self.width - GAP:
                self.line((f"{line}\\", "title"))
                line = " " * GAP
            line += f"{word} "
        self.line((line.rstrip(), "title"))

    def values(self, items: Iterable[tuple[str, str]], margin: int = MARGIN, style: str = "label") -> None:
        """Add texts behind a margin, each beside its label, which is not repeated."""
        previous = ""
        for label, text in items:
            lines = textwrap.wrap(printable(text), max(self.width - margin, NARROWEST_VALUE), break_on_hyphens=False)
            for number, line in enumerate(lines or [""]):
                shown = label if number == 0 and label != previous else ""
                self.line((f"{shown:<{margin}}", style), line)
            previous = label or previous

    def flow(self, parts: Iterable[Pieces]) -> None:
        """Add parts behind one another, in as many lines as that takes."""
        line: Pieces = []
        for part in parts:
            if line and sum(len(text) for text, _ in (*line, *part)) > self.width:
                self.lines.append(line)
                line = []
            line = [*line, *part]
        self.lines.append(line)

    def table(
        self, header: Sequence[str], rows: Iterable[Sequence[Cell]], left: Collection[int] = (0,), *, wrap: bool = False
    ) -> None:
        """Add a table, the columns of `left` set to the left.

        Columns that find no room go below the others, behind the first column once more; with `wrap`, the widest get
        narrower instead. Names of columns are wrapped, and so are texts that are wider than their column.
        """
        grid = [[(name, "label") for name in header]] * bool(header)
        grid += [[(cell, "") if isinstance(cell, str) else cell for cell in row] for row in rows]
        sizes = [max(len(text) for text, _ in column) for column in zip(*grid, strict=True)]
        while wrap and sum(sizes) + GAP * (len(sizes) - 1) > self.width:
            sizes[sizes.index(max(sizes))] -= 1
        parts: list[list[int]] = [[0]]
        for column in range(1, len(sizes)):
            body = max((len(row[column][0]) for row in grid[bool(header) :]), default=0)
            sizes[column] = min(sizes[column], max(self.width - sizes[0] - GAP, body, 1))
            taken = sum(sizes[other] + GAP for other in (*parts[-1], column)) - GAP
            if len(parts[-1]) > 1 and taken > self.width:
                parts.append([0])
            parts[-1].append(column)
        for columns in parts:
            for row in grid:
                cells = [_wrapped(row[column][0], sizes[column]) for column in columns]
                for texts in zip_longest(*cells, fillvalue=""):
                    line: Pieces = []
                    for column, text in zip(columns, texts, strict=True):
                        padded = text.ljust(sizes[column]) if column in left else text.rjust(sizes[column])
                        line.append((" " * GAP * bool(line) + padded, row[column][1]))
                    self.lines.append(line)


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text behind spaces, dots, slashes and underscores, and elsewhere only where it must."""
    found = re.findall(rf".{{1,{width}}}(?:(?<=\w[\s._/])|$)|.{{1,{width}}}", text) or [text]
    return [line.rstrip() for line in found]
