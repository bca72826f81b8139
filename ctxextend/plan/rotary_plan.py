"""Plan positions without a table of rows: which rotary settings change, and from which length."""

from dataclasses import replace
from enum import Enum, auto

import numpy as np

from ctxextend.errors import MethodError, ResizeError, flag_name
from ctxextend.families.lengths import PositionLengths, layer_lengths, position_lengths
from ctxextend.families.lookup import TableLocation
from ctxextend.families.rope import RopeLayers, read_rope, rotary_dim
from ctxextend.plan.table_plan import RopePlan, TablePlan
from ctxextend.recipe import Resize
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import DEFAULT_METHOD, LIMITS
from ctxextend.tables.rope_types import KEPT_TYPES, TRAINED, TYPE, Parameters, rope_type
from ctxextend.tables.rotary import frequencies
from ctxextend.tables.rotary_methods import RopeLengths, resize_rope

# Frequencies that differ by less are those of another order of float64 operations.
FREQUENCY_TOLERANCE = 1e-12


class WhyPlanned(Enum):
    """Why positions without rows have a plan."""

    LONGER = auto()  # the context gets longer
    CORRECTED = auto()  # it keeps its length, but the first trained length of settings is corrected
    LIMITS_FIXED = auto()  # it keeps its length, and only wrong limits change


def plan_without_rows(table: TablePlan, settings: Resize, *, has_others: bool) -> TablePlan:
    """Plan positions without a table of rows.

    Args:
        table: Its lengths.
        settings: With the method that applies to these positions.
        has_others: Whether the model has other tables that a resize of them would change.

    Raises:
        MethodError: The method, or another setting, does not apply to these positions.
        ResizeError: The new length needs no change, or the old one is unknown.
    """
    location = table.location
    lengths = position_lengths(location)
    check_method(location, settings)
    after = table.max_len_after
    why_planned = _why_planned(location, lengths.context, after, fixes_limits=settings.fix_limits)
    if lengths.question and why_planned is not WhyPlanned.LIMITS_FIXED:
        raise ResizeError(f"config.json: {lengths.question}.", f"Pass {lengths.answer}.")
    if why_planned is None:
        raise _no_change_needed(location, lengths.context, after, has_others=has_others)
    if why_planned is WhyPlanned.LIMITS_FIXED or not _has_settings(location):
        return replace(table, lengths=lengths)
    plans = [_plan_layers(location, layers, settings, after) for layers in _global_layers(location)]
    return replace(table, lengths=lengths, rope=tuple(plans))


def _why_planned(
    location: TableLocation, before: int, after: int, *, fixes_limits: bool
) -> WhyPlanned | None:
    """Return why the positions have a plan: the first reason in the order of `WhyPlanned`, or None.

    Args:
        location: The positions.
        before: The context length before, in tokens.
        after: The context length after, in tokens.
        fixes_limits: Whether the user asks to fix wrong limits.
    """
    if after > before:
        return WhyPlanned.LONGER
    if after < before:
        return None
    if _corrects_any(location):
        return WhyPlanned.CORRECTED
    if fixes_limits:
        return WhyPlanned.LIMITS_FIXED
    return None


def check_method(location: TableLocation, settings: Resize) -> None:
    """Check that the settings apply to positions without rows, and to this model type.

    Raises:
        MethodError: They do not.
    """
    counts = {"keep_first": settings.keep_first, "drop_last": settings.drop_last}
    given = [flag_name(key) for key, count in counts.items() if count]
    if given:
        flags = " and ".join(given)
        message = f"{flags} cannot be used with {location.scheme} positions, which have no rows."
        raise MethodError(message, f"Remove {flags}.")
    name = _method_name(settings)
    if name == LIMITS and location.trained_length is not None:
        message = "--trained-length has no effect with --method limits, which scales nothing."
        raise MethodError(message, "Remove one of them.")
    applicable = location.table.rope.methods if location.table.rope else ()
    accepted = [None, LIMITS, *applicable]
    if applicable:
        # The method of a scaled model is called like its rope type; `resize_rope` checks that the
        # model has this type.
        accepted += KEPT_TYPES
    if name in accepted:
        return
    message = f"--method {name} does not apply to {location.scheme} positions."
    if applicable:
        raise MethodError(message, f"Use one of {', '.join(applicable)}.")
    raise MethodError(message, "Remove --method: only length limits change.")


def _method_name(settings: Resize) -> str | None:
    """Return the name of the requested method; None for the default one."""
    name = settings.choice.name
    return None if name == DEFAULT_METHOD else name


def _has_settings(location: TableLocation) -> bool:
    """Whether the model type has rotary settings that its classes apply."""
    return location.table.rope is not None and bool(location.table.rope.methods)


def _global_layers(location: TableLocation) -> list[RopeLayers]:
    """Return the rotary settings of the layers that see the whole input: only these can scale."""
    return [layers for layers in read_rope(location) if not layers.is_local]


def _corrects_any(location: TableLocation) -> bool:
    """Whether the user corrects the first trained length that any rotary settings state."""
    if not _has_settings(location):
        return False
    return any(_is_corrected(location, layers) for layers in _global_layers(location))


def _is_corrected(location: TableLocation, layers: RopeLayers) -> bool:
    """Whether the user states another first trained length than these rotary settings."""
    given = location.trained_length
    if given is None or not rope_type(layers.parameters).states_trained:
        return False
    return bool(given != round(layers.parameters[TRAINED]))


def _no_change_needed(
    location: TableLocation, before: int, after: int, *, has_others: bool
) -> ResizeError:
    message = (
        f"The model accepts {before} tokens: its positions are {location.scheme}, so {after} "
        "need no change."
    )
    if has_others:
        return ResizeError(message, f"Resize other parts than {location.part} with --part.")
    settings = read_rope(location) if location.table.rope else ()
    if any(layers.parameters[TYPE] != "default" for layers in settings):
        return ResizeError(
            message,
            f"If it was resized, resize its base to {after}: scaled rotary settings change short "
            "inputs too.",
        )
    return ResizeError(
        message,
        f'To truncate texts at {after} tokens, set "model_max_length": {after} in '
        "tokenizer_config.json.",
    )


def _plan_layers(
    location: TableLocation, layers: RopeLayers, settings: Resize, after: int
) -> RopePlan:
    """Plan the rotary settings of the layers of one type, for a context of `after` tokens."""
    facts = location.table.rope
    assert facts is not None
    _check_trained_length(location, layers)
    lengths = layer_lengths(location, layers)
    parameters, choice = resize_rope(
        layers.parameters,
        RopeLengths(
            first_trained=lengths.first_trained,
            served=lengths.served,
            after=after,
        ),
        rotary_dim(location, layers.parameters),
        name=settings.choice.name,
        factor=settings.choice.settings.get("factor"),
        methods=facts.methods,
        is_corrected=_is_corrected(location, layers),
    )
    if lengths.key_is_first_trained:
        _check_served(location, layers, lengths, choice, after)
    # A file whose key states the first trained length keeps this convention.
    keeps_max_len = choice.facts.keeps_max_len or lengths.key_is_first_trained
    return RopePlan(
        before=layers,
        after=parameters,
        choice=choice,
        keeps_max_len=keeps_max_len,
        scales=_changes_angles(
            location,
            before=layers.parameters,
            after=parameters,
            new_length=after,
            keeps_max_len=keeps_max_len,
        ),
    )


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


def _check_served(
    location: TableLocation,
    layers: RopeLayers,
    lengths: PositionLengths,
    choice: MethodChoice,
    after: int,
) -> None:
    """Raise ResizeError if only limits change, but the settings do not serve the new length."""
    if choice.name != LIMITS or after <= lengths.served:
        return
    message = (
        f"--method {LIMITS} cannot state {after} tokens: {location.effective_key} "
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
        if not np.allclose(old.inverse, new.inverse, rtol=FREQUENCY_TOLERANCE, atol=0):
            return True
        factors = (old.attention_factor, new.attention_factor)
        if not np.isclose(*factors, rtol=FREQUENCY_TOLERANCE):
            return True
    return False
