"""Rotary positions: inverse frequencies of each rope type, and the methods that serve longer inputs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.method_facts import LIMITS, MOVED, ROTARY_METHODS, UNCHANGED, Method, Setting

Parameters = Mapping[str, Any]  # rotary settings as in transformers 5: ``rope_type``, ``rope_theta``, ``factor``, …


class Frequencies(NamedTuple):
    """The angles per position that a rope type gives."""

    inverse: NDArray[np.float64]  # radians per position of each pair of values, shape (dim / 2,)
    attention_factor: float = 1.0  # by which cosines and sines are multiplied


def frequencies(rope: Parameters, dim: int, max_len: int, length: int | None = None) -> Frequencies:
    """Return the inverse frequencies of rotary settings.

    Args:
        rope: Settings of one type of layers.
        dim: Rotated values per head.
        max_len: max_position_embeddings in the config.
        length: Tokens of the input, for rope types that depend on it. Defaults to `max_len`.
    """
    return Frequencies(rope["rope_theta"] ** (-np.arange(0, dim, 2) / dim))


KEPT_TYPES = ("linear", "dynamic", "yarn", "longrope", "llama3", "proportional")  # scaled models keep their type


FACTOR = Setting("new length / first trained length", "at least 1", None, float, lambda x: 1 <= x < np.inf)


class RopeChange(NamedTuple):
    """New rotary settings of one type of layers."""

    parameters: Parameters
    method: str  # the method with all of its settings, which reproduces them
    reason: str = ""  # why it was chosen, if it was not requested
    keeps_max_len: bool = False  # whether max_position_embeddings must stay the old length


def resize_rope(rope: Parameters, lengths: tuple[int, int], dim: int, method: str | None) -> RopeChange:
    """Return rotary settings for inputs of `lengths[1]` tokens, from those for `lengths[0]`."""
    before, after = lengths
    changes = {"rope_type": "yarn", "factor": after / before, "original_max_position_embeddings": before}
    return RopeChange({**rope, **changes}, f"yarn:factor={after / before}")


FACTS: dict[str, Any] = dict.fromkeys(("summary", "when", "source", "convention", "long_inputs"), "") | {
    **{"function": resize_rope, "keep_first": None, "reads_learned_rows": False}
}
YARN: dict[str, Any] = FACTS | {"settings": {"factor": FACTOR}, "keeps_learned_rows": False}
ROTARY_METHODS["yarn"] = Method(name="yarn", short_inputs=MOVED, **YARN)
ROTARY_METHODS[LIMITS] = Method(name=LIMITS, short_inputs=UNCHANGED, **FACTS)
