"""The errors for weights without a known table, and for models of an unknown type."""

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.wrappers import has_adapters
from ctxextend.errors import CheckpointError, CtxextendError, UnsupportedModelError
from ctxextend.families.known_types import unclear_settings, update_hint, why_unclear
from ctxextend.families.lookup import Architecture
from ctxextend.families.unsupported import FAMILIES_HINT, SAME_SETTINGS, UPDATE_BOTH
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
from ctxextend.plan.usable_types import known_parts, likely_type


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
    if has_adapters(checkpoint.weights.entries):
        hint = (
            "Its adapters are not merged. Merge them with merge_and_unload() of PEFT, and save the "
            "model again."
        )
        return CheckpointError(message, hint)
    likely = likely_type(checkpoint, architecture.family.model_type)
    if likely is not None:
        return CheckpointError(message, _suggest_type(likely))
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

    Its hint has flags with which the model can be resized, if its positions are a table or those of
    a known type.
    """
    reason = why_unclear(model_type)
    if reason:
        message = unclear_settings(model_type, reason)
        return UnsupportedModelError(message, f"{UPDATE_BOTH} {SAME_SETTINGS}")
    message = _describe_unknown(checkpoint, model_type)
    from ctxextend.plan.suggestions import suggest_tensor, suggest_tensor_of_class  # only errors

    in_class = suggest_tensor_of_class(checkpoint)
    if in_class:
        return UnsupportedModelError(message, in_class)
    likely = likely_type(checkpoint, model_type)
    if likely is not None:
        return UnsupportedModelError(message, _suggest_type(likely))
    config = checkpoint.config
    has_code = own_class(config) is not None
    stated = stated_positions(config)
    scheme = named_scheme(stated, checkpoint.weights.entries)
    if scheme and not has_code:
        evidence = list_keys(stated) or f"the tensors have {ANGLE_BUFFERS}"
        message += (
            f" Its positions are {scheme} ({evidence}), without a table, and only known types can "
            "be resized."
        )
    hints = list[str]()
    if has_code:
        hints.append(advise_code(config, checkpoint.weights.entries))
    candidates = "" if scheme else suggest_tensor(checkpoint, asks_class=False)
    if candidates:
        hints.append(candidates)
        return UnsupportedModelError(message, " ".join(hints))
    if scheme:
        hints.append(
            f"{SAME_SETTINGS} Do not edit settings by hand: which ones its code reads is unknown."
        )
    else:
        hints.append(f"No tensor looks like a position table. {SAME_SETTINGS}")
    if not has_code:
        hints.append(update_hint())
    hints.append(FAMILIES_HINT)
    return UnsupportedModelError(message, " ".join(hints))


def _describe_unknown(checkpoint: Checkpoint, model_type: str) -> str:
    """Say that a model type is unknown, with known parts of the model and its own code."""
    message = f"Unknown model type {model_type!r}"
    parts = known_parts(checkpoint.config)
    if parts:
        message += f", but it contains a part of a known type: {', '.join(parts)}"
    message += "."
    if own_class(checkpoint.config) is not None:
        message += f" {describe_code(checkpoint.config, checkpoint.config_file)}"
    return message


def _suggest_type(likely: str) -> str:
    """Return the hint to pass another model type."""
    return f"Did you mean {likely}? Specify it: --model-type {likely}"
