"""Rotary positions: inverse frequencies of each rope type, and the methods that serve longer inputs.

A method gets rotary settings, the lengths (before, after) in tokens, the number of rotated values per head and its own
settings, and returns the complete new settings; it keeps all keys that it does not know. It reads no rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import CheckpointError, MethodError, ResizeError
from ctxextend.tables.method_facts import DEFAULT_METHOD, ROTARY_METHODS, Setting, method, method_text

Parameters = Mapping[str, Any]  # rotary settings as in transformers 5: ``rope_type``, ``rope_theta``, ``factor``, …
Lengths = tuple[int, int]  # context length before and after, in tokens
Value = TypeVar("Value")

TRAINED = "original_max_position_embeddings"  # key of the length of the first training, before any scaling
KEPT_TYPES = ("linear", "dynamic", "yarn", "longrope", "llama3", "proportional")  # scaled models keep their type
# The methods that apply to settings of each rope type, the default first.
APPLICABLE: dict[str, tuple[str, ...]] = {"default": ("yarn", "linear", "dynamic", "theta")} | {
    name: (name,) for name in KEPT_TYPES
}


class Frequencies(NamedTuple):
    """The angles per position that a rope type gives."""

    inverse: NDArray[np.float64]  # radians per position of each pair of values, shape (dim / 2,)
    attention_factor: float = 1.0  # by which cosines and sines are multiplied


def frequencies(rope: Parameters, dim: int, max_len: int, length: int | None = None) -> Frequencies:
    """Return the inverse frequencies of rotary settings, as `ROPE_INIT_FUNCTIONS` of transformers computes them.

    Args:
        rope: Settings of one type of layers.
        dim: Rotated values per head; for type ``proportional``, all values of a head.
        max_len: max_position_embeddings in the config.
        length: Tokens of the input, for rope types that depend on it. Defaults to `max_len`.

    Raises:
        CheckpointError: The rope type is unknown, or the lists of ``longrope`` do not fit.
    """
    return _of_type(FORMULAS, rope)(rope, dim, max_len, max_len if length is None else length)


def _default(rope: Parameters, dim: int, *_: int) -> Frequencies:
    return Frequencies(float(rope["rope_theta"]) ** (-np.arange(0, dim, 2) / dim))


def _linear(rope: Parameters, dim: int, *_: int) -> Frequencies:
    return Frequencies(_default(rope, dim).inverse / rope["factor"])


def _dynamic(rope: Parameters, dim: int, max_len: int, length: int) -> Frequencies:
    growth = rope["factor"] * max(length, max_len) / max_len - (rope["factor"] - 1)
    return _default({"rope_theta": ntk_base(rope["rope_theta"], growth, dim)}, dim)


def _yarn(rope: Parameters, dim: int, max_len: int, _: int) -> Frequencies:
    trained, base = trained_length(rope, max_len), rope["rope_theta"]
    factor = rope.get("factor") or max_len / trained
    turns = rope.get("beta_fast") or 32, rope.get("beta_slow") or 1  # over the trained length, at both ends of the ramp
    low, high = (dim * math.log(trained / (count * 2 * math.pi)) / (2 * math.log(base)) for count in turns)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((np.arange(dim // 2) - low) / (high - low or 0.001)).clip(0, 1)
    plain = _default(rope, dim).inverse
    attention_factor = rope.get("attention_factor")
    if attention_factor is None:
        scales: tuple[Any, ...] = rope.get("mscale"), rope.get("mscale_all_dim")
        above, below = (0.1 * scale * math.log(max(factor, 1)) + 1 for scale in (scales if all(scales) else (1, 0)))
        attention_factor = above / below
    return Frequencies(plain / factor * ramp + plain * (1 - ramp), attention_factor)


def _longrope(rope: Parameters, dim: int, max_len: int, length: int) -> Frequencies:
    trained = trained_length(rope, max_len)
    factors = _factor_list(rope, "long_factor" if length > trained else "short_factor", dim)
    attention_factor = rope.get("attention_factor")
    if attention_factor is None:
        factor = rope.get("factor") or max_len / trained
        attention_factor = math.sqrt(1 + math.log(max(factor, 1)) / math.log(trained))
    return Frequencies(_default(rope, dim).inverse / factors, attention_factor)


def _llama3(rope: Parameters, dim: int, max_len: int, _: int) -> Frequencies:
    plain, low, high = _default(rope, dim).inverse, rope["low_freq_factor"], rope["high_freq_factor"]
    turns = trained_length(rope, max_len) * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clip(0, 1)
    return Frequencies(plain * (kept + (1 - kept) / rope["factor"]))


def _proportional(rope: Parameters, dim: int, *_: int) -> Frequencies:
    inverse = _default(rope, dim).inverse / rope.get("factor", 1.0)
    inverse[int(rope.get("partial_rotary_factor", 1.0) * dim // 2) :] = 0  # these pairs are not rotated
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


def _of_type(table: Mapping[str, Value], rope: Parameters) -> Value:
    """Return the entry of a table for the rope type of settings; raise CheckpointError if it has none."""
    if rope["rope_type"] not in table:
        raise CheckpointError(f"rope_type {rope['rope_type']!r:.60} is unknown.", f"Known types: {', '.join(table)}.")
    return table[rope["rope_type"]]


def trained_length(rope: Parameters, max_len: int) -> int:
    """Return the length of the first training, in tokens: the stated one, else `max_len`, as in transformers."""
    return rope.get(TRAINED) or max_len


def ntk_base(theta: float, factor: float, dim: int) -> float:
    """Return the base with which the lowest of dim / 2 frequencies is divided by a factor, and the highest is kept.

    Source: bloc97 2023, NTK-Aware Scaled RoPE, reddit.com/r/LocalLLaMA/comments/14lz7j5.
    """
    if dim < 4:
        hint = "Use another method, such as --method yarn."
        raise ResizeError(f"A higher rope_theta has no effect on {dim} rotated values per head: 4 are needed.", hint)
    return float(theta * factor ** (dim / (dim - 2)))


def _factor_list(rope: Parameters, key: str, dim: int) -> NDArray[np.float64]:
    """Return a list of ``longrope`` settings, shape (dim / 2,); raise CheckpointError if it has another length."""
    factors = np.array(rope.get(key) or (), np.float64)
    if factors.shape != (dim // 2,):
        message = f"{key} of the longrope settings has {factors.size} numbers, but each head rotates {dim // 2} pairs"
        raise CheckpointError(f"{message} of values.", f"State {dim // 2} numbers in config.json.")
    return factors


FACTOR = Setting("new length / trained length", "a number from 1 on", None, float, lambda factor: 1 <= factor < np.inf)
rotary = partial(method, ROTARY_METHODS, scheme="rotary", keep_first=None, reads_learned_rows=False)
scaling = partial(rotary, keeps_learned_rows=False, settings={"factor": FACTOR})


@scaling(
    summary="divide low frequencies by the factor and keep high ones (default)",
    convention="original_max_position_embeddings is the trained length; attention_factor, mscale and betas stay",
    long_inputs="low frequencies stay within the angles of training, and high ones keep neighbours apart",
    when="long inputs must work without training",
)
def yarn(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Interpolate by wavelength: pairs that turn often within the trained length keep their frequency.

    Source: Peng et al. 2023, YaRN, section 3, arXiv:2309.00071.
    """
    return {**rope, "rope_type": "yarn", "factor": factor, TRAINED: trained_length(rope, lengths[0])}


@scaling(
    summary="divide all frequencies by the factor",
    convention="position t turns by the angles of position t / factor",
    long_inputs="order is kept, but neighbouring positions are closer together than in training",
    when="you fine-tune afterwards, or a runtime supports no other method",
)
def linear(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Interpolate positions linearly.

    Source: Chen et al. 2023, Position Interpolation, arXiv:2306.15595.
    """
    return {**rope, "rope_type": "linear", "factor": factor}


@rotary(
    summary="raise the base with each input that is longer than the trained length",
    settings={"factor": FACTOR},
    convention="base = rope_theta·(factor·length/trained - (factor - 1))^(d/(d-2)), of d rotated values per head",
    long_inputs="the angles of all positions change as the input grows, but cached keys keep theirs",
    when="short inputs must give identical outputs, in transformers",
    keeps_max_len=True,
)
def dynamic(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Choose the base from the length of each input; max_position_embeddings stays the trained length.

    Source: emozilla 2023, Dynamically Scaled RoPE, reddit.com/r/LocalLLaMA/comments/14mrgpr.
    """
    ntk_base(rope["rope_theta"], factor, dim)  # checks `dim`
    return {**rope, "rope_type": "dynamic", "factor": factor}


@scaling(
    summary="raise rope_theta (NTK-aware) and keep the rope type default",
    convention="rope_theta·factor^(d/(d-2)), of d rotated values per head",
    long_inputs="the lowest frequency stays within the angles of training, but those between do not",
    when="you fine-tune afterwards, or a runtime supports no rope types",
)
def theta(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Raise the base so that the lowest frequency is divided by the factor, and the highest stays.

    Source: bloc97 2023, NTK-Aware Scaled RoPE, reddit.com/r/LocalLLaMA/comments/14lz7j5.
    """
    return {**rope, "rope_type": "default", "rope_theta": ntk_base(rope["rope_theta"], factor, dim)}


@rotary(
    summary="use the lists of factors in the config, up to the length that they serve",
    convention="long_factor divides the frequencies of inputs longer than original_max_position_embeddings",
    long_inputs="frequencies are those that a search found for the model",
    when="the config has the lists and states the factor that they serve",
)
def longrope(rope: Parameters, lengths: Lengths, dim: int) -> Parameters:
    """Keep the lists: longer inputs than they serve need another search.

    Source: Ding et al. 2024, LongRoPE, arXiv:2402.13753.
    """
    for key in ("short_factor", "long_factor"):
        _factor_list(rope, key, dim)
    trained = trained_length(rope, lengths[0])
    served = max(lengths[0], int(trained * (rope.get("factor") or 1)))
    if lengths[1] > served:
        message = f"The lists of the longrope settings serve {served} tokens, not {lengths[1]}."
        raise ResizeError(message, f"Use a length of at most {served}: a longer one needs other lists.")
    return {**rope, TRAINED: trained}


@scaling(
    summary="raise the factor of a model that has this type (Llama 3.1 and later)",
    convention="original_max_position_embeddings, low_freq_factor and high_freq_factor stay",
    long_inputs="low frequencies stay within the angles of training, and high ones keep neighbours apart",
    when="the model has this type",
)
def llama3(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Divide low frequencies by a larger factor, with the same ramp up to the high ones.

    Source: Grattafiori et al. 2024, Llama 3, arXiv:2407.21783, and modeling_rope_utils.py of transformers.
    """
    return {**rope, "factor": factor, TRAINED: trained_length(rope, lengths[0])}


@scaling(
    summary="raise the factor of a model that has this type (Gemma 4)",
    convention="all frequencies, spaced over the whole head, are divided by the factor; partial_rotary_factor stays",
    long_inputs="order is kept, but neighbouring positions are closer together than in training",
    when="the model has this type",
)
def proportional(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Interpolate positions linearly in the pairs that are rotated.

    Source: modeling_rope_utils.py of transformers.
    """
    return {**rope, "factor": factor}


@rotary(
    summary="change only length limits",
    convention="no setting of the positions changes",
    long_inputs="positions continue as in training, but the model has not seen them",
    when="any length can be used without other settings",
)
def limits(rope: Parameters, lengths: Lengths, dim: int) -> Parameters:
    """Keep all settings.

    Source: none.
    """
    return rope


class RopeChange(NamedTuple):
    """New rotary settings of one type of layers."""

    parameters: Parameters
    method: str  # the method with all of its settings, which reproduces them
    reason: str = ""  # what was chosen and why, as text; empty if nothing was chosen
    keeps_max_len: bool = False  # whether max_position_embeddings must stay the old length


def resize_rope(
    rope: Parameters,
    lengths: Lengths,
    dim: int,
    method: str | None = None,
    methods: Sequence[str] = APPLICABLE["default"],
) -> RopeChange:
    """Return rotary settings that serve longer inputs.

    Args:
        rope: Settings of one type of layers.
        lengths: Context length that the settings serve, and that the new ones must serve, in tokens.
        dim: Rotated values per head; for type ``proportional``, all values of a head.
        method: A name of `ROTARY_METHODS`, with a factor if it is not to be chosen: ``yarn:factor=4``, as `read_method`
            accepts it. None and `DEFAULT_METHOD` choose the first one of type ``default``, else that of the same type.
        methods: Those that the model type applies to settings of type ``default``.

    Raises:
        MethodError: The method does not apply to the rope type.
        ResizeError: The factor is invalid, or the settings cannot serve the length.
        CheckpointError: The rope type is unknown, or the lists of ``longrope`` do not fit.
    """
    applicable, (before, after) = _of_type(APPLICABLE, rope), lengths
    name, _, text = (method or DEFAULT_METHOD).partition(":")
    is_scaled, is_chosen = rope["rope_type"] in KEPT_TYPES, name == DEFAULT_METHOD
    applicable = tuple(other for other in applicable if is_scaled or other in methods)
    name = applicable[0] if is_chosen else name
    if name not in applicable and is_scaled:
        message = f"--method {name}: the model already has {rope['rope_type']} settings, which are kept."
        raise MethodError(message, f"Remove --method, or use --method {applicable[0]}.")
    if name not in applicable:
        message = f"--method {name}: the model has no {name} settings."
        raise MethodError(message, f"Use {', '.join(applicable[:-1])} or {applicable[-1]}.")
    facts, settings = ROTARY_METHODS[name], dict[str, float]()
    if facts.settings:
        stated = rope.get("factor") if is_scaled else None
        settings["factor"] = stated * after / before if stated else after / trained_length(rope, before)
        if text:
            settings["factor"] = float(text.removeprefix("factor="))
        if not FACTOR.allows(settings["factor"]):
            message = f"--method {name}: factor must be {FACTOR.must}, got {settings['factor']}."
            raise ResizeError(message, f"State it, as in --method {name}:factor=4.")
    parameters = facts.function(rope, lengths, dim, **settings)
    reasons, theta = list[str](), rope["rope_theta"]
    if is_chosen:
        factor = f" with factor {settings['factor']:g}" if settings else ""
        reasons.append(f"auto kept the rope type, {name}{factor}" if is_scaled else f"auto chose {name}{factor}")
    if parameters["rope_theta"] != theta:
        reasons.append(f"rope_theta rises from {theta:,} to {parameters['rope_theta']:,.1f}")
    return RopeChange(parameters, method_text(name, settings), "; ".join(reasons), facts.keeps_max_len)
