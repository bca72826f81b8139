"""Values of arguments and options, read without pydantic.

Typer reads every value, also a default, with pydantic, whose import takes as long as numpy's. This
module reads what plain Python can read, and refuses other choices, which pydantic would call a
"Value error". The rest, and every other error, is left to Typer.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?", re.ASCII | re.IGNORECASE)


class NotPlainError(Exception):
    """Only Typer can read the value, or say what is wrong with it."""


def read_plain_values(parameters: Iterable[Any]) -> None:
    """Let parameters read plain values without pydantic."""
    for parameter in parameters:
        # Typer calls it once there is a value, and then `coerce` of what it returns.
        parameter.get_runtime_param = ValueReader


class ValueReader:
    """Reads the values of parameters, with the interface of ``typer._coercion.RuntimeParam``."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter; a repeated one has a list of values."""
        is_repeated = param.multiple or param.nargs == -1
        if value is None:
            return () if is_repeated else None
        kind = param.type_descriptor.annotation
        try:
            if is_repeated:
                (kind,) = get_args(kind)
                return [plain_value(item, kind, param) for item in value]
            return plain_value(value, kind, param)
        except NotPlainError:
            typers_own = type(param).get_runtime_param(param)
            return typers_own.coerce(value, param=param, ctx=ctx)


def plain_value(value: Any, kind: Any, param: Any) -> Any:
    """Return a value as a `kind`, the type of one value of the parameter.

    Raises:
        NotPlainError: Typer has to read it.
    """
    is_text = isinstance(value, str)
    parser = param.type_descriptor.parameter_info.parser
    if parser is not None and is_text:
        return parser(value)  # the settings check what it returns
    if kind is str and is_text:
        return value
    if kind is Path and is_text and not param.type_descriptor.parameter_info.readable:
        return Path(value)  # with `readable`, Typer also looks at the file
    if kind is int and is_text and INTEGER.fullmatch(value):
        return int(value)
    if kind is float and is_text and NUMBER.fullmatch(value):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind):  # a default
        return value
    choices = get_args(kind)  # of a Literal
    if value in choices:
        return value
    if is_text and get_origin(kind) is Literal:
        message = f"{value!r} is not one of {', '.join(map(repr, choices))}."
        raise typer.BadParameter(message, param=param)
    raise NotPlainError
