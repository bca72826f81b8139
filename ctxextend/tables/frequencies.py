"""Rotary positions: the keys of their settings, and the inverse frequencies of each rope type."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import ResizeError
from ctxextend.tables.rope_types import (
    ALPHA,
    BETA_FAST,
    BETA_SLOW,
    FACTOR,
    NTK_ALPHA,
    PARTIAL,
    THETA,
    TRAINED,
    TYPE,
    YARN_BETAS,
    Parameters,
)


class Frequencies(NamedTuple):
    """The angles per position that a rope type gives."""

    inverse: NDArray[np.float64]  # radians per position of each pair of values, shape (dim / 2,)
    attention_factor: float = 1.0  # by which cosines and sines are multiplied


def frequencies(rope: Parameters, dim: int, max_len: int, length: int | None = None) -> Frequencies:
    """Return the inverse frequencies of rotary settings.

    They are those that `ROPE_INIT_FUNCTIONS` of transformers computes.

    Args:
        rope: Complete, valid settings of one type of layers.
        dim: The number of rotated values per head; all of them for type ``proportional``.
        max_len: What max_position_embeddings states.
        length: The length of the input, in tokens; by default `max_len`.
    """
    if rope[TYPE] == NTK_ALPHA:
        return _default({THETA: ntk_base(rope[THETA], rope[ALPHA], dim)}, dim)
    compute = FORMULAS[rope[TYPE]]
    return compute(rope, dim, max_len, max_len if length is None else length)


def _default(rope: Parameters, dim: int, *_: int) -> Frequencies:
    return Frequencies(float(rope[THETA]) ** (-np.arange(0, dim, 2) / dim))


def _linear(rope: Parameters, dim: int, *_: int) -> Frequencies:
    return Frequencies(_default(rope, dim).inverse / rope[FACTOR])


def _dynamic(rope: Parameters, dim: int, max_len: int, length: int) -> Frequencies:
    growth = rope[FACTOR] * max(length, max_len) / max_len - (rope[FACTOR] - 1)
    return _default({THETA: ntk_base(rope[THETA], growth, dim)}, dim)


def _yarn(rope: Parameters, dim: int, max_len: int, _: int) -> Frequencies:
    factor = rope.get(FACTOR) or max_len / trained_length(rope, max_len)
    low, high = _yarn_ramp(rope, dim, max_len)
    ramp = ((np.arange(dim // 2) - low) / (high - low or 0.001)).clip(0, 1)
    plain = _default(rope, dim).inverse
    attention_factor = yarn_attention_factor({**rope, FACTOR: factor})
    return Frequencies(plain / factor * ramp + plain * (1 - ramp), attention_factor)


def _yarn_ramp(rope: Parameters, dim: int, max_len: int) -> tuple[float, float]:
    """Return the pairs between which interpolation sets in, as fractional indices."""
    trained = trained_length(rope, max_len)

    def pair_that_turns(count: float) -> float:
        """Return the pair that turns so often within the trained length."""
        return dim * math.log(trained / (count * 2 * math.pi)) / (2 * math.log(rope[THETA]))

    low = pair_that_turns(rope.get(BETA_FAST) or YARN_BETAS[BETA_FAST])
    high = pair_that_turns(rope.get(BETA_SLOW) or YARN_BETAS[BETA_SLOW])
    if rope.get("truncate", True):
        low = math.floor(low)
        high = math.ceil(high)
    return max(low, 0), min(high, dim - 1)


def yarn_attention_factor(rope: Parameters) -> float:
    """Return the factor of cosines and sines in yarn settings, as stated or by their own factor.

    Args:
        rope: The settings, with their factor.
    """
    factor = rope[FACTOR]
    stated: float | None = rope.get("attention_factor")
    if stated is not None:
        return stated

    def scaled(weight: float) -> float:
        return float(0.1 * weight * math.log(max(factor, 1)) + 1)

    above = rope.get("mscale")
    below = rope.get("mscale_all_dim")
    if above and below:
        return scaled(above) / scaled(below)
    return scaled(1) / scaled(0)


def _longrope(rope: Parameters, dim: int, max_len: int, length: int) -> Frequencies:
    trained = trained_length(rope, max_len)
    short_key = "short_factor"
    long_key = "long_factor"
    factors = np.array(rope[long_key if length > trained else short_key], np.float64)
    attention_factor = rope.get("attention_factor")
    if attention_factor is None:
        growth = max(rope.get(FACTOR) or max_len / trained, 1)
        attention_factor = math.sqrt(1 + math.log(growth) / math.log(trained))
    return Frequencies(_default(rope, dim).inverse / factors, attention_factor)


def _llama3(rope: Parameters, dim: int, max_len: int, _: int) -> Frequencies:
    plain = _default(rope, dim).inverse
    low = rope["low_freq_factor"]
    high = rope["high_freq_factor"]
    turns = trained_length(rope, max_len) * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clip(0, 1)
    return Frequencies(plain * (kept + (1 - kept) / rope[FACTOR]))


def _proportional(rope: Parameters, dim: int, *_: int) -> Frequencies:
    inverse = _default(rope, dim).inverse / rope.get(FACTOR, 1.0)
    rotated = int(rope.get(PARTIAL, 1.0) * dim // 2)
    inverse[rotated:] = 0
    return Frequencies(inverse)


FORMULAS: dict[str, Callable[..., Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}


def trained_length(rope: Parameters, max_len: int) -> int:
    """Return the length of the first training, in tokens.

    It is the stated one, else `max_len`, as in transformers.
    """
    return rope.get(TRAINED) or max_len


def ntk_base(theta: float, factor: float, dim: int) -> float:
    """Return the base that divides the lowest frequency by a factor and keeps the highest.

    Args:
        theta: The base before.
        factor: The factor.
        dim: The number of rotated values per head, twice the number of frequencies.

    Raises:
        ResizeError: There is one frequency only.
    """
    check_ntk_dim(dim)
    return float(theta * factor ** (dim / (dim - 2)))


def check_ntk_dim(dim: int) -> None:
    """Check that there are two frequencies or more: a higher base does not change the first one.

    Args:
        dim: The number of rotated values per head, twice the number of frequencies.

    Raises:
        ResizeError: There is one frequency only.
    """
    if dim < 4:
        found = f"A higher rope_theta has no effect on {dim} rotated values per head"
        hint = "Use another method, such as --method yarn."
        raise ResizeError(f"{found}: 4 are needed.", hint)
