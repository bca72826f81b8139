"""Whether a model type is known and fits a checkpoint, and refusals of what does not."""

import json
import re
from collections.abc import Sequence
from typing import NoReturn

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.families.registry import (
    FAMILIES_HINT,
    Architecture,
    describe_unknown,
)
from ctxextend.opening.own_code import ADVICE, describe_code, own_class, refuse_code
from ctxextend.positions.positions import Positions

CHECK_TYPE = (
    "Check that the weights match model_type in config.json, or the one passed with --model-type."
)
# A key or value of a config, as JSON, that only models with such positions have.
WITHOUT_TABLE = r'"(?:[^"]*_)?(?:alibi|rope|rotary)(?:_[^"]*)?"(?!: (?:false|null|0[,}]))'
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
    if own_class(checkpoint.config) is not None:
        refuse_code(
            checkpoint.config, checkpoint.config_file, found="The weights have no position table."
        )
    cause = ""
    hint = CHECK_TYPE
    endings = tuple(f".{name}" for name in expected_names(architecture))
    wrapped = [name for name in names if name.endswith(endings)]
    if any(part in name for part in PEFT for name in names):
        hint = (
            "Its adapters are not merged. Merge them with merge_and_unload() of PEFT, and save the "
            "model again."
        )
    elif wrapped:
        cause = f"It has {wrapped[0]}, which transformers does not load."
        hint = "Save only the model's tensors: torch.save(model.state_dict(), NAME)."
    refuse_without_table(architecture, str(checkpoint.root), cause, hint)


def refuse_unknown_type(checkpoint: Checkpoint, model_type: str) -> NoReturn:
    """Refuse an unknown model type.

    The hint has the flags of the tensors that may be the position table, if it has one.

    Raises:
        UnsupportedModelError: Always.
    """
    config = checkpoint.config
    message = describe_unknown(model_type)
    hints = list[str]()
    if own_class(config) is not None:
        message += f" {describe_code(config, checkpoint.config_file)}"
        hints.append(ADVICE)
    if re.search(WITHOUT_TABLE, json.dumps(config)):
        message += (
            " Its positions are rotary or ALiBi, without a table, and only known types can be "
            "resized."
        )
    else:
        from ctxextend.opening.named_table import table_flags  # few models are unknown

        hints.append(table_flags(checkpoint))
    hints += [SAME_SETTINGS, FAMILIES_HINT]
    raise UnsupportedModelError(message, " ".join(filter(None, hints)))


def check_model_type(checkpoint: Checkpoint, found: Sequence[Positions], model_type: str) -> None:
    """Check that a checkpoint can have the positions of the type that the user named.

    Args:
        checkpoint: The checkpoint.
        found: The positions of the type.
        model_type: The type.

    Raises:
        CheckpointError: The config does not have them.
    """
    without_rows = [item for item in found if not item.tensor]
    if not without_rows or checkpoint.config.get("model_type") == model_type:
        return
    flag = f"--model-type {model_type}"
    scheme = without_rows[0].scheme
    if not checkpoint.has_config:
        message = (
            f"{flag}: the positions of {model_type} are {scheme}, with settings in config.json."
        )
        raise CheckpointError(message, f"{checkpoint.root} has no config.json: add the model's.")
    for location in without_rows:
        if location.stated(location.effective_key) is None:
            message = (
                f"{flag}: config.json has no {location.length_key}, the context length of "
                f"{model_type}."
            )
            raise CheckpointError(message, "Name the type that the weights have, or add the key.")


def refuse_without_table(
    architecture: Architecture, where: str, cause: str = "", hint: str = CHECK_TYPE
) -> NoReturn:
    """Refuse a model whose tensors contain none of its position tables.

    Args:
        architecture: That of the model.
        where: The model.
        cause: A sentence on the likely cause.
        hint: What to do.

    Raises:
        CheckpointError: The tables are missing.
        UnsupportedModelError: A part of the model has none.
    """
    if architecture.unsupported:
        architecture.refuse()
    expected = " or ".join(expected_names(architecture))
    message = (
        f"{where}: no position table found; in a {architecture.family.model_type} model it is "
        f"{expected}. {cause}"
    )
    raise CheckpointError(message.rstrip(), hint)


def expected_names(architecture: Architecture) -> list[str]:
    """Return the names that the position tables of a model can have."""
    names = dict[str, None]()
    for location in architecture.locations:
        names |= dict.fromkeys(location.names)
    return list(names)
