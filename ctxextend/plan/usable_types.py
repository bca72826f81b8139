"""Find the model types as which a checkpoint can be resized."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError, CtxextendError, UnsupportedModelError
from ctxextend.families.known_types import FAMILIES
from ctxextend.families.lookup import TableLocation, find_architecture, matching_types
from ctxextend.families.unsupported import POSITION_SCHEMES
from ctxextend.plan.found_table import context_length, measure_table
from ctxextend.plan.own_code import own_class
from ctxextend.plan.table_checks import check_rows
from ctxextend.plan.table_names import find_names, match_names


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


def types_of_tensors(checkpoint: Checkpoint) -> list[str]:
    """Return the model types whose tables, length and signature match a checkpoint."""
    shapes = {name: entry.shape for name, entry in checkpoint.weights.entries.items()}
    return matching_types(checkpoint.config, shapes)


def likely_type(checkpoint: Checkpoint, model_type: str) -> str | None:
    """Return a known type as which a checkpoint of another type can be resized.

    Its tensors name the type, or else its class.
    """
    for name in _near_types(checkpoint, model_type):
        if name != model_type and is_usable(checkpoint, name):
            return name
    return None


def _near_types(checkpoint: Checkpoint, model_type: str) -> list[str]:
    """Return the type that tensors or class name, and that is most like another type."""
    from difflib import get_close_matches  # imported here because only errors need it

    matching = types_of_tensors(checkpoint)
    if len(matching) == 1:
        return matching
    if not matching and own_class(checkpoint.config) is None:
        return _types_of_class(checkpoint.model_class or "")
    return get_close_matches(model_type, matching, 1)


def _types_of_class(model_class: str) -> list[str]:
    """Return the known type without a table of rows after which a class is named, if any."""
    named = list[str]()
    for name, family in FAMILIES.items():
        has_rows = any(table.has_rows for table in family.tables)
        letters = re.escape(re.sub("[-_]", "", name))
        if not has_rows and re.match(rf"(?i:{letters})(?=[A-Z])", model_class):
            named.append(name)
    return [max(named, key=len)] if named else []


def is_usable(checkpoint: Checkpoint, model_type: str) -> bool:
    """Whether a checkpoint can be resized as this type, with its tables or its settings."""
    try:
        architecture = find_architecture(checkpoint.config, model_type=model_type)
        matches = find_names(architecture, checkpoint.weights.entries, "")
        for location, name in matches:
            table = measure_table(checkpoint, location, name)
            _ = context_length(table)
            if table.has_rows:
                check_rows(table, has_config=checkpoint.has_config)
        check_model_type(checkpoint, [location for location, _ in matches], model_type)
    except CtxextendError:
        return False
    return True


def check_model_type(
    checkpoint: Checkpoint, locations: Sequence[TableLocation], model_type: str
) -> None:
    """Check that a checkpoint can have the positions of the type that the user named.

    Args:
        checkpoint: The checkpoint.
        locations: The positions of the type.
        model_type: The type.

    Raises:
        CheckpointError: Neither weights nor config can have them.
    """
    without_rows = [location for location in locations if not location.table.has_rows]
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
                f"{flag}: config.json has no {location.config_key}, the context length of "
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
