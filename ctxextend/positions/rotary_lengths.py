"""The first trained, the stated and the served length of rotary settings."""

from dataclasses import replace
from typing import TYPE_CHECKING

from ctxextend.positions.positions import PositionLengths
from ctxextend.positions.rotary_settings import RopeLayers, stated_trained_length
from ctxextend.tables.rope_types import FACTOR, TRAINED, KeyStates, RopeType, rope_type

if TYPE_CHECKING:
    from ctxextend.positions.rotary import Rotary


def layer_lengths(positions: "Rotary", layers: RopeLayers) -> PositionLengths:
    """Return the lengths of layers that share rotary settings.

    Scaled settings of some types, such as ``linear``, do not tell which length the config key
    states. Of all others, the first trained length is known.

    Raises:
        CheckpointError: The config states no valid length.
    """
    stated = positions.stated_length
    kind = rope_type(layers.parameters)
    factor = layers.parameters.get(FACTOR) or 1.0
    if kind.presumed_key is not None and factor > 1:
        return _lengths_if_unclear(positions, layers, stated)
    first_trained = stated
    if positions.trained_length is not None:
        first_trained = positions.trained_length
    elif kind.states_trained:
        first_trained = round(layers.parameters[TRAINED])
    served = first_trained
    if kind.serves != "trained":
        served = round(first_trained * factor)
    if kind.serves == "stated or scaled":
        served = max(stated, served)
    return PositionLengths(first_trained=first_trained, stated=stated, served=served)


def _lengths_if_unclear(positions: "Rotary", layers: RopeLayers, stated: int) -> PositionLengths:
    """Return the lengths of settings whose key may state the length before or after scaling.

    If the first trained length is known and the key states another length, the key states neither.
    Else `_what_key_states` tells, or the question stays open: then it is what the key is presumed
    to state for the rope type.

    Raises:
        CheckpointError: The settings are malformed.
    """
    kind = rope_type(layers.parameters)
    factor = layers.parameters[FACTOR]
    if_after = PositionLengths(first_trained=round(stated / factor), stated=stated, served=stated)
    # llama.cpp reads the key of a GGUF file as it is, whatever the settings are.
    if_before = PositionLengths(
        first_trained=stated,
        stated=stated,
        served=round(stated * factor),
        key_is_first_trained=positions.rope.has_dialects,
    )
    first_trained = positions.trained_length or stated_trained_length(positions, layers.layer_type)
    if first_trained is not None and first_trained not in (stated, if_after.first_trained):
        served = round(first_trained * factor)
        return PositionLengths(first_trained=first_trained, stated=stated, served=served)

    key_states = _what_key_states(positions, kind, if_before, if_after, first_trained)
    if key_states is None:
        question = (
            f"{kind.name} rotary settings with factor {factor:g} do not say whether "
            f"{positions.effective_key} {stated} is the length before or after scaling"
        )
        if positions.rope.has_dialects:
            question += ", and no other file of the folder does"
        lengths = replace(if_before, key_is_first_trained=True)
        if kind.presumed_key == "after":
            lengths = if_after
        return replace(
            lengths,
            question=question,
            answer=f"--trained-length {stated} if it is the one before, --trained-length "
            f"{if_after.first_trained} if the one after",
        )
    return if_before if key_states == "before" else if_after


def _what_key_states(
    positions: "Rotary",
    kind: RopeType,
    if_before: PositionLengths,
    if_after: PositionLengths,
    first_trained: int | None,
) -> KeyStates | None:
    """Return which length the key states, by the first of these that tells; None if none does:

    1. The first trained length, if it is known.
    2. Released configs of the model type.
    3. Other limits of the checkpoint. The key states the length before scaling if one is what the
       model would then serve; else the length after scaling if one is the stated length, or the one
       that the model was then trained at. The latter does not hold for types whose key is presumed
       to state the length before scaling: such a limit may be left over from the first training.
    """
    if first_trained is not None:
        return "before" if first_trained == if_before.first_trained else "after"
    default = positions.family.defaults.get(positions.config_key)
    if positions.rope.releases_are_scaled and if_before.stated == default:
        return "after"
    seen = positions.seen_lengths
    if if_before.served in seen:
        return "before"
    is_after = if_after.stated in seen or if_after.first_trained in seen
    if kind.presumed_key != "before" and is_after:
        return "after"
    return None
