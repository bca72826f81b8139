"""All output of the command line: data on stdout, everything else on stderr."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
from ctxextend.progress import Progress, no_progress

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Comparison
    from ctxextend.evaluation.evaluation_result import Evaluation

SCHEMA_VERSION = 1
# Exit codes: a flag does not apply, a check failed, after Ctrl-C.
WRONG_USAGE = 2
FAILED_CHECK = 3
INTERRUPTED = 130
Pieces = list[tuple[str, str]]  # a line of output as (text, style name) pairs
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
}


@dataclass(frozen=True)
class Console:
    """Prints the results, notes and errors of a command."""

    as_json: bool = False  # one JSON object on stdout instead of text
    quiet: bool = False  # only errors on stderr
    is_path_only: bool = False  # only the output's path on stdout; screens go to stderr
    # Only errors on stderr: in processes of torchrun or accelerate but that of rank 0.
    silent: bool = field(
        default_factory=lambda: (
            os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"
        )
    )

    printed: set[str] = field(default_factory=set)  # lines that were printed to stderr

    def data(self, text: str) -> None:
        """Print the result as text; nothing with --json, where `result` prints it."""
        if not (self.as_json or self.silent):
            _print("\n".join(map(printable, text.split("\n"))))

    def lines(self, *lines: str) -> None:
        """Print lines that a program reads, as they are."""
        if lines and not self.silent:
            _print("\n".join(lines))

    def screen(self, lines: Iterable[Pieces]) -> None:
        """Print styled lines, in colour if stdout is a terminal that supports it."""
        if self.is_path_only and not self.as_json:
            self.note(*(styled(line, colour=False) for line in lines))
        elif not (self.as_json or self.silent):
            _print("\n".join(styled(line, colour=in_colour()) for line in lines))

    def result(self, command: str, value: Any, warnings: Sequence[str] | None = ()) -> None:
        """Print a result as the command's JSON object if --json is set.

        Args:
            command: The command.
            value: Its result.
            warnings: Its warnings; None if the result has notes.
        """
        if not self.as_json or self.silent:
            return
        frame: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "command": command}
        if warnings is not None:
            frame["warnings"] = list(warnings)
        _print_json(frame | to_json(value))

    def report(self, lines: Iterable[Pieces]) -> None:
        """Print styled lines to stderr, in colour if it is a terminal that supports it."""
        if not (self.quiet or self.silent):
            colour = in_colour(sys.stderr)
            _print_lines(*(styled(line, colour=colour) for line in lines))

    def note(self, *lines: str) -> None:
        """Print lines to stderr; line breaks inside one, e.g. in a file name, are escaped."""
        self.printed.update(lines)
        if lines and not (self.quiet or self.silent):
            _print_error(*lines)

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
        _print_error(*lines)
        self.error_object(kind, message, hint)

    def interrupted(self, message: str) -> None:
        """Print what an interrupted command has kept; only the first process does."""
        if not self.silent:
            _print_error(message)
            self.error_object("Interrupted", message)

    def error_object(self, kind: str, message: str, hint: str | None = None) -> None:
        """Print an error as a JSON object if --json is set, if possible."""
        if self.as_json and not self.silent:
            error = {"type": kind, "message": message, "hint": hint}
            with suppress(OutputError):  # the text on stderr remains
                _print_json({"error": error})

    def measurement(
        self,
        command: str,
        result: "Evaluation | Comparison",
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
        if self.quiet or self.silent or not sys.stderr.isatty():
            yield no_progress
            return
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
        with bar:
            task = bar.add_task(action, total=None, speed="")

            def update(advance: int, total: int, label: str = "") -> None:
                per_second = bar.tasks[0].speed
                speed = ""
                if per_second and unit == "bytes":
                    speed = f"{size_text(per_second)}/s"
                elif per_second:
                    speed = f"{per_second:,.0f} {unit}/s"
                bar.update(
                    task,
                    advance=advance,
                    total=total,
                    description=f"{action} {label}".rstrip(),
                    speed=speed,
                )

            yield update


def styled(line: Pieces, *, colour: bool) -> str:
    """Render a line for printing."""
    if not colour:
        return "".join(printable(text) for text, _ in line).rstrip()
    parts = []
    for text, style in line:
        part = printable(text)
        if style:
            part = typer.style(part, **STYLES[style])
        parts.append(part)
    return "".join(parts)


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = null_stream()  # the flush at exit must not fail again
        raise OutputError(
            f"Cannot print the result: {error.strerror}.", "The command itself succeeded."
        ) from error


def _print_json(value: dict[str, Any]) -> None:
    _print(without_tokens(json.dumps(value, indent=2)))


def _print_error(*texts: str) -> None:
    """Print texts to stderr, one line each: a command in it can be copied from a terminal."""
    _print_lines(*map(printable, texts))


def _print_lines(*lines: str) -> None:
    """Print lines to stderr as they are; a run does not fail because it is closed or full."""
    try:
        print("\n".join(lines), file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = null_stream()


def null_stream() -> TextIO:
    """Return a stream that discards everything."""
    return Path(os.devnull).open("w")


def in_colour(stream: TextIO | None = None) -> bool:
    """Whether a stream, by default stdout, is a terminal with colours: see https://no-color.org."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return (stream or sys.stdout).isatty()
