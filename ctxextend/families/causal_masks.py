"""Which models have no causal mask: each token sees the later ones too.

Only positions tell such a model the order of tokens. Facts about model types are by measurement:
tests/families/test_removed_positions.py changes the last token of an input.
"""

from collections.abc import Sequence
from typing import Any

from ctxextend.families.lookup import Architecture
from ctxextend.positions.facts import ConfigCondition
from ctxextend.positions.positions import Positions

# With rotary positions. Of T5Gemma and Dia, the encoder is one; of PaliGemma, the prompt is read
# so; MuseGlimmer's assistant and DiffusionGemma draft all tokens of a block at once.
WITHOUT_CAUSAL_MASK = (
    "colpali",
    "dia_encoder",
    "diffusion_gemma_text",
    "embedding_gemma2_text",
    "esm",
    "esmc",
    "eurobert",
    "gte",
    "jina_embeddings_v3",
    "modernbert",
    "muse_glimmer_assistant",
    "neomme",
    "nomic_bert",
    "openai_privacy_filter",
    "paligemma",
    "pi0",
    "t5_gemma_module",
    "t5gemma2_text",
    "ultrabert",
)
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
    for model_type in (location.family.model_type, architecture.family.model_type):
        if model_type in WITHOUT_CAUSAL_MASK:
            return f"model type {model_type}"
    for condition in REMOVING_KEYS:
        stated: Any = location.stated(condition.key)
        if stated is not None and condition.holds(stated):
            return f"a model with {condition.key} {str(stated).lower()}"
    return None
