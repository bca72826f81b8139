"""Compare rotary settings with the planned ones, and the frequencies that both give."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ctxextend.errors import CheckpointError
from ctxextend.positions.change import Change
from ctxextend.positions.positions import PositionComparison
from ctxextend.positions.rotary_settings import RopeLayers
from ctxextend.tables.frequencies import FREQUENCY_TOLERANCE
from ctxextend.tables.rope_types import Parameters, rotates

if TYPE_CHECKING:
    from ctxextend.positions.rotary import Rotary


def compare_settings(change: Change, now: "Rotary") -> PositionComparison:
    """Compare the settings of a checkpoint with those of a change.

    Args:
        change: What changes in the base.
        now: The positions of the checkpoint.
    """
    before = change.positions
    result = PositionComparison()
    rounding = now.rope.rounding
    try:
        stated = {layers.layer_type: layers.parameters for layers in now.layers}
    except CheckpointError as error:
        result.faults.append(error.message)
        return result
    for layers in before.layers:
        kind = layers.layer_type
        name = f"{before.name}.{kind}" if kind else before.name
        planned = change.settings.get(kind, layers.parameters)
        result.faults.extend(_wrong_settings(name, planned, stated[kind], rounding))
        if kind in change.settings:
            _add_frequencies(result, name, change, now, layers, stated[kind])
    return result


def _wrong_settings(
    name: str, expected: Parameters, stated: Mapping[str, Any], rounding: float
) -> Iterator[str]:
    for key in {**expected, **stated}:
        found, planned = stated.get(key), expected.get(key)
        are_close = found == planned
        if isinstance(found, float) and isinstance(planned, float):
            are_close = math.isclose(found, planned, rel_tol=rounding)
        if not are_close:
            texts = [
                "missing" if value is None else json.dumps(value) for value in (found, planned)
            ]
            yield f"{name}: {key} is {texts[0]:.100}, expected {texts[1]:.100}"


def _add_frequencies(
    result: PositionComparison,
    name: str,
    change: Change,
    now: "Rotary",
    layers: RopeLayers,
    stated: Parameters,
) -> None:
    before = change.positions
    planned = change.settings[layers.layer_type]
    length = change.max_len_after
    stated_after = before.key_value(change.stated_after)
    old = before.frequencies(layers.parameters, before.value(before.effective_key)).inverse
    ours = before.frequencies(planned, length, stated_after).inverse
    # Those of short inputs may be others.
    tolerance = max(FREQUENCY_TOLERANCE, now.rope.rounding)
    matches = np.isclose(ours, now.frequencies(stated, length).inverse, rtol=tolerance, atol=0)
    short = before.frequencies(planned, 1, stated_after).inverse
    matches &= np.isclose(short, now.frequencies(stated, 1).inverse, rtol=tolerance, atol=0)
    assert change.choice is not None
    method = change.choice.text
    total = len(matches)
    if not matches.all():
        count = int((~matches).sum())
        result.faults.append(f"{name}: {count} of {total} frequencies are not those of {method}")
    if not rotates(planned):
        result.findings.append(f"{name}: {method}: no pair turns")
        return
    # Infinite where a pair does not turn at the new length.
    slowdown = np.divide(old, ours, out=np.where(old > 0, np.inf, 1.0), where=ours != 0)
    unchanged = int(np.isclose(slowdown, 1).sum())
    kept = f"{unchanged} of {total} frequencies unchanged"
    if change.stated_after != length or change.long_inputs_as:
        # Inputs up to the trained length have other frequencies.
        kept = f"at {length} tokens, {kept}"
    if unchanged < total:
        kept += f", the others up to {slowdown.max():.3g}x slower"
    result.findings.append(f"{name}: {method}: {kept}")
