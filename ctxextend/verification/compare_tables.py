"""Recreate the rows of position tables from the base, and compare them."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.errors import counted
from ctxextend.output import table_hash
from ctxextend.positions.change import Change
from ctxextend.provenance import learned_before
from ctxextend.settings import FROZEN
from ctxextend.tables.apply import equal_rows, learned_rows, nonfinite_rows
from ctxextend.tables.stats import describe_rows
from ctxextend.verification.checks import Check
from ctxextend.verification.compare_tensors import wrong_form
from ctxextend.verification.expected import Expected

TableValues = NDArray[Any]  # the values of a table, shape (rows, hidden_size)
# Why rows should match although a checkpoint was trained, by `trainable`. With its other values,
# all rows were trained, so none is wrong.
UNTRAINED_ROWS: dict[str | None, str] = {
    "new": ", although only new rows were trained",
    "all-but-positions": ", although the table was not trained",
}


def check_tables(expected: Expected, resized: Checkpoint) -> Check:
    """Compare position tables, and positions without a table of rows.

    Raises:
        CheckpointError: A file cannot be read.
        ResizeError: The rows cannot be recreated.
    """
    check = Check("table")
    for change in expected.plan.changes:
        now = replace(change.positions, config=resized.config)
        if not change.dtype:
            result = change.positions.compare(change, now)
            check.failures += result.faults
            if expected.conversion is None:
                check.findings += result.findings
            else:
                check.findings.append(f"{change.name}: {expected.conversion.settings.result}")
            continue
        shape = (change.rows_after, change.hidden_size)
        fault = wrong_form(resized, change.name, change.dtype, shape)
        if fault:
            check.failures.append(fault)
            continue
        _compare_table(check, expected, change, resized.weights.read(change.name))
    return check


def _compare_table(check: Check, expected: Expected, table: Change, after: TableValues) -> None:
    """Recreate a stored table and compare: kept rows bit for bit, others within the tolerance.

    The rows of an unregistered method are compared only with the hash of the table. That is enough
    if all rows were trained: others need their method.
    """
    trainable = expected.trainable
    written = expected.hashes.get(table.name)
    rewritten = list[str]()
    if written not in (None, table_hash(after)):
        rewritten.append(
            f"{table.name} has changed since it was written: its SHA-256 is not that in "
            f"{RECIPE_FILE}"
        )
    if expected.unregistered_method is not None and table.is_changed:
        check.failures += rewritten
        is_enough = written is not None and trainable in ("positions", "all")
        found = check.findings if is_enough else check.unchecked
        reason = f"method {expected.unregistered_method!r} is not registered"
        found.append(f"{table.name}: rows not checked, {reason}")
        return
    before = expected.base.weights.read(table.name)
    recreated = table.positions.resized(table, before)
    matches, exactness = _matching_rows(table, recreated, after)
    # A table that gets no new rows has no method: it is cut, or stays as it is.
    method = table.method or expected.plan.method
    what = f"match method {method} {exactness}"
    if not expected.plan.is_changed:
        what = f"match the base {exactness}"
    fault = f"do not match method {method}{UNTRAINED_ROWS.get(trainable, '')}"
    if expected.replaces_positions:
        what = "are the angles of their positions, bit for bit"
        fault = "are not the angles of their positions"
    wrong = np.flatnonzero(_untrained_rows(expected, table, before, recreated) & ~matches).tolist()
    if wrong:
        check.failures.append(
            f"{table.name}: {len(wrong)} of {table.rows_after} rows {fault}: {describe_rows(wrong)}"
        )
    check.failures += rewritten
    nonfinite = sorted({*nonfinite_rows(after)} - {*nonfinite_rows(recreated)})
    if nonfinite:
        rows = counted(len(nonfinite), "row")
        check.failures.append(
            f"{table.name}: {rows} with NaN or infinity: {describe_rows(nonfinite)}"
        )
    text = f"{int(matches.sum())} of {table.rows_after} rows {what}"
    if expected.replaces_positions:
        check.findings.append(f"{table.name}: {text}")
        return
    if trainable:
        text += "; not trained afterwards" if trainable in FROZEN else "; trained afterwards"
        if written is not None:
            text += ", SHA-256 as recorded"
    size = f"{table.rows_before} -> {table.rows_after} rows"
    check.findings.append(f"{table.name}: {size}; {text}")
    check.findings.append(_learned_rows_text(before, after))


def _matching_rows(
    table: Change, recreated: TableValues, after: TableValues
) -> tuple[NDArray[np.bool_], str]:
    """Return which rows are the recreated ones, shape (rows_after,), and how exactly, in words.

    New rows may differ as far as their method allows.
    """
    matches = equal_rows(recreated, after)
    if table.choice is None or not table.choice.facts.tolerance:
        return matches, "bit for bit"
    tolerance = table.choice.facts.tolerance
    exact = recreated.astype(np.float64)
    distances = np.linalg.norm(exact - after.astype(np.float64), axis=1)
    is_close = distances <= tolerance * np.median(np.linalg.norm(exact, axis=1))
    learned = min(table.rows_before, table.rows_after) - table.reserved_rows
    is_close[: table.reserved_rows + table.choice.kept_rows(learned)] = False
    return matches | is_close, f"within {tolerance:g} of the median norm"


def _untrained_rows(
    expected: Expected, table: Change, before: TableValues, recreated: TableValues
) -> NDArray[np.bool_]:
    """Return which rows no training has changed, according to the recipe, shape (rows_after,)."""
    if expected.trainable != "new":
        return np.full(table.rows_after, expected.trainable in FROZEN)
    reserved = table.reserved_rows
    learned = learned_before(expected.provenance, table.name, reserved, table.rows_after)
    if learned is None or len(learned) != table.rows_after - reserved:
        # The recipe does not say which rows were learned: the rows do.
        learned = learned_rows(before[reserved:], recreated[reserved:])
    return np.concatenate([np.ones(reserved, np.bool_), learned])


def _learned_rows_text(before: TableValues, after: TableValues) -> str:
    """Say how many learned rows are unchanged, and which are not."""
    shared = min(len(before), len(after))
    changed = np.flatnonzero(~equal_rows(before[:shared], after[:shared])).tolist()
    text = f"{shared - len(changed)} of {shared} learned rows are bit-identical"
    return f"{text}; changed: {describe_rows(changed)}" if changed else text
