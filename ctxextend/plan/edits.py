"""Plan the values in JSON files that a new length changes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.checkpoints.mistral_files import mistral_params
from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import Architecture
from ctxextend.families.rope_changes import (
    Changes,
    copied_length_paths,
    effective_path,
    rope_changes,
)
from ctxextend.families.rope_dialects import ADDED, with_other_dialect
from ctxextend.limits.generation import generating_table
from ctxextend.limits.length_edits import (
    Edit,
    LengthChange,
    LimitChange,
    generation_edits,
    length_key_changes,
    limit_edits,
)
from ctxextend.plan.gguf_edits import metadata_edits
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.stated_type import rewrites_model_type
from ctxextend.plan.table_plan import TablePlan, length_to_state, stated_length
from ctxextend.positions.facts import Pin
from ctxextend.positions.positions import Keys, Positions, nested
from ctxextend.settings import Resize
from ctxextend.tables.rope_types import TRAINED, rotates


def plan_edits(
    model: OpenedModel, tables: Sequence[TablePlan], settings: Resize
) -> tuple[Edit, ...]:
    """Return the edits to configs and tokenizer files, or to the metadata of a GGUF file.

    Raises:
        CheckpointError: A file to edit is malformed, or two configs disagree.
        MethodError: A config or a GGUF file cannot state the new rotary settings.
    """
    if gguf_of(model.checkpoint) is not None:
        return metadata_edits(model, tables, settings)
    checkpoint = model.checkpoint
    fix_limits = settings.fix_limits
    edits = list[Edit]()
    if checkpoint.has_config:
        edits += _config_edits(model, tables, fix_limits=fix_limits)
    if edits and rewrites_model_type(checkpoint, model.ref):
        edit = Edit(
            file=checkpoint.config_file,
            path=("model_type",),
            before=checkpoint.config.get("model_type"),
            after=model.architecture.family.model_type,
            reason="selects the transformers class",
        )
        edits.append(edit)
    if mistral_params(checkpoint) is not None:
        from ctxextend.plan.params_edits import params_edits  # few folders have this file

        edits += params_edits(model, tables, fix_limits=fix_limits)
    edits += _tokenizer_edits(model, tables, fix_limits=fix_limits)
    # Generated texts use up the positions of one table.
    generating = generating_table(model.tables)
    for table in tables:
        is_generating = generating is not None and table.name == generating.name
        if is_generating and (table.is_changed or fix_limits):
            change = LengthChange(table.location, table.max_len_before, table.max_len_after)
            edits += generation_edits(checkpoint, change, fix_limits=fix_limits)
    return tuple(edits)


def _tokenizer_edits(
    model: OpenedModel, tables: Sequence[TablePlan], *, fix_limits: bool
) -> Iterator[Edit]:
    """Yield the edits to limits of tokenizers, which follow the first table that reads tokens."""
    first = dict[str, str]()
    for found in model.tables:
        if found.tokenizer is not None:
            first.setdefault(found.tokenizer, found.name)
    for table in tables:
        tokenizer = table.location.tokenizer
        if tokenizer is None or first[tokenizer] != table.name or table.keeps_padding:
            continue
        change = LimitChange(
            before=table.max_len_before,
            after=table.max_len_after,
            fix_limits=fix_limits,
            keeps_fixed_padding=bool(table.location.family.padding_effect),
            longer_fail=table.has_rows,
        )
        yield from limit_edits(model.checkpoint, tokenizer, change)


def _config_edits(
    model: OpenedModel, tables: Sequence[TablePlan], *, fix_limits: bool
) -> Iterator[Edit]:
    """Yield the edits to config.json, creating nested objects that are missing."""
    checkpoint = model.checkpoint
    config = checkpoint.config
    changes = config_changes(config, model.architecture, tables, fix_limits=fix_limits)
    planned = changes
    reasons = dict[Keys, str]()
    for table in tables:
        for path, key in table.location.engine_paths.items():
            if nested(config, path) is None:
                reasons[path] = f"needed by {key.needed_by}"
        if table.rope:
            location = replace(table.location, config=config)
            planned = with_other_dialect(location, planned)
    reasons |= dict.fromkeys(planned.keys() - changes.keys(), ADDED)
    for path, after in in_existing_objects(config, planned).items():
        reason = reasons.get(path, "")
        yield Edit(checkpoint.config_file, path, nested(config, path), after, reason=reason)


def in_existing_objects(config: Mapping[str, Any], changes: Mapping[Keys, Any]) -> dict[Keys, Any]:
    """Return changes of a config, by path of keys, that also create the objects that are missing.

    Raises:
        CheckpointError: What should be an object is something else.
    """
    values = dict[Keys, Any]()
    for path, value in changes.items():
        while len(path) > 1:
            parent = nested(config, path[:-1])
            if isinstance(parent, Mapping):
                break
            if parent is not None:
                key = ".".join(path[:-1])
                message = f"config.json: {key} is {parent!r:.100}, not an object."
                raise CheckpointError(message, "Correct config.json.")
            value = {path[-1]: value}
            path = path[:-1]
        if isinstance(value, dict):
            value = {**values.get(path, {}), **value}
        values[path] = value
    return values


def missing_engine_keys(model: OpenedModel) -> Changes:
    """Return the values of keys that other engines need and the config lacks, by path."""
    missing = Changes()
    if not model.checkpoint.has_config:
        return missing
    for table in model.tables:
        location = table
        for path, key in location.engine_paths.items():
            if nested(location.config, path) is None:
                missing[path] = key.value or location.value(location.effective_key)
    return missing


def config_changes(
    config: Mapping[str, Any],
    architecture: Architecture,
    tables: Sequence[TablePlan],
    *,
    fix_limits: bool,
) -> dict[Keys, Any]:
    """Return the config values that the tables' new lengths require, by path of keys."""
    changes = dict[Keys, Any]()
    for table in tables:
        location = replace(table.location, config=config)
        for plan in table.rope:
            changes |= rope_changes(location, plan.before, plan.after)
        if table.rope and not any(rotates(plan.after) for plan in table.rope):
            changes |= _trained_length(location, table)
        if table.is_changed:
            changes |= _length_values(location, architecture, table)
        elif fix_limits:
            changes |= _corrected_values(location, architecture, table)
    lengths = length_changes(config, architecture, tables)
    changes |= length_key_changes(lengths, fix_limits=fix_limits)
    for table in tables:
        if table.rope:  # lengths next to copies of the rotary settings
            location = replace(table.location, config=config)
            value = location.key_value(length_to_state(table))
            changes |= dict.fromkeys(copied_length_paths(location), value)
    return changes


def _trained_length(location: Positions, table: TablePlan) -> Changes:
    """Return the first trained length for positions that are removed, next to their settings.

    No class reads it there for the rope types that rotate nothing: ``standardize_rope_params`` of
    https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py.
    """
    if table.lengths is None or location.stated(TRAINED) == table.lengths.first_trained:
        return {}
    return {effective_path(location, TRAINED): table.lengths.first_trained}


def _length_values(
    location: Positions, architecture: Architecture, table: TablePlan
) -> dict[Keys, Any]:
    """Return the config values of a new length: its keys, pinned keys, and keys that follow it."""
    length = table.max_len_after
    changes = dict[Keys, Any]()
    if length_to_state(table) != stated_length(table):
        value = location.key_value(length_to_state(table))
        changes |= dict.fromkeys(location.length_paths, value)
    for path, key in location.engine_paths.items():  # of other engines
        if key.value and nested(location.config, path) is None:
            changes[path] = key.value
    changes |= _pinned(table)
    for name in architecture.family.limits:
        stated = location.config.get(name)
        is_below = isinstance(stated, int) and stated <= length
        if length > table.max_len_before or not is_below:
            changes[(name,)] = length
    return changes


def _corrected_values(
    location: Positions, architecture: Architecture, table: TablePlan
) -> dict[Keys, Any]:
    """Return the config values that disagree with the length of a table that stays the same.

    A missing key may stay missing if transformers' default is right.
    """
    lengths = dict.fromkeys(location.length_paths, location.key_value(length_to_state(table)))
    expected: dict[Keys, Any] = {**lengths}
    expected |= {(key,): table.max_len_after for key in architecture.family.limits}
    changes = dict[Keys, Any]()
    for path, value in expected.items():
        if nested(location.config, path) not in (None, value):
            changes[path] = value
    key = location.effective_key
    default = location.family.defaults.get(key)
    if location.stated(key) is None and default != location.key_value(table.max_len_after):
        changes |= lengths
    return changes


def length_changes(
    config: Mapping[str, Any], architecture: Architecture, tables: Sequence[TablePlan]
) -> list[LengthChange]:
    """Return the planned lengths, and those of other tables, which stay.

    Of other tables, only lengths that the config states are known.
    """
    lengths = list[LengthChange]()
    for table in tables:
        location = replace(table.location, config=config)
        lengths.append(LengthChange(location, table.max_len_before, table.max_len_after))
    planned = {table.config_key for table in tables}
    for location in architecture.locations:
        other = replace(location, config=config)
        stated = other.stated(other.effective_key)
        if other.length_key not in planned and type(stated) is int:
            positions = other.positions_in(other.rows_for(stated))
            lengths.append(LengthChange(other, positions, positions))
    return lengths


def _pinned(table: TablePlan) -> dict[Keys, Any]:
    """Return values of config keys whose effect depends on the length, so that it stays."""
    location = table.location
    before = location.key_value(table.max_len_before)
    after = location.key_value(table.max_len_after)
    changes = dict[Keys, Any]()
    for pin in location.family.pins:
        if pin.condition is not None and not location.stated(pin.condition):
            continue
        paths = location.paths_of(pin.key)
        if pin.keeps == "blocks":
            blocks = _pinned_blocks(pin, location.value(pin.key), before, after)
            if blocks is not None:
                changes |= dict.fromkeys(paths, blocks)
            continue
        stated = location.stated(pin.key)
        if not isinstance(stated, int) or stated < 1:  # then the key means the length
            changes |= dict.fromkeys(paths, before)
    return changes


def _pinned_blocks(pin: Pin, stated: int, before: int, after: int) -> int | None:
    """Return the blocks per row with which their total number stays; None if no number does."""
    rows = before // pin.block_size
    new_rows = after // pin.block_size
    total = min(rows * stated, rows**2)
    if not new_rows or not total or total % new_rows:
        return None
    return total // new_rows
