"""All length limits in a checkpoint, the library that uses each, and the effective limit per
library.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.families.lookup import nested
from ctxextend.families.schema import ALIBI, RELATIVE, ROTARY
from ctxextend.inspection.scheme_report import PositionReport, SchemeReport
from ctxextend.inspection.table_report import LibraryLimit, Limit, TableReport
from ctxextend.limits.config_keys import config_length_keys, readers
from ctxextend.limits.generation import (
    GenerationLimit,
    deciding_limit,
    generating_table,
    generation_limits,
    runs_beyond,
)
from ctxextend.limits.side_files import (
    TOKENIZER_FILES,
    StatedLimit,
    sentence_config,
    stated_limits,
)
from ctxextend.limits.statements import (
    GENERATE,
    MAX_NEW_TOKENS,
    OLD_PIPELINES,
    SENTENCE_TRANSFORMERS,
    TOKENIZERS,
    TRANSFORMERS,
)
from ctxextend.plan.find_tables import OpenedModel, resizable_ref, stated_width
from ctxextend.plan.length_notes import may_take

UNUSED = "none"
TRUNCATION_KEYS = (
    "model_max_length",
    "max_len",
    "max_seq_length",
)  # of transformers and sentence-transformers
# sentence-transformers reads config.max_position_embeddings; transformers configs map these keys to
# it.
MAX_POSITION_KEYS = ("max_position_embeddings", "n_positions")

ANY_LENGTH = "any length"
# What happens to inputs of more tokens than positions (see `LibraryLimit`): without a table of
# rows, and as a clause.
SCHEMES = {ROTARY: "untrained", **dict.fromkeys((ALIBI, RELATIVE), ANY_LENGTH)}
EFFECTS = {
    "last position": "share the last position",
    "more rows": "get computed rows",
    "fails": "fail",
    "untrained": "reach angles that were never trained",
    ANY_LENGTH: "run as well",
}

NOT_LOADED = "the model does not load"
# appended to a key that is missing in the config, so that transformers uses its default
NOT_SET = " (not set)"


def find_limits(model: OpenedModel, tables: Sequence[PositionReport]) -> tuple[Limit, ...]:
    """Return all length limits, those in the config first."""
    checkpoint = model.checkpoint
    by_key: dict[str, Limit] = {}
    for table in tables if checkpoint.has_config else ():
        for limit in _config_limits(model, table):
            if (
                limit.key not in by_key or not limit.agrees
            ):  # if tables share a key, keep the one that disagrees
                by_key[limit.key] = limit
    others: dict[str, Limit] = {}
    for table in tables:
        for limit in _other_keys(model, table):
            if (
                limit.key not in others or limit.agrees
            ):  # keys that no table owns need to agree with one of them
                others[limit.key] = limit
    limits = [*by_key.values(), *others.values()]
    for table in tables:
        if isinstance(table, TableReport) and table.file:
            limits.append(
                Limit(table.file, table.name, table.rows, table.positions, TRANSFORMERS, table.name)
            )
        limits += dict.fromkeys(
            _buffer_limits(checkpoint, table)
        )  # equal ones of several layers once
    for tokenizer, table in _tables_by_tokenizer(tables).items():
        limits += (
            _side_file_limit(checkpoint, stated, table)
            for stated in stated_limits(checkpoint, tokenizer)
        )
    limits += _generation_limits(model, tables)
    return tuple(limits)


def width_limits(checkpoint: Checkpoint, tables: Sequence[PositionReport]) -> Iterator[Limit]:
    """Yield a limit for each config key that states another width than its stored table has; no
    resize fixes it.
    """
    for table in tables:
        if isinstance(table, TableReport) and table.file and checkpoint.has_config:
            stated = stated_width(table.location, table.hidden_size)
            if stated is not None and stated[1] != table.hidden_size:
                reason = f"{table.name} has {table.hidden_size} columns: {NOT_LOADED}"
                yield Limit(checkpoint.config_file, *stated, None, TRANSFORMERS, table.name, reason)


def _tables_by_tokenizer(tables: Sequence[PositionReport]) -> dict[str, PositionReport]:
    first_tables: dict[str, PositionReport] = {}  # by the tokenizer's folder
    for table in tables:
        if table.location.tokenizer is not None:
            first_tables.setdefault(table.location.tokenizer, table)
    return first_tables


def _config_limits(model: OpenedModel, table: PositionReport) -> Iterator[Limit]:
    config, file, location = model.checkpoint.config, model.checkpoint.config_file, table.location

    def limit_of(key: str, value: Any, library: str) -> Limit:
        if type(value) is int and value == table.key_value:
            return Limit(file, key, value, table.positions, library, table.name)
        tokens = location.positions(location.rows(value)) if type(value) is int else None
        if library == UNUSED:
            reason = "not used by any library"
        elif location.table.scheme:
            reason = f"the settings serve {table.positions} tokens, but engines read this length"
        else:
            reason = f"{table.name} has {location.rows(table.key_value)} rows: {NOT_LOADED}"
        return Limit(file, key, value, tokens, library, table.name, reason)

    used_by = UNUSED if _beyond(table) == ANY_LENGTH else TRANSFORMERS
    effective_path = location.paths_of(location.effective_key)[-1]
    for path in location.length_paths:
        value = nested(config, path)
        if value is not None:
            yield limit_of(".".join(path), value, used_by if path == effective_path else UNUSED)
    default = location.family.defaults.get(location.table.config_key)
    if location.stated(location.effective_key) is None and default is not None:
        limit = limit_of(f"{location.config_key}{NOT_SET}", default, used_by)
        yield replace(limit, value=None) if limit.agrees else limit
    for key in model.architecture.family.limits:
        value = config.get(key)
        if isinstance(value, int):
            yield Limit(
                file, key, value, value, TRANSFORMERS, table.name, _consequence(value, table)
            )


def _other_keys(model: OpenedModel, table: PositionReport) -> Iterator[Limit]:
    """Yield the keys of the config that state a length next to the type's own key."""
    location, file = table.location, model.checkpoint.config_file
    for path, value in config_length_keys(location):
        engines = readers(location, path)
        is_same = value in (table.positions, table.key_value)
        tokens = table.positions if is_same else value
        reason = ""
        remark = ""
        if not is_same:
            reason = f"{location.config_key} is {table.key_value}"
        if engines and not is_same:
            reason += f", and {may_take(engines, value)}"
        if value > table.positions and not is_same and _may_be_trained_longer(table):
            command = resizable_ref(model).resize_command(to=value)
            remark = (
                f"if the model was trained at {value} tokens, raise its limits: {command} "
                "--method limits"
            )
        key = ".".join(path)
        yield Limit(
            file,
            key,
            value,
            tokens,
            ", ".join(engines) or UNUSED,
            table.name,
            reason,
            remark=remark,
        )


def _may_be_trained_longer(table: PositionReport) -> bool:
    """Whether a longer length in another key may be the one that rotary positions were
    trained at.
    """
    facts = table.location.table.rope
    if not isinstance(table, SchemeReport) or facts is None or not facts.methods:
        return False
    is_scaled = table.served != table.first_trained
    return not is_scaled and table.location.trained_length is None


def _generation_limits(model: OpenedModel, tables: Sequence[PositionReport]) -> Iterator[Limit]:
    """Yield the limits of generated texts, which count the positions of one table."""
    found = generating_table(model.tables)
    table = next(
        (table for table in tables if found is not None and table.name == found.name), None
    )
    if table is None:
        return
    limits = generation_limits(model.checkpoint)
    deciding = deciding_limit(limits)
    for limit in limits:
        library = UNUSED
        if limit.is_used:
            library = GENERATE
        elif limit.is_of_task:
            library = OLD_PIPELINES
        reason = ""
        if limit.tokens > table.positions and not runs_beyond(table.location):
            reason = _consequence(limit.tokens, table)
        remark = ""
        if limit is deciding and limit.tokens < table.positions:
            remark = _early_stop(limit, table.positions)
        key = ".".join(limit.path)
        yield Limit(
            limit.file, key, limit.tokens, limit.tokens, library, table.name, reason, remark=remark
        )


def _early_stop(limit: GenerationLimit, positions: int) -> str:
    """Return the remark that `generate()` stops before the context length."""
    if limit.key == MAX_NEW_TOKENS:
        return (
            f"generate() stops after {limit.tokens} new tokens; the context length is {positions}"
        )
    return f"generate() stops at {limit.tokens} tokens, before the context length of {positions}"


def _buffer_limits(checkpoint: Checkpoint, table: PositionReport) -> Iterator[Limit]:
    expected = table.key_value
    for name, file in checkpoint.names.items():
        buffer = table.location.buffer(name)
        shape = file.entries[name].shape
        if buffer is None or not shape:  # masked_bias of old files is a scalar
            continue
        length = shape[0 if buffer.content == "rows" else -1]
        key = re.sub(r"\.\d+\.", ".*.", name) if "*" in buffer.name else name
        tokens = length - (expected - table.positions)
        library = TRANSFORMERS if buffer.is_kept else f"old {TRANSFORMERS}"
        reason = (
            "" if length == expected else f"{table.name} has {table.location.rows(expected)} rows"
        )
        yield Limit(checkpoint.relative(file), key, length, tokens, library, table.name, reason)


def _side_file_limit(checkpoint: Checkpoint, stated: StatedLimit, table: PositionReport) -> Limit:
    library = ", ".join(stated.statement.read_by)
    is_padding = stated.statement.meaning == "padding"
    tokens = stated.tokens
    positions = table.positions
    if library == SENTENCE_TRANSFORMERS and stated.file != sentence_config(checkpoint):
        library = UNUSED
    reason = _consequence(tokens, table)
    if is_padding and (tokens is None or tokens < positions):
        reason = ""
    elif table.location.family.padding_effect and tokens is not None and tokens < positions:
        reason = ""  # it is the padding length too, and so stays the old one
    elif reason and library == UNUSED:
        reason = "not used by any library"
    elif reason and is_padding:
        reason = f"all inputs are padded to {tokens} tokens: {reason}"
    return Limit(
        stated.file, ".".join(stated.path), stated.value, tokens, library, table.name, reason
    )


def _consequence(tokens: int | None, table: PositionReport) -> str:
    """Describe the effect of a limit that differs from the number of positions; empty if it does
    not.
    """
    positions = table.positions
    beyond = _beyond(table)
    model = "model" if table.location.table.scheme else "table"
    effect = EFFECTS[beyond]
    count = f"the {model} has {positions} positions"
    is_free = beyond == ANY_LENGTH and table.location.stated(table.location.effective_key) is None
    if tokens == positions or is_free or (tokens is None and beyond in SCHEMES.values()):
        return ""
    if tokens is None:
        return f"inputs of more than {positions} tokens are not truncated and {effect}"
    if tokens < positions:
        return f"inputs are truncated to {tokens} tokens, but {count}"
    if tokens <= served_length(table):
        key = table.location.effective_key
        return (
            f"the settings serve {served_length(table)} tokens, but engines read {positions} "
            f"from {key}"
        )
    return f"{count}: inputs of {positions + 1} to {tokens} tokens {effect}"


def served_length(table: PositionReport) -> int:
    """Return how many tokens a table, or the settings of positions without rows, serve."""
    return table.served if isinstance(table, SchemeReport) else table.positions


def _beyond(table: PositionReport) -> str:
    """Return what happens to longer inputs that are not truncated; see `LibraryLimit`."""
    entry = table.location.table
    by_table = "last position" if entry.clamps else "more rows" if entry.grows else "fails"
    return by_table if entry.fails else SCHEMES.get(entry.scheme, by_table)


def library_limits(
    checkpoint: Checkpoint, limits: Sequence[Limit], tables: Sequence[PositionReport]
) -> Iterator[LibraryLimit]:
    """Yield the effective limit of each library; `limits` come from `find_limits`.

    With ``truncation=True``, transformers truncates to the tokenizer's ``model_max_length``.
    sentence-transformers truncates to its ``max_seq_length``, or else to the smaller of the
    tokenizer's and the config's length. `tokenizers.Tokenizer` uses the truncation in
    tokenizer.json, which the other two ignore.
    """
    for tokenizer, table in _tables_by_tokenizer(tables).items():
        folders = (
            {PurePosixPath(tokenizer)} if tokenizer else {PurePosixPath("."), checkpoint.model}
        )
        names = {
            PurePosixPath(name).name
            for name in checkpoint.copied
            if PurePosixPath(name).parent in folders
        }
        local = [
            limit
            for limit in limits
            if limit.table == table.name and PurePosixPath(limit.file).parent in folders
        ]
        truncating = {limit.used_by: limit for limit in local if limit.key in TRUNCATION_KEYS}
        tokenizer_limit, sentence_limit = (
            truncating.get(TRANSFORMERS),
            truncating.get(SENTENCE_TRANSFORMERS),
        )
        if names & TOKENIZER_FILES:
            blocker = next((limit for limit in limits if limit.reason.endswith(NOT_LOADED)), None)
            yield _library_limit(TRANSFORMERS, tokenizer_limit, table, blocker)
            if not tokenizer and _can_pad(checkpoint, folders):
                limit = sentence_limit or _smaller_limit(tokenizer_limit, local, table)
                yield _library_limit(SENTENCE_TRANSFORMERS, limit, table, blocker)
        if "tokenizer.json" in names:
            truncation = next(
                (limit for limit in local if limit.key == "truncation.max_length"), None
            )
            if truncation:
                yield LibraryLimit(
                    TOKENIZERS, truncation.tokens, f"{truncation.file} {truncation.key}", "cut"
                )
            else:
                yield LibraryLimit(TOKENIZERS, None, "no truncation in tokenizer.json", "not cut")


def _library_limit(
    library: str, limit: Limit | None, table: PositionReport, blocker: Limit | None
) -> LibraryLimit:
    if blocker is not None:
        return LibraryLimit(library, 0, f"{blocker.file} {blocker.key}", "not loaded")
    served = served_length(table)
    if limit is None or limit.tokens is None or limit.tokens > served:
        return LibraryLimit(library, served, table.stated_in, _beyond(table))
    return LibraryLimit(library, limit.tokens, f"{limit.file} {limit.key}", "cut")


def _can_pad(checkpoint: Checkpoint, folders: set[PurePosixPath]) -> bool:
    """Whether sentence-transformers can encode: it always pads, and GPT-2's tokenizer has no
    padding token.
    """
    files = ("tokenizer_config.json", "special_tokens_map.json")
    paths = (
        path
        for path in map(PurePosixPath, checkpoint.copied)
        if path.name in files and path.parent in folders
    )
    tokens = (load_object(checkpoint.root / path).get("pad_token") for path in paths)
    return "modules.json" in checkpoint.copied or any(token is not None for token in tokens)


def _smaller_limit(
    tokenizer_limit: Limit | None, limits: Sequence[Limit], table: PositionReport
) -> Limit | None:
    """Return the smaller of the tokenizer's limit and the config's value, which also counts
    reserved rows.
    """
    location = table.location
    candidates = [
        limit for limit in (tokenizer_limit,) if limit is not None and limit.tokens is not None
    ]
    keys = (location.effective_key, f"{location.effective_key}{NOT_SET}")
    stated = next((limit for limit in limits if limit.key in keys), None)
    if stated is not None and not location.path and location.table.config_key in MAX_POSITION_KEYS:
        value = (
            location.family.defaults.get(location.effective_key)
            if stated.value is None
            else stated.value
        )
        if isinstance(value, int):
            candidates.append(replace(stated, tokens=value))
    return min(candidates, key=lambda limit: limit.tokens or 0, default=None)
