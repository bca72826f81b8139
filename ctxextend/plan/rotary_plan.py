"""Plan positions without a table of rows: which rotary settings change, and from which length."""

from dataclasses import replace

import numpy as np

from ctxextend.errors import MethodError, ResizeError, flag_name
from ctxextend.families.lengths import PositionLengths, layer_lengths, position_lengths
from ctxextend.families.lookup import TableLocation
from ctxextend.families.rope import RopeLayers, read_rope, rotary_dim
from ctxextend.plan.table_plan import RopePlan, TablePlan
from ctxextend.recipe import Resize
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import COUNTS, DEFAULT_METHOD, LIMITS
from ctxextend.tables.rope_types import KEPT_TYPES, TRAINED, Parameters, rope_type
from ctxextend.tables.rotary import frequencies
from ctxextend.tables.rotary_methods import resize_rope

# Rope types whose settings state the first trained length as part of their formula.
FIXED_TRAINED_LENGTH = ("longrope", "llama3")
# Rope types of which a longer context starts from the first trained length. The factor of other
# types is multiplied: llama3 models may serve more than factor x first trained length, and with
# linear or dynamic settings that length may have a fraction.
SCALED_FROM_FIRST = ("default", "yarn", "longrope")
# Frequencies that differ by less are those of another order of float64 operations.
FREQUENCY_TOLERANCE = 1e-12


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
    before = lengths.context
    after = table.max_len_after
    only_fixes_limits = settings.fix_limits and after == before
    if lengths.question and not only_fixes_limits:
        raise ResizeError(f"config.json: {lengths.question}.", f"Pass {lengths.answer}.")
    # The settings are the only thing that may change at the length that they already serve.
    is_corrected = _corrects_any(location)
    is_useful = after > before or only_fixes_limits or (after == before and is_corrected)
    if not is_useful:
        raise _no_change_needed(location, before, after, has_others=has_others)
    table = replace(table, lengths=lengths)
    if not _has_settings(location) or (after == before and not is_corrected):
        return table
    plans = tuple(_plan_layers(location, layers, settings, after) for layers in _scaled(location))
    return replace(table, rope=plans)


def check_method(location: TableLocation, settings: Resize) -> None:
    """Check that the settings apply to positions without rows, and to this model type.

    Raises:
        MethodError: They do not.
    """
    given = [flag_name(key) for key in COUNTS if getattr(settings, key)]
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


def _scaled(location: TableLocation) -> list[RopeLayers]:
    """Return the rotary settings of the layers that see the whole input: others are not scaled."""
    return [layers for layers in read_rope(location) if not layers.is_local]


def _corrects_any(location: TableLocation) -> bool:
    """Whether the user corrects the first trained length that any rotary settings state."""
    if not _has_settings(location):
        return False
    return any(_is_corrected(location, layers) for layers in _scaled(location))


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
    if any(layers.parameters["rope_type"] != "default" for layers in settings):
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
    kind = layers.parameters["rope_type"]
    lengths = layer_lengths(location, layers)
    parameters, choice = resize_rope(
        layers.parameters,
        (lengths.served, after),
        rotary_dim(location, layers.parameters),
        settings.choice.name,
        settings.choice.settings.get("factor"),
        methods=facts.methods,
        first_trained=lengths.first_trained if kind in SCALED_FROM_FIRST else None,
        is_corrected=_is_corrected(location, layers),
    )
    keeps_max_len = choice.facts.keeps_max_len
    if lengths.key_is_first_trained:
        _check_served(location, kind, lengths, choice, after)
        keeps_max_len = True  # a file keeps its convention
    return RopePlan(
        before=layers,
        after=parameters,
        choice=choice,
        keeps_max_len=keeps_max_len,
        scales=_scales(location, layers, parameters, after, keeps_max_len=keeps_max_len),
    )


def _check_trained_length(location: TableLocation, layers: RopeLayers) -> None:
    """Raise MethodError if the user corrects a length that is part of a formula."""
    kind = layers.parameters["rope_type"]
    if kind not in FIXED_TRAINED_LENGTH or not _is_corrected(location, layers):
        return
    stated = round(layers.parameters[TRAINED])
    message = (
        f"--trained-length {location.trained_length}: {kind} settings state {stated}, which is "
        "part of their formula."
    )
    raise MethodError(message, f"Pass --trained-length {stated}, or remove it.")


def _check_served(
    location: TableLocation,
    kind: str,
    lengths: PositionLengths,
    choice: MethodChoice,
    after: int,
) -> None:
    """Raise ResizeError if only limits change, but the settings do not serve the new length."""
    if choice.name != LIMITS or after <= lengths.served:
        return
    message = (
        f"--method {LIMITS} cannot state {after} tokens: {location.effective_key} "
        f"{lengths.stated} is the length before scaling, and the {kind} settings serve "
        f"{lengths.served}."
    )
    hint = f"Remove --method {LIMITS}, or use --to {lengths.served} or fewer."
    raise ResizeError(message, hint)


def _scales(
    location: TableLocation,
    before: RopeLayers,
    after: Parameters,
    length: int,
    *,
    keeps_max_len: bool,
) -> bool:
    """Whether a change gives any input of up to `length` tokens other angles or attention."""
    if after == before.parameters:
        return False
    dim = rotary_dim(location, before.parameters)
    stated = location.value(location.effective_key)
    max_len = stated if keeps_max_len else length
    for tokens in (1, stated, length):
        old = frequencies(before.parameters, dim, stated, tokens)
        new = frequencies(after, dim, max_len, tokens)
        if not np.allclose(old.inverse, new.inverse, rtol=FREQUENCY_TOLERANCE, atol=0):
            return True
        factors = (old.attention_factor, new.attention_factor)
        if not np.isclose(*factors, rtol=FREQUENCY_TOLERANCE):
            return True
    return False
