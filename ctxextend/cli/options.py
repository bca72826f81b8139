"""The options of a command, from its settings."""

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ctxextend import kinds
from ctxextend.cli.console import Console, Files
from ctxextend.errors import CtxextendError, ResizeError
from ctxextend.recipe_names import builtin_recipes
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
    complete: Any = None  # without names, the shell completes nothing
    if option.kind is kinds.RECIPE:
        complete = complete_recipe
    elif option.kind.may_be_model:
        complete = complete_model
    elif option.kind.names is not tuple:
        complete = completing(option.kind.names)
    declared = {
        "metavar": option.metavar or None,
        "help": option.help,
        "show_default": shown,
        "autocompletion": complete,
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


def argument(metavar: str, help_text: str, default: str | bool = True, complete: Any = None) -> Any:
    """Return an argument, and how shells complete it."""
    return typer.Argument(
        metavar=metavar, help=help_text, show_default=default, autocompletion=complete
    )


def completing(names: Callable[[], Iterable[str]]) -> Any:
    """Return a shell completion callback for names; without a match, shells offer files."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Return built-in recipes and recipe files that a text may become.

    Of files, those in its folder and, once a folder is typed, those of outputs in it.
    """
    names = [*builtin_recipes()]
    folder, _ = os.path.split(incomplete)
    patterns = ["*.yaml", "*.yml"]
    if folder:
        patterns.append("*/ctxextend.yaml")
    for pattern in patterns:
        for path in sorted(Path(folder).glob(pattern)):
            names.append(str(path))
    return [name for name in names if name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Return bundled models, and with one that matches also the folders that a text may become.

    Without a bundled model that matches, the shell offers files and folders itself.
    """
    bundled = import_module("ctxextend.checkpoint.source").BUNDLED
    names = [name for name in bundled if name.startswith(incomplete)]
    if not names:
        return []
    folders = [path.name for path in Path().iterdir() if path.is_dir()]
    names += sorted(name for name in folders if name.startswith(incomplete) and name[0] != ".")
    return list(dict.fromkeys(names))


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
