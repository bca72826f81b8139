"""What is known of a method besides its maths. Nothing here imports numpy, so that `--help` can list the names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ctxextend.json_output import not_in_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

METHOD_NAMES = (
    *("copy", "linear", "sinusoidal", "cubic", "nearest", "mirror", "stretch", "hierarchical"),
    *("last", "mean", "random", "spectral", "rotation", "bands", "auto"),
)
# Names what a shorter table is made by: its first rows.
TRUNCATE = "truncate"

# What methods that keep learned rows cost texts that fitted before, and others.
UNCHANGED = "texts that fitted before give exactly what they gave"
MOVED = "short texts change too, since the positions moved"

# For methods that go through LAPACK or BLAS: their last bits differ between machines, and where a table of 16-bit
# floats is rounded, a few numbers of a row may then differ by one in their own last bit.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Setting:
    """A value that a method takes, typed behind the method's name: ``bands:sigma=4,gain=1.2``."""

    does: str  # what it is, in a phrase
    must: str  # what its value must be, in a phrase
    default: Any  # None is chosen from the table
    read: Callable[[str], Any] = field(metadata=not_in_json)  # ValueError where a text is no such value
    allows: Callable[[Any], bool] = field(default=lambda value: True, metadata=not_in_json)


# What a setting that is a whole number must be, its default, and what reads it and allows it.
WHOLE: tuple[str, int, Any, Any] = "a whole number from 0 to 2**63 - 1", 0, int, lambda number: 0 <= number < 2**63


def read_rows(text: str) -> tuple[int, int]:
    """Read ``A:B`` as the first of some rows and the one behind the last; raise ValueError for other texts."""
    first, stop = map(int, text.split(":"))
    if not 0 <= first < stop < 2**63:
        raise ValueError
    return first, stop


def method_text(name: str, settings: Mapping[str, Any]) -> str:
    """Return a method as it is typed, ``bands:sigma=4,gain=1.2``, bit for bit, without settings that are None."""

    def text(value: Any) -> str:
        whole = isinstance(value, float) and value.is_integer()
        return ":".join(map(str, value)) if isinstance(value, tuple) else str(value).removesuffix(".0" if whole else "")

    given = [f"{key.replace('_', '-')}={text(value)}" for key, value in settings.items() if value is not None]
    return f"{name}:{','.join(given)}" if given else name


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method and what users need to know of it."""

    name: str
    summary: str  # what it does, in one line
    keeps_learned_rows: bool = True  # whether they stay as they are, bit for bit
    keep_first: int | None = 0  # the default of ``keep_first``; None for methods that do not take it
    # Its own, beside ``keep_first`` and ``drop_last``, by name.
    settings: Mapping[str, Setting] = field(default_factory=dict)
    when: str  # when to use it, in a phrase
    source: str  # where it comes from: the last paragraph of the function's docstring
    convention: str  # what must be known to compute the same rows elsewhere
    short_inputs: str  # what it costs texts that fitted before
    long_inputs: str  # what it costs texts that did not
    tolerance: float = 0.0  # largest difference, relative to the median row norm, that recomputing may give
    # ``function(table, rows, **settings) -> rows``, float64 in and out but for those that repeat rows.
    function: "Callable[..., NDArray[np.float64]]" = field(metadata=not_in_json)
    # Whether `function` needs the absolute position of the first source row, as ``start``.
    takes_start: bool = field(default=False, metadata=not_in_json)
    # Whether `function` is given the rows that ``keep_first`` keeps too, and their number as ``keep``.
    reads_kept_rows: bool = field(default=False, metadata=not_in_json)
    # Whether new rows are copies of source rows; these are then passed as stored: half the time and memory.
    repeats_rows: bool = field(default=False, metadata=not_in_json)
    # The most rows that `function` can make of a number of source rows.
    max_rows: Callable[[int], int] | None = field(default=None, metadata=not_in_json)
    # Chooses by a table what settings leave open, with the arguments of `function`: the method as it is typed, and why.
    choose: Callable[..., tuple[str, str]] | None = field(default=None, metadata=not_in_json)


FACTS: dict[str, Method] = {}  # by name, of the methods whose modules were imported
Function = TypeVar("Function", bound=Callable[..., Any])


def method(**facts: Any) -> Callable[[Function], Function]:
    """Describe the decorated function as the method of its name; `facts` are the other fields of `Method`."""

    def describe(function: Function) -> Function:
        source = " ".join(str(function.__doc__).partition("Source:")[2].split()).removesuffix(".")
        cost = UNCHANGED if facts.get("keeps_learned_rows", True) else MOVED
        name = function.__name__
        FACTS[name] = Method(name=name, source=source, function=function, short_inputs=cost, **facts)
        return function

    return describe
