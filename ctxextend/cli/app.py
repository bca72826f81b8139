"""The app: its commands, their help, and the one place where errors become messages and exit codes.

Help is plain, examples first: Typer's own draws boxes, which double the time that it takes and need wide windows.
"""

import inspect
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterable
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ctxextend.cli.options import PANELS
from ctxextend.cli.output import FAILED_CHECK, INTERRUPTED, Output, in_colour, nowhere
from ctxextend.cli.tables import Page
from ctxextend.errors import SAY_WHICH, CtxextendError, VerificationError, did_you_mean
from ctxextend.version import __version__

# In the order of the help; each is the function of that name in the module of that name.
COMMANDS = (
    *("resize", "train", "inspect", "verify", "evaluate", "compare"),
    *("run", "recipes", "families", "methods", "demo"),
)
# Typer puts a default that is given in words into parentheses.
WORDED_DEFAULT = re.compile(r"default: \((.*)\)")


def write_help(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the help of a command or of the app: what it does, examples, then arguments and options by group."""

    def coloured(text: str, **style: Any) -> str:
        return typer.style(text, **style) if in_colour() else text

    formatter.width = Page.of_stdout().width
    command.format_usage(ctx, formatter)
    for paragraph in _paragraphs(command):
        first, *lines = paragraph.splitlines()
        if lines and lines[0].startswith(" "):  # examples, which stay lines of their own
            with formatter.section(coloured(first.removesuffix(":"), bold=True)):
                formatter.write("".join(f"  {line.strip()}\n" for line in lines))
        else:
            formatter.write_paragraph()
            formatter.write_text(paragraph)
    for group, rows in sections(command, ctx).items():
        with formatter.section(coloured(group, bold=True)):
            # A third leaves room for the text even in a narrow window.
            formatter.write_dl([(coloured(name, fg="cyan"), text) for name, text in rows], formatter.width // 3)


class Command(TyperCommand):
    """A command of the app."""

    format_help = write_help


def sections(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return what a command takes, by group: names as they are typed, and what they mean, with the default."""
    found: dict[str, list[tuple[str, str]]] = {panel: [] for panel in ("Commands", *PANELS)}
    found["Commands"] = [(name, summary(inner)) for name, inner in getattr(command, "commands", {}).items()]
    for parameter in command.params:  # but --help, which who reads this knows
        name, does = parameter.get_help_record(context)
        if parameter.param_type_name == "argument":  # without its type in Python, and what the usage says
            name, does = parameter.metavar, does.removesuffix("  [required]")
        found[parameter.rich_help_panel or PANELS[0]].append((name, WORDED_DEFAULT.sub(r"default: \1", does)))
    return {panel: rows for panel, rows in found.items() if rows}


def summary(command: Any) -> str:
    """Return the line that says what a command does."""
    return _paragraphs(command)[0].replace("\n", " ")


def _paragraphs(command: Any) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


class Stopped(SystemExit):
    """Another process asked this one to end; what was begun is cleaned up on the way out."""

    code: int


class App(TyperGroup):
    """Shows known errors as one message; a bug passes through and keeps its traceback."""

    format_help = write_help

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit 1 for a known error, 2 for usage, 3 for a failed check, 130 for Ctrl-C."""
        sink, words = Output("--json" in ctx.args), shlex.join(ctx.args)
        try:
            return super().invoke(ctx)
        except CtxextendError as error:
            takes_tables = ctx.invoked_subcommand in ("resize", "inspect", "verify")
            typed = f"{ctx.invoked_subcommand} {words}" if takes_tables else "resize MODEL --to N"
            hint = error.hint and error.hint.replace(SAY_WHICH, f"{SAY_WHICH}{ctx.info_name} {typed} ")
            sink.failure(type(error).__name__, error.message, hint)
            raise typer.Exit(FAILED_CHECK if isinstance(error, VerificationError) else 1) from error
        except ModuleNotFoundError as error:
            if not error.name or error.name.startswith("ctxextend"):
                raise
            library = error.name.partition(".")[0]
            sink.failure("ModuleNotFoundError", f"This needs {library}: pip install {library}", None)
            raise typer.Exit(1) from error
        except typer.TyperException as error:
            command = " ".join(filter(None, (ctx.info_name, ctx.invoked_subcommand)))
            sink.failure("UsageError", *explain_usage(error, f"See {command} --help."))
            raise typer.Exit(error.exit_code) from error
        except (KeyboardInterrupt, Stopped) as stop:
            _remove_bar()
            sink.error_object("Interrupted", "Stopped.")
            raise typer.Exit(stop.code if isinstance(stop, Stopped) else INTERRUPTED) from None


def explain_usage(error: Any, hint: str) -> tuple[str, str]:
    """Return what is wrong with what was typed, and what to type instead, where Typer or pydantic words it badly."""
    cause, flag = error.__cause__, getattr(error, "param", None)
    if isinstance(cause, CtxextendError):
        return cause.message, cause.hint or hint
    if flag is not None and cause is not None:
        fault, choices = cause.errors()[0], flag.type_descriptor.choices
        given, kind = str(fault["input"]), "a whole number" if fault["type"].startswith("int") else "a number"
        wanted = f"one of {', '.join(choices)}" if choices else kind
        return f"{flag.opts[0]} must be {wanted}, got {given}.", did_you_mean(given, choices or ()) or hint
    if (near := getattr(error, "possibilities", None)) is not None:  # an unknown flag
        return f"There is no {error.option_name}.", f"Did you mean {near[0]}?" if near else hint
    if "unexpected extra argument" in error.message:
        hint = "Repeat a flag to give it several values: --data a.txt --data b.txt."
    return error.message or error.format_message(), hint


def app_of(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the app with some commands alone: to import and build all takes a tenth of the start of one."""
    settings = {"help_option_names": ["--help", "-h"]}
    app = typer.Typer(
        cls=App, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, context_settings=settings
    )
    for name in names:
        app.command(cls=Command)(getattr(import_module(f"ctxextend.cli.{name}"), name))
    app.callback()(ctxextend)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        Output().data(f"ctxextend {__version__}")
        raise typer.Exit


def ctxextend(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, help="Print the version.")] = False,
) -> None:
    """Resize learned position embeddings; everything else stays byte-identical.

    Example: ctxextend resize tiny-gpt2 --to 512
    """


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise for a signal; while a module loads, which may swallow or print what is raised, end at once."""
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename == "<frozen importlib._bootstrap>":
            _remove_bar()
            os._exit(128 + number)
        caller = caller.f_back
    raise KeyboardInterrupt if number == signal.SIGINT else Stopped(128 + number)


def _remove_bar() -> None:
    """Remove a progress bar that was just begun from a terminal, and give the cursor back."""
    if os.isatty(2):
        os.write(2, b"\r\x1b[K\x1b[?25h")


def _raise_later(unraisable: Any) -> None:
    """Repeat a Ctrl-C that came in a destructor, where nothing can be raised; show anything else as Python does."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        threading.Timer(0.01, signal.raise_signal, [signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(unraisable)


def main() -> None:
    """Run the command line; Ctrl-C, SIGTERM and a lost terminal clean up and end it silently."""
    found = (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
    stops = [number for number in found if number and signal.getsignal(number) is not signal.SIG_IGN]  # as nohup does
    for number in stops:
        signal.signal(number, _stop)
    sys.unraisablehook = _raise_later
    # More threads of numpy cost more than they save on small tables; waiting threads of torch slow busy machines down.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # What libraries say of themselves while they load is for those who call them.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    # A daemon may have closed them; then print would write to the wrong one, or fail.
    sys.stdout, sys.stderr = (stream or nowhere() for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app_of([name for name in COMMANDS if name in sys.argv[1:2]] or COMMANDS)()
    finally:
        for number in stops:
            signal.signal(number, lambda number, frame: os._exit(128 + number))
