"""All length limits in a checkpoint: what each states, who uses it, and whether it agrees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ctxextend.checkpoint.filenames import PARAMS_FILE
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.safetensors_file import TensorFile
from ctxextend.checkpoint.weights import layer_pattern
from ctxextend.inspection.inspection_result import NOT_SET, Limit
from ctxextend.limits.statements import (
    GENERATE,
    MAX_NEW_TOKENS,
    OLD_PIPELINES,
    SENTENCE_TRANSFORMERS,
    TRANSFORMERS,
    VLLM,
    GenerationLimit,
    StatedLimit,
    config_length_keys,
    generating_table,
    generation_limits,
    may_take,
    params_lengths,
    readers,
    sentence_config,
    stated_limits,
)
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.opening.own_code import resizable_ref
from ctxextend.positions.facts import Buffer
from ctxextend.positions.position_report import PositionReport
from ctxextend.positions.positions import Keys, nested

UNUSED = "none"  # no library uses a limit
NOT_USED = "not used by any library"


@dataclass(frozen=True)
class LongerInputs:
    """What happens to inputs of more tokens than a model has positions, if nothing cuts them."""

    beyond: str  # in one word or two; see `inspection_result.LibraryLimit`
    effect: str  # as a clause after "inputs of more than 512 tokens"


FAIL = LongerInputs(beyond="fails", effect="fail")
SHARE_LAST_POSITION = LongerInputs(beyond="last position", effect="share the last position")
GET_COMPUTED_ROWS = LongerInputs(beyond="more rows", effect="get computed rows")
REACH_UNTRAINED_ANGLES = LongerInputs(
    beyond="untrained", effect="reach angles that were never trained"
)
RUN_AT_ANY_LENGTH = LongerInputs(beyond="any length", effect="run as well")

NOT_LOADED_LIMIT = "the model does not load"


def find_limits(model: OpenedModel, tables: Sequence[PositionReport]) -> tuple[Limit, ...]:
    """Return all length limits, those in the config first."""
    limits = [*_limits_of_own_keys(model, tables), *_limits_of_other_keys(model, tables)]
    limits += _limits_of_params(model, tables)
    for table in tables:
        if table.location.weights_file:
            limits.append(_limit_of_rows(model, table))
        limits += _buffer_limits(model.checkpoint, table)
    for tokenizer, table in tables_by_tokenizer(tables).items():
        for stated in stated_limits(model.checkpoint, tokenizer):
            limits.append(_side_file_limit(model.checkpoint, stated, table))
    limits += _generation_limits(model, tables)
    return tuple(limits)


def _limit_of_rows(model: OpenedModel, table: PositionReport) -> Limit:
    """Return the limit that the rows of a stored table set."""
    return Limit(
        file=table.location.weights_file,
        key=table.name,
        value=table.location.rows,
        tokens=table.positions,
        used_by=model.checkpoint.engine or TRANSFORMERS,
        table=table.name,
    )


def width_limits(checkpoint: Checkpoint, tables: Sequence[PositionReport]) -> Iterator[Limit]:
    """Yield a limit for each config key that states another width than its stored table has.

    No resize fixes it.
    """
    for table in tables:
        stated = table.location.stated_width() if table.location.weights_file else None
        if stated is None:
            continue
        key, width = stated
        if width != table.location.hidden_size:
            yield Limit(
                file=checkpoint.config_file,
                key=key,
                value=width,
                tokens=None,
                used_by=checkpoint.engine or TRANSFORMERS,
                table=table.name,
                reason=f"{table.name} has {table.location.hidden_size} columns: {NOT_LOADED_LIMIT}",
                is_blocking=True,
                expected_width=table.location.hidden_size,
            )


def tables_by_tokenizer(tables: Sequence[PositionReport]) -> dict[str, PositionReport]:
    """Return the first table that the tokens of each tokenizer are fed to, by its folder."""
    first_tables = dict[str, PositionReport]()
    for table in tables:
        if table.location.tokenizer is not None:
            first_tables.setdefault(table.location.tokenizer, table)
    return first_tables


# Keys in the config


def _limits_of_own_keys(model: OpenedModel, tables: Sequence[PositionReport]) -> list[Limit]:
    """Return the limits that a type's own keys state, one for each key.

    All tables that share a key must agree with it, so a disagreement with any of them is returned.
    """
    if not model.checkpoint.config:
        return []
    limits = list[Limit]()
    for table in tables:
        limits += _limits_of_length_paths(model, table)
        default = table.location.family.defaults.get(table.location.config_key)
        if default is not None and not _states_length(table):
            limits.append(_default_limit(model, default, table))
        limits += _following_key_limits(model, table)
    return [_last_that_disagrees(same_key) for same_key in _group_by_key(limits)]


def _limits_of_other_keys(model: OpenedModel, tables: Sequence[PositionReport]) -> list[Limit]:
    """Return the limits of keys that no table owns, one for each key.

    Such a key need agree with only one table, so an agreement with any of them is returned.
    """
    limits = list[Limit]()
    for table in tables:
        for path, value in config_length_keys(table.location):
            limits.append(_other_key_limit(model, table, path, value))
    return [_last_that_agrees(same_key) for same_key in _group_by_key(limits)]


def _limits_of_params(model: OpenedModel, tables: Sequence[PositionReport]) -> Iterator[Limit]:
    """Yield the lengths in Mistral's params.json, which vLLM reads before config.json."""
    generating = generating_table(model.tables)
    for table in tables:
        if generating is None or table.name != generating.name:
            continue
        for key, value in params_lengths(model.checkpoint).items():
            tokens = table.positions
            reason = ""
            if value not in (table.positions, table.key_value):
                tokens = value
                reason = _why_other_key_disagrees(table, (VLLM,), value)
            yield Limit(
                file=PARAMS_FILE,
                key=key,
                value=value,
                tokens=tokens,
                used_by=VLLM,
                table=table.name,
                reason=reason,
            )


def _group_by_key(limits: Sequence[Limit]) -> list[list[Limit]]:
    """Return the limits of each key, which refer to several tables, in order."""
    groups = dict[str, list[Limit]]()
    for limit in limits:
        groups.setdefault(limit.key, []).append(limit)
    return list(groups.values())


def _last_that_disagrees(limits: Sequence[Limit]) -> Limit:
    """Return the last limit that disagrees with its table; the first limit if all agree."""
    for limit in reversed(limits):
        if not limit.agrees:
            return limit
    return limits[0]


def _last_that_agrees(limits: Sequence[Limit]) -> Limit:
    """Return the last limit that agrees with its table; the first limit if all disagree."""
    for limit in reversed(limits):
        if limit.agrees:
            return limit
    return limits[0]


def _limits_of_length_paths(model: OpenedModel, table: PositionReport) -> Iterator[Limit]:
    """Yield the limits of the paths that state a table's length; transformers reads one of them."""
    location = table.location
    for path in location.length_paths:
        value = nested(model.checkpoint.config, path)
        if value is not None:
            if path in location.engine_paths and type(value) is int:
                yield _other_key_limit(model, table, path, value)
                continue
            library = _reader_of_length(model, table) if path == location.path_in_use else UNUSED
            yield _own_key_limit(model, ".".join(path), value, table, library)


def _default_limit(model: OpenedModel, default: int, table: PositionReport) -> Limit:
    """Return the limit of a key that is missing, so that transformers uses its default.

    A default that agrees is not shown: the value is None, as the key is not set. A default that
    disagrees is shown as the value, since it needs to be corrected.
    """
    key = f"{table.location.length_key}{NOT_SET}"
    limit = _own_key_limit(model, key, default, table, _reader_of_length(model, table))
    if limit.agrees:
        return replace(limit, value=None)
    return limit


def _following_key_limits(model: OpenedModel, table: PositionReport) -> Iterator[Limit]:
    """Yield the limits of a family's keys that follow the length of a table."""
    for key in model.architecture.family.limits:
        value = model.checkpoint.config.get(key)
        if isinstance(value, int):
            yield Limit(
                file=model.checkpoint.config_file,
                key=key,
                value=value,
                tokens=value,
                used_by=TRANSFORMERS,
                table=table.name,
                reason=_consequence(value, table),
            )


def _reader_of_length(model: OpenedModel, table: PositionReport) -> str:
    """Return the library that uses the length in the config: none if any length runs."""
    if model.checkpoint.engine:
        return model.checkpoint.engine
    if longer_inputs(table) is RUN_AT_ANY_LENGTH:
        return UNUSED
    return TRANSFORMERS


def _own_key_limit(
    model: OpenedModel, key: str, value: Any, table: PositionReport, library: str
) -> Limit:
    """Return the limit that a value of a type's own key sets; `value` may be any JSON value."""
    agrees = type(value) is int and value == table.key_value
    is_used = library != UNUSED
    reason = ""
    if not agrees:
        reason = _why_own_key_disagrees(table, is_used=is_used)
    return Limit(
        file=model.checkpoint.config_file,
        key=key,
        value=_json_value(value),
        tokens=_tokens_of_own_key(value, table),
        used_by=library,
        table=table.name,
        reason=reason,
        is_blocking=not agrees and is_used and bool(table.location.rows),
    )


def _tokens_of_own_key(value: Any, table: PositionReport) -> int | None:
    """Return how many tokens a value of a type's own key stands for; None if it is not an integer.

    The value that fits the table stands for all positions, even if it is a length before scaling.
    """
    if type(value) is not int:
        return None
    if value == table.key_value:
        return table.positions
    location = table.location
    return location.length_of_key(value)


def _why_own_key_disagrees(table: PositionReport, *, is_used: bool) -> str:
    """Say what a value of a type's own key does that is not the one that fits the table."""
    location = table.location
    if not is_used:
        return NOT_USED
    if not location.rows:
        return f"the settings serve {table.positions} tokens, but engines read this length"
    return f"{table.name} has {table.positions + location.other_rows} rows: {NOT_LOADED_LIMIT}"


def _json_value(value: Any) -> Any:
    """Return an integer, a boolean or None as it is, and any other value as text.

    Floats are text too: 1e400 is read as infinity, which JSON cannot represent.
    """
    if value is None or isinstance(value, int):
        return value
    return str(value)


def _other_key_limit(model: OpenedModel, table: PositionReport, path: Keys, value: int) -> Limit:
    """Return the limit of a key that no table owns, compared with one table.

    Like the table's own key, it agrees with the positions and with a length before scaling.
    """
    programs = readers(table.location, path)
    agrees = value in (table.positions, table.key_value)
    tokens = value
    reason = ""
    remark = ""
    if agrees:
        tokens = table.positions
    else:
        reason = _why_other_key_disagrees(table, programs, value)
        if value > table.positions and _may_be_trained_longer(table):
            remark = _raise_limits_remark(model, value)
    return Limit(
        file=model.checkpoint.config_file,
        key=".".join(path),
        value=value,
        tokens=tokens,
        used_by=", ".join(programs) or UNUSED,
        table=table.name,
        reason=reason,
        remark=remark,
    )


def _why_other_key_disagrees(table: PositionReport, programs: Sequence[str], value: int) -> str:
    """Say what a table's own key states, and which programs may take another value instead."""
    own_key = f"{table.location.length_key} is {table.key_value}"
    if not programs:
        return own_key
    return f"{own_key}, and {may_take(programs, value)}"


def _raise_limits_remark(model: OpenedModel, length: int) -> str:
    """Return the remark that a model may have been trained at a length, and what to do then."""
    command = resizable_ref(model).resize_command(to=length)
    return (
        f"if the model was trained at {length} tokens, raise its limits: {command} --method limits"
    )


def _may_be_trained_longer(table: PositionReport) -> bool:
    """Whether rotary positions may have been trained at a longer length that another key states."""
    if not table.location.methods or table.location.trained_length is not None:
        return False
    return table.location.lengths.served == table.location.lengths.first_trained


# Limits of generated texts


def _generation_limits(model: OpenedModel, tables: Sequence[PositionReport]) -> Iterator[Limit]:
    """Yield the limits of generated texts, which count the positions of one table."""
    generating = generating_table(model.tables)
    if generating is None:
        return
    limits = generation_limits(model.checkpoint)
    for table in tables:
        if table.name == generating.name:
            for limit in limits:
                yield _generation_limit(limit, table)


def _generation_limit(limit: GenerationLimit, table: PositionReport) -> Limit:
    library = UNUSED
    if limit.is_used:
        library = GENERATE
    elif limit.is_of_task:
        library = OLD_PIPELINES
    reason = ""
    if limit.tokens > table.positions and not table.location.needs_no_limit:
        reason = _consequence(limit.tokens, table)
    remark = ""
    if limit.is_deciding and limit.tokens < table.positions:
        remark = _early_stop(limit, table.positions)
    return Limit(
        file=limit.file,
        key=".".join(limit.path),
        value=limit.tokens,
        tokens=limit.tokens,
        used_by=library,
        table=table.name,
        reason=reason,
        remark=remark,
    )


def _early_stop(limit: GenerationLimit, positions: int) -> str:
    """Return the remark that `generate()` stops before the context length."""
    if limit.key == MAX_NEW_TOKENS:
        return (
            f"generate() stops after {limit.tokens} new tokens; the context length is {positions}"
        )
    return f"generate() stops at {limit.tokens} tokens, before the context length of {positions}"


# Buffers, and files of tokenizers and of sentence-transformers


def _buffer_limits(checkpoint: Checkpoint, table: PositionReport) -> list[Limit]:
    """Return the limits that position buffers in the weights set; equal ones of layers once."""
    limits = list[Limit]()
    for name, file in checkpoint.weights.file_of.items():
        buffer = table.location.buffer(name)
        has_length = file.entries[name].shape != ()  # masked_bias of old files is a scalar
        if buffer is not None and has_length:
            limits.append(_buffer_limit(checkpoint, table, name, file, buffer))
    return list(dict.fromkeys(limits))


def _buffer_limit(
    checkpoint: Checkpoint, table: PositionReport, name: str, file: TensorFile, buffer: Buffer
) -> Limit:
    """Return the limit that a position buffer sets, whose length is as the config key counts."""
    length = _buffer_length(buffer, file.entries[name].shape)
    reserved_in_key = table.key_value - table.positions
    key = name
    if "*" in buffer.name:
        key = layer_pattern(name)
    used_by = TRANSFORMERS
    if not buffer.is_kept:
        used_by = f"old {TRANSFORMERS}"
    reason = ""
    if length != table.key_value:
        reason = f"{table.name} has {table.positions + table.location.other_rows} rows"
    return Limit(
        file=checkpoint.relative(file),
        key=key,
        value=length,
        tokens=length - reserved_in_key,
        used_by=used_by,
        table=table.name,
        reason=reason,
    )


def _buffer_length(buffer: Buffer, shape: tuple[int, ...]) -> int:
    """Return how many positions a buffer has: rows come first, other positions last."""
    if buffer.content == "rows":
        return shape[0]
    return shape[-1]


def _side_file_limit(checkpoint: Checkpoint, stated: StatedLimit, table: PositionReport) -> Limit:
    """Return the limit that a file of a tokenizer or of sentence-transformers states."""
    used_by = ", ".join(stated.statement.read_by)
    if used_by == SENTENCE_TRANSFORMERS and stated.file != sentence_config(checkpoint):
        used_by = UNUSED
    return Limit(
        file=stated.file,
        key=".".join(stated.path),
        value=_side_file_value(stated),
        tokens=stated.tokens,
        used_by=used_by,
        table=table.name,
        reason=_side_file_reason(stated, table, used_by),
    )


def _side_file_value(stated: StatedLimit) -> Any:
    """Return the value to show: a padding strategy with a length, ``{"Fixed": 512}``, as it is."""
    has_length = stated.tokens is not None
    if isinstance(stated.value, dict) and has_length:
        return stated.value
    return _json_value(stated.value)


def _side_file_reason(stated: StatedLimit, table: PositionReport, used_by: str) -> str:
    """Say what a limit in a side file does that disagrees with a table; empty if it agrees."""
    tokens = stated.tokens
    is_padding = stated.statement.meaning == "padding"
    is_shorter = tokens is not None and tokens < table.positions
    if is_padding and tokens is None:
        return ""  # texts are not padded to a length
    if is_padding and is_shorter:
        return ""  # padding to a shorter length cuts no text
    if is_shorter and table.location.family.padding_effect:
        return ""  # the limit is the padding length too, and so stays the old one
    reason = _consequence(tokens, table)
    if not reason:
        return ""
    if used_by == UNUSED:
        return NOT_USED
    if is_padding:
        return f"all inputs are padded to {tokens} tokens: {reason}"
    return reason


# What limits do


def _consequence(limit: int | None, table: PositionReport) -> str:
    """Describe what a limit of inputs does; empty if it agrees with the positions.

    Args:
        limit: The limit in tokens; None if inputs are not truncated.
        table: The positions.
    """
    if limit == table.positions:
        return ""
    if _has_no_length(table):
        return ""  # no limit can disagree
    if limit is None:
        return _effect_of_no_limit(table)
    if limit < table.positions:
        return f"inputs are truncated to {limit} tokens, but {_count_of_positions(table)}"
    return _effect_of_high_limit(limit, table)


def _effect_of_no_limit(table: PositionReport) -> str:
    """Say what happens to inputs that are not truncated; empty if they run."""
    longer = longer_inputs(table)
    if longer in (REACH_UNTRAINED_ANGLES, RUN_AT_ANY_LENGTH):
        return ""
    return f"inputs of more than {table.positions} tokens are not truncated and {longer.effect}"


def _effect_of_high_limit(limit: int, table: PositionReport) -> str:
    """Say what happens to inputs between the number of positions and a higher limit."""
    positions = table.positions
    served = table.location.lengths.served
    is_served = limit <= served
    if is_served:
        key = table.location.effective_key
        return f"the settings serve {served} tokens, but engines read {positions} from {key}"
    inputs = f"inputs of {positions + 1} to {limit} tokens"
    return f"{_count_of_positions(table)}: {inputs} {longer_inputs(table).effect}"


def _count_of_positions(table: PositionReport) -> str:
    return f"the {table.location.owner} has {table.positions} positions"


def _states_length(table: PositionReport) -> bool:
    """Whether the config states the length of a table, so that no default applies."""
    location = table.location
    return location.stated(location.effective_key) is not None


def _has_no_length(table: PositionReport) -> bool:
    """Whether positions run at any length, and the config states none for them."""
    return longer_inputs(table) is RUN_AT_ANY_LENGTH and not _states_length(table)


def longer_inputs(table: PositionReport) -> LongerInputs:
    """Return what happens to inputs of more tokens than positions, if nothing cuts them."""
    location = table.location
    match location.longer_inputs:
        case "fail":
            return FAIL
        case "share the last position":
            return SHARE_LAST_POSITION
        case "get computed rows":
            return GET_COMPUTED_ROWS
        case "reach untrained angles":
            return REACH_UNTRAINED_ANGLES
    return RUN_AT_ANY_LENGTH
