"""The errors for weights without a known table, and for models of an unknown type."""

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError, CtxextendError, UnsupportedModelError
from ctxextend.families.known_types import describe_unknown
from ctxextend.families.lookup import Architecture
from ctxextend.families.unsupported import FAMILIES_HINT
from ctxextend.plan.named_table import table_flags
from ctxextend.plan.own_code import (
    ANGLE_BUFFERS,
    advise_code,
    code_error,
    describe_code,
    list_keys,
    named_scheme,
    own_class,
    stated_positions,
)
from ctxextend.plan.table_names import expected_names, no_table_error
from ctxextend.plan.usable_types import known_parts

# Parts of names in models with adapters that are not merged.
PEFT = ("base_model.", ".lora_", ".base_layer.")
SAME_SETTINGS = (
    "If the weights are those of a known type with the same settings, name it: --model-type TYPE."
)


def missing_table_error(checkpoint: Checkpoint, architecture: Architecture) -> CtxextendError:
    """Return the error for weights without a position table of their model type."""
    if own_class(checkpoint.config) is not None:
        return _own_code_error(checkpoint, architecture)
    error = no_table_error(architecture, str(checkpoint.root))
    if isinstance(error, UnsupportedModelError):
        return error
    return _with_cause(error, checkpoint, architecture)


def _own_code_error(checkpoint: Checkpoint, architecture: Architecture) -> UnsupportedModelError:
    """Return the error for weights of a folder's own code without the table of their type."""
    found = ""
    if not architecture.unsupported:
        expected = " or ".join(expected_names(architecture))
        found = (
            "The weights have no position table, which in transformers' "
            f"{architecture.family.model_type} models is {expected}."
        )
    return code_error(
        checkpoint.config, checkpoint.config_file, names=checkpoint.weights.entries, found=found
    )


def _with_cause(
    error: CtxextendError, checkpoint: Checkpoint, architecture: Architecture
) -> CtxextendError:
    """Return an error for a missing table with its likely cause, if any."""
    message = error.message
    if any(part in name for part in PEFT for name in checkpoint.weights.entries):
        hint = (
            "Its adapters are not merged. Merge them with merge_and_unload() of PEFT, and save the "
            "model again."
        )
        return CheckpointError(message, hint)
    endings = tuple(f".{name}" for name in expected_names(architecture))
    for name in checkpoint.weights.entries:
        if name.endswith(endings):
            return CheckpointError(
                f"{message} It has {name}, which transformers does not load.",
                "Save only the model's tensors: torch.save(model.state_dict(), NAME).",
            )
    stated = stated_positions(checkpoint.config)
    if stated:
        message += (
            f" The config states {list_keys(stated)}, which transformers' class may not read."
        )
        return CheckpointError(message, error.hint)
    return error


def unknown_type_error(checkpoint: Checkpoint, model_type: str) -> UnsupportedModelError:
    """Return the error for an unknown model type.

    Its hint has the flags of the tensors that may be the position table, if it has one.
    """
    config = checkpoint.config
    message = describe_unknown(model_type)
    parts = known_parts(config)
    if parts:
        message += f" It contains a part of a known type: {', '.join(parts)}."
    hints = list[str]()
    stated = stated_positions(config)
    scheme = named_scheme(stated, checkpoint.weights.entries)
    if own_class(config) is not None:
        message += f" {describe_code(config, checkpoint.config_file)}"
        hints.append(advise_code(config, checkpoint.weights.entries))
    elif scheme:
        evidence = list_keys(stated) or f"the tensors have {ANGLE_BUFFERS}"
        message += (
            f" Its positions are {scheme} ({evidence}), without a table, and only known types can "
            "be resized."
        )
    tables = "" if scheme else table_flags(checkpoint)
    if tables:
        hints.append(tables)
    hints += [SAME_SETTINGS, FAMILIES_HINT]
    return UnsupportedModelError(message, " ".join(hints))
