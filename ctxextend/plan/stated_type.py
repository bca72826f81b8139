"""What the output of a resize states as its model type, and which class loads it."""

from dataclasses import replace

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.families.known_types import FAMILIES, is_known
from ctxextend.notes import Code, Level, Note
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.own_code import own_class, refuse_code
from ctxextend.settings import CheckpointRef


def rewrites_model_type(checkpoint: Checkpoint, ref: CheckpointRef) -> bool:
    """Whether an output states the type that the user names, as transformers has no other."""
    if ref.table is not None or not checkpoint.has_config:
        return False
    stated = checkpoint.config.get("model_type")
    if stated is None:
        return True
    has_code = own_class(checkpoint.config) is not None
    return ref.model_type is not None and not is_known(stated) and not has_code


def with_type_note(model: OpenedModel) -> OpenedModel:
    """Return a model with a note on how an output is loaded, if the user named its type."""
    checkpoint = model.checkpoint
    named = model.ref.model_type
    stated = checkpoint.config.get("model_type")
    has_code = own_class(checkpoint.config) is not None
    # The twin of a conversion has another type than its source.
    if stated is None or named != model.architecture.family.model_type:
        return model
    if stated == named and not has_code:
        return model
    file = checkpoint.config_file
    if stated == named:
        note = (
            f"Planned for transformers' own {named} class: load the output without "
            "trust_remote_code=True."
        )
    elif has_code:
        note = (
            f"{file} keeps model_type {stated} and auto_map: its own code loads the output. To "
            f"load it as {named}, set model_type to {named} there and remove auto_map."
        )
    elif rewrites_model_type(checkpoint, model.ref):
        note = f"The output's {file} has model_type {named} instead of {stated}."
    else:
        note = (
            f"{file} keeps model_type {stated}: transformers loads the output as {stated}. If the "
            f"weights are those of {named}, set it to {named}."
        )
    return model.with_note(Note(Code.SOURCE, Level.NOTE, note))


def check_own_code(model: OpenedModel) -> None:
    """Check that positions that are not in the weights are not those of the folder's own code.

    Raises:
        UnsupportedModelError: They are, and the user named no model type.
    """
    if not _has_unnamed_code(model):
        return
    checkpoint = model.checkpoint
    stated = checkpoint.config.get("model_type")
    refuse_code(
        checkpoint.config,
        checkpoint.config_file,
        names=checkpoint.weights.entries,
        usable=stated if stated in FAMILIES else None,
    )


def _has_unnamed_code(model: OpenedModel) -> bool:
    """Whether positions are not in the weights, of own code whose type the user did not name."""
    checkpoint = model.checkpoint
    if own_class(checkpoint.config) is None or model.ref.model_type is not None:
        return False
    return any(table.name not in checkpoint.weights.entries for table in model.tables)


def resizable_ref(model: OpenedModel) -> CheckpointRef:
    """Return the reference with which `resize` accepts a model.

    For a model with own code, it names the model type.
    """
    if _has_unnamed_code(model):
        return replace(model.ref, model_type=model.architecture.family.model_type)
    return model.ref
