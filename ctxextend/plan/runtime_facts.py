"""What in a planned folder decides what runtimes do with it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ctxextend.checkpoints.folder import MODULES
from ctxextend.families.rope import OLD_TYPE, trained_length_next_to
from ctxextend.families.rope_dialects import with_values
from ctxextend.limits.statements import TOKENIZER_CONFIG
from ctxextend.plan.own_code import own_class
from ctxextend.plan.plan import Plan
from ctxextend.plan.table_plan import TablePlan, length_to_state
from ctxextend.runtimes.rule_schema import (
    LINEAR,
    RAISED_THETA,
    REMOVED,
    SWITCHED,
    UNSCALED,
    YARN,
    FolderFacts,
)
from ctxextend.tables.rope_types import (
    ATTENTION_FACTOR,
    BETA_FAST,
    BETA_SLOW,
    FACTOR,
    FACTOR_OF_NO_ROTATION,
    LIST_MSCALES,
    NEW,
    OLD,
    THETA,
    TYPE,
    YARN_BETAS,
    Parameters,
    has_switch_lists,
    rotates,
    yarn_betas,
)


def folder_facts(plan: Plan) -> FolderFacts | None:
    """Return what decides what runtimes do with a planned folder.

    None if nothing is known of such folders: see `_known_positions`.
    """
    positions = _known_positions(plan)
    if positions is None:
        return None
    checkpoint = plan.checkpoint
    table = plan.tables[0]
    factor = 1.0
    dialects = table.rope_dialects
    if positions == REMOVED:
        factor = FACTOR_OF_NO_ROTATION
        dialects = dialects or _stated_dialects(table)
    first_trained = table.max_len_before
    if table.lengths is not None:
        first_trained = table.lengths.first_trained
    rope = table.rope[0].after if table.rope else {}
    return FolderFacts(
        model_type=plan.model_type,
        positions=positions,
        max_len=plan.max_len_after,
        stated=table.location.key_value(length_to_state(table)),
        first_trained=first_trained,
        trained_key=_trained_key(plan, table),
        factor=rope.get(FACTOR, factor),
        theta=rope.get(THETA),
        dialects=dialects,
        attention_factor=rope.get(ATTENTION_FACTOR),
        list_mscales=tuple(rope[key] for key in LIST_MSCALES if rope.get(key) is not None),
        betas=_other_betas(rope),
        has_sentence_length=MODULES in checkpoint.copied,
        has_tokenizer_length=TOKENIZER_CONFIG in checkpoint.copied,
        table_name=table.name,
    )


def _known_positions(plan: Plan) -> str | None:
    """Return the positions of a planned folder as rules name them.

    None if no rule is about such folders: nothing changes, the user named the table, there is no
    config, the folder's own code loads it, the model has positions of several kinds, or it has none
    by other settings than ``linear`` ones.
    """
    checkpoint = plan.checkpoint
    is_known_type = plan.model.ref.table is None and checkpoint.has_config
    states_other_type = checkpoint.config.get("model_type") != plan.model_type
    runs_own_code = own_class(checkpoint.config) is not None and states_other_type
    kinds = {_positions_of(table) for table in plan.tables}
    if not is_known_type or runs_own_code or len(kinds) != 1:
        return None
    positions = kinds.pop()
    if positions != REMOVED:
        return positions if plan.is_changed else None
    table = plan.tables[0]
    removes_now = bool(table.rope)
    if not plan.is_changed and not removes_now:
        return None
    return positions if _types_of_removed(table) == {LINEAR} else None


def _trained_key(plan: Plan, table: TablePlan) -> int | None:
    """Return the first trained length that the written config has next to rotary settings.

    It is not the one in the settings, which engines read by another rule: a config of only
    ``rope_parameters`` may have no such key.
    """
    if not table.rope:
        return None
    config_file = plan.checkpoint.config_file
    changes = {edit.path: edit.after for edit in plan.edits if edit.file == config_file}
    base = replace(table.location, config=plan.checkpoint.config)
    value: int | None = trained_length_next_to(with_values(base, changes), layer_type="")
    return value


def _stated_dialects(table: TablePlan) -> tuple[str, ...]:
    """Return the keys that state the settings of positions that are removed."""
    location = table.location
    return tuple(key for key in (NEW, OLD) if location.stated(key) is not None)


def _types_of_removed(table: TablePlan) -> set[Any]:
    """Return the rope types of settings that rotate nothing, as planned or as a config states."""
    if table.rope:
        return {layers.after[TYPE] for layers in table.rope}
    found = set[Any]()
    for key in _stated_dialects(table):
        stated = table.location.stated(key)
        by_layer = [value for value in stated.values() if isinstance(value, Mapping)]
        for settings in by_layer or [stated]:
            found.add(settings.get(TYPE, settings.get(OLD_TYPE)))
    return found


def _other_betas(rope: Parameters) -> tuple[float, float] | None:
    """Return the betas of yarn settings; None if they are the defaults, or of another type."""
    if rope.get(TYPE) != YARN:
        return None
    betas = yarn_betas(rope)
    if betas == YARN_BETAS:
        return None
    return betas[BETA_FAST], betas[BETA_SLOW]


def _positions_of(table: TablePlan) -> str:
    """Return the positions of a table as rules name them."""
    facts = table.location.rope
    if table.rope and not any(rotates(layers.after) for layers in table.rope):
        return REMOVED
    if table.has_rows or facts is None:
        return table.scheme
    if not table.rope:
        return UNSCALED
    layers = table.rope[0]
    kind: str = layers.after[TYPE]
    if has_switch_lists(layers.after):
        return SWITCHED
    if kind != "default":
        return kind
    if layers.after[THETA] != facts.theta[layers.before.layer_type]:
        return RAISED_THETA
    return UNSCALED
