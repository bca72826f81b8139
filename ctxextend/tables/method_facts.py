"""What is known about a resize method, and how a function becomes one."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ctxextend.errors import ResizeError
from ctxextend.json_output import not_in_json

DEFAULT_METHOD = "auto"  # of a longer table
COPY = "copy"
FORMULA = "formula"
SINUSOIDAL = "sinusoidal"
TRUNCATE = "truncate"  # the method of a shorter table: keep the first rows
LIMITS = "limits"  # the method of positions that any length can use: only length limits change
SWITCH = "switch"  # other frequencies for long inputs only

# The methods that change unscaled rotary settings, the default first.
SCALING_METHODS = ("yarn", SWITCH, "linear", "dynamic", "theta")

# Of these, the methods whose frequencies follow the length of each input.
FOLLOWING_METHODS = ("dynamic", SWITCH)

# Effects on inputs up to the old length: of methods that keep learned rows, and of all others.
UNCHANGED = "inputs up to the old length give identical outputs if padded as before"
MOVED = "outputs for short inputs change too, because positions move"

# For methods that use LAPACK or BLAS, whose last bits differ between machines. After rounding to
# 16-bit floats, a few values of a row may then differ by one unit in the last place.
BLAS_TOLERANCE = 1e-3

MAX_INTEGER = 2**63 - 1

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Setting:
    """A setting of a method, given after the method's name: ``bands:sigma=4,gain=1.2``."""

    does: str  # what it controls, as a phrase
    must: str  # its allowed values, as a phrase that follows "must be"
    default: Any  # None: chosen from the table, or `unset`
    read: Callable[[str], Any] = field(metadata=not_in_json)  # raises ValueError for invalid text
    allows: Callable[[Any], bool] = field(default=lambda value: True, metadata=not_in_json)
    # What applies without a value, as a phrase; empty: one is chosen from the table.
    unset: str = ""

    def parse(self, text: str) -> Any:
        """Return the value that a text gives.

        Raises:
            ValueError: The text is not a value, or the value is not allowed.
        """
        value = self.read(text)
        if not self.allows(value):
            raise ValueError(f"must be {self.must}")
        return value


def count_setting(does: str, default: int | None = 0, least: int = 0) -> Setting:
    """Return a setting whose values are integers, from 0 or another one on."""
    return Setting(
        does,
        must=f"an integer from {least} to 2**63 - 1",
        default=default,
        read=int,
        allows=lambda number: least <= number <= MAX_INTEGER,
    )


def positive_setting(does: str, unset: str = "") -> Setting:
    """Return a setting whose values are positive numbers; `unset` as in `Setting`."""
    return Setting(
        does,
        must="above 0",
        default=None,
        unset=unset,
        read=float,
        allows=lambda number: 0 < number < math.inf,
    )


def named_setting(does: str, names: tuple[str, ...], default: str | None) -> Setting:
    """Return a setting whose values are names."""
    must = f"{', '.join(names[:-1])} or {names[-1]}"
    return Setting(does, must=must, default=default, read=str, allows=names.__contains__)


def range_setting(does: str) -> Setting:
    """Return a setting whose values are ranges of rows, by default chosen from the table."""
    return Setting(does, must="A:B with 0 <= A < B", default=None, read=read_rows)


def read_rows(text: str) -> tuple[int, int]:
    """Parse ``A:B`` into a half-open range of rows.

    Raises:
        ValueError: The text is not such a range.
    """
    first, stop = map(int, text.split(":"))
    if not 0 <= first < stop <= MAX_INTEGER:
        raise ValueError(f"{first}:{stop} is not a range of rows")
    return first, stop


# The values of `keep_first`.
COUNT = count_setting("number of rows")


def method_text(name: str, settings: Mapping[str, Any]) -> str:
    """Format a method and its settings, ``bands:sigma=4,gain=1.2``.

    Settings that are None are left out; floats round-trip.
    """
    given = []
    for key, value in settings.items():
        if value is None:
            continue
        text = str(value)
        if isinstance(value, tuple):
            text = ":".join(map(str, value))
        elif isinstance(value, float) and value.is_integer():
            text = text.removesuffix(".0")
        given.append(f"{key.replace('_', '-')}={text}")
    return f"{name}:{','.join(given)}" if given else name


@dataclass(frozen=True, kw_only=True)
class Method:
    """A resize method with its documentation and implementation."""

    name: str
    scheme: str = ""  # the positions that it applies to: ``rotary``; empty: a table of rows
    # What it does, as an imperative phrase; by default the first line of the docstring.
    summary: str
    keeps_learned_rows: bool = True  # whether they stay bit-identical
    keep_first: int | None = 0  # default of ``keep_first``; None: not supported
    # Besides ``keep_first``.
    settings: Mapping[str, Setting] = field(default_factory=dict)
    when: str  # when to use it, as a clause
    source: str  # paper or code, from the "Source:" paragraph of the docstring
    convention: str  # details needed to reproduce the rows elsewhere
    short_inputs: str  # effect on inputs up to the old length, as a clause
    long_inputs: str  # effect on longer inputs before training, as a clause
    # Largest allowed difference between machines, relative to the median row norm.
    tolerance: float = 0.0
    # ``function(table, rows, **settings) -> rows``, float64 in and out, except for methods that
    # repeat rows. Of rotary positions: ``function(rope, lengths, dim, **settings) -> rope``, from
    # the parameters before to those after.
    function: Callable[..., Any] = field(metadata=not_in_json)
    # Whether `function` takes ``start``, the position of the first source row.
    takes_start: bool = field(default=False, metadata=not_in_json)
    # Whether `function` also reads the rows kept by ``keep_first``, and takes their number as
    # ``keep``.
    reads_kept_rows: bool = field(default=False, metadata=not_in_json)
    # Whether new rows are copies of source rows. These are passed in the stored dtype: half the
    # time and memory.
    repeats_rows: bool = field(default=False, metadata=not_in_json)
    # Whether max_position_embeddings must stay the old length, because the rotary type reads it as
    # the trained one.
    keeps_max_len: bool = field(default=False, metadata=not_in_json)
    # The most rows that it can create from a number of source rows.
    max_rows: Callable[[int], int] | None = field(default=None, metadata=not_in_json)
    # ``choose(table, rows, choice) -> choice``: chooses unset settings from the learned rows.
    choose: "Callable[..., MethodChoice] | None" = field(default=None, metadata=not_in_json)

    def choice(self, *, keep_first: int | None = None, **given: Any) -> "MethodChoice":
        """Return the method with the settings that are given, and the defaults of others."""
        if keep_first is None:
            keep_first = self.keep_first or 0
        defaults = {key: setting.default for key, setting in self.settings.items()}
        return MethodChoice(facts=self, settings=defaults | given, keep_first=keep_first)


def registering(
    methods: dict[str, Method], /, **shared: Any
) -> Callable[..., Callable[[Function], Function]]:
    """Return a decorator that registers functions as methods, by name, in order of definition.

    Args:
        methods: The methods by name, to which the decorated functions are added.
        shared: Fields of `Method` with other defaults.

    Returns:
        A decorator that takes the other fields of `Method`. It reads the source from the docstring,
        and the summary from its first line. It raises TypeError, so that importing the module
        fails, if a field is missing or unknown, the docstring has no "Source:", or the name is
        taken.
    """

    def method(**stated: Any) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            name = function.__name__
            if name in methods:
                raise TypeError(f"There already is a method {name}.")
            text, _, source = (function.__doc__ or "").partition("Source:")
            if not source:
                raise TypeError(f'The docstring of the method {name} has no "Source:".')
            summary = text.splitlines()[0].strip().removesuffix(".")
            documented = {
                "summary": summary[0].lower() + summary[1:],
                "source": " ".join(source.split()).removesuffix("."),
            }
            facts = documented | shared | stated
            if "short_inputs" not in facts:
                keeps = facts.get("keeps_learned_rows", True)
                facts["short_inputs"] = UNCHANGED if keeps else MOVED
            methods[name] = Method(name=name, function=function, **facts)
            return function

        return register

    return method


@dataclass(frozen=True)
class MethodChoice:
    """A method and its settings, valid by themselves."""

    facts: Method
    settings: Mapping[str, Any] = field(default_factory=dict)  # all; None: the table decides
    keep_first: int = 0  # positions at the start that the method does not change
    reason: str = ""  # what was chosen for a table and why, as text; empty if nothing was chosen
    name: str = field(init=False)  # of the method
    # The method with all of its settings, including defaults: ``bands:sigma=4,gain=1.2``.
    text: str = field(init=False)
    # The first row that the method reads: some also read those that they keep.
    first_source_row: int = field(init=False)
    # Whether all learned rows stay bit-identical, for any number of rows.
    keeps_learned_rows: bool = field(init=False)

    def __post_init__(self) -> None:
        facts = self.facts
        first = self.keep_first
        if facts.reads_kept_rows:
            first = 0
        values = {
            "name": facts.name,
            "text": method_text(facts.name, self.settings),
            "first_source_row": first,
            "keeps_learned_rows": facts.keeps_learned_rows and self.settings.get("scope") != "all",
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        """Return the method with the settings that differ from its defaults."""
        usual = self.facts.choice()
        given = dict[str, Any]()
        for key, value in self.settings.items():
            if value != usual.settings.get(key):
                given[key] = value
        if self.keep_first != usual.keep_first:
            given["keep_first"] = self.keep_first
        return method_text(self.name, given)

    @property
    def recipe_text(self) -> str:
        """The method with all of its settings and the rows that it keeps, if not by default."""
        if self.keep_first == (self.facts.keep_first or 0):
            return self.text
        return method_text(self.name, {**self.settings, "keep_first": self.keep_first})

    def keeping(self, keep_first: int) -> "MethodChoice":
        """Return the choice with another number of rows at the start that it does not change.

        Raises:
            ResizeError: The method changes all rows or none.
        """
        if keep_first and self.facts.keep_first is None:
            message = f"--keep-first does not apply to --method {self.name}."
            raise ResizeError(message, "Remove --keep-first.", "keep_first")
        return replace(self, keep_first=keep_first)

    def kept_rows(self, learned: int) -> int:
        """Return how many of the learned rows, from the first on, stay bit-identical."""
        if self.keeps_learned_rows:
            return learned
        return min(self.keep_first, learned)
