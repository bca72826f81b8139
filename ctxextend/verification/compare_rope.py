"""Compare rotary settings with the planned ones, and the frequencies that both give."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.conversion.describe import positions_text
from ctxextend.errors import CheckpointError
from ctxextend.families.rope import read_rope, rotary_dim
from ctxextend.plan.table_plan import RopePlan, TablePlan, length_to_state
from ctxextend.positions.positions import Positions
from ctxextend.tables.frequencies import frequencies
from ctxextend.tables.rope_types import NONE, rotates
from ctxextend.verification.checks import Evidence
from ctxextend.verification.expected import Expected
from ctxextend.verification.json_changes import MISSING, json_text


def add_positions(
    evidence: Evidence, expected: Expected, table: TablePlan, resized: Checkpoint
) -> None:
    """Compare positions without a table of rows: rotary settings with the planned ones.

    Raises:
        CheckpointError: The config of the base is malformed.
    """
    slowdowns = list[str]()
    if table.location.rope:
        now = replace(table.location, config=resized.config)
        try:
            stated = {item.layer_type: item.parameters for item in read_rope(now)}
        except CheckpointError as error:
            evidence.failures.append(error.message)
            return
        planned = {plan.before.layer_type: plan for plan in table.rope}
        for item in read_rope(table.location):
            name = f"{table.name}.{item.layer_type}" if item.layer_type else table.name
            found = stated[item.layer_type]
            plan = planned.get(item.layer_type)
            if plan is None:
                evidence.failures += _wrong_settings(name, item.parameters, found)
                continue
            evidence.failures += _wrong_settings(name, plan.after, found)
            faults, slowdown = _compare_frequencies(table, plan, now, found)
            evidence.failures += [f"{name}: {fault}" for fault in faults]
            slowdowns.append(f"{name}: {slowdown}")
    if expected.conversion is not None:
        evidence.findings.append(f"{table.name}: {positions_text(expected.conversion)}")
    elif slowdowns:
        evidence.findings += slowdowns
    else:
        positions = "no positions" if table.scheme == NONE else f"{table.scheme} positions"
        evidence.findings.append(f"{table.name}: {positions}, no settings changed")


def _wrong_settings(
    name: str, expected: Mapping[str, Any], stated: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the rotary settings that are not as planned; of a list, the first item."""
    for key in {**expected, **stated}:
        if expected.get(key) == stated.get(key):
            continue
        found = stated.get(key, MISSING)
        planned = expected.get(key, MISSING)
        path = key
        if isinstance(found, list) and isinstance(planned, list) and len(found) == len(planned):
            pairs = zip(found, planned, strict=True)
            index = next(index for index, (one, other) in enumerate(pairs) if one != other)
            path = f"{key}[{index}]"
            found = found[index]
            planned = planned[index]
        yield f"{name}: {path} is {json_text(found)}, expected {json_text(planned)}"


def _compare_frequencies(
    table: TablePlan, plan: RopePlan, now: Positions, stated: Mapping[str, Any]
) -> tuple[list[str], str]:
    """Return what is wrong with frequencies, and how far a method slows them down."""
    base = table.location
    planned = plan.after
    length = table.max_len_after
    dim = rotary_dim(base, planned)
    old = frequencies(plan.before.parameters, dim, base.value(base.effective_key)).inverse
    planned_key = base.key_value(length_to_state(table))
    stated_key = now.value(now.effective_key)
    ours = frequencies(planned, dim, planned_key, length).inverse
    theirs = frequencies(stated, dim, stated_key, length).inverse
    # Those of short inputs may be others.
    our_short = frequencies(planned, dim, planned_key, 1).inverse
    their_short = frequencies(stated, dim, stated_key, 1).inverse
    matches = _are_close(ours, theirs) & _are_close(our_short, their_short)
    method = plan.choice.text
    total = len(matches)
    faults = list[str]()
    if not matches.all():
        count = int((~matches).sum())
        faults.append(f"{count} of {total} frequencies are not those of {method}")
    if not rotates(planned):
        return faults, f"{method}: no pair turns"
    # Infinite where a pair does not turn at the new length.
    slowdown = np.divide(old, ours, out=np.where(old > 0, np.inf, 1.0), where=ours != 0)
    unchanged = int(np.isclose(slowdown, 1).sum())
    kept = f"{unchanged} of {total} frequencies unchanged"
    if plan.keeps_max_len or plan.long_inputs_as is not None:
        # Inputs up to the trained length have other frequencies.
        kept = f"at {length} tokens, {kept}"
    if unchanged < total:
        kept += f", the others up to {slowdown.max():.3g}x slower"
    return faults, f"{method}: {kept}"


def _are_close(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which frequencies are equal but for another order of float64 operations."""
    return np.isclose(ours, theirs, rtol=1e-12, atol=0)
