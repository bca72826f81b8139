"""Edit what the files of a checkpoint state about lengths, for other positions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.json_edit import Edit
from ctxextend.errors import CheckpointError
from ctxextend.families.registry import Architecture
from ctxextend.limits.statements import (
    MAX_LENGTH,
    MAX_NEW_TOKENS,
    MAXIMA,
    MIN_LENGTH,
    MIN_NEW_TOKENS,
    PADS_TO_LONGEST,
    GenerationLimit,
    config_length_keys,
    following_value,
    generating_table,
    generation_limits,
    shares_positions,
    stated_limits,
)
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.opening.own_code import rewrites_model_type
from ctxextend.positions.change import Change
from ctxextend.positions.positions import ConfigValues, Keys, Positions, nested

MAXIMUM_OF = {MIN_LENGTH: MAX_LENGTH, MIN_NEW_TOKENS: MAX_NEW_TOKENS}


def plan_edits(
    model: OpenedModel, changes: Sequence[Change], *, fix_limits: bool
) -> tuple[Edit, ...]:
    """Return the edits to configs and tokenizer files.

    Args:
        model: The source.
        changes: What changes in its positions.
        fix_limits: Whether statements of a length that disagree are corrected.

    Raises:
        CheckpointError: A file to edit is malformed, or two configs disagree.
        ResizeError: A file cannot state a length.
    """
    checkpoint = model.checkpoint
    edits = list[Edit]()
    if checkpoint.config:
        edits += _config_edits(model, changes, fix_limits=fix_limits)
    stated_type = checkpoint.config.get("model_type")
    model_type = model.architecture.family.model_type
    if edits and stated_type != model_type and rewrites_model_type(checkpoint, model.ref):
        edit = Edit(
            file=checkpoint.config_file,
            path=("model_type",),
            before=stated_type,
            after=model_type,
            reason="selects the transformers class",
        )
        edits.append(edit)

    # Limits of tokenizers follow the first table that reads tokens.
    readers = dict[str | None, str]()
    for positions in model.tables:
        readers.setdefault(positions.tokenizer, positions.name)
    for change in changes:
        tokenizer = change.positions.tokenizer
        if tokenizer is None or readers[tokenizer] != change.name or change.keeps_padding:
            continue
        edits += limit_edits(checkpoint, change, fix_limits=fix_limits)
    # Generated texts use up the positions of one table.
    generating = generating_table(model.tables)
    if generating is not None:
        for change in changes:
            if change.name == generating.name:
                edits += generation_edits(checkpoint, change, fix_limits=fix_limits)
    return checkpoint.file_edits(edits)


def _config_edits(
    model: OpenedModel, changes: Sequence[Change], *, fix_limits: bool
) -> Iterator[Edit]:
    config = model.checkpoint.config
    values = config_changes(config, model.architecture, changes, fix_limits=fix_limits)
    reasons = dict[Keys, str]()
    for change in changes:
        for path, key in change.positions.engine_paths.items():
            if nested(config, path) is None:
                reasons[path] = f"needed by {key.needed_by}"
        for path in values if change.settings else ():
            reason = change.positions.reason_to_state(path)
            if reason:
                reasons[path] = reason
    for path, after in in_existing_objects(config, values).items():
        reason = reasons.get(path, "")
        before = nested(config, path)
        yield Edit(model.checkpoint.config_file, path, before, after, reason=reason)


# The config


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
    # Other keys that state a length. One that agrees with the old length of any table follows this
    # table; one that agrees with none is wrong, and stays unless limits are fixed.
    following = dict[Keys, int]()
    corrected = dict[Keys, int]()
    for location, before, after in length_changes(config, architecture, changes):
        for path, value in config_length_keys(location):
            new_value = following_value(location, value, before, after)
            if new_value is None:
                corrected[path] = after
            else:
                following[path] = new_value
    others = following
    if fix_limits:
        others = {**corrected, **following}
    for path, value in others.items():
        if path not in values and nested(config, path) != value:  # not a copy of rotary settings
            values[path] = value
    return values


def length_changes(
    config: Mapping[str, Any], architecture: Architecture, changes: Sequence[Change]
) -> list[tuple[Positions, int, int]]:
    """Return the planned lengths, and those of other tables, which stay.

    Of other tables, only lengths that the config states are known.
    """
    lengths = list[tuple[Positions, int, int]]()
    for change in changes:
        positions = replace(change.positions, config=config)
        lengths.append((positions, change.max_len_before, change.max_len_after))
    planned = {change.config_key for change in changes}
    for location in architecture.locations:
        other = replace(location, config=config)
        stated = other.stated(other.effective_key)
        if other.length_key not in planned and type(stated) is int:
            length = other.length_of_key(stated)
            lengths.append((other, length, length))
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


# Limits of inputs


def limit_edits(checkpoint: Checkpoint, change: Change, *, fix_limits: bool) -> Iterator[Edit]:
    """Yield the edits that set the limits in tokenizer and side files to another length.

    A longer length, or `fix_limits`, sets every limit; a shorter one lowers the limits above it,
    and sets those that are missing. Padding to a fixed length becomes padding to the longest text,
    unless outputs depend on it.
    """
    positions = change.positions
    length = change.max_len_after
    if change.max_len_before == length and not fix_limits:
        return
    only_lowers = length < change.max_len_before and not fix_limits
    for limit in stated_limits(checkpoint, positions.tokenizer or ""):
        if only_lowers and isinstance(limit.number, int | float) and limit.number <= length:
            continue
        after: Any = length
        reason = ""
        is_padding = limit.statement.meaning == "padding"
        if is_padding and positions.family.padding_effect:
            after = {"Fixed": length}
        elif is_padding:
            after = PADS_TO_LONGEST
            slow = "would make short texts as slow as long ones"
            reason = f"padding every text to {length} tokens {slow}"
        elif limit.statement.should_be_stated and limit.tokens is None:
            if not positions.longer_inputs_fail:
                continue
            reason = "no limit was stated, and longer texts would fail"
        if limit.value != after:
            yield Edit(
                file=limit.file,
                path=limit.path,
                before=limit.value,
                after=after,
                is_limit=not is_padding,
                reason=reason,
            )


# Limits of generated texts


def generation_edits(checkpoint: Checkpoint, change: Change, *, fix_limits: bool) -> Iterator[Edit]:
    """Yield the edits of generation limits for another length of the table that generates.

    Limits that would fail are lowered. `fix_limits` raises maxima: the prompt keeps its positions,
    so that from 512 to 1024 tokens, 500 new tokens become 1012. At the same length, the maximum of
    new tokens stays.
    """
    before = change.max_len_before
    after = change.max_len_after
    if not (change.is_changed or fix_limits):
        return
    # By file and object: a maximum and a minimum limit each other if one object states both.
    groups = dict[tuple[str, Keys], list[GenerationLimit]]()
    for limit in generation_limits(checkpoint):
        groups.setdefault((limit.file, limit.path[:-1]), []).append(limit)
    for (file, path), limits in groups.items():
        stated = {limit.key: limit.tokens for limit in limits}
        new_values = lowered_limits(stated, change)
        for limit in limits if fix_limits else ():
            if not limit.may_rise or limit.tokens >= after:
                continue
            if limit.key == MAX_LENGTH:
                new_values[MAX_LENGTH] = after
            elif before < after:
                new_values[limit.key] = min(limit.tokens + after - before, after)
        for key, tokens in new_values.items():
            yield Edit(
                file=file,
                path=(*path, key),
                before=stated[key],
                after=tokens,
                is_generation=True,
            )


def lowered_limits(stated: Mapping[str, int], change: Change) -> dict[str, int]:
    """Return lower values of the limits that would fail at another context length.

    The prompt keeps its positions, but at most half of all. From 1024 to 512 tokens:

    - 900 new tokens left 124 to the prompt, so that 388 new tokens remain.
    - 600 new tokens left 424 to the prompt, which is more than half: 256 remain.
    - 1024 or more left none. If the new tokens use up the same positions as the prompt, 256 remain;
      if an encoder reads the prompt, 512.

    A minimum that is above the context, or above a maximum that is lowered, becomes this maximum:

    - A minimum of 900 becomes 512 without a maximum, and 400 next to a maximum of 400.
    - A minimum of 300 becomes 256 if its maximum of new tokens becomes 256.
    """
    after = change.max_len_after
    lowered = dict[str, int]()
    if change.positions.needs_no_limit:
        return lowered
    if MAX_LENGTH in stated and stated[MAX_LENGTH] > after:
        lowered[MAX_LENGTH] = after
    if MAX_NEW_TOKENS in stated and stated[MAX_NEW_TOKENS] > after:
        prompt = max(change.max_len_before - stated[MAX_NEW_TOKENS], 0)
        half = max(after // 2, 1)
        lowered[MAX_NEW_TOKENS] = max(after - prompt, half)
        if prompt == 0 and shares_positions(change.positions):
            lowered[MAX_NEW_TOKENS] = half
    for minimum, maximum in MAXIMUM_OF.items():
        highest_that_runs = lowered.get(maximum, after)
        if minimum in stated and stated[minimum] > highest_that_runs:
            maximum_before = stated.get(maximum, after)
            lowered[minimum] = lowered.get(maximum, maximum_before)
    return lowered


def raises_generation_limit(edit: Edit) -> bool:
    """Whether an edit raises a maximum of generated texts."""
    if not edit.is_generation or edit.path[-1] not in MAXIMA:
        return False
    return isinstance(edit.before, int) and bool(edit.after > edit.before)
