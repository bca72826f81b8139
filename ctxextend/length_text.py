"""Lengths in tokens as users write them: ``4096``, ``4,096``, ``4k``, ``1m``, or a factor: ``4x``.

One parser for flags, recipe keys and keyword arguments.
"""

import re
from collections.abc import Mapping
from typing import Any

from ctxextend.errors import ResizeError

# Digits in groups of three, with one mark for all groups: ``4,0`` and ``4,096_000`` are none.
GROUPED_NUMBER = r"[0-9]{1,18}|[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,3}(?:_[0-9]{3}){1,5}"
WRITTEN_LENGTH = rf"({GROUPED_NUMBER})([km]?)"
WHOLE_FACTOR = r"(?!0+x)([0-9]{1,18})x"
# Refused once the length is known that it multiplies.
FRACTIONAL_FACTOR = r"([0-9]{1,18}\.[0-9]{1,18})x"
UNITS = {"": 1, "k": 1024, "m": 1024**2}
LENGTH_FORMS = "a number of tokens, such as 4096, 4,096, 4k or 1m"
FORMS_WITH_FACTOR = "a number, such as 4096, 4,096, 4k or 1m, or a factor, such as 4x"
# For the metadata of a settings field whose value is a length, or several.
IS_LENGTH: Mapping[str, Any] = {"is_length": True}


def parse_length(value: Any) -> Any:
    """Return a length as a number, also each of several; any other value stays as it is."""
    if isinstance(value, tuple):
        return tuple(parse_length(item) for item in value)
    if not isinstance(value, str):
        return value
    match = re.fullmatch(WRITTEN_LENGTH, value.strip().lower())
    if match is None:
        return value
    digits = match[1].replace(",", "").replace("_", "")
    return int(digits) * UNITS[match[2]]


def is_factor(text: str) -> bool:
    """Whether a text is a factor, such as ``4x``; it may be one that `times` refuses."""
    return re.fullmatch(f"{WHOLE_FACTOR}|{FRACTIONAL_FACTOR}", text.lower()) is not None


def times(factor: str, length: int) -> int:
    """Return a factor, such as ``4x``, times a length.

    Raises:
        ResizeError: The factor is not a whole number.
    """
    if re.fullmatch(WHOLE_FACTOR, factor.lower()) is not None:
        return length * int(factor[:-1])
    whole, _, decimals = factor[:-1].partition(".")
    below, rest = divmod(int(whole + decimals) * length, 10 ** len(decimals))
    nearest = f"--to {max(below, 1)}"
    if below and rest:
        nearest = f"--to {below} or --to {below + 1}"
    raise ResizeError(
        f"--to {factor}: factors are whole numbers, such as 2x.",
        f"The present length is {length}: for {factor[:-1]} times as much, use {nearest}.",
    )
