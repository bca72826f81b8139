"""Look up the positions of a model from its config, or why it has none to resize."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple, NoReturn

from ctxextend.errors import CheckpointError, UnsupportedModelError, did_you_mean
from ctxextend.families.known_types import FAMILIES, describe_unknown, known_names
from ctxextend.families.registry import ENTRIES, SIGNATURES
from ctxextend.families.schema import (
    Buffer,
    EngineKey,
    Family,
    LearnedTable,
    Part,
    Positions,
    Requirement,
    RotaryPositions,
    SinusoidalTable,
)
from ctxextend.families.unsupported import FAMILIES_HINT, OTHER_TYPE, POSITION_SCHEMES
from ctxextend.tables.method_facts import FOLLOWING_METHODS

Keys = tuple[str, ...]

ABSOLUTE = Requirement("position_embedding_type", "absolute", OTHER_TYPE)
MAX_CONFIG_DEPTH = 3  # no model of transformers is nested more deeply
# Keys of the config of a language model, inside that of a larger model.
LANGUAGE_CONFIGS = ("text_config", "language_config", "llm_config")


@dataclass(frozen=True)
class ModelLocation:
    """A model, which may be inside another one, with its location in weights and config."""

    family: Family
    config: Mapping[str, Any]  # the whole config.json
    path: Keys = ()  # keys of its config
    overrides: tuple[Keys, ...] = ()  # keys of configs that take precedence in transformers
    part: str = ""  # its name inside the whole model, with dots if nested; empty for the whole
    prefixes: tuple[str, ...] = ("",)  # possible prefixes of its tensor names
    usual_prefix: str = ""  # prefix in files that transformers saves
    # Folder of its tokenizer; empty: the model's tokenizer; None: another part reads the tokens.
    tokenizer: str | None = ""
    file: str = "config.json"  # that states the config, for messages

    @property
    def _effective_path(self) -> Keys:
        """Keys of the config that transformers uses: an override replaces the other one."""
        for path in self.overrides:
            if isinstance(nested(self.config, path), Mapping):
                return path
        return self.path

    def stated(self, key: str) -> Any:
        """Return the value of a key in this model's config; None if it is missing."""
        return nested(self.config, (*self._effective_path, *key.split(".")))

    def value(self, key: str) -> int:
        """Return the integer ≥ 0 of a key in this model's config, or transformers' default.

        Raises:
            CheckpointError: It is anything else, or there is neither.
        """
        value = self.stated(key)
        if value is None:
            value = self.family.defaults.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            path = ".".join((*self.path, key))
            model = f"for a {self.family.model_type} model"
            message = f"{self.file}: {path} must be an integer {model}, got {value!r:.100}."
            raise CheckpointError(message, f"Correct {self.file}.")
        return value

    def paths_of(self, key: str) -> tuple[Keys, ...]:
        """Return the paths at which to set a key.

        They are in this model's config and, last, in the one that transformers uses.
        """
        keys = key.split(".")
        paths = ((*self.path, *keys), (*self._effective_path, *keys))
        return tuple(dict.fromkeys(paths))


@dataclass(frozen=True, kw_only=True)
class TableLocation(ModelLocation):
    """The positions of a model, with their location in weights and config."""

    table: Positions
    # Of rotary positions: the length of the first training, as the user states it, in tokens.
    trained_length: int | None = None
    # Lengths that other files and keys state, if the settings do not tell, in tokens.
    seen_lengths: tuple[int, ...] = ()
    # Whether scaled rotary settings must not be stated as ``rope_scaling``, since an engine joins
    # this config with another one and fails.
    without_scaling_key: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All possible tensor names of the table."""
        return tuple(dict.fromkeys(prefix + self.table.name for prefix in self.prefixes))

    @property
    def usual_name(self) -> str:
        """Its tensor name in files that transformers saves; without rows, its config key."""
        if self.table.has_rows:
            return self.usual_prefix + self.table.name
        return ".".join((*self.path, self.table.name))

    @property
    def config_key(self) -> str:
        """The key of its length, with dots."""
        return ".".join((*self.path, self.table.config_key))

    @property
    def reserved_rows(self) -> int:
        """The number of reserved rows before position 0."""
        rule = self.table.reserved
        if rule.config_key is None:
            return rule.rows
        return rule.rows + self.value(rule.config_key)

    @property
    def layout(self) -> str:
        """The layout of the sinusoids that the model starts with; empty if it has none."""
        if isinstance(self.table, SinusoidalTable):
            return self.table.layout
        if isinstance(self.table, LearnedTable) and self.table.layout_key is not None:
            return self.table.layout if self.stated(self.table.layout_key) else ""
        return ""

    @property
    def scheme(self) -> str:
        """The position scheme: learned, sinusoidal, rotary, ALiBi, relative or none."""
        if isinstance(self.table, LearnedTable | SinusoidalTable):
            return "sinusoidal" if self.layout else "learned"
        return self.table.scheme

    @property
    def effective_key(self) -> str:
        """The key that transformers uses: aliases take precedence if the config has them."""
        for key in reversed(self.table.aliases):
            if self.stated(key) is not None:
                return key
        return self.table.config_key

    @property
    def path_in_use(self) -> Keys:
        """The path at which transformers reads the length."""
        return self.paths_of(self.effective_key)[-1]

    @property
    def length_paths(self) -> tuple[Keys, ...]:
        """The paths at which to set a new length.

        They are its key, others of it that the config has, and those that other engines need.
        """
        paths = list(self.paths_of(self.table.config_key))
        for key in (*self.table.aliases, *self.table.unused_keys):
            if self.stated(key) is not None:
                paths += self.paths_of(key)
        paths += [path for path, key in self.engine_paths.items() if not key.value]
        return tuple(paths)

    @property
    def engine_paths(self) -> dict[Keys, EngineKey]:
        """The keys that other engines need, by path.

        They read such a type only as a whole model: inside another one, it has no more keys than
        its config states.
        """
        paths = dict[Keys, EngineKey]()
        for key in self.table.engine_keys:
            if not self.path or self.stated(key.name) is not None:
                paths |= dict.fromkeys(self.paths_of(key.name), key)
        return paths

    def key_value(self, positions: int) -> int:
        """Return the value of the key for a number of usable positions."""
        value = positions + self.table.extra_rows
        if self.table.reserved.inside_key:
            value += self.reserved_rows
        return value

    def rows(self, value: int) -> int:
        """Return the number of rows for a value of the key."""
        return value if self.table.reserved.inside_key else value + self.reserved_rows

    def positions(self, rows: int) -> int:
        """Return the number of usable positions for a number of rows."""
        return rows - self.reserved_rows - self.table.extra_rows

    def buffer(self, name: str) -> Buffer | None:
        """Return the buffer with exactly this tensor name, with or without a prefix, or None."""
        names = (name, re.sub(r"\b[0-9]+\b", "*", name))
        for buffer in self.table.buffers:
            if any(prefix + buffer.name in names for prefix in self.prefixes):
                return buffer
        return None


class UnsupportedPart(NamedTuple):
    """A model, or a part of one, without a position table to resize."""

    part: str  # name of the part; empty for the whole model
    message: str  # what it uses instead
    advice: str
    reads_tokens: bool = False  # whether it reads the tokens nevertheless


class Architecture(NamedTuple):
    """The registry's facts about one model."""

    family: Family  # of the whole model
    locations: tuple[TableLocation, ...]  # all tables that it can have; files may contain only some
    unsupported: tuple[UnsupportedPart, ...] = ()

    def refuse(self) -> NoReturn:
        """Refuse a model without position tables to resize.

        Raises:
            UnsupportedModelError: Always.
        """
        parts = self.unsupported
        advice = " ".join(dict.fromkeys(part.advice for part in parts if part.advice))
        hint = f"{advice} {FAMILIES_HINT}".strip()
        if len(parts) == 1 and not parts[0].part:
            raise UnsupportedModelError(parts[0].message, hint)
        reasons = " ".join(f"{part.part}: {part.message}" for part in parts)
        message = f"This {self.family.model_type} model has nothing to resize. {reasons}"
        raise UnsupportedModelError(message, hint)


def whole_number(value: Any) -> int | None:
    """Return an integer, also one that is written as 512.0; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def positive_numbers(value: Any) -> list[int]:
    """Return the integers above 0 of a value or list."""
    values = value if isinstance(value, list) else [value]
    return [number for number in values if type(number) is int and number > 0]


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
    """Return the architecture of a model with positions to resize.

    Args:
        config: The content of config.json.
        where: The path of the config, for messages.
        model_type: Its model type; by default that of the config.

    Raises:
        CheckpointError: Neither states a model type.
        UnsupportedModelError: The model type is unknown, or no part has positions to resize.
    """
    architecture = look_up_architecture(config, where, model_type)
    if not architecture.locations:
        architecture.refuse()
    return architecture


def look_up_architecture(
    config: Mapping[str, Any], where: str, model_type: str | None
) -> Architecture:
    """Return the architecture of a model, assembled from the registry entries of its parts.

    It may have no positions to resize; see `find_architecture`.

    Raises:
        CheckpointError: No model type is stated.
    """
    model_type = model_type or config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f"{where} has no model_type.", "Pass it, for example --model-type gpt2."
        )
    family = FAMILIES.get(model_type) or Family(model_type)
    locations = list[TableLocation]()
    unsupported = list[UnsupportedPart]()
    for item in _search(model_type, ModelLocation(family, config)):
        if isinstance(item, UnsupportedPart):
            unsupported.append(item)
        elif not item.tokenizer and any(part.reads_tokens for part in unsupported):
            locations.append(replace(item, tokenizer=None))  # that part reads the tokens
        else:
            locations.append(item)
    return Architecture(family, tuple(locations), tuple(unsupported))


def _search(
    name: str, outer: ModelLocation, within: Part | None = None
) -> Iterator[TableLocation | UnsupportedPart]:
    """Yield the tables of a model and of its parts, and the parts without one.

    Args:
        name: Its model type.
        outer: The location of the model that it is a part of, with its own part, path and prefixes.
        within: The part of another model that it is.
    """
    family = FAMILIES.get(name)
    if family is None:
        yield _without_entry(name, outer)
        return
    if len(outer.path) > MAX_CONFIG_DEPTH:
        message = f"This {name} model is nested too deeply."
        yield UnsupportedPart(outer.part, message, advice="")
        return
    usual = family.prefixes[0]
    if within is not None and within.has_head and len(family.prefixes) > 1:
        usual = family.prefixes[1]
    here = replace(
        outer,
        family=family,
        prefixes=tuple(map("".join, product(outer.prefixes, family.prefixes))),
        usual_prefix=outer.usual_prefix + usual,
    )
    for table in _tables_of(here, within.only_part if within else ""):
        if within is not None and isinstance(table, TableLocation):
            yield replace(table, table=_positions_inside(within, table.table))
        else:
            yield table
    for part in family.parts:
        inner = _inside(here, part)
        stated = nested(here.config, (*here.path, part.config_key, "model_type"))
        if part.may_state_type and isinstance(stated, str) and stated:
            yield from _search(stated, inner, part)
        else:
            yield from _search(part.model_type, inner, part)


def _without_entry(name: str, model: ModelLocation) -> UnsupportedPart:
    """Return why a model type without an entry cannot be resized."""
    scheme = POSITION_SCHEMES.get(name)
    if scheme is None:
        advice = did_you_mean(name, known_names())
        return UnsupportedPart(model.part, describe_unknown(name), advice)
    missing = "to resize" if scheme.reads_tokens else "for tokens"
    return UnsupportedPart(
        model.part,
        message=f"This {name} model has no position table {missing}; it uses {scheme.uses}.",
        advice=scheme.advice,
        reads_tokens=scheme.reads_tokens and model.tokenizer is not None,
    )


def _tables_of(model: ModelLocation, only: str) -> Iterator[TableLocation | UnsupportedPart]:
    """Yield the tables of one model that its config selects, or why it has none.

    Args:
        model: Its location.
        only: The name of the one table that is used; empty for all.
    """
    used = list[Positions]()
    for table in model.family.tables:
        if table.when is None or table.when.holds(model.stated(table.when.key)):
            used.append(table)
    # The first requirement that the config does not meet, if the tables need it.
    unmet = None
    if all(table.has_rows for table in used):
        requirements = model.family.requires
        if requirements and not used:
            unmet = requirements[0]
        for rule in (*requirements, ABSOLUTE):
            if model.stated(rule.key) not in (None, rule.value):
                unmet = rule
                break
    for table in used or model.family.tables[:1]:
        if only and table.part not in ("", only):
            continue
        part = model.part
        if not only:
            part = f"{model.part}.{table.part}".strip(".")
        if unmet is not None:
            message = (
                f"This {model.family.model_type} model with {unmet.key} "
                f"{model.stated(unmet.key)!r} has no position table to resize; it uses "
                f"{unmet.instead.uses}."
            )
            yield UnsupportedPart(
                part, message=message, advice=unmet.instead.advice, reads_tokens=True
            )
            return
        yield TableLocation(
            table=table,
            family=model.family,
            config=model.config,
            path=model.path,
            overrides=model.overrides,
            part=part,
            prefixes=model.prefixes,
            usual_prefix=model.usual_prefix,
            tokenizer=model.tokenizer,
        )


def _positions_inside(part: Part, table: Positions) -> Positions:
    """Return the positions of a model as it is used as a part of another."""
    if part.first_position == 0 or not isinstance(table, RotaryPositions):
        return table
    methods = tuple(name for name in table.rope.methods if name not in FOLLOWING_METHODS)
    return replace(table, rope=table.rope._replace(methods=methods))


def _inside(model: ModelLocation, part: Part) -> ModelLocation:
    """Return the location of a part of a model."""
    path = (*model.path, part.config_key)
    is_missing = nested(model.config, path) is None
    if part.is_in_outer_config and is_missing and model.stated("hidden_size") is not None:
        path = model.path
    return replace(
        model,
        part=f"{model.part}.{part.name}".strip("."),
        prefixes=tuple(map("".join, product(model.prefixes, part.prefixes))),
        path=path,
        overrides=tuple((*model.path, key) for key in part.overrides),
        tokenizer=model.tokenizer if part.tokenizer == "" else part.tokenizer,
        usual_prefix=model.usual_prefix + part.prefixes[0],
    )


def matching_types(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the model types that a config without ``model_type`` and tensor shapes can be of.

    Table, length and `SIGNATURES` of these types match. If `architectures` in the config is a class
    of one of them, only this one is returned.
    """
    matching = list[str]()
    for model_type in ENTRIES:  # those with tables
        with suppress(CheckpointError, UnsupportedModelError):
            locations = find_architecture(config, model_type=model_type).locations
            if any(_matches(location, model_type, config, shapes) for location in locations):
                matching.append(model_type)
    classes = config.get("architectures")
    stated = str(classes[0]) if isinstance(classes, list) and classes else ""
    named = [name for name in matching if _is_named_after(stated, name)]
    return [max(named, key=len)] if named else matching


def _is_named_after(model_class: str, model_type: str) -> bool:
    """Whether a class is one of a model type, by its name."""
    letters = re.sub("[-_]", "", model_type)
    return re.match(rf"(?i:{letters})(?![a-z])", model_class) is not None


def _matches(
    location: TableLocation,
    model_type: str,
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> bool:
    """Whether tensors contain a table with as many rows as the config states, and the signature.

    Raises:
        CheckpointError: The config states no valid number of reserved rows.
    """
    length = location.stated(location.effective_key)
    if type(length) is not int:
        return False
    rows = location.rows(length)
    for prefix in location.prefixes:
        has_table = shapes.get(prefix + location.table.name, ())[:1] == (rows,)
        signatures = SIGNATURES.get(model_type, ())
        if has_table and all(_has_sign(sign, prefix, config, shapes) for sign in signatures):
            return True
    return False


def _has_sign(
    sign: str, prefix: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> bool:
    """Whether one entry of `SIGNATURES` is true of a model."""
    name = sign.lstrip("!")
    has_name = name in config or any(tensor.startswith(prefix + name) for tensor in shapes)
    return has_name != sign.startswith("!")
