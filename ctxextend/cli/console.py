"""All output of the command line: data on stdout, everything else on stderr."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from ctxextend.errors import OutputError, RecipeError, printable, size_text, without_tokens
from ctxextend.json_output import to_json
from ctxextend.progress import Progress, no_progress

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Comparison
    from ctxextend.evaluation.evaluation_result import Evaluation

SCHEMA_VERSION = 1
INTERRUPTED = 130  # exit code after Ctrl-C
WRONG_USAGE, FAILED_CHECK = 2, 3  # exit codes if a flag does not apply, and if a check failed
Pieces = list[tuple[str, str]]  # a line of output as (text, style name) pairs
# Paths of figures and reports (None: not requested), each with the function that writes it.
Files = Sequence[tuple[Path | None, Callable[[Path], None]]]
STYLES: dict[str, dict[str, Any]] = {  # keyword arguments of `typer.style`
    **{
        "": {},
        "title": {"bold": True},
        "faint": {"dim": True},
        "label": {"bold": True, "fg": "cyan"},
    },
    **{"wrong": {"bold": True, "fg": "red"}, "right": {"fg": "green"}, "learned": {"fg": "cyan"}},
    **{
        "second": {"fg": "green"},
        "third": {"fg": "magenta"},
        "new": {"fg": "yellow"},
        "reserved": {"fg": "magenta"},
    },
}


@dataclass(frozen=True)
class Console:
    """Prints the results, notes and errors of a command."""

    as_json: bool = False  # one JSON object on stdout instead of text
    quiet: bool = False  # only errors on stderr
    is_path_only: bool = False  # only the output's path on stdout; screens go to stderr
    # Only errors on stderr: of the processes of torchrun or accelerate, that of rank 0 prints.
    silent: bool = field(
        default_factory=lambda: (
            os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"
        )
    )

    told: set[str] = field(default_factory=set)  # lines that were printed to stderr

    def __post_init__(self) -> None:
        if self.quiet or not sys.stderr.isatty():  # huggingface_hub draws its own bars
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    def data(self, text: str) -> None:
        """Print the result as text; nothing with --json, where `result` prints it."""
        if not (self.as_json or self.silent):
            _print("\n".join(map(printable, text.split("\n"))))

    def screen(self, lines: Iterable[Pieces]) -> None:
        """Print styled lines, in colour if stdout is a terminal that supports it."""
        if self.is_path_only and not self.as_json:
            self.note(*(styled(line, colour=False) for line in lines))
        elif not (self.as_json or self.silent):
            _print("\n".join(styled(line, colour=in_colour()) for line in lines))

    def result(self, command: str, value: Any, warnings: Sequence[str] = ()) -> None:
        """Print a result as the command's JSON object if --json is set."""
        if self.as_json and not self.silent:
            frame = {
                "schema_version": SCHEMA_VERSION,
                "command": command,
                "warnings": list(warnings),
            }
            _print(without_tokens(json.dumps(frame | to_json(value), indent=2)))

    def note(self, *lines: str) -> None:
        """Print lines to stderr; line breaks inside one, e.g. in a file name, are escaped."""
        self.told.update(lines)
        if lines and not (self.quiet or self.silent):
            _print_error(*lines)

    def next_steps(self, *commands: str) -> None:
        """Print up to three suggested next commands, only on a terminal."""
        if not self.as_json and sys.stdout.isatty() and sys.stderr.isatty():
            self.note("Next:", *(f"  {command}" for command in commands[:3]))

    def warning(self, *texts: str) -> None:
        """Print warnings to stderr, each of them once."""
        lines = [f"Warning: {text}" for text in texts]
        self.note(*(line for line in lines if line not in self.told))

    def failure(self, kind: str, message: str, hint: str | None) -> None:
        """Print an error and its hint as text, with --json also as an object."""
        if self.silent and kind == "Interrupted":
            return
        lines = (
            message.split("\n") if kind == RecipeError.__name__ else [message]
        )  # one line per error
        _print_error(f"Error: {lines[0]}", *lines[1:], *filter(None, [hint]))
        self.error_object(kind, message, hint)

    def error_object(self, kind: str, message: str, hint: str | None = None) -> None:
        """Print an error as a JSON object if --json is set; if that fails, the text on stderr remains."""
        if self.as_json and not self.silent:
            error = {"type": kind, "message": message, "hint": hint}
            with suppress(OutputError):
                _print(without_tokens(json.dumps({"error": error}, indent=2)))

    def measurement(
        self,
        command: str,
        result: "Evaluation | Comparison",
        lines: Iterable[Pieces],
        files: Files,
        value: Any = None,
    ) -> None:
        """Write the files and print the result; exit if the run was interrupted or a file could not be written."""
        if not result.complete:
            ignore_ctrl_c()
        failures = []
        for path, write in files:  # before printing, which fails when the reader of a pipe exits
            try:
                if path is not None:
                    write(path)
            except OutputError as error:  # still print what may have taken hours to measure
                failures.append(str(error))
        self.note(*result.notes)
        self.warning(*result.warnings)
        self.screen(lines)
        self.result(command, value or result, [*result.warnings, *failures])
        self.note(*(f"Error: {failure}" for failure in failures))
        if not result.complete:
            raise typer.Exit(INTERRUPTED)
        if failures:
            raise typer.Exit(1)

    @contextmanager
    def progress(self, action: str, unit: str = "bytes") -> Iterator[Progress]:
        """Show a progress bar with speed and remaining time on a terminal."""
        if self.quiet or self.silent or not sys.stderr.isatty():
            yield no_progress
            return
        from rich import console as rich_console
        from rich import progress as bars

        columns = (
            "{task.description}",
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            "{task.fields[speed]}",
        )
        remaining = bars.TimeRemainingColumn(compact=True)
        with bars.Progress(
            *columns, remaining, console=rich_console.Console(stderr=True), transient=True
        ) as bar:
            task = bar.add_task(action, total=None, speed="")

            def update(advance: int, total: int, label: str = "") -> None:
                rate = bar.tasks[0].speed
                speed = (
                    (f"{size_text(rate)}/s" if unit == "bytes" else f"{rate:,.0f} {unit}/s")
                    if rate
                    else ""
                )
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
    return "".join(
        typer.style(printable(text), **STYLES[style]) if style else printable(text)
        for text, style in line
    )


def _print(text: str) -> None:
    """Print to stdout and flush; a full disk is a known error, a closed pipe the reader's choice."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = null_stream()  # the flush at exit must not fail again
        raise OutputError(
            f"Cannot print the result: {error.strerror}.", "The command itself succeeded."
        ) from error


def _print_error(*lines: str) -> None:
    """Print lines to stderr; a run does not fail because stderr is closed or full."""
    try:
        print("\n".join(map(printable, lines)), file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = null_stream()


def null_stream() -> TextIO:
    """Return a stream that discards everything."""
    return Path(os.devnull).open("w")


def in_colour() -> bool:
    """Whether stdout is a terminal with colours enabled; see https://no-color.org."""
    return (
        not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stdout.isatty()
    )


def ignore_ctrl_c() -> None:
    """Ignore further Ctrl-C while partial results are printed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
