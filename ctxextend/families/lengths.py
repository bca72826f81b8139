"""How many positions a model has, for every position scheme.

There are three lengths: the first trained, the stated and the served one.
"""

from dataclasses import dataclass, field, replace

from ctxextend.families.lookup import TableLocation
from ctxextend.families.rope import RopeLayers, read_rope, stated_trained_length
from ctxextend.json_output import not_in_json
from ctxextend.tables.rope_types import FACTOR, TRAINED, rope_type


@dataclass(frozen=True)
class PositionLengths:
    """The lengths of one kind of positions, in tokens: usable positions, without reserved ones."""

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
        return self.served if self.key_is_first_trained else min(self.stated, self.served)


def position_lengths(location: TableLocation) -> PositionLengths:
    """Return the lengths of a model's positions: every count of those without rows comes from here.

    Of several types of layers, those that see farthest count: layers with a sliding window are not
    scaled.

    Raises:
        CheckpointError: The config states no valid length, or malformed rotary settings.
    """
    facts = location.table.rope
    # Without methods, the classes ignore the settings.
    settings = read_rope(location) if facts is not None and facts.methods else ()
    lengths = [layer_lengths(location, item) for item in settings if not item.is_local]
    if not lengths:
        stated = _stated_length(location)
        return PositionLengths(first_trained=stated, stated=stated, served=stated)
    return min(lengths, key=lambda item: item.served)


def layer_lengths(location: TableLocation, layers: RopeLayers) -> PositionLengths:
    """Return the lengths of the layers that share rotary settings; see `position_lengths`.

    Raises:
        CheckpointError: The config states no valid length.
    """
    stated = _stated_length(location)
    rope = layers.parameters
    kind = rope_type(rope)
    factor = rope.get(FACTOR) or 1.0
    if kind.stated is not None and factor > 1:
        return _of_two_conventions(location, layers, stated)
    if location.trained_length:
        first = location.trained_length
    elif kind.states_trained:
        first = round(rope[TRAINED])
    else:
        first = stated
    served = {
        "trained": first,
        "scaled": round(first * factor),
        "stated or scaled": max(stated, round(first * factor)),
    }
    return PositionLengths(first_trained=first, stated=stated, served=served[kind.serves])


def _stated_length(location: TableLocation) -> int:
    """Return the length that the config states, in usable positions."""
    return location.positions(location.rows(location.value(location.effective_key)))


def _of_two_conventions(
    location: TableLocation, layers: RopeLayers, stated: int
) -> PositionLengths:
    """Return the lengths of settings whose config key states the length before or after scaling."""
    factor = layers.parameters[FACTOR]
    scaled = round(stated * factor)
    unscaled = round(stated / factor)
    before = PositionLengths(
        first_trained=stated,
        stated=stated,
        served=scaled,
        key_is_first_trained=True,
    )
    after = PositionLengths(first_trained=unscaled, stated=stated, served=stated)
    first = location.trained_length or stated_trained_length(location, layers)
    if first == stated:
        return before
    if first == unscaled:
        return after
    if first is not None:
        served = round(first * factor)
        return PositionLengths(first_trained=first, stated=stated, served=served)
    if _is_release_after_scaling(location, stated):
        return after
    kind = rope_type(layers.parameters)
    if scaled in location.seen_lengths:
        return before
    # Where transformers takes the key for the trained length, other limits may be left over.
    is_seen = stated in location.seen_lengths or unscaled in location.seen_lengths
    if is_seen and kind.stated == "after":
        return after
    return replace(
        before if kind.stated == "before" else after,
        question=f"{kind.name} rotary settings with factor {factor:g} do not say whether "
        f"{location.effective_key} {stated} is the length before or after scaling, and no other "
        "file of the folder does",
        answer=f"--trained-length {stated} if it is the one before, --trained-length {unscaled} if "
        "the one after",
    )


def _is_release_after_scaling(location: TableLocation, stated: int) -> bool:
    """Whether a config is like released ones of its type, which state the length after scaling."""
    facts = location.table.rope
    if facts is None or not facts.releases_are_scaled:
        return False
    return stated == location.family.defaults.get(location.table.config_key)
