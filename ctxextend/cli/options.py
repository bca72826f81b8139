"""The options of a command, from its settings."""

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field
from typing import Annotated, Any

import typer

from ctxextend import kinds
from ctxextend.cli.console import Console, Files
from ctxextend.errors import CtxextendError, ResizeError
from ctxextend.settings import (
    Figures,
    Heading,
    Settings,
    flag_of,
    option_of,
    ordered_fields,
    read_settings,
)


class WrongFlags(typer.BadParameter):
    """Flags or values that cannot be used, and what to do instead."""

    def __init__(self, message: str, hint: str | None) -> None:
        super().__init__(message)
        self.hint = hint

    def format_message(self) -> str:
        """Return the message, without the flag that Typer would add."""
        return self.message


def command(
    *kinds_of_settings: type[Settings], without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a function of settings objects and a console be a command with their fields as options.

    Args:
        kinds_of_settings: The classes of the settings that the function takes, in this order.
        without: Fields that are not options; they have their default, or are empty.

    Returns:
        A decorator. The command raises `WrongFlags` if a value is invalid.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = dict[str, inspect.Parameter]()
        for kind in kinds_of_settings:
            for item in ordered_fields(kind):
                if option_of(item).in_cli and item.name not in without:
                    parameters[item.name] = _parameter(item)

        def run(as_json: bool, quiet: bool, **given: Any) -> None:
            if quiet or not sys.stderr.isatty():  # huggingface_hub draws its own bars
                os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
            values = {name: value for name, value in given.items() if value not in (None, (), [])}
            try:
                settings = read_settings(kinds_of_settings, values, without)
            except ResizeError as error:
                raise WrongFlags(error.message, error.hint) from error
            function(*settings, Console(as_json, quiet))

        signature = inspect.Signature([*parameters.values(), JSON, QUIET])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {}
        run.__name__ = function.__name__
        run.__doc__ = function.__doc__
        return run

    return decorate


def _parameter(item: Field[Any]) -> inspect.Parameter:
    """Return a field as a parameter of a Typer command: a flag, or text that the settings read."""
    option = option_of(item)
    kind: Any = str
    default: Any = None
    if option.kind is kinds.FLAG:
        kind = bool
        default = False
    elif option.is_repeated:
        kind = list[str]
    shown = option.shown
    if shown is True:
        is_shown = isinstance(item.default, str | int | float) and item.default is not False
        shown = str(item.default) if is_shown else False
    declared: dict[str, Any] = {
        "metavar": option.metavar or None,
        "help": option.help,
        "show_default": shown,
    }
    if option.is_argument:
        info = typer.Argument(**declared)
    else:
        names = (option.flag or flag_of(item)).split()
        info = typer.Option(*names, rich_help_panel=option.heading, **declared)
    if item.default is MISSING:
        default = inspect.Parameter.empty
    elif kind is not bool:
        kind = kind | None
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info],
    )


AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=Heading.OUTPUT)
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Suppress all stderr output except errors.",
        rich_help_panel=Heading.OUTPUT,
    ),
]
JSON = inspect.Parameter(
    "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
)
QUIET = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)


def command_line() -> str:
    """Return the command line of this run, with local paths shortened to names."""
    from ctxextend.checkpoint.source import public_name

    words = []
    for word in sys.argv[1:]:
        flag, equals, value = word.rpartition("=")
        words.append(f"{flag}{equals}{public_name(value)}")
    return shlex.join(["ctxextend", *words])


@contextmanager
def usage_errors(*kinds: type[CtxextendError]) -> Iterator[None]:
    """Turn errors in flags, and the given kinds of errors, into usage errors."""
    caught: tuple[type[CtxextendError], ...] = (ResizeError, *kinds)
    try:
        yield
    except caught as error:
        raise WrongFlags(error.message, error.hint) from error


def figure_files(figures: Figures, evaluation: Any, next_command: str) -> Files:
    """Return the report and the figure of an evaluation, if requested, with how to write each."""
    if figures.plot is None and figures.report is None:
        return []
    from ctxextend.report.figures import evaluation_figure, write_figure
    from ctxextend.report.page import write_report

    return [
        (
            figures.report,
            lambda path: write_report(evaluation, path, command_line(), next_command),
        ),
        (figures.plot, lambda path: write_figure(path, lambda: evaluation_figure(evaluation))),
    ]


def check_figures(figures: Figures) -> None:
    """Check early that the figure and the report of `Figures` can be written.

    Raises:
        OutputError: They cannot be written here, or a library is missing.
    """
    if figures.plot is None and figures.report is None:
        return
    from ctxextend.report.figures import FIGURE, REPORT, check_file

    if figures.plot is not None:
        check_file(figures.plot, FIGURE)
    if figures.report is not None:
        check_file(figures.report, REPORT)
