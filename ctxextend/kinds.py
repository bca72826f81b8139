"""What the value of a setting may be: a kind for each.

A value comes as the text of a flag, from YAML or from Python. `Kind.read` turns it into the type
that all later code uses, once. Importing this module loads no library.
"""

import math
import operator
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from ctxextend.errors import ResizeError, did_you_mean
from ctxextend.runtimes.engines import find_engine

MAX_COUNT = 2**31 - 1  # maximum of integer settings, which libraries store in 32 bits
MAX_CONTEXT = 2**63 - 1  # disk space is checked before writing
UNITS = {"": 1, "k": 1024, "m": 1024**2}
# Digits in groups of three, with one mark for all groups: ``4,0`` and ``4,096_000`` are none.
WRITTEN_LENGTH = re.compile(
    r"([0-9]{1,18}|[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,3}(?:_[0-9]{3}){1,5})([km]?)"
)
WRITTEN_FACTOR = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)x")
ANY_PATH = str | os.PathLike[str]  # a path as Python callers pass it
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "xla")  # optionally followed by an index


@dataclass(frozen=True)
class Kind:
    """A kind of values."""

    accepts: Any  # the type of the values that Python callers pass
    read: Callable[[Any], Any]  # returns the value in its own type; raises ValueError
    names: Collection[str] = ()  # that a misspelt value is compared with
    # Whether values are local paths, which recipes state relative to their folder.
    is_path: bool = False
    # Of paths: whether a value may also name a bundled checkpoint or one on the Hub.
    may_be_model: bool = False


class Factor(NamedTuple):
    """A new length as a multiple of the present one: ``4x``."""

    number: Fraction

    def __str__(self) -> str:
        return f"{float(self.number):.15g}x"

    def times(self, length: int) -> int:
        """Return the product with a length.

        Raises:
            ResizeError: It is not a whole number of tokens.
        """
        product = self.number * length
        if product.denominator == 1 and product >= 1:
            return int(product)
        below = math.floor(product)
        nearest = f"--to {below + 1}"
        if below:
            nearest = f"--to {below} or {nearest}"
        message = f"--to {self} is not a whole number of tokens: the present length is {length}."
        raise ResizeError(message, f"Use {nearest}.")


class TableName(NamedTuple):
    """A position table of an unknown model type: ``NAME:KEY:RESERVED``."""

    tensor: str  # full name of the tensor
    config_key: str | None  # config key of its length, with dots for nested configs
    reserved_rows: int  # rows before position 0

    def __str__(self) -> str:
        parts = [self.tensor, self.config_key or "", str(self.reserved_rows or "")]
        return ":".join(parts).rstrip(":")


def text(must: str, allows: Callable[[str], object], **known: Any) -> Kind:
    """Return the kind of texts that a condition allows; `known` has other fields of `Kind`."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not allows(value):
            raise ValueError(must)
        return value

    return Kind(str, read, **known)


def _read_path(value: Any) -> str:
    if not isinstance(value, str | os.PathLike) or value == "":
        raise ValueError("text or a path")
    return os.fspath(value)


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


ANY_TEXT = text("text", bool)
FLAG = Kind(bool, _read_flag)
FILE = Kind(ANY_PATH, _read_path, is_path=True)
# Of a checkpoint or a tokenizer.
CHECKPOINT = Kind(
    ANY_PATH,
    lambda value: value if value == "" else _read_path(value),  # empty: a command takes none
    is_path=True,
    may_be_model=True,
)
OUTPUT_PATH = Kind(ANY_PATH, lambda value: Path(_read_path(value)))
RECIPE = Kind(ANY_PATH, _read_path)


def drawing(*formats: str) -> Kind:
    """Return the kind of files to draw in, of some formats."""

    def read(value: Any) -> Path:
        path = Path(_read_path(value))
        if path.suffix.lower() not in formats:
            raise ValueError(f"a file name that ends in {' or '.join(formats)}")
        return path

    return Kind(ANY_PATH, read)


def integer(minimum: int = 1, maximum: int = MAX_COUNT, *, is_length: bool = False) -> Kind:
    """Return the kind of integers in a range; those of lengths may be written as ``4k``."""

    def read(value: Any) -> int:
        number = value
        if is_length and isinstance(value, str):
            written = WRITTEN_LENGTH.fullmatch(value.strip().lower())
            if written is None:
                raise ValueError("a number of tokens, such as 4096, 4,096, 4k or 1m")
            number = int(written[1].replace(",", "").replace("_", "")) * UNITS[written[2]]
        try:
            if isinstance(number, bool):
                raise TypeError
            number = int(number) if isinstance(number, str) else operator.index(number)
        except (TypeError, ValueError):
            raise ValueError("an integer") from None
        if number < minimum:
            raise ValueError(f"at least {minimum}")
        if number > maximum:
            raise ValueError(f"at most {maximum:,}")
        return int(number)

    return Kind(int | str if is_length else int, read)


def number(must: str, allows: Callable[[float], bool]) -> Kind:
    """Return the kind of real numbers that a condition allows."""

    def read(value: Any) -> float:
        try:
            if isinstance(value, bool) or not isinstance(value, Real | str):
                raise TypeError
            read = float(value)
        except (TypeError, ValueError):
            raise ValueError("a number") from None
        if not (allows(read) and math.isfinite(read)):
            raise ValueError(must)
        return read

    return Kind(float, read)


ABOVE_ZERO = number("positive", lambda value: value > 0)
WEIGHT = number("at least 0", lambda value: value >= 0)


def choice(*names: str) -> Kind:
    """Return the kind of values that are one of some names."""
    return text(f"one of {', '.join(names)}", names.__contains__, names=names)


def length(minimum: int = 1, maximum: int = MAX_COUNT) -> Kind:
    """Return the kind of lengths in tokens, as a number or written as ``4096`` or ``4k``."""
    return integer(minimum, maximum, is_length=True)


NUMBER_OF_TOKENS = length(1, MAX_CONTEXT)


def _read_new_length(value: Any) -> int | Factor:
    if isinstance(value, Factor):
        return value
    if isinstance(value, str):
        text = value.strip().lower()
        factor = WRITTEN_FACTOR.fullmatch(text)
        if factor is not None and Fraction(factor[1]) > 0:
            return Factor(Fraction(factor[1]))
        if not WRITTEN_LENGTH.fullmatch(text):
            raise ValueError("a number, such as 4096, 4,096, 4k or 1m, or a factor, such as 4x")
    return int(NUMBER_OF_TOKENS.read(value))


NEW_LENGTH = Kind(int | str, _read_new_length)


def _read_method(value: Any) -> Any:
    choice_type = import_module("ctxextend.tables.method_facts").MethodChoice
    if isinstance(value, choice_type):
        return value
    if not isinstance(value, str):
        raise ValueError("text, such as linear or bands:gain=1.2")
    return import_module("ctxextend.tables.methods").parse_method(value)


METHOD = Kind(str, _read_method)
METHOD_OR_ALL = Kind(str, lambda value: "all" if value == "all" else _read_method(value))


def _read_model_type(value: Any) -> str:
    known = import_module("ctxextend.families.registry")
    if not isinstance(value, str):
        raise ValueError("text")
    if not known.is_known(value):
        hint = did_you_mean(value, known.known_names())
        hint = hint or "List supported model types with `ctxextend families`."
        raise ResizeError(known.describe_unknown(value), hint)
    return value


MODEL_TYPE = Kind(str, _read_model_type)


SUBFOLDER = text(
    "a relative path inside MODEL",
    lambda value: import_module("ctxextend.checkpoint.filenames").stays_inside(value),
)
VARIANT = text(
    "letters, digits, - and _, such as fp16", lambda value: re.fullmatch(r"[\w-]+", value)
)
DEVICE = text(
    f"one of {', '.join(DEVICES)}",
    lambda value: value.partition(":")[0] in DEVICES,
    names=DEVICES[:3],
)


def _read_table(value: Any) -> TableName:
    if isinstance(value, TableName):
        return value
    if not isinstance(value, str):
        raise ValueError("NAME:KEY:RESERVED")
    parts = re.fullmatch(r"([^:]+)(?::([^:]*))?(?::([0-9]{0,9}))?", value)
    if parts is None:
        raise ValueError("NAME:KEY:RESERVED, such as pos.weight:n_positions:2")
    return TableName(parts[1], parts[2] or None, int(parts[3] or 0))


TABLE = Kind(str, _read_table)


ENGINE = Kind(str, lambda value: find_engine(str(value)).key)
