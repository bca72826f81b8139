"""Edit what the files of a checkpoint state about lengths, for other positions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctxextend.checkpoint.json_edit import Edit
from ctxextend.errors import CheckpointError
from ctxextend.families.registry import Architecture
from ctxextend.limits.statements import (
    MAX_LENGTH,
    MAX_NEW_TOKENS,
    MAXIMA,
    MIN_NEW_TOKENS,
    PADS_TO_LONGEST,
    TOKENIZER_CONFIG,
    LengthLimit,
    Meaning,
    config_length_keys,
    following_value,
    length_limits,
)
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.opening.own_code import rewrites_model_type
from ctxextend.positions.change import Change
from ctxextend.positions.positions import ConfigValues, Keys, Positions, nested


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
    change_of = {change.name: change for change in changes}
    for limit in length_limits(checkpoint, model.tables):
        is_of_config = limit.meaning is Meaning.LENGTH and limit.file == checkpoint.config_file
        if limit.table not in change_of or is_of_config or limit.file in checkpoint.omitted:
            continue
        after = limit_after(limit, change_of[limit.table], fix_limits=fix_limits)
        if after == limit.value:
            continue
        reason = ""
        if after == PADS_TO_LONGEST:
            reason = "with a fixed length, short texts would be as slow as long ones"
        elif limit.tokens is None:
            reason = "no limit was stated, and longer texts would fail"
        edit = Edit(
            file=limit.file,
            path=limit.path,
            before=limit.value,
            after=after,
            is_limit=limit.meaning is Meaning.TRUNCATION,
            is_generation=limit.meaning is Meaning.GENERATION,
            reason=reason,
        )
        edits.append(edit)
    return checkpoint.file_edits(edits)


def limit_after(limit: LengthLimit, change: Change, *, fix_limits: bool) -> Any:
    """Return the value of a limit for another length of its positions; its own if it stays.

    - Another key of the length follows if it agrees with the old one, else with `fix_limits`.
    - Of inputs: a longer length, or `fix_limits`, sets every limit; a shorter one lowers those
      above it. Padding to a fixed length becomes padding to the longest text, unless outputs depend
      on it.
    - Of generated texts: those that would fail are lowered. `fix_limits` raises maxima: the prompt
      keeps its positions, so that from 512 to 1024 tokens, 500 new tokens become 1012.
    """
    positions = change.positions
    before = change.max_len_before
    after = change.max_len_after
    key = limit.path[-1]
    tokens = limit.tokens
    if limit.meaning is Meaning.GENERATION:
        if tokens is None or not (change.is_changed or fix_limits):
            return tokens
        is_raised = fix_limits and bool(limit.readers) and key in MAXIMA and tokens < after
        if is_raised and key == MAX_LENGTH:
            return after
        if is_raised and before < after:
            return min(tokens + after - before, after)
        return lowered_limit(key, tokens, change)
    if limit.meaning is Meaning.LENGTH:
        new_value = following_value(positions, limit.value, before, after)
        if new_value is None:
            return after if fix_limits else limit.value
        return new_value
    is_set = before != after or fix_limits
    only_lowers = after < before and not fix_limits
    if not is_set or change.keeps_padding or (only_lowers and tokens and tokens <= after):
        return limit.value
    if limit.meaning is Meaning.PADDING:
        return {"Fixed": after} if positions.family.padding_effect else PADS_TO_LONGEST
    is_missing = tokens is None and limit.file.endswith(TOKENIZER_CONFIG)
    if is_missing and not positions.longer_inputs_fail:
        return limit.value
    return after


def lowered_limit(key: str, tokens: int, change: Change) -> int:
    """Return a limit of generated texts that does not fail at another context length.

    Of new tokens, at most half of the context remains for those that would not fit: the other half
    is the prompt's.
    """
    highest = change.max_len_after
    if change.positions.needs_no_limit:
        return tokens
    if key == MIN_NEW_TOKENS or (key == MAX_NEW_TOKENS and tokens > highest):
        highest = max(highest // 2, 1)
    return min(tokens, highest)


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


def raises_generation_limit(edit: Edit) -> bool:
    """Whether an edit raises a maximum of generated texts."""
    if not edit.is_generation or edit.path[-1] not in MAXIMA:
        return False
    return isinstance(edit.before, int) and bool(edit.after > edit.before)
