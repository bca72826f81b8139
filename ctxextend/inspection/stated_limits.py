"""All length limits in a checkpoint: what each states, who uses it, and whether it agrees."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ctxextend.checkpoint.checkpoint import Checkpoint, layer_pattern
from ctxextend.inspection.inspection_result import NOT_SET, Limit
from ctxextend.limits.statements import (
    TRANSFORMERS,
    LengthLimit,
    Meaning,
    length_limits,
    may_take,
    readers,
)
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.positions.position_report import PositionReport
from ctxextend.positions.positions import nested

UNUSED = "none"  # no library uses a limit
NOT_USED = "not used by any library"
NOT_LOADED = "the model does not load"
# What inputs of more tokens than positions do if nothing cuts them, where it is not what
# `Positions.longer_inputs` says.
RUN_AS_WELL = "run as well"
UNTRAINED = "reach angles that were never trained"
EFFECTS = {"run": RUN_AS_WELL, "reach untrained angles": UNTRAINED}


def find_limits(model: OpenedModel, tables: Sequence[PositionReport]) -> tuple[Limit, ...]:
    """Return all length limits, those in the config first."""
    checkpoint = model.checkpoint
    reports = {table.name: table for table in tables}
    own = list[Limit]()
    for table in tables:
        if checkpoint.config:
            own += _own_key_limits(model, table)
    keys = list[Limit]()
    others = list[Limit]()
    for stated in length_limits(checkpoint, model.tables):
        if stated.table in reports:
            of_kind = keys if stated.meaning is Meaning.LENGTH else others
            of_kind.append(_limit(stated, reports[stated.table]))
    # All tables that share a key of their type must agree with it; any other key need agree with
    # only one table.
    limits = [*_one_per_key(own, agrees=False), *_one_per_key(keys, agrees=True)]
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
    return (*limits, *others)


def _limit(stated: LengthLimit, table: PositionReport) -> Limit:
    """Compare a limit of a file with the positions that it limits."""
    reason = _disagreement(stated, table)
    tokens = stated.tokens
    is_shown = isinstance(stated.value, dict) and tokens is not None  # a padding strategy
    if stated.meaning is Meaning.LENGTH and not reason:
        tokens = table.positions  # it may state the length before scaling
    return Limit(
        file=stated.file,
        key=".".join(stated.path),
        value=stated.value if is_shown else _json_value(stated.value),
        tokens=tokens,
        used_by=", ".join(stated.readers) or UNUSED,
        table=table.name,
        reason=reason,
    )


def _disagreement(stated: LengthLimit, table: PositionReport) -> str:
    """Say what a limit does that disagrees with the positions; empty if it agrees."""
    positions = table.positions
    location = table.location
    tokens = stated.tokens
    if stated.meaning is Meaning.LENGTH:
        if tokens in (positions, table.key_value):
            return ""
        own_key = f"{location.length_key} is {table.key_value}"
        effect = may_take(stated.readers, stated.value)
        return f"{own_key}, and {effect}" if effect else own_key
    is_shorter = tokens is not None and tokens < positions
    if stated.meaning is Meaning.GENERATION and (is_shorter or location.needs_no_limit):
        return ""
    # Padding to a shorter length, or to none, cuts no text. A shorter limit that is the padding
    # length of a model whose outputs depend on padding stays the old one.
    if stated.meaning is Meaning.PADDING and (is_shorter or tokens is None):
        return ""
    if is_shorter and location.family.padding_effect:
        return ""
    effect = _consequence(tokens, table)
    return NOT_USED if effect and not stated.readers else effect


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
    if model.checkpoint.engine is None and effect_of_longer(table) == RUN_AS_WELL:
        library = UNUSED
    for path in location.length_paths:
        value = nested(config, path)
        if path in location.engine_paths and type(value) is int:
            programs = readers(location, path)
            file = model.checkpoint.config_file
            yield _limit(LengthLimit(file, path, value, value, Meaning.LENGTH, programs), table)
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
    shown = _json_value(value)
    reason = ""
    if agrees:
        tokens = table.positions
        if key.endswith(NOT_SET):
            shown = None
    elif used_by == UNUSED:
        reason = NOT_USED
    elif location.rows:
        reason = f"{table.name} has {table.positions + location.other_rows} rows"
        reason += f": {NOT_LOADED}"
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
    )


def _json_value(value: Any) -> Any:
    """Return an integer, a boolean or None as it is, and any other value as text.

    Floats are text too: 1e400 is read as infinity, which JSON cannot represent.
    """
    if value is None or isinstance(value, int):
        return value
    return str(value)


# Buffers


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


# What limits do


def _consequence(limit: int | None, table: PositionReport) -> str:
    """Describe what a limit of inputs does; empty if it agrees with the positions.

    Args:
        limit: The limit in tokens; None if inputs are not truncated.
        table: The positions.
    """
    positions = table.positions
    location = table.location
    effect = effect_of_longer(table)
    states_length = location.stated(location.effective_key) is not None
    if limit == positions or (effect == RUN_AS_WELL and not states_length):
        return ""
    if limit is None:
        if effect in (UNTRAINED, RUN_AS_WELL):
            return ""
        return f"inputs of more than {positions} tokens are not truncated and {effect}"
    has = f"the {location.owner} has {positions} positions"
    if limit < positions:
        return f"inputs are truncated to {limit} tokens, but {has}"
    if limit <= location.lengths.served:
        return has
    return f"{has}: inputs of {positions + 1} to {limit} tokens {effect}"


def effect_of_longer(table: PositionReport) -> str:
    """Return what inputs of more tokens than positions do, if nothing cuts them."""
    stated = table.location.longer_inputs
    return EFFECTS.get(stated, stated)
