"""The methods that make the rows of a longer position table, one function each, and their registry.

A method sees the source rows alone, as float64, without offset rows and without the rows that
``--keep-first`` and ``--drop-last`` take out, and returns as many rows as it is asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import ResizeError

__all__ = [
    "METHODS",
    "SCOPES",
    "Method",
    "MethodOptions",
    "copy",
    "linear",
    "list_methods",
    "sinusoidal",
    "sinusoidal_rows",
]

Rows = NDArray[np.float64]

SCOPES = ("new", "all")

# Rows that are worked on at once, so that no second table of the new length is held.
BLOCK_ROWS = 256


def copy(table: Rows, rows: int) -> Rows:
    """Fill the new rows by repeating the learned ones.

    Args:
        table: Source rows, shape (n, d), float64.
        rows: Rows wanted, m.

    Returns:
        Shape (m, d), float64; row t is source row t mod n, so rows [:n] equal `table` exactly.

    Source: Beltagy et al. 2020, Longformer, section 5, arXiv:2004.05150; its `convert_model_to_long.ipynb`.
    """
    return table[np.arange(rows) % len(table)]


def linear(table: Rows, rows: int) -> Rows:
    """Stretch the table by linear interpolation, both ends kept.

    Row t is read at source position t·(n-1)/(m-1): the first row stays the first and the last the last, the
    convention that `torch.nn.functional.interpolate` calls ``align_corners=True``.

    Args:
        table: Source rows, shape (n, d), float64.
        rows: Rows wanted, m ≥ n.

    Returns:
        Shape (m, d), float64; rows 0 and m-1 equal the first and last of `table` exactly, no other row is promised.

    Source: interpolation of absolute positions as in Dosovitskiy et al. 2020, section 3.2, arXiv:2010.11929 (2-D),
        and Zhang et al. 2024, Long-CLIP, section 3.2, arXiv:2403.15378 (text).
    """
    numerator = np.arange(rows) * (len(table) - 1)
    denominator = max(rows - 1, 1)
    # Whole numbers decide which rows meet: a weight of zero must not read a neighbour (it may hold NaN).
    lower, remainder = np.divmod(numerator, denominator)
    upper = lower + (remainder > 0)
    weight = (remainder / denominator)[:, None]
    result = np.empty((rows, table.shape[1]))
    for start in range(0, rows, BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        below = table[lower[block]]
        with np.errstate(invalid="ignore", over="ignore"):  # of rows that are not finite
            between = below + weight[block] * (table[upper[block]] - below)
        result[block] = np.where(weight[block] > 0, between, below)
    return result


def sinusoidal(table: Rows, rows: int, *, scope: str = "new", start: int = 0) -> Rows:
    """Continue the table with Vaswani's sinusoids, or replace it by them.

    Args:
        table: Source rows, shape (n, d), float64; odd d allowed.
        rows: Rows wanted, m.
        scope: ``new``: rows [:n] are `table`; row i ≥ n is mean + s·PE(t), with PE(t) the sinusoid of the absolute
            position t = start + i, mean the source rows' mean, s = median‖pᵢ - mean‖ / ‖PE(t)‖, so that new
            rows lie where learned ones do. ``all``: every row is PE(t), unscaled, and `table` is not read.
        start: Absolute position of the first source row.

    Returns:
        Shape (m, d), float64.

    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762; the placement around the mean is our own.
    """
    width = table.shape[1]
    if scope == "all":
        return sinusoidal_rows(np.arange(start, start + rows), width)
    mean = table.mean(axis=0)
    radius = np.median(np.linalg.norm(table - mean, axis=1))
    result = np.empty((rows, width))
    result[: len(table)] = table
    waves = sinusoidal_rows(np.arange(start + len(table), start + rows), width)
    waves *= (radius / np.linalg.norm(waves, axis=1))[:, None]
    waves += mean
    result[len(table) :] = waves
    return result


def sinusoidal_rows(positions: NDArray[np.int64], width: int) -> Rows:
    """Return PE(t) for each position: sin in the even columns, cos in the odd ones, interleaved.

    Args:
        positions: Absolute positions t, shape (m,).
        width: Columns wanted, d; with an odd d the last column is a sine without its cosine.

    Returns:
        Shape (m, d), float64: PE(t)[2i] = sin(t / 10000^(2i/d)), PE(t)[2i+1] = cos(t / 10000^(2i/d)).

    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762.
    """
    result = np.empty((len(positions), width))
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = positions[:, None] * frequencies
    np.sin(angles, out=result[:, 0::2])
    np.cos(angles[:, : width // 2], out=result[:, 1::2])
    return result


@dataclass(frozen=True)
class Method:
    """What is known of one method, as data.

    Attributes:
        name: The name that users type.
        function: ``function(table, rows, **flags) -> rows``, float64 in and out.
        flags: Flags of its own, beside ``keep_first`` and ``drop_last``, with their defaults.
        keeps_learned_rows: Whether learned rows stay as they are, bit for bit.
        summary: What it does, in one line.
        convention: What must be known to compute the same rows elsewhere.
        short_inputs: What it costs texts that fitted before; ``{but}`` stands for the rows that are kept.
        long_inputs: What it costs texts that did not.
        when: When to use it, in a phrase.
        source: Where it comes from, as in the function's docstring.
        takes_start: Whether `function` needs the absolute position of the first source row, as ``start``.
        tolerance: Largest difference, relative to the median row norm, that recomputing may give: 0 where results are
            exact, above 0 for methods that go through LAPACK, whose last bits differ between machines.
    """

    name: str
    function: Callable[..., Rows]
    flags: Mapping[str, str]
    keeps_learned_rows: bool
    summary: str
    convention: str
    short_inputs: str
    long_inputs: str
    when: str
    source: str
    takes_start: bool = False
    tolerance: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return what users need to know of it as plain values."""
        return {
            "name": self.name,
            "summary": self.summary,
            "keeps_learned_rows": self.keeps_learned_rows,
            "flags": dict(self.flags),
            "when": self.when,
            "source": self.source,
            "convention": self.convention,
            "short_inputs": self.short_inputs.format(but=""),
            "long_inputs": self.long_inputs,
            "tolerance": self.tolerance,
        }


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="copy",
            function=copy,
            flags={},
            keeps_learned_rows=True,
            summary="repeat the learned rows",
            convention="row t is source row t mod the number of source rows",
            short_inputs="texts that fitted before give exactly what they gave",
            long_inputs="positions whole table lengths apart look the same to it, and order breaks at each seam",
            when="training follows, and short texts must stay exactly as they are until then",
            source="Beltagy et al. 2020, Longformer, section 5, arXiv:2004.05150",
        ),
        Method(
            name="linear",
            function=linear,
            flags={},
            keeps_learned_rows=False,
            summary="stretch the table by linear interpolation",
            convention="both ends kept (align_corners=True), in float64",
            short_inputs="short texts change too, since the positions moved{but}",
            long_inputs="order is kept, but neighbours stand closer together than any it has seen",
            when="long texts must work at once, and short ones may change",
            source="Dosovitskiy et al. 2020, section 3.2, arXiv:2010.11929 (2-D), "
            "and Zhang et al. 2024, Long-CLIP, section 3.2, arXiv:2403.15378 (text)",
        ),
        Method(
            name="sinusoidal",
            function=sinusoidal,
            flags={"scope": "new"},
            keeps_learned_rows=True,
            summary="continue with sinusoids, or with --scope all replace the table by them",
            convention="sin and cos interleaved; scope new: mean + s·PE(t), s = median‖p - mean‖ / ‖PE(t)‖",
            short_inputs="texts that fitted before give exactly what they gave",
            long_inputs="the new positions mean nothing to it until it is trained",
            when="training follows, and no two positions may look the same to it",
            source="Vaswani et al. 2017, section 3.5, arXiv:1706.03762",
            takes_start=True,
        ),
    )
}


def list_methods() -> list[Method]:
    """Return every method, the default first."""
    return list(METHODS.values())


@dataclass(frozen=True)
class MethodOptions:
    """A method and its flags, checked against each other.

    Attributes:
        method: A key of `METHODS`.
        keep_first: Positions at the start that the method neither reads nor changes.
        drop_last: Positions at the end that are no source for new rows.
        scope: ``new`` or ``all``, for methods that take it; None means the method's default.

    Raises:
        ResizeError: No such method, a negative count, or a flag that has no meaning for the method.
    """

    method: str = "copy"
    keep_first: int = 0
    drop_last: int = 0
    scope: str | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ResizeError(f"There is no method {self.method!r}.", f"Methods: {', '.join(METHODS)}.")
        for flag, value in (("--keep-first", self.keep_first), ("--drop-last", self.drop_last)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ResizeError(f"{flag} must be 0 or more, not {value!r}.")
        self._check_scope()

    def _check_scope(self) -> None:
        if self.scope is None:
            return
        if "scope" not in METHODS[self.method].flags:
            raise ResizeError(f"--scope has no meaning for --method {self.method}.", "Leave it out.")
        if self.scope not in SCOPES:
            raise ResizeError(f"There is no scope {self.scope!r}.", f"Scopes: {', '.join(SCOPES)}.")
        if self.scope == "all" and self.drop_last:
            raise ResizeError("--drop-last has no meaning with --scope all: no learned row is read.", "Leave it out.")

    @property
    def flags(self) -> dict[str, Any]:
        """The method's own flags with their values."""
        return {name: getattr(self, name) or default for name, default in METHODS[self.method].flags.items()}

    @property
    def keeps_learned_rows(self) -> bool:
        """Whether every learned row stays as it is, bit for bit."""
        return METHODS[self.method].keeps_learned_rows and self.scope != "all"
