"""All length limits in a checkpoint: what each states, who uses it, and whether it agrees."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.families.lookup import Keys, nested
from ctxextend.families.schema import ALIBI, RELATIVE, ROTARY
from ctxextend.inspection.inspection_result import Limit
from ctxextend.inspection.scheme_report import PositionReport, SchemeReport
from ctxextend.inspection.table_report import TableReport
from ctxextend.limits.config_keys import config_length_keys, may_take, readers
from ctxextend.limits.generation import (
    GenerationLimit,
    deciding_limit,
    generating_table,
    generation_limits,
    runs_beyond,
)
from ctxextend.limits.side_files import StatedLimit, sentence_config, stated_limits
from ctxextend.limits.statements import (
    GENERATE,
    MAX_NEW_TOKENS,
    OLD_PIPELINES,
    SENTENCE_TRANSFORMERS,
    TRANSFORMERS,
)
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.stated_type import resizable_ref
from ctxextend.plan.table_checks import stated_width

UNUSED = "none"  # no library uses a limit

ANY_LENGTH_RUNS = "any length"
# What happens to inputs of more tokens than positions (see `LibraryLimit`): without a table of
# rows, and as a clause.
# What happens to longer inputs, by `longer_inputs` of the positions; those that run go by scheme.
LONGER_INPUTS = {
    "fail": "fails",
    "share the last position": "last position",
    "get computed rows": "more rows",
}
BEYOND_SCHEMES = {ROTARY: "untrained", ALIBI: ANY_LENGTH_RUNS, RELATIVE: ANY_LENGTH_RUNS}
EFFECTS = {
    "last position": "share the last position",
    "more rows": "get computed rows",
    "fails": "fail",
    "untrained": "reach angles that were never trained",
    ANY_LENGTH_RUNS: "run as well",
}

NOT_LOADED_LIMIT = "the model does not load"
# Appended to a key that is missing in the config, so that transformers uses its default.
NOT_SET = " (not set)"


def find_limits(model: OpenedModel, tables: Sequence[PositionReport]) -> tuple[Limit, ...]:
    """Return all length limits, those in the config first."""
    limits = [*_limits_of_keys(model, tables), *_limits_of_other_keys(model, tables)]
    for table in tables:
        if isinstance(table, TableReport) and table.file:
            limits.append(
                Limit(
                    file=table.file,
                    key=table.name,
                    value=table.rows,
                    tokens=table.positions,
                    used_by=TRANSFORMERS,
                    table=table.name,
                )
            )
        # Equal ones of several layers once.
        limits += dict.fromkeys(_buffer_limits(model.checkpoint, table))
    for tokenizer, table in tables_by_tokenizer(tables).items():
        for stated in stated_limits(model.checkpoint, tokenizer):
            limits.append(_side_file_limit(model.checkpoint, stated, table))
    limits += _generation_limits(model, tables)
    return tuple(limits)


def width_limits(checkpoint: Checkpoint, tables: Sequence[PositionReport]) -> Iterator[Limit]:
    """Yield a limit for each config key that states another width than its stored table has.

    No resize fixes it.
    """
    if not checkpoint.has_config:
        return
    for table in tables:
        if not isinstance(table, TableReport) or not table.file:
            continue
        stated = stated_width(table.location, table.hidden_size)
        if stated is None:
            continue
        key, width = stated
        if width != table.hidden_size:
            yield Limit(
                file=checkpoint.config_file,
                key=key,
                value=width,
                tokens=None,
                used_by=TRANSFORMERS,
                table=table.name,
                reason=f"{table.name} has {table.hidden_size} columns: {NOT_LOADED_LIMIT}",
                is_blocking=True,
            )


def tables_by_tokenizer(tables: Sequence[PositionReport]) -> dict[str, PositionReport]:
    """Return the first table that the tokens of each tokenizer are fed to, by its folder."""
    first_tables = dict[str, PositionReport]()
    for table in tables:
        if table.location.tokenizer is not None:
            first_tables.setdefault(table.location.tokenizer, table)
    return first_tables


# A type's own keys in the config


def _limits_of_keys(model: OpenedModel, tables: Sequence[PositionReport]) -> list[Limit]:
    """Return the limits that a type's own keys state; if tables share a key, one that disagrees."""
    limits = dict[str, Limit]()
    if not model.checkpoint.has_config:
        return []
    for table in tables:
        for limit in _config_limits(model, table):
            if limit.key not in limits or not limit.agrees:
                limits[limit.key] = limit
    return list(limits.values())


def _config_limits(model: OpenedModel, table: PositionReport) -> Iterator[Limit]:
    config = model.checkpoint.config
    file = model.checkpoint.config_file
    location = table.location
    used_by = TRANSFORMERS
    if beyond(table) == ANY_LENGTH_RUNS:
        used_by = UNUSED
    effective_path = location.paths_of(location.effective_key)[-1]
    for path in location.length_paths:
        value = nested(config, path)
        if value is not None:
            library = used_by if path == effective_path else UNUSED
            yield _key_limit(file, ".".join(path), value, table, library)
    default = location.family.defaults.get(location.table.config_key)
    if location.stated(location.effective_key) is None and default is not None:
        yield _default_limit(file, default, table, used_by)
    for key in model.architecture.family.limits:
        value = config.get(key)
        if isinstance(value, int):
            yield Limit(
                file=file,
                key=key,
                value=value,
                tokens=value,
                used_by=TRANSFORMERS,
                table=table.name,
                reason=_consequence(value, table),
            )


def _default_limit(file: str, default: int, table: PositionReport, library: str) -> Limit:
    """Return the limit of a key that is missing, so that transformers uses its default."""
    key = f"{table.location.config_key}{NOT_SET}"
    limit = _key_limit(file, key, default, table, library)
    if limit.agrees:
        return replace(limit, value=None)
    return limit


def _key_limit(file: str, key: str, value: Any, table: PositionReport, library: str) -> Limit:
    """Return the limit that a value of a type's own key sets."""
    location = table.location
    tokens = None
    if type(value) is int:
        tokens = location.positions(location.rows(value))
    reason = ""
    is_blocking = False
    if type(value) is int and value == table.key_value:
        tokens = table.positions
    elif library == UNUSED:
        reason = "not used by any library"
    elif not location.table.has_rows:
        reason = f"the settings serve {table.positions} tokens, but engines read this length"
    else:
        reason = f"{table.name} has {location.rows(table.key_value)} rows: {NOT_LOADED_LIMIT}"
        is_blocking = True
    return Limit(
        file=file,
        key=key,
        value=value,
        tokens=tokens,
        used_by=library,
        table=table.name,
        reason=reason,
        is_blocking=is_blocking,
    )


# Other keys of the config


def _limits_of_other_keys(model: OpenedModel, tables: Sequence[PositionReport]) -> list[Limit]:
    """Return the limits of keys that no table owns, which need to agree with one of them."""
    limits = dict[str, Limit]()
    for table in tables:
        for path, value in config_length_keys(table.location):
            limit = _other_key_limit(model, table, path, value)
            if limit.key not in limits or limit.agrees:
                limits[limit.key] = limit
    return list(limits.values())


def _other_key_limit(model: OpenedModel, table: PositionReport, path: Keys, value: int) -> Limit:
    programs = readers(table.location, path)
    tokens = value
    reason = ""
    remark = ""
    if value in (table.positions, table.key_value):
        tokens = table.positions
    else:
        reason = f"{table.location.config_key} is {table.key_value}"
        if programs:
            reason += f", and {may_take(programs, value)}"
        if value > table.positions and _may_be_trained_longer(table):
            command = resizable_ref(model).resize_command(to=value)
            remark = (
                f"if the model was trained at {value} tokens, raise its limits: {command} "
                "--method limits"
            )
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


def _may_be_trained_longer(table: PositionReport) -> bool:
    """Whether rotary positions may have been trained at a longer length that another key states."""
    facts = table.location.table.rope
    if not isinstance(table, SchemeReport) or facts is None or not facts.methods:
        return False
    is_scaled = table.served != table.first_trained
    return not is_scaled and table.location.trained_length is None


# Limits of generated texts


def _generation_limits(model: OpenedModel, tables: Sequence[PositionReport]) -> Iterator[Limit]:
    """Yield the limits of generated texts, which count the positions of one table."""
    generating = generating_table(model.tables)
    if generating is None:
        return
    limits = generation_limits(model.checkpoint)
    deciding = deciding_limit(limits)
    for table in tables:
        if table.name == generating.name:
            for limit in limits:
                yield _generation_limit(limit, table, is_deciding=limit is deciding)


def _generation_limit(limit: GenerationLimit, table: PositionReport, *, is_deciding: bool) -> Limit:
    library = UNUSED
    if limit.is_used:
        library = GENERATE
    elif limit.is_of_task:
        library = OLD_PIPELINES
    reason = ""
    if limit.tokens > table.positions and not runs_beyond(table.location):
        reason = _consequence(limit.tokens, table)
    remark = ""
    if is_deciding and limit.tokens < table.positions:
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


def _buffer_limits(checkpoint: Checkpoint, table: PositionReport) -> Iterator[Limit]:
    """Yield the lengths of position buffers in the weights."""
    expected = table.key_value
    for name, file in checkpoint.weights.names.items():
        buffer = table.location.buffer(name)
        shape = file.entries[name].shape
        if buffer is None or not shape:  # masked_bias of old files is a scalar
            continue
        length = shape[0] if buffer.content == "rows" else shape[-1]
        key = name
        if "*" in buffer.name:
            key = re.sub(r"\.\d+\.", ".*.", name)
        used_by = TRANSFORMERS
        if not buffer.is_kept:
            used_by = f"old {TRANSFORMERS}"
        reason = ""
        if length != expected:
            reason = f"{table.name} has {table.location.rows(expected)} rows"
        yield Limit(
            file=checkpoint.relative(file),
            key=key,
            value=length,
            tokens=length - (expected - table.positions),
            used_by=used_by,
            table=table.name,
            reason=reason,
        )


def _side_file_limit(checkpoint: Checkpoint, stated: StatedLimit, table: PositionReport) -> Limit:
    used_by = ", ".join(stated.statement.read_by)
    if used_by == SENTENCE_TRANSFORMERS and stated.file != sentence_config(checkpoint):
        used_by = UNUSED
    return Limit(
        file=stated.file,
        key=".".join(stated.path),
        value=stated.value,
        tokens=stated.tokens,
        used_by=used_by,
        table=table.name,
        reason=_side_file_reason(stated, table, used_by),
    )


def _side_file_reason(stated: StatedLimit, table: PositionReport, used_by: str) -> str:
    """Say what a limit in a side file does that disagrees with a table; empty if it agrees."""
    tokens = stated.tokens
    is_padding = stated.statement.meaning == "padding"
    is_shorter = tokens is not None and tokens < table.positions
    if is_padding and (tokens is None or is_shorter):
        return ""
    if table.location.family.padding_effect and is_shorter:
        return ""  # it is the padding length too, and so stays the old one
    reason = _consequence(tokens, table)
    if not reason:
        return ""
    if used_by == UNUSED:
        return "not used by any library"
    if is_padding:
        return f"all inputs are padded to {tokens} tokens: {reason}"
    return reason


# What limits do


def _consequence(tokens: int | None, table: PositionReport) -> str:
    """Describe what a limit does that is not the number of positions; empty if it does nothing."""
    positions = table.positions
    key = table.location.effective_key
    effect = beyond(table)
    if tokens == positions or (effect == ANY_LENGTH_RUNS and table.location.stated(key) is None):
        return ""
    if tokens is None:
        if effect in BEYOND_SCHEMES.values():
            return ""
        return f"inputs of more than {positions} tokens are not truncated and {EFFECTS[effect]}"
    model = "table" if table.location.table.has_rows else "model"
    count = f"the {model} has {positions} positions"
    if tokens < positions:
        return f"inputs are truncated to {tokens} tokens, but {count}"
    served = served_length(table)
    if tokens <= served:
        return f"the settings serve {served} tokens, but engines read {positions} from {key}"
    return f"{count}: inputs of {positions + 1} to {tokens} tokens {EFFECTS[effect]}"


def served_length(table: PositionReport) -> int:
    """Return how many tokens a table, or the settings of positions without rows, serve."""
    if isinstance(table, SchemeReport):
        return table.served
    return table.positions


def beyond(table: PositionReport) -> str:
    """Return what happens to longer inputs that are not truncated; see `LibraryLimit`."""
    location = table.location
    longer = LONGER_INPUTS.get(location.table.longer_inputs)
    if longer is not None:
        return longer
    return BEYOND_SCHEMES[location.scheme]
