"""Terminal pages: wrapped text, label-value lists and tables, fitted to a width."""

import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ctxextend.cli.console import Pieces
from ctxextend.errors import printable

if TYPE_CHECKING:
    from ctxextend.report.numbers import NumberFormat

Cell = str | tuple[str, str]  # text, or (text, style name)

MARGIN, GAP = 12, 2
MIN_WIDTH = 40  # minimum line width; text is unreadable below
MIN_VALUE_WIDTH = 18


@dataclass
class Page:
    """Lines to print, and the properties of the terminal."""

    width: int = sys.maxsize  # characters per line
    unicode: bool = True  # whether charts and numbers may use non-ASCII characters
    lines: list[Pieces] = field(default_factory=list)

    @classmethod
    def for_stdout(cls, width: int | None = None) -> "Page":
        """Return an empty page of the given width; by default the terminal's, or 80 columns in a pipe."""
        encoded = "\u28ff\u2588\u2524".encode(
            getattr(sys.stdout, "encoding", None) or "ascii", "replace"
        )
        return cls(
            max(width or shutil.get_terminal_size((80, 24)).columns, MIN_WIDTH), b"?" not in encoded
        )

    @cached_property
    def numbers(self) -> "NumberFormat":
        """The number format for this page's encoding."""
        from ctxextend.report.numbers import NumberFormat

        return NumberFormat("±" if self.unicode else "+-")

    def line(self, *cells: Cell) -> None:
        """Add a line without wrapping; an empty line without arguments."""
        self.lines.append([(cell, "") if isinstance(cell, str) else cell for cell in cells])

    def text(self, text: str, style: str = "", indent: str = "") -> None:
        """Add wrapped text; lines after the first are indented by two more characters."""
        text = re.sub(
            r" (±|\+-) ", "\0\\1\0", printable(text)
        )  # keep a number and its error on one line
        indents: dict[str, Any] = {"initial_indent": indent, "subsequent_indent": f"{indent}  "}
        for line in textwrap.wrap(text, self.width, **indents, break_on_hyphens=False):
            self.line((line.replace("\0", " "), style))

    def command(self, label: str, command: str) -> None:
        """Add a label and a shell command, wrapped between words with backslashes so that it can be pasted."""
        line = label
        for word in (printable(shlex.quote(word)) for word in shlex.split(command)):
            if len(line) > len(label) and len(line) + len(word) > self.width - GAP:
                self.line((f"{line}\\", "title"))
                line = " " * GAP
            line += f"{word} "
        self.line((line.rstrip(), "title"))

    def values(
        self, items: Iterable[tuple[str, str]], margin: int = MARGIN, style: str = "label"
    ) -> None:
        """Add (label, text) pairs in two columns; a repeated label is left blank."""
        previous = ""
        for label, text in items:
            lines = textwrap.wrap(
                printable(text), max(self.width - margin, MIN_VALUE_WIDTH), break_on_hyphens=False
            )
            for number, line in enumerate(lines or [""]):
                shown = label if number == 0 and label != previous else ""
                self.line((f"{shown:<{margin}}", style), line)
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

        Columns that do not fit go below the others, with the first column repeated (rich.table would wrap numbers);
        with `wrap`, the widest columns are narrowed instead. Column names, and texts wider than their column, wrap.
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
                        padded = (
                            text.ljust(sizes[column])
                            if column in left
                            else text.rjust(sizes[column])
                        )
                        line.append((" " * GAP * bool(line) + padded, row[column][1]))
                    self.lines.append(line)


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap text after spaces, dots, slashes and underscores, and elsewhere only if necessary."""
    lines = re.findall(rf".{{1,{width}}}(?:(?<=\w[\s_/]|[^\W\d]\.)|$)|.{{1,{width}}}", text) or [
        text
    ]
    return [line.rstrip() for line in lines]
