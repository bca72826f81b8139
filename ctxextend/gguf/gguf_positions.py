"""The kinds of positions that a GGUF file has."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ctxextend.families.registry import Architecture
from ctxextend.gguf.gguf_architectures import LEARNED_ROWS, GgufArchitecture
from ctxextend.gguf.gguf_config import (
    CONTEXT_LENGTH,
    DEFAULT_BASE,
    DIMENSIONS,
    POSITION_TABLE,
    find_row,
)
from ctxextend.positions.facts import (
    ALIBI,
    FULL_LAYERS,
    RELATIVE,
    ROTARY,
    SLIDING_LAYERS,
    Family,
    RotaryFacts,
)
from ctxextend.positions.positions import Positions
from ctxextend.positions.rotary import Rotary
from ctxextend.positions.rows import Rows
from ctxextend.positions.unlimited import Unlimited
from ctxextend.tables.rope_types import NEW


def gguf_architecture(
    config: Mapping[str, Any], values: Mapping[str, Any], file: str
) -> Architecture:
    """Return the positions of a GGUF file.

    Args:
        config: From `read_config`.
        values: Its metadata by key, without arrays.
        file: Its name, for messages.
    """
    row = find_row(values, file)
    own: Mapping[str, Any] = config[row.name]
    positions = _positions(row, own)
    family = Family(row.name, tables=(positions,))
    location = replace(positions, family=family, config=config, path=(row.name,), file=file)
    return Architecture(family, (location,))


def _positions(row: GgufArchitecture, config: Mapping[str, Any]) -> Positions:
    """Return the kind of positions of an architecture."""
    if row.positions == ROTARY:
        return Rotary(rope=_facts(row, config[NEW]), config_key=CONTEXT_LENGTH, settings_key="rope")
    if row.positions == LEARNED_ROWS or "embedding_length" in config:
        return Rows(tensor=POSITION_TABLE, config_key=CONTEXT_LENGTH)
    if row.positions == ALIBI:
        return Unlimited(scheme=ALIBI, config_key=CONTEXT_LENGTH)
    return Unlimited(scheme=RELATIVE, config_key=CONTEXT_LENGTH)


def _facts(row: GgufArchitecture, settings: Mapping[str, Any]) -> RotaryFacts:
    """Return how rotary settings of a file are read: all are stated by `read_config`."""
    if FULL_LAYERS not in settings:
        return RotaryFacts(methods=row.methods, dim_key=DIMENSIONS, has_dialects=False)
    return RotaryFacts(
        theta={FULL_LAYERS: DEFAULT_BASE, SLIDING_LAYERS: DEFAULT_BASE},
        local=(SLIDING_LAYERS,),
        methods=row.methods,
        dim_key=DIMENSIONS,
        has_dialects=False,
    )
