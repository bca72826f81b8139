"""Rotary settings that rotate nothing, so that a model knows no positions beyond causality.

No rope type of transformers says so, but two can be set to it:

- ``linear`` with factor 1e12: the angle at position 32,768 is at most 3.3e-8 and at position
  1,000,000 at most 1e-6, whose cosine is 1 in float32. So a value moves by at most this share of
  another one, which is less than the rounding of float32 up to 59,000 tokens, and than that of
  bfloat16 at any length.
- ``proportional`` with ``partial_rotary_factor`` 0: every frequency is 0.
"""

from typing import Literal

from ctxextend.tables.method_facts import Method, registering
from ctxextend.tables.rope_types import (
    ALPHA,
    FACTOR,
    FACTOR_OF_NO_ROTATION,
    PARTIAL,
    TYPE,
    Parameters,
    without_type_settings,
)

Kind = Literal["linear", "proportional"]  # the rope type that rotates nothing

REMOVING_METHODS: dict[str, Method] = {}  # by name; no resize accepts them


@registering(REMOVING_METHODS)(
    scheme="rotary",
    keep_first=None,
    keeps_learned_rows=False,
    convention="rope_type linear with factor 1e12, or proportional with partial_rotary_factor 0; "
    "rope_theta stays",
    short_inputs="outputs change at every length, since attention no longer knows where a token is",
    long_inputs="no position is new, but more tokens compete for attention",
    when="you train afterwards at the old length",
)
def none(rope: Parameters, kind: Kind) -> Parameters:
    """Rotate nothing: the order of tokens is known only from the causal mask.

    Other settings stay, but those that scale positions go away.

    Args:
        rope: The settings before.
        kind: The rope type that the model class can set to no rotation.

    Source: Gelberg et al. 2025, DroPE, arXiv:2512.12167.
    """
    kept = without_type_settings(rope)
    kept.pop(ALPHA, None)
    if kind == "proportional":
        return {**kept, TYPE: kind, PARTIAL: 0.0}
    return {**kept, TYPE: kind, FACTOR: FACTOR_OF_NO_ROTATION}
