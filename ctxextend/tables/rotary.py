"""Rotary positions: inverse frequencies of each rope type, and the methods that serve longer inputs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
