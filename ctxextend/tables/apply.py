"""Resize a stored position table in its dtype, with checked method settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import ResizeError, did_you_mean, flag_name, raise_first
from ctxextend.tables import method_facts
from ctxextend.tables.bands import MIN_ROWS
from ctxextend.tables.method_facts import (
    DEFAULT_METHOD,
    FORMULA,
    ROTARY_METHODS,
    TRUNCATE,
    Method,
    method_text,
)
from ctxextend.tables.methods import METHODS, find_methods
from ctxextend.tables.sinusoids import BLOCK_ROWS, find_formula, fit_layout

Table = NDArray[Any]
Mask = NDArray[np.bool_]
Options = TypeVar("Options", bound="MethodOptions")

# Settings that exclude rows from a method. A method whose default `keep_first` is None does not
# accept that setting.
COUNT = method_facts.Setting("", *method_facts.INTEGER)
COUNTS = ("keep_first", "drop_last")


def read_method(text: str | None) -> tuple[str, dict[str, Any], list[ResizeError]]:
    """Parse ``bands:sigma=4,keep-first=1`` into name, settings and errors; None means
    `DEFAULT_METHOD`.

    Methods of tables and of rotary positions can have the same name: then settings of either are
    accepted.
    """
    text = DEFAULT_METHOD if text is None else text
    name = text.partition(":")[0].strip()
    parsed = [_parse(text, methods) for methods in (METHODS, ROTARY_METHODS) if name in methods]
    return min(parsed, key=lambda item: len(item[2])) if parsed else _parse(text, METHODS)


def _parse(
    text: str, methods: Mapping[str, Method]
) -> tuple[str, dict[str, Any], list[ResizeError]]:
    name, _, rest = (part.strip() for part in text.partition(":"))
    accepted = dict[str, method_facts.Setting]()
    if name != TRUNCATE:
        try:
            method = methods[name] if name in methods else find_methods(name)[0]
        except ResizeError as error:
            return name, {}, [error]
        counts = COUNTS[method.keep_first is None : 1 + method.reads_learned_rows]
        accepted = dict(method.settings) | dict.fromkeys(counts, COUNT)
    settings, errors = dict[str, Any](), list[ResizeError]()
    settings_hint = (
        f"Settings of {name}: {', '.join(key.replace('_', '-') for key in accepted) or 'none'}."
    )
    for part in rest.split(",") if rest else ():
        typed, _, value = (text.strip() for text in part.partition("="))
        key = typed.replace("-", "_")
        if key in settings:
            errors.append(
                ResizeError(f"--method {name}: {typed} is given twice.", "Remove one of them.")
            )
            continue
        try:
            settings[key] = accepted[key].read(value)
            if not accepted[key].allows(settings[key]):
                raise ValueError
        except KeyError:
            hint = " ".join(
                filter(None, (did_you_mean(key, accepted).replace("_", "-"), settings_hint))
            )
            errors.append(ResizeError(f"--method {name} has no setting {typed!r:.60}.", hint))
        except ValueError:
            message = f"--method {name}: {typed} must be {accepted[key].must}, got {value!r:.60}."
            errors.append(ResizeError(message, settings_hint))
    return name, settings, errors


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """A method and its settings, validated."""

    # A name of `METHODS` with settings, as parsed by `read_method`, or `TRUNCATE`, which creates no
    # rows. None means `DEFAULT_METHOD` for a longer table; for a shorter one, only None and
    # `TRUNCATE` are allowed.
    method: str | None = None
    # Positions at the start that the method does not change; None is the method's default.
    keep_first: int | None = None
    drop_last: int = 0  # positions at the end that are not used to create new rows

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            object.__setattr__(
                self, field.name, value.item() if isinstance(value, np.generic) else value
            )
        if self.method is not None:
            name, settings, errors = read_method(str(self.method))
            for key in settings.keys() & {*COUNTS}:
                if getattr(self, key) == getattr(MethodOptions, key):
                    object.__setattr__(self, key, settings.pop(key))
            object.__setattr__(
                self, "method", str(self.method) if errors else method_text(name, settings)
            )
        raise_first(self.errors())

    def errors(self) -> Iterator[ResizeError]:
        """Yield every invalid or conflicting setting."""
        for key in COUNTS:
            value = getattr(self, key)
            if value is not None and not (type(value) is int and COUNT.allows(value)):
                yield ResizeError(f"{flag_name(key)} must be {COUNT.must}, got {value!r}.")
        name, settings, errors = read_method(self.method)
        yield from errors
        if errors:
            return
        for key in settings.keys() & {*COUNTS}:
            message = f"{flag_name(key)} is given twice: as a flag and in --method {self.method}."
            yield ResizeError(message, "Remove one of them.")
        if self.facts.keep_first is None and self.keep_first:
            yield ResizeError(
                f"--keep-first does not apply to --method {name}.", "Remove --keep-first."
            )
        if self.drop_last and not self.facts.reads_learned_rows:
            message = (
                f"--drop-last has no effect with --method {name}, which reads no learned rows."
            )
            yield ResizeError(message, "Remove --drop-last.")
        for key in (
            settings.keys() & {"repeat", "high_gain"}
            if name == "bands" and settings.get("sigma") == 0
            else ()
        ):
            message = f"--method bands: {key.replace('_', '-')} has no effect with sigma=0."
            yield ResizeError(message, "Remove one of them.")

    @property
    def facts(self) -> Method:
        """The documentation and implementation of the method."""
        name = (self.method or DEFAULT_METHOD).partition(":")[0]
        return (ROTARY_METHODS | METHODS).get(name, METHODS[method_facts.COPY])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the method with their values; None is chosen from the table."""
        _, settings, _ = read_method(self.method)
        return {name: setting.default for name, setting in self.facts.settings.items()} | settings

    def with_settings(self: Options, **changes: Any) -> Options:
        """Return a copy with changed settings of the method; None unsets one."""
        return replace(self, method=method_text(self.facts.name, self.settings | changes))

    @property
    def chooses_settings(self) -> bool:
        """Whether the table decides on the method or its unset settings, or on whether the method
        applies.
        """
        is_unset = self.facts.choose is not None and (
            not self.settings or None in self.settings.values()
        )
        return is_unset or self.facts.name in (FORMULA, method_facts.SINUSOIDAL)

    @property
    def full_method(self) -> str:
        """The method with all of its settings, including defaults."""
        return method_text(self.facts.name, self.settings)

    @property
    def kept_first(self) -> int:
        """Positions at the start that the method does not change."""
        return (self.facts.keep_first or 0) if self.keep_first is None else self.keep_first

    @property
    def keeps_learned_rows(self) -> bool:
        """Whether all learned rows stay bit-identical, for any number of rows."""
        return self.facts.keeps_learned_rows and self.settings.get("scope") != "all"

    def kept_rows(self, learned: int) -> int:
        """Return how many of the learned rows, from the first on, stay bit-identical."""
        return learned if self.keeps_learned_rows else min(self.kept_first, learned)


class RopeOptions(MethodOptions):
    """A method of rotary positions, or `LIMITS`, and its settings."""

    @property
    def facts(self) -> Method:
        """The documentation and implementation of the method."""
        return ROTARY_METHODS[read_method(self.method)[0]]


def limit_kept_first(options: Options, learned: int) -> Options:
    """Return options that keep at most all learned rows, for methods that read the rows they
    keep.
    """
    if options.facts.reads_kept_rows and options.kept_first > learned:
        return replace(options, keep_first=learned)
    return options


def resize_table(table: Table, rows: int, options: MethodOptions | None = None) -> Table:
    """Resize a position table without reserved rows, shape (n, d), any float dtype, to (rows, d);
    returns a copy.

    A shorter table keeps the first rows. Otherwise the method gets rows [keep_first : n -
    drop_last] in float64 (in the stored dtype if it repeats rows; from row 0 if it also reads kept
    rows) and returns rows - keep_first rows, which are cast to the dtype once. Learned rows that
    the method keeps are copied bit for bit.
    """
    options = options or MethodOptions()
    learned = len(table)
    if rows <= learned:
        return table[:rows].copy()
    check_source_rows(learned, rows, options)
    options = choose_settings(table, rows, limit_kept_first(options, learned)).options
    first, method, settings = options.kept_first, options.facts, options.settings
    if method.takes_start:
        settings["start"] = first
    if method.reads_kept_rows:
        settings["keep"], first = first, 0
    source = table[first : learned - options.drop_last]
    kept = options.kept_rows(learned)
    result = np.empty((rows, table.shape[1]), dtype=table.dtype)
    result[:kept] = table[:kept]
    with np.errstate(invalid="ignore", over="ignore"):  # the caller checks for non-finite rows
        output = method.function(
            source if method.repeats_rows else source.astype(np.float64), rows - first, **settings
        )
        for start in range(kept, rows, BLOCK_ROWS):
            block = output[start - first : start - first + BLOCK_ROWS]
            result[start : start + BLOCK_ROWS] = (
                block if method.repeats_rows else cast(block, table.dtype)
            )
    return result


def resize_with_reserved(
    table: Table, reserved_rows: int, positions: int, options: MethodOptions
) -> Table:
    """Resize a table with reserved rows, shape (reserved_rows + n, d), to (reserved_rows +
    positions, d).
    """
    resized = resize_table(table[reserved_rows:], positions, options)
    return np.concatenate([table[:reserved_rows], resized]) if reserved_rows else resized


class Choice(NamedTuple):
    """A method whose unset settings were chosen from a table."""

    options: Any  # the completed `MethodOptions`, of the class that was passed
    reason: str = ""  # what was chosen and why, as text; empty if nothing was chosen


def choose_settings(
    table: Table, rows: int, options: MethodOptions, layout: str = "", no_lm: str = ""
) -> Choice:
    """Choose the unset settings of a method for resizing a table, shape (n, d), to a number of
    rows.

    `auto` continues a table of sinusoids by its formula; `layout` breaks ties between layouts.
    Otherwise it chooses by `no_lm`, why the checkpoint is not a language model (empty if it is
    one), and by the rows. A method creates bit-identical rows whether it is called with these
    settings or chooses them itself. Raises ResizeError if the method has no source rows, is
    `sinusoidal` for a table that already is, or `formula` for one that is not.
    """
    if rows <= len(table) or not options.chooses_settings:
        return Choice(options)
    options = limit_kept_first(options, len(table))
    name = options.facts.name
    stated = options.settings if options.facts.name == FORMULA else {}
    has_formula = name in (DEFAULT_METHOD, FORMULA, method_facts.SINUSOIDAL)
    formula = find_formula(table, stated.get("layout") or layout) if has_formula else None
    if formula is None and options.facts.choose is not None:
        source = table[: len(table) - options.drop_last].astype(np.float64)
        given = {"no_lm": no_lm} if name == DEFAULT_METHOD else options.settings
        with np.errstate(invalid="ignore", over="ignore"):
            method, reason = options.facts.choose(source, rows, keep=options.kept_first, **given)
        chosen = replace(options, method=method, keep_first=options.kept_first)
        if chosen.keeps_learned_rows and chosen.kept_first == len(
            table
        ):  # it keeps them anyway, and copies them
            chosen = replace(chosen, keep_first=0)
            reason += f"; it keeps all {len(table)} already"
        check_source_rows(len(table), rows, chosen)
        return Choice(chosen, reason)
    if stated and (
        formula is None or any(stated[key] not in (None, getattr(formula, key)) for key in stated)
    ):
        message = f"--method {options.method}: the table does not equal this formula."
        raise ResizeError(message, "Choose another method; list them with `ctxextend methods`.")
    if formula is None:
        return Choice(options)
    if name == method_facts.SINUSOIDAL:
        message = f"--method {name}: the table already is sinusoidal, with layout {formula.layout}."
        raise ResizeError(message, "Remove --method to continue it by its formula.")
    method = method_text(FORMULA, formula._asdict())
    return Choice(
        replace(options, method=method), f"its sinusoids continue (layout {formula.layout})"
    )


def deviation(table: Table, layout: str) -> str:
    """Say how far rows are from the sinusoids of a layout with which their model started; empty if
    they equal them.
    """
    if (fit := fit_layout(table, layout)) is None:
        return "its rows are not sinusoids, so they are treated as learned"
    where = f"from its sinusoidal formula ({layout}) from position {fit.first_deviating_row} on"
    share = f"sinusoids explain {100 * fit.explained:.3g} % of its variance"
    return "" if fit.is_formula else f"deviates {where}; {share}; treated as learned rows"


def check_source_rows(learned: int, rows: int, options: MethodOptions) -> None:
    """Raise ResizeError if no source rows are left, settings exceed them, or the method cannot
    create so many rows.
    """
    first, last, method = options.kept_first, options.drop_last, options.facts
    if options.method == TRUNCATE:
        message = (
            f"--method {TRUNCATE} creates no new rows, and {rows} positions are more than the "
            f"{learned} learned"
        )
        raise ResizeError(
            f"{message} ones.", "Choose another method; list them with `ctxextend methods`."
        )
    if method.reads_kept_rows:
        first = 0  # kept rows are source rows too
    source = learned - first - last
    if options.keeps_learned_rows and first >= learned:
        message = f"--keep-first {first}: {method.name} keeps all {learned} already."
        raise ResizeError(message, "Remove --keep-first.")
    if source < 1:
        given = {"keep-first": first, "drop-last": last}
        flags = " and ".join(f"--{flag} {count}" for flag, count in given.items() if count)
        message = (
            f"{flags} with --method {method.name}: none of the {learned} learned positions is "
            "left as a source."
        )
        hint = (
            f"--keep-first {(learned - last) // 2}"
            if last < learned
            else f"a --drop-last below {learned}"
        )
        raise ResizeError(message, f"Use {hint}.")
    settings = options.settings if method.name == "bands" else {}
    for name in ("sigma", "repeat"):
        if settings.get(name) and learned - last < MIN_ROWS:
            message = f"{name} requires at least {MIN_ROWS} source rows, got {learned - last}."
            hint = f"Remove {name}: shorter tables are interpolated."
            raise ResizeError(f"--method {options.method}: {message}", hint)
    for name in ("repeat", "within"):
        if (settings.get(name) or (0, 0))[1] > learned - last:
            message = (
                f"--method {options.method}: {name} ends after the last of the {learned - last} "
                "source rows."
            )
            raise ResizeError(message, f"Use an end of at most {learned - last}.")
    maximum = first + method.max_rows(source) if method.max_rows else rows
    if rows > maximum:
        most = f"at most {maximum - first}, not to {rows}"
        message = f"--method {method.name} extends {source} learned positions to {most}."
        raise ResizeError(
            message, f"Use {f'--to {maximum} or fewer, or ' * (maximum > learned)}another method."
        )


def cast(rows: NDArray[np.float64], dtype: np.dtype[Any]) -> Table:
    """Cast float64 rows to a float dtype, bit-identical to `torch.Tensor.to`.

    Like torch, this casts to 16- and 8-bit floats via float32, so a value can be rounded twice.
    """
    if dtype.itemsize >= 4:
        return rows.astype(dtype)
    if dtype.name == "float8_e4m3fn":  # it has no infinity, and torch saturates
        rows = rows.clip(-448, 448)
    return rows.astype(np.float32).astype(dtype)


def nonfinite_rows(table: Table) -> list[int]:
    """Return the indices of rows that contain NaN or infinity."""
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(table.astype(np.float32) if table.dtype.itemsize < 4 else table)
    return [int(row) for row in np.flatnonzero(~finite.all(axis=1))]


def equal_rows(left: NDArray[np.generic], right: NDArray[np.generic]) -> Mask:
    """Compare two tables of shape (n, d) row by row, by their bytes; returns a mask of shape
    (n,).
    """
    left_bytes, right_bytes = (
        np.ascontiguousarray(table).view(np.uint8) for table in (left, right)
    )
    return np.asarray((left_bytes == right_bytes).all(axis=1))


def learned_rows(before: NDArray[np.generic], after: NDArray[np.generic]) -> Mask:
    """Return a mask, shape (m,), of the rows of a resized table, (m, d), that are rows of the base
    table, (n, d).

    A row counts as learned if it is unchanged at its index, or if it is the first copy of a learned
    row that is no longer at its index, as after interpolation by an integer factor (Zhu et al.
    2024, LongEmbed, section 4.3, arXiv:2404.12096, trains only the rows in between). Further copies
    count as new.
    """
    shared = min(len(before), len(after))
    learned = np.zeros(len(after), np.bool_)
    learned[:shared] = equal_rows(before[:shared], after[:shared])
    moved = {
        before[row].tobytes() for row in range(len(before)) if row >= shared or not learned[row]
    }
    for row in np.flatnonzero(~learned):
        if (key := after[row].tobytes()) in moved:
            learned[row] = True
            moved.remove(key)
    return learned


def learned_rows_after(learned: int, resizes: Sequence[tuple[int, MethodOptions]]) -> Mask:
    """Return a mask of the rows that are learned after a sequence of resizes, each a number of rows
    and options.

    Uses a random float32 table: in the real one, low precision can make an interpolated row equal
    to a learned one.
    """
    before = table = np.random.default_rng(0).normal(size=(learned, 8)).astype(np.float32)
    for rows, options in resizes:
        is_formula = (
            options.facts.name == FORMULA
        )  # which a random table does not have; it keeps learned rows too
        table = resize_table(
            table, rows, replace(options, method=method_facts.COPY) if is_formula else options
        )
    return learned_rows(before, table)
