"""The registry as a list: every table of every model type in it."""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ctxextend.families.architecture import Place
from ctxextend.families.entries import FAMILIES
from ctxextend.families.lookup import find_architecture

__all__ = ["FamilyTable", "list_families"]


@dataclass(frozen=True)
class FamilyTable:
    """One position table of one model type.

    Attributes:
        model_type: As in config.json.
        part: What the table is called where there are several: encoder, decoder, text, …; else empty.
        table: Its tensor; a model with a head has another prefix in front of it, and a part that may be of any family
            is shown as the one that transformers takes by default.
        config_key: The key that states its length, with dots where configs are nested.
        offset: The rule for its rows in front of position 0.
        notes: What else is particular about it, in words.
    """

    model_type: str
    part: str
    table: str
    config_key: str
    offset: str
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self) | {"notes": list(self.notes)}


def list_families(model_types: Collection[str] | None = None) -> list[FamilyTable]:
    """Return the tables of model types, sorted by model type.

    Args:
        model_types: As in config.json; None or none is every type in the registry.

    Raises:
        UnsupportedModelError: One of them has no learned position table, or is not known.
    """
    return [
        _listed(model_type, place)
        for model_type in sorted(set(model_types or FAMILIES))
        for place in find_architecture({"model_type": model_type}).places
    ]


def _listed(model_type: str, place: Place) -> FamilyTable:
    notes = tuple(_notes(model_type, place))
    return FamilyTable(model_type, place.part, place.usual_name, place.config_key, _rule(place), notes)


def _rule(place: Place) -> str:
    """Say how many rows stand in front of position 0, and whether the key counts them."""
    offset = place.table.offset
    if not offset.rows and not offset.config_key:
        return "0"
    count = f"{offset.config_key} + {offset.rows}" if offset.config_key else str(offset.rows)
    return f"{count} {'inside' if offset.inside_key else 'on top of'} the key"


def _notes(model_type: str, place: Place) -> Iterator[str]:
    for part in FAMILIES[model_type].parts:
        if part.is_any and place.path[:1] == (part.config_key,):
            yield f"{part.config_key} may be of any family, {place.family.model_type} by default"
    kept = [buffer.name for buffer in place.table.buffers if buffer.is_kept]
    if kept:
        yield f"{', '.join(kept)} made anew"
    for need in place.family.requires:
        yield f"with {need.key} {str(need.value).lower()} alone"
    if place.table.multiple_of:
        yield f"a multiple of {place.table.multiple_of}"
    if place.table.ahead:
        yield f"{place.table.ahead} more row{'s' if place.table.ahead > 1 else ''} behind the last position"
    if place.table.clamps:
        yield "longer texts do not fail: their end shares the last position"
    yield from (f"{pin.key} held" for pin in place.family.pins)
    yield from (f"{key} too" for key in FAMILIES[model_type].raised)
    if place.family.note:
        yield place.family.note
