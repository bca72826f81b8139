"""Open a checkpoint, detect its architecture, and find its position tables."""

import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ctxextend.checkpoints.folder import (
    ADAPTER_PREFIX,
    Checkpoint,
    open_checkpoint,
    with_code,
    with_short_names,
)
from ctxextend.checkpoints.safetensors_file import float_dtype, read_floats
from ctxextend.checkpoints.source import resolve_source
from ctxextend.checkpoints.wrappers import MODEL, common_prefix, has_adapters, is_wrapped_model
from ctxextend.errors import (
    SPECIFY_TABLE,
    CheckpointError,
    CtxextendError,
    ResizeError,
    UnsupportedModelError,
)
from ctxextend.families.lengths import position_lengths
from ctxextend.families.lookup import (
    Architecture,
    TableLocation,
    find_architecture,
    matching_types,
    nested,
    whole_number,
)
from ctxextend.families.registry import FAMILIES
from ctxextend.families.schema import Family, LearnedTable, ReservedRows, SinusoidalTable
from ctxextend.families.unsupported import FAMILIES_HINT, POSITION_SCHEMES
from ctxextend.plan.own_code import (
    ANGLES,
    advise_code,
    code_error,
    describe_code,
    list_keys,
    named_scheme,
    own_class,
    stated_positions,
)
from ctxextend.plan.trained_length import with_trained_length
from ctxextend.recipe import CheckpointRef

MAX_SUGGESTIONS = 5
HAVE_MODEL_TWICE = (
    "shieldgemma2",
)  # types of transformers whose own names start with ``model.model.``
SAME_SETTINGS = (
    "If the weights are those of a known type with the same settings, name it: --model-type TYPE."
)

# Config keys of the width of a position table. Each model type states one of them, or, if it is
# listed below, the first of the listed keys that its config states; a table with none is not as
# wide as any key says.
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
        return replace(self, checkpoint=with_code(self.checkpoint))

    def read_table(self) -> NDArray[Any] | None:
        """Return the first position table, shape (rows, hidden_size); None if it is not stored."""
        name = self.tables[0].name
        file = self.checkpoint.names.get(name)
        return read_floats(file, name) if file else None


def open_model(
    ref: CheckpointRef, check_type: Callable[[str], None] = lambda model_type: None
) -> OpenedModel:
    """Open a checkpoint, detect its architecture, and find its position tables; see
    `open_reference`.
    """
    return identify_model(open_reference(ref, check_type), ref)


def open_reference(
    ref: CheckpointRef, check_type: Callable[[str], None] = lambda model_type: None
) -> Checkpoint:
    """Resolve a checkpoint reference and read the headers; fail for unsupported model types before
    any download.

    `check_type` raises for other model types that the caller does not support.
    """

    def check(config: Mapping[str, Any], has_weights: bool = True) -> None:
        model_type = ref.model_type or config.get("model_type")
        is_named = ref.tensor is not None
        if (
            not is_named
            and isinstance(model_type, str)
            and not (has_weights and _is_unknown(model_type, config))
        ):
            _known_architecture(config, "config.json", ref.model_type)
            check_type(model_type)

    source = resolve_source(ref.source, ref.revision, ref.subfolder, ref.variant, check)
    return open_checkpoint(source, ref.variant, check)


def _is_unknown(model_type: str, config: Mapping[str, Any]) -> bool:
    """Whether the tensors must decide: the model type is unknown, or unsupported with a part of a
    known type.
    """
    return model_type not in FAMILIES and (
        model_type not in POSITION_SCHEMES or bool(_known_parts(config))
    )


def _known_parts(config: Mapping[str, Any]) -> list[str]:
    types = [value.get("model_type") for value in config.values() if isinstance(value, Mapping)]
    return [name for name in types if isinstance(name, str) and name in FAMILIES]


def identify_model(checkpoint: Checkpoint, ref: CheckpointRef) -> OpenedModel:
    """Find the architecture and position tables of an open checkpoint; tensors decide if it has no
    model_type.
    """
    model_type, config = ref.model_type, checkpoint.config
    if config and ref.tensor is None and model_type is None and config.get("model_type") is None:
        matching = matching_types(
            config, {name: entry.shape for name, entry in checkpoint.entries.items()}
        )
        if len(matching) > 1:
            listed = ", ".join(matching[:MAX_SUGGESTIONS]) + " and others" * (
                len(matching) > MAX_SUGGESTIONS
            )
            message = f"{checkpoint.config_file} has no model_type, and its tensors match {listed}."
            raise CheckpointError(message, f"{SPECIFY_TABLE}--model-type TYPE")
        if matching:
            model_type = matching[0]
            source = checkpoint.source
            note = (
                f"{checkpoint.config_file} has no model_type; detected {model_type} from its "
                "tensors."
            )
            checkpoint = replace(checkpoint, source=source._replace(notes=(*source.notes, note)))
    architecture = _architecture(checkpoint, replace(ref, model_type=model_type))
    architecture = with_trained_length(architecture, checkpoint, ref.trained_length)
    checkpoint = _without_prefix(checkpoint, architecture)
    tables = match_tables(architecture, checkpoint.names, str(checkpoint.root))
    if not tables:
        raise _no_table_error(checkpoint, architecture, ref)
    if ref.model_type is not None:
        _check_model_type(checkpoint, tables, ref.model_type)
    elif own_class(config):
        notes = (*checkpoint.source.notes, describe_code(config, checkpoint.config_file))
        checkpoint = replace(checkpoint, source=checkpoint.source._replace(notes=notes))
    return OpenedModel(ref, checkpoint, architecture, tables)


def _without_prefix(checkpoint: Checkpoint, architecture: Architecture) -> Checkpoint:
    """Return a checkpoint without a prefix of all names that only a wrapper of the model has
    added.
    """
    names = checkpoint.names
    tables = [location for location in architecture.locations if location.table.has_rows]
    expected = {name for location in tables for name in location.names}
    if checkpoint.adapter_of or not expected.isdisjoint(names):
        return checkpoint
    prefix = common_prefix(names, expected)
    if (
        not prefix
        and architecture.family.model_type not in HAVE_MODEL_TWICE
        and is_wrapped_model(names)
    ):
        prefix = MODEL
    if not prefix or has_adapters(names):
        return checkpoint
    return with_short_names(checkpoint, prefix)


def _no_table_error(
    checkpoint: Checkpoint, architecture: Architecture, ref: CheckpointRef
) -> CtxextendError:
    """Return the error for weights without a position table of their model type."""
    config = checkpoint.config
    names = checkpoint.names
    where = str(checkpoint.root)
    model_type = architecture.family.model_type
    expected = " or ".join(_expected(architecture))
    if own_class(config) and not architecture.unsupported:
        found = (
            f"The weights have no position table, which in transformers' {model_type} models is "
            f"{expected}."
        )
        return code_error(config, checkpoint.config_file, names=names, found=found)
    if own_class(config):
        return code_error(config, checkpoint.config_file, names=names)
    error = no_table_error(architecture, where)
    if isinstance(error, UnsupportedModelError):
        return error
    if has_adapters(names):
        hint = (
            "Its adapters are not merged. Merge them with merge_and_unload() of PEFT, and save "
            "the model again."
        )
        return CheckpointError(error.message, hint)
    if likely := _likely_type(checkpoint, model_type):
        return CheckpointError(
            error.message, f"Did you mean {likely}? {SPECIFY_TABLE}--model-type {likely}"
        )
    endings = tuple(f".{name}" for name in _expected(architecture))
    if inside := next((name for name in names if name.endswith(endings)), None):
        message = f"{error.message} It has {inside}, but not all names have that prefix."
        return CheckpointError(
            message, "Save only the model's tensors: torch.save(model.state_dict(), NAME)."
        )
    if stated := stated_positions(config):
        message = (
            f"{error.message} The config states {list_keys(stated)}, which transformers' class "
            "may not read."
        )
        return CheckpointError(message, error.hint)
    return error


def _architecture(checkpoint: Checkpoint, ref: CheckpointRef) -> Architecture:
    """Return the architecture of a checkpoint; the reference's `model_type` and `tensor` override
    the config.
    """
    config = checkpoint.config
    if ref.tensor is not None:
        return _from_flags(checkpoint, ref)
    model_type = ref.model_type or config.get("model_type")
    if not config and model_type is None:
        file = checkpoint.weights.first_file.path
        hint = "Pass"
        message = f"No config.json found next to {file}, so the model type is unknown."
        if checkpoint.adapter_of:
            message = (
                f"{file} is a PEFT adapter of {checkpoint.adapter_of}, whose config is not read."
            )
            hint = (
                f"Resize {checkpoint.adapter_of}, then load the adapter. If the adapter contains "
                "the table, pass"
            )
        raise CheckpointError(message, f"{hint} the model type, for example --model-type gpt2.")
    if isinstance(model_type, str) and _is_unknown(model_type, config):
        raise _unknown_error(checkpoint, model_type)
    if model_type is None and own_class(config):
        raise code_error(config, checkpoint.config_file, found="It has no model_type.")
    where = (
        str(checkpoint.root / checkpoint.config_file)
        if checkpoint.has_config
        else str(checkpoint.root)
    )
    architecture = _known_architecture(config, where, ref.model_type)
    return _in_adapter(checkpoint, architecture) if checkpoint.adapter_of else architecture


def _known_architecture(
    config: Mapping[str, Any], where: str, model_type: str | None
) -> Architecture:
    """Return the architecture of a known type; name the folder's own code if transformers' class
    has no positions.
    """
    try:
        return find_architecture(config, where, model_type)
    except UnsupportedModelError as error:
        if model_type is None and own_class(config):
            raise code_error(config, PurePath(where).name) from error
        raise


def _unknown_error(checkpoint: Checkpoint, model_type: str) -> UnsupportedModelError:
    """Return the error for an unknown model type, with flags for it if its positions are a table or
    a known type's.
    """
    from ctxextend.plan.suggestions import suggest_tensor  # only errors need it

    config, names = checkpoint.config, checkpoint.names
    parts = _known_parts(config)
    message = f"Unknown model type {model_type!r}"
    message += f", but it contains a part of a known type: {', '.join(parts)}." if parts else "."
    has_code = own_class(config) is not None
    if has_code:
        message += f" {describe_code(config, checkpoint.config_file)}"
    if likely := _likely_type(checkpoint, model_type):
        return UnsupportedModelError(
            message, f"Did you mean {likely}? {SPECIFY_TABLE}--model-type {likely}"
        )
    stated = stated_positions(config)
    scheme = named_scheme(stated, names)
    if scheme and not has_code:
        evidence = list_keys(stated) or f"the tensors have {ANGLES}"
        message += (
            f" Its positions are {scheme} ({evidence}), without a table, and only known types "
            "can be resized."
        )
    candidates = "" if scheme else suggest_tensor(checkpoint)
    hints = []
    if has_code:
        hints.append(advise_code(config, names))
    if candidates:
        hints.append(candidates)
    elif scheme:
        hints.append(
            f"{SAME_SETTINGS} Do not edit settings by hand: which ones its code reads is unknown."
        )
    else:
        hints.append(f"No tensor looks like a position table. {SAME_SETTINGS}")
    if not candidates:
        hints.append(FAMILIES_HINT)
    return UnsupportedModelError(message, " ".join(hints))


def _likely_type(checkpoint: Checkpoint, model_type: str) -> str | None:
    """Return a known type as which a checkpoint of another type can be resized, if its tensors or
    classes name one.
    """
    from difflib import get_close_matches  # imported here because only errors need it

    config = checkpoint.config
    matching = matching_types(
        config, {name: entry.shape for name, entry in checkpoint.entries.items()}
    )
    near = matching if len(matching) == 1 else get_close_matches(model_type, matching, 1)
    if not matching and own_class(config) is None:
        near = _types_of_class(checkpoint.model_class or "")
    return next(
        (name for name in near if name != model_type and _is_usable(checkpoint, name)), None
    )


def _types_of_class(model_class: str) -> list[str]:
    """Return the known type without a table of rows that a class of transformers is named after;
    empty if none is.
    """
    named = list[str]()
    for name, family in FAMILIES.items():
        has_rows = any(table.has_rows for table in family.tables)
        pattern = rf"(?i:{re.escape(re.sub('[-_]', '', name))})(?=[A-Z])"
        if not has_rows and re.match(pattern, model_class):
            named.append(name)
    return [max(named, key=len)] if named else []


def _is_usable(checkpoint: Checkpoint, model_type: str) -> bool:
    """Whether a checkpoint can be resized as this type: it has its tables, or its settings in the
    config.
    """
    try:
        architecture = find_architecture(checkpoint.config, model_type=model_type)
        tables = find_tables(architecture, checkpoint.names, "")
        for table in tables:
            (rows, _), _, _ = describe_table(checkpoint, table)
            if table.location.table.has_rows:
                check_rows(table.location, rows, table.name, has_config=checkpoint.has_config)
        _check_model_type(checkpoint, tables, model_type)
    except CtxextendError:
        return False
    return True


def _check_model_type(
    checkpoint: Checkpoint, tables: Sequence[FoundTable], model_type: str
) -> None:
    """Raise CheckpointError if the type that the user named has positions that neither weights nor
    config can have.
    """
    config = checkpoint.config
    flag = f"--model-type {model_type}"
    rules = [table.location for table in tables if not table.location.table.has_rows]
    if not rules or config.get("model_type") == model_type:
        return
    if not checkpoint.has_config:
        message = (
            f"{flag}: the positions of {model_type} are {rules[0].scheme}, with settings in "
            "config.json."
        )
        raise CheckpointError(message, f"{checkpoint.root} has no config.json: add the model's.")
    if stored := _stored_table(checkpoint):
        message = (
            f"{flag}: the weights have {stored}, the position table of a {config['model_type']} "
            "model, "
        )
        raise CheckpointError(
            f"{message}but {model_type} has {rules[0].scheme} positions.", "Remove --model-type."
        )
    for location in rules:
        if location.stated(location.effective_key) is None:
            message = (
                f"{flag}: config.json has no {location.config_key}, the context length of "
                f"{model_type}."
            )
            raise CheckpointError(message, "Name the type that the weights have, or add the key.")


def _stored_table(checkpoint: Checkpoint) -> str | None:
    """Return a position table in the weights of the type that the config states; None if there is
    none.
    """
    with suppress(CheckpointError, UnsupportedModelError):  # the type is unknown or has no table
        tables = match_tables(find_architecture(checkpoint.config), checkpoint.names, "")
        return next((name for _, name in tables if name in checkpoint.names), None)
    return None


def rewrites_model_type(checkpoint: Checkpoint, ref: CheckpointRef) -> bool:
    """Whether an output states the type that `ref` names as its model type, since transformers has
    no other for it.
    """
    stated = checkpoint.config.get("model_type")
    if ref.tensor is not None or not checkpoint.has_config:
        return False
    is_known = stated in (*FAMILIES, *POSITION_SCHEMES) or own_class(checkpoint.config) is not None
    return stated is None or (ref.model_type is not None and not is_known)


def with_type_note(model: OpenedModel) -> OpenedModel:
    """Return a model with a note on how an output is loaded, if the user named its type."""
    note = _describe_type(model)
    return model if note is None else with_note(model, note)


def with_note(model: OpenedModel, note: str) -> OpenedModel:
    """Return a model with another note for the user, unless it has that one already."""
    source = model.checkpoint.source
    if note in source.notes:
        return model
    source = source._replace(notes=(*source.notes, note))
    return replace(model, checkpoint=replace(model.checkpoint, source=source))


def _describe_type(model: OpenedModel) -> str | None:
    """Say which type an output states if the user named one; None if it states that type
    already.
    """
    checkpoint, model_type = model.checkpoint, model.ref.model_type
    stated = checkpoint.config.get("model_type")
    if (
        stated is None or model_type != model.architecture.family.model_type
    ):  # a twin has another type than its source
        return None
    code = own_class(checkpoint.config)
    if code and stated == model_type:
        return (
            f"Planned for transformers' own {model_type} class: load the output without "
            "trust_remote_code=True."
        )
    if code:
        load = (
            f"To load it as {model_type}, set model_type to {model_type} there and remove auto_map."
        )
        return (
            f"{checkpoint.config_file} keeps model_type {stated} and auto_map: its own code "
            f"loads the output. {load}"
        )
    if stated == model_type:
        return None
    if rewrites_model_type(checkpoint, model.ref):
        return (
            f"The output's {checkpoint.config_file} has model_type {model_type} instead of "
            f"{stated}."
        )
    load = f"If the weights are those of {model_type}, set it to {model_type}."
    return (
        f"{checkpoint.config_file} keeps model_type {stated}: transformers loads the output as "
        f"{stated}. {load}"
    )


def check_own_code(model: OpenedModel) -> None:
    """Raise UnsupportedModelError if positions that are not in the weights are those of the
    folder's own code.
    """
    checkpoint = model.checkpoint
    is_stored = all(table.name in checkpoint.names for table in model.tables)
    if own_class(checkpoint.config) is None or model.ref.model_type is not None or is_stored:
        return
    stated = checkpoint.config.get("model_type")
    usable = stated if isinstance(stated, str) and _is_usable(checkpoint, stated) else None
    raise code_error(
        checkpoint.config, checkpoint.config_file, names=checkpoint.names, usable=usable
    )


def resizable_ref(model: OpenedModel) -> CheckpointRef:
    """Return the reference with which `resize` accepts a model: for one with own code, with its
    model type.
    """
    try:
        check_own_code(model)
    except UnsupportedModelError:
        return replace(model.ref, model_type=model.architecture.family.model_type)
    return model.ref


def find_tables(
    architecture: Architecture, names: Collection[str], where: str
) -> tuple[FoundTable, ...]:
    """Return the position tables among a model's tensor `names`, in registry order; raise an error
    without any.
    """
    tables = match_tables(architecture, names, where)
    if not tables:
        raise no_table_error(architecture, where)
    return tables


def match_tables(
    architecture: Architecture, names: Collection[str], where: str
) -> tuple[FoundTable, ...]:
    """Return the position tables among a model's tensor `names`, in registry order; there may be
    none.
    """
    tables = list[FoundTable]()
    for location in architecture.locations:
        if not location.table.has_rows:
            tables.append(FoundTable(location, location.usual_name))
            continue
        matches = [name for name in location.names if name in names]
        if (
            not matches
            and isinstance(location.table, SinusoidalTable)
            and location.table.is_computed
        ):
            # transformers computes it in models with tensors next to it
            neighbors = location.table.neighbors
            prefixes = [
                p
                for p in location.prefixes
                if any(name.startswith(p + neighbors) for name in names)
            ]
            usual = [location.usual_name] * (
                len(architecture.locations) == 1
            )  # the file may use other names
            matches = [prefix + location.table.name for prefix in prefixes[-1:]] or usual
        if len(matches) > 1:
            message = f"{where}: found two candidate position tables, {' and '.join(matches)}."
            raise CheckpointError(
                message, "Save the model again with save_pretrained, which writes one."
            )
        tables += [FoundTable(location, name) for name in matches]
    return tuple(tables)


def no_table_error(architecture: Architecture, where: str) -> CtxextendError:
    """Return the error for a model whose tensors contain none of its position tables."""
    if architecture.unsupported:
        return architecture.unsupported_error()
    expected = " or ".join(_expected(architecture))
    message = (
        f"{where}: no position table found; in a {architecture.family.model_type} model it is "
        f"{expected}."
    )
    return CheckpointError(
        message, "Check that the weights match model_type in config.json, or --model-type."
    )


def _expected(architecture: Architecture) -> list[str]:
    """Return the names that the position tables of a model can have."""
    return list(
        dict.fromkeys(name for location in architecture.locations for name in location.names)
    )


def tables_of_part(tables: Sequence[FoundTable], part: str | None) -> list[FoundTable]:
    """Return the tables of one part of a model, or all tables if `part` is None."""
    selected = [
        table
        for table in tables
        if part is None or f"{table.location.part}.".startswith(f"{part}.")
    ]
    if not selected:
        parts = " or ".join(
            dict.fromkeys(f"--part {location.part}" for location, _ in tables if location.part)
        )
        hint = f"Use {parts}." if parts else "The model has one position table: remove --part."
        raise ResizeError(
            f"--part {part}: this model has no such part with a position table.", hint
        )
    return selected


def check_tensor(model: OpenedModel) -> None:
    """Raise ResizeError if other tables of a supported model type share the length of the one in
    `--tensor`.
    """
    with suppress(CheckpointError, UnsupportedModelError):  # of other types, nothing more is known
        for location, name in find_tables(
            find_architecture(model.checkpoint.config), model.checkpoint.names, ""
        ):
            if model.ref.tensor not in (None, name) and location.config_key == model.ref.config_key:
                message = (
                    f"--tensor {model.ref.tensor}: {name} shares the config key "
                    f"{location.config_key}, "
                )
                raise ResizeError(f"{message}so both must be resized together.", "Remove --tensor.")


def describe_table(checkpoint: Checkpoint, table: FoundTable) -> TableShape:
    """Return shape, dtype and file of a table; dtype and file are empty if it is computed, not
    stored.
    """
    location, name = table
    if name not in checkpoint.names or location.table.ignores_stored_rows:
        return computed_shape(location)
    file = checkpoint.names[name]
    entry = file.entries[name]
    _ = float_dtype(file, name)
    if len(entry.shape) != 2 or 0 in entry.shape:
        message = (
            f"{file.path}: {name} has shape {list(entry.shape)}, expected (rows, hidden_size)."
        )
        raise CheckpointError(message, "Save it again.")
    return (entry.shape[0], entry.shape[1]), entry.dtype, checkpoint.relative(file)


def ignored_tensors(checkpoint: Checkpoint, tables: Sequence[FoundTable]) -> Iterator[str]:
    """Yield a note for each stored table that transformers ignores, because it computes the rows
    itself.
    """
    for location, name in tables:
        if location.table.ignores_stored_rows and name in checkpoint.names:
            yield (
                f"transformers computes the rows of {name} and ignores the stored ones, which "
                "stay as they are."
            )


def computed_shape(location: TableLocation) -> TableShape:
    """Return the shape that transformers computes from the config, and an empty dtype and file."""
    if not location.table.has_rows:
        length = position_lengths(location).context
        if length < 1:
            message = f"config.json: {location.config_key} must be at least 1, got {length}."
            raise CheckpointError(message, "Correct config.json.")
        return (location.rows(location.key_value(length)), 0), "", ""
    rows = location.rows(location.value(location.effective_key))
    assert isinstance(location.table, SinusoidalTable)
    return (rows, location.value(str(location.table.width_key))), "", ""


def check_rows(location: TableLocation, rows: int, name: str, *, has_config: bool = True) -> None:
    """Raise CheckpointError if a table does not have the number of rows that the config states."""
    if has_config:
        key = location.effective_key
        path, value = ".".join((*location.path, key)), location.value(key)
        expected = location.rows(value)
        if rows != expected:
            default = (
                ""
                if location.stated(key) is not None
                else " (transformers' default, because the key is missing)"
            )
            message = (
                f"config.json: {path} is {reprlib.repr(value)}{default}, so {name} should have "
            )
            hint = (
                "Correct config.json (see ctxextend inspect MODEL --check), resize with "
                "--fix-limits, which takes "
                "the length of the table, or download config and weights again."
            )
            raise CheckpointError(f"{message}{reprlib.repr(expected)} rows, but has {rows}.", hint)
    if location.positions(rows) < 1:
        after = (
            f" and {location.table.extra_rows} come after the last position"
            if location.table.extra_rows
            else ""
        )
        message = (
            f"{name} has {rows} rows, of which {location.reserved_rows} are reserved{after}: no "
            "position is left."
        )
        reserved = location.table.reserved.config_key or "the number of reserved rows"
        raise CheckpointError(message, f"Check {reserved} and {location.config_key}.")


def stated_width(location: TableLocation, columns: int) -> tuple[str, int] | None:
    """Return the config key, with dots, that states the width of a table, and its value.

    None if the config states no such key, so that transformers' default applies, or if the key is
    unknown. A config may state a width twice, under the name that its model type uses and under
    another: the one that is right counts.
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
        value = whole_number(value)
        if value is not None:
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
        hint = (
            "Correct config.json, or download config and weights again: transformers cannot load "
            "them together."
        )
        raise CheckpointError(fault, hint)


def _in_adapter(checkpoint: Checkpoint, architecture: Architecture) -> Architecture:
    base = checkpoint.adapter_of
    locations = list[TableLocation]()
    for location in architecture.locations:
        locations.append(
            replace(
                location, prefixes=tuple(ADAPTER_PREFIX + prefix for prefix in location.prefixes)
            )
        )
    names = [name for location in locations for name in location.names]
    if any(name in checkpoint.names for name in names):
        return architecture._replace(locations=tuple(locations))
    modules = tuple(name.removesuffix("weight") for name in names)
    if any(name.startswith(modules) for name in checkpoint.names):
        verb = "changes"
        hint = f"Merge it into {base} with merge_and_unload(), and resize that."
    else:
        verb = "does not contain"
        hint = f"Resize {base}, then load the adapter onto the result."
    raise CheckpointError(f"The PEFT adapter in {checkpoint.root} {verb} the position table.", hint)


def _from_flags(checkpoint: Checkpoint, ref: CheckpointRef) -> Architecture:
    """Return the architecture that --tensor, --config-key and --reserved-rows describe."""
    from ctxextend.plan.suggestions import suggest_tensor  # only errors need it

    table = str(ref.tensor)
    key = ref.config_key
    reserved = ref.reserved_rows
    shape = checkpoint.entries[table].shape if table in checkpoint.names else ()
    rows = shape[0] if shape else 0
    stated = nested(checkpoint.config, tuple((key or "").split(".")))
    if len(shape) != 2:
        missing = f"no such tensor in {checkpoint.root}"
        fault = f"it has shape {list(shape)}, expected (rows, hidden_size)" if shape else missing
        message = f"--tensor {table}: {fault}."
        about = None
    elif key is None and checkpoint.has_config:
        message = (
            f"--tensor {table}: add --config-key, the key in config.json that states its length."
        )
        about = table
    elif checkpoint.has_config and stated not in (rows, rows - reserved):
        message = (
            f"config.json: {key} is {stated!r}, but {table} has {rows} rows, {reserved} of them "
            "reserved."
        )
        about = table
    else:
        *path, last = (key or "max_position_embeddings").split(".")
        family = Family(str(checkpoint.config.get("model_type") or "unknown"))
        entry = LearnedTable(
            table, config_key=last, reserved=ReservedRows(reserved, inside_key=stated == rows)
        )
        location = TableLocation(
            family=family, config=checkpoint.config, path=tuple(path), table=entry
        )
        return Architecture(family, (location,))
    is_known = not shape and checkpoint.config.get("model_type") in FAMILIES
    hint = (
        "Remove --tensor: the tables of this type are known."
        if is_known
        else suggest_tensor(checkpoint, about)
    )
    raise CheckpointError(message, hint or "Check --tensor, --config-key and --reserved-rows.")
