"""Values of flags and arguments that need no conversion, taken as they are.

Typer converts and checks by pydantic, whose import takes longer than all else that a small command does. An absent
value, a string, a choice, or a plain number within its bounds is right as it stands; all others go to Typer, whose
messages say what is wrong with them.
"""

import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

__all__ = ["convert_less"]

INTEGER = re.compile(r"-?[0-9]{1,18}")
NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?(e-?[0-9]{1,2})?")

UNLIKE = object()


def convert_less(parameters: Iterable[Any]) -> None:
    """Let Typer's parameters convert only those values that are not right as they stand."""
    for parameter in parameters:
        # Typers before 0.29 have no such attribute, and import no pydantic; later ones may call it otherwise.
        described = getattr(parameter, "type_descriptor", None)
        is_known = all(hasattr(described, name) for name in ("annotation", "parameter_info"))
        if is_known and not isinstance(parameter.process_value, partial):
            parameter.process_value = partial(_process, parameter, parameter.process_value)


def _process(parameter: Any, convert: Any, context: Any, value: Any) -> Any:
    found = _taken(parameter, value)
    if found is UNLIKE:
        return convert(context, value)
    return parameter.callback(context, parameter, found) if parameter.callback else found


def _taken(parameter: Any, value: Any) -> Any:
    """Return what Typer would make of a value, or `UNLIKE` where only it can tell."""
    kind, settings = parameter.type_descriptor.annotation, parameter.type_descriptor.parameter_info
    is_multiple = parameter.multiple or parameter.nargs == -1
    if value is None:
        return UNLIKE if parameter.required else () if is_multiple else None
    if get_origin(kind) is list and is_multiple:
        items = [_plain(get_args(kind)[0], settings, item) for item in value]
        return UNLIKE if UNLIKE in items or (parameter.required and not items) else items
    return _plain(kind, settings, value)


def _plain(kind: Any, settings: Any, value: Any) -> Any:
    if kind is bool:
        return value if isinstance(value, bool) else UNLIKE
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else UNLIKE
    if kind in (int, float):
        return _number(kind, settings, value)
    if kind is Path and isinstance(value, str):
        return Path(value) if _is_plain(settings, value) else UNLIKE
    return value if kind is str and isinstance(value, str) else UNLIKE


def _number(kind: type, settings: Any, value: Any) -> Any:
    if isinstance(value, str) and (INTEGER if kind is int else NUMBER).fullmatch(value):
        value = kind(value)
    low, high = settings.min, settings.max
    is_right = type(value) is kind and (low is None or value >= low) and (high is None or value <= high)
    return value if is_right else UNLIKE


def _is_plain(settings: Any, path: str) -> bool:
    """Whether a path passes what Typer asks of it: the defaults, which want no more than that it can be read."""
    if settings.parser or settings.resolve_path or settings.writable or not (settings.file_okay and settings.dir_okay):
        return False
    return os.access(path, os.R_OK) if os.path.exists(path) else not settings.exists  # noqa: PTH110 - never raises
