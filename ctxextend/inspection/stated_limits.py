"""All length limits in a checkpoint: what each states, who uses it, and whether it agrees."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ctxextend.checkpoint.checkpoint import Checkpoint, layer_pattern
from ctxextend.checkpoint.filenames import PARAMS_FILE
from ctxextend.inspection.inspection_result import NOT_SET, Limit
from ctxextend.limits.statements import (
    GENERATE,
    MAX_NEW_TOKENS,
    OLD_PIPELINES,
    SENTENCE_TRANSFORMERS,
    TRANSFORMERS,
    VLLM,
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
from ctxextend.positions.position_report import PositionReport
from ctxextend.positions.positions import Keys, Positions, nested

UNUSED = "none"  # no library uses a limit
NOT_USED = "not used by any library"
NOT_LOADED_LIMIT = "the model does not load"


class LongerInputs(NamedTuple):
    """What happens to inputs of more tokens than a model has positions, if nothing cuts them."""

    beyond: str  # in one word or two; see `inspection_result.LibraryLimit`
    effect: str  # as a clause after "inputs of more than 512 tokens"


RUN_AT_ANY_LENGTH = LongerInputs(beyond="any length", effect="run as well")
REACH_UNTRAINED_ANGLES = LongerInputs(
    beyond="untrained", effect="reach angles that were never trained"
)
# By `Positions.longer_inputs`; others run at any length.
LONGER_INPUTS = {
    "fail": LongerInputs(beyond="fails", effect="fail"),
    "share the last position": LongerInputs(
        beyond="last position", effect="share the last position"
    ),
    "get computed rows": LongerInputs(beyond="more rows", effect="get computed rows"),
    "reach untrained angles": REACH_UNTRAINED_ANGLES,
}


def find_limits(model: OpenedModel, tables: Sequence[PositionReport]) -> tuple[Limit, ...]:
    """Return all length limits, those in the config first."""
    checkpoint = model.checkpoint
    own = list[Limit]()
    other = list[Limit]()
    for table in tables:
        if checkpoint.config:
            own += _own_key_limits(model, table)
        for path, value in config_length_keys(table.location):
            other.append(_other_key_limit(model, table, path, value))
    # All tables that share a key of their type must agree with it; any other key need agree with
    # only one table.
    limits = [*_one_per_key(own, agrees=False), *_one_per_key(other, agrees=True)]
    generating = generating_table(model.tables)
    of_generating = [table for table in tables if generating and table.name == generating.name]
    for table in of_generating:
        limits += _params_limits(checkpoint, table)
    for table in tables:
        if table.location.weights_file:
            rows = Limit(
                file=table.location.weights_file,
                key=table.name,
                value=table.location.rows,
                tokens=table.positions,
                used_by=checkpoint.engine or TRANSFORMERS,
                table=table.name,
            )
            limits.append(rows)
        limits += dict.fromkeys(_buffer_limits(checkpoint, table))  # equal ones of layers once
    for tokenizer, table in tables_by_tokenizer(tables).items():
        limits += _side_file_limits(checkpoint, tokenizer, table)
    for table in of_generating:
        limits += _generation_limits(checkpoint, table)
    return tuple(limits)


def tables_by_tokenizer(tables: Sequence[PositionReport]) -> dict[str, PositionReport]:
    """Return the first table that the tokens of each tokenizer are fed to, by its folder."""
    first_tables = dict[str, PositionReport]()
    for table in tables:
        if table.location.tokenizer is not None:
            first_tables.setdefault(table.location.tokenizer, table)
    return first_tables


# Keys in the config


def _one_per_key(limits: Iterable[Limit], *, agrees: bool) -> list[Limit]:
    """Return the last limit of each key that agrees with its table, or not; else the first."""
    chosen = dict[str, Limit]()
    for limit in limits:
        if limit.key not in chosen or limit.agrees is agrees:
            chosen[limit.key] = limit
    return list(chosen.values())


def _own_key_limits(model: OpenedModel, table: PositionReport) -> Iterator[Limit]:
    """Yield the limits that keys of the model type state, or transformers' default if none does.

    transformers reads one of the paths of the length, and none if any length runs.
    """
    config = model.checkpoint.config
    location = table.location
    library = model.checkpoint.engine or TRANSFORMERS
    if model.checkpoint.engine is None and longer_inputs(table) is RUN_AT_ANY_LENGTH:
        library = UNUSED
    for path in location.length_paths:
        value = nested(config, path)
        if path in location.engine_paths and type(value) is int:
            yield _other_key_limit(model, table, path, value)
        elif value is not None:
            used_by = library if path == location.path_in_use else UNUSED
            yield _own_key_limit(model, table, ".".join(path), value, used_by)
    default = location.family.defaults.get(location.config_key)
    if default is not None and location.stated(location.effective_key) is None:
        yield _own_key_limit(model, table, f"{location.length_key}{NOT_SET}", default, library)
    for key in model.architecture.family.limits:
        value = config.get(key)
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


def _own_key_limit(
    model: OpenedModel, table: PositionReport, key: str, value: Any, used_by: str
) -> Limit:
    """Return the limit that a value of a type's own key sets; `value` may be any JSON value.

    The value that fits the table stands for all positions, even if it is a length before scaling. A
    default is only shown if it disagrees.
    """
    location = table.location
    tokens = location.length_of_key(value) if type(value) is int else None
    agrees = tokens is not None and value == table.key_value
    is_blocking = not agrees and used_by != UNUSED and location.rows > 0
    shown = _json_value(value)
    reason = ""
    if agrees:
        tokens = table.positions
        if key.endswith(NOT_SET):
            shown = None
    elif used_by == UNUSED:
        reason = NOT_USED
    elif is_blocking:
        reason = f"{table.name} has {table.positions + location.other_rows} rows"
        reason += f": {NOT_LOADED_LIMIT}"
    else:
        reason = f"the settings serve {table.positions} tokens, but engines read this length"
    return Limit(
        file=model.checkpoint.config_file,
        key=key,
        value=shown,
        tokens=tokens,
        used_by=used_by,
        table=table.name,
        reason=reason,
        is_blocking=is_blocking,
    )


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
    location = table.location
    programs = readers(location, path)
    agrees = value in (table.positions, table.key_value)
    remark = ""
    if not agrees and value > table.positions and _is_unscaled(location):
        command = resizable_ref(model).resize_command(to=value)
        raised = f"raise its limits: {command} --method limits"
        remark = f"if the model was trained at {value} tokens, {raised}"
    return Limit(
        file=model.checkpoint.config_file,
        key=".".join(path),
        value=value,
        tokens=table.positions if agrees else value,
        used_by=", ".join(programs) or UNUSED,
        table=table.name,
        reason="" if agrees else _other_length(table, programs, value),
        remark=remark,
    )


def _is_unscaled(location: Positions) -> bool:
    """Whether positions are rotary ones that may have been trained at a longer length."""
    if not location.methods or location.trained_length is not None:
        return False
    return location.lengths.served == location.lengths.first_trained


def _other_length(table: PositionReport, programs: Sequence[str], value: int) -> str:
    """Say what a table's own key states, and which programs may take another value instead."""
    own_key = f"{table.location.length_key} is {table.key_value}"
    if not programs:
        return own_key
    return f"{own_key}, and {may_take(programs, value)}"


def _params_limits(checkpoint: Checkpoint, table: PositionReport) -> Iterator[Limit]:
    """Yield the lengths in Mistral's params.json, which vLLM reads before config.json."""
    for key, value in params_lengths(checkpoint).items():
        agrees = value in (table.positions, table.key_value)
        yield Limit(
            file=PARAMS_FILE,
            key=key,
            value=value,
            tokens=table.positions if agrees else value,
            used_by=VLLM,
            table=table.name,
            reason="" if agrees else _other_length(table, (VLLM,), value),
        )


# Limits of generated texts


def _generation_limits(checkpoint: Checkpoint, table: PositionReport) -> Iterator[Limit]:
    """Yield the limits of generated texts, which count the positions of one table."""
    for limit in generation_limits(checkpoint):
        used_by = UNUSED
        if limit.is_used:
            used_by = GENERATE
        elif limit.is_of_task:
            used_by = OLD_PIPELINES
        reason = ""
        if limit.tokens > table.positions and not table.location.needs_no_limit:
            reason = _consequence(limit.tokens, table)
        remark = ""
        if limit.is_deciding and limit.tokens < table.positions:
            stop = f"generate() stops at {limit.tokens} tokens, before the context length of"
            if limit.key == MAX_NEW_TOKENS:
                stop = f"generate() stops after {limit.tokens} new tokens; the context length is"
            remark = f"{stop} {table.positions}"
        yield Limit(
            file=limit.file,
            key=".".join(limit.path),
            value=limit.tokens,
            tokens=limit.tokens,
            used_by=used_by,
            table=table.name,
            reason=reason,
            remark=remark,
        )


# Buffers, and files of tokenizers and of sentence-transformers


def _buffer_limits(checkpoint: Checkpoint, table: PositionReport) -> Iterator[Limit]:
    """Yield the limits that position buffers in the weights set; they count as the config key."""
    for name, file in checkpoint.weights.file_of.items():
        buffer = table.location.buffer(name)
        shape = file.entries[name].shape
        if buffer is None or not shape:  # masked_bias of old files is a scalar
            continue
        length = shape[0] if buffer.content == "rows" else shape[-1]
        reason = ""
        if length != table.key_value:
            reason = f"{table.name} has {table.positions + table.location.other_rows} rows"
        yield Limit(
            file=checkpoint.relative(file),
            key=layer_pattern(name) if "*" in buffer.name else name,
            value=length,
            tokens=length - (table.key_value - table.positions),
            used_by=TRANSFORMERS if buffer.is_kept else f"old {TRANSFORMERS}",
            table=table.name,
            reason=reason,
        )


def _side_file_limits(
    checkpoint: Checkpoint, tokenizer: str, table: PositionReport
) -> Iterator[Limit]:
    """Yield the limits that files of a tokenizer or of sentence-transformers state.

    A padding strategy with a length, ``{"Fixed": 512}``, is shown as it is.
    """
    for stated in stated_limits(checkpoint, tokenizer):
        used_by = ", ".join(stated.statement.read_by)
        if used_by == SENTENCE_TRANSFORMERS and stated.file != sentence_config(checkpoint):
            used_by = UNUSED
        tokens = stated.tokens
        is_shown = isinstance(stated.value, dict) and tokens is not None
        is_padding = stated.statement.meaning == "padding"
        is_shorter = tokens is not None and tokens < table.positions
        # Padding to a shorter length, or to none, cuts no text. A shorter limit that is the padding
        # length of a model whose outputs depend on padding stays the old one.
        is_harmless = is_padding and (is_shorter or tokens is None)
        is_harmless = is_harmless or (is_shorter and bool(table.location.family.padding_effect))
        reason = "" if is_harmless else _consequence(tokens, table)
        if reason and used_by == UNUSED:
            reason = NOT_USED
        elif reason and is_padding:
            reason = f"all inputs are padded to {tokens} tokens: {reason}"
        yield Limit(
            file=stated.file,
            key=".".join(stated.path),
            value=stated.value if is_shown else _json_value(stated.value),
            tokens=tokens,
            used_by=used_by,
            table=table.name,
            reason=reason,
        )


# What limits do


def _consequence(limit: int | None, table: PositionReport) -> str:
    """Describe what a limit of inputs does; empty if it agrees with the positions.

    Args:
        limit: The limit in tokens; None if inputs are not truncated.
        table: The positions.
    """
    positions = table.positions
    location = table.location
    longer = longer_inputs(table)
    states_length = location.stated(location.effective_key) is not None
    if limit == positions or (longer is RUN_AT_ANY_LENGTH and not states_length):
        return ""
    if limit is None:
        if longer in (REACH_UNTRAINED_ANGLES, RUN_AT_ANY_LENGTH):
            return ""
        return f"inputs of more than {positions} tokens are not truncated and {longer.effect}"
    has = f"the {location.owner} has {positions} positions"
    if limit < positions:
        return f"inputs are truncated to {limit} tokens, but {has}"
    served = location.lengths.served
    if limit <= served:
        key = location.effective_key
        return f"the settings serve {served} tokens, but engines read {positions} from {key}"
    return f"{has}: inputs of {positions + 1} to {limit} tokens {longer.effect}"


def longer_inputs(table: PositionReport) -> LongerInputs:
    """Return what happens to inputs of more tokens than positions, if nothing cuts them."""
    return LONGER_INPUTS.get(table.location.longer_inputs, RUN_AT_ANY_LENGTH)
