"""List the positions of model types, as `ctxextend families` prints them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from ctxextend.families.registry import (
    FAMILIES,
    POSITION_SCHEMES,
    find_architecture,
    is_known,
    known_names,
)
from ctxextend.json_output import not_in_json
from ctxextend.positions.facts import Family, PositionScheme, ReservedRows
from ctxextend.positions.positions import Positions


@dataclass(frozen=True)
class FamilyTable:
    """A position table of a model type, or its position scheme if there is nothing to resize.

    An entry without a table has no name of a table, no key and no methods.
    """

    model_type: str  # as in config.json
    part: str  # name of the table if there are several (encoder, decoder, text, …); else empty
    # Tensor name in the base class; parts of any model type are listed with transformers' default
    # type. Empty if there is nothing to resize.
    table: str
    config_key: str  # key of its length, with dots if configs are nested
    # The rule for reserved rows before position 0: ``0``, ``2 (not counted in the config)``, …
    reserved_rows: str
    # learned, sinusoidal, rotary, ALiBi, relative, none, images, audio, time series or other
    scheme: str
    # Of rotary positions; empty: those of tables or, with another scheme, only limits change.
    methods: tuple[str, ...]
    # Other peculiarities, as text; without a table: what it uses, and how to extend it.
    notes: tuple[str, ...]
    # Whether a resize changes only limits.
    only_limits: bool = field(default=False, metadata=not_in_json)


def list_families(model_types: Collection[str] | None = None) -> list[FamilyTable]:
    """Return the positions of model types, sorted by model type.

    A type without positions to resize has one entry.

    Args:
        model_types: As in config.json, or parts of such names; by default, all model types with a
            table.

    Raises:
        UnsupportedModelError: A model type is unknown.
    """
    names = set[str]()
    if not model_types:
        names.update(FAMILIES)
    for text in model_types or ():
        names.update(_known_names(text))
    listed = list[FamilyTable]()
    for name in sorted(names):
        scheme = POSITION_SCHEMES.get(name)
        if scheme is not None:
            listed.append(_unsupported_entry(name, scheme))
            continue
        for location in _possible_locations(name):
            listed.append(_family_entry(name, location))
    return listed


def _known_names(text: str) -> list[str]:
    """Return the model types that contain a text; only the text itself if it is one, or unknown."""
    if is_known(text):
        return [text]
    return [name for name in known_names() if text in name] or [text]


def _possible_locations(model_type: str) -> Iterator[Positions]:
    """Yield the positions that a model type has with different values of its config.

    Raises:
        UnsupportedModelError: The model type is unknown.
    """
    family = FAMILIES.get(model_type) or Family(model_type)
    config = {"model_type": model_type}
    conditions = dict.fromkeys(table.when for table in family.tables if table.when is not None)
    if not conditions:
        yield from find_architecture(config).locations
    for condition in conditions:
        selected = config | {condition.key: condition.value}
        yield from find_architecture(selected).locations


def _unsupported_entry(model_type: str, scheme: PositionScheme) -> FamilyTable:
    """Return the entry of a model type without positions to resize."""
    return FamilyTable(
        model_type,
        part="",
        table="",
        config_key="",
        reserved_rows="0",
        scheme=scheme.name,
        methods=(),
        notes=(f"not resized: it uses {scheme.uses}", scheme.advice),
    )


def _family_entry(model_type: str, location: Positions) -> FamilyTable:
    """Return the entry of positions of a model type."""
    return FamilyTable(
        model_type,
        part=location.part,
        table=location.usual_name,
        config_key=location.length_key,
        reserved_rows=_reserved_text(location.reserved),
        scheme=location.scheme,
        methods=location.methods,
        notes=tuple(_notes(location, whole=FAMILIES[model_type])),
        only_limits=not location.tensor and not location.methods,
    )


def _reserved_text(rule: ReservedRows) -> str:
    """Return the rule for reserved rows as text."""
    count = str(rule.rows)
    if rule.config_key:
        count = f"{rule.config_key} + {rule.rows}"
    if count == "0":
        return "0"
    if rule.inside_key:
        return f"{count} (counted in the config)"
    return f"{count} (not counted in the config)"


def _notes(location: Positions, *, whole: Family) -> Iterator[str]:
    """Yield the peculiarities of positions, of their model, and of the whole model it is in."""
    family = location.family  # for the text model of LLaVA: that of llama, and `whole` of llava
    table = location
    if table.layout_text:
        yield table.layout_text
    if table.is_computed:
        yield "computed, unless the file has the table"
    yield from _part_notes(location, whole)
    kept = [buffer.name for buffer in table.buffers if buffer.is_kept]
    if kept:
        yield f"rebuilds {', '.join(kept)}"
    for requirement in family.requires:
        yield f"requires {requirement.key}={_in_json(requirement.value)}"
    yield from _row_notes(table)
    if table.longer_inputs == "share the last position":
        yield "longer inputs do not fail: excess tokens share the last position"
    if table.longer_inputs == "get computed rows":
        yield "longer inputs do not fail: more rows are computed"
    if table.when is not None and not family.requires:
        yield f"with {table.when.key}={_in_json(table.when.value)}"
    for pin in family.pins:
        yield f"keeps the effect of {pin.key}"
    for key in whole.limits:
        yield f"also sets {key}"
    if family.padding_effect:
        yield family.padding_effect
    if family.note:
        yield family.note


def _in_json(value: Any) -> str:
    """Return a config value, a boolean or a name, as JSON writes it, without quotes."""
    return str(value).lower()


def _part_notes(location: Positions, whole: Family) -> Iterator[str]:
    """Yield which part of a model may be of any type."""
    for part in whole.parts:
        if part.may_state_type and location.path[:1] == (part.config_key,):
            default = location.family.model_type
            yield f"{part.config_key} may be of any model type (default: {default})"


def _row_notes(table: Positions) -> Iterator[str]:
    """Yield what is special about the number of rows."""
    if table.multiple_of is not None:
        yield f"length must be a multiple of {table.multiple_of}"
    if table.extra_rows == 1:
        yield "1 extra row after the last position"
    if table.extra_rows > 1:
        yield f"{table.extra_rows} extra rows after the last position"
