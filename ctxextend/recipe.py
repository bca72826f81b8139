"""One typed description of a run; recipetext.py writes it as the YAML that lies beside every output."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctxextend.errors import ResizeError
from ctxextend.runsettings import LEAST_LENGTH, MEASURES, PRECISIONS, TRAINABLE, Evaluate, Train
from ctxextend.tables.apply import MethodOptions

__all__ = [
    "DEFAULT_METHOD",
    "LEAST_LENGTH",
    "MEASURES",
    "PRECISIONS",
    "RECIPE_FILE",
    "TRAINABLE",
    "TRUNCATE",
    "Evaluate",
    "Origin",
    "Recipe",
    "Resize",
    "Run",
    "Subject",
    "Train",
    "flag_words",
]

DEFAULT_METHOD = "copy"

# More rows than any file holds: a longer number may even be one that Python refuses to print.
MOST_POSITIONS = 2**63

# What lies beside every output.
RECIPE_FILE = "ctxextend.yaml"

# What shortened tables are said to be made by.
TRUNCATE = "truncate"


@dataclass(frozen=True)
class Resize:
    """What to make of a position table.

    Attributes:
        to: Usable token positions wanted, ≥ 1; offset rows come on top.
        method: How new rows are made; None is `copy`, and all that a shorter table allows.
        keep_first: Positions at the start that the method neither reads nor changes; None is the method's default.
        drop_last: Positions at the end that are no source for new rows.
        scope: For `sinusoidal`: ``new`` rows or ``all``; None is the method's default, as of the next two.
        alpha: For `hierarchical`: the weight of the first digit, above 0, below 1 and not 0.5.
        seed: For `random`: the seed of what is drawn, ≥ 0.
        sigma: For `bands`: rows of the Gaussian that parts slow from fast, ≥ 0; None is chosen, as the next two.
        repeat: For `bands`: the first of the rows that repeat, and one behind the last, offset rows not counted.
        gain: For `bands`: by how much rows are moved away from their mean, above 0.
        part: Which of a model's tables, as its plan names them: encoder, decoder, text, …; None is all of them.
        table: The whole name of the table, for a model type that the registry does not know.
        config_key: The key that states its length, with dots where configs are nested; goes with `table`.
        offset: Its rows in front of position 0; goes with `table`.
        mend_limits: Whether config, tokenizer and side files must state the table's length even where it stays, and
            whatever they state now.
        keep_code: Whether code that lies in the folder is copied, and not left out.

    Raises:
        ResizeError: A value that no checkpoint could serve.
    """

    to: int
    method: str | None = None
    keep_first: int | None = None
    drop_last: int = 0
    scope: str | None = None
    alpha: float | None = None
    seed: int | None = None
    sigma: float | None = None
    repeat: tuple[int, int] | None = None
    gain: float | None = None
    part: str | None = None
    table: str | None = None
    config_key: str | None = None
    offset: int = 0
    mend_limits: bool = False
    keep_code: bool = False

    def __post_init__(self) -> None:
        if self.table is not None and self.part is not None:
            raise ResizeError("--table names one table, and --part chooses among several.", "Leave one of them out.")
        for name in ("to", "keep_first", "drop_last", "seed", "offset"):
            object.__setattr__(self, name, _whole(getattr(self, name)))
        for name in ("alpha", "sigma", "gain"):
            object.__setattr__(self, name, _number(getattr(self, name)))
        if self.repeat is not None:
            object.__setattr__(self, "repeat", _span(self.repeat))
        if isinstance(self.to, bool) or not isinstance(self.to, int) or self.to < 1:
            raise ResizeError(f"--to {self.to!r} is no length.", "Give a whole number of token positions, 1 or more.")
        if self.to >= MOST_POSITIONS:
            raise ResizeError("--to is more positions than any table can have.", "Give a smaller --to.")
        _ = self.options

    @property
    def options(self) -> MethodOptions:
        """The method and its flags, checked."""
        method = self.method or DEFAULT_METHOD
        own = self.scope, self.alpha, self.seed, self.sigma, self.repeat, self.gain
        return MethodOptions(method, self.keep_first, self.drop_last, *own)

    @property
    def method_flags(self) -> tuple[str, ...]:
        """The flags that were given and mean something only where new rows are made."""
        given = {
            "--method": self.method is not None,
            "--keep-first": bool(self.keep_first),
            "--drop-last": self.drop_last > 0,
            "--scope": self.scope is not None,
            "--alpha": self.alpha is not None,
            "--seed": self.seed is not None,
            "--sigma": self.sigma is not None,
            "--repeat": self.repeat is not None,
            "--gain": self.gain is not None,
        }
        return tuple(flag for flag, is_given in given.items() if is_given)


def _whole(value: Any) -> Any:
    """Return numpy's whole numbers as Python's; anything else as it is."""
    return value if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)


def _number(value: Any) -> Any:
    """Return whatever is a number, numpy's too, as Python's; anything else as it is."""
    try:
        return float(value) if hasattr(value, "__float__") and not isinstance(value, bool) else value
    except OverflowError:
        return math.inf


def _span(value: Any) -> tuple[int, int]:
    """Return two whole numbers.

    Raises:
        ResizeError: It is something else.
    """
    found = tuple(map(_whole, value)) if isinstance(value, list | tuple) else ()
    if len(found) != 2 or not all(type(end) is int for end in found):
        raise ResizeError(f"--repeat {value!r} is no stretch of rows.", "Give A:B for rows A to B-1.")
    return found


def flag_words(values: Mapping[str, Any]) -> list[str]:
    """Return flags as they are typed, by their names and values; those whose value is None are left out."""
    return [word for flag, value in values.items() if value is not None for word in (f"--{flag}", str(value))]


@dataclass(frozen=True)
class Origin:
    """What has to be said of a source beside its name.

    Attributes:
        revision: A branch, tag or commit of the Hub.
        subfolder: The folder below it that holds the checkpoint.
        variant: The part of the weights' file names that tells one copy from another, such as ``fp16``.
        family: The model type to take it for; None is what its config says.
    """

    revision: str | None = None
    subfolder: str | None = None
    variant: str | None = None
    family: str | None = None


@dataclass(frozen=True)
class Subject:
    """A checkpoint as a command names it.

    Attributes:
        source: A folder, a weights file, a bundled checkpoint's name, or a Hub id.
        origin: Which part of it, and what it is, where that needs saying.
        table: As in `Resize`.
        config_key: As in `Resize`.
        offset: As in `Resize`.
        command: What the user typed behind ``ctxextend``.
        flags: What else was typed, to be repeated in advice.

    Raises:
        ResizeError: Flags that have no meaning together.
    """

    source: str
    origin: Origin = Origin()
    table: str | None = None
    config_key: str | None = None
    offset: int = 0
    command: str = "inspect"
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.table is None and (self.config_key is not None or self.offset):
            raise ResizeError(
                "--offset and --config-key describe the table that --table names.", "Add --table, or leave them out."
            )
        if self.table is not None and self.origin.family is not None:
            raise ResizeError(
                "--table describes a model by hand, and --family names a known one.", "Leave one of them out."
            )


@dataclass(frozen=True)
class Run:
    """The whole of what a recipe file asks for, one step behind the other.

    Attributes:
        source: As in `Recipe`.
        origin: As in `Recipe`.
        resize: What to make of its position table; None leaves it.
        train: How to train it then; None does not.
        evaluate: How to measure it then; None does not.
        output: The folder that is made; None is named after the source and the length.
    """

    source: str
    origin: Origin = Origin()
    resize: Resize | None = None
    train: Train | None = None
    evaluate: Evaluate | None = None
    output: str | None = None

    @property
    def keeps_code(self) -> bool:
        """Whether code that lies beside what is resized or trained is copied."""
        return any(step is not None and step.keep_code for step in (self.resize, self.train))


@dataclass(frozen=True)
class Recipe:
    """What to make of the position table of what source.

    Attributes:
        source: A folder, a bundled checkpoint's name, or a Hub id.
        resize: What to make of its position table.
        origin: Which part of it, and what it is, where that needs saying.
    """

    source: str
    resize: Resize
    origin: Origin = Origin()

    def __post_init__(self) -> None:
        _ = self.subject

    @property
    def subject(self) -> Subject:
        """Its source as `resize` names it."""
        settings = self.resize
        flags = {"to": settings.to, "method": settings.method, **settings.options.typed}
        described = settings.table, settings.config_key, settings.offset
        return Subject(self.source, self.origin, *described, "resize", tuple(flag_words(flags)))
