"""Rotary positions: inverse frequencies of each rope type, and the methods that serve longer
inputs.

A method gets rotary settings, the lengths (before, after) in tokens, the number of rotated values
per head and its own settings, and returns the complete new settings; it keeps all keys that it does
not know. It reads no rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import MethodError, ResizeError
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import (
    DEFAULT_METHOD,
    LIMITS,
    ROTARY_METHODS,
    SCALING_METHODS,
    Setting,
    method,
)

Parameters = Mapping[
    str, Any
]  # rotary settings as in transformers 5: ``rope_type``, ``rope_theta``, ``factor``, …
Lengths = tuple[int, int]  # context length before and after, in tokens

# keys of settings
TYPE = "rope_type"
THETA = "rope_theta"
FACTOR = "factor"
PARTIAL = "partial_rotary_factor"
TRAINED = "original_max_position_embeddings"  # the length of the first training, before any scaling
LISTS = ("short_factor", "long_factor")
ALPHA = "alpha"
# ``dynamic`` settings with ``alpha``, in classes that read it; transformers calls them so, and
# files do not.
NTK_ALPHA = "ntk_alpha"
NEEDS: dict[str, tuple[str, ...]] = {  # the settings that each rope type needs
    "default": (),
    "linear": (FACTOR,),
    "dynamic": (FACTOR,),
    "yarn": (FACTOR, TRAINED),
    "longrope": (TRAINED, *LISTS),
    "llama3": (FACTOR, TRAINED, "low_freq_factor", "high_freq_factor"),
    "proportional": (),
}
KEPT_TYPES = tuple(NEEDS)[1:]  # scaled models keep their type
STATES_TRAINED = (
    "yarn",
    "longrope",
    "llama3",
)  # types whose settings state the length of the first training


class Frequencies(NamedTuple):
    """The angles per position that a rope type gives."""

    inverse: NDArray[np.float64]  # radians per position of each pair of values, shape (dim / 2,)
    attention_factor: float = 1.0  # by which cosines and sines are multiplied


def frequencies(rope: Parameters, dim: int, max_len: int, length: int | None = None) -> Frequencies:
    """Return the inverse frequencies of rotary settings, as `ROPE_INIT_FUNCTIONS` of transformers
    computes them.

    `rope` are complete, valid settings of one type of layers, and `dim` is the number of rotated
    values per head (all for type ``proportional``). `max_len` is max_position_embeddings, and
    `length`, in tokens, that of the input.
    """
    if rope[TYPE] == NTK_ALPHA:
        return _default({THETA: ntk_base(rope[THETA], rope[ALPHA], dim)}, dim)
    return FORMULAS[rope[TYPE]](rope, dim, max_len, max_len if length is None else length)


def _default(rope: Parameters, dim: int, *_: int) -> Frequencies:
    return Frequencies(float(rope[THETA]) ** (-np.arange(0, dim, 2) / dim))


def _linear(rope: Parameters, dim: int, *_: int) -> Frequencies:
    return Frequencies(_default(rope, dim).inverse / rope[FACTOR])


def _dynamic(rope: Parameters, dim: int, max_len: int, length: int) -> Frequencies:
    growth = rope[FACTOR] * max(length, max_len) / max_len - (rope[FACTOR] - 1)
    return _default({THETA: ntk_base(rope[THETA], growth, dim)}, dim)


def _yarn(rope: Parameters, dim: int, max_len: int, _: int) -> Frequencies:
    trained = trained_length(rope, max_len)
    base = rope[THETA]
    factor = rope.get(FACTOR) or max_len / trained
    turns = (
        rope.get("beta_fast") or 32,
        rope.get("beta_slow") or 1,
    )  # over the trained length, at both ends of the ramp
    low, high = (
        dim * math.log(trained / (count * 2 * math.pi)) / (2 * math.log(base)) for count in turns
    )
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((np.arange(dim // 2) - low) / (high - low or 0.001)).clip(0, 1)
    plain = _default(rope, dim).inverse
    attention_factor = rope.get("attention_factor")
    if attention_factor is None:
        scales: tuple[Any, ...] = rope.get("mscale"), rope.get("mscale_all_dim")
        above, below = (
            0.1 * scale * math.log(max(factor, 1)) + 1
            for scale in (scales if all(scales) else (1, 0))
        )
        attention_factor = above / below
    return Frequencies(plain / factor * ramp + plain * (1 - ramp), attention_factor)


def _longrope(rope: Parameters, dim: int, max_len: int, length: int) -> Frequencies:
    trained = trained_length(rope, max_len)
    factors = np.array(rope["long_factor" if length > trained else "short_factor"], np.float64)
    attention_factor = rope.get("attention_factor")
    if attention_factor is None:
        attention_factor = math.sqrt(
            1 + math.log(max(rope.get(FACTOR) or max_len / trained, 1)) / math.log(trained)
        )
    return Frequencies(_default(rope, dim).inverse / factors, attention_factor)


def _llama3(rope: Parameters, dim: int, max_len: int, _: int) -> Frequencies:
    plain = _default(rope, dim).inverse
    low = rope["low_freq_factor"]
    high = rope["high_freq_factor"]
    kept = (((trained_length(rope, max_len) * plain / (2 * math.pi)) - low) / (high - low)).clip(
        0, 1
    )
    return Frequencies(plain * (kept + (1 - kept) / rope[FACTOR]))


def _proportional(rope: Parameters, dim: int, *_: int) -> Frequencies:
    inverse = _default(rope, dim).inverse / rope.get(FACTOR, 1.0)
    inverse[int(rope.get(PARTIAL, 1.0) * dim // 2) :] = 0  # these pairs are not rotated
    return Frequencies(inverse)


FORMULAS: dict[str, Callable[..., Frequencies]] = dict(
    zip(NEEDS, (_default, _linear, _dynamic, _yarn, _longrope, _llama3, _proportional), strict=True)
)


def trained_length(rope: Parameters, max_len: int) -> int:
    """Return the length of the first training, in tokens: the stated one, else `max_len`, as in
    transformers.
    """
    return rope.get(TRAINED) or max_len


def ntk_base(theta: float, factor: float, dim: int) -> float:
    """Return the base that divides the lowest of dim / 2 frequencies by a factor and keeps the
    highest: see `theta`.
    """
    if dim < 4:
        hint = "Use another method, such as --method yarn."
        raise ResizeError(
            f"A higher rope_theta has no effect on {dim} rotated values per head: 4 are needed.",
            hint,
        )
    return float(theta * factor ** (dim / (dim - 2)))


SCALE = Setting(
    "new length / trained length",
    "a number from 1 on",
    None,
    float,
    lambda factor: 1 <= factor < np.inf,
)
rotary = partial(method, ROTARY_METHODS, scheme="rotary", keep_first=None, reads_learned_rows=False)
scaling = partial(rotary, keeps_learned_rows=False, settings={FACTOR: SCALE})


@scaling(
    summary="divide low frequencies by the factor and keep high ones (default)",
    convention="original_max_position_embeddings is the trained length; "
    "attention_factor, mscale and "
    "betas stay",
    long_inputs="low frequencies stay within the angles of training, and high ones "
    "keep neighbours apart",
    when="long inputs must work without training",
)
def yarn(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Interpolate by wavelength: pairs that turn often within the trained length keep their
    frequency.

    Source: Peng et al. 2023, YaRN, section 3, arXiv:2309.00071.
    """
    return {**rope, TYPE: "yarn", FACTOR: factor, TRAINED: trained_length(rope, lengths[0])}


@scaling(
    summary="divide all frequencies by the factor",
    convention="position t turns by the angles of position t / factor",
    long_inputs="order is kept, but neighbouring positions are closer together than in training",
    when="a runtime supports no other method; then train",
)
def linear(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Interpolate positions linearly. Source: Chen et al. 2023, Position Interpolation,
    arXiv:2306.15595.
    """
    return {**rope, TYPE: "linear", FACTOR: factor}


@rotary(
    summary="raise the base with each input that is longer than the trained length",
    settings={FACTOR: SCALE},
    convention="base = rope_theta·(factor·length/trained - (factor - 1))^(d/(d-2)), "
    "of d rotated values "
    "per head",
    long_inputs="the angles of all positions change as the input grows, but "
    "cached keys keep theirs",
    when="short inputs must give identical outputs, in transformers",
    keeps_max_len=True,
)
def dynamic(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Choose the base from the length of each input; max_position_embeddings stays the trained
    length.

    Source: emozilla 2023, Dynamically Scaled RoPE, reddit.com/r/LocalLLaMA/comments/14mrgpr.
    """
    ntk_base(rope[THETA], factor, dim)  # checks `dim`
    return {**rope, TYPE: "dynamic", FACTOR: factor}


@scaling(
    summary="raise rope_theta (NTK-aware) and keep the rope type default",
    convention="rope_theta·factor^(d/(d-2)), of d rotated values per head",
    long_inputs="the lowest frequency stays within the angles of training, but "
    "those between do not",
    when="you fine-tune afterwards, or a runtime supports no rope types",
)
def theta(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Raise the base so that the lowest frequency is divided by the factor, and the highest stays.

    Source: bloc97 2023, NTK-Aware Scaled RoPE, reddit.com/r/LocalLLaMA/comments/14lz7j5.
    """
    return {**rope, TYPE: "default", THETA: ntk_base(rope[THETA], factor, dim)}


@rotary(
    summary="use the lists of factors in the config, up to the length that they serve",
    convention="long_factor divides the frequencies of inputs longer than "
    "original_max_position_embeddings",
    long_inputs="frequencies are those that a search found for the model",
    when="the config has the lists and states the factor that they serve",
)
def longrope(rope: Parameters, lengths: Lengths, dim: int) -> Parameters:
    """Keep the lists: longer inputs than they serve need another search.

    Source: Ding et al. 2024, LongRoPE, arXiv:2402.13753.
    """
    trained = trained_length(rope, lengths[0])
    served = max(lengths[0], round(trained * (rope.get(FACTOR) or 1)))
    if lengths[1] > served:
        message = f"The lists of the longrope settings serve {served} tokens, not {lengths[1]}."
        hint = (
            f"A length above {served} needs other lists, found by another search. If "
            "max_position_embeddings was "
        )
        hint += (
            f"lowered by hand, set it back first; --method {LIMITS} raises the limits and keeps "
            "the settings."
        )
        raise ResizeError(message, hint)
    return {**rope, TRAINED: trained}


@scaling(
    summary="raise the factor of a model that has this type (Llama 3.1 and later)",
    convention="original_max_position_embeddings, low_freq_factor and high_freq_factor stay",
    long_inputs="low frequencies stay within the angles of training, and high ones "
    "keep neighbours apart",
    when="the model has this type",
)
def llama3(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Divide low frequencies by a larger factor, with the same ramp up to the high ones.

    Source: Grattafiori et al. 2024, Llama 3, arXiv:2407.21783, and modeling_rope_utils.py of
    transformers.
    """
    return {**rope, FACTOR: factor, TRAINED: trained_length(rope, lengths[0])}


@scaling(
    summary="raise the factor of a model that has this type (Gemma 4)",
    convention="all frequencies, spaced over the whole head, are divided by the factor; "
    "partial_rotary_factor stays",
    long_inputs="order is kept, but neighbouring positions are closer together than in training",
    when="the model has this type",
)
def proportional(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Interpolate positions linearly in the pairs that are rotated. Source: modeling_rope_utils.py
    of transformers.
    """
    return {**rope, FACTOR: factor}


@rotary(
    summary="change only length limits",
    convention="no setting of the positions changes",
    long_inputs="positions continue as in training, but the model has not seen them",
    when="any length can be used without other settings, or the config understates what was "
    "trained",
)
def limits(rope: Parameters, lengths: Lengths, dim: int) -> Parameters:
    """Keep all settings; state those that transformers would derive from the length. Source:
    none.
    """
    is_derived = rope[TYPE] == "longrope" and not (rope.get(FACTOR) or rope.get("attention_factor"))
    if is_derived:  # the attention factor follows max_position_embeddings / trained length
        return {**rope, FACTOR: max(lengths[0] / trained_length(rope, lengths[0]), 1.0)}
    return rope


def resize_rope(
    rope: Parameters,
    lengths: Lengths,
    dim: int,
    name: str = DEFAULT_METHOD,
    factor: float | None = None,
    *,
    methods: Sequence[str] = SCALING_METHODS,
    first_trained: int | None = None,
    is_corrected: bool = False,
) -> tuple[Parameters, MethodChoice]:
    """Return rotary settings of one type of layers that serve longer inputs, and their method.

    Settings of another type than ``default`` keep their type, and stay as they are if they already
    serve the length.

    Args:
        rope: The settings before, complete and valid; see `frequencies`.
        lengths: The length that they serve, and the one that the new settings must serve, in
            tokens.
        dim: The number of rotated values per head; see `frequencies`.
        name: A name of `ROTARY_METHODS`, or `DEFAULT_METHOD` to choose the first one that applies.
        factor: The factor of the method; None chooses the smallest one that serves the length.
        methods: Those that the model type applies to settings of type ``default``.
        first_trained: The length of the first training, in tokens; by default, what the settings
            state.
        is_corrected: Whether the settings misstate it, so that they change at the length that they
            serve, too.

    Returns:
        The new settings, and the method with its factor, which reproduces them.

    Raises:
        MethodError: The method does not apply to the rope type.
        ResizeError: The factor is invalid, or the settings cannot serve the length.
    """
    before, after = lengths
    requested = name
    if rope[TYPE] == NTK_ALPHA and requested != LIMITS:
        raise _cannot_scale_alpha(rope)
    applicable = _applicable_methods(rope, methods)
    if requested == DEFAULT_METHOD:
        name = applicable[0]
    elif requested not in (*applicable, LIMITS):
        raise _does_not_apply(requested, rope, applicable)
    changes_anyway = name == LIMITS or factor is not None or is_corrected
    serves_already = after <= before and not changes_anyway
    if serves_already:
        name = LIMITS
    facts = ROTARY_METHODS[name]
    settings = dict[str, float]()
    if FACTOR in facts.settings:
        if factor is None:
            factor = _smallest_factor(rope, lengths, first_trained)
        _check_factor(name, factor)
        settings[FACTOR] = factor
    first = first_trained or trained_length(rope, before)
    if TRAINED in rope and name in STATES_TRAINED:
        rope = {**rope, TRAINED: first}
    # Methods state `from_length` as the trained length if the settings state none.
    from_length = before if TRAINED in rope else first
    parameters = facts.function(rope, (from_length, after), dim, **settings)

    reasons = list[str]()
    if serves_already:
        reasons.append(f"the settings already serve {before} tokens, so nothing scales")
    elif requested == DEFAULT_METHOD:
        reasons.append(_reason_of_auto(rope, name, settings))
    elif name == LIMITS:
        reasons.append("only limits change: nothing scales")
    if parameters[THETA] != rope[THETA]:
        reasons.append(f"rope_theta rises from {rope[THETA]:,.1f} to {parameters[THETA]:,.1f}")
    if settings and rope[TYPE] == "default":
        served = round(settings[FACTOR] * first)
        if served < after:
            reasons.append(f"factor {settings[FACTOR]:g} serves only {served:,} tokens")
    return parameters, MethodChoice(facts, settings, reason="; ".join(reasons))


def _applicable_methods(rope: Parameters, methods: Sequence[str]) -> tuple[str, ...]:
    """Return the methods that apply, the default first; scaled settings keep their type."""
    if rope[TYPE] != "default":
        return (rope[TYPE],)
    return tuple(name for name in SCALING_METHODS if name in methods)


def _cannot_scale_alpha(rope: Parameters) -> MethodError:
    message = (
        f"Rotary settings with {ALPHA} {rope[ALPHA]:g} cannot be scaled: transformers computes one "
        "base from it, for inputs of every length, and reads no factor."
    )
    return MethodError(message, f"To raise only limits, use --method {LIMITS}.")


def _does_not_apply(name: str, rope: Parameters, applicable: Sequence[str]) -> MethodError:
    if rope[TYPE] != "default":
        reason = f"the model already has {rope[TYPE]} settings, which are kept"
        hint = f"Remove --method, or use --method {applicable[0]}."
    elif name in SCALING_METHODS:
        reason = f"the model type does not apply {name}"
        hint = f"Use {', '.join(applicable)}."
    else:
        reason = f"the model has no {name} settings"
        hint = f"Use {', '.join(applicable)}."
    return MethodError(f"--method {name}: {reason}.", hint)


def _smallest_factor(rope: Parameters, lengths: Lengths, first_trained: int | None) -> float:
    """Return the smallest factor that serves the second of two lengths."""
    before, after = lengths
    if first_trained is not None:
        return after / first_trained
    stated = rope.get(FACTOR)
    if rope[TYPE] != "default" and stated:
        return float(stated * after / before)
    return after / trained_length(rope, before)


def _check_factor(name: str, factor: float) -> None:
    if not SCALE.allows(factor):
        message = f"--method {name}: factor must be {SCALE.must}, got {factor}."
        raise ResizeError(message, f"State it, as in --method {name}:factor=4.")


def _reason_of_auto(rope: Parameters, name: str, settings: Mapping[str, float]) -> str:
    factor = f" with factor {settings[FACTOR]:g}" if settings else ""
    if rope[TYPE] != "default":
        return f"auto kept the rope type, {name}{factor}"
    return f"auto chose {name}{factor}"
