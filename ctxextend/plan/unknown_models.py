"""Refuse weights without a known table, and models of an unknown type."""

from typing import NoReturn

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import UnsupportedModelError
from ctxextend.families.known_types import describe_unknown
from ctxextend.families.lookup import Architecture
from ctxextend.families.unsupported import FAMILIES_HINT
from ctxextend.plan.named_table import table_flags
from ctxextend.plan.own_code import (
    ANGLE_BUFFERS,
    advise_code,
    describe_code,
    list_keys,
    named_scheme,
    own_class,
    refuse_code,
    stated_positions,
)
from ctxextend.plan.table_names import CHECK_TYPE, expected_names, refuse_without_table
from ctxextend.plan.usable_types import known_parts

# Parts of names in models with adapters that are not merged.
PEFT = ("base_model.", ".lora_", ".base_layer.")
SAME_SETTINGS = (
    "If the weights are those of a known type with the same settings, name it: --model-type TYPE."
)


def refuse_missing_table(checkpoint: Checkpoint, architecture: Architecture) -> NoReturn:
    """Refuse weights without a position table of their model type, with the likely cause.

    Raises:
        CheckpointError: transformers' class has a table.
        UnsupportedModelError: It has none, or the folder has its own code.
    """
    names = checkpoint.weights.entries
    expected = expected_names(architecture)
    if own_class(checkpoint.config) is not None:
        found = ""
        if not architecture.unsupported:
            found = (
                "The weights have no position table, which in transformers' "
                f"{architecture.family.model_type} models is {' or '.join(expected)}."
            )
        refuse_code(checkpoint.config, checkpoint.config_file, names=names, found=found)

    cause = ""
    hint = CHECK_TYPE
    endings = tuple(f".{name}" for name in expected)
    wrapped = [name for name in names if name.endswith(endings)]
    stated = stated_positions(checkpoint.config)
    if any(part in name for part in PEFT for name in names):
        hint = (
            "Its adapters are not merged. Merge them with merge_and_unload() of PEFT, and save the "
            "model again."
        )
    elif wrapped:
        cause = f"It has {wrapped[0]}, which transformers does not load."
        hint = "Save only the model's tensors: torch.save(model.state_dict(), NAME)."
    elif stated:
        cause = f"The config states {list_keys(stated)}, which transformers' class may not read."
    refuse_without_table(architecture, str(checkpoint.root), cause, hint)


def refuse_unknown_type(checkpoint: Checkpoint, model_type: str) -> NoReturn:
    """Refuse an unknown model type.

    The hint has the flags of the tensors that may be the position table, if it has one.

    Raises:
        UnsupportedModelError: Always.
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
    raise UnsupportedModelError(message, " ".join(hints))
