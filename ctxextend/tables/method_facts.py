"""What is known of a method besides its maths. Nothing here imports numpy, so that `--help` can list the names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from ctxextend.json_output import not_in_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MethodName = Literal[
    "copy",
    "linear",
    "sinusoidal",
    "cubic",
    "nearest",
    "mirror",
    "stretch",
    "hierarchical",
    "last",
    "mean",
    "random",
    "spectral",
    "rotation",
    "bands",
    "auto",
]
METHOD_NAMES: tuple[MethodName, ...] = get_args(MethodName)
ScopeName = Literal["new", "all"]
SCOPES: tuple[ScopeName, ...] = get_args(ScopeName)

# What several methods cost texts that fitted before.
UNCHANGED = "texts that fitted before give exactly what they gave"
MOVED = "short texts change too, since the positions moved"
# What several methods cost texts that did not.
CLOSER = "order is kept, but neighbours stand closer together than any it has seen"
ALIKE = "order is kept, and neighbours where the table has a fast part, but more positions look alike"
UNTRAINED = "the new positions mean nothing to it until it is trained"

# For methods that go through LAPACK or BLAS: their last bits differ between machines, and where a table of 16-bit
# floats is rounded, a few numbers of a row may then differ by one in their own last bit.
LAPACK_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method and what users need to know of it.

    Attributes:
        name: The name that users type.
        summary: What it does, in one line.
        keeps_learned_rows: Whether learned rows stay as they are, bit for bit.
        keep_first: The default of ``keep_first``; None for methods that do not take it.
        flags: Flags of its own, beside ``keep_first`` and ``drop_last``, with their defaults.
        when: When to use it, in a phrase.
        source: Where it comes from: the last paragraph of the function's docstring.
        convention: What must be known to compute the same rows elsewhere.
        short_inputs: What it costs texts that fitted before.
        long_inputs: What it costs texts that did not.
        tolerance: Largest difference, relative to the median row norm, that recomputing may give: 0 where results are
            exact, above 0 for methods that go through LAPACK, whose last bits differ between machines.
        function: ``function(table, rows, **flags) -> rows``, float64 in and out but for those that repeat rows.
        takes_start: Whether `function` needs the absolute position of the first source row, as ``start``.
        reads_kept_rows: Whether `function` is given the rows that ``keep_first`` keeps too, and their number as
            ``keep``; it can then keep all.
        repeats_rows: Whether each new row is a copy of a source row; the rows are then passed as they are stored, which
            takes half the time and memory.
        max_rows: The most rows that `function` can make of a number of source rows; None where there is no such bound.
        explain: Describes in words what `function` chose by a table's figures, with the same arguments; None where it
            chooses nothing.
    """

    name: str
    summary: str
    keeps_learned_rows: bool
    keep_first: int | None = 0
    flags: Mapping[str, Any] = field(default_factory=dict)
    when: str
    source: str
    convention: str
    short_inputs: str
    long_inputs: str
    tolerance: float = 0.0
    function: "Callable[..., NDArray[np.float64]]" = field(metadata=not_in_json)
    takes_start: bool = field(default=False, metadata=not_in_json)
    reads_kept_rows: bool = field(default=False, metadata=not_in_json)
    repeats_rows: bool = field(default=False, metadata=not_in_json)
    max_rows: Callable[[int], int] | None = field(default=None, metadata=not_in_json)
    explain: Callable[..., str] | None = field(default=None, metadata=not_in_json)


_FACTS: dict[str, Method] = {}
Function = TypeVar("Function", bound=Callable[..., Any])


def method(**facts: Any) -> Callable[[Function], Function]:
    """Describe the decorated function as the method of that name.

    Args:
        facts: The fields of `Method`, without name, source and function.
    """

    def describe(function: Function) -> Function:
        source = " ".join(str(function.__doc__).partition("Source:")[2].split()).removesuffix(".")
        _FACTS[function.__name__] = Method(name=function.__name__, source=source, function=function, **facts)
        return function

    return describe


def described_methods() -> dict[str, Method]:
    """Return every method by name, the default first."""
    return {name: _FACTS[name] for name in METHOD_NAMES}
