"""Edit what files state about lengths, for another context length."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar, NamedTuple

from ctxextend.checkpoints.folder import CONFIG, Checkpoint
from ctxextend.json_output import not_in_json
from ctxextend.limits.generation import (
    MAXIMA,
    MINIMA,
    GenerationLimit,
    generation_limits,
    shares_positions,
)
from ctxextend.limits.statements import (
    GENERATION_CONFIG,
    MAX_LENGTH,
    MAX_NEW_TOKENS,
    MIN_LENGTH,
    MIN_NEW_TOKENS,
    PADS_TO_LONGEST,
    config_length_keys,
    stated_limits,
)
from ctxextend.positions.positions import Keys, Positions, nested

MAX_ITEMS_SHOWN = 4  # of a list in messages
MAXIMUM_OF = {MIN_LENGTH: MAX_LENGTH, MIN_NEW_TOKENS: MAX_NEW_TOKENS}


@dataclass(frozen=True)
class Edit:
    """One changed value in a JSON file."""

    file: str  # relative to the checkpoint's root
    path: Keys = field(metadata=not_in_json)
    before: Any  # None if the key was missing
    after: Any
    # Whether it is a number of tokens that texts are truncated to.
    is_limit: bool = field(default=False, metadata=not_in_json)
    reason: str = ""  # shown to the user if the change is not obvious

    json_properties: ClassVar = ("key",)

    @property
    def key(self) -> str:
        """The key path, joined with dots."""
        return ".".join(self.path)


def shown_value(value: Any) -> str:
    """Return a value for messages: of a list of factors, how many there are."""
    if isinstance(value, list) and len(value) > MAX_ITEMS_SHOWN:
        return f"[{len(value)} numbers, {min(value):.4g} to {max(value):.4g}]"
    if isinstance(value, dict):
        items = (f"{key!r}: {_shown_item(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    return str(value)


def _shown_item(value: Any) -> str:
    """Return a value inside another for messages: text with quotes."""
    return repr(value) if isinstance(value, str) else shown_value(value)


class LengthChange(NamedTuple):
    """A planned change of a context length, in usable positions."""

    location: Positions
    before: int
    after: int


# Keys of the context length in config.json


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


def following_value(change: LengthChange, value: int) -> int | None:
    """Return the new value of a key that agrees with the old length; None if it does not.

    The key counts what it counted before. If a table with 2 reserved rows goes from 512 to 1024
    positions, 512 becomes 1024, and 514, which counts the reserved rows, becomes 1026. Without
    rows, a key that states the length before scaling goes on stating it.
    """
    location, before, after = change
    if value not in location.values_of_length(before):
        return None
    if before == after:
        return value
    if value == before:
        return after
    return location.key_value(after)


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
            yield Edit(file=file, path=(*path, key), before=stated[key], after=tokens)


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


def is_of_generation(edit: Edit) -> bool:
    """Whether an edit changes a limit of generated texts, and not the one in tokenizer.json."""
    name = PurePosixPath(edit.file).name
    return name in (GENERATION_CONFIG, CONFIG) and edit.path[-1] in (*MAXIMA, *MINIMA)


def raises_generation_limit(edit: Edit) -> bool:
    """Whether an edit raises a maximum of generated texts."""
    if not is_of_generation(edit) or edit.path[-1] not in MAXIMA:
        return False
    return isinstance(edit.before, int) and bool(edit.after > edit.before)
