"""The registry: facts about model types, and where their positions are in a config.

`model_types.json` has the facts, with transformers' names.

A type has the facts of its group, and its own, which take precedence. Keys are those of the
classes in `positions`. Where a name is stated instead of an object or a list, it is that under
``shared``; an object with ``like`` is that one with other values. ``why`` and ``about`` are for
readers. A type may also state:

- ``rope``: it has rotary positions with these facts, and no others.
- ``length``, ``head_dim``, ``hidden``, ``heads``, ``theta``: transformers' defaults of the length,
  of the sizes of a head and of what it follows from, and of the base; other keys are in ``keys``.
- ``unrelated_keys``: keys that say nothing about the length of its table, despite their names.
- ``has_causal_mask``: false if each token of the model sees the later ones too.

Types under ``unsupported`` have no positions to resize, but what is there ``instead``.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ctxextend.errors import CheckpointError, UnsupportedModelError, did_you_mean
from ctxextend.positions.facts import (
    LENGTH,
    Buffer,
    ConfigCondition,
    EngineKey,
    Family,
    OldRotaryKeys,
    Part,
    Pin,
    PositionScheme,
    Requirement,
    ReservedRows,
    RotaryFacts,
)
from ctxextend.positions.positions import Keys, Model, Positions, nested

DATA_FILE = "model_types.json"
FAMILIES_HINT = "List supported model types with `ctxextend families`."
# Of tables of rows, with each type's own requirements.
ABSOLUTE = Requirement(
    key="position_embedding_type",
    value="absolute",
    instead=PositionScheme(
        uses="position embeddings of that type",
        advice="If it was trained with absolute positions, set position_embedding_type to absolute "
        "in config.json.",
    ),
)
MAX_CONFIG_DEPTH = 3  # no model of transformers is nested more deeply
# What objects under a key are; those under ``positions`` are of a kind.
CLASSES = {
    "buffers": Buffer,
    "engine_keys": EngineKey,
    "instead": PositionScheme,
    "multiple_unless": ConfigCondition,
    "old": OldRotaryKeys,
    "parts": Part,
    "pins": Pin,
    "requires": Requirement,
    "reserved": ReservedRows,
    "rope": RotaryFacts,
    "when": ConfigCondition,
}

_DATA = json.loads(Path(__file__).with_name(DATA_FILE).read_text(encoding="utf-8"))
_SHARED: Mapping[str, Mapping[str, Any]] = _DATA["shared"]

# The facts of each type, as the file states them.
ENTRIES: Mapping[str, Mapping[str, Any]] = {
    model_type: {**group.get("facts", {}), **facts}
    for group in _DATA["groups"]
    for model_type, facts in group["types"].items()
}


# Those that were asked for.
_FAMILIES = dict[str, Family]()


def find_family(model_type: str) -> Family | None:
    """Return the entry of a type; None if it is unknown, or has no positions to resize.

    A type of the installed transformers without an entry is looked up in its classes: this takes
    seconds.

    Raises:
        ValueError: The file states something that no type has.
    """
    if model_type in _FAMILIES and model_type in ENTRIES:
        return _FAMILIES[model_type]
    if ":" in model_type:  # of a file of another format, whose architectures have other names
        from ctxextend.families.gguf_family import gguf_family

        return gguf_family(model_type.partition(":")[2])
    if model_type not in ENTRIES:
        if not _has_only_classes(model_type):
            return None
        from ctxextend.families.rotary_class import UnclearClassError, class_family  # numpy

        try:
            return class_family(model_type, LANGUAGE_MODEL)
        except UnclearClassError:
            return None
    facts = {key: value for key, value in ENTRIES[model_type].items() if key != "why"}
    keys = {"length": LENGTH, "hidden": "hidden_size", "heads": "num_attention_heads"}
    positions = facts.pop("positions", [])
    if "rope" in facts and not positions:
        rope = facts.pop("rope")
        keys["head_dim"] = rope.get("dim_key", "head_dim")
        if "theta" in facts:
            rope = {**rope, "theta": {"": facts.pop("theta")}}
        positions = [{"kind": "rotary", "rope": rope}]
    try:
        tables = _read("positions", positions)
        if tables:
            keys["length"] = tables[0].config_key
        defaults = {key: facts.pop(name) for name, key in keys.items() if name in facts}
        defaults |= facts.pop("keys", {})
        for key, value in facts.items():
            facts[key] = _read(key, value)
        family = Family(model_type=model_type, tables=tables, defaults=defaults, **facts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{DATA_FILE}: {model_type}: {error}") from error
    _FAMILIES[model_type] = family
    return family


def _read(key: str, value: Any) -> Any:
    shared = _SHARED.get(key, {})
    if isinstance(value, str) and key in _SHARED:
        value = shared.get(value, value)
    items = list[Any]()
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and key in _SHARED:
            item = {"like": item}
        if not isinstance(item, dict):
            items.append(item)
            continue
        own = dict(item)
        while "like" in own:
            base = own.pop("like")
            if base not in shared:
                raise ValueError(f"{key} {base!r} is not under shared")
            own = {**shared[base], **own}
        own.pop("why", None)
        for name, inner in own.items():
            if isinstance(inner, dict | list) or name in _SHARED:
                own[name] = _read(name, inner)
        cls: Any = CLASSES.get(key)
        if key == "positions":
            # They need NumPy, which those who read only names do not.
            from ctxextend.positions import rotary, rows, sinusoids, unlimited

            kinds = {
                "rows": rows.Rows,
                "sinusoids": sinusoids.Sinusoids,
                "rotary": rotary.Rotary,
                "unlimited": unlimited.Unlimited,
            }
            kind = own.pop("kind", None)
            if kind not in kinds:
                raise ValueError(f"positions have kind {kind!r}, not one of {', '.join(kinds)}")
            cls = kinds[kind]
        items.append(own if cls is None else cls(**own))
    return tuple(items) if isinstance(value, list) else items[0]


# The part for a language model of any type.
LANGUAGE_MODEL: Part = _read("parts", {"like": "language", "model_type": ""})


# What each type without positions to resize has instead.
POSITION_SCHEMES: Mapping[str, PositionScheme] = {
    model_type: scheme
    for group in _DATA["unsupported"]
    for scheme in (_read("instead", group["instead"]),)
    for model_type in group["types"]
}


class KnownFamilies(Mapping[str, Family]):
    """The entries of model types by name, and what `find_family` finds for others."""

    def __getitem__(self, model_type: str) -> Family:
        family = find_family(model_type)
        if family is None:
            raise KeyError(model_type)
        return family

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)


FAMILIES: Mapping[str, Family] = KnownFamilies()


def is_known(model_type: str) -> bool:
    """Whether the positions of a model type are known, also those that cannot be resized."""
    return not is_unknown(model_type)


def is_unknown(model_type: str) -> bool:
    """Whether nothing is known of the positions of a type, so that the tensors must decide."""
    return model_type not in POSITION_SCHEMES and find_family(model_type) is None


def known_names() -> tuple[str, ...]:
    """Return the names of model types, to complete or to correct what a user types."""
    return (*ENTRIES, *POSITION_SCHEMES)


def describe_unknown(model_type: str) -> str:
    """Say that a model type is unknown, with what is missing in its classes in transformers."""
    if not _has_only_classes(model_type):
        return f"Unknown model type {model_type!r}."
    from ctxextend.families.rotary_class import UnclearClassError, class_family

    try:
        _ = class_family(model_type, LANGUAGE_MODEL)
    except UnclearClassError as error:
        return f"{model_type} has no entry here, and cannot be resized by its classes: {error}."
    raise AssertionError(f"{model_type} is known")


def _has_only_classes(model_type: str) -> bool:
    """Whether only the installed transformers knows a model type, by the tables in its source.

    Importing them takes seconds.
    """
    if model_type in ENTRIES or model_type in POSITION_SCHEMES:
        return False
    spec = find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return False
    tables = Path(spec.submodule_search_locations[0], "models", "auto").glob("*.py")
    row = re.compile(rf'"{re.escape(model_type)}"[,:]\s*"\w+Config"')  # "llama", "LlamaConfig"
    return any(row.search(path.read_text(encoding="utf-8")) for path in tables)


class UnsupportedPart(NamedTuple):
    """A model, or a part of one, without a position table to resize."""

    part: str  # name of the part; empty for the whole model
    message: str  # what it uses instead
    advice: str
    reads_tokens: bool = False  # whether it reads the tokens nevertheless


class Architecture(NamedTuple):
    """The registry's facts about one model."""

    family: Family  # of the whole model
    locations: tuple[Positions, ...]  # all tables that it can have; files may contain only some
    unsupported: tuple[UnsupportedPart, ...] = ()

    def match_names(self, names: Collection[str], where: str) -> list[Positions]:
        """Return the positions with their names among the tensors of a model, in registry order.

        Args:
            names: The names of its tensors; they may lack some of the positions.
            where: The model, for errors.

        Raises:
            CheckpointError: Two tensors may be the same table.
        """
        is_only = len(self.locations) == 1
        matches = list[Positions]()
        for location in self.locations:
            found = location.names_among(names, is_only=is_only)
            if len(found) > 1:
                message = f"{where}: found two candidate position tables, {' and '.join(found)}."
                hint = "Save the model again with save_pretrained, which writes one."
                raise CheckpointError(message, hint)
            matches += [replace(location, name=name) for name in found]
        return matches

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
    family = find_family(model_type) or Family(model_type)
    locations = list[Positions]()
    unsupported = list[UnsupportedPart]()
    for item in _search(model_type, Model(family=family, config=config)):
        if isinstance(item, UnsupportedPart):
            unsupported.append(item)
            continue
        location = item
        if location.methods:
            location = location.as_none_if_unrotated()
        if not location.tokenizer and any(part.reads_tokens for part in unsupported):
            location = replace(location, tokenizer=None)  # that part reads the tokens
        locations.append(location)
    return Architecture(family, tuple(locations), tuple(unsupported))


def _search(
    name: str, outer: Model, within: Part | None = None
) -> Iterator[Positions | UnsupportedPart]:
    family = find_family(name)
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
    used = [
        entry
        for entry in family.tables
        if entry.when is None or entry.when.holds(here.stated(entry.when.key))
    ]
    unmet = None
    if family.requires or here.stated(ABSOLUTE.key) is not None:
        unmet = _unmet_requirement(here, used)
    for entry in used or family.tables[:1]:
        part = f"{here.part}.{entry.part}".strip(".")
        if within is not None and within.only_part:
            if entry.part not in ("", within.only_part):
                continue
            part = here.part
        if unmet is not None:
            message = (
                f"This {name} model with {unmet.key} {here.stated(unmet.key)!r} has no position "
                f"table to resize; it uses {unmet.instead.uses}."
            )
            yield UnsupportedPart(
                part, message=message, advice=unmet.instead.advice, reads_tokens=True
            )
            break
        yield replace(entry, **{**vars(here), "part": part})

    for part_of in family.parts:
        path = (*here.path, part_of.config_key)
        model_type = part_of.model_type
        stated = nested(here.config, (*path, "model_type"))
        if part_of.may_state_type and isinstance(stated, str) and stated:
            model_type = stated
        is_missing = nested(here.config, path) is None
        if part_of.is_in_outer_config and is_missing and here.stated("hidden_size") is not None:
            path = here.path
        tokenizer = part_of.tokenizer
        if tokenizer == "":
            tokenizer = here.tokenizer
        override: Keys | None = None
        copied = (*here.path, part_of.override)
        if isinstance(nested(here.config, copied), Mapping):
            override = copied
        inner = replace(
            here,
            part=f"{here.part}.{part_of.name}".strip("."),
            prefixes=tuple(map("".join, product(here.prefixes, part_of.prefixes))),
            path=path,
            override=override,
            tokenizer=tokenizer,
            usual_prefix=here.usual_prefix + part_of.prefixes[0],
            first_position=part_of.first_position,
        )
        yield from _search(model_type, inner, part_of)


def _without_entry(name: str, model: Model) -> UnsupportedPart:
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


def _unmet_requirement(model: Model, used: Sequence[Positions]) -> Requirement | None:
    if not all(entry.tensor for entry in used):
        return None
    requirements = model.family.requires
    for rule in (*requirements, ABSOLUTE):
        if model.stated(rule.key) not in (None, rule.value):
            return rule
    if requirements and not used:
        return requirements[0]
    return None
