"""The metadata of resize methods. Imports no numpy, so that `--help` can list the names quickly."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ctxextend.json_output import not_in_json

# The default method of a longer table, and those that it chooses by rule.
DEFAULT_METHOD, COPY, FORMULA = "auto", "copy", "formula"
SINUSOIDAL = "sinusoidal"
TRUNCATE = "truncate"  # the method of a shorter table: keep the first rows
LIMITS = "limits"  # the method of positions that any length can use: only length limits change

METHOD_NAMES = (
    *(DEFAULT_METHOD, COPY, "linear", SINUSOIDAL, FORMULA, "cubic", "spline", "nearest", "mirror"),
    *("stretch", "hierarchical", "last", "mean", "zero", "random", "spectral", "rotation", "bands"),
)
SCALING_METHODS = (
    "yarn",
    "linear",
    "dynamic",
    "theta",
)  # of unscaled rotary positions, the default first
ROTARY_METHOD_NAMES = (*SCALING_METHODS, "longrope", "llama3", "proportional")

# Effects on inputs up to the old length: of methods that keep learned rows, and of all others.
UNCHANGED = "inputs up to the old length give identical outputs if padded as before"
MOVED = "outputs for short inputs change too, because positions move"

# For methods that use LAPACK or BLAS, whose last bits differ between machines. After rounding to
# 16-bit floats, a few values of a row may then differ by one unit in the last place.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Setting:
    """A setting of a method, given after the method's name: ``bands:sigma=4,gain=1.2``."""

    does: str  # what it controls, as a phrase
    must: str  # its allowed values, as a phrase that follows "must be"
    default: Any  # None: chosen from the table
    read: Callable[[str], Any] = field(metadata=not_in_json)  # raises ValueError for invalid text
    allows: Callable[[Any], bool] = field(default=lambda value: True, metadata=not_in_json)

    def parse(self, text: str) -> Any:
        """Return the value that a text gives; raises ValueError if it is not allowed."""
        value = self.read(text)
        if not self.allows(value):
            raise ValueError
        return value


# The last four fields of an integer `Setting` and of a positive one.
INTEGER: tuple[str, int, Any, Any] = (
    "an integer from 0 to 2**63 - 1",
    0,
    int,
    lambda number: 0 <= number < 2**63,
)
POSITIVE: tuple[str, None, Any, Any] = "above 0", None, float, lambda number: 0 < number < math.inf

# Settings of most methods, which exclude rows. A method whose default `keep_first` is None does not
# accept that one.
COUNTS = ("keep_first", "drop_last")
COUNT = Setting("", *INTEGER)


def read_rows(text: str) -> tuple[int, int]:
    """Parse ``A:B`` into a half-open range of rows; raise ValueError if the text is not one."""
    first, stop = map(int, text.split(":"))
    if not 0 <= first < stop < 2**63:
        raise ValueError
    return first, stop


def method_text(name: str, settings: Mapping[str, Any]) -> str:
    """Format a method and its settings, ``bands:sigma=4,gain=1.2``, without those that are None;
    floats round-trip.
    """

    def text(value: Any) -> str:
        whole = isinstance(value, float) and value.is_integer()
        return (
            ":".join(map(str, value))
            if isinstance(value, tuple)
            else str(value).removesuffix(".0" if whole else "")
        )

    given = [
        f"{key.replace('_', '-')}={text(value)}"
        for key, value in settings.items()
        if value is not None
    ]
    return f"{name}:{','.join(given)}" if given else name


@dataclass(frozen=True, kw_only=True)
class Method:
    """A resize method with its documentation and implementation."""

    name: str
    scheme: str = ""  # the positions that it applies to: ``rotary``; empty: a table of rows
    summary: (
        str  # what it does, as an imperative phrase; by default the first line of the docstring
    )
    keeps_learned_rows: bool = True  # whether they stay bit-identical
    keep_first: int | None = 0  # default of ``keep_first``; None: not supported
    settings: Mapping[str, Setting] = field(
        default_factory=dict
    )  # besides ``keep_first`` and ``drop_last``
    when: str  # when to use it, as a clause
    source: str  # paper or code, from the "Source:" paragraph of the docstring
    convention: str  # details needed to reproduce the rows elsewhere
    short_inputs: str  # effect on inputs up to the old length, as a clause
    long_inputs: str  # effect on longer inputs before training, as a clause
    tolerance: float = (
        0.0  # largest allowed difference between machines, relative to the median row norm
    )
    # ``function(table, rows, **settings) -> rows``, float64 in and out, except for methods that
    # repeat rows. Of rotary positions: ``function(rope, lengths, dim, **settings) -> rope``, from
    # the parameters before to those after.
    function: Callable[..., Any] = field(metadata=not_in_json)
    reads_learned_rows: bool = field(
        default=True, metadata=not_in_json
    )  # so that ``drop_last`` has an effect
    takes_start: bool = field(
        default=False, metadata=not_in_json
    )  # ``start``: position of the first source row
    # Whether `function` also reads the rows kept by ``keep_first``, and takes their number as
    # ``keep``.
    reads_kept_rows: bool = field(default=False, metadata=not_in_json)
    # Whether new rows are copies of source rows. These are passed in the stored dtype: half the
    # time and memory.
    repeats_rows: bool = field(default=False, metadata=not_in_json)
    # Whether max_position_embeddings must stay the old length, because the rotary type reads it as
    # the trained one.
    keeps_max_len: bool = field(default=False, metadata=not_in_json)
    max_rows: Callable[[int], int] | None = field(
        default=None, metadata=not_in_json
    )  # of a number of source rows
    # ``choose(table, rows, choice, no_lm) -> choice``: chooses the method, or its unset settings,
    # from the learned rows; ``no_lm`` says why the checkpoint is not a language model.
    choose: Callable[..., Any] | None = field(default=None, metadata=not_in_json)


FACTS: dict[str, Method] = {}  # by name; filled when the modules with the methods are imported
ROTARY_METHODS: dict[
    str, Method
] = {}  # of positions without a table of rows, filled in the same way
Function = TypeVar("Function", bound=Callable[..., Any])


def method(methods: dict[str, Method] = FACTS, /, **facts: Any) -> Callable[[Function], Function]:
    """Register the decorated function in `methods` by its name; `facts` are further fields of
    `Method`.
    """

    def register(function: Function) -> Function:
        text, _, source = str(function.__doc__).partition("Source:")
        summary, source = (
            text.splitlines()[0].strip().removesuffix("."),
            " ".join(source.split()).removesuffix("."),
        )
        effect = UNCHANGED if facts.get("keeps_learned_rows", True) else MOVED
        stated = {
            "summary": summary[0].lower() + summary[1:],
            "source": source,
            "short_inputs": effect,
        } | facts
        methods[function.__name__] = Method(name=function.__name__, function=function, **stated)
        return function

    return register
