"""Model types without positions to resize, and what each has instead."""

from collections.abc import Mapping

from ctxextend.families.registry import position_schemes
from ctxextend.positions.facts import PositionScheme

FAMILIES_HINT = "List supported model types with `ctxextend families`."

# Of models in `registry` with other settings.
OTHER_TYPE = PositionScheme(
    uses="position embeddings of that type",
    advice="If it was trained with absolute positions, set position_embedding_type to absolute in "
    "config.json.",
)

POSITION_SCHEMES: Mapping[str, PositionScheme] = position_schemes()
