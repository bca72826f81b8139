"""The methods of rotary positions, in the order of all listings, and how settings get one.

A method gets rotary settings, the lengths of the change, the number of rotated values per head and
its own settings, and returns the complete new settings; it keeps all keys that it does not know. It
reads no rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from ctxextend.errors import MethodError, ResizeError
from ctxextend.tables.frequencies import (
    check_ntk_dim,
    frequencies,
    ntk_base,
    trained_length,
)
from ctxextend.tables.method_facts import (
    DEFAULT_METHOD,
    LIMITS,
    SCALING_METHODS,
    SWITCH,
    Method,
    MethodChoice,
    Setting,
    positive_setting,
    registering,
)
from ctxextend.tables.rope_types import (
    ALPHA,
    ATTENTION_FACTOR,
    BETA_FAST,
    BETA_SLOW,
    FACTOR,
    FACTOR_OF_NO_ROTATION,
    KEPT_TYPES,
    LIST_MSCALES,
    LONG_LIST,
    MSCALE_ALL_DIM,
    NTK_ALPHA,
    SHORT_LIST,
    THETA,
    TRAINED,
    TYPE,
    YARN_BETAS,
    Parameters,
    has_switch_lists,
    rope_type,
    without_type_settings,
)


class RopeLengths(NamedTuple):
    """The lengths of a change of rotary settings, in tokens."""

    first_trained: int  # of the first training, before any scaling
    served: int  # by the settings before the change
    after: int  # that the new settings must serve


SCALE = Setting(
    "new length / trained length",
    must="a number from 1 on, below 1e12",
    default=None,
    read=float,
    allows=lambda factor: 1 <= factor < FACTOR_OF_NO_ROTATION,
)

MAX_BETA = 1e6


def _beta(does: str, default: str) -> Setting:
    """Return a setting that is a number of turns; `default` is that of transformers."""
    return Setting(
        does,
        must=f"a number between {1 / MAX_BETA:g} and {MAX_BETA:g}",
        default=None,
        unset=f"as stated, else {default}",
        read=float,
        allows=lambda turns: 1 / MAX_BETA <= turns <= MAX_BETA,
    )


# What YaRN leaves open. Unset, the settings keep what they state, or transformers' default.
YARN_SETTINGS = {
    BETA_FAST: _beta("turns within the trained length from which pairs are not slowed", "32"),
    BETA_SLOW: _beta("turns below which pairs are slowed by the whole factor", "1"),
    ATTENTION_FACTOR: positive_setting(
        "factor of cosines and sines", unset="as stated, else that of the method"
    ),
}

MSCALE = "mscale"
LIST_MSCALE = positive_setting(
    "also state short_mscale and long_mscale, as --for vllm does", unset="not stated"
)

# The types whose frequencies are the same for all inputs, and none of them 0: those of `switch`.
SWITCHED_TYPES = ("default", "linear", "yarn", "llama3")

ROTARY_METHODS: dict[str, Method] = {}  # by name, in the order of all listings
# Of methods that leave short inputs as they are.
rotary = registering(ROTARY_METHODS, scheme="rotary", keep_first=None)
# Of methods that give all inputs other angles, by a factor.
scaling = registering(
    ROTARY_METHODS,
    scheme="rotary",
    keep_first=None,
    keeps_learned_rows=False,
    settings={FACTOR: SCALE},
)


@rotary(
    summary="divide low frequencies by the factor and keep high ones (default)",
    settings={FACTOR: SCALE, **YARN_SETTINGS},
    keeps_learned_rows=False,
    convention="original_max_position_embeddings is the trained length; attention_factor, mscale "
    "and betas stay unless they are given",
    long_inputs="low frequencies stay within the angles of training, and high ones keep neighbours "
    "apart",
    when="long inputs must work without training",
)
def yarn(
    rope: Parameters, lengths: RopeLengths, dim: int, *, factor: float, **stated: float
) -> Parameters:
    """Interpolate by wavelength: pairs that turn often within the trained length stay.

    Source: Peng et al. 2023, YaRN, section 3, arXiv:2309.00071.
    """
    settings = {**rope, TYPE: "yarn", FACTOR: factor, TRAINED: lengths.first_trained, **stated}
    _check_ramp(settings, dim, are_betas_given=not stated.keys().isdisjoint(YARN_BETAS))
    return settings


def _check_ramp(settings: Parameters, dim: int, *, are_betas_given: bool) -> None:
    """Check that yarn settings have a ramp: pairs of several wavelengths, and ordered betas.

    Betas of the file are kept in any order, since the model was trained with them.

    Raises:
        MethodError: They have none.
    """
    if dim % 2:
        message = f"--method yarn: {dim} rotated values per head are no pairs."
        raise MethodError(message, "Use another method, such as --method linear.")
    if settings[THETA] <= 1:
        message = (
            f"--method yarn: all pairs have one wavelength with rope_theta {settings[THETA]:g}."
        )
        raise MethodError(message, "Use another method, such as --method linear.")
    fast, slow = (settings.get(key) or default for key, default in YARN_BETAS.items())
    if are_betas_given and fast <= slow:
        message = f"--method yarn: beta-fast must be above beta-slow, got {fast:g} and {slow:g}."
        raise MethodError(message, "State both, as in --method yarn:beta-fast=16,beta-slow=2.")


@rotary(
    summary="keep all frequencies up to the trained length, and switch to those of yarn beyond it",
    settings={FACTOR: SCALE, **YARN_SETTINGS, MSCALE: LIST_MSCALE},
    convention="rope type longrope: short_factor is 1 for each pair, long_factor divides as yarn "
    "does, attention_factor is 1; scaled settings are switched from their own to longer ones",
    long_inputs="low frequencies stay within the angles of training, and high ones keep neighbours "
    "apart",
    when="short inputs must give identical outputs in transformers, and no text grows past the "
    "trained length",
)
def switch(
    rope: Parameters, lengths: RopeLengths, dim: int, *, factor: float, **stated: float
) -> Parameters:
    """State two lists of factors: of the settings as they are, and of longer ones.

    Longer ones are those of the method that gives inputs of any length the same frequencies:
    `yarn`, or the method that scaled the settings before. All inputs keep the attention factor of
    the settings before, since the type has only one.

    Source: ctxextend; the lists are those of Ding et al. 2024, LongRoPE, arXiv:2402.13753, and the
    frequencies of long inputs those of Peng et al. 2023, YaRN, section 3.1, arXiv:2309.00071.
    """
    others = without_type_settings(rope)
    mscale = stated.pop(MSCALE, None)
    longer = long_settings(rope, lengths, dim, factor=factor, **stated)
    plain = frequencies({**others, TYPE: "default"}, dim, lengths.served).inverse
    short = frequencies(rope, dim, lengths.served).inverse
    long = frequencies(longer, dim, lengths.after)
    settings = {
        **others,
        TYPE: "longrope",
        FACTOR: lengths.after / lengths.served,
        TRAINED: lengths.served,
        ATTENTION_FACTOR: long.attention_factor,
        SHORT_LIST: (plain / short).tolist(),
        LONG_LIST: (plain / long.inverse).tolist(),
    }
    if mscale is not None:
        settings |= dict.fromkeys(LIST_MSCALES, mscale)
    return settings


def long_settings(
    rope: Parameters, lengths: RopeLengths, dim: int, **settings: float
) -> Parameters:
    """Return settings that give inputs of any length what `switch` gives long ones.

    Args:
        rope, lengths, dim: As in `resize_rope`.
        settings: Those of `switch`, with its factor and without ``mscale``.

    Raises:
        MethodError: One of them does not apply to the type of the settings.
    """
    if rope[TYPE] in ("default", "yarn"):
        attention_factor = frequencies(rope, dim, lengths.served).attention_factor
        return yarn(rope, lengths, dim, **{ATTENTION_FACTOR: attention_factor, **settings})
    for name in YARN_SETTINGS:
        if name in settings:
            message = f"--method {SWITCH}: {rope[TYPE]} settings have no {name}."
            raise MethodError(message, f"Remove {name.replace('_', '-')}.")
    longer: Parameters = ROTARY_METHODS[rope[TYPE]].function(rope, lengths, dim, **settings)
    return longer


@scaling(
    summary="divide all frequencies by the factor",
    convention="position t turns by the angles of position t / factor",
    long_inputs="order is kept, but neighbouring positions are closer together than in training",
    when="a runtime supports no other method; then train",
)
def linear(rope: Parameters, lengths: RopeLengths, dim: int, *, factor: float) -> Parameters:
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
    when="short inputs must give identical outputs, and the model does not apply switch",
    keeps_max_len=True,
)
def dynamic(rope: Parameters, lengths: RopeLengths, dim: int, *, factor: float) -> Parameters:
    """Choose the base from the length of each input.

    The config states the trained length as before.

    Source: emozilla 2023, Dynamically Scaled RoPE, reddit.com/r/LocalLLaMA/comments/14mrgpr.
    """
    check_ntk_dim(dim)
    return {**rope, TYPE: "dynamic", FACTOR: factor}


@scaling(
    summary="raise rope_theta (NTK-aware) and keep the rope type default",
    convention="rope_theta·factor^(d/(d-2)), of d rotated values per head",
    long_inputs="the lowest frequency stays within the angles of training, but those between do "
    "not",
    when="you fine-tune afterwards, or a runtime supports no rope types",
)
def theta(rope: Parameters, lengths: RopeLengths, dim: int, *, factor: float) -> Parameters:
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
def longrope(rope: Parameters, lengths: RopeLengths, dim: int) -> Parameters:
    """Keep the lists: longer inputs than they serve need another search.

    Source: Ding et al. 2024, LongRoPE, arXiv:2402.13753.
    """
    by_factor = round(lengths.first_trained * (rope.get(FACTOR) or 1))
    served = max(lengths.served, by_factor)
    if lengths.after > served:
        message = f"The lists of the longrope settings serve {served} tokens, not {lengths.after}."
        hint = (
            f"A length above {served} needs other lists, found by another search. If "
            "max_position_embeddings was lowered by hand, set it back first; "
            f"--method {LIMITS} raises the limits and keeps the settings."
        )
        if has_switch_lists(rope):
            hint = f"If --method {SWITCH} made the lists, resize its base instead. {hint}"
        raise ResizeError(message, hint)
    return {**rope, TRAINED: lengths.first_trained}


@scaling(
    summary="raise the factor of a model that has this type (Llama 3.1 and later)",
    convention="original_max_position_embeddings, low_freq_factor and high_freq_factor stay",
    long_inputs="low frequencies stay within the angles of training, and high ones keep neighbours "
    "apart",
    when="the model has this type",
)
def llama3(rope: Parameters, lengths: RopeLengths, dim: int, *, factor: float) -> Parameters:
    """Divide low frequencies by a larger factor, with the same ramp up to the high ones.

    Source: Grattafiori et al. 2024, Llama 3, arXiv:2407.21783, and modeling_rope_utils.py of
    transformers.
    """
    # The length that the settings state is part of their formula.
    trained = trained_length(rope, lengths.first_trained)
    return {**rope, FACTOR: factor, TRAINED: trained}


@scaling(
    summary="raise the factor of a model that has this type (Gemma 4)",
    convention="all frequencies, spaced over the whole head, are divided by the factor; "
    "partial_rotary_factor stays",
    long_inputs="order is kept, but neighbouring positions are closer together than in training",
    when="the model has this type",
)
def proportional(rope: Parameters, lengths: RopeLengths, dim: int, *, factor: float) -> Parameters:
    """Interpolate positions linearly in the pairs that are rotated.

    Source: modeling_rope_utils.py of transformers.
    """
    return {**rope, FACTOR: factor}


@rotary(
    summary="change only length limits",
    convention="all settings of the positions mean the same as before",
    long_inputs="positions continue as in training, but the model has not seen them",
    when="any length can be used without other settings, or the config understates what was "
    "trained",
)
def limits(rope: Parameters, lengths: RopeLengths, dim: int) -> Parameters:
    """Keep what all settings mean.

    ``longrope`` settings without a scale get the factor that transformers derives for them.

    Source: none.
    """
    if not _derives_scale(rope):
        return rope
    growth = lengths.served / trained_length(rope, lengths.served)
    return {**rope, FACTOR: max(growth, 1.0)}


def _derives_scale(rope: Parameters) -> bool:
    """Whether transformers derives the attention of settings from max_position_embeddings.

    It derives that of ``longrope`` settings without a scale from max_position_embeddings / trained
    length, so these must state the scale before max_position_embeddings changes.
    """
    return rope[TYPE] == "longrope" and not (rope.get(FACTOR) or rope.get("attention_factor"))


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
    lengths: RopeLengths,
    dim: int,
    name: str = DEFAULT_METHOD,
    given: Mapping[str, Any] | None = None,
    *,
    methods: Sequence[str] = SCALING_METHODS,
    is_corrected: bool = False,
) -> tuple[Parameters, MethodChoice]:
    """Return rotary settings of one type of layers that serve longer inputs, and their method.

    A requested method must apply, also where it has nothing to do. Then the first of these that
    holds counts:

    1. The user requests ``limits``, which applies to all settings.
    2. The settings already serve the length, and do not change anyway: ``limits``.
    3. The user requests a method.
    4. The settings have another type than ``default``: the method of this type.
    5. The first method of `SCALING_METHODS` that the model type applies.

    Args:
        rope: The settings before, complete and valid; see `frequencies`.
        lengths: What the settings serve, and what the new settings must serve.
        dim: The number of rotated values per head; see `frequencies`.
        name: A name of `ROTARY_METHODS`, or `DEFAULT_METHOD` to choose the first one that applies.
        given: The settings of the method, by name. Without a factor, the smallest one that serves
            the length is chosen.
        methods: The methods that the model type applies to settings of type ``default``.
        is_corrected: Whether the settings misstate the length of the first training, so that they
            change at the length that they serve, too.

    Returns:
        The new settings, and the method with its settings, which reproduces them.

    Raises:
        MethodError: The method does not apply to the rope type.
        ResizeError: The factor is invalid, or the settings cannot serve the length.
    """
    stated = {key: value for key, value in (given or {}).items() if value is not None}
    applicable = _applicable_methods(rope, methods)
    if name not in (DEFAULT_METHOD, LIMITS, *applicable):
        _refuse_method(name, rope, applicable)
    method = ROTARY_METHODS[LIMITS]
    reasons = list[str]()
    if name == LIMITS:
        reasons.append("nothing scales")
    elif lengths.after <= lengths.served and not (stated or is_corrected):
        reasons.append(f"the settings already serve {lengths.served} tokens, so nothing scales")
    elif name != DEFAULT_METHOD:
        method = ROTARY_METHODS[name]
    elif applicable:
        method = ROTARY_METHODS[applicable[0]]
    else:
        _refuse_scaling(rope)
    settings = _method_settings(method, stated, rope, lengths)
    new_rope = method.function(rope, lengths, dim, **settings)
    if name == LIMITS and new_rope == rope:
        reasons = ["only limits change: nothing scales"]
    if not reasons and name == DEFAULT_METHOD:
        choice = method.name
        if settings:
            choice += f" with factor {settings[FACTOR]:g}"
        verb = "chose" if rope[TYPE] == "default" else "kept the rope type,"
        reasons.append(f"auto {verb} {choice}")
    if new_rope[THETA] != rope[THETA]:
        reasons.append(f"rope_theta rises from {rope[THETA]:,.1f} to {new_rope[THETA]:,.1f}")
    if _derives_scale(rope) and not _derives_scale(new_rope):
        factor = new_rope[FACTOR]
        reasons.append(f"the settings state factor {factor:g}, which transformers derived so far")
    return new_rope, MethodChoice(method, settings, reason="; ".join(reasons))


def _applicable_methods(rope: Parameters, methods: Sequence[str]) -> list[str]:
    """Return the names of the methods that scale rotary settings; empty if none does.

    Scaled settings keep their type, so only the method of this type applies to them, and `switch`
    if its lists can state what the settings give short inputs.
    """
    if rope[TYPE] == NTK_ALPHA:
        return []
    if rope[TYPE] == "default":
        return [method for method in methods if method in SCALING_METHODS]
    if SWITCH in methods and can_switch(rope):
        return [rope[TYPE], SWITCH]
    return [rope[TYPE]]


def can_switch(rope: Parameters) -> bool:
    """Whether lists of factors can state what settings give the inputs that they serve.

    Some classes multiply attention scores by a function of ``mscale_all_dim`` and ``factor``, which
    is another one in the new settings:
    https://github.com/huggingface/transformers/blob/main/src/transformers/models/deepseek_v3/modeling_deepseek_v3.py.
    """
    return rope[TYPE] in SWITCHED_TYPES and not rope.get(MSCALE_ALL_DIM)


def _refuse_scaling(rope: Parameters) -> NoReturn:
    """Raise MethodError for settings that no method scales."""
    message = "The model type applies no method that scales rotary settings."
    if rope[TYPE] == NTK_ALPHA:
        message = (
            f"Rotary settings with {ALPHA} {rope[ALPHA]:g} cannot be scaled: transformers computes "
            "one base from it, for inputs of every length, and reads no factor."
        )
    raise MethodError(message, f"To raise only limits, use --method {LIMITS}.")


def _refuse_method(name: str, rope: Parameters, applicable: Sequence[str]) -> NoReturn:
    """Raise MethodError for a requested method that is not applicable."""
    if not applicable:
        _refuse_scaling(rope)
    message = f"--method {name} does not apply to rotary settings of type {rope[TYPE]}"
    raise MethodError(f"{message} in this model.", f"Use {', '.join(applicable)}.")


def _method_settings(
    method: Method, given: Mapping[str, Any], rope: Parameters, lengths: RopeLengths
) -> dict[str, float]:
    """Return the settings of a method: those given, and the smallest factor if it needs one.

    Raises:
        ResizeError: The factor is not allowed, or too small for the length.
    """
    if FACTOR not in method.settings:
        return {}
    smallest = _smallest_factor(rope, lengths)
    factor = given.get(FACTOR)
    if factor is None:
        factor = smallest
    if not SCALE.allows(factor):
        message = f"--method {method.name}: factor must be {SCALE.must}, got {factor}."
        raise ResizeError(message, f"State it, as in --method {method.name}:factor=4.")
    served = round(lengths.after * factor / smallest)
    if served < lengths.after:
        message = f"--method {method.name}:factor={factor:g} serves only {served} tokens."
        raise ResizeError(message, f"Use factor={smallest:.15g}, or --to {served}.")
    others = {name: value for name, value in given.items() if name != FACTOR}
    return {FACTOR: factor, **others}


def _smallest_factor(rope: Parameters, lengths: RopeLengths) -> float:
    """Return the smallest factor with which new settings serve the length.

    Settings of type ``llama3`` with factor 8 that serve 131,072 tokens need factor 16 to serve
    262,144: the stated factor grows like the served length. Unscaled settings that were trained at
    4096 tokens need factor 2 to serve 8192. `RopeType.scales_from` says which types do which.
    """
    stated = rope.get(FACTOR)
    if rope_type(rope).scales_from == "served" and stated:
        return float(stated * lengths.after / lengths.served)
    return lengths.after / lengths.first_trained
