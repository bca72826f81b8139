"""From a config to what is known of its architecture, or to the reason why nothing can be done."""

from collections.abc import Mapping
from typing import Any

from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.families.entries import FAMILIES
from ctxextend.families.refusals import INSTEAD
from ctxextend.families.schema import Family

__all__ = ["find_family"]


def find_family(config: Mapping[str, Any], where: str = "config.json") -> Family:
    """Return the family of a model by its config.

    Args:
        config: The parsed config.json.
        where: Its path, for messages.

    Raises:
        CheckpointError: It names no model type.
        UnsupportedModelError: The model has no learned position table, or is not in the registry.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{where} names no model_type.", f"Add one of {', '.join(FAMILIES)}, whichever it is.")
    if model_type not in FAMILIES:
        raise UnsupportedModelError(*_refusal(model_type))
    family = FAMILIES[model_type]
    for key, wanted in family.requires.items():
        if config.get(key, wanted) != wanted:
            raise UnsupportedModelError(
                f"This {model_type} model has {key} {config[key]!r}: its positions are not read from a learned table.",
                "There is no table to resize.",
            )
    return family


def _refusal(model_type: str) -> tuple[str, str]:
    known = f"Families that ctxextend resizes: {', '.join(sorted(FAMILIES))}."
    if model_type in INSTEAD:
        what, _, advice = INSTEAD[model_type].partition(": ")
        return f"A {model_type} model has no learned position table; it uses {what}.", f"{advice.capitalize()}. {known}"
    return f"The model type {model_type!r} is not in ctxextend's registry.", known
