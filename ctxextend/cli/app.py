"""The command line app: commands, --help, and the mapping of errors to messages and exit codes."""

import inspect
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ctxextend.cli import hints
from ctxextend.cli.console import (
    FAILED_CHECK,
    INTERRUPTED,
    WRONG_USAGE,
    Console,
    in_colour,
    null_stream,
)
from ctxextend.cli.options import PANELS
from ctxextend.cli.tables import Page
from ctxextend.cli.values import read_plain_values
from ctxextend.errors import (
    SPECIFY_TABLE,
    CtxextendError,
    MethodError,
    VerificationError,
    did_you_mean,
    install_command,
)
from ctxextend.version import __version__

COMMANDS = (  # in the order of --help; each is a function in the module of the same name
    *("resize", "convert", "train", "inspect", "verify", "evaluate", "compare"),
    *("run", "recipes", "families", "methods", "demo"),
)
TEXT_DEFAULT = re.compile(r"default: \((.*)\)")  # Typer puts a textual default in parentheses


def write_help(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the help of a command or of the app: summary, examples, then arguments and options by group."""
    # Plain text, because Typer's boxes take twice as long to print and need a wide terminal.

    def coloured(text: str, **style: Any) -> str:
        return typer.style(text, **style) if in_colour() else text

    formatter.width = Page.for_stdout().width
    command.format_usage(ctx, formatter)
    for paragraph in _paragraphs(command):
        first, *lines = paragraph.splitlines()
        if lines and lines[0].startswith(" "):  # examples keep their line breaks
            with formatter.section(coloured(first.removesuffix(":"), bold=True)):
                formatter.write("".join(f"  {line.strip()}\n" for line in lines))
        else:
            formatter.write_paragraph()
            formatter.write_text(paragraph)
    for group, rows in help_sections(command, ctx).items():
        with formatter.section(coloured(group, bold=True)):
            # One third leaves enough width for the text even in a narrow terminal.
            formatter.write_dl(
                [(coloured(name, fg="cyan"), text) for name, text in rows], formatter.width // 3
            )


class Command(TyperCommand):
    """A command with plain help, which reads its values without pydantic."""

    format_help = write_help

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the values of arguments and options."""
        read_plain_values(self.get_params(ctx))
        return super().parse_args(ctx, args)


def help_sections(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the arguments and options of a command by group: declaration, and help text with the default."""
    groups: dict[str, list[tuple[str, str]]] = {panel: [] for panel in ("Commands", *PANELS)}
    groups["Commands"] = [
        (name, summary(inner)) for name, inner in getattr(command, "commands", {}).items()
    ]
    for parameter in command.params:  # --help itself is not among them
        name, text = parameter.get_help_record(context)
        text = text.replace(
            ", to copy it or customize the installation", ""
        )  # of --show-completion
        if parameter.param_type_name == "argument":  # the usage line shows that it is required
            name = parameter.metavar
            text = text.removesuffix("  [required]")
        elif parameter.multiple:
            text = re.sub(r"\.(?=$|  \[)", "; repeatable.", text, count=1)
        groups[parameter.rich_help_panel or PANELS[0]].append(
            (name, TEXT_DEFAULT.sub(r"default: \1", text))
        )
    return {panel: rows for panel, rows in groups.items() if rows}


def summary(command: Any) -> str:
    """Return the one-line summary of a command."""
    return _paragraphs(command)[0].replace("\n", " ")


def _paragraphs(command: Any) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


class Terminated(SystemExit):
    """Raised on SIGTERM or SIGHUP, so that outputs are cleaned up on the way out."""

    code: int


class App(TyperGroup):
    """Prints known errors as a message and a hint; a bug keeps its traceback."""

    format_help = write_help

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the values of options before the command."""
        read_plain_values(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; exit 1 on a known error, 2 on wrong usage, 3 on a failed check, 130 on Ctrl-C."""
        sink = Console("--json" in ctx.args)
        arguments = shlex.join(ctx.args)
        words = [*ctx.args]
        try:
            return super().invoke(ctx)
        except CtxextendError as error:
            has_tensor_flag = ctx.invoked_subcommand in ("resize", "inspect", "verify")
            others = re.sub(r"--(tensor|config-key|reserved-rows)[ =]\S+ ?", "", arguments).rstrip()
            typed = (
                f"{ctx.invoked_subcommand} {others}" if has_tensor_flag else "resize MODEL --to N"
            )
            hint = error.hint and error.hint.replace(
                SPECIFY_TABLE, f"{SPECIFY_TABLE}{ctx.info_name} {typed} "
            )
            sink.failure(
                type(error).__name__, error.message, hint and in_words_of_command(ctx, hint)
            )
            raise typer.Exit(
                {VerificationError: FAILED_CHECK, MethodError: WRONG_USAGE}.get(type(error), 1)
            ) from error
        except ModuleNotFoundError as error:
            if not error.name or error.name.startswith("ctxextend"):
                raise
            library = error.name.partition(".")[0]
            sink.failure(
                "ModuleNotFoundError", f"This needs {library}: {install_command(library)}", None
            )
            raise typer.Exit(1) from error
        except typer.TyperException as error:
            command = " ".join(filter(None, (ctx.info_name, ctx.invoked_subcommand)))
            message, hint = explain_usage(error, f"See {command} --help.", words)
            sink.failure("UsageError", message, in_words_of_command(ctx, hint))
            raise typer.Exit(error.exit_code) from error
        except (KeyboardInterrupt, Terminated) as stop:
            _remove_bar()
            sink.error_object("Interrupted", "Stopped.")
            raise typer.Exit(stop.code if isinstance(stop, Terminated) else INTERRUPTED) from None


def in_words_of_command(context: Any, hint: str) -> str:
    """Return a hint in the words of the command of a context; see `hints.in_words_of`."""
    command = context.invoked_subcommand
    if command not in COMMANDS or "--" not in hint:
        return hint
    flags = command_flags()
    return hints.in_words_of(command, hint, flags)


def command_flags() -> dict[str, list[str]]:
    """Return the flags of each command, by its name."""
    group: Any = get_command(build_app())
    return {
        name: [
            flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")
        ]
        for name, command in group.commands.items()
    }


def explain_usage(error: Any, hint: str, words: Sequence[str] = ()) -> tuple[str, str]:
    """Return the message and hint of a usage error, reworded where Typer's or pydantic's are unclear.

    `words` are the arguments of the command.
    """
    cause = error.__cause__
    flag = getattr(error, "param", None)
    if isinstance(cause, CtxextendError):
        return cause.message, cause.hint or hint
    if flag is not None and cause is not None:
        problem = cause.errors()[0]
        choices = flag.type_descriptor.choices
        given = str(problem["input"])
        kind = "an integer" if problem["type"].startswith("int") else "a number"
        expected = f"one of {', '.join(choices)}" if choices else kind
        return f"{flag.opts[0]} must be {expected}, got {given}.", did_you_mean(
            given, choices or ()
        ) or hint
    if (near := getattr(error, "possibilities", None)) is not None:  # an unknown flag
        return f"Unknown option {error.option_name}.", f"Did you mean {near[0]}?" if near else hint
    if extra := error.message.partition("unexpected extra argument(s) (")[2]:
        command = error.ctx.command
        options = [
            parameter for parameter in command.params if parameter.param_type_name == "option"
        ]
        repeatable = [
            flag for parameter in options if parameter.multiple for flag in parameter.opts
        ]
        explained = hints.explain_extra(command.name, repeatable, extra[:-1], words)
        return f"Unexpected argument: {extra[:-1]}.", explained or hint
    return error.message or error.format_message(), hint


def build_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Build the app with only some commands: building all of them takes a tenth of the start-up time."""
    settings = {"help_option_names": ["--help", "-h"]}
    app = typer.Typer(
        cls=App,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=settings,
    )
    for name in names:
        app.command(cls=Command)(getattr(import_module(f"ctxextend.cli.{name}"), name))
    app.callback()(ctxextend)
    return app


def _print_version(requested: bool) -> None:
    if requested:
        Console().data(f"ctxextend {__version__}")
        raise typer.Exit


def ctxextend(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Resize position embeddings; everything else stays byte-identical.

    Example: ctxextend resize tiny-gpt2 --to 512
    """


def _handle_signal(number: int, frame: FrameType | None) -> None:
    """Raise on a signal; exit at once during an import, which may swallow or print the exception."""
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename == "<frozen importlib._bootstrap>":
            _remove_bar()
            os._exit(128 + number)
        caller = caller.f_back
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(128 + number)


def _remove_bar() -> None:
    """Clear a progress bar that has just started, and show the cursor again."""
    if os.isatty(2):
        os.write(2, b"\r\x1b[K\x1b[?25h")


def main() -> None:
    """Run the command line; Ctrl-C, SIGTERM and SIGHUP (unless ignored, as under nohup) clean up and exit silently."""
    signals = (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
    handled = [
        number for number in signals if number and signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in handled:
        signal.signal(number, _handle_signal)
    # numpy threads cost more than they save on small tables; spinning torch threads slow down a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Warnings that libraries print on import mean nothing to a command line user.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    # Under a daemon they may be closed; print would then fail or write to another open file.
    sys.stdout, sys.stderr = (stream or null_stream() for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        build_app([name for name in COMMANDS if name in sys.argv[1:2]] or COMMANDS)()
    finally:
        for number in handled:
            signal.signal(number, lambda number, frame: os._exit(128 + number))
