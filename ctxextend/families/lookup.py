"""From a config to the position tables that the registry knows of its model, or to the reason why it has none."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ctxextend.errors import CheckpointError, UnsupportedModelError, did_you_mean
from ctxextend.families.registry import FAMILIES, SIGNS
from ctxextend.families.schema import Buffer, Family, Part, PositionTable, Requirement, ReservedRows
from ctxextend.families.unsupported import OTHER_TYPE, POSITION_SCHEMES

Keys = tuple[str, ...]

ABSOLUTE = Requirement("position_embedding_type", "absolute", OTHER_TYPE)
# Models in models in models: no model of transformers is nested more deeply.
MAX_DEPTH = 3
FAMILIES_HINT = "`ctxextend families` lists the model types that have one."


@dataclass(frozen=True)
class TableLocation:
    """One table of a family, and where a certain model has it."""

    table: PositionTable
    family: Family
    part: str  # its name in this model, with dots where parts have parts; empty where it is the only one
    prefixes: tuple[str, ...]  # the possible ones of its name
    path: Keys  # to its config
    overrides: tuple[Keys, ...]  # paths to configs whose values transformers prefers
    config: Mapping[str, Any]  # the whole
    # The folder of the tokenizer whose texts it reads; empty is the model's own, None where another part, without such
    # a table, reads those first.
    tokenizer: str | None = ""
    usual_prefix: str = ""  # in files that transformers writes of the model itself

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that the table can have in a file."""
        return tuple(dict.fromkeys(prefix + self.table.name for prefix in self.prefixes))

    @property
    def config_key(self) -> str:
        """The key that states its length, with dots."""
        return ".".join((*self.path, self.table.config_key))

    @property
    def reserved_rows(self) -> int:
        """How many of its rows come before position 0."""
        rule = self.table.reserved
        return rule.rows + (self.value(rule.config_key) if rule.config_key else 0)

    @property
    def _effective_path(self) -> Keys:
        """The path of the config that counts: an overriding one replaces the other, and its gaps are not filled."""
        overriding = (path for path in self.overrides if isinstance(nested(self.config, path), Mapping))
        return next(overriding, self.path)

    def stated(self, key: str) -> Any:
        """Return what the config states for a key of this model's own config; None where it states nothing."""
        return nested(self.config, (*self._effective_path, *key.split(".")))

    def value(self, key: str) -> int:
        """Return the whole number ≥ 0 that the config states for a key, or transformers' default for it."""
        value = self.stated(key)
        value = self.family.defaults.get(key) if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            path, wanted = ".".join((*self.path, key)), f"a {self.family.model_type} model needs a whole number there"
            raise CheckpointError(f"config.json: {path} is {value!r}, and {wanted}.", "Correct config.json.")
        return value

    @property
    def effective_key(self) -> str:
        """The key of its own config that transformers obeys: an alias, where one is stated, wins."""
        stated = (key for key in reversed(self.table.aliases) if self.stated(key) is not None)
        return next(stated, self.table.config_key)

    def paths_of(self, key: str) -> tuple[Keys, ...]:
        """Return where a key must state a new value: in its own config, and last in the one that transformers obeys."""
        return tuple(dict.fromkeys((*path, *key.split(".")) for path in (self.path, self._effective_path)))

    @property
    def length_paths(self) -> tuple[Keys, ...]:
        """Where a new length must be stated: by its own key, and by other names of it that are stated now."""
        others = (*self.table.aliases, *self.table.unused_keys)
        keys = (self.table.config_key, *(key for key in others if self.stated(key) is not None))
        return tuple(path for key in keys for path in self.paths_of(key))

    def key_value(self, positions: int) -> int:
        """Return what the key states for a number of usable positions."""
        inside = self.reserved_rows if self.table.reserved.inside_key else 0
        return positions + self.table.ahead + inside

    def rows(self, value: int) -> int:
        """Return the table's rows where the key states `value`."""
        return value if self.table.reserved.inside_key else value + self.reserved_rows

    def positions(self, rows: int) -> int:
        """Return how many positions a number of rows are."""
        return rows - self.reserved_rows - self.table.ahead

    def buffer(self, name: str) -> Buffer | None:
        """Return the buffer of exactly that name, with or without a prefix, or None."""
        names = (name, re.sub(r"\b[0-9]+\b", "*", name))
        of_name = (one for one in self.table.buffers if any(before + one.name in names for before in self.prefixes))
        return next(of_name, None)


@dataclass(frozen=True)
class UnsupportedPart:
    """A model, or a model inside one, that has no learned table."""

    part: str  # its name; empty for the outermost
    message: str  # what it uses instead
    advice: str
    reads_tokens: bool = False  # whether it reads texts all the same


@dataclass(frozen=True)
class Architecture:
    """What the registry knows of one model."""

    family: Family  # of the outermost model
    locations: tuple[TableLocation, ...]  # every table that it can have; a file need not hold all
    unsupported: tuple[UnsupportedPart, ...] = ()


def nested(config: Mapping[str, Any], path: Keys) -> Any:
    """Return the value at a path of keys; None where the path ends early."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def find_architecture(
    config: Mapping[str, Any], where: str = "config.json", model_type: str | None = None
) -> Architecture:
    """Return what the registry knows of a model, put together from its parts' families.

    `where` is the config's path, for messages; `model_type` wins over what the config says.
    """
    model_type = model_type or config.get("model_type")
    if not isinstance(model_type, str):
        hint = "Say what it is with --model-type, for example --model-type gpt2."
        raise CheckpointError(f"{where} names no model_type.", hint)
    nowhere = TableLocation(PositionTable("", ""), Family(model_type), "", ("",), (), (), config)
    locations, unsupported = list[TableLocation](), list[UnsupportedPart]()
    for found in _search(model_type, nowhere):
        if isinstance(found, UnsupportedPart):
            unsupported.append(found)
            continue
        is_read = not found.tokenizer and any(part.reads_tokens for part in unsupported)  # that part reads its texts
        locations.append(replace(found, tokenizer=None) if is_read else found)
    if not locations:
        raise unsupported_error(model_type, unsupported)
    return Architecture(FAMILIES[model_type], tuple(locations), tuple(unsupported))


def matching_types(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the types with a table that a model holds, as long as its config says, and whose `SIGNS` it shows.

    Where the config names the class of one of them, it alone is returned.
    """

    def shows(sign: str, prefix: str) -> bool:
        word = sign.lstrip("!")
        return (word in config or any(name.startswith(prefix + word) for name in shapes)) != sign.startswith("!")

    found = list[str]()
    for model_type in FAMILIES:
        with suppress(CheckpointError, UnsupportedModelError):
            for place in find_architecture(config, model_type=model_type).locations:
                length = place.stated(place.effective_key)
                rows = place.rows(length) if type(length) is int else -1
                held = [prefix for prefix in place.prefixes if shapes.get(prefix + place.table.name, ())[:1] == (rows,)]
                if any(all(shows(sign, prefix) for sign in SIGNS.get(model_type, ())) for prefix in held):
                    found.append(model_type)
    classes = config.get("architectures")
    stated = str(classes[0]) if isinstance(classes, list) and classes else ""
    named = [name for name in found if re.match(rf"(?i:{re.sub('[-_]', '', name)})(?![a-z])", stated)]
    return [max(named, key=len)] if named else list(dict.fromkeys(found))


def unsupported_error(model_type: str, parts: Sequence[UnsupportedPart]) -> UnsupportedModelError:
    """Return the error for a model of which no part has a learned table."""
    advice = " ".join(dict.fromkeys(part.advice for part in parts if part.advice))
    hint = f"{advice} {FAMILIES_HINT}".strip()
    if len(parts) == 1 and not parts[0].part:
        return UnsupportedModelError(parts[0].message, hint)
    reasons = "; ".join(f"its {part.part}: {part.message[0].lower()}{part.message[1:-1]}" for part in parts)
    return UnsupportedModelError(f"This {model_type} model has no learned position table to resize: {reasons}.", hint)


def custom_architecture(
    config: Mapping[str, Any], table: str, config_key: str, reserved_rows: int, inside_key: bool
) -> Architecture:
    """Describe a model that the registry does not know by the whole name of its table and the key of its length."""
    *path, key = config_key.split(".")
    family = Family(str(config.get("model_type") or "unknown"))
    entry = PositionTable(table, key, reserved=ReservedRows(reserved_rows, inside_key=inside_key))
    return Architecture(family, (TableLocation(entry, family, "", ("",), tuple(path), (), config),))


def _search(
    model_type: str, outer: TableLocation, within: Part | None = None
) -> Iterator[TableLocation | UnsupportedPart]:
    """Yield the tables of a model and of its parts, and the parts that have none.

    `outer` says where the model stands, and has no table yet; `within` is the part of another model that it is.
    """
    if model_type not in FAMILIES:
        scheme = POSITION_SCHEMES.get(model_type)
        if scheme is None:
            unknown = f"The model type {model_type!r} is not in ctxextend's registry."
            yield UnsupportedPart(outer.part, unknown, did_you_mean(model_type, FAMILIES))
            return
        lacks = "position table; it uses" if scheme.reads_tokens else "table over token positions: it uses"
        message = f"This {model_type} model has no learned {lacks} {scheme.uses}."
        yield UnsupportedPart(outer.part, message, scheme.advice, scheme.reads_tokens and outer.tokenizer is not None)
        return
    if len(outer.path) > MAX_DEPTH:
        yield UnsupportedPart(outer.part, f"This {model_type} model is not looked for so deep in others.", "")
        return
    family, (is_head, only) = FAMILIES[model_type], (within.is_head, within.only) if within else (False, "")
    prefixes = tuple(before + own for before in outer.prefixes for own in family.prefixes)
    usual = outer.usual_prefix + family.prefixes[1 if is_head and len(family.prefixes) > 1 else 0]
    here = replace(outer, family=family, prefixes=prefixes, usual_prefix=usual)
    for table in family.tables:
        if only and table.part not in ("", only):
            continue
        found = replace(here, table=table, part=here.part if only else f"{here.part}.{table.part}".strip("."))
        needs = (*family.requires, ABSOLUTE)
        if unmet := [need for need in needs if found.stated(need.key) not in (None, need.value)]:
            key, instead = unmet[0].key, unmet[0].instead
            what = f"This {model_type} model with {key} {found.stated(key)!r} reads no learned position table"
            yield UnsupportedPart(found.part, f"{what}; it uses {instead.uses}.", instead.advice, reads_tokens=True)
            break
        yield found
    for part in family.parts:
        inner = replace(
            here,
            part=f"{here.part}.{part.name}".strip("."),
            prefixes=tuple(before + own for before in prefixes for own in part.prefixes),
            path=(*here.path, part.config_key),
            overrides=tuple((*here.path, key) for key in part.overrides),
            tokenizer=here.tokenizer if part.tokenizer == "" else part.tokenizer,
            usual_prefix=usual + part.prefixes[0],
        )
        stated = nested(here.config, (*inner.path, "model_type"))
        is_stated = part.is_any and isinstance(stated, str) and stated
        yield from _search(stated if is_stated else part.model_type, inner, part)


@dataclass(frozen=True)
class FamilyTable:
    """One position table of one model type."""

    model_type: str  # as in config.json
    part: str  # what the table is called where there are several: encoder, decoder, text, …; else empty
    # Its tensor; a model with a head has another prefix, and a part that may be of any family is shown as the one that
    # transformers takes by default.
    table: str
    config_key: str  # states its length, with dots where configs are nested
    reserved_rows: str  # the rule for its rows before position 0
    notes: tuple[str, ...]  # what else is particular about it, in words


def list_families(model_types: Collection[str] | None = None) -> list[FamilyTable]:
    """Return the tables of model types, sorted by model type.

    Args:
        model_types: As in config.json, or parts of such names; None or none is every type in the registry.

    Raises:
        UnsupportedModelError: One of them has no learned position table, or is not known.
    """
    listed, names = list[FamilyTable](), set[str]()
    for text in model_types or FAMILIES:
        is_type = text in FAMILIES or text in POSITION_SCHEMES
        names.update([name for name in FAMILIES if text in name and not is_type] or [text])
    for name in sorted(names):
        for found in find_architecture({"model_type": name}).locations:
            rule = found.table.reserved
            count = f"{rule.config_key} + {rule.rows}" if rule.config_key else str(rule.rows)
            reserved = "0" if count == "0" else f"{count} {'inside' if rule.inside_key else 'on top of'} the key"
            notes, usual_name = tuple(_notes(FAMILIES[name], found)), found.usual_prefix + found.table.name
            listed.append(FamilyTable(name, found.part, usual_name, found.config_key, reserved, notes))
    return listed


def _notes(outer: Family, found: TableLocation) -> Iterator[str]:
    """Yield what is particular about a table in a model of the outer family."""
    for part in outer.parts:
        if part.is_any and found.path[:1] == (part.config_key,):
            yield f"{part.config_key} may be of any family, {found.family.model_type} by default"
    kept = [buffer.name for buffer in found.table.buffers if buffer.is_kept]
    if kept:
        yield f"{', '.join(kept)} made anew"
    for need in found.family.requires:
        yield f"with {need.key} {str(need.value).lower()} alone"
    if found.table.multiple_of:
        yield f"a multiple of {found.table.multiple_of}"
    if found.table.ahead:
        yield f"{found.table.ahead} more row{'s' * (found.table.ahead > 1)} behind the last position"
    if found.table.clamps:
        yield "longer texts do not fail: their end shares the last position"
    yield from (f"{pin.key} held" for pin in found.family.pins)
    yield from (f"{key} too" for key in outer.limits)
    if found.family.note:
        yield found.family.note
