"""Find rotary positions that are removed: their settings rotate nothing."""

from dataclasses import fields

from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import Architecture
from ctxextend.families.rope import read_rope
from ctxextend.families.rope_dialects import has_settings
from ctxextend.positions.positions import Positions
from ctxextend.positions.unlimited import Unlimited
from ctxextend.tables.rope_types import NONE, rotates


def with_removed_positions(architecture: Architecture) -> Architecture:
    """Return an architecture in which rotary positions that rotate nothing have scheme ``none``."""
    locations = list[Positions]()
    for location in architecture.locations:
        if _is_removed(location):
            location = _unlimited(location)
        locations.append(location)
    return architecture._replace(locations=tuple(locations))


def _is_removed(location: Positions) -> bool:
    """Whether positions are rotary, and the settings of no layers rotate."""
    if not has_settings(location):
        return False
    try:
        settings = read_rope(location)
    except CheckpointError:  # reported when the settings are used
        return False
    return not any(rotates(layers.parameters) for layers in settings)


def _unlimited(location: Positions) -> Unlimited:
    """Return positions of scheme ``none`` with the keys of the length that rotary ones have."""
    shared = {item.name: getattr(location, item.name) for item in fields(Positions)}
    return Unlimited(**{**shared, "longer_inputs": "run"}, scheme=NONE)
