"""Folders whose model runs its own code, and model types that the user names."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.errors import UnsupportedModelError
from ctxextend.families.registry import FAMILIES, is_known
from ctxextend.notes import Code, Level, Note
from ctxextend.settings import CheckpointRef

if TYPE_CHECKING:
    from ctxextend.opening.opened_model import OpenedModel

ADVICE = (
    "Load it with trust_remote_code=True, which runs that code. The code and the model card say "
    "which lengths it reads, and with which settings."
)


def own_class(config: Mapping[str, Any]) -> str | None:
    """Return the class in ``auto_map`` that loads a folder with its own code.

    None if transformers' classes load it: an own tokenizer or processor does not count.
    """
    mapped = config.get("auto_map")
    if not isinstance(mapped, Mapping):
        return None
    classes = [name for key, name in mapped.items() if key.startswith("AutoModel")]
    classes.append(mapped.get("AutoConfig"))
    for name in classes:
        if isinstance(name, str) and name:
            return name
    return None


def describe_code(config: Mapping[str, Any], file: str) -> str:
    """Say that a folder has its own code."""
    return (
        f"{file} has auto_map: the positions are those of the folder's own code "
        f"({own_class(config):.100}), which may differ from those of transformers."
    )


def refuse_code(
    config: Mapping[str, Any], file: str, *, found: str = "", usable: str | None = None
) -> NoReturn:
    """Refuse a folder whose own code has its positions.

    Args:
        config: Its config.
        file: The path of the config.
        found: A sentence on what was found instead.
        usable: The model type as which the folder can be resized.

    Raises:
        UnsupportedModelError: Always.
    """
    hint = ADVICE
    if usable:
        hint += f" If the weights are those of transformers' own class, use --model-type {usable}."
    raise UnsupportedModelError(f"{describe_code(config, file)} {found}".rstrip(), hint)


def rewrites_model_type(checkpoint: Checkpoint, ref: CheckpointRef) -> bool:
    """Whether an output states the type that the user names, as transformers has no other."""
    if ref.table is not None or not checkpoint.has_config:
        return False
    stated = checkpoint.config.get("model_type")
    if stated is None:
        return True
    has_code = own_class(checkpoint.config) is not None
    return ref.model_type is not None and not is_known(stated) and not has_code


def with_type_note(model: "OpenedModel") -> "OpenedModel":
    """Return a model with a note on how an output is loaded, if the user named its type."""
    checkpoint = model.checkpoint
    named = model.ref.model_type
    stated = checkpoint.config.get("model_type")
    has_code = model.own_class is not None
    # The twin of a conversion has another type than its source.
    if stated is None or named != model.architecture.family.model_type:
        return model
    if stated == named and not has_code:
        return model
    if stated == named:
        note = (
            f"Planned for transformers' own {named} class: load the output without "
            "trust_remote_code=True."
        )
    elif rewrites_model_type(checkpoint, model.ref):
        return model
    else:
        note = (
            f"{checkpoint.config_file} keeps model_type {stated}, by which the output is loaded: "
            f"to load it as {named}, change that."
        )
    return model.with_notes(Note(Code.SOURCE, Level.NOTE, note))


def check_own_code(model: "OpenedModel") -> None:
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
        usable=stated if stated in FAMILIES else None,
    )


def _has_unnamed_code(model: "OpenedModel") -> bool:
    """Whether positions are not in the weights, of own code whose type the user did not name."""
    if model.own_class is None or model.ref.model_type is not None:
        return False
    return any(table.name not in model.checkpoint.weights.entries for table in model.tables)


def resizable_ref(model: "OpenedModel") -> CheckpointRef:
    """Return the reference with which `resize` accepts a model.

    For a model with own code, it names the model type.
    """
    if _has_unnamed_code(model):
        return replace(model.ref, model_type=model.architecture.family.model_type)
    return model.ref
