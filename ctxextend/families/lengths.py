"""How many positions a model has: its first trained, stated and served length, for every position
scheme.
"""

from dataclasses import dataclass, field, replace

from ctxextend.families.lookup import TableLocation
from ctxextend.families.rope import RopeLayers, read_rope, stated_trained_length
from ctxextend.json_output import not_in_json
from ctxextend.tables.rotary import FACTOR, STATES_TRAINED, TRAINED, TYPE

# Types whose config key is the length before or after scaling, depending on who wrote the file:
# transformers 4 asked for the length before (huggingface/transformers#24653), and many files state
# the one after (deepseek-coder, Gemma 3).
TWO_CONVENTIONS = ("linear", "dynamic", "proportional")


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
    """Return the lengths of a model's positions; every count of positions without rows comes from
    here.

    Of several types of layers, those that see farthest count: layers with a sliding window are not
    scaled.

    Raises:
        CheckpointError: The config states no valid length, or malformed rotary settings.
    """
    stated = location.positions(location.rows(location.value(location.effective_key)))
    facts = location.table.rope
    # Without methods, the classes ignore the settings.
    settings = read_rope(location) if facts is not None and facts.methods else ()
    lengths = [layer_lengths(location, item) for item in settings if not item.is_local]
    if not lengths:
        return PositionLengths(first_trained=stated, stated=stated, served=stated)
    return min(lengths, key=lambda item: item.served)


def layer_lengths(location: TableLocation, layers: RopeLayers) -> PositionLengths:
    """Return the lengths of the layers that share rotary settings; see `position_lengths`."""
    stated = location.positions(location.rows(location.value(location.effective_key)))
    rope, given = layers.parameters, location.trained_length
    kind = rope[TYPE]
    factor = rope.get(FACTOR) or 1.0
    if kind in TWO_CONVENTIONS and factor > 1:
        return _of_two_conventions(location, layers, stated)
    first = given or (round(rope[TRAINED]) if kind in STATES_TRAINED else stated)
    served = first
    if kind == "yarn":
        served = round(first * factor)
    elif kind in ("longrope", "llama3"):
        # Some models were trained further than the factor says: Llama 3.1 states 131,072 = 2 x 8 x
        # 8,192.
        served = max(stated, round(first * factor))
    return PositionLengths(first_trained=first, stated=stated, served=served)


def _of_two_conventions(
    location: TableLocation, layers: RopeLayers, stated: int
) -> PositionLengths:
    """Return the lengths of settings whose config key states the length before or after scaling."""
    kind, factor = layers.parameters[TYPE], layers.parameters[FACTOR]
    scaled, unscaled = round(stated * factor), round(stated / factor)
    before = PositionLengths(
        first_trained=stated, stated=stated, served=scaled, key_is_first_trained=True
    )
    after = PositionLengths(first_trained=unscaled, stated=stated, served=stated)
    first = location.trained_length or stated_trained_length(location, layers)
    if first is not None and first not in (stated, unscaled):
        return PositionLengths(
            first_trained=first,
            stated=stated,
            served=round(first * factor),
        )
    if first is not None:
        return before if first == stated else after
    facts = location.table.rope
    default = location.family.defaults.get(location.table.config_key)
    if facts is not None and facts.releases_are_scaled and stated == default:
        return after
    if scaled in location.seen_lengths:
        return before
    # Of dynamic settings, transformers takes the key for the trained length: other limits may be
    # left over.
    is_seen = stated in location.seen_lengths or unscaled in location.seen_lengths
    if is_seen and kind != "dynamic":
        return after
    key = location.effective_key
    question = (
        f"{kind} rotary settings with factor {factor:g} do not say whether {key} {stated} is the "
        "length "
    )
    found = before if kind == "dynamic" else after
    return replace(
        found,
        question=f"{question}before or after scaling, and no other file of the folder does",
        answer=f"--trained-length {stated} if it is the one before, --trained-length {unscaled} if "
        "the one after",
    )
