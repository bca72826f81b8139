"""From a table as it is stored to the same table at another length, in the same dtype."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import ResizeError, did_you_mean, flag_name, refuse
from ctxextend.tables.bands import SHORTEST
from ctxextend.tables.method_facts import METHOD_NAMES, TRUNCATE, WHOLE, Method, Setting, method_text
from ctxextend.tables.methods import METHODS, find_method
from ctxextend.tables.sinusoids import BLOCK_ROWS

Table = NDArray[Any]
Mask = NDArray[np.bool_]
Options = TypeVar("Options", bound="MethodOptions")

# What counts positions that a method leaves out; where one takes no `keep_first`, nothing is kept.
COUNT = Setting("", *WHOLE)
COUNTS = ("keep_first", "drop_last")


def read_method(text: str | None) -> tuple[str, dict[str, Any], list[ResizeError]]:
    """Return of ``bands:sigma=4,keep-first=1`` the name, the settings by name and all that is wrong; None is `copy`."""
    name, _, rest = (part.strip() for part in (METHOD_NAMES[0] if text is None else text).partition(":"))
    taken = dict[str, Setting]()
    if name != TRUNCATE:
        try:
            method = find_method(name)
        except ResizeError as error:
            return name, {}, [error]
        taken = dict(method.settings) | dict.fromkeys(COUNTS[method.keep_first is None :], COUNT)
    given, faults = dict[str, Any](), list[ResizeError]()
    takes = f"It takes {', '.join(key.replace('_', '-') for key in taken) or 'no settings'}."
    for part in rest.split(",") if rest else ():
        typed, _, value = (word.strip() for word in part.partition("="))
        key = typed.replace("-", "_")
        if key in given:
            faults.append(ResizeError(f"--method {name} has {typed} twice.", "Leave one of them out."))
            continue
        try:
            given[key] = taken[key].read(value)
            if not taken[key].allows(given[key]):
                raise ValueError
        except KeyError:
            hint = " ".join(filter(None, (did_you_mean(key, taken).replace("_", "-"), takes)))
            faults.append(ResizeError(f"--method {name} does not take {typed!r:.60}.", hint))
        except ValueError:
            told = f"--method {name}: {typed} must be {taken[key].must}, got {value!r:.60}."
            faults.append(ResizeError(told, takes))
    return name, given, faults


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """A method with its settings, checked."""

    # A name of `METHODS` with its settings, as `read_method` reads them, or `TRUNCATE`, which makes no rows; None is
    # `copy`, and all that a shorter table allows.
    method: str | None = None
    # Positions at the start that the method neither reads nor changes; None is the method's default.
    keep_first: int | None = None
    drop_last: int = 0  # positions at the end that are no source for new rows

    def __post_init__(self) -> None:
        for known in fields(self):
            value = getattr(self, known.name)
            object.__setattr__(self, known.name, value.item() if isinstance(value, np.generic) else value)
        if self.method is not None:
            name, given, wrong = read_method(str(self.method))
            for key in given.keys() & {*COUNTS}:
                if getattr(self, key) == getattr(MethodOptions, key):
                    object.__setattr__(self, key, given.pop(key))
            object.__setattr__(self, "method", str(self.method) if wrong else method_text(name, given))
        refuse(self.faults())

    def faults(self) -> Iterator[ResizeError]:
        """Yield everything that is wrong."""
        for key in COUNTS:
            value = getattr(self, key)
            if value is not None and not (type(value) is int and COUNT.allows(value)):
                yield ResizeError(f"{flag_name(key)} must be {COUNT.must}, got {value!r}.")
        name, given, wrong = read_method(self.method)
        yield from wrong
        if wrong:
            return
        for key in given.keys() & {*COUNTS}:
            told = f"{flag_name(key)} is given by itself and in --method {self.method}."
            yield ResizeError(told, "Leave one of them out.")
        if self.facts.keep_first is None and self.keep_first:
            yield ResizeError(f"--keep-first has no meaning for --method {name}.", "Leave it out.")
        if name == "sinusoidal" and given.get("scope") == "all" and self.drop_last:
            reason = "--drop-last has no meaning for --method sinusoidal:scope=all: no learned row is read."
            yield ResizeError(reason, "Leave it out.")
        if name == "bands" and given.get("sigma") == 0 and "repeat" in given:
            yield ResizeError("--method bands: repeat has no meaning with sigma=0.", "Leave one of them out.")

    @property
    def facts(self) -> Method:
        """What is known of the method."""
        return METHODS.get((self.method or "").partition(":")[0], METHODS[METHOD_NAMES[0]])

    @property
    def settings(self) -> dict[str, Any]:
        """The method's own settings with their values; None is chosen from the table."""
        _, given, _ = read_method(self.method)
        return {name: known.default for name, known in self.facts.settings.items()} | given

    def with_settings(self: Options, **changes: Any) -> Options:
        """Return the same with other values of the method's own settings; None leaves one out."""
        return replace(self, method=method_text(self.facts.name, self.settings | changes))

    @property
    def chooses(self) -> bool:
        """Whether the method chooses settings by a table's own figures."""
        return self.facts.choose is not None and (not self.settings or None in self.settings.values())

    @property
    def full_method(self) -> str:
        """The method with all of its settings, their defaults too."""
        return method_text(self.facts.name, self.settings)

    @property
    def kept_first(self) -> int:
        """Positions at the start that the method neither reads nor changes."""
        return (self.facts.keep_first or 0) if self.keep_first is None else self.keep_first

    @property
    def keeps_learned_rows(self) -> bool:
        """Whether every learned row stays as it is, bit for bit, whatever the table's length."""
        return self.facts.keeps_learned_rows and self.settings.get("scope") != "all"

    def kept_of(self, learned: int) -> int:
        """Return how many of a number of learned rows stay as they are, bit for bit, at the start."""
        return learned if self.keeps_learned_rows else min(self.kept_first, learned)


def resize_table(table: Table, rows: int, options: MethodOptions | None = None) -> Table:
    """Return a table's rows, shape (n, d), any float dtype, at another number of rows: (m, d), that dtype, a copy.

    A shorter table is the first rows. The method works in float64, unless it repeats rows. It sees rows
    [keep_first : n - drop_last], or also those before, and is asked for rows - keep_first rows; learned rows that stay
    are then put back as they were stored. Reserved rows are not among a table's rows here.
    """
    options = options or MethodOptions()
    learned = len(table)
    if rows <= learned:
        return table[:rows].copy()
    check_source_rows(learned, rows, options)
    options = choose_settings(table, rows, options).options
    first, method, settings = options.kept_first, options.facts, options.settings
    if method.takes_start:
        settings["start"] = first
    unread = first
    if method.reads_kept_rows:
        settings["keep"], unread = first, 0
    source = table[unread : learned - options.drop_last]
    kept = options.kept_of(learned)
    result = np.empty((rows, table.shape[1]), dtype=table.dtype)
    result[:kept] = table[:kept]
    with np.errstate(invalid="ignore", over="ignore"):  # the caller looks for rows that are not finite
        made = method.function(source if method.repeats_rows else source.astype(np.float64), rows - unread, **settings)
        for start in range(kept, rows, BLOCK_ROWS):
            block = made[start - unread : start - unread + BLOCK_ROWS]
            result[start : start + BLOCK_ROWS] = block if method.repeats_rows else cast(block, table.dtype)
    return result


def resize_with_reserved(table: Table, reserved_rows: int, positions: int, options: MethodOptions) -> Table:
    """Return a table with its reserved rows, shape (reserved_rows + n, d), at another number of positions."""
    resized = resize_table(table[reserved_rows:], positions, options)
    return np.concatenate([table[:reserved_rows], resized]) if reserved_rows else resized


class Choice(NamedTuple):
    """A method with the settings that a table's own figures chose."""

    options: Any  # the `MethodOptions` that they complete, of the same class
    reason: str = ""  # what was chosen and by which figures, in words; empty where nothing was


def choose_settings(table: Table, rows: int, options: MethodOptions) -> Choice:
    """Choose by a table's rows, shape (n, d), the settings that make it so many rows and were left to it.

    With what was chosen, and without choosing, the method makes the same rows, bit for bit.
    """
    if not options.chooses or options.facts.choose is None:
        return Choice(options)
    source = table[: len(table) - options.drop_last].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        method, reason = options.facts.choose(source, rows, keep=options.kept_first, **options.settings)
    return Choice(replace(options, method=method, keep_first=options.kept_first), reason)


def check_source_rows(learned: int, rows: int, options: MethodOptions) -> None:
    """Refuse flags that leave no learned row to create new ones from, and more rows than a method can create."""
    first, last, method = options.kept_first, options.drop_last, options.facts
    if options.method == TRUNCATE:
        raise ResizeError(
            f"--method {TRUNCATE} makes no new rows, and {rows} positions are more than the {learned} learned ones.",
            "Name another method: ctxextend methods lists them.",
        )
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
    settings = options.settings if method.name == "bands" else {}
    for name in ("sigma", "repeat"):
        if settings.get(name) and learned - last < SHORTEST:
            raise ResizeError(
                f"--method {options.method} splits a table of {SHORTEST} rows or more, and {learned - last} are read.",
                f"Leave {name} out: shorter tables are stretched.",
            )
    for name in ("repeat", "within"):
        if (settings.get(name) or (0, 0))[1] > learned - last:
            raise ResizeError(
                f"--method {options.method}: {name} goes beyond the {learned - last} rows that are read.",
                f"Let it end at {learned - last} or before.",
            )
    maximum = first + method.max_rows(source) if method.max_rows else rows
    if rows > maximum:
        raise ResizeError(
            f"--method {method.name} extends {source} learned positions to at most {maximum - first}, not to {rows}.",
            f"Use --to {maximum} or fewer, or another method." if maximum > learned else "Use another method.",
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


def equal_rows(one: NDArray[np.generic], other: NDArray[np.generic]) -> Mask:
    """Return whether each row has the same bytes in two tables of one shape, (n, d): a mask, shape (n,)."""
    ours, theirs = (np.ascontiguousarray(table).view(np.uint8) for table in (one, other))
    return np.asarray((ours == theirs).all(axis=1))


def learned_rows(before: NDArray[np.generic], after: NDArray[np.generic]) -> Mask:
    """Return which rows of a table, shape (m, d), were learned before it was resized from (n, d): a mask, shape (m,).

    A row that is in its place and unchanged is a learned one. So is the first that equals a learned row which is no
    longer in its own place, as after interpolation in whole steps (Zhu et al. 2024, LongEmbed, section 4.3,
    arXiv:2404.12096, tunes only those in between). A second copy of a learned row is new.
    """
    shared = min(len(before), len(after))
    learned = np.zeros(len(after), np.bool_)
    learned[:shared] = equal_rows(before[:shared], after[:shared])
    moved = {before[row].tobytes() for row in range(len(before)) if row >= shared or not learned[row]}
    for row in np.flatnonzero(~learned):
        key = after[row].tobytes()
        if key in moved:
            learned[row] = True
            moved.discard(key)
    return learned


def learned_rows_after(learned: int, resizes: Sequence[tuple[int, MethodOptions]]) -> Mask:
    """Return which rows of a table of `learned` rows are learned ones after resizes, each to so many rows and how.

    A coarse dtype can make rows between two learned ones equal to one of them; here they are new all the same.
    """
    before = table = np.random.default_rng(0).normal(size=(learned, 8)).astype(np.float32)
    for rows, options in resizes:
        table = resize_table(table, rows, options)
    return learned_rows(before, table)
