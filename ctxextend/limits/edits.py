"""Edit what the files of a checkpoint state about lengths, for other positions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.json_edit import Edit
from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import Architecture
from ctxextend.gguf.gguf_edits import metadata_edits
from ctxextend.limits.generation import (
    MAXIMA,
    GenerationLimit,
    generating_table,
    generation_limits,
    shares_positions,
)
from ctxextend.limits.params_edits import params_edits
from ctxextend.limits.statements import (
    MAX_LENGTH,
    MAX_NEW_TOKENS,
    MIN_LENGTH,
    MIN_NEW_TOKENS,
    PADS_TO_LONGEST,
    LengthChange,
    config_length_keys,
    following_value,
    stated_limits,
)
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.opening.own_code import rewrites_model_type
from ctxextend.positions.change import Change
from ctxextend.positions.positions import ConfigValues, Keys, nested

MAXIMUM_OF = {MIN_LENGTH: MAX_LENGTH, MIN_NEW_TOKENS: MAX_NEW_TOKENS}


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
    if checkpoint.is_gguf:
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
    if checkpoint.params is not None:
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
            longer_fail=change.positions.longer_inputs_fail,
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
    lengths = length_changes(config, architecture, changes)
    others = length_key_changes(lengths, fix_limits=fix_limits)
    return values | others | values  # a copy of rotary settings has the length that they need


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
            length = other.length_of_key(stated)
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


def length_key_changes(lengths: Sequence[LengthChange], *, fix_limits: bool) -> dict[Keys, int]:
    """Return the new values of keys in config.json that state a context length.

    - A key that agrees with the old length of any table follows this table.
    - A key that agrees with none is wrong: with `fix_limits` it states the new number of positions,
      else it stays.
    """
    following = dict[Keys, int]()
    corrected = dict[Keys, int]()
    for change in lengths:
        for path, value in config_length_keys(change.location):
            new_value = following_value(change, value)
            if new_value is None:
                corrected[path] = change.after
            else:
                following[path] = new_value
    values = following
    if fix_limits:
        # A key can follow one table and disagree with others: then it is not wrong.
        values = {**corrected, **following}
    config = lengths[0].location.config if lengths else {}
    return {path: value for path, value in values.items() if nested(config, path) != value}


# Limits of inputs


class LimitChange(NamedTuple):
    """A planned change of the limits of inputs from one context length to another, in tokens."""

    before: int
    after: int
    fix_limits: bool  # whether all limits must state the new length, even if it is the old one
    # Whether padding to a fixed length stays such, with the new length; else it becomes padding to
    # the longest text.
    keeps_fixed_padding: bool
    # Whether longer inputs fail. If so, a limit is added to a tokenizer without one.
    longer_fail: bool = True


def limit_edits(checkpoint: Checkpoint, tokenizer: str, change: LimitChange) -> tuple[Edit, ...]:
    """Return the edits that set the limits in tokenizer and side files to another length.

    A longer length, or `fix_limits`, sets every limit; a shorter one lowers the limits above it,
    and sets those that are missing.

    Args:
        checkpoint: Its files state the limits.
        tokenizer: The tokenizer's folder if it has a separate one, else empty.
        change: The lengths, and what to do with the limits.
    """
    length = change.after
    if change.before == length and not change.fix_limits:
        return ()
    only_lowers = length < change.before and not change.fix_limits
    edits = list[Edit]()
    for limit in stated_limits(checkpoint, tokenizer):
        if only_lowers and isinstance(limit.number, int | float) and limit.number <= length:
            continue
        after: Any = length
        reason = ""
        is_padding = limit.statement.meaning == "padding"
        if is_padding and change.keeps_fixed_padding:
            after = {"Fixed": length}
        elif is_padding:
            after = PADS_TO_LONGEST
            slow = "would make short texts as slow as long ones"
            reason = f"padding every text to {length} tokens {slow}"
        elif limit.statement.should_be_stated and limit.tokens is None:
            if not change.longer_fail:
                continue
            reason = "no limit was stated, and longer texts would fail"
        if limit.value != after:
            edit = Edit(
                file=limit.file,
                path=limit.path,
                before=limit.value,
                after=after,
                is_limit=not is_padding,
                reason=reason,
            )
            edits.append(edit)
    return tuple(edits)


# Limits of generated texts


def generation_edits(
    checkpoint: Checkpoint, change: LengthChange, *, fix_limits: bool
) -> Iterator[Edit]:
    """Yield the edits of generation limits for another length of the table that generates.

    Limits that would fail are lowered; `fix_limits` raises maxima.
    """
    # By file and object: a maximum and a minimum limit each other if one object states both.
    groups = dict[tuple[str, Keys], list[GenerationLimit]]()
    for limit in generation_limits(checkpoint):
        groups.setdefault((limit.file, limit.path[:-1]), []).append(limit)
    for (file, path), limits in groups.items():
        stated = {limit.key: limit.tokens for limit in limits}
        new_values = lowered_limits(stated, change)
        if fix_limits:
            maxima = {limit.key: limit.tokens for limit in limits if limit.may_rise}
            new_values |= _raised_limits(maxima, change)
        for key, tokens in new_values.items():
            yield Edit(
                file=file,
                path=(*path, key),
                before=stated[key],
                after=tokens,
                is_generation=True,
            )


def lowered_limits(stated: Mapping[str, int], change: LengthChange) -> dict[str, int]:
    """Return lower values of the limits that would fail at another context length.

    A minimum that is above the context, or above a maximum that is lowered, becomes this maximum.
    From 1024 to 512 tokens:

    - A minimum of 900 becomes 512 without a maximum, and 400 next to a maximum of 400.
    - A minimum of 300 becomes 256 if its maximum of new tokens becomes 256.
    """
    after = change.after
    lowered = dict[str, int]()
    if change.location.needs_no_limit:
        return lowered
    if MAX_LENGTH in stated and stated[MAX_LENGTH] > after:
        lowered[MAX_LENGTH] = after
    if MAX_NEW_TOKENS in stated and stated[MAX_NEW_TOKENS] > after:
        lowered[MAX_NEW_TOKENS] = _lowered_new_tokens(stated[MAX_NEW_TOKENS], change)
    for minimum, maximum in MAXIMUM_OF.items():
        highest_that_runs = lowered.get(maximum, after)
        if minimum in stated and stated[minimum] > highest_that_runs:
            maximum_before = stated.get(maximum, after)
            lowered[minimum] = lowered.get(maximum, maximum_before)
    return lowered


def _lowered_new_tokens(new_tokens: int, change: LengthChange) -> int:
    """Return a maximum of new tokens that fits a shorter context.

    The prompt keeps its positions, but at most half of all. From 1024 to 512 tokens:

    - 900 new tokens left 124 to the prompt, so that 388 new tokens remain.
    - 600 new tokens left 424 to the prompt, which is more than half: 256 remain.
    - 1024 or more left none. If the new tokens use up the same positions as the prompt, 256 remain;
      if an encoder reads the prompt, 512.
    """
    half = max(change.after // 2, 1)
    prompt = max(change.before - new_tokens, 0)
    if prompt == 0 and shares_positions(change.location):
        return half
    return max(change.after - prompt, half)


def _raised_limits(stated: Mapping[str, int], change: LengthChange) -> dict[str, int]:
    """Return higher values of the maxima that are below a longer context length.

    The prompt keeps its positions: from 512 to 1024 tokens, 500 new tokens become 1012. At the same
    length, the maximum of new tokens stays.
    """
    _, before, after = change
    raised = dict[str, int]()
    if MAX_LENGTH in stated and stated[MAX_LENGTH] < after:
        raised[MAX_LENGTH] = after
    if MAX_NEW_TOKENS in stated and stated[MAX_NEW_TOKENS] < after and before < after:
        longer = stated[MAX_NEW_TOKENS] + after - before
        raised[MAX_NEW_TOKENS] = min(longer, after)
    return raised


def raises_generation_limit(edit: Edit) -> bool:
    """Whether an edit raises a maximum of generated texts."""
    if not edit.is_generation or edit.path[-1] not in MAXIMA:
        return False
    return isinstance(edit.before, int) and bool(edit.after > edit.before)
