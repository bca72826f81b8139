"""Resize a stored position table in its dtype, with a method that was chosen for it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import ResizeError
from ctxextend.tables.choice import MethodChoice, limit_kept_first
from ctxextend.tables.method_checks import CHOOSE_ANOTHER, check_counts, check_source_rows
from ctxextend.tables.method_facts import COPY, DEFAULT_METHOD, FORMULA, SINUSOIDAL
from ctxextend.tables.method_parser import read_choice
from ctxextend.tables.methods import METHODS
from ctxextend.tables.sinusoids import BLOCK_ROWS, Formula, find_formula, fit_layout

Table = NDArray[Any]
Mask = NDArray[np.bool_]


def resize_table(table: Table, rows: int, choice: MethodChoice | None = None) -> Table:
    """Resize a position table without reserved rows; returns a copy.

    A shorter table keeps the first rows. Otherwise the method gets rows [keep_first : n -
    drop_last] in float64 (in the stored dtype if it repeats rows; from row 0 if it also reads kept
    rows) and returns rows - keep_first rows, which are cast to the dtype once. Learned rows that
    the method keeps are copied bit for bit.

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
    if rows <= learned:
        return table[:rows].copy()
    choice = limit_kept_first(choice or read_choice(), learned)
    check_source_rows(learned, rows, choice)
    choice = choose_method(table, rows, choice)
    method = choice.facts
    settings = dict(choice.settings)
    first = choice.keep_first
    if method.takes_start:
        settings["start"] = first
    if method.reads_kept_rows:
        settings["keep"] = first
        first = 0
    source = table[first : learned - choice.drop_last]
    if not method.repeats_rows:
        source = source.astype(np.float64)
    kept = choice.kept_rows(learned)
    result = np.empty((rows, table.shape[1]), dtype=table.dtype)
    result[:kept] = table[:kept]
    with np.errstate(invalid="ignore", over="ignore"):  # the caller checks for non-finite rows
        output = method.function(source, rows - first, **settings)
        for start in range(kept, rows, BLOCK_ROWS):
            block = output[start - first : start - first + BLOCK_ROWS]
            if not method.repeats_rows:
                block = cast(block, table.dtype)
            result[start : start + BLOCK_ROWS] = block
    return result


def resize_with_reserved(
    table: Table, reserved_rows: int, positions: int, choice: MethodChoice
) -> Table:
    """Resize a table with reserved rows, shape (reserved_rows + n, d), to (reserved_rows +
    positions, d).
    """
    resized = resize_table(table[reserved_rows:], positions, choice)
    return np.concatenate([table[:reserved_rows], resized]) if reserved_rows else resized


def choose_method(
    table: Table, rows: int, choice: MethodChoice, layout: str = "", no_lm: str = ""
) -> MethodChoice:
    """Choose the method and settings that a request leaves to the table.

    `auto` continues a table of sinusoids by its formula. Otherwise it chooses by `no_lm`, and by
    the rows. A method creates bit-identical rows whether it is called with these settings or
    chooses them itself.

    Args:
        table: Shape (n, d), any float dtype, without reserved rows.
        rows: The new number of rows.
        choice: The requested method.
        layout: The layout of sinusoids that the model computes, if any; breaks ties.
        no_lm: Why the checkpoint is not a language model; empty if it is one.

    Returns:
        The complete choice, with a reason if anything was chosen.

    Raises:
        ResizeError: The method has no source rows, is `sinusoidal` for a table that already is, or
            `formula` for one that is not.
    """
    if rows <= len(table) or not choice.depends_on_table:
        return choice
    choice = limit_kept_first(choice, len(table))
    if choice.name == SINUSOIDAL:
        _check_not_sinusoidal(table, layout)
        return choice
    if choice.name == FORMULA:
        return _stated_formula(table, choice, layout)
    if choice.name == DEFAULT_METHOD and (formula := find_formula(table, layout)):
        return _continued(choice, formula)
    return _chosen_from_rows(table, rows, choice, no_lm)


def _check_not_sinusoidal(table: Table, layout: str) -> None:
    if formula := find_formula(table, layout):
        found = f"the table already is sinusoidal, with layout {formula.layout}"
        hint = "Remove --method to continue it by its formula."
        raise ResizeError(f"--method {SINUSOIDAL}: {found}.", hint)


def _stated_formula(table: Table, choice: MethodChoice, layout: str) -> MethodChoice:
    """Return the formula that a table equals; raise ResizeError if it is not the requested one."""
    formula = find_formula(table, choice.settings["layout"] or layout)
    if formula is not None:
        found = formula._asdict()
        if all(value in (None, found[key]) for key, value in choice.settings.items()):
            return _continued(choice, formula)
    message = f"--method {choice.text}: the table does not equal this formula."
    raise ResizeError(message, CHOOSE_ANOTHER)


def _continued(choice: MethodChoice, formula: Formula) -> MethodChoice:
    """Return the choice that continues sinusoids by their formula."""
    chosen = replace(
        choice,
        facts=METHODS[FORMULA],
        settings=formula._asdict(),
        reason=f"its sinusoids continue (layout {formula.layout})",
    )
    check_counts(chosen)
    return chosen


def _chosen_from_rows(table: Table, rows: int, choice: MethodChoice, no_lm: str) -> MethodChoice:
    assert choice.facts.choose is not None
    learned = len(table)
    source = table[: learned - choice.drop_last].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        chosen: MethodChoice = choice.facts.choose(source, rows, choice, no_lm)
    if chosen.keeps_learned_rows and chosen.keep_first == learned:  # copied in any case
        reason = f"{chosen.reason}; it keeps all {learned} already"
        chosen = replace(chosen, keep_first=0, reason=reason)
    check_source_rows(learned, rows, chosen)
    return chosen


def deviation(table: Table, layout: str) -> str:
    """Say how far rows are from the sinusoids with which their model started.

    Args:
        table: The rows, shape (n, d), any float dtype.
        layout: The layout of those sinusoids.

    Returns:
        A clause; empty if the rows equal the sinusoids.
    """
    fit = fit_layout(table, layout)
    if fit is None:
        return "its rows are not sinusoids, so they are treated as learned"
    if fit.is_formula:
        return ""
    where = f"from its sinusoidal formula ({layout}) from position {fit.first_deviating_row} on"
    share = f"sinusoids explain {100 * fit.explained:.3g} % of its variance"
    return f"deviates {where}; {share}; treated as learned rows"


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
    row that has left its index, as after interpolation by an integer factor (Zhu et al.
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


def learned_rows_after(learned: int, resizes: Sequence[tuple[int, MethodChoice]]) -> Mask:
    """Return a mask of the rows that are learned after a sequence of resizes.

    Uses a random float32 table: in the real one, low precision can make an interpolated row equal
    to a learned one.

    Args:
        learned: The number of rows before.
        resizes: The number of rows, and the method, of each resize.

    Returns:
        A mask of the rows after the last resize.

    Raises:
        ResizeError: A method cannot extend its table.
    """
    before = np.random.default_rng(0).normal(size=(learned, 8)).astype(np.float32)
    table = before
    for rows, choice in resizes:
        if choice.name == FORMULA:  # a random table has none; like `copy`, it keeps learned rows
            choice = read_choice(COPY, choice.keep_first, choice.drop_last)
        table = resize_table(table, rows, choice)
    return learned_rows(before, table)
