"""All output of the command line: data on stdout, everything else on stderr.

A page has wrapped text, lists of labels and values, and tables, fitted to a width.
"""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from ctxextend.errors import (
    OutputError,
    RecipeChangeError,
    RecipeError,
    printable,
    size_text,
    without_tokens,
)
from ctxextend.json_output import to_json
from ctxextend.progress import Progress

if TYPE_CHECKING:
    from ctxextend.lab.evaluation import Evaluation

SCHEMA_VERSION = 1
# Exit codes: a flag does not apply, a check failed, after Ctrl-C.
WRONG_USAGE = 2
FAILED_CHECK = 3
INTERRUPTED = 130
Pieces = list[tuple[str, str]]  # a line of output as (text, style name) pairs
Cell = str | tuple[str, str]  # text, or (text, style name)
# Paths of figures and reports (None: not requested), each with the function that writes it.
Files = Sequence[tuple[Path | None, Callable[[Path], None]]]
STYLES: dict[str, dict[str, Any]] = {  # keyword arguments of `typer.style`
    "": {},
    "title": {"bold": True},
    "faint": {"dim": True},
    "label": {"bold": True, "fg": "cyan"},
    "wrong": {"bold": True, "fg": "red"},
    "right": {"fg": "green"},
    "learned": {"fg": "cyan"},
    "second": {"fg": "green"},
    "new": {"fg": "yellow"},
    "flag": {"fg": "cyan"},
}
INDENT = "  "  # of lines of a text after the first
MARGIN = 12  # width of a column of labels
GAP = 2  # spaces between columns
MIN_WIDTH = 40  # minimum line width; text is unreadable below
MIN_VALUE_WIDTH = 18
CHART_CHARACTERS = "\u28ff\u2588\u00d7\u2524"
_wrap = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)


@dataclass
class Page:
    """Lines to print, and the properties of the terminal."""

    width: int = sys.maxsize  # characters per line
    unicode: bool = True  # whether charts may use non-ASCII characters
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

    def line(self, *cells: Cell) -> None:
        """Add a line without wrapping; an empty line without arguments."""
        self.lines.append([(cell, "") if isinstance(cell, str) else cell for cell in cells])

    def text(self, text: str, style: str = "", indent: str = "") -> None:
        """Add wrapped text; lines after the first are indented by two more characters."""
        lines = _wrap(
            printable(text),
            self.width,
            initial_indent=indent,
            subsequent_indent=f"{indent}{INDENT}",
        )
        self.lines += [[(line, style)] for line in lines]

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
                self.lines.append([(f"{shown:<{margin}}", style), (line, "")])
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

        With `wrap`, the widest columns are narrowed if the table is too wide, at most to their
        longest word, and their texts wrap.
        """
        grid = list[Pieces]()
        if header:
            grid.append([(name, "label") for name in header])
        for row in rows:
            grid.append([(cell, "") if isinstance(cell, str) else cell for cell in row])
        widths = list[int]()
        words = list[int]()  # the length of the longest one of each column
        for cells in zip(*grid, strict=True):
            texts = [text for text, _ in cells]
            widths.append(max(map(len, texts)))
            words.append(max((len(word) for text in texts for word in text.split()), default=0))
        gaps = GAP * (len(widths) - 1)
        while wrap and sum(widths) + gaps > self.width:
            wider = [column for column, width in enumerate(widths) if width > words[column]]
            if not wider:
                break
            widest = max(wider, key=lambda column: widths[column])
            widths[widest] -= 1
        for row in grid:
            wrapped = [
                _wrap(text, width) or [""] for (text, _), width in zip(row, widths, strict=True)
            ]
            for lines in zip_longest(*wrapped, fillvalue=""):
                line: Pieces = []
                for column, text in enumerate(lines):
                    align = str.ljust if column in left else str.rjust
                    padded = align(text, widths[column])
                    if line:
                        padded = f"{'':{GAP}}{padded}"
                    line.append((padded, row[column][1]))
                self.lines.append(line)


@dataclass(frozen=True)
class Console:
    """Prints the results, notes and errors of a command."""

    as_json: bool = False  # one JSON object on stdout instead of text
    quiet: bool = False  # only errors on stderr
    is_path_only: bool = False  # only the output's path on stdout; screens go to stderr
    printed: set[str] = field(default_factory=set)  # lines that were printed to stderr

    def data(self, text: str) -> None:
        """Print the result as text; nothing with --json, where `result` prints it."""
        if not self.as_json:
            _print(rendered([(line, "")] for line in text.split("\n")))

    def lines(self, *lines: str) -> None:
        """Print lines that a program reads, as they are."""
        if lines:
            _print("\n".join(lines))

    def screen(self, lines: Iterable[Pieces]) -> None:
        """Print styled lines, in colour if stdout is a terminal that supports it."""
        if self.is_path_only and not self.as_json:
            self.report(lines)
        elif not self.as_json:
            _print(rendered(lines, sys.stdout))

    def result(self, command: str, value: Any, warnings: Sequence[str] | None = ()) -> None:
        """Print a result as the command's JSON object if --json is set.

        Args:
            command: The command.
            value: Its result.
            warnings: Its warnings; None if the result has notes.
        """
        if not self.as_json:
            return
        frame: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "command": command}
        if warnings is not None:
            frame["warnings"] = list(warnings)
        _print_json(frame | to_json(value))

    def report(self, lines: Iterable[Pieces]) -> None:
        """Print styled lines to stderr, in colour if it is a terminal that supports it."""
        lines = list(lines)
        if lines and not self.quiet:
            _print(rendered(lines, sys.stderr), is_error=True)

    def note(self, *lines: str) -> None:
        """Print lines to stderr; line breaks inside one, e.g. in a file name, are escaped."""
        self.printed.update(lines)
        if lines:
            self.report([(line, "")] for line in lines)

    def next_steps(self, *commands: str) -> None:
        """Print up to three suggested next commands, only on a terminal."""
        if commands and not self.as_json and sys.stdout.isatty() and sys.stderr.isatty():
            self.note("Next:", *(f"  {command}" for command in commands[:3]))

    def warning(self, *texts: str) -> None:
        """Print warnings to stderr, each of them once."""
        lines = [f"Warning: {text}" for text in texts]
        self.note(*(line for line in lines if line not in self.printed))

    def failure(self, kind: str, message: str, hint: str | None) -> None:
        """Print an error and its hint as text, with --json also as an object."""
        lines = [f"Error: {message}"]
        if kind in (RecipeError.__name__, RecipeChangeError.__name__):
            lines = lines[0].split("\n")  # one per error
        if hint:
            lines.append(hint)
        _print(rendered([(line, "")] for line in lines), is_error=True)
        self.error_object(kind, message, hint)

    def interrupted(self, message: str) -> None:
        """Print what an interrupted command has kept."""
        _print(printable(message), is_error=True)
        self.error_object("Interrupted", message)

    def error_object(self, kind: str, message: str, hint: str | None = None) -> None:
        """Print an error as a JSON object if --json is set, if possible."""
        if self.as_json:
            error = {"type": kind, "message": message, "hint": hint}
            with suppress(OutputError):  # the text on stderr remains
                _print_json({"error": error})

    def measurement(
        self,
        command: str,
        result: "Evaluation",
        lines: Iterable[Pieces],
        files: Files,
        value: Any = None,
    ) -> None:
        """Write the files and print the result of a measurement.

        Raises:
            typer.Exit: A file could not be written.
        """
        failures = list[str]()
        for path, write in files:  # before printing, which fails when a pipe is closed
            if path is None:
                continue
            try:
                write(path)
            except OutputError as error:  # still print what may have taken hours to measure
                failures.append(str(error))
        self.note(*result.notes)
        self.warning(*result.warnings)
        self.screen(lines)
        self.result(command, value or result, [*result.warnings, *failures])
        self.note(*(f"Error: {failure}" for failure in failures))
        if failures:
            raise typer.Exit(1)

    @contextmanager
    def progress(self, action: str, unit: str = "bytes") -> Iterator[Progress]:
        """Show a progress bar with speed and remaining time on a terminal."""
        bar: Any = None
        if sys.stderr.isatty() and not self.quiet:
            from rich import console, progress

            bar = progress.Progress(
                "{task.description}",
                progress.BarColumn(),
                progress.TaskProgressColumn(),
                "{task.fields[speed]}",
                progress.TimeRemainingColumn(compact=True),
                console=console.Console(stderr=True),
                transient=True,
            )

        def update(advance: int, total: int, label: str = "") -> None:
            if bar is None:
                return
            per_second = bar.tasks[0].speed
            speed = ""
            if per_second and unit == "bytes":
                speed = f"{size_text(per_second)}/s"
            elif per_second:
                speed = f"{per_second:,.0f} {unit}/s"
            description = f"{action} {label}".rstrip()
            bar.update(task, advance=advance, total=total, description=description, speed=speed)

        if bar is None:
            yield update
            return
        with bar:
            task = bar.add_task(action, total=None, speed="")
            yield update


def rendered(lines: Iterable[Pieces], stream: TextIO | None = None) -> str:
    """Return lines as text, with colours if a stream is a terminal: see https://no-color.org."""
    is_plain = stream is None or not stream.isatty()
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        is_plain = True
    texts = list[str]()
    for line in lines:
        if is_plain:
            texts.append(printable("".join(text for text, _ in line)).rstrip())
            continue
        parts = list[str]()
        for text, style in line:
            part = printable(text)
            if style:
                part = typer.style(part, **STYLES[style])
            parts.append(part)
        texts.append("".join(parts))
    return "\n".join(texts)


def _print(text: str, *, is_error: bool = False) -> None:
    """Print to stdout or stderr; a run does not fail because stderr is closed or full."""
    stream = sys.stdout
    if is_error:
        stream = sys.stderr
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        if is_error:
            sys.stderr = null_stream()
            return
        if isinstance(error, BrokenPipeError):
            raise
        sys.stdout = null_stream()  # the flush at exit must not fail again
        message = f"Cannot print the result: {error.strerror}."
        raise OutputError(message, "The command itself succeeded.") from error


def _print_json(value: dict[str, Any]) -> None:
    _print(without_tokens(json.dumps(value, indent=2)))


def null_stream() -> TextIO:
    """Return a stream that discards everything."""
    return Path(os.devnull).open("w")
