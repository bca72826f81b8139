"""List the positions of model types, as `ctxextend families` prints them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ctxextend.families.registry import (
    FAMILIES,
    POSITION_SCHEMES,
    find_architecture,
    is_known,
    known_names,
)
from ctxextend.json_output import not_in_json
from ctxextend.positions.facts import Family
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
        # Those that contain the text; only the text itself if it is one, or unknown.
        like_it = [] if is_known(text) else [name for name in known_names() if text in name]
        names.update(like_it or [text])
    listed = list[FamilyTable]()
    for name in sorted(names):
        scheme = POSITION_SCHEMES.get(name)
        if scheme is None:
            listed += [_family_entry(name, location) for location in _possible_locations(name)]
            continue
        entry = FamilyTable(
            name,
            part="",
            table="",
            config_key="",
            reserved_rows="0",
            scheme=scheme.name,
            methods=(),
            notes=(f"not resized: it uses {scheme.uses}", scheme.advice),
        )
        listed.append(entry)
    return listed


def _possible_locations(model_type: str) -> Iterator[Positions]:
    family = FAMILIES.get(model_type) or Family(model_type)
    config = {"model_type": model_type}
    conditions = dict.fromkeys(table.when for table in family.tables if table.when is not None)
    if not conditions:
        yield from find_architecture(config).locations
    for condition in conditions:
        selected = config | {condition.key: condition.value}
        yield from find_architecture(selected).locations


def _family_entry(model_type: str, location: Positions) -> FamilyTable:
    rule = location.reserved
    reserved = str(rule.rows)
    if rule.config_key:
        reserved = f"{rule.config_key} + {rule.rows}"
    if reserved != "0":
        reserved += f" ({'counted' if rule.inside_key else 'not counted'} in the config)"
    return FamilyTable(
        model_type,
        part=location.part,
        table=location.usual_name,
        config_key=location.length_key,
        reserved_rows=reserved,
        scheme=location.scheme,
        methods=location.methods,
        notes=tuple(_notes(location, whole=FAMILIES[model_type])),
        only_limits=not location.tensor and not location.methods,
    )


def _notes(table: Positions, *, whole: Family) -> Iterator[str]:
    family = table.family  # for the text model of LLaVA: that of llama, and `whole` of llava
    if table.layout_text:
        yield table.layout_text
    for part in whole.parts:
        if part.may_state_type and table.path[:1] == (part.config_key,):
            yield f"{part.config_key} may be of any model type (default: {family.model_type})"
    for requirement in family.requires:
        yield f"requires {requirement.key}={str(requirement.value).lower()}"
    if table.multiple_of is not None:
        yield f"length must be a multiple of {table.multiple_of}"
    if table.longer_inputs == "share the last position":
        yield "longer inputs do not fail: excess tokens share the last position"
    if table.longer_inputs == "get computed rows":
        yield "longer inputs do not fail: more rows are computed"
    if table.when is not None and not family.requires:
        yield f"with {table.when.key}={str(table.when.value).lower()}"
    if family.padding_effect:
        yield family.padding_effect
    if family.note:
        yield family.note
