"""Look up the position tables of a model from its config, or why it has none."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ctxextend.errors import CheckpointError, UnsupportedModelError, did_you_mean
from ctxextend.families.registry import FAMILIES, SIGNATURES
from ctxextend.families.schema import Buffer, Family, Part, PositionTable, Requirement
from ctxextend.families.unsupported import FAMILIES_HINT, OTHER_TYPE, POSITION_SCHEMES

Keys = tuple[str, ...]

ABSOLUTE = Requirement("position_embedding_type", "absolute", OTHER_TYPE)
MAX_DEPTH = 3  # no model of transformers is nested more deeply
# Keys of the config of a language model, inside that of a larger model.
LANGUAGE_CONFIGS = ("text_config", "language_config", "llm_config")


@dataclass(frozen=True)
class TableLocation:
    """A table of a registry entry, and its location in a model and its config."""

    table: PositionTable
    family: Family
    part: str  # name of the part, with dots if nested; empty if it is the only table
    prefixes: tuple[str, ...]  # possible prefixes of its tensor name
    path: Keys  # keys of its config
    overrides: tuple[Keys, ...]  # keys of configs that take precedence in transformers
    config: Mapping[str, Any]  # the whole config.json
    # Folder of its tokenizer; empty: the model's tokenizer; None: a part without a table reads the
    # tokens first.
    tokenizer: str | None = ""
    usual_prefix: str = ""  # prefix in files that transformers saves
    # Of rotary positions: the length of the first training, as the user states it, in tokens.
    trained_length: int | None = None
    seen_lengths: tuple[
        int, ...
    ] = ()  # that other files and keys state, if the settings do not tell, in tokens

    @property
    def names(self) -> tuple[str, ...]:
        """All possible tensor names of the table."""
        return tuple(dict.fromkeys(prefix + self.table.name for prefix in self.prefixes))

    @property
    def usual_name(self) -> str:
        """Its tensor name in files that transformers saves."""
        return (
            ".".join((*self.path, self.table.name))
            if self.table.scheme
            else self.usual_prefix + self.table.name
        )

    @property
    def config_key(self) -> str:
        """The key of its length, with dots."""
        return ".".join((*self.path, self.table.config_key))

    @property
    def reserved_rows(self) -> int:
        """The number of reserved rows before position 0."""
        rule = self.table.reserved
        return rule.rows + (self.value(rule.config_key) if rule.config_key else 0)

    @property
    def layout(self) -> str:
        """The layout of the sinusoids that the model starts with; empty if it starts with learned
        rows.
        """
        return (
            self.table.layout
            if self.table.layout_key is None or self.stated(self.table.layout_key)
            else ""
        )

    @property
    def scheme(self) -> str:
        """The position scheme: learned, sinusoidal, rotary, ALiBi or relative."""
        return self.table.scheme or ("sinusoidal" if self.layout else "learned")

    @property
    def _effective_path(self) -> Keys:
        """Keys of the config that transformers uses; an override replaces the other one
        completely.
        """
        return next(
            (path for path in self.overrides if isinstance(nested(self.config, path), Mapping)),
            self.path,
        )

    def stated(self, key: str) -> Any:
        """Return the value of a key in this model's config; None if it is missing."""
        return nested(self.config, (*self._effective_path, *key.split(".")))

    def value(self, key: str) -> int:
        """Return the integer ≥ 0 of a key in this model's config, or transformers' default."""
        value = self.stated(key)
        value = self.family.defaults.get(key) if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            path = ".".join((*self.path, key))
            model = f"for a {self.family.model_type} model"
            message = f"config.json: {path} must be an integer {model}, got {value!r:.100}."
            raise CheckpointError(message, "Correct config.json.")
        return value

    @property
    def effective_key(self) -> str:
        """The key that transformers uses: aliases take precedence if the config has them."""
        stated = (key for key in reversed(self.table.aliases) if self.stated(key) is not None)
        return next(stated, self.table.config_key)

    def paths_of(self, key: str) -> tuple[Keys, ...]:
        """Return the paths at which to set a key: in its config, and last in the one that
        transformers uses.
        """
        return tuple(
            dict.fromkeys((*path, *key.split(".")) for path in (self.path, self._effective_path))
        )

    @property
    def length_paths(self) -> tuple[Keys, ...]:
        """The paths at which to set a new length: its key, and other keys of it that the config
        has.
        """
        others = (*self.table.aliases, *self.table.unused_keys)
        keys = (self.table.config_key, *(key for key in others if self.stated(key) is not None))
        return tuple(path for key in keys for path in self.paths_of(key))

    def key_value(self, positions: int) -> int:
        """Return the value of the key for a number of usable positions."""
        return (
            positions
            + self.table.extra_rows
            + (self.reserved_rows if self.table.reserved.inside_key else 0)
        )

    def rows(self, value: int) -> int:
        """Return the number of rows for a value of the key."""
        return value if self.table.reserved.inside_key else value + self.reserved_rows

    def positions(self, rows: int) -> int:
        """Return the number of usable positions for a number of rows."""
        return rows - self.reserved_rows - self.table.extra_rows

    def buffer(self, name: str) -> Buffer | None:
        """Return the buffer with exactly this tensor name, with or without a prefix, or None."""
        names = (name, re.sub(r"\b[0-9]+\b", "*", name))
        buffers = self.table.buffers
        matches = (
            buffer
            for buffer in buffers
            if any(prefix + buffer.name in names for prefix in self.prefixes)
        )
        return next(matches, None)


@dataclass(frozen=True)
class UnsupportedPart:
    """A model, or a part of one, without a position table to resize."""

    part: str  # name of the part; empty for the whole model
    message: str  # what it uses instead
    advice: str
    reads_tokens: bool = False  # whether it reads the tokens nevertheless


@dataclass(frozen=True)
class Architecture:
    """The registry's facts about one model."""

    family: Family  # of the whole model
    locations: tuple[TableLocation, ...]  # all tables that it can have; files may contain only some
    unsupported: tuple[UnsupportedPart, ...] = ()

    def unsupported_error(self) -> UnsupportedModelError:
        """Return the error for a model without position tables to resize."""
        parts, model_type = self.unsupported, self.family.model_type
        advice = " ".join(dict.fromkeys(part.advice for part in parts if part.advice))
        hint = f"{advice} {FAMILIES_HINT}".strip()
        if len(parts) == 1 and not parts[0].part:
            return UnsupportedModelError(parts[0].message, hint)
        reasons = "; ".join(
            f"its {part.part}: {part.message[0].lower()}{part.message[1:-1]}" for part in parts
        )
        return UnsupportedModelError(
            f"This {model_type} model has nothing to resize: {reasons}.", hint
        )


def whole_number(value: Any) -> int | None:
    """Return an integer, also one that is written as 512.0; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def nested(config: Mapping[str, Any], path: Keys) -> Any:
    """Return the value at a path of keys; None if the path does not exist."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def around(location: TableLocation) -> Iterator[Keys]:
    """Yield the paths of the configs around a language model's, which may state the same values."""
    if location.path and location.path[-1].endswith(LANGUAGE_CONFIGS):
        for depth in range(len(location.path)):
            yield location.path[:depth]


def find_architecture(
    config: Mapping[str, Any], where: str = "config.json", model_type: str | None = None
) -> Architecture:
    """Return the architecture of a model, assembled from the registry entries of its parts.

    `where` is the config's path for messages; `model_type` overrides the config. Raises
    CheckpointError if neither states a model type, UnsupportedModelError if it is unknown or no
    part has a position table.
    """
    model_type = model_type or config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f"{where} has no model_type.", "Pass it, for example --model-type gpt2."
        )
    root = TableLocation(PositionTable("", ""), Family(model_type), "", ("",), (), (), config)
    locations, unsupported = list[TableLocation](), list[UnsupportedPart]()
    for item in _search(model_type, root):
        if isinstance(item, UnsupportedPart):
            unsupported.append(item)
            continue
        is_read = not item.tokenizer and any(
            part.reads_tokens for part in unsupported
        )  # that part reads the tokens
        locations.append(replace(item, tokenizer=None) if is_read else item)
    architecture = Architecture(
        FAMILIES.get(model_type, root.family), tuple(locations), tuple(unsupported)
    )
    if not locations:
        raise architecture.unsupported_error()
    return architecture


def matching_types(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the model types whose table, length and `SIGNATURES` match a model's config and tensor
    shapes.

    If `architectures` in the config is a class of one of them, only this one is returned.
    """

    def matches(signature: str, prefix: str) -> bool:
        key = signature.lstrip("!")
        return (
            key in config or any(name.startswith(prefix + key) for name in shapes)
        ) != signature.startswith("!")

    matching = list[str]()
    for model_type in FAMILIES:
        with suppress(CheckpointError, UnsupportedModelError):
            for location in find_architecture(config, model_type=model_type).locations:
                length = location.stated(location.effective_key)
                table = location.table.name
                rows = location.rows(length) if type(length) is int else -1
                prefixes = [
                    prefix
                    for prefix in location.prefixes
                    if shapes.get(prefix + table, ())[:1] == (rows,)
                ]
                if any(
                    all(matches(key, prefix) for key in SIGNATURES.get(model_type, ()))
                    for prefix in prefixes
                ):
                    matching.append(model_type)
    classes = config.get("architectures")
    stated = str(classes[0]) if isinstance(classes, list) and classes else ""
    named = [
        name for name in matching if re.match(rf"(?i:{re.sub('[-_]', '', name)})(?![a-z])", stated)
    ]
    return [max(named, key=len)] if named else list(dict.fromkeys(matching))


def _search(
    name: str, outer: TableLocation, within: Part | None = None
) -> Iterator[TableLocation | UnsupportedPart]:
    """Yield the tables of the model at `outer`, which is the part `within` of another, and the
    parts without one.
    """
    if name not in FAMILIES:
        scheme = POSITION_SCHEMES.get(name)
        if scheme is None:
            unknown = f"Unknown model type {name!r}."
            yield UnsupportedPart(
                outer.part, unknown, did_you_mean(name, (*FAMILIES, *POSITION_SCHEMES))
            )
            return
        missing = "to resize" if scheme.reads_tokens else "for tokens"
        message = f"This {name} model has no position table {missing}; it uses {scheme.uses}."
        yield UnsupportedPart(
            outer.part, message, scheme.advice, scheme.reads_tokens and outer.tokenizer is not None
        )
        return
    if len(outer.path) > MAX_DEPTH:
        yield UnsupportedPart(outer.part, f"This {name} model is nested too deeply.", "")
        return
    family, (is_head, only) = (
        FAMILIES[name],
        (within.is_head, within.only) if within else (False, ""),
    )
    prefixes = tuple(first + second for first in outer.prefixes for second in family.prefixes)
    usual = outer.usual_prefix + family.prefixes[1 if is_head and len(family.prefixes) > 1 else 0]
    here = replace(outer, family=family, prefixes=prefixes, usual_prefix=usual)
    tables = [
        table
        for table in family.tables
        if not table.when or here.stated(table.when[0]) in table.when[1]
    ]
    unmet = [
        rule
        for rule in (*family.requires, ABSOLUTE)
        if here.stated(rule.key) not in (None, rule.value)
    ]
    unmet = (
        []
        if any(table.scheme for table in tables)
        else unmet or list(family.requires if not tables else ())
    )
    for table in tables or family.tables[:1]:
        if only and table.part not in ("", only):
            continue
        location = replace(
            here, table=table, part=here.part if only else f"{here.part}.{table.part}".strip(".")
        )
        if unmet:
            key, scheme = unmet[0].key, unmet[0].instead
            reason = (
                f"This {name} model with {key} {location.stated(key)!r} has no position table to "
                "resize"
            )
            yield UnsupportedPart(
                location.part, f"{reason}; it uses {scheme.uses}.", scheme.advice, reads_tokens=True
            )
            break
        yield location
    for part in family.parts:
        inside = (*here.path, part.config_key)
        is_flat = (
            part.is_flat
            and nested(here.config, inside) is None
            and here.stated("hidden_size") is not None
        )
        inner = replace(
            here,
            part=f"{here.part}.{part.name}".strip("."),
            prefixes=tuple(first + second for first in prefixes for second in part.prefixes),
            path=here.path if is_flat else inside,
            overrides=tuple((*here.path, key) for key in part.overrides),
            tokenizer=here.tokenizer if part.tokenizer == "" else part.tokenizer,
            usual_prefix=usual + part.prefixes[0],
        )
        stated = nested(here.config, (*inside, "model_type"))
        is_stated = part.is_any and isinstance(stated, str) and stated
        yield from _search(stated if is_stated else part.model_type, inner, part)


@dataclass(frozen=True)
class FamilyTable:
    """A position table of a model type, or its position scheme if there is nothing to resize."""

    model_type: str  # as in config.json
    part: str  # name of the table if there are several (encoder, decoder, text, …); else empty
    # Tensor name in the base class; parts of any model type are listed with transformers' default
    # type.
    table: str  # empty if there is nothing to resize
    config_key: str  # key of its length, with dots if configs are nested
    reserved_rows: str  # the rule for reserved rows before position 0
    # learned, sinusoidal, rotary, ALiBi, relative, none, images, audio, time series or other
    scheme: str
    methods: tuple[
        str, ...
    ]  # of rotary positions; empty: those of tables or, with another scheme, only limits change
    notes: tuple[
        str, ...
    ]  # other peculiarities, as text; without a table: what it uses, and how to extend it


def list_families(model_types: Collection[str] | None = None) -> list[FamilyTable]:
    """Return the position tables of model types, sorted by model type; one entry for a type without
    a table.

    Args:
        model_types: As in config.json, or parts of such names; by default, all model types with a
            table.

    Raises:
        UnsupportedModelError: A model type is unknown.
    """
    listed, names = list[FamilyTable](), set[str]()
    for text in model_types or FAMILIES:
        known = (*FAMILIES, *POSITION_SCHEMES)
        names.update([name for name in known if text in name and text not in known] or [text])
    for name in sorted(names):
        if other := POSITION_SCHEMES.get(name):
            uses = f"not resized: it uses {other.uses}"
            listed.append(FamilyTable(name, "", "", "", "0", other.name, (), (uses, other.advice)))
            continue
        conditions = dict.fromkeys(
            table.when for table in FAMILIES.get(name, Family(name)).tables
        ) or (None,)
        configs = [
            {"model_type": name} | ({when[0]: when[1][-1]} if when else {}) for when in conditions
        ]
        for location in (one for config in configs for one in find_architecture(config).locations):
            rule = location.table.reserved
            count = f"{rule.config_key} + {rule.rows}" if rule.config_key else str(rule.rows)
            reserved = (
                "0"
                if count == "0"
                else f"{count} ({'' if rule.inside_key else 'not '}counted in the config)"
            )
            notes = tuple(_notes(FAMILIES[name], location))
            table = location.usual_name
            methods = location.table.rope.methods if location.table.rope else ()
            details = table, location.config_key, reserved, location.scheme, methods, notes
            listed.append(FamilyTable(name, location.part, *details))
    return listed


def _notes(outer: Family, location: TableLocation) -> Iterator[str]:
    if (key := location.table.layout_key) or location.layout:
        yield f"sinusoidal with {key}=true" if key else f"layout {location.layout}"
    if location.table.width_key:
        yield "computed, unless the file has the table"
    for part in outer.parts:
        if part.is_any and location.path[:1] == (part.config_key,):
            yield (
                f"{part.config_key} may be of any model type (default: "
                f"{location.family.model_type})"
            )
    if kept := [buffer.name for buffer in location.table.buffers if buffer.is_kept]:
        yield f"rebuilds {', '.join(kept)}"
    for requirement in location.family.requires:
        yield f"requires {requirement.key}={str(requirement.value).lower()}"
    if location.table.multiple_of:
        yield f"length must be a multiple of {location.table.multiple_of}"
    if location.table.extra_rows:
        yield (
            f"{location.table.extra_rows} extra row{'s' * (location.table.extra_rows > 1)} after "
            "the last position"
        )
    if location.table.clamps:
        yield "longer inputs do not fail: excess tokens share the last position"
    if location.table.grows:
        yield "longer inputs do not fail: more rows are computed"
    if (when := location.table.when) and not location.family.requires:
        yield f"with {when[0]}={str(when[1][-1]).lower()}"
    yield from (f"keeps the effect of {pin.key}" for pin in location.family.pins)
    yield from (f"also sets {key}" for key in outer.limits)
    yield from filter(None, (location.family.padding_effect, location.family.note))
