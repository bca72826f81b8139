"""Open a checkpoint, detect its architecture, and find its position tables."""

import reprlib
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ctxextend.checkpoints.folder import ADAPTER_PREFIX, Checkpoint, open_checkpoint
from ctxextend.checkpoints.safetensors_file import FLOATS, float_dtype, read_floats
from ctxextend.checkpoints.source import resolve_source
from ctxextend.errors import SPECIFY_TABLE, CheckpointError, ResizeError, UnsupportedModelError, did_you_mean
from ctxextend.families.lengths import position_lengths
from ctxextend.families.lookup import Architecture, TableLocation, find_architecture, matching_types, nested
from ctxextend.families.registry import FAMILIES
from ctxextend.families.schema import Family, PositionTable, ReservedRows
from ctxextend.families.unsupported import FAMILIES_HINT, POSITION_SCHEMES
from ctxextend.plan.trained_length import with_trained_length
from ctxextend.recipe import CheckpointRef, flag_words

# Which tensors and config keys to suggest for a model type that is not in the registry.
MAX_RESERVED_ROWS = 8
MAX_SUGGESTIONS = 5
LENGTH_WORDS = ("pos", "ctx", "context", "len", "block_size")

# Config keys of the width of a position table. Each model type states one of them, or, if it is listed below, the
# first of the listed keys that its config states; a table with none is not as wide as any key says.
WIDTH_KEYS = ("d_model", "n_embd", "emb_dim", "embed_dim", "dim", "hidden_size")
OWN_WIDTH_KEYS: Mapping[str, tuple[str, ...]] = {
    "albert": ("embedding_size",),
    "convbert": ("embedding_size",),
    "electra": ("embedding_size",),
    "squeezebert": ("embedding_size",),
    "deberta": ("embedding_size", "hidden_size"),
    "deberta-v2": ("embedding_size", "hidden_size"),
    "rembert": ("input_embedding_size",),
    "roformer": (),
}
OTHER_WIDTH_PARTS = {("lilt", "layout")}  # whose width is only a share of hidden_size


TableShape = tuple[tuple[int, int], str, str]  # shape, dtype and file of a tensor
Describe = Callable[["FoundTable"], TableShape]


class FoundTable(NamedTuple):
    """A position table of a model."""

    location: TableLocation  # its registry entry
    name: str  # its tensor name; the file may lack the tensor if transformers computes it


@dataclass(frozen=True)
class OpenedModel:
    """A checkpoint with its detected architecture; no weights are read yet."""

    ref: CheckpointRef  # as the user named it
    checkpoint: Checkpoint
    architecture: Architecture
    tables: tuple[FoundTable, ...]  # its position tables, in registry order

    def with_code(self) -> "OpenedModel":
        """Return the model with code files in its folder copied instead of skipped."""
        return replace(self, checkpoint=self.checkpoint.with_code())

    def with_trained_length(self, trained_length: int | None) -> "OpenedModel":
        """Return the model with another length of its first training, in tokens, unless the user states one."""
        if self.ref.trained_length is not None or trained_length is None:
            return self
        architecture = with_trained_length(self.architecture, self.checkpoint, trained_length)
        tables = find_tables(architecture, self.checkpoint.names, str(self.checkpoint.root))
        return replace(self, architecture=architecture, tables=tables)

    def read_table(self) -> NDArray[Any] | None:
        """Return the first position table, shape (rows, hidden_size); None if it is not stored."""
        name = self.tables[0].name
        file = self.checkpoint.names.get(name)
        return read_floats(file, name) if file else None


def open_model(ref: CheckpointRef, check_type: Callable[[str], None] = lambda model_type: None) -> OpenedModel:
    """Open a checkpoint, detect its architecture, and find its position tables; see `open_reference`."""
    return identify_model(open_reference(ref, check_type), ref)


def open_reference(ref: CheckpointRef, check_type: Callable[[str], None] = lambda model_type: None) -> Checkpoint:
    """Resolve a checkpoint reference and read the headers; fail for unsupported model types before any download.

    `check_type` raises for other model types that the caller does not support.
    """

    def check(config: Mapping[str, Any], has_weights: bool = True) -> None:
        model_type, is_named = ref.model_type or config.get("model_type"), ref.tensor is not None
        if not is_named and isinstance(model_type, str) and not (has_weights and _is_unknown(model_type, config)):
            find_architecture(config, model_type=model_type)
            check_type(model_type)

    source = resolve_source(ref.source, ref.revision, ref.subfolder, ref.variant, check)
    return open_checkpoint(source, ref.variant, check)


def _is_unknown(model_type: str, config: Mapping[str, Any]) -> bool:
    """Whether the tensors must decide: the model type is unknown, or unsupported with a part of a known type."""
    return model_type not in FAMILIES and (model_type not in POSITION_SCHEMES or bool(_known_parts(config)))


def _known_parts(config: Mapping[str, Any]) -> list[str]:
    types = [value.get("model_type") for value in config.values() if isinstance(value, Mapping)]
    return [name for name in types if isinstance(name, str) and name in FAMILIES]


def identify_model(checkpoint: Checkpoint, ref: CheckpointRef) -> OpenedModel:
    """Find the architecture and position tables of an open checkpoint; tensors decide if it has no model_type."""
    model_type, config = ref.model_type, checkpoint.config
    if config and ref.tensor is None and model_type is None and config.get("model_type") is None:
        matching = matching_types(config, {name: entry.shape for name, entry in checkpoint.entries.items()})
        if len(matching) > 1:
            listed = ", ".join(matching[:MAX_SUGGESTIONS]) + " and others" * (len(matching) > MAX_SUGGESTIONS)
            message = f"{checkpoint.config_file} has no model_type, and its tensors match {listed}."
            raise CheckpointError(message, f"{SPECIFY_TABLE}--model-type TYPE")
        if matching:
            model_type, source = matching[0], checkpoint.source
            note = f"{checkpoint.config_file} has no model_type; detected {model_type} from its tensors."
            checkpoint = replace(checkpoint, source=replace(source, notes=(*source.notes, note)))
    architecture = _architecture(checkpoint, replace(ref, model_type=model_type))
    architecture = with_trained_length(architecture, checkpoint, ref.trained_length)
    return OpenedModel(ref, checkpoint, architecture, find_tables(architecture, checkpoint.names, str(checkpoint.root)))


def _architecture(checkpoint: Checkpoint, ref: CheckpointRef) -> Architecture:
    """Return the architecture of a checkpoint; the reference's `model_type` and `tensor` override the config."""
    config = checkpoint.config
    if ref.tensor is not None:
        return _from_flags(checkpoint, ref)
    model_type = ref.model_type or config.get("model_type")
    if not config and model_type is None:
        file, hint = next(iter(checkpoint.weights.values())).path, "Pass"
        message = f"No config.json found next to {file}, so the model type is unknown."
        if checkpoint.adapter_of:
            message = f"{file} is a PEFT adapter of {checkpoint.adapter_of}, whose config is not read."
            hint = f"Resize {checkpoint.adapter_of}, then load the adapter. If the adapter contains the table, pass"
        raise CheckpointError(message, f"{hint} the model type, for example --model-type gpt2.")
    parts = _known_parts(config)
    if isinstance(model_type, str) and _is_unknown(model_type, config):
        message = f"Unknown model type {model_type!r}"
        message += f", but it contains a part of a known type: {', '.join(parts)}." if parts else "."
        from difflib import get_close_matches  # imported here because only errors need it

        matching = matching_types(config, {name: entry.shape for name, entry in checkpoint.entries.items()})
        if near := matching if len(matching) == 1 else get_close_matches(model_type, matching, 1):
            hint = f"Did you mean {near[0]}? {SPECIFY_TABLE}--model-type {near[0]}"
        else:
            none = f"No tensor looks like a position table. {FAMILIES_HINT}"
            hint = f"{did_you_mean(model_type, FAMILIES)} {_suggestions(checkpoint) or none}".strip()
        raise UnsupportedModelError(message, hint)
    where = str(checkpoint.root / checkpoint.config_file) if checkpoint.has_config else str(checkpoint.root)
    architecture = find_architecture(config, where, ref.model_type)
    return _in_adapter(checkpoint, architecture) if checkpoint.adapter_of else architecture


def find_tables(architecture: Architecture, names: Collection[str], where: str) -> tuple[FoundTable, ...]:
    """Return the position tables among a model's tensor `names`, in registry order."""
    tables = list[FoundTable]()
    for location in architecture.locations:
        if location.table.scheme:
            tables.append(FoundTable(location, location.usual_name))
            continue
        matches = [name for name in location.names if name in names]
        if not matches and location.table.width_key:  # transformers computes it in models with tensors next to it
            container = "".join(location.table.name.rsplit(".", 2)[:-2]) + location.table.next_to
            prefixes = [p for p in location.prefixes if any(name.startswith(p + container) for name in names)]
            usual = [location.usual_name] * (len(architecture.locations) == 1)  # the file may use other names
            matches = [prefix + location.table.name for prefix in prefixes[-1:]] or usual
        if len(matches) > 1:
            message = f"{where}: found two candidate position tables, {' and '.join(matches)}."
            raise CheckpointError(message, "Save the model again with save_pretrained, which writes one.")
        tables += [FoundTable(location, name) for name in matches]
    if not tables and architecture.unsupported:
        raise architecture.unsupported_error()
    if not tables:
        expected = " or ".join(dict.fromkeys(name for location in architecture.locations for name in location.names))
        message = f"{where}: no position table found; in a {architecture.family.model_type} model it is {expected}."
        raise CheckpointError(message, "Check that the weights match model_type in config.json, or --model-type.")
    return tuple(tables)


def tables_of_part(tables: Sequence[FoundTable], part: str | None) -> list[FoundTable]:
    """Return the tables of one part of a model, or all tables if `part` is None."""
    selected = [table for table in tables if part is None or f"{table.location.part}.".startswith(f"{part}.")]
    if not selected:
        parts = " or ".join(dict.fromkeys(f"--part {location.part}" for location, _ in tables if location.part))
        hint = f"Use {parts}." if parts else "The model has one position table: remove --part."
        raise ResizeError(f"--part {part}: this model has no such part with a position table.", hint)
    return selected


def check_tensor(model: OpenedModel) -> None:
    """Raise ResizeError if other tables of a supported model type share the length of the one in `--tensor`."""
    with suppress(CheckpointError, UnsupportedModelError):  # of other types, nothing more is known
        for location, name in find_tables(find_architecture(model.checkpoint.config), model.checkpoint.names, ""):
            if model.ref.tensor not in (None, name) and location.config_key == model.ref.config_key:
                message = f"--tensor {model.ref.tensor}: {name} shares the config key {location.config_key}, "
                raise ResizeError(f"{message}so both must be resized together.", "Remove --tensor.")


def describe_table(checkpoint: Checkpoint, table: FoundTable) -> TableShape:
    """Return shape, dtype and file of a table; dtype and file are empty if it is computed, not stored."""
    location, name = table
    if name not in checkpoint.names or location.table.ignores_stored_rows:
        return computed_shape(location)
    file = checkpoint.names[name]
    entry, _ = file.entries[name], float_dtype(file, name)
    if len(entry.shape) != 2 or 0 in entry.shape:
        message = f"{file.path}: {name} has shape {list(entry.shape)}, expected (rows, hidden_size)."
        raise CheckpointError(message, "Save it again.")
    return (entry.shape[0], entry.shape[1]), entry.dtype, checkpoint.relative(file)


def ignored_tensors(checkpoint: Checkpoint, tables: Sequence[FoundTable]) -> Iterator[str]:
    """Yield a note for each stored table that transformers ignores, because it computes the rows itself."""
    for location, name in tables:
        if location.table.ignores_stored_rows and name in checkpoint.names:
            yield f"transformers computes the rows of {name} and ignores the stored ones, which stay as they are."


def computed_shape(location: TableLocation) -> TableShape:
    """Return the shape that transformers computes from the config, and an empty dtype and file."""
    if location.table.scheme:
        length = position_lengths(location).context
        if length < 1:
            message = f"config.json: {location.config_key} must be at least 1, got {length}."
            raise CheckpointError(message, "Correct config.json.")
        return (location.rows(location.key_value(length)), 0), "", ""
    rows = location.rows(location.value(location.effective_key))
    return (rows, location.value(str(location.table.width_key))), "", ""


def check_rows(location: TableLocation, rows: int, name: str, *, has_config: bool = True) -> None:
    """Raise CheckpointError if a table does not have the number of rows that the config states."""
    if has_config:
        key = location.effective_key
        path, value = ".".join((*location.path, key)), location.value(key)
        expected = location.rows(value)
        if rows != expected:
            default = "" if location.stated(key) is not None else " (transformers' default, because the key is missing)"
            message = f"config.json: {path} is {reprlib.repr(value)}{default}, so {name} should have "
            hint = "Correct config.json (see ctxextend inspect MODEL --check), or download config and weights again."
            raise CheckpointError(f"{message}{reprlib.repr(expected)} rows, but has {rows}.", hint)
    if location.positions(rows) < 1:
        after = f" and {location.table.extra_rows} come after the last position" if location.table.extra_rows else ""
        message = f"{name} has {rows} rows, of which {location.reserved_rows} are reserved{after}: no position is left."
        reserved = location.table.reserved.config_key or "the number of reserved rows"
        raise CheckpointError(message, f"Check {reserved} and {location.config_key}.")


def stated_width(location: TableLocation, columns: int) -> tuple[str, int] | None:
    """Return the config key, with dots, that states the width of a table, and its value.

    None if the config states no such key, so that transformers' default applies, or if the key is unknown. A config
    may state a width twice, under the name that its model type uses and under another: the one that is right counts.
    """
    family, part = location.family, location.table.part
    if location.table not in family.tables or (family.model_type, part) in OTHER_WIDTH_PARTS:
        return None  # a table named with --tensor, of which no more is known
    own = OWN_WIDTH_KEYS.get(family.model_type)
    prefix = location.table.config_key.rpartition(".")[0]
    found = list[tuple[str, int]]()
    for key in WIDTH_KEYS if own is None else own:
        key = f"{prefix}.{key}".lstrip(".")
        value = location.stated(key)
        if type(value) is int:
            found.append((".".join((*location.path, key)), value))
    if own is not None:
        found = found[:1]
    matching = [(key, value) for key, value in found if value == columns]
    return next(iter((*matching, *found)), None)


def width_fault(location: TableLocation, columns: int, name: str) -> str:
    """Describe a config that states another width than a stored table has; empty if it does not."""
    stated = stated_width(location, columns)
    if stated is None or stated[1] == columns:
        return ""
    key, value = stated
    return f"config.json: {key} is {reprlib.repr(value)}, but {name} has {columns} columns."


def check_width(location: TableLocation, columns: int, name: str) -> None:
    """Raise CheckpointError if the config states another width than a stored table has."""
    if fault := width_fault(location, columns, name):
        hint = "Correct config.json, or download config and weights again: transformers cannot load them together."
        raise CheckpointError(fault, hint)


def _in_adapter(checkpoint: Checkpoint, architecture: Architecture) -> Architecture:
    base, locations = checkpoint.adapter_of, list[TableLocation]()
    for location in architecture.locations:
        locations.append(replace(location, prefixes=tuple(ADAPTER_PREFIX + prefix for prefix in location.prefixes)))
    names = [name for location in locations for name in location.names]
    if any(name in checkpoint.names for name in names):
        return replace(architecture, locations=tuple(locations))
    modules = tuple(name.removesuffix("weight") for name in names)
    if any(name.startswith(modules) for name in checkpoint.names):
        verb, hint = "changes", f"Merge it into {base} with merge_and_unload(), and resize that."
    else:
        verb, hint = "does not contain", f"Resize {base}, then load the adapter onto the result."
    raise CheckpointError(f"The PEFT adapter in {checkpoint.root} {verb} the position table.", hint)


def _from_flags(checkpoint: Checkpoint, ref: CheckpointRef) -> Architecture:
    """Return the architecture that --tensor, --config-key and --reserved-rows describe."""
    table, key, reserved = str(ref.tensor), ref.config_key, ref.reserved_rows
    shape = checkpoint.entries[table].shape if table in checkpoint.names else ()
    rows = shape[0] if shape else 0
    stated = nested(checkpoint.config, tuple((key or "").split(".")))
    if len(shape) != 2:
        missing = f"no such tensor in {checkpoint.root}"
        fault = f"it has shape {list(shape)}, expected (rows, hidden_size)" if shape else missing
        message, about = f"--tensor {table}: {fault}.", None
    elif key is None and checkpoint.has_config:
        message, about = f"--tensor {table}: add --config-key, the key in config.json that states its length.", table
    elif checkpoint.has_config and stated not in (rows, rows - reserved):
        message = f"config.json: {key} is {stated!r}, but {table} has {rows} rows, {reserved} of them reserved."
        about = table
    else:
        *path, last = (key or "max_position_embeddings").split(".")
        family = Family(str(checkpoint.config.get("model_type") or "unknown"))
        entry = PositionTable(table, last, reserved=ReservedRows(reserved, inside_key=stated == rows))
        return Architecture(family, (TableLocation(entry, family, "", ("",), tuple(path), (), checkpoint.config),))
    is_known = not shape and checkpoint.config.get("model_type") in FAMILIES
    hint = "Remove --tensor: the tables of this type are known." if is_known else _suggestions(checkpoint, about)
    raise CheckpointError(message, hint or "Check --tensor, --config-key and --reserved-rows.")


def _suggestions(checkpoint: Checkpoint, table: str | None = None) -> str:
    """List tensors that may be the position table, with flags for the most likely one; empty if there are none."""
    candidates = []
    for entry in checkpoint.entries.values():
        if len(entry.shape) != 2 or entry.dtype not in FLOATS or table not in (None, entry.name):
            continue
        rows, width = entry.shape
        is_named, keys = "pos" in entry.name.lower() or "wpe" in entry.name.lower(), []
        for key, value in _integers(checkpoint.config):
            reserved, is_likely = rows - value, any(word in key.lower() for word in LENGTH_WORDS)
            is_length = is_likely and 0 <= reserved <= (MAX_RESERVED_ROWS if is_named else 0)
            # Hidden and vocabulary sizes are not lengths.
            if is_length or (reserved == 0 and "size" not in key and value != width):
                keys.append((is_likely, reserved == 0, reserved, key))
        if keys or (is_named and rows > width // 8):
            is_likely, _, reserved, key = max(keys, key=lambda item: item[:2], default=(False, True, 0, ""))
            candidates.append((is_named, is_likely, bool(key), reserved == 0, entry, key, reserved))
    candidates = [item for item in candidates if item[0]] or candidates  # prefer tensors with a telling name
    candidates = sorted(candidates, key=lambda item: item[:4], reverse=True)[:MAX_SUGGESTIONS]
    if not candidates:
        return ""
    shown = "; ".join(
        f"{entry.name} {list(entry.shape)}" + (f" (rows = {key}{f' + {reserved}' * bool(reserved)})" if key else "")
        for *_, entry, key, reserved in candidates
    )
    *_, entry, key, reserved = candidates[0]
    pad, note = checkpoint.config.get("pad_token_id"), ""
    if not reserved and "embeddings.position_embeddings" in entry.name and type(pad) is int and pad > 0:
        # RoBERTa's convention: 514 rows are 512 positions, after pad_token_id + 1 reserved rows.
        reserved = pad + 1 if (entry.shape[0] - pad - 1) % 8 == 0 else 0  # lengths are multiples of 8
        note = f"Reserved rows: {reserved}, suggested by pad_token_id {pad}. " if reserved else ""
    note = note or "If rows are reserved before position 0, add --reserved-rows K. " * (not reserved)
    flags = flag_words({"tensor": entry.name, "reserved-rows": reserved or None, "config-key": key or "KEY"})
    return f"Candidate position tables: {shown}. {note}{SPECIFY_TABLE}{shlex.join(flags)}"


def _integers(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _integers(value, f"{path}{key}.")
        elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield f"{path}{key}", value
