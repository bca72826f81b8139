"""How many positions a model has, for every position scheme.

There are three lengths: the first trained, the stated and the served one.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ctxextend.families.rope import RopeLayers, read_rope, stated_trained_length
from ctxextend.json_output import not_in_json
from ctxextend.positions.positions import Positions, whole_number
from ctxextend.tables.rope_types import FACTOR, NONE, TRAINED, KeyStates, RopeType, rope_type


@dataclass(frozen=True)
class PositionLengths:
    """The lengths of one kind of positions, in tokens: usable positions, without reserved ones.

    A model was first trained at 1024 tokens, and its ``yarn`` settings have factor 4, so that it
    serves 4096. Its context follows from the length that its config key states:

    - Stated 4096, the context is 4096.
    - Stated 2048, the context is 2048: engines read the key.
    - Stated 32768, the context is 4096: the settings serve no more.

    With ``linear`` or ``dynamic`` settings, the key may state 1024, the length before scaling
    (`key_is_first_trained`). Then the context is 4096: engines multiply the key by the factor.
    """

    first_trained: int  # of the first training, before any scaling
    stated: int  # by the config key of the length
    served: int  # up to which the settings need no further scaling
    # Whether the config key states the length before scaling.
    key_is_first_trained: bool = field(default=False, metadata=not_in_json)
    # Why the settings do not tell which length the config key states, and how to say it; empty if
    # they do.
    question: str = field(default="", metadata=not_in_json)
    answer: str = field(default="", metadata=not_in_json)

    @property
    def context(self) -> int:
        """The context length that engines read from the folder: at most what the settings serve."""
        if self.key_is_first_trained:
            return self.served
        return min(self.stated, self.served)


def position_lengths(location: Positions) -> PositionLengths:
    """Return the lengths of a model's positions: every count of those without rows comes from here.

    Several types of layers can have different lengths. Layers with a sliding window do not count,
    since they are not scaled; of the others, the layers that serve the shortest length count.

    Raises:
        CheckpointError: The config states no valid length, or malformed rotary settings.
    """
    facts = location.rope
    # Without methods, the classes ignore the settings.
    settings = read_rope(location) if facts is not None and facts.methods else ()
    lengths = [layer_lengths(location, item) for item in settings if not item.is_local]
    if not lengths:
        stated = _stated_length(location)
        first_trained = stated
        if location.scheme == NONE:
            first_trained = whole_number(location.stated(TRAINED)) or stated
        return PositionLengths(first_trained=first_trained, stated=stated, served=stated)
    return min(lengths, key=lambda item: item.served)


def layer_lengths(location: Positions, layers: RopeLayers) -> PositionLengths:
    """Return the lengths of the layers that share rotary settings; see `position_lengths`.

    Scaled settings of some types, such as ``linear``, do not tell which length the config key
    states: `_lengths_by_convention` finds it. Of all others, the first trained length is known.

    Raises:
        CheckpointError: The config states no valid length.
    """
    stated = _stated_length(location)
    kind = rope_type(layers.parameters)
    factor = layers.parameters.get(FACTOR) or 1.0
    may_state_either = kind.presumed_key is not None and factor > 1
    if may_state_either:
        return _lengths_by_convention(location, layers, stated)
    first_trained = _first_trained_length(location, layers, stated)
    return PositionLengths(
        first_trained=first_trained,
        stated=stated,
        served=_served_length(kind, stated, first_trained, factor),
    )


def _served_length(kind: RopeType, stated: int, first_trained: int, factor: float) -> int:
    """Return the length up to which settings need no further scaling; see `RopeType.serves`."""
    by_factor = round(first_trained * factor)
    match kind.serves:
        case "trained":
            return first_trained
        case "scaled":
            return by_factor
        case "stated or scaled":
            return max(stated, by_factor)


def _first_trained_length(location: Positions, layers: RopeLayers, stated: int) -> int:
    """Return the first trained length by the user, else by the settings, else by the config key."""
    if location.trained_length is not None:
        return location.trained_length
    if rope_type(layers.parameters).states_trained:
        trained: float = layers.parameters[TRAINED]
        return round(trained)
    return stated


def _stated_length(location: Positions) -> int:
    """Return the length that the config states, in usable positions."""
    return location.positions_in(location.rows_for(location.value(location.effective_key)))


# ---- settings whose config key states the length before or after scaling


class _KeyLengths(NamedTuple):
    """The length that a config key states, and what it implies, in tokens."""

    stated: int
    served_if_before: int  # if the key states the length before scaling, what the model serves
    trained_if_after: int  # if it states the length after scaling, that of the first training


def _lengths_by_convention(location: Positions, layers: RopeLayers, stated: int) -> PositionLengths:
    """Return the lengths of settings whose config key states the length before or after scaling.

    The first of these that tells the lengths counts:

    1. The first trained length, if it is known and the key states another length: the key states
       neither the length before scaling nor the one after.
    2. What the key states by `_what_key_states`.
    3. What the key is presumed to state for the rope type. Then the question stays open.

    Raises:
        CheckpointError: The settings are malformed.
    """
    factor = layers.parameters[FACTOR]
    key = _KeyLengths(
        stated=stated,
        served_if_before=round(stated * factor),
        trained_if_after=round(stated / factor),
    )
    first_trained = location.trained_length or stated_trained_length(location, layers)
    if first_trained is not None and first_trained not in (key.stated, key.trained_if_after):
        served = round(first_trained * factor)
        return PositionLengths(first_trained=first_trained, stated=stated, served=served)
    kind = rope_type(layers.parameters)
    # llama.cpp reads the key of a GGUF file as it is, whatever the settings are.
    is_gguf = location.rope is not None and not location.rope.has_dialects
    key_states = _what_key_states(location, kind, key, first_trained)
    if key_states is not None:
        lengths = _lengths_if(key_states, key)
        if is_gguf:
            return replace(lengths, key_is_first_trained=False)
        return lengths
    assert kind.presumed_key is not None
    question = (
        f"{kind.name} rotary settings with factor {factor:g} do not say whether "
        f"{location.effective_key} {stated} is the length before or after scaling"
    )
    if not is_gguf:
        question += ", and no other file of the folder does"
    return replace(
        _lengths_if(kind.presumed_key, key),
        question=question,
        answer=f"--trained-length {stated} if it is the one before, --trained-length "
        f"{key.trained_if_after} if the one after",
    )


def _lengths_if(key_states: KeyStates, key: _KeyLengths) -> PositionLengths:
    """Return the lengths if the config key states the length before, or after, scaling."""
    if key_states == "before":
        return PositionLengths(
            first_trained=key.stated,
            stated=key.stated,
            served=key.served_if_before,
            key_is_first_trained=True,
        )
    return PositionLengths(
        first_trained=key.trained_if_after,
        stated=key.stated,
        served=key.stated,
    )


def _what_key_states(
    location: Positions, kind: RopeType, key: _KeyLengths, first_trained: int | None
) -> KeyStates | None:
    """Return which length the key states, by the first of these that tells; None if none does:

    1. The first trained length, if it is known.
    2. Released configs of the model type.
    3. Other limits of the checkpoint.
    """
    by_trained_length = _by_trained_length(key, first_trained)
    if by_trained_length is not None:
        return by_trained_length
    by_releases = _by_releases(location, key)
    if by_releases is not None:
        return by_releases
    return _by_other_limits(location, kind, key)


def _by_trained_length(key: _KeyLengths, first_trained: int | None) -> KeyStates | None:
    """Return what the key states by the first trained length, if it is known."""
    if first_trained == key.stated:
        return "before"
    if first_trained == key.trained_if_after:
        return "after"
    return None


def _by_releases(location: Positions, key: _KeyLengths) -> KeyStates | None:
    """Return what the key states if the config is like released ones of its model type."""
    facts = location.rope
    if facts is None or not facts.releases_are_scaled:
        return None
    if key.stated == location.family.defaults.get(location.config_key):
        return "after"
    return None


def _by_other_limits(location: Positions, kind: RopeType, key: _KeyLengths) -> KeyStates | None:
    """Return what the key states by other limits of the checkpoint.

    The first of these that holds counts. The key states the length

    1. before scaling, if a limit is the length that the model would then serve.
    2. after scaling, if a limit is the stated length, or the one that the model was then trained
       at. This does not hold for types whose key is presumed to state the length before scaling:
       a limit of the first trained length may be left over from then.
    """
    if key.served_if_before in location.seen_lengths:
        return "before"
    if kind.presumed_key == "before":
        return None
    if key.stated in location.seen_lengths or key.trained_if_after in location.seen_lengths:
        return "after"
    return None
