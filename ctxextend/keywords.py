"""Settings as keyword arguments of the public functions."""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field
from functools import wraps
from textwrap import fill
from typing import Any

from ctxextend.settings import Settings, option_of, ordered_fields, read_settings


def keyword_arguments(
    *kinds: type[Settings], without: Collection[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a function of settings objects take their fields as arguments instead.

    Arguments of a command come first, under the name ``reference``; then fields that are
    positional; all others, and further parameters of the function, are keyword arguments. The
    docstring gets a list of them.

    Args:
        kinds: The classes of the settings that the function takes, in this order.
        without: Fields that are not arguments; they have their default, or are empty.

    Returns:
        A decorator. The function raises TypeError for other arguments, and ResizeError if a value
        is invalid.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = dict[str, inspect.Parameter]()
        helps = list[str]()
        field_of = dict[str, str]()  # by argument
        for kind in kinds:
            for item in ordered_fields(kind):
                if option_of(item).in_python and item.name not in without:
                    parameter = _parameter(item)
                    if parameter.name not in parameters:
                        helps.append(f"{parameter.name}: {option_of(item).help}")
                    parameters[parameter.name] = parameter
                    field_of[parameter.name] = item.name
        own = list(inspect.signature(function).parameters.values())[len(kinds) :]
        for parameter in own:
            parameters[parameter.name] = parameter.replace(kind=parameter.KEYWORD_ONLY)
        ranks = {"reference": -1, "references": -1}
        ordered = sorted(parameters.values(), key=lambda item: (item.kind, ranks.get(item.name, 0)))
        extended = inspect.signature(function).replace(parameters=ordered)

        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            values = extended.bind(*args, **given).arguments
            others = {item.name: values.pop(item.name) for item in own if item.name in values}
            fields = {field_of[name]: value for name, value in values.items()}
            return function(*read_settings(kinds, fields, without), **others)

        call.__signature__ = extended  # type: ignore[attr-defined]
        call.__doc__ = _documented(inspect.getdoc(function) or "", helps)
        return call

    return decorate


def _parameter(item: Field[Any]) -> inspect.Parameter:
    """Return a field as a parameter of a function."""
    option = option_of(item)
    accepts: Any = option.kind.accepts
    if option.is_repeated:
        accepts = accepts | Sequence[accepts]
    name = item.name
    if option.is_argument:
        name = "references" if option.is_repeated else "reference"
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if item.kw_only and not option.is_argument:
        kind = inspect.Parameter.KEYWORD_ONLY
    default = item.default
    if default is None:
        accepts = accepts | None
    if default is MISSING:
        default = inspect.Parameter.empty
    return inspect.Parameter(
        name,
        kind,
        default=default,
        annotation=accepts,
    )


def _documented(docstring: str, helps: Sequence[str]) -> str:
    lines = [fill(text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8) for text in helps]
    listed = "\n".join(["Args:", *lines])
    before, args, after = docstring.partition("Args:")
    if args:
        return f"{before}{listed}{after}"
    before, raises, after = docstring.partition("Raises:")
    return f"{before.rstrip()}\n\n{listed}\n\n{raises}{after}".rstrip()
