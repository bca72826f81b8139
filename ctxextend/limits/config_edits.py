"""The values in JSON files that planned changes of positions need."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.checkpoints.mistral_files import mistral_params
from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import Architecture
from ctxextend.gguf.gguf_edits import metadata_edits
from ctxextend.limits.generation import generating_table
from ctxextend.limits.length_edits import (
    Edit,
    LengthChange,
    LimitChange,
    generation_edits,
    length_key_changes,
    limit_edits,
)
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.opening.own_code import rewrites_model_type
from ctxextend.positions.change import Change
from ctxextend.positions.positions import ConfigValues, Keys, nested


def plan_edits(
    model: OpenedModel, changes: Sequence[Change], *, fix_limits: bool
) -> tuple[Edit, ...]:
    """Return the edits to configs and tokenizer files, or to the metadata of a GGUF file.

    Args:
        model: The source.
        changes: What changes in its positions.
        fix_limits: Whether statements of a length that disagree are corrected.

    Raises:
        CheckpointError: A file to edit is malformed, or two configs disagree.
        MethodError: A config or a GGUF file cannot state the new rotary settings.
    """
    checkpoint = model.checkpoint
    if gguf_of(checkpoint) is not None:
        return metadata_edits(model, changes, fix_limits=fix_limits)
    edits = list[Edit]()
    if checkpoint.has_config:
        edits += _config_edits(model, changes, fix_limits=fix_limits)
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
        from ctxextend.limits.params_edits import params_edits  # few folders have this file

        edits += params_edits(model, changes, fix_limits=fix_limits)

    # Limits of tokenizers follow the first table that reads tokens.
    readers = dict[str | None, str]()
    for positions in model.tables:
        readers.setdefault(positions.tokenizer, positions.name)
    for change in changes:
        tokenizer = change.positions.tokenizer
        if tokenizer is None or readers[tokenizer] != change.name or change.keeps_padding:
            continue
        limits = LimitChange(
            before=change.max_len_before,
            after=change.max_len_after,
            fix_limits=fix_limits,
            keeps_fixed_padding=bool(change.positions.family.padding_effect),
            longer_fail=change.positions.has_rows,
        )
        edits += limit_edits(checkpoint, tokenizer, limits)
    # Generated texts use up the positions of one table.
    generating = generating_table(model.tables)
    for change in changes:
        is_generating = generating is not None and change.name == generating.name
        if is_generating and (change.is_changed or fix_limits):
            length = LengthChange(change.positions, change.max_len_before, change.max_len_after)
            edits += generation_edits(checkpoint, length, fix_limits=fix_limits)
    return tuple(edits)


def _config_edits(
    model: OpenedModel, changes: Sequence[Change], *, fix_limits: bool
) -> Iterator[Edit]:
    """Yield the edits to config.json, creating nested objects that are missing."""
    config = model.checkpoint.config
    values = config_changes(config, model.architecture, changes, fix_limits=fix_limits)
    reasons = dict[Keys, str]()
    for change in changes:
        for path, key in change.positions.engine_paths.items():
            if nested(config, path) is None:
                reasons[path] = f"needed by {key.needed_by}"
        for path in values:
            reason = change.positions.reason_to_state(path)
            if reason:
                reasons[path] = reason
    for path, after in in_existing_objects(config, values).items():
        reason = reasons.get(path, "")
        before = nested(config, path)
        yield Edit(model.checkpoint.config_file, path, before, after, reason=reason)


def config_changes(
    config: Mapping[str, Any],
    architecture: Architecture,
    changes: Sequence[Change],
    *,
    fix_limits: bool,
) -> ConfigValues:
    """Return the values of a config that the new lengths require, by path of keys."""
    values = ConfigValues()
    for change in changes:
        values |= change.config_values(config, fix_limits=fix_limits)
        length = change.max_len_after
        for name in architecture.family.limits:
            stated = config.get(name)
            if change.is_changed:
                is_below = isinstance(stated, int) and stated <= length
                follows = length > change.max_len_before or not is_below
            else:
                follows = fix_limits and stated not in (None, length)
            if follows:
                values[(name,)] = length
    lengths = length_changes(config, architecture, changes)
    return values | length_key_changes(lengths, fix_limits=fix_limits)


def length_changes(
    config: Mapping[str, Any], architecture: Architecture, changes: Sequence[Change]
) -> list[LengthChange]:
    """Return the planned lengths, and those of other tables, which stay.

    Of other tables, only lengths that the config states are known.
    """
    lengths = list[LengthChange]()
    for change in changes:
        positions = change.positions.with_config(config)
        lengths.append(LengthChange(positions, change.max_len_before, change.max_len_after))
    planned = {change.config_key for change in changes}
    for location in architecture.locations:
        other = location.with_config(config)
        stated = other.stated(other.effective_key)
        if other.length_key not in planned and type(stated) is int:
            length = other.positions_in(other.rows_for(stated))
            lengths.append(LengthChange(other, length, length))
    return lengths


def in_existing_objects(config: Mapping[str, Any], changes: Mapping[Keys, Any]) -> ConfigValues:
    """Return changes of a config, by path of keys, that also create the objects that are missing.

    Raises:
        CheckpointError: What should be an object is something else.
    """
    values = ConfigValues()
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


def missing_engine_keys(model: OpenedModel) -> ConfigValues:
    """Return the values of keys that other engines need and the config lacks, by path."""
    missing = ConfigValues()
    if not model.checkpoint.has_config:
        return missing
    for positions in model.tables:
        for path, key in positions.engine_paths.items():
            if nested(positions.config, path) is None:
                missing[path] = key.value or positions.value(positions.effective_key)
    return missing
