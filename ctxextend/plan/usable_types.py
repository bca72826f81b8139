"""Whether a model type is known, and fits a checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.families.known_types import FAMILIES
from ctxextend.families.lookup import find_architecture
from ctxextend.families.unsupported import POSITION_SCHEMES
from ctxextend.plan.table_names import match_names
from ctxextend.positions.positions import Positions


def is_unknown(model_type: str, config: Mapping[str, Any]) -> bool:
    """Whether the tensors must decide: a type is unknown, or only a part of the model is known."""
    if model_type in FAMILIES:
        return False
    return model_type not in POSITION_SCHEMES or bool(known_parts(config))


def known_parts(config: Mapping[str, Any]) -> list[str]:
    """Return the known model types of the parts of a model."""
    parts = [value for value in config.values() if isinstance(value, Mapping)]
    types = [part.get("model_type") for part in parts]
    return [name for name in types if isinstance(name, str) and name in FAMILIES]


def check_model_type(
    checkpoint: Checkpoint, locations: Sequence[Positions], model_type: str
) -> None:
    """Check that a checkpoint can have the positions of the type that the user named.

    Args:
        checkpoint: The checkpoint.
        locations: The positions of the type.
        model_type: The type.

    Raises:
        CheckpointError: Neither weights nor config can have them.
    """
    without_rows = [location for location in locations if not location.has_rows]
    if not without_rows or checkpoint.config.get("model_type") == model_type:
        return
    flag = f"--model-type {model_type}"
    scheme = without_rows[0].scheme
    if not checkpoint.has_config:
        message = (
            f"{flag}: the positions of {model_type} are {scheme}, with settings in config.json."
        )
        raise CheckpointError(message, f"{checkpoint.root} has no config.json: add the model's.")
    stored = next(_stored_tables(checkpoint), None)
    if stored is not None:
        message = (
            f"{flag}: the weights have {stored}, the position table of a "
            f"{checkpoint.config['model_type']} model, but {model_type} has {scheme} positions."
        )
        raise CheckpointError(message, "Remove --model-type.")
    for location in without_rows:
        if location.stated(location.effective_key) is None:
            message = (
                f"{flag}: config.json has no {location.length_key}, the context length of "
                f"{model_type}."
            )
            raise CheckpointError(message, "Name the type that the weights have, or add the key.")


def _stored_tables(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the position tables in the weights of the type that the config states."""
    with suppress(CheckpointError, UnsupportedModelError):  # the type is unknown or has no table
        architecture = find_architecture(checkpoint.config)
        for _, name in match_names(architecture, checkpoint.weights.entries, ""):
            if name in checkpoint.weights.entries:
                yield name
