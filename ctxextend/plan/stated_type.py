"""What the output of a resize states as its model type, and which class loads it."""

from dataclasses import replace

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import UnsupportedModelError
from ctxextend.families.known_types import FAMILIES, is_known
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.own_code import code_error, own_class
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
    note = _describe_type(model)
    return model if note is None else model.with_note(note)


def _describe_type(model: OpenedModel) -> str | None:
    """Say which type an output states, and what loads it.

    None if the user named no type, or the output states the named one.
    """
    checkpoint = model.checkpoint
    named = model.ref.model_type
    stated = checkpoint.config.get("model_type")
    # The twin of a conversion has another type than its source.
    if stated is None or named != model.architecture.family.model_type:
        return None
    file = checkpoint.config_file
    if own_class(checkpoint.config):
        if stated == named:
            return (
                f"Planned for transformers' own {named} class: load the output without "
                "trust_remote_code=True."
            )
        return (
            f"{file} keeps model_type {stated} and auto_map: its own code loads the output. To "
            f"load it as {named}, set model_type to {named} there and remove auto_map."
        )
    if stated == named:
        return None
    if rewrites_model_type(checkpoint, model.ref):
        return f"The output's {file} has model_type {named} instead of {stated}."
    return (
        f"{file} keeps model_type {stated}: transformers loads the output as {stated}. If the "
        f"weights are those of {named}, set it to {named}."
    )


def check_own_code(model: OpenedModel) -> None:
    """Check that positions that are not in the weights are not those of the folder's own code.

    Raises:
        UnsupportedModelError: They are, and the user named no model type.
    """
    checkpoint = model.checkpoint
    is_stored = all(table.name in checkpoint.weights.entries for table in model.tables)
    if own_class(checkpoint.config) is None or model.ref.model_type is not None or is_stored:
        return
    stated = checkpoint.config.get("model_type")
    raise code_error(
        checkpoint.config,
        checkpoint.config_file,
        names=checkpoint.weights.entries,
        usable=stated if stated in FAMILIES else None,
    )


def resizable_ref(model: OpenedModel) -> CheckpointRef:
    """Return the reference with which `resize` accepts a model.

    For a model with own code, it names the model type.
    """
    try:
        check_own_code(model)
    except UnsupportedModelError:
        return replace(model.ref, model_type=model.architecture.family.model_type)
    return model.ref
