"""Compare rotary settings with the planned ones, and the frequencies that both give."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import TableLocation
from ctxextend.families.rope import RopeLayers, read_rope, rotary_dim
from ctxextend.plan.table_plan import RopePlan, TablePlan, length_to_state
from ctxextend.tables.rope_types import rotates
from ctxextend.tables.rotary import frequencies
from ctxextend.verification.json_changes import MISSING

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class WrongSetting:
    """A rotary setting with another value than planned."""

    key: str
    found: Any  # `MISSING` if it is not stated
    expected: Any


@dataclass(frozen=True, eq=False)
class ComparedFrequencies:
    """The inverse frequencies of changed settings, each of shape (pairs,)."""

    method: str  # with all of its settings
    length: int | None  # in tokens, if inputs up to the trained length have other frequencies
    # Whether each is that of the planned settings, for short inputs and those of the new length.
    matches: Mask
    # How many times slower each is planned than in the base, at the new length; infinite if it then
    # does not turn.
    slowdown: NDArray[np.float64]
    rotates: bool  # whether any pair is planned to turn

    @property
    def unchanged(self) -> int:
        """How many frequencies are planned as they are in the base."""
        return int(np.isclose(self.slowdown, 1).sum())


@dataclass(frozen=True)
class ComparedLayers:
    """The rotary settings of the layers of one type."""

    name: str  # the table and the type of layers, with a dot
    wrong: tuple[WrongSetting, ...]
    frequencies: ComparedFrequencies | None  # None: the settings were not to change


@dataclass(frozen=True)
class ComparedPositions:
    """Positions without a table of rows; only rotary ones have settings."""

    table: TablePlan
    layers: tuple[ComparedLayers, ...]
    error: str = ""  # why the settings of the resized checkpoint cannot be read


def compare_positions(table: TablePlan, resized: Checkpoint) -> ComparedPositions:
    """Compare the rotary settings of a resized checkpoint with the planned ones, if it has any.

    Raises:
        CheckpointError: The config of the base is malformed.
    """
    if not table.location.table.rope:
        return ComparedPositions(table, ())
    now = replace(table.location, config=resized.config)
    try:
        stated = {item.layer_type: item.parameters for item in read_rope(now)}
    except CheckpointError as error:
        return ComparedPositions(table, (), error.message)
    planned = {plan.before.layer_type: plan for plan in table.rope}
    layers = list[ComparedLayers]()
    for item in read_rope(table.location):
        plan = planned.get(item.layer_type)
        layers.append(_compare_layers(table, item, plan, now, stated[item.layer_type]))
    return ComparedPositions(table, tuple(layers))


def _compare_layers(
    table: TablePlan,
    before: RopeLayers,
    plan: RopePlan | None,
    now: TableLocation,
    stated: Mapping[str, Any],
) -> ComparedLayers:
    """Compare the settings of the layers of one type: `stated` in the config of `now`."""
    name = f"{table.name}.{before.layer_type}" if before.layer_type else table.name
    if plan is None:
        return ComparedLayers(name, _wrong_settings(before.parameters, stated), None)
    return ComparedLayers(
        name=name,
        wrong=_wrong_settings(plan.after, stated),
        frequencies=_compare_frequencies(table, plan, now, stated),
    )


def _wrong_settings(
    expected: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[WrongSetting, ...]:
    wrong = list[WrongSetting]()
    for key in {**expected, **stated}:
        found = stated.get(key, MISSING)
        planned = expected.get(key, MISSING)
        if isinstance(found, list) and isinstance(planned, list) and len(found) == len(planned):
            wrong += _wrong_items(key, found, planned)
        elif expected.get(key) != stated.get(key):
            wrong.append(WrongSetting(key, found, planned))
    return tuple(wrong)


def _wrong_items(key: str, found: list[Any], planned: list[Any]) -> list[WrongSetting]:
    """Return the first item of a list of factors that differs; none if all are equal."""
    for index, (one, other) in enumerate(zip(found, planned, strict=True)):
        if one != other:
            return [WrongSetting(f"{key}[{index}]", one, other)]
    return []


def _compare_frequencies(
    table: TablePlan, plan: RopePlan, now: TableLocation, stated: Mapping[str, Any]
) -> ComparedFrequencies:
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
    follows_length = plan.keeps_max_len or plan.long_inputs_as is not None
    return ComparedFrequencies(
        method=plan.choice.text,
        length=length if follows_length else None,
        matches=_are_close(ours, theirs) & _are_close(our_short, their_short),
        slowdown=np.divide(old, ours, out=np.where(old > 0, np.inf, 1.0), where=ours != 0),
        rotates=rotates(planned),
    )


def _are_close(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Mask:
    """Return which frequencies are equal but for another order of float64 operations."""
    return np.isclose(ours, theirs, rtol=1e-12, atol=0)
