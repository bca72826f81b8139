"""Compare rotary settings with the planned ones."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ctxextend.errors import CheckpointError
from ctxextend.positions.change import Change
from ctxextend.positions.positions import PositionComparison
from ctxextend.tables.rope_types import Parameters

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
    try:
        stated = {layers.layer_type: layers.parameters for layers in now.layers}
    except CheckpointError as error:
        result.faults.append(error.message)
        return result
    for layers in before.layers:
        kind = layers.layer_type
        name = f"{before.name}.{kind}" if kind else before.name
        planned = change.settings.get(kind, layers.parameters)
        faults = list(_wrong_settings(name, planned, stated[kind], now.rope.rounding))
        result.faults.extend(faults)
        if kind in change.settings and change.choice is not None and not faults:
            result.findings.append(f"{name}: settings of {change.choice.text}")
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
