"""Find rotary positions that are removed: their settings rotate nothing."""

from dataclasses import replace

from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import Architecture, TableLocation
from ctxextend.families.rope import read_rope
from ctxextend.families.rope_dialects import has_settings
from ctxextend.families.schema import UnlimitedPositions
from ctxextend.tables.rope_types import NONE, rotates


def with_removed_positions(architecture: Architecture) -> Architecture:
    """Return an architecture in which rotary positions that rotate nothing have scheme ``none``."""
    locations = list[TableLocation]()
    for location in architecture.locations:
        if _is_removed(location):
            location = replace(location, table=_unlimited(location))
        locations.append(location)
    return architecture._replace(locations=tuple(locations))


def _is_removed(location: TableLocation) -> bool:
    """Whether positions are rotary, and the settings of no layers rotate."""
    if not has_settings(location):
        return False
    try:
        settings = read_rope(location)
    except CheckpointError:  # reported when the settings are used
        return False
    return not any(rotates(layers.parameters) for layers in settings)


def _unlimited(location: TableLocation) -> UnlimitedPositions:
    """Return positions of scheme ``none`` with the keys of the length that rotary ones have."""
    rotary = location.table
    return UnlimitedPositions(
        NONE,
        config_key=rotary.config_key,
        part=rotary.part,
        aliases=rotary.aliases,
        unused_keys=rotary.unused_keys,
        engine_keys=rotary.engine_keys,
        when=rotary.when,
    )
