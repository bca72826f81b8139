"""Which model types have a twin with attention windows, and why others have none."""

from ctxextend.conversion.source_types import SOURCE_TYPES, types_with_twin
from ctxextend.errors import UnsupportedModelError, joined
from ctxextend.families.registry import FAMILIES, POSITION_SCHEMES
from ctxextend.settings import ATTENTION_WINDOWS

READS_TO_THE_RIGHT = "they read from left to right, and windows look to both sides"
HAS_RELATIVE_BIAS = (
    "their attention depends on relative positions, which longformer models do not have"
)
TABLE_OF_ROWS = "learned"
NO_CLASS = "no class of transformers computes the same in windows"
# Source: transformers 5.24, modeling_*.py of each.
REASONS = {
    "gpt2": READS_TO_THE_RIGHT,
    "openai-gpt": READS_TO_THE_RIGHT,
    "gpt_neo": READS_TO_THE_RIGHT,
    "gpt_bigcode": READS_TO_THE_RIGHT,
    "opt": READS_TO_THE_RIGHT,
    "biogpt": READS_TO_THE_RIGHT,
    "mpnet": HAS_RELATIVE_BIAS,
    "deberta": HAS_RELATIVE_BIAS,
    "deberta-v2": HAS_RELATIVE_BIAS,
    "mbart": "their layers normalise what goes in, and those of led what comes out",
    "longformer": "they already attend in windows",
    "led": "they already attend in windows",
    "big_bird": "they already attend to blocks of tokens near by",
    "bigbird_pegasus": "they already attend to blocks of tokens near by",
}


def check_has_windows(model_type: str) -> None:
    """Check that a type has a twin with attention windows.

    Raises:
        UnsupportedModelError: It has none.
    """
    types = types_with_twin(ATTENTION_WINDOWS)
    if model_type in types:
        return
    reason = REASONS.get(model_type, NO_CLASS)
    family = FAMILIES.get(model_type)
    if model_type in POSITION_SCHEMES:
        reason = f"they use {POSITION_SCHEMES[model_type].uses}"
    elif model_type not in REASONS and family is not None:
        schemes = {table.scheme for table in family.tables}
        if schemes and TABLE_OF_ROWS not in schemes:
            positions = joined(sorted(schemes))
            reason = f"their positions are {positions}, and those of longformer models learned"
    hint = f"Pass a model of type {', '.join(types)}, or use ctxextend resize."
    if model_type in SOURCE_TYPES:
        scheme = SOURCE_TYPES[model_type].twins[0].scheme
        hint = f"Use ctxextend resize, or --scheme {scheme}."
    message = f"{model_type} models cannot be converted to attention windows: {reason}."
    raise UnsupportedModelError(message, hint)
