"""From a table as it is stored to the same table at another length, in the same dtype."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import ResizeError, flag_name, refuse
from ctxextend.tables.bands import SHORTEST
from ctxextend.tables.method_facts import METHOD_NAMES, SCOPES, Method
from ctxextend.tables.methods import METHODS
from ctxextend.tables.sinusoids import BLOCK_ROWS

Table = NDArray[Any]
Mask = NDArray[np.bool_]

# Flags that only some methods take.
OWN_FLAGS = ("scope", "alpha", "seed", "sigma", "repeat", "gain")
# Rows below which a Gaussian reaches no other row.
MIN_SIGMA = 0.5
# Columns of the table that `still_learned` resizes in place of a real one.
SAMPLE_WIDTH = 8


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """A method and its flags, checked against each other."""

    method: str | None = None  # a key of `METHODS`; None is `copy`, and all that a shorter table allows
    # Positions at the start that the method neither reads nor changes; None is the method's default.
    keep_first: int | None = None
    drop_last: int = 0  # positions at the end that are no source for new rows
    # The flags that only some methods take, see `OWN_FLAGS`; None is the method's default.
    scope: str | None = None  # for `sinusoidal`: ``new`` rows or ``all``
    alpha: float | None = None  # for `hierarchical`: the weight of the first digit, above 0, below 1 and not 0.5
    seed: int | None = None  # for `random`: the seed of what is drawn, ≥ 0
    sigma: float | None = None  # for `bands`: rows of the Gaussian that parts slow from fast, ≥ 0
    # For `bands`: the first of the rows that repeat, and one behind the last, reserved rows not counted.
    repeat: tuple[int, int] | None = None
    gain: float | None = None  # for `bands`: by how much rows are moved away from their mean, above 0

    def __post_init__(self) -> None:
        for known in fields(self):
            value = getattr(self, known.name)
            value = value.item() if isinstance(value, np.generic) else value
            if known.name in ("alpha", "sigma", "gain") and type(value) is int:
                value = float(value)
            object.__setattr__(self, known.name, tuple(value) if isinstance(value, list) else value)
        refuse(self.faults())

    def faults(self) -> Iterator[ResizeError]:
        """Yield everything that is wrong."""
        for name in ("keep_first", "drop_last", "seed"):
            value = getattr(self, name)
            if value is not None and not (type(value) is int and 0 <= value < 2**63):
                yield ResizeError(f"{flag_name(name)} must be 0 or more and below 2**63, not {value!r}.")
        if self.method not in (None, *METHODS):
            yield ResizeError(f"There is no method {self.method!r}.", f"Methods: {', '.join(METHODS)}.")
            return
        taken = (*self.facts.flags, *(("keep_first",) if self.facts.keep_first is not None else ()))
        for name in ("keep_first", *OWN_FLAGS):
            value = getattr(self, name)
            if name not in taken and (value if name == "keep_first" else value is not None):
                told = f"{flag_name(name)} has no meaning for --method {self.facts.name}."
                yield ResizeError(told, "Leave it out.")
        if self.scope not in (None, *SCOPES):
            yield ResizeError(f"There is no scope {self.scope!r}.", f"Scopes: {', '.join(SCOPES)}.")
        if self.scope == "all" and self.drop_last:
            yield ResizeError("--drop-last has no meaning with --scope all: no learned row is read.", "Leave it out.")
        if self.alpha is not None and not (0 < self.alpha < 1 and self.alpha != 0.5):
            why = f"--alpha must be above 0 and below 1, not {self.alpha!r}; 0.5 gives two positions one row."
            yield ResizeError(why, "0.4 is the usual choice.")
        if self.sigma is not None and self.sigma != 0 and not MIN_SIGMA <= self.sigma < math.inf:
            yield ResizeError(f"--sigma must be 0, or {MIN_SIGMA} or more, not {self.sigma!r}.", "8 is a usual choice.")
        if self.gain is not None and not 0 < self.gain < math.inf:
            yield ResizeError(f"--gain must be above 0, not {self.gain!r}.", "1 moves nothing.")
        if self.repeat is not None:
            ends = self.repeat if isinstance(self.repeat, tuple) else ()
            if [type(end) for end in ends] != [int, int] or not 0 <= ends[0] < ends[1]:
                yield ResizeError(f"--repeat {self.repeat!r} holds no rows.", "Give A:B for rows A to B-1.")
            if self.sigma == 0:
                why = "--repeat has no meaning with --sigma 0: nothing is repeated."
                yield ResizeError(why, "Leave one of them out.")

    @property
    def facts(self) -> Method:
        """What is known of the method."""
        return METHODS[self.method or METHOD_NAMES[0]]

    @property
    def kept_first(self) -> int:
        """Positions at the start that the method neither reads nor changes."""
        return (self.facts.keep_first or 0) if self.keep_first is None else self.keep_first

    @property
    def flags(self) -> dict[str, Any]:
        """The method's own flags with their values."""
        given = {name: getattr(self, name) for name in self.facts.flags}
        return {name: self.facts.flags[name] if value is None else value for name, value in given.items()}

    @property
    def typed_flags(self) -> dict[str, Any]:
        """The flags as they are typed, by name; None for those that were left out and make no difference."""
        keeps = self.kept_first or self.facts.keep_first
        named = {"keep-first": self.kept_first if keeps else None, "drop-last": self.drop_last or None}
        given = {name: getattr(self, name) for name in OWN_FLAGS}
        return named | given | {"repeat": self.repeat and "{}:{}".format(*self.repeat)}

    @property
    def keeps_learned_rows(self) -> bool:
        """Whether every learned row stays as it is, bit for bit, whatever the table's length."""
        return self.facts.keeps_learned_rows and self.scope != "all"

    def kept_of(self, learned: int) -> int:
        """Return how many of a number of learned rows stay as they are, bit for bit, at the start."""
        return learned if self.keeps_learned_rows else min(self.kept_first, learned)


def resize_table(table: Table, rows: int, options: MethodOptions | None = None) -> Table:
    """Return a table's rows, shape (n, d), any float dtype, at another number of rows: (m, d), that dtype, a copy.

    A shorter table is the first rows, and an equal one the same rows: `options` is read only to create new rows.
    The method works in float64, unless it repeats rows. It sees rows [keep_first : n - drop_last] and is asked for
    rows - keep_first rows, so that row t continues the source as if the dropped rows had never been learned; learned
    rows that stay are then put back as they were stored, without a cast. Methods that read the kept rows are given
    them too. Reserved rows are not among a table's rows here.
    """
    options = options or MethodOptions()
    learned = len(table)
    if rows <= learned:
        return table[:rows].copy()
    check_source_rows(learned, rows, options)
    first, method, flags = options.kept_first, options.facts, options.flags
    if method.takes_start:
        flags["start"] = first
    unread = first
    if method.reads_kept_rows:
        flags["keep"], unread = first, 0
    source = table[unread : learned - options.drop_last]
    kept = options.kept_of(learned)
    result = np.empty((rows, table.shape[1]), dtype=table.dtype)
    result[:kept] = table[:kept]
    with np.errstate(invalid="ignore", over="ignore"):  # the caller looks for rows that are not finite
        made = method.function(source if method.repeats_rows else source.astype(np.float64), rows - unread, **flags)
        for start in range(kept, rows, BLOCK_ROWS):
            block = made[start - unread : start - unread + BLOCK_ROWS]
            result[start : start + BLOCK_ROWS] = block if method.repeats_rows else cast(block, table.dtype)
    return result


def resize_with_reserved(table: Table, reserved_rows: int, positions: int, options: MethodOptions) -> Table:
    """Return a table with its reserved rows, shape (reserved_rows + n, d), at another number of positions."""
    resized = resize_table(table[reserved_rows:], positions, options)
    return np.concatenate([table[:reserved_rows], resized]) if reserved_rows else resized


def explain_choice(table: Table, rows: int, options: MethodOptions) -> str | None:
    """Describe what a method chose by a table's own figures; None where it chooses nothing."""
    explain = options.facts.explain
    if explain is None:
        return None
    source = table[: len(table) - options.drop_last].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return explain(source, rows, keep=options.kept_first, **options.flags)


def check_source_rows(learned: int, rows: int, options: MethodOptions) -> None:
    """Refuse flags that leave no learned row to create new ones from, and more rows than a method can create."""
    first, last, method = options.kept_first, options.drop_last, options.facts
    if method.reads_kept_rows and first <= learned:
        first = 0  # what is kept is a source too
    source = learned - first - last
    if source < 1:
        given = {"keep-first": first, "drop-last": last}
        flags = " and ".join(f"--{flag} {count}" for flag, count in given.items() if count)
        raise ResizeError(
            f"{flags} by --method {method.name}: of {learned} learned positions none is left to make new rows from.",
            f"Use --keep-first {(learned - last) // 2}." if last < learned else f"--drop-last must be below {learned}.",
        )
    if (options.repeat or options.sigma) and learned - last < SHORTEST:
        raise ResizeError(
            f"--{'repeat' if options.repeat else 'sigma'} parts a table of {SHORTEST} rows or more, and "
            f"{learned - last} are read.",
            "Leave it out: shorter tables are stretched.",
        )
    if options.repeat and options.repeat[1] > learned - last:
        raise ResizeError(
            f"--repeat {options.repeat[0]}:{options.repeat[1]} goes beyond the {learned - last} rows that are read.",
            f"Let it end at {learned - last} or before.",
        )
    if method.max_rows and rows > first + method.max_rows(source):
        most = first + method.max_rows(source)
        raise ResizeError(
            f"--method {method.name} makes {method.max_rows(source)} positions of {source} learned ones and no more, "
            f"and {rows} are wanted.",
            f"Use --to {most} or fewer, or another method." if most > learned else "Use another method.",
        )


def cast(rows: NDArray[np.float64], dtype: np.dtype[Any]) -> Table:
    """Round float64 rows to a float dtype exactly as `torch.Tensor.to` does.

    16- and 8-bit floats go by way of float32, as in torch's own conversions, so that a value can be rounded twice.
    """
    if dtype.itemsize >= 4:
        return rows.astype(dtype)
    if dtype.name == "float8_e4m3fn":  # it has no infinity, and torch stops at its largest number
        rows = rows.clip(-448, 448)
    return rows.astype(np.float32).astype(dtype)


def nonfinite_rows(table: Table) -> list[int]:
    """Return the indices of the rows that hold a NaN or an infinity."""
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(table.astype(np.float32) if table.dtype.itemsize < 4 else table)
    return [int(row) for row in np.flatnonzero(~finite.all(axis=1))]


def learned_rows(before: NDArray[np.generic], after: NDArray[np.generic]) -> Mask:
    """Return which rows of a table, shape (m, d), were learned before it was resized from (n, d): a mask, shape (m,).

    A row that is in its place and unchanged is a learned one. So is the first that equals a learned row which is no
    longer in its own place: interpolation in whole steps puts row i at i times the step, and the rows in between are
    new (Zhu et al. 2024, LongEmbed, section 4.3, arXiv:2404.12096, which tunes only those). A second copy of a learned
    row is new.
    """
    shared = min(len(before), len(after))
    bits = (np.ascontiguousarray(table[:shared]).view(np.uint8).reshape(shared, -1) for table in (before, after))
    learned = np.zeros(len(after), np.bool_)
    learned[:shared] = np.equal(*bits).all(axis=1)
    moved = {before[row].tobytes() for row in range(len(before)) if row >= shared or not learned[row]}
    for row in np.flatnonzero(~learned):
        key = after[row].tobytes()
        if key in moved:
            learned[row] = True
            moved.discard(key)
    return learned


def still_learned(learned: int, resizes: Sequence[tuple[int, MethodOptions]]) -> Mask:
    """Return which rows of a table of `learned` rows are learned ones after resizes, each to so many rows and how.

    A coarse dtype can make rows between two learned ones equal to one of them; here they are new all the same.
    """
    before = table = np.random.default_rng(0).normal(size=(learned, SAMPLE_WIDTH)).astype(np.float32)
    for rows, options in resizes:
        table = resize_table(table, rows, options)
    return learned_rows(before, table)
