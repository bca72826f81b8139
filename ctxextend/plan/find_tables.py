"""Open a checkpoint, detect its architecture, and find its position tables."""

import reprlib
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ctxextend.checkpoints.folder import ADAPTER_PREFIX, Checkpoint, open_checkpoint
from ctxextend.checkpoints.safetensors_file import FLOATS, float_dtype
from ctxextend.checkpoints.source import resolve_source
from ctxextend.errors import SAY_WHICH, CheckpointError, ResizeError, UnsupportedModelError, did_you_mean
from ctxextend.families.lookup import (
    FAMILIES_HINT,
    Architecture,
    TableLocation,
    custom_architecture,
    find_architecture,
    matching_types,
    nested,
    unsupported_error,
)
from ctxextend.families.registry import FAMILIES
from ctxextend.families.unsupported import POSITION_SCHEMES
from ctxextend.recipe import CheckpointRef, flag_words

# What is suggested for a model type that the registry does not know: tables with at most so many reserved rows, so many
# of them, and keys that have one of these in their names.
MAX_RESERVED_ROWS = 8
MAX_SUGGESTIONS = 5
LENGTH_WORDS = ("pos", "ctx", "context", "len", "block_size")


TableShape = tuple[tuple[int, int], str, str]  # of a tensor: its shape, its dtype, and the file that holds it


class FoundTable(NamedTuple):
    """A position table that a model holds."""

    location: TableLocation  # where the registry has it
    name: str  # its tensor in the model


@dataclass(frozen=True)
class OpenedModel:
    """A checkpoint that was opened and recognised, its weights not read yet. Commands hand it on."""

    ref: CheckpointRef  # how the user named it
    checkpoint: Checkpoint  # the checkpoint, its headers read
    architecture: Architecture  # what the registry knows of it
    tables: tuple[FoundTable, ...]  # its position tables, in the registry's order

    def with_code(self) -> "OpenedModel":
        """Return it with the code that lies in its folder copied, and not left out."""
        return replace(self, checkpoint=self.checkpoint.with_code())


def open_model(ref: CheckpointRef) -> OpenedModel:
    """Open a checkpoint, detect its architecture, and find its position tables."""
    return identify_model(open_reference(ref), ref)


def open_reference(ref: CheckpointRef) -> Checkpoint:
    """Find the checkpoint that a reference names, refuse it by its type if need be, and read its headers."""

    def check(config: Mapping[str, Any], has_weights: bool = True) -> None:
        model_type, is_named = ref.model_type or config.get("model_type"), ref.tensor is not None
        if not is_named and isinstance(model_type, str) and not (has_weights and _is_unknown(model_type, config)):
            find_architecture(config, model_type=model_type)

    source = resolve_source(ref.source, ref.revision, ref.subfolder, ref.variant, check)
    return open_checkpoint(source, ref.variant, check)


def _is_unknown(model_type: str, config: Mapping[str, Any]) -> bool:
    """Whether only tensors can tell what a model is: one that is itself unsupported may hold a part of any type."""
    return model_type not in FAMILIES and (model_type not in POSITION_SCHEMES or bool(_known_parts(config)))


def _known_parts(config: Mapping[str, Any]) -> list[str]:
    types = [value.get("model_type") for value in config.values() if isinstance(value, Mapping)]
    return [name for name in types if isinstance(name, str) and name in FAMILIES]


def identify_model(checkpoint: Checkpoint, ref: CheckpointRef) -> OpenedModel:
    """Detect an open checkpoint's architecture, by its tensors where no model type is named, and find its tables."""
    model_type, config = ref.model_type, checkpoint.config
    if config and ref.tensor is None and model_type is None and config.get("model_type") is None:
        found = matching_types(config, {name: entry.shape for name, entry in checkpoint.entries.items()})
        if len(found) > 1:
            fitting = ", ".join(found[:MAX_SUGGESTIONS]) + " and others" * (len(found) > MAX_SUGGESTIONS)
            what = f"{checkpoint.config_file} names no model_type; its tensors fit {fitting}."
            raise CheckpointError(what, f"{SAY_WHICH}--model-type TYPE")
        if found:
            model_type, source = found[0], checkpoint.source
            note = f"{checkpoint.config_file} names no model_type; it is taken for {model_type}."
            checkpoint = replace(checkpoint, source=replace(source, notes=(*source.notes, note)))
    architecture = _architecture(checkpoint, replace(ref, model_type=model_type))
    return OpenedModel(ref, checkpoint, architecture, find_tables(architecture, checkpoint.names, str(checkpoint.root)))


def _architecture(checkpoint: Checkpoint, ref: CheckpointRef) -> Architecture:
    """Return the architecture of a checkpoint; the reference's `model_type` and `table` win over the config."""
    config = checkpoint.config
    if ref.tensor is not None:
        return _described(checkpoint, ref)
    model_type = ref.model_type or config.get("model_type")
    if not config and model_type is None:
        what, then = next(iter(checkpoint.weights.values())).path, ""
        message = f"There is no config.json beside {what} that says what it is."
        if checkpoint.adapter_of:
            message = f"{what} is an adapter of {checkpoint.adapter_of}, whose config is not read."
            then = f"Resize {checkpoint.adapter_of}, then load the adapter onto that. If it holds the table too: "
        raise CheckpointError(message, f"{then}Say what it is with --model-type, for example --model-type gpt2.")
    parts = _known_parts(config)
    if isinstance(model_type, str) and _is_unknown(model_type, config):
        message = f"The model type {model_type!r} is not in ctxextend's registry"
        message += f", but a part of this one is of a known type: {', '.join(parts)}." if parts else "."
        from difflib import get_close_matches  # at use: only errors need it

        fitting = matching_types(config, {name: entry.shape for name, entry in checkpoint.entries.items()})
        if near := fitting if len(fitting) == 1 else get_close_matches(model_type, fitting, 1):
            hint = f"Did you mean {near[0]}? {SAY_WHICH}--model-type {near[0]}"
        else:
            none = f"It holds no tensor that looks like a position table. {FAMILIES_HINT}"
            hint = f"{did_you_mean(model_type, FAMILIES)} {_suggestions(checkpoint) or none}".strip()
        raise UnsupportedModelError(message, hint)
    where = str(checkpoint.root / checkpoint.config_file) if checkpoint.has_config else str(checkpoint.root)
    architecture = find_architecture(config, where, ref.model_type)
    return _in_adapter(checkpoint, architecture) if checkpoint.adapter_of else architecture


def find_tables(architecture: Architecture, names: Collection[str], where: str) -> tuple[FoundTable, ...]:
    """Return the tables that a model holds, among whose tensors are `names`, in the registry's order."""
    found = list[FoundTable]()
    for location in architecture.locations:
        matches = [name for name in location.names if name in names]
        if len(matches) > 1:
            what = f"{where}: there are two candidate tables, {' and '.join(matches)}."
            raise CheckpointError(what, "Save the model again with save_pretrained, which writes one.")
        found += [FoundTable(location, name) for name in matches]
    if not found and architecture.unsupported:
        raise unsupported_error(architecture.family.model_type, architecture.unsupported)
    if not found:
        wanted = " or ".join(dict.fromkeys(name for location in architecture.locations for name in location.names))
        what = f"{where}: no position table was found; a {architecture.family.model_type} model calls it {wanted}."
        hint = "Check that model_type in config.json, or --model-type, and the weights belong together."
        raise CheckpointError(what, hint)
    return tuple(found)


def of_part(found: Sequence[FoundTable], part: str | None) -> list[FoundTable]:
    """Return the tables of one part of a model, or all of them where no part is named."""
    chosen = [table for table in found if part is None or f"{table.location.part}.".startswith(f"{part}.")]
    if not chosen:
        parts = " or ".join(dict.fromkeys(location.part for location, _ in found if location.part))
        hint = f"Its parts are {parts}." if parts else "It has one table: leave --part out."
        raise ResizeError(f"--part {part}: this model has no such part with a position table.", hint)
    return chosen


def describe_table(checkpoint: Checkpoint, name: str) -> TableShape:
    """Return shape, dtype and file of a table."""
    file = checkpoint.names[name]
    entry, _ = file.entries[name], float_dtype(file, name)
    if len(entry.shape) != 2 or 0 in entry.shape:
        message = f"{file.path}: {name} has shape {list(entry.shape)}, not rows by hidden size."
        raise CheckpointError(message, "Save it again.")
    return (entry.shape[0], entry.shape[1]), entry.dtype, checkpoint.relative(file)


def check_rows(location: TableLocation, rows: int, name: str, *, has_config: bool = True) -> None:
    """Refuse a table that is not as long as the config says."""
    if has_config:
        key = location.effective_key
        path, value = ".".join((*location.path, key)), location.value(key)
        expected = location.rows(value)
        if rows != expected:
            how = "" if location.stated(key) is not None else " (transformers' default, since the key is missing)"
            what = f"config.json states {path} {reprlib.repr(value)}{how}, so {name} should have "
            hint = "Correct config.json, or fetch config and weights again: they do not belong together."
            raise CheckpointError(f"{what}{reprlib.repr(expected)} rows, and it has {rows}.", hint)
    if location.positions(rows) < 1:
        behind = f", {location.table.ahead} behind the last" if location.table.ahead else ""
        what = f"{name} has {rows} rows, and {location.reserved_rows} of them stand in front of position 0{behind}."
        raise CheckpointError(what, f"Check {location.table.reserved.config_key or 'the offset'}.")


def _in_adapter(checkpoint: Checkpoint, architecture: Architecture) -> Architecture:
    """Return the architecture with the names that tensors have in a PEFT adapter."""
    base, locations = checkpoint.adapter_of, list[TableLocation]()
    for location in architecture.locations:
        locations.append(replace(location, prefixes=tuple(ADAPTER_PREFIX + prefix for prefix in location.prefixes)))
    names = [name for location in locations for name in location.names]
    if any(name in checkpoint.names for name in names):
        return replace(architecture, locations=tuple(locations))
    modules = tuple(name.removesuffix("weight") for name in names)
    if any(name.startswith(modules) for name in checkpoint.names):
        has, then = "that changes each row of", f"Merge it into {base} with merge_and_unload(), and resize that."
    else:
        has, then = "without", f"Resize {base}, then load the adapter onto that."
    raise CheckpointError(f"{checkpoint.root} holds a PEFT adapter {has} the position table.", then)


def _described(checkpoint: Checkpoint, ref: CheckpointRef) -> Architecture:
    table, key, reserved = str(ref.tensor), ref.config_key, ref.reserved_rows
    shape = checkpoint.entries[table].shape if table in checkpoint.names else ()
    rows = shape[0] if shape else 0
    stated = nested(checkpoint.config, tuple((key or "").split(".")))
    if len(shape) != 2:
        none = f"{checkpoint.root} holds no such tensor"
        has = f"it has shape {list(shape)}, not rows by hidden size" if shape else none
        message, about = f"--tensor {table}: {has}.", None
    elif key is None and checkpoint.has_config:
        message, about = f"--tensor {table}: which key of config.json states its length is not known.", table
    elif checkpoint.has_config and stated not in (rows, rows - reserved):
        message = f"config.json states {key} {stated!r}, and {table} has {rows} rows, {reserved} of them reserved."
        about = table
    else:
        return custom_architecture(checkpoint.config, table, key or "max_position_embeddings", reserved, stated == rows)
    hint = _suggestions(checkpoint, about) or "Check --tensor, --config-key and --reserved-rows."
    raise CheckpointError(message, hint)


def _suggestions(checkpoint: Checkpoint, table: str | None = None) -> str:
    """List the tensors that may be the table, and the flags for the likeliest; empty where there is none."""
    found = []
    for entry in checkpoint.entries.values():
        if len(entry.shape) != 2 or entry.dtype not in FLOATS or table not in (None, entry.name):
            continue
        rows, width = entry.shape
        is_named, keys = "pos" in entry.name.lower() or "wpe" in entry.name.lower(), []
        for key, value in _whole_numbers(checkpoint.config):
            reserved, tells = rows - value, any(word in key.lower() for word in LENGTH_WORDS)
            is_length = tells and 0 <= reserved <= (MAX_RESERVED_ROWS if is_named else 0)
            # Widths and sizes of vocabularies state no length.
            if is_length or (reserved == 0 and "size" not in key and value != width):
                keys.append((tells, reserved == 0, reserved, key))
        if keys or (is_named and rows > width // 8):
            tells, _, reserved, key = max(keys, key=lambda one: one[:2], default=(False, True, 0, ""))
            found.append((is_named, tells, bool(key), reserved == 0, entry, key, reserved))
    found = [one for one in found if one[0]] or found  # where a name tells, other tensors of as many rows only distract
    found = sorted(found, key=lambda one: one[:4], reverse=True)[:MAX_SUGGESTIONS]
    if not found:
        return ""
    shown = "; ".join(
        f"{entry.name} {list(entry.shape)}" + (f", as long as {key}{f' + {reserved}' * bool(reserved)}" if key else "")
        for *_, entry, key, reserved in found
    )
    *_, entry, key, reserved = found[0]
    pad, then = checkpoint.config.get("pad_token_id"), ""
    if not reserved and "embeddings.position_embeddings" in entry.name and type(pad) is int and pad > 0:
        # As RoBERTa has them: 514 rows are 512 positions behind that of the padding.
        reserved = pad + 1 if (entry.shape[0] - pad - 1) % MAX_RESERVED_ROWS == 0 else 0
        then = f"Rows before position 0: {reserved}, as pad_token_id {pad} suggests. " if reserved else ""
    then = then or "Where rows come before position 0, state how many: --reserved-rows K. " * (not reserved)
    words = flag_words({"tensor": entry.name, "reserved-rows": reserved or None, "config-key": key or "KEY"})
    return f"Tensors that may be its position table: {shown}. {then}{SAY_WHICH}{shlex.join(words)}"


def _whole_numbers(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _whole_numbers(value, f"{path}{key}.")
        elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield f"{path}{key}", value
