"""Which models have no causal mask: each token sees the later ones too.

Only positions tell such a model the order of tokens. Facts about model types are by measurement:
tests/families/test_removed_positions.py changes the last token of an input.
"""

from collections.abc import Sequence
from typing import Any

from ctxextend.families.registry import Architecture
from ctxextend.positions.facts import ConfigCondition
from ctxextend.positions.positions import Positions

# Keys that remove the mask of other types: the first one of Gemma, and the last one of all types,
# by ``create_causal_mask`` of
# https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/masking_utils.py.
REMOVING_KEYS: Sequence[ConfigCondition] = (
    ConfigCondition("use_bidirectional_attention", value=True),
    ConfigCondition("use_bidirectional_attention", value="all"),
    ConfigCondition("is_causal", value=False),
)


def mask_remover(architecture: Architecture, location: Positions) -> str | None:
    """Return the model type or the setting without a causal mask; None if the model has one.

    Args:
        architecture: The whole model.
        location: The positions of it, or of a model in it.
    """
    for family in (location.family, architecture.family):
        if not family.has_causal_mask:
            return f"model type {family.model_type}"
    for condition in REMOVING_KEYS:
        stated: Any = location.stated(condition.key)
        if stated is not None and condition.holds(stated):
            return f"a model with {condition.key} {str(stated).lower()}"
    return None
