"""Open a checkpoint: detect its architecture, and find its position tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NoReturn

from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.folder import ADAPTER_PREFIX, open_checkpoint
from ctxextend.checkpoint.source import resolve_source
from ctxextend.errors import CheckpointError
from ctxextend.families.registry import (
    Architecture,
    is_unknown,
    look_up_architecture,
)
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
    own_class: str | None = None  # in the folder's own code, that loads it

    def with_notes(self, *notes: Note) -> "OpenedModel":
        """Return the model with more notes for the user, unless it has them already."""
        source = self.checkpoint.source
        new = [note for note in notes if note not in source.notes]
        source = source._replace(notes=(*source.notes, *new))
        return replace(self, checkpoint=replace(self.checkpoint, source=source))

    def read_table(self) -> NDArray[Any] | None:
        """Return the first position table, shape (rows, hidden_size); None if it is not stored.

        Raises:
            CheckpointError: It cannot be read.
        """
        name = self.tables[0].name
        if name not in self.checkpoint.weights.entries:
            return None
        return self.checkpoint.weights.read(name)


def open_model(
    ref: CheckpointRef,
    check_type: CheckType = lambda model_type: None,
    *,
    only_headers: bool = False,
) -> OpenedModel:
    """Open a checkpoint, detect its architecture, and find its position tables.

    Args:
        ref: The checkpoint.
        check_type: As in `open_reference`.
        only_headers: As in `open_reference`.

    Raises:
        SourceError: The checkpoint does not exist or cannot be reached.
        RemoteWeightsError: `only_headers` is set, but values of tensors are needed.
        CheckpointError: A file is missing or malformed, or does not contain the table.
        UnsupportedModelError: The model has no supported position table.
    """
    checkpoint = open_reference(ref, check_type, only_headers=only_headers)
    return identify_model(checkpoint, ref)


def open_reference(
    ref: CheckpointRef,
    check_type: CheckType = lambda model_type: None,
    *,
    only_headers: bool = False,
) -> Checkpoint:
    """Resolve a checkpoint reference, and read the headers.

    Args:
        ref: The reference.
        check_type: Raises for other model types that the caller does not support. Unsupported types
            fail before any download.
        only_headers: Whether the caller needs only the headers of weights, and reads no tensor
            before it has caught `RemoteWeightsError`: those of a Hub id are then not downloaded.

    Raises:
        SourceError: The checkpoint does not exist or cannot be reached.
        CheckpointError: A file is missing or malformed.
        UnsupportedModelError: The config says that the model has no supported position table.
    """

    def check(config: Mapping[str, Any]) -> None:
        model_type = ref.model_type or config.get("model_type")
        if ref.table is not None or not isinstance(model_type, str):
            return
        architecture = look_up_architecture(config, "config.json", model_type)
        if not architecture.locations:
            if is_unknown(model_type):
                return
            _refuse_type(architecture, config, "config.json", ref)
        check_type(model_type)

    source = resolve_source(
        ref.source, ref.revision, ref.subfolder, ref.variant, check, only_headers=only_headers
    )
    checkpoint = open_checkpoint(source, ref.variant, check)
    stated = {"--model-type": ref.model_type, "--table": ref.table, "--tokenizer": ref.tokenizer}
    checkpoint.check(*(flag for flag, value in stated.items() if value is not None))
    return checkpoint


def identify_model(checkpoint: Checkpoint, ref: CheckpointRef) -> OpenedModel:
    """Find the architecture and the position tables of an open checkpoint.

    Raises:
        CheckpointError: It does not contain the table of its type, or a file is malformed.
        UnsupportedModelError: The model has no supported position table.
    """
    notes = list[Note]()
    architecture = _find_architecture(checkpoint, ref)
    file = PurePath(checkpoint.config_file).name
    locations = tuple(replace(location, file=file) for location in architecture.locations)
    architecture = with_trained_length(
        architecture._replace(locations=locations), checkpoint, ref.trained_length
    )
    names = checkpoint.weights.entries
    found = architecture.match_names(names, str(checkpoint.root))
    if not found:
        refuse_missing_table(checkpoint, architecture)
    own = None
    if "auto_map" in checkpoint.config:
        own = own_class(checkpoint.config)
    if ref.model_type is not None:
        check_model_type(checkpoint, found, ref.model_type)
    elif own is not None:
        text = describe_code(checkpoint.config, checkpoint.config_file)
        notes.append(Note(Code.OWN_CODE, Level.NOTE, text))
    model = OpenedModel(
        ref=ref,
        checkpoint=checkpoint,
        architecture=architecture,
        tables=tuple(positions.sized_in(checkpoint) for positions in found),
        own_class=own,
    )
    return model.with_notes(*notes) if notes else model


# ---- the architecture


def _find_architecture(checkpoint: Checkpoint, ref: CheckpointRef) -> Architecture:
    config = checkpoint.config
    if ref.table is not None:
        from ctxextend.opening.named_table import named_architecture  # few users name a table

        return named_architecture(checkpoint, ref.table)
    model_type = ref.model_type or config.get("model_type")
    if not config and model_type is None:
        _refuse_without_config(checkpoint)
    if model_type is None and own_class(config):
        refuse_code(config, checkpoint.config_file, found="It has no model_type.")
    where = checkpoint.root
    if checkpoint.config:
        where = checkpoint.root / checkpoint.config_file
    architecture = look_up_architecture(config, str(where), model_type)
    if not architecture.locations:
        name = architecture.family.model_type
        if is_unknown(name):
            refuse_unknown_type(checkpoint, name)
        _refuse_type(architecture, config, str(where), ref)
    if checkpoint.adapter_of:
        return _in_adapter(checkpoint, architecture)
    return architecture


def _refuse_without_config(checkpoint: Checkpoint) -> NoReturn:
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


def _refuse_type(
    architecture: Architecture, config: Mapping[str, Any], where: str, ref: CheckpointRef
) -> NoReturn:
    if ref.model_type is None and own_class(config):
        refuse_code(config, PurePath(where).name)
    architecture.refuse()


def _in_adapter(checkpoint: Checkpoint, architecture: Architecture) -> Architecture:
    locations = list[Positions]()
    for location in architecture.locations:
        prefixes = tuple(ADAPTER_PREFIX + prefix for prefix in location.prefixes)
        locations.append(replace(location, prefixes=prefixes))
    names = [name for location in locations for name in location.names]
    if any(name in checkpoint.weights.entries for name in names):
        return architecture._replace(locations=tuple(locations))
    base = checkpoint.adapter_of
    message = f"The PEFT adapter in {checkpoint.root} does not contain the position table."
    hint = (
        f"Resize {base}, then load the adapter onto the result. If the adapter changes the table, "
        f"merge it into {base} with merge_and_unload(), and resize that."
    )
    raise CheckpointError(message, hint)
