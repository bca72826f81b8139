"""The one sink of the command line: data on stdout, everything else on stderr."""

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
from ctxextend.progress import Progress, no_progress, with_estimate

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Comparison
    from ctxextend.evaluation.evaluation_result import Evaluation

SCHEMA_VERSION = 1
# The exit codes after Ctrl-C, and of a check that failed.
INTERRUPTED = 130
FAILED_CHECK = 3
# A line as pieces of text, each with the name of its style.
Pieces = list[tuple[str, str]]
# Figures and reports, where they were asked for, and what writes each.
Files = Sequence[tuple[Path | None, Callable[[Path], None]]]
# Styles as `typer.style` takes them.
STYLES: dict[str, dict[str, Any]] = {
    **{"": {}, "title": {"bold": True}, "faint": {"dim": True}, "label": {"bold": True, "fg": "cyan"}},
    **{"wrong": {"bold": True, "fg": "red"}, "right": {"fg": "green"}, "learned": {"fg": "cyan"}},
    **{"second": {"fg": "green"}, "third": {"fg": "magenta"}, "new": {"fg": "yellow"}, "offset": {"fg": "magenta"}},
}


def is_other_process() -> bool:
    """Whether torchrun or accelerate started this process beside the one that prints."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


@dataclass(frozen=True)
class Output:
    """Where a command says what it has to say."""

    as_json: bool = False  # one JSON object on stdout instead of text
    quiet: bool = False  # nothing on stderr but errors
    is_path_only: bool = False  # whether stdout holds the path of an output alone: screens go to stderr
    silent: bool = field(default_factory=is_other_process)  # nothing but errors on stderr: another process prints

    def __post_init__(self) -> None:
        if self.quiet or not sys.stderr.isatty():  # the Hub's client draws bars of its own
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    def data(self, text: str) -> None:
        """Print what the command was run for; nothing under JSON, where `result` says it."""
        if not (self.as_json or self.silent):
            _print("\n".join(map(printable, text.split("\n"))))

    def screen(self, lines: Iterable[Pieces]) -> None:
        """Print styled lines: in colour on a terminal that has it, as plain text elsewhere."""
        if self.is_path_only and not self.as_json:
            self.note(*(styled(line, colour=False) for line in lines))
        elif not (self.as_json or self.silent):
            _print("\n".join(styled(line, colour=in_colour()) for line in lines))

    def result(self, command: str, value: Any, warnings: Sequence[str] = ()) -> None:
        """Print a result as the JSON object of a command, if JSON was asked for."""
        if self.as_json and not self.silent:
            frame = {"schema_version": SCHEMA_VERSION, "command": command, "warnings": list(warnings)}
            _print(without_tokens(json.dumps(frame | to_json(value), indent=2)))

    def note(self, *lines: str) -> None:
        """Print lines for people; a line break inside one, as a name may hold, is written out."""
        if lines and not (self.quiet or self.silent):
            _say(*lines)

    def next_steps(self, *commands: str) -> None:
        """Print up to three commands to type next, for a person at a terminal."""
        if not self.as_json and sys.stdout.isatty() and sys.stderr.isatty():
            self.note("Next:", *(f"  {command}" for command in commands[:3]))

    def warning(self, *texts: str) -> None:
        """Print lines that people should not miss."""
        self.note(*(f"Warning: {text}" for text in texts))

    def failure(self, kind: str, message: str, hint: str | None) -> None:
        """Print a failure and what to do next: as text, and under JSON as an object too."""
        if self.silent and kind == "Interrupted":
            return
        lines = message.split("\n") if kind == RecipeError.__name__ else [message]  # a line for each fault
        _say(f"Error: {lines[0]}", *lines[1:], *filter(None, [hint]))
        self.error_object(kind, message, hint)

    def error_object(self, kind: str, message: str, hint: str | None = None) -> None:
        """Print a failure as an object, if JSON was asked for; where stdout is full, the text on stderr must do."""
        if self.as_json and not self.silent:
            error = {"type": kind, "message": message, "hint": hint}
            with suppress(OutputError):
                _print(without_tokens(json.dumps({"error": error}, indent=2)))

    def measured(
        self, command: str, found: "Evaluation | Comparison", lines: Iterable[Pieces], files: Files, value: Any = None
    ) -> None:
        """Write and print what was measured; exit where not all of it could be, or a file could not be written."""
        if not found.complete:
            ignore_ctrl_c()
        failures = []
        for path, write in files:  # files first: a reader of stdout may go away
            try:
                if path is not None:
                    write(path)
            except OutputError as error:  # what took hours to measure is shown all the same
                failures.append(str(error))
        self.note(*found.notes)
        self.warning(*found.warnings)
        self.screen(lines)
        self.result(command, value or found, [*found.warnings, *failures])
        self.note(*(f"Error: {failure}" for failure in failures))
        if not found.complete:
            raise typer.Exit(INTERRUPTED)
        if failures:
            raise typer.Exit(1)

    @contextmanager
    def progress(self, what: str, of: str = "bytes") -> Iterator[Progress]:
        """Show on a terminal how much of something is done, how fast, and how long the rest will take."""
        if self.quiet or self.silent or not sys.stderr.isatty():
            yield no_progress if self.quiet or self.silent else with_estimate(no_progress, self.note)
            return
        from rich import progress as bars
        from rich.console import Console

        columns = ("{task.description}", bars.BarColumn(), bars.TaskProgressColumn(), "{task.fields[speed]}")
        remaining = bars.TimeRemainingColumn(compact=True)
        with bars.Progress(*columns, remaining, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None, speed="")

            def move(advance: int, total: int, label: str = "") -> None:
                rate = bar.tasks[0].speed
                speed = (f"{size_text(rate)}/s" if of == "bytes" else f"{rate:,.0f} {of}/s") if rate else ""
                bar.update(task, advance=advance, total=total, description=f"{what} {label}".rstrip(), speed=speed)

            yield with_estimate(move, self.note)


def styled(line: Pieces, *, colour: bool) -> str:
    """Return a line as it is printed."""
    if not colour:
        return "".join(printable(text) for text, _ in line).rstrip()
    return "".join(typer.style(printable(text), **STYLES[style]) if style else printable(text) for text, style in line)


def _print(text: str) -> None:
    """Print to stdout at once; a stdout that is full is a known error, one that was closed the reader's wish."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = nowhere()  # what was not printed must not fail again at exit
        raise OutputError(f"The result could not be printed: {error.strerror}.", "The work itself is done.") from error


def _say(*lines: str) -> None:
    """Print lines to stderr; no run fails because nobody can hear what it says."""
    try:
        print("\n".join(map(printable, lines)), file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = nowhere()


def nowhere() -> TextIO:
    """Return a stream that takes everything and keeps nothing."""
    return Path(os.devnull).open("w")


def in_colour() -> bool:
    """Whether stdout is a terminal whose user wants colours; see https://no-color.org."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and sys.stdout.isatty()


def ignore_ctrl_c() -> None:
    """Ignore further Ctrl-C while what was done so far is printed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
