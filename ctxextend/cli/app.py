"""The command line app: commands, --help, and the mapping of errors to messages and exit codes."""

import inspect
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from importlib import import_module
from io import TextIOWrapper
from itertools import chain
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ctxextend.cli.console import (
    FAILED_CHECK,
    INTERRUPTED,
    WRONG_USAGE,
    Console,
    clear_status,
    ignore_ctrl_c,
    in_colour,
    null_stream,
)
from ctxextend.cli.interruption import WRITTEN, describe_stop
from ctxextend.cli.options import ADVANCED, PANELS, MisplacedLength, WrongFlags
from ctxextend.cli.suggestions import suggest_command, suggest_flag
from ctxextend.cli.tables import Page
from ctxextend.cli.values import read_plain_values
from ctxextend.errors import (
    PASS_HUB_ID,
    SPECIFY_TABLE,
    CtxextendError,
    MethodError,
    TrainingInterrupted,
    VerificationError,
    did_you_mean,
    install_command,
    on_the_command_line,
)
from ctxextend.version import __version__

COMMANDS = (  # in the order of --help; each is a function in the module of the same name
    "resize",
    "convert",
    "flags",
    "train",
    "inspect",
    "verify",
    "evaluate",
    "compare",
    "run",
    "recipes",
    "families",
    "methods",
    "demo",
    "skill",
    "doctor",
)
# Exit codes of known errors; of others, 1.
EXIT_CODES: dict[type[CtxextendError], int] = {
    VerificationError: FAILED_CHECK,
    MethodError: WRONG_USAGE,
}
WITH_TABLE_FLAGS = ("resize", "inspect", "verify")  # commands that have --tensor
TABLE_FLAG = re.compile(r"--(tensor|config-key|reserved-rows)[ =]\S+ ?")
TEXT_DEFAULT = re.compile(r"default: \((.*)\)")  # Typer puts a textual default in parentheses
HELP_ALL = "--help-all"  # also lists the advanced options
SHOW_COMPLETION = ", to copy it or customize the installation"  # too long for one line
AFTER_DESTRUCTOR = 0.01  # seconds until a signal during a destructor is sent again
NO_SUCH_COMMAND = "No such command '"  # the name follows
EXTRA_ARGUMENTS_MESSAGE = "unexpected extra argument(s) ("


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
            with formatter.section(_coloured(first.removesuffix(":"), bold=True)):
                formatter.write("".join(f"  {line.strip()}\n" for line in lines))
        else:
            formatter.write_paragraph()
            formatter.write_text(paragraph)
    sections = help_sections(command, ctx)
    is_short = ADVANCED in sections and not ctx.meta.get(HELP_ALL)
    if is_short:
        del sections[ADVANCED]
    for group, rows in sections.items():
        with formatter.section(_coloured(group, bold=True)):
            coloured = [(_coloured(name, fg="cyan"), text) for name, text in rows]
            # One third leaves enough width for the text even in a narrow terminal.
            formatter.write_dl(coloured, formatter.width // 3)
    if is_short:
        formatter.write_paragraph()
        formatter.write_text(f"All options: {ctx.command_path} {HELP_ALL}")


def _coloured(text: str, **style: Any) -> str:
    return typer.style(text, **style) if in_colour() else text


class Command(TyperCommand):
    """A command with plain help, which reads its values without pydantic."""

    format_help = write_help
    _help_all_option: Any = None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with --help and --help-all."""
        return [*super().get_params(ctx), _help_all_of(self, ctx, hidden=False)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the values of arguments and options."""
        read_plain_values(self.get_params(ctx))
        return super().parse_args(ctx, args)


def _help_all_of(command: "Command | App", context: Any, *, hidden: bool) -> Any:
    """Return --help-all of a command: one option, since parameters are compared by identity."""
    if command._help_all_option is None:
        command._help_all_option = _help_all(command.get_help_option(context), hidden=hidden)
    return command._help_all_option


def _help_all(help_option: Any, *, hidden: bool) -> Any:
    """Return the option that prints the help with all options, like --help otherwise."""
    option = copy(help_option)
    option.hidden = hidden
    option.name = "help_all"
    option.opts = [HELP_ALL]
    option.help = "Show all options and exit."

    def show(context: Any, parameter: Any, requested: bool) -> None:
        context.meta[HELP_ALL] = requested
        help_option.callback(context, parameter, requested)

    option.callback = show
    return option


def help_sections(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the declarations and help texts of a command's parameters by group.

    Those of the app begin with its commands.
    """
    groups: dict[str, list[tuple[str, str]]] = {panel: [] for panel in ("Commands", *PANELS)}
    for name, inner in getattr(command, "commands", {}).items():
        groups["Commands"].append((name, summary(inner)))
    for parameter in command.params:  # --help itself is not among them
        group = parameter.rich_help_panel or PANELS[0]
        groups[group].append(_help_record(parameter, context))
    return {panel: rows for panel, rows in groups.items() if rows}


def _help_record(parameter: Any, context: Any) -> tuple[str, str]:
    """Return the declaration of an argument or option, and its help text with the default."""
    name, text = parameter.get_help_record(context)
    text = text.replace(SHOW_COMPLETION, "")
    if parameter.param_type_name == "argument":  # the usage line shows that it is required
        name = parameter.metavar
        text = text.removesuffix("  [required]")
    elif parameter.multiple:
        text = re.sub(r"\.(?=$|  \[)", "; repeatable.", text, count=1)
    return name, TEXT_DEFAULT.sub(r"default: \1", text)


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
    _help_all_option: Any = None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with --help and --help-all, which is the same here."""
        return [*super().get_params(ctx), _help_all_of(self, ctx, hidden=True)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the values of options before the command."""
        read_plain_values(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and print known errors.

        Raises:
            typer.Exit: With code 1 after a known error, 2 after wrong usage, 3 after a failed
                check, 130 after Ctrl-C, 128 + N after signal N.
        """
        console = Console("--json" in ctx.args, shows_status=False)
        words = [*ctx.args]
        _forget_earlier_outputs()
        try:
            with on_the_command_line():
                return super().invoke(ctx)
        except CtxextendError as error:
            hint = _known_hint(ctx, error.flag_hint, words)
            console.failure(type(error).__name__, error.flag_message, hint)
            raise typer.Exit(EXIT_CODES.get(type(error), 1)) from error
        except ModuleNotFoundError as error:
            if not error.name or error.name.startswith("ctxextend"):
                raise
            library = error.name.partition(".")[0]
            message = f"This needs {library}: {install_command(library)}"
            console.failure("ModuleNotFoundError", message, None)
            raise typer.Exit(1) from error
        except typer.TyperException as error:
            message, hint = explain_usage(error, _see_help(ctx), words)
            console.failure("UsageError", message, in_words_of_command(ctx, hint))
            raise typer.Exit(error.exit_code) from error
        except (KeyboardInterrupt, Terminated) as stop:
            ignore_ctrl_c()
            _remove_bar()
            console.interrupted(describe_stop(ctx.invoked_subcommand))
            raise typer.Exit(_exit_code(stop)) from None


def _forget_earlier_outputs() -> None:
    """Forget what other commands have written in this process."""
    for module, registry in WRITTEN:
        if module in sys.modules:
            getattr(sys.modules[module], registry).clear()


def _exit_code(stop: BaseException) -> int:
    """Return the exit code after an interruption: 128 and the number of the signal."""
    if isinstance(stop, Terminated):
        return stop.code
    if isinstance(stop, TrainingInterrupted):
        return 128 + stop.signal
    return INTERRUPTED


def _known_hint(context: Any, hint: str | None, words: Sequence[str]) -> str | None:
    """Return the hint of a known error, with a command to type if it lacks only flags."""
    if hint is None:
        return None
    if hint.startswith(PASS_HUB_ID):
        return f"{PASS_HUB_ID}{_with_hub_id(context, hint.removeprefix(PASS_HUB_ID), words)}"
    command = "resize MODEL --to N"
    if context.invoked_subcommand in WITH_TABLE_FLAGS:
        others = TABLE_FLAG.sub("", shlex.join(words)).rstrip()
        command = f"{context.invoked_subcommand} {others}"
    typed = f"{SPECIFY_TABLE}{context.info_name} {command} "
    return in_words_of_command(context, hint.replace(SPECIFY_TABLE, typed))


def _with_hub_id(context: Any, found: str, words: Sequence[str]) -> str:
    """Return a command with a Hub id instead of the name of its folder in the Hub cache."""
    hub_id, comma, others = found.partition(", ")
    meant = list[str]()
    for word in words:
        is_folder = word.rpartition("/")[2].replace("--", "/") == f"models/{hub_id}"
        meant.append(hub_id if is_folder else word)
    if meant == list(words):  # a folder inside that one
        return found
    command = shlex.join(["ctxextend", context.invoked_subcommand, *meant])
    return f"{command}{comma}{others}"


def _see_help(context: Any) -> str:
    names = [context.info_name]
    if context.invoked_subcommand:
        names.append(context.invoked_subcommand)
    return f"See {' '.join(filter(None, names))} --help."


def in_words_of_command(context: Any, hint: str) -> str:
    """Return a hint in the words of the command of a context; see `hints.in_words_of`."""
    command = context.invoked_subcommand
    if command not in COMMANDS or "--" not in hint:
        return hint
    from ctxextend.cli import hints  # only errors need it

    return hints.in_words_of(command, hint, command_flags())


def command_flags() -> dict[str, list[str]]:
    """Return the flags of each command, by its name."""
    group: Any = get_command(build_app())
    return {name: _flags(command.params) for name, command in group.commands.items()}


def _flags(parameters: Iterable[Any]) -> list[str]:
    names = chain.from_iterable(parameter.opts for parameter in parameters)
    return [name for name in names if name.startswith("--")]


def explain_usage(error: Any, hint: str, words: Sequence[str] = ()) -> tuple[str, str]:
    """Return the message and hint of a usage error, reworded where others are unclear.

    Args:
        error: An exception of Typer, perhaps caused by one of pydantic.
        hint: The hint unless there is a better one.
        words: The arguments of the command.
    """
    cause = error.__cause__
    if isinstance(cause, CtxextendError):
        return cause.flag_message, cause.flag_hint or hint
    if isinstance(error, WrongFlags):
        return error.problem, error.hint
    parameter = getattr(error, "param", None)
    if parameter is not None and cause is not None:
        return _explain_value(parameter, cause.errors()[0], hint)
    similar = getattr(error, "possibilities", None)
    if similar is not None:  # an unknown flag
        return f"Unknown option {error.option_name}.", _suggest_flag(error, similar) or hint
    if error.message and error.message.startswith(NO_SUCH_COMMAND):
        name, _, _ = error.message.removeprefix(NO_SUCH_COMMAND).partition("'")
        return f"Unknown command {name}.", suggest_command([name, *words], COMMANDS) or hint
    if EXTRA_ARGUMENTS_MESSAGE in error.message:
        return _explain_extra(error, hint, words)
    if parameter is not None and parameter.opts == ["--to"]:  # it is missing
        return error.format_message(), _explain_missing_length(error, words) or hint
    if isinstance(error, MisplacedLength):
        from ctxextend.cli import hints

        hint = hints.with_length_flag(error.command, error.length, words)
    return error.message or error.format_message(), hint


def _suggest_flag(error: Any, similar: Sequence[str]) -> str | None:
    """Return which flag is meant by an unknown one; None if that is unknown."""
    command = error.ctx.command.name if error.ctx else None
    if command not in COMMANDS:
        return f"Did you mean {similar[0]}?" if similar else None
    return suggest_flag(command, error.option_name, similar, command_flags())


def _explain_value(parameter: Any, problem: Mapping[str, Any], hint: str) -> tuple[str, str]:
    """Return the message and hint for a value of the wrong type."""
    choices = parameter.type_descriptor.choices or ()
    given = str(problem["input"])
    if choices:
        expected = f"one of {', '.join(choices)}"
    elif problem["type"].startswith("int"):
        expected = "an integer"
    else:
        expected = "a number"
    message = f"{parameter.opts[0]} must be {expected}, got {given}."
    return message, did_you_mean(given, choices) or hint


def _explain_missing_length(error: Any, words: Sequence[str]) -> str | None:
    """Return how to pass a length that was passed without its flag; None without one."""
    command = error.ctx.command
    with_values = []
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.is_flag:
            with_values += parameter.opts
    from ctxextend.cli import hints

    length = hints.find_length(words, with_values)
    if length is None:
        return None
    return hints.with_length_flag(command.name, length, words)


def _explain_extra(error: Any, hint: str, words: Sequence[str]) -> tuple[str, str]:
    """Return the message and hint for arguments that the command does not expect."""
    command = error.ctx.command
    extra = error.message.partition(EXTRA_ARGUMENTS_MESSAGE)[2].removesuffix(")")
    repeatable = []
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.multiple:
            repeatable += parameter.opts
    from ctxextend.cli import hints

    explained = hints.explain_extra(command.name, repeatable, extra, words)
    return f"Unexpected argument: {extra}.", explained or hint


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
    """Raise an exception on a signal.

    An import may swallow or print it, so the process exits at once during one. A destructor does so
    too, and is short: the signal comes again a moment later.
    """
    caller = frame
    while caller is not None:
        if caller.f_code.co_name == "__del__":
            threading.Timer(AFTER_DESTRUCTOR, os.kill, (os.getpid(), number)).start()
            return
        if caller.f_code.co_filename == "<frozen importlib._bootstrap>":
            _remove_bar()
            _remove_unfinished_output()
            _print_stop()
            os._exit(128 + number)
        caller = caller.f_back
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(128 + number)


def _remove_bar() -> None:
    """Clear a progress bar that has just started, and show the cursor again."""
    if os.isatty(2):
        os.write(2, b"\r\x1b[K\x1b[?25h")


def _print_stop() -> None:
    """Print what was kept, during an import: nothing may be imported."""
    command = next((word for word in sys.argv[1:] if word in COMMANDS), None)
    with suppress(Exception):
        Console("--json" in sys.argv, shows_status=False).interrupted(describe_stop(command))


def _remove_unfinished_output() -> None:
    """Remove what the command has written; nothing before it has imported what writes it."""
    if "ctxextend.checkpoints.atomic_output" not in sys.modules:
        return
    with suppress(ImportError):  # it is being imported
        from ctxextend.checkpoints.atomic_output import remove_unfinished

        remove_unfinished()


def main() -> None:
    """Run the command line.

    Ctrl-C, SIGTERM and SIGHUP (unless ignored, as under nohup) clean up, and one line says what was
    kept.
    """
    handled = _handle_signals()
    _set_environment()
    _prepare_streams()
    named = [name for name in COMMANDS if name in sys.argv[1:2]]
    try:
        build_app(named or COMMANDS)()
    finally:
        clear_status()
        for number in handled:
            signal.signal(number, lambda number, frame: os._exit(128 + number))


def _handle_signals() -> list[int]:
    """Raise exceptions on the signals that stop a command, and return these signals."""
    handled = []
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle_signal)
            handled.append(number)
    return handled


def _set_environment() -> None:
    """Set what libraries read when they are imported; what the user set stays."""
    # numpy threads cost more than they save on small tables; spinning torch threads slow down a
    # busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Warnings that libraries print on import mean nothing to a command line user.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _prepare_streams() -> None:
    """Make sure that stdout and stderr accept all text."""
    # Under a daemon they may be closed; print would then fail or write to another open file.
    sys.stdout = sys.stdout or null_stream()
    sys.stderr = sys.stderr or null_stream()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
