"""Look up the positions of a model from its config, or why it has none to resize."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, NoReturn

from ctxextend.errors import CheckpointError, UnsupportedModelError, did_you_mean
from ctxextend.families.registry import (
    ENTRIES,
    FAMILIES,
    FAMILIES_HINT,
    POSITION_SCHEMES,
    describe_unknown,
    known_names,
)
from ctxextend.positions.facts import Family, Part, PositionScheme, Requirement
from ctxextend.positions.positions import Model, Positions, nested

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
    family = FAMILIES.get(model_type) or Family(model_type)
    locations = list[Positions]()
    unsupported = list[UnsupportedPart]()
    for item in _search(model_type, Model(family=family, config=config)):
        if isinstance(item, UnsupportedPart):
            unsupported.append(item)
        elif not item.tokenizer and any(part.reads_tokens for part in unsupported):
            locations.append(replace(item, tokenizer=None))  # that part reads the tokens
        else:
            locations.append(item)
    return Architecture(family, tuple(locations), tuple(unsupported))


def _search(
    name: str, outer: Model, within: Part | None = None
) -> Iterator[Positions | UnsupportedPart]:
    """Yield the positions of a model and of its parts, and the parts without any.

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
    used = [
        entry
        for entry in family.tables
        if entry.when is None or entry.when.holds(here.stated(entry.when.key))
    ]
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
        if within is not None and within.first_position:
            entry = entry.counted_from_one()
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
        inner = replace(
            here,
            part=f"{here.part}.{part_of.name}".strip("."),
            prefixes=tuple(map("".join, product(here.prefixes, part_of.prefixes))),
            path=path,
            overrides=tuple((*here.path, key) for key in part_of.overrides),
            tokenizer=tokenizer,
            usual_prefix=here.usual_prefix + part_of.prefixes[0],
        )
        yield from _search(model_type, inner, part_of)


def _without_entry(name: str, model: Model) -> UnsupportedPart:
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


def _unmet_requirement(model: Model, used: Sequence[Positions]) -> Requirement | None:
    """Return the first requirement of tables of rows that a config does not meet."""
    if not all(entry.tensor for entry in used):
        return None
    requirements = model.family.requires
    for rule in (*requirements, ABSOLUTE):
        if model.stated(rule.key) not in (None, rule.value):
            return rule
    if requirements and not used:
        return requirements[0]
    return None


def matching_types(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the model types that a config without ``model_type`` and tensor shapes can be of.

    Table, length and signature of these types match. If `architectures` in the config is a class
    of one of them, only this one is returned.
    """
    matching = list[str]()
    for model_type in ENTRIES:  # those with tables
        with suppress(CheckpointError, UnsupportedModelError):
            locations = find_architecture(config, model_type=model_type).locations
            if any(_matches(location, config, shapes) for location in locations):
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
    location: Positions, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> bool:
    """Whether tensors contain a table with as many rows as the config states, and the signature.

    Raises:
        CheckpointError: The config states no valid number of reserved rows.
    """
    length = location.stated(location.effective_key)
    if type(length) is not int:
        return False
    rows = location.row_count(location.length_of_key(length))
    for prefix in location.prefixes:
        has_table = shapes.get(prefix + location.tensor, ())[:1] == (rows,)
        signs = location.family.signature
        if has_table and all(_has_sign(sign, prefix, config, shapes) for sign in signs):
            return True
    return False


def _has_sign(
    sign: str, prefix: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> bool:
    """Whether one part of a signature is true of a model."""
    name = sign.lstrip("!")
    has_name = name in config or any(tensor.startswith(prefix + name) for tensor in shapes)
    return has_name != sign.startswith("!")
