"""The app: its commands, and the one place where errors become messages and exit codes."""

import signal
import sys
from io import TextIOWrapper
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ctxextend.cli.demo import demo
from ctxextend.cli.families import families
from ctxextend.cli.inspect import inspect
from ctxextend.cli.output import Output, nowhere
from ctxextend.cli.resize import resize
from ctxextend.cli.verify import NOT_PROVED, verify
from ctxextend.errors import CtxextendError, VerificationError
from ctxextend.version import __version__

__all__ = ["app", "main"]

INTERRUPTED = 130


class Stopped(SystemExit):
    """Another process asked this one to end; what was begun is cleaned up on the way out."""

    code: int


class ErrorBoundary(TyperGroup):
    """Shows known errors as one message; a bug passes through and keeps its traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remember whether JSON is asked for: errors need to know before the command's own flags are parsed."""
        ctx.meta["as_json"] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit 1 for a known error, 2 for usage, 130 for Ctrl-C."""
        output = Output(as_json=ctx.meta["as_json"])
        try:
            return super().invoke(ctx)
        except CtxextendError as error:
            output.error(error)
            raise typer.Exit(NOT_PROVED if isinstance(error, VerificationError) else 1) from error
        except typer.TyperException as error:
            if not output.as_json:
                raise
            command = " ".join(filter(None, (ctx.info_name, ctx.invoked_subcommand)))
            output.failure("UsageError", error.format_message(), f"See {command} --help.")
            raise typer.Exit(error.exit_code) from error
        except (KeyboardInterrupt, Stopped) as stop:
            output.failure("Interrupted", "Stopped; nothing was left half-made.", None)
            raise typer.Exit(stop.code if isinstance(stop, Stopped) else INTERRUPTED) from None


app = typer.Typer(
    cls=ErrorBoundary,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("resize")(resize)
app.command("inspect")(inspect)
app.command("verify")(verify)
app.command("families")(families)
app.command("demo")(demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        Output().data(f"ctxextend {__version__}")
        raise typer.Exit


@app.callback()
def ctxextend(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Give a BERT- or GPT-2-like checkpoint a position table of another length, and change nothing else."""


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
            stream.reconfigure(errors="replace")
    app()


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(128 + number)
