"""The one sink of the command line: data on stdout, everything else on stderr."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ctxextend.checkpoints.redaction import hidden, hidden_values
from ctxextend.errors import CtxextendError, OutputError, RecipeError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "INTERRUPTED",
    "NOT_PROVED",
    "SCHEMA_VERSION",
    "STYLES",
    "Output",
    "Pieces",
    "in_colour",
    "is_other_process",
    "nowhere",
    "one_line",
    "plain",
    "print_styled",
    "screen_lines",
    "shows_unicode",
    "terminal_width",
]

SCHEMA_VERSION = 1

# Moves a bar: by as many, of so many, and with what to say in front of it.
Move = Callable[..., None]

# The exit codes after Ctrl-C, and of a result that is not proved.
INTERRUPTED = 130
NOT_PROVED = 3

# A line as pieces of text, each with the name of its style.
Pieces = Sequence[tuple[str, str]]

STYLES = {
    **{"": "", "title": "bold", "axis": "dim", "faint": "dim", "label": "bold cyan"},
    **{"learned": "cyan", "new": "yellow", "offset": "magenta", "second": "green", "second new": "yellow"},
    **{"third": "magenta"},
    **{"wrong": "bold red", "right": "green", "command": "bold"},
}

# Texts cannot be wrapped any narrower and still be read.
LEAST_WIDTH = 40

# Control characters could move the cursor or recolour the terminal, and others turn the order of letters; names in a
# checkpoint may hold any.
TURNING = (0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
CONTROL |= {code: f"\\u{code:04x}" for code in TURNING}

# In what is one line, also what begins another.
ONE_LINE = CONTROL | {ord("\n"): "\\n", ord("\t"): "\\t"}


@dataclass(frozen=True)
class Output:
    """Where a command says what it has to say.

    Attributes:
        as_json: One JSON object on stdout instead of text.
        quiet: Nothing on stderr but errors.
        silent: Nothing at all: another process of the same run prints.
    """

    as_json: bool = False
    quiet: bool = False
    silent: bool = False

    def __post_init__(self) -> None:
        if self.quiet:  # the Hub's client draws bars of its own
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    def data(self, text: str) -> None:
        """Print what the command was run for; nothing under JSON, where `result` says it."""
        if not (self.as_json or self.silent):
            _print(plain(text))

    def screen(self, lines: Sequence[Pieces]) -> None:
        """Print styled lines: in colour on a terminal that has it, as plain text elsewhere."""
        if self.as_json or self.silent:
            return
        if not in_colour():
            _print("\n".join("".join(one_line(text) for text, _ in line).rstrip() for line in lines))
            return
        from rich.console import Console

        print_styled(Console(highlight=False, soft_wrap=True), lines)

    def result(self, command: str, values: Mapping[str, Any], warnings: Sequence[str] = ()) -> None:
        """Print the JSON object, if JSON was asked for."""
        if self.as_json and not self.silent:
            frame = {"schema_version": SCHEMA_VERSION, "command": command, "warnings": list(warnings)}
            _print(json.dumps(hidden_values(frame | dict(values)), indent=2))

    def note(self, *lines: str) -> None:
        """Print lines for people; a line break inside one, as a name may hold, is written out."""
        if not (self.quiet or self.silent):
            _say(*lines)

    def warning(self, text: str) -> None:
        """Print a line that people should not miss."""
        self.note(f"Warning: {text}")

    def error(self, error: CtxextendError) -> None:
        """Print a known failure and what to do next; nothing else is ever printed for it."""
        self.failure(type(error).__name__, error.message, error.hint)

    def failure(self, kind: str, message: str, hint: str | None) -> None:
        """Print a failure by its parts."""
        if self.silent:
            return
        if self.as_json:
            told = {"type": kind, "message": message, "hint": hint}
            print(json.dumps({"error": hidden_values(told)}, indent=2))
        else:
            lines = message.split("\n") if kind == RecipeError.__name__ else [message]  # a line for each fault
            _say(f"Error: {lines[0]}", *lines[1:], *filter(None, [hint]))

    @contextmanager
    def progress(self, what: str, of: str = "bytes") -> Iterator[Move]:
        """Show a bar on a terminal, and none in a pipe.

        Args:
            what: What is done.
            of: What it counts: bytes, or tokens, which also show how fast and how long it will take.

        Yields:
            The function that moves it, by as many since the last call, of all that there are; it can also be told what
            to say in front.
        """
        if self.quiet or self.silent or not sys.stderr.isatty():
            yield lambda moved, total, said="": None
            return
        from rich import progress as bars
        from rich.console import Console

        counts: tuple[bars.ProgressColumn, ...] = (bars.DownloadColumn(), bars.TransferSpeedColumn())
        if of != "bytes":
            speed = bars.TextColumn("{task.fields[speed]}")
            counts = (bars.MofNCompleteColumn(), bars.TextColumn(of), speed, bars.TimeRemainingColumn())
        columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), *counts)
        with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None, speed="")

            def move(moved: int, total: int, said: str = "") -> None:
                rate = bar.tasks[0].speed
                speed = f"{rate:,.0f} {of}/s" if rate else ""
                bar.update(task, advance=moved, total=total, description=f"{what} {said}".rstrip(), speed=speed)

            yield move


def print_styled(console: "Console", lines: Sequence[Pieces]) -> None:
    """Print lines to a console of rich, in colour."""
    from rich.text import Text

    for line in lines:
        console.print(Text.assemble(*((one_line(text), STYLES[style]) for text, style in line)))


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
        print("\n".join(map(one_line, lines)), file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = nowhere()


def in_colour() -> bool:
    """Whether stdout is a terminal whose user wants colours; see https://no-color.org."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and sys.stdout.isatty()


def shows_unicode() -> bool:
    """Whether stdout can show the characters of which charts are drawn."""
    try:
        "\u28ff\u2588\u2524".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def is_other_process() -> bool:
    """Whether torchrun or accelerate started this process beside the one that prints."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


def nowhere() -> TextIO:
    """Return a stream that takes everything and keeps nothing."""
    return Path(os.devnull).open("w")


def plain(text: str) -> str:
    """Return the text without secrets, and with control characters written out."""
    return hidden(text).translate(CONTROL)


def one_line(text: str) -> str:
    """Return the text without secrets, and with everything written out that is not shown where it stands."""
    return hidden(text).translate(ONE_LINE)


def screen_lines() -> int:
    """Return how many lines the terminal shows at once; many where stdout is none, since then nobody scrolls."""
    return shutil.get_terminal_size().lines if sys.stdout.isatty() else 1000


def terminal_width(wanted: int | None = None) -> int:
    """Return how many columns a line may have: as many as were asked for, the terminal's, or 80 in a pipe."""
    return max(wanted or shutil.get_terminal_size((80, 24)).columns, LEAST_WIDTH)
