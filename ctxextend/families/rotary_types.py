"""The registry of rotary model types: data only."""

from ctxextend.families.schema import ROTARY, Family, PositionTable, RotaryFacts

LENGTH = "max_position_embeddings"


def rotary(model_type: str, length: int, rope: RotaryFacts | None = None) -> Family:
    """Return the entry of a model with rotary positions."""
    table = PositionTable("rope_parameters", LENGTH, scheme=ROTARY, rope=rope or RotaryFacts())
    return Family(model_type, tables=(table,), defaults={LENGTH: length})


ROTARY_FAMILIES = (rotary("llama", 2048),)
