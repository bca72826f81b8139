"""Plan positions without a table of rows: which rotary settings change, and from which length."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np

from ctxextend.checkpoints.filenames import is_gguf
from ctxextend.errors import MethodError, ResizeError
from ctxextend.families.lengths import PositionLengths, layer_lengths, position_lengths
from ctxextend.families.lookup import TableLocation
from ctxextend.families.rope import RopeLayers, read_rope, rotary_dim, rotary_facts
from ctxextend.families.rope_changes import Changes, rope_changes
from ctxextend.families.rope_dialects import (
    has_settings,
    stated_dialects,
    with_other_dialect,
    with_values,
)
from ctxextend.plan.table_plan import RopePlan, ShortInputs, TablePlan
from ctxextend.settings import Resize
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import DEFAULT_METHOD, LIMITS, SCALING_METHODS, SWITCH
from ctxextend.tables.rope_types import (
    KEPT_TYPES,
    LLAMA_4_BETA,
    NONE,
    TRAINED,
    TYPE,
    Parameters,
    has_switch_lists,
    rope_type,
)
from ctxextend.tables.rotary import frequencies
from ctxextend.tables.rotary_methods import MSCALE, RopeLengths, long_settings, resize_rope

# Frequencies that differ by less are those of another order of float64 operations.
FREQUENCY_TOLERANCE = 1e-12


def plan_without_rows(table: TablePlan, settings: Resize, *, has_others: bool) -> TablePlan:
    """Plan positions without a table of rows.

    The first of these that holds counts:

    1. The settings do not apply: an error.
    2. The length stays, and only wrong limits change: a plan without rotary settings.
    3. The config does not tell its lengths: an error.
    4. The length gets shorter: an error.
    5. The length stays, and nothing is corrected: a plan without rotary settings, whose output is
       a copy, as of a table of rows.
    6. No rotary settings scale: a plan without these.
    7. A plan of the rotary settings.

    Args:
        table: Its lengths.
        settings: With the method that applies to these positions.
        has_others: Whether the model has other tables that a resize of them would change.

    Raises:
        MethodError: The method, or another setting, does not apply to these positions.
        ResizeError: The new length is shorter, or the old one is unknown.
    """
    location = table.location
    lengths = position_lengths(location)
    _check_settings(location, settings)
    before = lengths.context
    after = table.max_len_after
    is_changed = after > before or (after == before and _corrects_any(location))
    has_rope = has_settings(location)
    dialects = tuple[str, ...]()
    if has_rope:
        dialects = stated_dialects(location)
    unchanged = replace(table, lengths=lengths, rope_dialects=dialects)
    stays = after == before and not is_changed
    if stays and settings.fix_limits:
        return unchanged
    if lengths.question:
        raise ResizeError(f"{location.file}: {lengths.question}.", f"Pass {lengths.answer}.")
    if stays:
        return unchanged
    if not is_changed:
        _refuse_shorter(location, before, after, has_others=has_others)
    if not has_rope:
        return replace(table, lengths=lengths)
    plans = [_plan_layers(location, layers, settings, after) for layers in _global_layers(location)]
    return replace(
        table,
        lengths=lengths,
        rope=tuple(plans),
        rope_dialects=planned_dialects(location, plans),
    )


def planned_dialects(location: TableLocation, plans: Sequence[RopePlan]) -> tuple[str, ...]:
    """Return the dialects that state the planned rotary settings in the output."""
    changes = Changes()
    for plan in plans:
        changes |= rope_changes(location, plan.before, plan.after)
    changes = with_other_dialect(location, changes)
    return stated_dialects(with_values(location, changes))


def _check_settings(location: TableLocation, settings: Resize) -> None:
    """Check that the settings apply to positions without rows, and to this model type.

    Raises:
        MethodError: They do not.
    """
    if settings.keep_first:
        message = (
            f"--keep-first cannot be used with {location.scheme} positions, which have no rows."
        )
        raise MethodError(message, "Remove --keep-first.")
    name = settings.choice.name
    if name == DEFAULT_METHOD:
        return
    if name == LIMITS:
        if location.trained_length is None:
            return
        # It tells what scaled settings serve whose config key may state the length before scaling.
        kinds = [rope_type(layers.parameters) for layers in _global_layers(location)]
        if all(kind.presumed_key is None for kind in kinds):
            message = "--trained-length has no effect with --method limits, which scales nothing."
            raise MethodError(message, "Remove one of them.")
        return

    applicable = location.table.rope.methods if location.table.rope else ()
    message = f"--method {name} does not apply to {location.scheme} positions."
    if location.table.rope and not applicable and name in SCALING_METHODS:
        model_type = location.family.model_type
        message = f"--method {name}: {model_type} models ignore rotary settings in transformers."
    if location.scheme == NONE:
        message = f"--method {name} does not apply to a model without positions."
    if not applicable:
        raise MethodError(message, "Remove --method: only length limits change.")
    # The method of a scaled model is called like its rope type; `resize_rope` checks that the model
    # has this type.
    if name not in (*applicable, *KEPT_TYPES):
        raise MethodError(message, f"Use one of {', '.join(applicable)}.")


def _global_layers(location: TableLocation) -> list[RopeLayers]:
    """Return the rotary settings of the layers that see the whole input: only these can scale."""
    return [layers for layers in read_rope(location) if not layers.is_local]


def _corrects_any(location: TableLocation) -> bool:
    """Whether the user corrects the first trained length that any rotary settings state."""
    if not has_settings(location):
        return False
    return any(_is_corrected(location, layers) for layers in _global_layers(location))


def _is_corrected(location: TableLocation, layers: RopeLayers) -> bool:
    """Whether the user states another first trained length than these rotary settings."""
    given = location.trained_length
    if given is None or not rope_type(layers.parameters).states_trained:
        return False
    return bool(given != round(layers.parameters[TRAINED]))


def _refuse_shorter(
    location: TableLocation, before: int, after: int, *, has_others: bool
) -> NoReturn:
    """Raise ResizeError for a length that the model already accepts."""
    reason = f"its positions are {location.scheme}"
    if location.scheme == NONE:
        reason = "it has no positions"
    message = f"The model accepts {before} tokens: {reason}, so {after} need no change."
    settings = tuple[RopeLayers, ...]()
    if location.table.rope is not None:
        settings = read_rope(location)
    if has_others:
        hint = f"Resize other parts than {location.part} with --part."
    elif any(has_switch_lists(layers.parameters) for layers in settings):
        hint = f"If it was resized by --method {SWITCH}, resize its base to {after}."
    elif any(layers.parameters[TYPE] != "default" for layers in settings):
        hint = (
            f"If it was resized, resize its base to {after}: scaled rotary settings change short "
            "inputs too."
        )
    elif is_gguf(location.file):
        hint = f"To use less memory in llama.cpp, pass it -c {after}."
    else:
        limit = f'"model_max_length": {after}'
        hint = f"To truncate texts at {after} tokens, set {limit} in tokenizer_config.json."
    raise ResizeError(message, hint)


def _plan_layers(
    location: TableLocation, layers: RopeLayers, settings: Resize, new_length: int
) -> RopePlan:
    """Plan the rotary settings of the layers of one type, for a new context length.

    Raises:
        MethodError: The method does not apply to the settings.
        ResizeError: The settings cannot serve the length.
    """
    facts = location.table.rope
    assert facts is not None
    _check_trained_length(location, layers)
    lengths = layer_lengths(location, layers)
    changed_lengths = RopeLengths(
        first_trained=lengths.first_trained,
        served=lengths.served,
        after=new_length,
    )
    dim = rotary_dim(location, layers.parameters)
    parameters, choice = resize_rope(
        layers.parameters,
        changed_lengths,
        dim,
        name=settings.choice.name,
        given=settings.choice.settings,
        methods=facts.methods,
        is_corrected=_is_corrected(location, layers),
    )
    long_inputs_as = None
    if choice.name == SWITCH:
        used = {key: value for key, value in choice.settings.items() if key != MSCALE}
        long_inputs_as = long_settings(layers.parameters, changed_lengths, dim, **used)
    _check_query_scaling(location, layers, parameters)
    _check_limits_can_state(location, layers, lengths, choice, new_length)
    # A file whose key states the first trained length keeps this convention.
    keeps_max_len = choice.facts.keeps_max_len or lengths.key_is_first_trained
    scales = _changes_angles(
        location,
        before=layers.parameters,
        after=parameters,
        new_length=new_length,
        keeps_max_len=keeps_max_len,
    )
    return RopePlan(
        before=layers,
        after=parameters,
        choice=choice,
        keeps_max_len=keeps_max_len,
        scales=scales,
        short_inputs=_short_inputs(location, layers.parameters, parameters, choice, scales=scales),
        long_inputs_as=long_inputs_as,
    )


def _short_inputs(
    location: TableLocation,
    before: Parameters,
    after: Parameters,
    choice: MethodChoice,
    *,
    scales: bool,
) -> ShortInputs:
    """Return what new settings give inputs up to the old length.

    Lists of factors that are 1 give exactly the frequencies of unscaled settings. Others give those
    of scaled settings by another order of float32 operations.
    """
    if not scales:
        return ShortInputs.IDENTICAL
    if not choice.facts.keeps_learned_rows:
        return ShortInputs.CHANGED
    if choice.name != SWITCH:
        return ShortInputs.IDENTICAL
    dim = rotary_dim(location, before)
    length = location.value(location.effective_key)
    old, new = (frequencies(settings, dim, length, length=1) for settings in (before, after))
    if old.attention_factor != new.attention_factor:
        return ShortInputs.CHANGED
    if before[TYPE] == "default":
        return ShortInputs.IDENTICAL
    return ShortInputs.ROUNDED


def _check_trained_length(location: TableLocation, layers: RopeLayers) -> None:
    """Raise MethodError if the user corrects a length that is part of a formula."""
    kind = rope_type(layers.parameters)
    if not kind.is_trained_fixed or not _is_corrected(location, layers):
        return
    stated = round(layers.parameters[TRAINED])
    message = (
        f"--trained-length {location.trained_length}: {kind.name} settings state {stated}, which "
        "is part of their formula."
    )
    raise MethodError(message, f"Pass --trained-length {stated}, or remove it.")


def _check_query_scaling(location: TableLocation, layers: RopeLayers, after: Parameters) -> None:
    """Check that settings that get a first trained length do not move the scaling of queries.

    ``llama_4_scaling_beta`` scales queries by how often their position contains that length, so it
    belongs to the trained model: ``get_llama_4_attn_scale`` of
    https://github.com/huggingface/transformers/blob/main/src/transformers/models/ministral3/modeling_ministral3.py.

    Raises:
        MethodError: They would.
    """
    before = layers.parameters
    stated = before.get(TRAINED)
    is_scaled = bool(before.get(LLAMA_4_BETA)) and stated is not None
    if not is_scaled or rope_type(before).states_trained or after.get(TRAINED) == stated:
        return
    message = (
        f"{after[TYPE]} settings would state {TRAINED} {after[TRAINED]} instead of {stated}, by "
        f"which {LLAMA_4_BETA} scales queries."
    )
    methods = [LIMITS]
    if "theta" in rotary_facts(location).methods:
        methods.insert(0, "theta")
    hint = (
        f"Use --method {' or '.join(methods)}, or pass --trained-length {stated} if the first "
        f"training read {stated} tokens."
    )
    raise MethodError(message, hint)


def _check_limits_can_state(
    location: TableLocation,
    layers: RopeLayers,
    lengths: PositionLengths,
    choice: MethodChoice,
    new_length: int,
) -> None:
    """Check that the config can state the new length if only limits change.

    A key that states the first trained length stays as it is, so the folder states what the
    settings serve.

    Raises:
        ResizeError: The new length is longer than that.
    """
    if choice.name != LIMITS or not lengths.key_is_first_trained:
        return
    if new_length <= lengths.served:
        return
    message = (
        f"--method {LIMITS} cannot state {new_length} tokens: {location.effective_key} "
        f"{lengths.stated} is the length before scaling, and the {layers.parameters[TYPE]} "
        f"settings serve {lengths.served}."
    )
    hint = f"Remove --method {LIMITS}, or use --to {lengths.served} or fewer."
    raise ResizeError(message, hint)


def _changes_angles(
    location: TableLocation,
    *,
    before: Parameters,
    after: Parameters,
    new_length: int,
    keeps_max_len: bool,
) -> bool:
    """Whether new settings give any input of up to `new_length` tokens other angles or attention.

    Frequencies of ``dynamic`` and ``longrope`` settings change with the length of the input, once
    it exceeds a stated length. So the shortest input, one of the length that the config key states,
    and one of the new length are compared.
    """
    if after == before:
        return False
    dim = rotary_dim(location, before)
    stated_before = location.value(location.effective_key)
    stated_after = stated_before if keeps_max_len else new_length
    for tokens in (1, stated_before, new_length):
        old = frequencies(before, dim, max_len=stated_before, length=tokens)
        new = frequencies(after, dim, max_len=stated_after, length=tokens)
        has_same_angles = np.allclose(old.inverse, new.inverse, rtol=FREQUENCY_TOLERANCE, atol=0)
        has_same_attention = np.isclose(
            old.attention_factor, new.attention_factor, rtol=FREQUENCY_TOLERANCE
        )
        if not (has_same_angles and has_same_attention):
            return True
    return False
