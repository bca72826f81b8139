"""The command line app: commands, --help, and the mapping of errors to messages and exit codes."""

import inspect
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from importlib import import_module
from io import TextIOWrapper
from types import FrameType, SimpleNamespace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ctxextend.cli.console import (
    FAILED_CHECK,
    INTERRUPTED,
    WRONG_USAGE,
    Console,
    Page,
    null_stream,
    rendered,
)
from ctxextend.cli.interruption import WRITTEN, describe_stop
from ctxextend.cli.options import WrongFlags
from ctxextend.errors import (
    CtxextendError,
    MethodError,
    RecipeChangeError,
    TrainingInterrupted,
    VerificationError,
    install_command,
)
from ctxextend.settings import Heading
from ctxextend.version import __version__

COMMANDS = (  # in the order of --help; each is a function in the module of the same name
    "resize",
    "convert",
    "train",
    "inspect",
    "verify",
    "evaluate",
    "run",
    "recipes",
    "families",
    "methods",
    "demo",
)
SHOWN_LIBRARIES = ("torch", "transformers", "safetensors", "numpy")  # by --version
# Exit codes of known errors; of others, 1.
EXIT_CODES: dict[type[CtxextendError], int] = {
    VerificationError: FAILED_CHECK,
    MethodError: WRONG_USAGE,
    RecipeChangeError: WRONG_USAGE,
}
TEXT_DEFAULT = re.compile(r"default: \((.*)\)")  # Typer puts a textual default in parentheses
HELP_ALL = "--help-all"  # also lists the advanced options
SHOW_COMPLETION = ", to copy it or customize the installation"  # too long for one line


def write_help(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the help of a command or of the app.

    It is plain text, because Typer's boxes take twice as long to print and need a wide terminal.
    Lines of a paragraph are joined and wrapped at the width of the terminal.
    """
    formatter.width = Page.for_stdout().width
    command.format_usage(ctx, formatter)
    for paragraph in _paragraphs(command):
        first, *lines = paragraph.splitlines()
        if lines and lines[0].startswith(" "):  # examples keep their line breaks
            with formatter.section(_styled(first.removesuffix(":"), "title")):
                formatter.write("".join(f"  {line.strip()}\n" for line in lines))
        else:
            formatter.write_paragraph()
            formatter.write_text(paragraph)
    sections = help_sections(command, ctx)
    source = ctx.get_parameter_source("help_all")
    is_all = source is not None and source.name == "COMMANDLINE"
    is_short = Heading.ADVANCED in sections and not is_all
    if is_short:
        del sections[Heading.ADVANCED]
    for group, rows in sections.items():
        with formatter.section(_styled(group, "title")):
            styled = [(_styled(name, "flag"), text) for name, text in rows]
            # One third leaves enough width for the text even in a narrow terminal.
            formatter.write_dl(styled, formatter.width // 3)
    if is_short:
        formatter.write_paragraph()
        formatter.write_text(f"All options: {ctx.command_path} {HELP_ALL}")


def _styled(text: str, style: str) -> str:
    return rendered([[(text, style)]], sys.stdout)


class WithHelpAll:
    """A command or the app: plain help, --help-all, and values that the settings read."""

    format_help = write_help
    _help_all: Any = None

    def get_params(self: Any, ctx: Any) -> list[Any]:
        """Return the parameters, with --help and --help-all; their values stay as they are."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        if self._help_all is None:  # one option, since parameters are compared by identity
            self._help_all = copy(self.get_help_option(ctx))
            self._help_all.hidden = hasattr(self, "commands")
            self._help_all.name = "help_all"
            self._help_all.opts = [HELP_ALL]
            self._help_all.help = "Show all options and exit."
        parameters = [*parameters, self._help_all]
        for parameter in parameters:
            parameter.get_runtime_param = lambda: AS_IT_IS
        return parameters


# Reads the value of a parameter: `typer._coercion.RuntimeParam`. Typer reads every value, also a
# default, with pydantic, whose import takes as long as numpy's.
AS_IT_IS = SimpleNamespace(coerce=lambda value, **_: value)


class Command(WithHelpAll, TyperCommand):
    """A command."""


def help_sections(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the declarations and help texts of a command's parameters by group, with defaults.

    Those of the app begin with its commands.
    """
    groups: dict[str, list[tuple[str, str]]] = {panel: [] for panel in ("Commands", *Heading)}
    for name, inner in getattr(command, "commands", {}).items():
        groups["Commands"].append((name, summary(inner)))
    for parameter in command.params:  # --help itself is not among them
        group = parameter.rich_help_panel or Heading.OPTIONS
        name, text = parameter.get_help_record(context)
        text = text.replace(SHOW_COMPLETION, "")
        if parameter.param_type_name == "argument":  # the usage line shows that it is required
            name = parameter.metavar
            text = text.removesuffix("  [required]")
        elif parameter.multiple:
            text = re.sub(r"\.(?=$|  \[)", "; repeatable.", text, count=1)
        groups[group].append((name, TEXT_DEFAULT.sub(r"default: \1", text)))
    return {panel: rows for panel, rows in groups.items() if rows}


def summary(command: Any) -> str:
    """Return the one-line summary of a command."""
    return _paragraphs(command)[0].replace("\n", " ")


def _paragraphs(command: Any) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


class Terminated(SystemExit):
    """Raised on SIGTERM or SIGHUP, so that outputs are cleaned up on the way out."""

    code: int


class App(WithHelpAll, TyperGroup):
    """Prints known errors as a message and a hint; a bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and print known errors.

        Raises:
            typer.Exit: With code 1 after a known error, 2 after wrong usage, 3 after a failed
                check, 130 after Ctrl-C, 128 + N after signal N.
        """
        console = Console("--json" in ctx.args)
        for module, registry in WRITTEN:  # by earlier commands in this process
            if module in sys.modules:
                getattr(sys.modules[module], registry).clear()
        try:
            return super().invoke(ctx)
        except CtxextendError as error:
            console.failure(type(error).__name__, error.message, error.hint)
            raise typer.Exit(EXIT_CODES.get(type(error), 1)) from error
        except ModuleNotFoundError as error:
            if not error.name or error.name.startswith("ctxextend"):
                raise
            library = error.name.partition(".")[0]
            message = f"This needs {library}: {install_command(library)}"
            console.failure("ModuleNotFoundError", message, None)
            raise typer.Exit(1) from error
        except typer.TyperException as error:
            hint = error.hint if isinstance(error, WrongFlags) else None
            if not hint:
                names = filter(None, (ctx.info_name, ctx.invoked_subcommand))
                hint = f"See {' '.join(names)} --help."
            console.failure("UsageError", error.format_message(), hint)
            raise typer.Exit(error.exit_code) from error
        except (KeyboardInterrupt, Terminated) as stop:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # while partial results are printed
            _remove_bar()
            console.interrupted(describe_stop())
            code = INTERRUPTED
            if isinstance(stop, Terminated):
                code = stop.code
            elif isinstance(stop, TrainingInterrupted):
                code = 128 + stop.signal
            raise typer.Exit(code) from None


def build_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Build the app; with only one command, it starts faster."""
    app = typer.Typer(
        cls=App,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    for name in names:
        module = import_module(f"ctxextend.cli.{name}")
        app.command(cls=Command)(getattr(module, name))
    app.callback(invoke_without_command=True)(ctxextend)  # --version needs no command
    return app


def ctxextend(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the versions.")] = False,
) -> None:
    """Resize position embeddings; everything else stays byte-identical.

    Example: ctxextend resize tiny-gpt2 --to 512
    """
    if not version:
        if context.invoked_subcommand is None:
            context.fail("Missing command.")
        return
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of
    from platform import python_version

    lines = [f"ctxextend {__version__}", f"python {python_version()}"]
    for name in SHOWN_LIBRARIES:
        try:
            lines.append(f"{name} {version_of(name)}")
        except PackageNotFoundError:
            lines.append(f"{name} missing")
    Console().data("\n".join(lines))
    raise typer.Exit


def _handle_signal(number: int, frame: FrameType | None) -> None:
    """Raise an exception on a signal.

    An import may swallow or print it, so the process exits at once during one.
    """
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename == "<frozen importlib._bootstrap>":
            _remove_bar()
            # Nothing before it has imported what writes an output.
            if "ctxextend.checkpoint.atomic_output" in sys.modules:
                with suppress(ImportError):  # it is being imported
                    from ctxextend.checkpoint.atomic_output import remove_unfinished

                    remove_unfinished()
            # What was kept; nothing may be imported.
            with suppress(Exception):
                Console("--json" in sys.argv).interrupted(describe_stop())
            os._exit(128 + number)
        caller = caller.f_back
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(128 + number)


def _remove_bar() -> None:
    if os.isatty(2):
        os.write(2, b"\r\x1b[K\x1b[?25h")


@contextmanager
def process() -> Iterator[None]:
    """Prepare the process for a command.

    Ctrl-C, SIGTERM and SIGHUP (unless ignored, as under nohup) clean up, and one line says what was
    kept.
    """
    handled = list[int]()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle_signal)
            handled.append(number)

    # Libraries read these when they are imported; what the user set stays. numpy threads cost more
    # than they save on small tables; spinning torch threads slow down a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Warnings that libraries print on import mean nothing to a command line user.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")

    # Under a daemon they may be closed; print would then fail or write to another open file.
    sys.stdout = sys.stdout or null_stream()
    sys.stderr = sys.stderr or null_stream()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, lambda number, frame: os._exit(128 + number))
