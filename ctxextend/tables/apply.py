"""Resize a stored position table in its dtype, with a method that was chosen for it."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import ResizeError
from ctxextend.tables.bands import MIN_ROWS
from ctxextend.tables.layouts import BLOCK_ROWS, find_formula
from ctxextend.tables.method_facts import (
    COPY,
    DEFAULT_METHOD,
    FORMULA,
    SINUSOIDAL,
    TRUNCATE,
    MethodChoice,
)
from ctxextend.tables.methods import METHODS

CHOOSE_ANOTHER = "Choose another method; list them with `ctxextend methods`."

Table = NDArray[Any]
Mask = NDArray[np.bool_]


def resize_table(table: Table, rows: int, choice: MethodChoice | None = None) -> Table:
    """Resize a position table without reserved rows; returns a copy.

    A shorter table keeps the first rows. For a longer one, the method computes rows from some of
    the learned ones. Those that it keeps are copied bit for bit, and the others are cast to the
    dtype once. With 6 rows and keep_first 1, an interpolation to 9 rows::

        learned    0  1  2  3  4  5
        kept       0                     copied; all 6 if the method keeps learned rows
        source        1  2  3  4  5      what the method reads, from `first_source_row` on
        computed      1  2  3  4  5  6  7  8
        result     0  1  2  3  4  5  6  7  8

    Args:
        table: Shape (n, d), any float dtype.
        rows: The new number of rows.
        choice: The method; unset settings are chosen from the table. Defaults to `DEFAULT_METHOD`.

    Returns:
        The new table, shape (rows, d), in the same dtype.

    Raises:
        ResizeError: The method cannot extend this table.
    """
    learned = len(table)
    if rows > learned:
        choice = check_source_rows(learned, rows, choice or METHODS[DEFAULT_METHOD].choice())
        choice = choose_method(table, rows, choice)
    return resize_with_reserved(table, 0, rows, choice)


def resize_with_reserved(
    table: Table, reserved_rows: int, positions: int, choice: MethodChoice | None
) -> Table:
    """Resize a table with reserved rows, shape (reserved_rows + n, d), to (reserved_rows +
    positions, d).

    `choice` is that of `choose_method`; a table that does not become longer needs none.
    """
    rows = reserved_rows + positions
    if rows <= len(table):
        return table[:rows].copy()
    assert choice is not None
    method = choice.facts
    settings = dict(choice.settings)
    if method.takes_start:
        settings["start"] = choice.keep_first
    if method.reads_kept_rows:
        settings["keep"] = choice.keep_first
    first = reserved_rows + choice.first_source_row
    kept = reserved_rows + choice.kept_rows(len(table) - reserved_rows)
    result = np.empty((rows, table.shape[1]), dtype=table.dtype)
    result[:kept] = table[:kept]
    with np.errstate(invalid="ignore", over="ignore"):  # the caller checks for non-finite rows
        # A method that repeats rows reads and returns the stored dtype, others float64.
        source = table[first:]
        if not method.repeats_rows:
            source = source.astype(np.float64)
        computed = method.function(source, rows - first, **settings)
        for start in range(kept, rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, rows)
            block = computed[start - first : stop - first]
            if not method.repeats_rows:
                block = cast(block, table.dtype)
            result[start:stop] = block
    return result


def choose_method(
    table: Table, rows: int, choice: MethodChoice, layout: str = "", no_lm_reason: str = ""
) -> MethodChoice:
    """Choose the method and settings that a request leaves to the table.

    What the table decides depends on the requested method:

    - `sinusoidal`: only whether it applies: not to a table that already is sinusoidal.
    - `formula`: the unset settings, and whether the table equals the formula.
    - `auto`: `formula` for a table of sinusoids; else the method, by `no_lm_reason` and the rows.
    - any other method with unset settings, such as `bands`: these, by the rows.

    A method creates bit-identical rows whether it is called with these settings or chooses them
    itself.

    Args:
        table: Shape (n, d), any float dtype, without reserved rows.
        rows: The new number of rows.
        choice: The requested method; see `check_source_rows`.
        layout: The layout of sinusoids that the model computes, if any; breaks ties.
        no_lm_reason: Why the checkpoint is not a language model; empty if it is one.

    Returns:
        The complete choice, with a reason if anything was chosen.

    Raises:
        ResizeError: The method has no source rows, is `sinusoidal` for a table that already is, or
            `formula` for one that is not.
    """
    learned = len(table)
    if rows <= learned:
        return choice
    if choice.name in (DEFAULT_METHOD, FORMULA, SINUSOIDAL):
        given = {key: value for key, value in choice.settings.items() if value is not None}
        if choice.name == FORMULA:
            layout = given.get("layout", layout)
        formula = find_formula(table, layout)
        if choice.name == SINUSOIDAL:
            if formula is None:
                return choice
            message = f"the table already is sinusoidal, with layout {formula.layout}"
            hint = "Remove --method to continue it by its formula."
            raise ResizeError(f"--method {SINUSOIDAL}: {message}.", hint)
        if formula is not None and given.items() <= formula._asdict().items():
            chosen = replace(
                choice,
                facts=METHODS[FORMULA],
                settings=formula._asdict(),
                keep_first=0,
                reason=f"its sinusoids continue (layout {formula.layout})",
            )
            return chosen.keeping(choice.keep_first)
        if choice.name == FORMULA:
            message = f"--method {choice.text}: the table does not equal this formula."
            raise ResizeError(message, CHOOSE_ANOTHER)
    is_auto = choice.name == DEFAULT_METHOD
    if not is_auto and (choice.facts.choose is None or None not in choice.settings.values()):
        return choice
    chosen = choice
    if is_auto and (no_lm_reason or learned < MIN_ROWS):
        why = no_lm_reason or f"{learned} rows are too few to judge"
        reason = f"copy, which keeps the learned rows: {why}"
        chosen = replace(choice, facts=METHODS[COPY], settings={}, reason=reason)
    elif is_auto:
        facts = METHODS["bands"]
        chosen = replace(choice, facts=facts, settings=dict.fromkeys(facts.settings))

    # The learned rows decide on the settings.
    if chosen.facts.choose is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            chosen = chosen.facts.choose(table.astype(np.float64), rows, chosen)
    if is_auto:
        chosen = replace(chosen, reason=f"auto chose {chosen.reason}")
    if chosen.keeps_learned_rows and chosen.keep_first == learned:
        # As a request this is an error: no source is left, and all rows are kept anyway. Here the
        # user did not know which method it would be, so that the method reads them all.
        reason = f"{chosen.reason}; it keeps all {learned} already"
        chosen = replace(chosen, keep_first=0, reason=reason)
    return check_source_rows(learned, rows, chosen)


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
    row that has left its index. Further copies count as new. Of three base rows A B C::

        copied         A B C A B C    learned, learned, learned, new, new, new
        interpolated   A x B y C C    learned, new, learned, new, learned, new

    Zhu et al. 2024, LongEmbed, section 4.3, arXiv:2404.12096, train only the rows in between.
    """
    shared = min(len(before), len(after))
    is_unchanged = equal_rows(before[:shared], after[:shared])
    has_left = np.ones(len(before), np.bool_)
    has_left[:shared] = ~is_unchanged
    moved = {before[index].tobytes() for index in np.flatnonzero(has_left)}
    learned = np.zeros(len(after), np.bool_)
    learned[:shared] = is_unchanged
    for index in np.flatnonzero(~learned):
        content = after[index].tobytes()
        if content in moved:
            learned[index] = True
            moved.remove(content)  # the next copy counts as new
    return learned


def learned_rows_after(rows_before: int, rows: int, choice: MethodChoice) -> Mask:
    """Return a mask of the rows that are learned after a resize.

    Uses a random float32 table: in the real one, low precision can make an interpolated row equal
    to a learned one.

    Args:
        rows_before: The number of rows before, all learned.
        rows: The number of rows after.
        choice: The method.

    Raises:
        ResizeError: The method cannot extend the table.
    """
    before = np.random.default_rng(0).normal(size=(rows_before, 8)).astype(np.float32)
    if choice.name == FORMULA:  # a random table has none; like `copy`, it keeps learned rows
        choice = METHODS[COPY].choice().keeping(choice.keep_first)
    return learned_rows(before, resize_table(before, rows, choice))


def check_source_rows(learned: int, rows: int, choice: MethodChoice) -> MethodChoice:
    """Return the choice that extends a table of `learned` rows to `rows`.

    One whose method reads the rows that it keeps keeps at most all learned rows.

    Raises:
        ResizeError: The method cannot extend the table.
    """
    if choice.facts.reads_kept_rows and choice.keep_first > learned:
        choice = replace(choice, keep_first=learned)
    if choice.name == TRUNCATE:
        message = (
            f"--method {TRUNCATE} creates no new rows, and {rows} positions are more than the "
            f"{learned} learned ones."
        )
        raise ResizeError(message, CHOOSE_ANOTHER)
    first = choice.first_source_row
    if choice.keeps_learned_rows and first >= learned:
        message = f"--keep-first {first}: {choice.name} keeps all {learned} already."
        raise ResizeError(message, "Remove --keep-first.")
    if learned <= first:
        message = (
            f"--keep-first {first} with --method {choice.name}: none of the {learned} learned "
            "positions is left as a source."
        )
        raise ResizeError(message, f"Use --keep-first {learned // 2}.")
    if choice.name == "bands":
        settings = choice.settings
        least = MIN_ROWS if settings["sigma"] or settings["repeat"] else 0
        for key in ("repeat", "within"):
            if settings[key]:
                least = max(least, settings[key][1])
        if learned < least:
            message = f"--method {choice.text} needs {least} source rows, got {learned}."
            raise ResizeError(message, "Use --method bands, which chooses settings by the table.")
    if choice.facts.max_rows is None:
        return choice
    source = learned - first
    most = choice.facts.max_rows(source)
    if rows - first > most:
        message = f"--method {choice.name} extends {source} learned positions to at most {most}"
        hint = "Use another method."
        if first + most > learned:
            hint = f"Use --to {first + most} or fewer, or another method."
        raise ResizeError(f"{message}, not to {rows}.", hint)
    return choice
