"""Recreate the rows of position tables from the base, and compare them."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.errors import CheckpointError, counted
from ctxextend.output import table_hash
from ctxextend.positions.change import Change
from ctxextend.provenance import learned_before
from ctxextend.settings import FROZEN
from ctxextend.tables.apply import equal_rows, learned_rows, nonfinite_rows
from ctxextend.tables.stats import describe_rows
from ctxextend.verification.checks import Check, Evidence
from ctxextend.verification.compare_tensors import wrong_form
from ctxextend.verification.expected import Expected, Recorded

Mask = NDArray[np.bool_]
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
    evidence = Evidence()
    for change in expected.plan.changes:
        if change.dtype:
            _add_stored_table(evidence, expected, change, resized)
            continue
        now = replace(change.positions, config=resized.config)
        result = change.positions.compare(change, now)
        evidence.failures += result.faults
        if expected.conversion is not None:
            result.findings[:] = [f"{change.name}: {expected.conversion.settings.result}"]
        evidence.findings += result.findings
    return evidence.check("table")


def _size_text(table: Change) -> str:
    return f"{table.name}: {table.rows_before} -> {table.rows_after} rows"


def _add_stored_table(
    evidence: Evidence, expected: Expected, table: Change, resized: Checkpoint
) -> None:
    recorded = expected.recorded
    shape = (table.rows_after, table.hidden_size)
    fault = wrong_form(resized, table.name, table.dtype, shape)
    if fault is not None:
        evidence.failures.append(fault)
        return
    try:
        replace(table.positions, config=resized.config).check_width()
    except CheckpointError as error:
        evidence.failures.append(error.message)
    after = resized.weights.read(table.name)
    written = recorded.hashes.get(table.name)
    rewritten = ""
    if written is not None and table_hash(after) != written:
        rewritten = (
            f"{table.name} has changed since it was written: its SHA-256 is not that in "
            f"{RECIPE_FILE}"
        )
    if recorded.unregistered_method is None or not table.is_changed:
        _add_rows(evidence, expected, table, after, rewritten)
        return
    text = (
        f"{table.name}: rows not checked, method {recorded.unregistered_method!r} is not registered"
    )
    # The hash is enough if all rows were trained: others need their method.
    if written is None or recorded.trainable not in ("positions", "all"):
        evidence.unchecked.append(text)
        return
    if rewritten:
        evidence.failures.append(rewritten)
    evidence.findings.append(text)


def _add_rows(
    evidence: Evidence, expected: Expected, table: Change, after: TableValues, rewritten: str
) -> None:
    """Recreate a stored table and compare: kept rows bit for bit, others within the tolerance."""
    plan = expected.plan
    choice = table.choice or plan.settings.choice
    before = expected.base.weights.read(table.name)
    recreated = table.positions.resized(table, before)
    matches = equal_rows(recreated, after)
    tolerance = choice.facts.tolerance if plan.extended else 0.0
    exactness = "bit for bit"
    if tolerance:
        exactness = f"within {tolerance:g} of the median norm"
        exact = recreated.astype(np.float64)
        distances = np.linalg.norm(exact - after.astype(np.float64), axis=1)
        is_close = distances <= tolerance * np.median(np.linalg.norm(exact, axis=1))
        learned = min(table.rows_before, table.rows_after) - table.reserved_rows
        is_close[: table.reserved_rows + choice.kept_rows(learned)] = False
        matches |= is_close
    # A table that gets no new rows has no method: it is cut, or stays as it is.
    method = plan.method if table.choice is None else choice.name
    trainable = expected.recorded.trainable
    untrained = _untrained_rows(expected.recorded, table, before, recreated)
    wrong = np.flatnonzero(untrained & ~matches).tolist()
    if wrong:
        fault = f"do not match method {method}{UNTRAINED_ROWS.get(trainable, '')}"
        if expected.replaces_positions:
            fault = "are not the angles of their positions"
        count = f"{len(wrong)} of {table.rows_after} rows"
        evidence.failures.append(f"{table.name}: {count} {fault}: {describe_rows(wrong)}")
    elif rewritten:
        evidence.failures.append(rewritten)
    nonfinite = sorted({*nonfinite_rows(after)} - {*nonfinite_rows(recreated)})
    if nonfinite:
        count = counted(len(nonfinite), "row")
        rows = describe_rows(nonfinite)
        evidence.failures.append(f"{table.name}: {count} with NaN or infinity: {rows}")
    matching = f"{int(matches.sum())} of {table.rows_after} rows"
    if expected.replaces_positions:
        text = f"{matching} are the angles of their positions, bit for bit"
        evidence.findings.append(f"{table.name}: {text}")
        return
    origin = f"method {method}" if plan.is_changed else "the base"
    text = f"{_size_text(table)}; {matching} match {origin} ({expected.basis}) {exactness}"
    if trainable:
        text += "; not trained afterwards" if trainable in FROZEN else "; trained afterwards"
        if table.name in expected.recorded.hashes:
            text += ", SHA-256 as recorded"
    evidence.findings += [text, _learned_rows_text(before, after)]


def _untrained_rows(
    recorded: Recorded, table: Change, before: TableValues, recreated: TableValues
) -> Mask:
    """Return which rows no training has changed, according to the recipe, shape (rows_after,)."""
    if recorded.trainable in FROZEN:
        return np.ones(table.rows_after, np.bool_)
    if recorded.trainable != "new":
        return np.zeros(table.rows_after, np.bool_)
    reserved = table.reserved_rows
    learned = learned_before(recorded.provenance, table.name, reserved, table.rows_after)
    if learned is None or len(learned) != table.rows_after - reserved:
        # The recipe does not say which rows were learned: the rows do.
        learned = learned_rows(before[reserved:], recreated[reserved:])
    return np.concatenate([np.ones(reserved, np.bool_), learned])


def _learned_rows_text(before: TableValues, after: TableValues) -> str:
    """Say how many learned rows are unchanged, and how far the others have moved."""
    shared = min(len(before), len(after))
    changed = ~equal_rows(before[:shared], after[:shared])
    count = int(changed.sum())
    text = f"{shared - count} of {shared} learned rows are bit-identical"
    if not count:
        return text
    with np.errstate(invalid="ignore", over="ignore"):
        old = before[:shared].astype(np.float64)
        new = after[:shared].astype(np.float64)
        largest = np.linalg.norm(new[changed] - old[changed], axis=1).max()
        median_norm = np.median(np.linalg.norm(old, axis=1))
    rows = "rows" if count > 1 else "row"
    return (
        f"{text}; {rows} {describe_rows(np.flatnonzero(changed).tolist())} changed by up to "
        f"{largest:.3g} (median norm {median_norm:.3g})"
    )
