"""The app: its commands, and the one place where errors become messages and exit codes."""

import signal
import sys
from collections.abc import Iterable
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ctxextend.cli.command import Command, write_help
from ctxextend.cli.output import FAILED_CHECK, INTERRUPTED, Output, nowhere
from ctxextend.errors import CtxextendError, VerificationError
from ctxextend.version import __version__

# In the order of the help; each is the function of that name in the module of that name.
COMMANDS = ("resize", "train", "inspect", "verify", "evaluate", "compare", "run", "families", "methods", "demo")


class Stopped(SystemExit):
    """Another process asked this one to end; what was begun is cleaned up on the way out."""

    code: int


class App(TyperGroup):
    """Shows known errors as one message; a bug passes through and keeps its traceback."""

    format_help = write_help

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit 1 for a known error, 2 for usage, 3 for a failed check, 130 for Ctrl-C."""
        sink = Output("--json" in ctx.args)
        try:
            return super().invoke(ctx)
        except CtxextendError as error:
            sink.failure(type(error).__name__, error.message, error.hint)
            raise typer.Exit(FAILED_CHECK if isinstance(error, VerificationError) else 1) from error
        except typer.TyperException as error:
            if not sink.as_json:
                raise
            command = " ".join(filter(None, (ctx.info_name, ctx.invoked_subcommand)))
            sink.failure("UsageError", error.format_message(), f"See {command} --help.")
            raise typer.Exit(error.exit_code) from error
        except (KeyboardInterrupt, Stopped) as stop:
            sink.failure("Interrupted", "Stopped; nothing was left half-made.", None)
            raise typer.Exit(stop.code if isinstance(stop, Stopped) else INTERRUPTED) from None


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
    """Give a checkpoint's position table another length, and change nothing else.

    Example: ctxextend resize tiny-gpt2 --to 512
    """


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(128 + number)


def main() -> None:
    """Run the command line; SIGTERM and a lost terminal clean up as Ctrl-C does."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _stop)
    # A daemon may have closed them; then print would write to the wrong one, or fail.
    sys.stdout, sys.stderr = (stream or nowhere() for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app_of([name for name in COMMANDS if name in sys.argv[1:2]] or COMMANDS)()
