"""Open a checkpoint: detect its architecture, and find its position tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NoReturn

from numpy.typing import NDArray

from ctxextend.checkpoint.filenames import is_gguf
from ctxextend.checkpoint.folder import ADAPTER_PREFIX, Checkpoint, open_checkpoint
from ctxextend.checkpoint.gguf_checkpoint import open_gguf_checkpoint
from ctxextend.checkpoint.mistral_files import mistral_params, without_format
from ctxextend.checkpoint.source import resolve_source
from ctxextend.errors import CheckpointError, listed
from ctxextend.families.lookup import Architecture, look_up_architecture, matching_types
from ctxextend.families.registry import is_unknown
from ctxextend.limits.statements import with_trained_length
from ctxextend.notes import Code, Level, Note
from ctxextend.opening.own_code import describe_code, own_class, refuse_code
from ctxextend.opening.unknown_models import (
    check_model_type,
    refuse_missing_table,
    refuse_unknown_type,
)
from ctxextend.positions.positions import Positions
from ctxextend.settings import CheckpointRef

CheckType = Callable[[str], object]  # raises for a model type that the caller does not support


@dataclass(frozen=True)
class OpenedModel:
    """A checkpoint with its detected architecture; no weights are read yet."""

    ref: CheckpointRef  # as the user named it
    checkpoint: Checkpoint
    architecture: Architecture
    tables: tuple[Positions, ...]  # its position tables, in registry order

    def without_other_format(self) -> "OpenedModel":
        """Return the model without its files in Mistral's own format, which have other weights."""
        locations = [
            replace(location, without_scaling_key=False) for location in self.architecture.locations
        ]
        return replace(
            self,
            checkpoint=without_format(self.checkpoint),
            architecture=self.architecture._replace(locations=tuple(locations)),
        )

    def with_notes(self, *notes: Note) -> "OpenedModel":
        """Return the model with more notes for the user, unless it has them already."""
        checkpoint = self.checkpoint
        for note in notes:
            checkpoint = _with_note(checkpoint, note)
        return replace(self, checkpoint=checkpoint)

    def read_table(self) -> NDArray[Any] | None:
        """Return the first position table, shape (rows, hidden_size); None if it is not stored.

        Raises:
            CheckpointError: It cannot be read.
        """
        name = self.tables[0].name
        if name not in self.checkpoint.weights.entries:
            return None
        return self.checkpoint.weights.read_floats(name)


def _with_note(checkpoint: Checkpoint, note: Note) -> Checkpoint:
    """Return a checkpoint with another note on how it was resolved."""
    source = checkpoint.source
    if note in source.notes:
        return checkpoint
    return replace(checkpoint, source=source._replace(notes=(*source.notes, note)))


def open_model(
    ref: CheckpointRef,
    check_type: CheckType = lambda model_type: None,
    *,
    reads_gguf: bool = False,
    only_headers: bool = False,
) -> OpenedModel:
    """Open a checkpoint, detect its architecture, and find its position tables.

    Args:
        ref: The checkpoint.
        check_type: As in `open_reference`.
        reads_gguf: Whether it may be a GGUF file, which transformers does not load as it is.
        only_headers: As in `open_reference`.

    Raises:
        SourceError: The checkpoint does not exist or cannot be reached.
        RemoteWeightsError: `only_headers` is set, but values of tensors are needed.
        CheckpointError: A file is missing or malformed, or does not contain the table.
        UnsupportedModelError: The model has no supported position table.
    """
    checkpoint = open_reference(ref, check_type, reads_gguf=reads_gguf, only_headers=only_headers)
    return identify_model(checkpoint, ref)


def open_reference(
    ref: CheckpointRef,
    check_type: CheckType = lambda model_type: None,
    *,
    reads_gguf: bool = False,
    only_headers: bool = False,
) -> Checkpoint:
    """Resolve a checkpoint reference, and read the headers.

    Args:
        ref: The reference.
        check_type: Raises for other model types that the caller does not support. Unsupported types
            fail before any download.
        reads_gguf: Whether it may be a GGUF file.
        only_headers: Whether the caller needs only the headers of weights, and reads no tensor
            before it has caught `RemoteWeightsError`: those of a Hub id are then not downloaded.

    Raises:
        SourceError: The checkpoint does not exist or cannot be reached.
        CheckpointError: A file is missing or malformed.
        UnsupportedModelError: The config says that the model has no supported position table.
    """

    def check(config: Mapping[str, Any], has_weights: bool = True) -> None:
        model_type = ref.model_type or config.get("model_type")
        if ref.table is not None or not isinstance(model_type, str):
            return
        if has_weights and is_unknown(model_type, config):
            return
        _known_architecture(config, "config.json", ref.model_type)
        check_type(model_type)

    source = resolve_source(
        ref.source, ref.revision, ref.subfolder, ref.variant, check, only_headers=only_headers
    )
    if reads_gguf and is_gguf(source.file):
        from ctxextend.gguf.gguf_model import check_gguf_ref

        check_gguf_ref(ref)
        return open_gguf_checkpoint(source)
    return open_checkpoint(source, ref.variant, check)


def identify_model(checkpoint: Checkpoint, ref: CheckpointRef) -> OpenedModel:
    """Find the architecture and the position tables of an open checkpoint.

    The tensors decide if its config has no model type.

    Raises:
        CheckpointError: It does not contain the table of its type, or a file is malformed.
        UnsupportedModelError: The model has no supported position table.
    """
    if checkpoint.is_gguf:
        from ctxextend.gguf.gguf_model import find_gguf_positions, measure_gguf_tables

        architecture = with_trained_length(
            find_gguf_positions(checkpoint), checkpoint, ref.trained_length
        )
        tables = measure_gguf_tables(checkpoint, architecture)
        return OpenedModel(ref, checkpoint, architecture, tables)

    model_type = ref.model_type
    is_named = model_type is not None or ref.table is not None
    if checkpoint.config and not is_named and checkpoint.config.get("model_type") is None:
        checkpoint, model_type = _detect_type(checkpoint)
    architecture = _find_architecture(checkpoint, replace(ref, model_type=model_type))
    locations = tuple(location.as_none_if_unrotated() for location in architecture.locations)
    architecture = with_trained_length(
        architecture._replace(locations=locations), checkpoint, ref.trained_length
    )
    if mistral_params(checkpoint) is not None:
        architecture = _without_scaling_key(architecture)
    names = checkpoint.weights.entries
    found = architecture.match_names(names, str(checkpoint.root))
    if not found:
        refuse_missing_table(checkpoint, architecture)
    if ref.model_type is not None:
        check_model_type(checkpoint, found, ref.model_type)
    elif own_class(checkpoint.config):
        text = describe_code(checkpoint.config, checkpoint.config_file)
        checkpoint = _with_note(checkpoint, Note(Code.OWN_CODE, Level.NOTE, text))
    return OpenedModel(
        ref=ref,
        checkpoint=checkpoint,
        architecture=architecture,
        tables=tuple(positions.sized_in(checkpoint) for positions in found),
    )


# ---- the model type


def _detect_type(checkpoint: Checkpoint) -> tuple[Checkpoint, str | None]:
    """Return the model type that the tensors match, and the checkpoint with a note on it.

    Raises:
        CheckpointError: They match several types.
    """
    shapes = {name: entry.shape for name, entry in checkpoint.weights.entries.items()}
    matching = matching_types(checkpoint.config, shapes)
    if not matching:
        return checkpoint, None
    file = checkpoint.config_file
    if len(matching) > 1:
        message = f"{file} has no model_type, and its tensors match {listed(matching)}."
        raise CheckpointError(message, "Name the type: --model-type TYPE.")
    text = f"{file} has no model_type; detected {matching[0]} from its tensors."
    return _with_note(checkpoint, Note(Code.SOURCE, Level.NOTE, text)), matching[0]


# ---- the architecture


def _without_scaling_key(architecture: Architecture) -> Architecture:
    """Return an architecture that states no ``rope_scaling``, as next to Mistral's params.json.

    vLLM 0.33 adds the keys of config.json to those of params.json, and does not load the result if
    it has ``rope_scaling`` and ``rope_theta``: ``adapt_config_dict`` of
    vllm/transformers_utils/configs/mistral.py. It takes no keys from nested configs.
    """
    locations = list[Positions]()
    for location in architecture.locations:
        locations.append(replace(location, without_scaling_key=not location.path))
    return architecture._replace(locations=tuple(locations))


def _find_architecture(checkpoint: Checkpoint, ref: CheckpointRef) -> Architecture:
    """Return the architecture of a checkpoint: the one that the user names, or the config's.

    Raises:
        CheckpointError: Neither states a model type, or a key is malformed.
        UnsupportedModelError: The type is unknown or has no position table.
    """
    config = checkpoint.config
    if ref.table is not None:
        from ctxextend.opening.named_table import named_architecture  # few users name a table

        return named_architecture(checkpoint, ref.table)
    model_type = ref.model_type or config.get("model_type")
    if not config and model_type is None:
        _refuse_without_config(checkpoint)
    if isinstance(model_type, str) and is_unknown(model_type, config):
        refuse_unknown_type(checkpoint, model_type)
    if model_type is None and own_class(config):
        refuse_code(config, checkpoint.config_file, found="It has no model_type.")
    where = checkpoint.root
    if checkpoint.has_config:
        where = checkpoint.root / checkpoint.config_file
    architecture = _known_architecture(config, str(where), ref.model_type)
    if checkpoint.adapter_of:
        return _in_adapter(checkpoint, architecture)
    return architecture


def _refuse_without_config(checkpoint: Checkpoint) -> NoReturn:
    """Raise CheckpointError for weights without a config."""
    file = checkpoint.weights.first_file.path
    example = "the model type, for example --model-type gpt2."
    if not checkpoint.adapter_of:
        message = f"No config.json found next to {file}, so the model type is unknown."
        raise CheckpointError(message, f"Pass {example}")
    raise CheckpointError(
        f"{file} is a PEFT adapter of {checkpoint.adapter_of}, whose config is not read.",
        f"Resize {checkpoint.adapter_of}, then load the adapter. If the adapter contains the "
        f"table, pass {example}",
    )


def _known_architecture(
    config: Mapping[str, Any], where: str, model_type: str | None
) -> Architecture:
    """Return the architecture of a known type.

    Raises:
        CheckpointError: A key of the config is malformed.
        UnsupportedModelError: The class of transformers has no position table; the folder's own
            code is named if it has any.
    """
    architecture = look_up_architecture(config, where, model_type)
    if not architecture.locations:
        if model_type is None and own_class(config):
            refuse_code(config, PurePath(where).name)
        architecture.refuse()
    return architecture


def _in_adapter(checkpoint: Checkpoint, architecture: Architecture) -> Architecture:
    """Return an architecture with the names that its tables have in a PEFT adapter.

    Raises:
        CheckpointError: The adapter does not contain the table, or changes it by an adapter.
    """
    locations = list[Positions]()
    for location in architecture.locations:
        prefixes = tuple(ADAPTER_PREFIX + prefix for prefix in location.prefixes)
        locations.append(replace(location, prefixes=prefixes))
    names = [name for location in locations for name in location.names]
    if any(name in checkpoint.weights.entries for name in names):
        return architecture._replace(locations=tuple(locations))
    base = checkpoint.adapter_of
    verb = "does not contain"
    hint = f"Resize {base}, then load the adapter onto the result."
    modules = tuple(name.removesuffix("weight") for name in names)
    if any(name.startswith(modules) for name in checkpoint.weights.entries):
        verb = "changes"
        hint = f"Merge it into {base} with merge_and_unload(), and resize that."
    raise CheckpointError(f"The PEFT adapter in {checkpoint.root} {verb} the position table.", hint)
