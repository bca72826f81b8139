"""The methods of rotary positions, in the order of all listings, and how settings get one.

A method gets rotary settings, the lengths (before, after) in tokens, the number of rotated values
per head and its own settings, and returns the complete new settings; it keeps all keys that it does
not know. It reads no rows.
"""

import math
from collections.abc import Mapping, Sequence

from ctxextend.errors import MethodError, ResizeError
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import (
    DEFAULT_METHOD,
    LIMITS,
    SCALING_METHODS,
    Method,
    Setting,
    registering,
)
from ctxextend.tables.rope_types import (
    ALPHA,
    FACTOR,
    KEPT_TYPES,
    NTK_ALPHA,
    ROPE_TYPES,
    THETA,
    TRAINED,
    TYPE,
    Parameters,
)
from ctxextend.tables.rotary import ntk_base, trained_length

Lengths = tuple[int, int]  # context length before and after, in tokens

SCALE = Setting(
    "new length / trained length",
    must="a number from 1 on",
    default=None,
    read=float,
    allows=lambda factor: 1 <= factor < math.inf,
)

ROTARY_METHODS: dict[str, Method] = {}  # by name, in the order of all listings
rotary = registering(ROTARY_METHODS, scheme="rotary", keep_first=None, reads_learned_rows=False)
scaling = registering(
    ROTARY_METHODS,
    scheme="rotary",
    keep_first=None,
    reads_learned_rows=False,
    keeps_learned_rows=False,
    settings={FACTOR: SCALE},
)


@scaling(
    summary="divide low frequencies by the factor and keep high ones (default)",
    convention="original_max_position_embeddings is the trained length; attention_factor, mscale "
    "and betas stay",
    long_inputs="low frequencies stay within the angles of training, and high ones keep neighbours "
    "apart",
    when="long inputs must work without training",
)
def yarn(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Interpolate by wavelength: pairs that turn often within the trained length stay.

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
    """Interpolate positions linearly.

    Source: Chen et al. 2023, Position Interpolation, arXiv:2306.15595.
    """
    return {**rope, TYPE: "linear", FACTOR: factor}


@rotary(
    summary="raise the base with each input that is longer than the trained length",
    settings={FACTOR: SCALE},
    convention="base = rope_theta·(factor·length/trained - (factor - 1))^(d/(d-2)), of d rotated "
    "values per head",
    long_inputs="the angles of all positions change as the input grows, but cached keys keep "
    "theirs",
    when="short inputs must give identical outputs, in transformers",
    keeps_max_len=True,
)
def dynamic(rope: Parameters, lengths: Lengths, dim: int, *, factor: float) -> Parameters:
    """Choose the base from the length of each input.

    The config states the trained length as before.

    Source: emozilla 2023, Dynamically Scaled RoPE, reddit.com/r/LocalLLaMA/comments/14mrgpr.
    """
    ntk_base(rope[THETA], factor, dim)  # checks `dim`
    return {**rope, TYPE: "dynamic", FACTOR: factor}


@scaling(
    summary="raise rope_theta (NTK-aware) and keep the rope type default",
    convention="rope_theta·factor^(d/(d-2)), of d rotated values per head",
    long_inputs="the lowest frequency stays within the angles of training, but those between do "
    "not",
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
    before, after = lengths
    trained = trained_length(rope, before)
    served = max(before, round(trained * (rope.get(FACTOR) or 1)))
    if after > served:
        message = f"The lists of the longrope settings serve {served} tokens, not {after}."
        hint = (
            f"A length above {served} needs other lists, found by another search. If "
            "max_position_embeddings was lowered by hand, set it back first; "
            f"--method {LIMITS} raises the limits and keeps the settings."
        )
        raise ResizeError(message, hint)
    return {**rope, TRAINED: trained}


@scaling(
    summary="raise the factor of a model that has this type (Llama 3.1 and later)",
    convention="original_max_position_embeddings, low_freq_factor and high_freq_factor stay",
    long_inputs="low frequencies stay within the angles of training, and high ones keep neighbours "
    "apart",
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
    """Interpolate positions linearly in the pairs that are rotated.

    Source: modeling_rope_utils.py of transformers.
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
    """Keep all settings; state those that transformers would derive from the length.

    Source: none.
    """
    before, _ = lengths
    states_scale = rope.get(FACTOR) or rope.get("attention_factor")
    if rope[TYPE] != "longrope" or states_scale:
        return rope
    # The attention factor follows max_position_embeddings / trained length.
    return {**rope, FACTOR: max(before / trained_length(rope, before), 1.0)}


# The methods that set or keep a rope type.
ROTARY_METHOD_NAMES = tuple(name for name in ROTARY_METHODS if name != LIMITS)

if missing := [name for name in SCALING_METHODS if name not in ROTARY_METHODS]:
    raise ImportError(f"SCALING_METHODS lists methods without a function: {', '.join(missing)}.")
if missing := [name for name in KEPT_TYPES if name not in ROTARY_METHODS]:
    raise ImportError(
        f"Scaled models keep their rope type, but no method does: {', '.join(missing)}."
    )


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
    is_auto = name == DEFAULT_METHOD
    name = _applicable_method(rope, name, methods)
    changes_anyway = name == LIMITS or factor is not None or is_corrected
    serves_already = after <= before and not changes_anyway
    if serves_already:
        name = LIMITS
    facts = ROTARY_METHODS[name]
    settings = dict[str, float]()
    if FACTOR in facts.settings:
        settings[FACTOR] = _valid_factor(name, factor, rope, lengths, first_trained)
    first = first_trained or trained_length(rope, before)
    if TRAINED in rope and name in ROPE_TYPES and ROPE_TYPES[name].states_trained:
        rope = {**rope, TRAINED: first}
    # Methods state `from_length` as the trained length if the settings state none.
    from_length = before if TRAINED in rope else first
    parameters = facts.function(rope, (from_length, after), dim, **settings)

    reasons = []
    if serves_already:
        reasons.append(f"the settings already serve {before} tokens, so nothing scales")
    else:
        reasons += _reason_of_method(rope, name, settings, is_auto=is_auto)
    if parameters[THETA] != rope[THETA]:
        reasons.append(f"rope_theta rises from {rope[THETA]:,.1f} to {parameters[THETA]:,.1f}")
    if settings and rope[TYPE] == "default":
        reasons += _too_small_factor(settings[FACTOR], first, after)
    return parameters, MethodChoice(facts, settings, reason="; ".join(reasons))


def _too_small_factor(factor: float, trained: int, length: int) -> list[str]:
    """Say that a factor serves less than a length, if it does."""
    served = round(factor * trained)
    if served >= length:
        return []
    return [f"factor {factor:g} serves only {served:,} tokens"]


def _applicable_method(rope: Parameters, name: str, methods: Sequence[str]) -> str:
    """Return the requested method, or the default one, of those that apply to the settings."""
    if name == LIMITS:
        return name
    if rope[TYPE] == NTK_ALPHA:
        raise _cannot_scale_alpha(rope)
    applicable: list[str] = [rope[TYPE]]  # scaled settings keep their type
    if rope[TYPE] == "default":
        applicable = [method for method in SCALING_METHODS if method in methods]
    if name == DEFAULT_METHOD:
        return applicable[0]
    if name not in applicable:
        raise _does_not_apply(name, rope, applicable)
    return name


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


def _valid_factor(
    name: str,
    factor: float | None,
    rope: Parameters,
    lengths: Lengths,
    first_trained: int | None,
) -> float:
    """Return the given factor, or the smallest one; raise ResizeError if it is not allowed."""
    if factor is None:
        factor = _smallest_factor(rope, lengths, first_trained)
    if not SCALE.allows(factor):
        message = f"--method {name}: factor must be {SCALE.must}, got {factor}."
        raise ResizeError(message, f"State it, as in --method {name}:factor=4.")
    return factor


def _reason_of_method(
    rope: Parameters, name: str, settings: Mapping[str, float], *, is_auto: bool
) -> list[str]:
    """Say what `auto` chose, or that nothing scales; nothing of any other requested method."""
    factor = f" with factor {settings[FACTOR]:g}" if settings else ""
    if is_auto and rope[TYPE] != "default":
        return [f"auto kept the rope type, {name}{factor}"]
    if is_auto:
        return [f"auto chose {name}{factor}"]
    if name == LIMITS:
        return ["only limits change: nothing scales"]
    return []
