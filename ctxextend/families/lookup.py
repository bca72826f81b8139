"""From a config to what is known of its architecture, or to the reason why nothing can be done."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.families.architecture import Architecture, Place, Refusal, nested
from ctxextend.families.entries import FAMILIES
from ctxextend.families.refusals import INSTEAD, NOT_TOKENS, OTHERWISE
from ctxextend.families.schema import Family, Offset, Part, Requirement, Table

__all__ = ["FAMILIES_HINT", "by_hand", "find_architecture", "is_known", "refused"]

ABSOLUTE = Requirement(
    "position_embedding_type",
    "absolute",
    "positions of that type, which are not resized: if it was trained with absolute ones, let config.json say so",
)
# How a sentence about a model type begins, by where its mechanism is listed.
OPENINGS = (
    (INSTEAD, "has no learned position table; it uses "),
    (NOT_TOKENS, "has no learned table over token positions: "),
    (OTHERWISE, ""),
)
# Models in models in models: no model of transformers has more.
DEEPEST = 3
FAMILIES_HINT = "`ctxextend families` lists the model types that have one."


def find_architecture(
    config: Mapping[str, Any], where: str = "config.json", model_type: str | None = None
) -> Architecture:
    """Return what the registry knows of a model, put together from its parts' families.

    Args:
        config: The parsed config.json.
        where: Its path, for messages.
        model_type: The family to take it for; None is what the config says.

    Raises:
        CheckpointError: The config names no model type.
        UnsupportedModelError: The model has no learned position table, or is not in the registry.
    """
    model_type = model_type or config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f"{where} names no model_type.", "Say what it is with --family, for example --family gpt2."
        )
    if model_type not in FAMILIES:
        refusal = _unknown(model_type)
        raise refused(model_type, (refusal,))
    found = list(_search(FAMILIES[model_type], config, _Outer()))
    places = tuple(_with_tokenizer(item, found[:index]) for index, item in enumerate(found) if isinstance(item, Place))
    refusals = tuple(item for item in found if isinstance(item, Refusal))
    if not places:
        raise refused(model_type, refusals)
    return Architecture(FAMILIES[model_type], places, refusals)


def is_known(model_type: str) -> bool:
    """Whether a model type is in the registry, or known to have no learned table."""
    return model_type in FAMILIES or any(model_type in refusals for refusals, _ in OPENINGS)


def refused(model_type: str, refusals: tuple[Refusal, ...]) -> UnsupportedModelError:
    """Return the error for a model of which no part has a learned table."""
    advice = " ".join(dict.fromkeys(refusal.advice for refusal in refusals if refusal.advice))
    hint = f"{advice} {FAMILIES_HINT}".strip()
    if len(refusals) == 1 and not refusals[0].part:
        return UnsupportedModelError(refusals[0].message, hint)
    reasons = "; ".join(
        f"its {refusal.part}: {refusal.message[0].lower()}{refusal.message[1:-1]}" for refusal in refusals
    )
    return UnsupportedModelError(f"This {model_type} model has no learned position table to resize: {reasons}.", hint)


def by_hand(config: Mapping[str, Any], table: str, config_key: str, offset: int, inside_key: bool) -> Architecture:
    """Describe a model that the registry does not know, from what the user says of it.

    Args:
        config: The parsed config.json.
        table: The whole name of its position table.
        config_key: The key that states its length, with dots where configs are nested.
        offset: Rows in front of position 0.
        inside_key: Whether the key counts them.
    """
    *path, key = config_key.split(".")
    family = Family(str(config.get("model_type") or "unknown"))
    entry = Table(table, key, offset=Offset(offset, inside_key=inside_key))
    return Architecture(family, (Place(entry, family, "", ("",), tuple(path), (), config),))


def _with_tokenizer(place: Place, before: list[Place | Refusal]) -> Place:
    """Return a place without the model's tokenizer where a part before it reads that one's texts, and has no table."""
    reader = any(isinstance(item, Refusal) and item.reads_tokens for item in before)
    return replace(place, tokenizer=None) if reader and not place.tokenizer else place


@dataclass(frozen=True)
class _Outer:
    """What surrounds a model inside another: see `Place`."""

    part: str = ""
    prefixes: tuple[str, ...] = ("",)
    path: tuple[str, ...] = ()
    overrides: tuple[tuple[str, ...], ...] = ()
    tokenizer: str | None = ""
    usual_prefix: str = ""
    is_head: bool = False
    only: str = ""


def _search(family: Family, config: Mapping[str, Any], outer: _Outer) -> Iterator[Place | Refusal]:
    """Yield the tables of a model and of its parts, and the parts that have none."""
    prefixes = tuple(before + own for before in outer.prefixes for own in family.prefixes)
    usual = outer.usual_prefix + family.prefixes[1 if outer.is_head and len(family.prefixes) > 1 else 0]
    for table in family.tables:
        if outer.only and table.part not in ("", outer.only):
            continue
        part = outer.part if outer.only else _joined(outer.part, table.part)
        place = Place(table, family, part, prefixes, outer.path, outer.overrides, config, outer.tokenizer, usual)
        wrong = next((need for need in (*family.requires, ABSOLUTE) if not _is_met(need, place)), None)
        if wrong:
            yield _not_met(wrong, place)
            break
        yield place
    for inner in family.parts:
        yield from _search_part(inner, config, replace(outer, prefixes=prefixes, usual_prefix=usual))


def _search_part(part: Part, config: Mapping[str, Any], outer: _Outer) -> Iterator[Place | Refusal]:
    inner = _Outer(
        part=_joined(outer.part, part.name),
        prefixes=tuple(before + own for before in outer.prefixes for own in part.prefixes),
        path=(*outer.path, part.config_key),
        overrides=tuple((*outer.path, key) for key in part.overrides),
        tokenizer=outer.tokenizer if part.tokenizer == "" else part.tokenizer,
        usual_prefix=outer.usual_prefix + part.prefixes[0],
        is_head=part.is_head,
        only=part.only,
    )
    model_type = _model_type(part, config, inner)
    if model_type not in FAMILIES:
        refusal = _unknown(model_type)
        yield replace(refusal, part=inner.part, reads_tokens=refusal.reads_tokens and inner.tokenizer is not None)
    elif len(inner.path) > DEEPEST:
        yield Refusal(inner.part, f"This {model_type} model is not looked for so deep in others.", "")
    else:
        yield from _search(FAMILIES[model_type], config, inner)


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _model_type(part: Part, config: Mapping[str, Any], inner: _Outer) -> str:
    stated = nested(config, (*inner.path, "model_type"))
    return stated if part.is_any and isinstance(stated, str) and stated else part.model_type


def _is_met(need: Requirement, place: Place) -> bool:
    stated = place.stated(need.key)
    return stated is None or stated == need.value


def _not_met(need: Requirement, place: Place) -> Refusal:
    what, _, advice = need.instead.partition(": ")
    message = (
        f"This {place.family.model_type} model with {need.key} {place.stated(need.key)!r} reads no learned position "
        f"table; it uses {what}."
    )
    return Refusal(place.part, message, f"{advice[0].upper()}{advice[1:]}.", reads_tokens=True)


def _unknown(model_type: str) -> Refusal:
    for refusals, opening in OPENINGS:
        if model_type in refusals:
            what, _, advice = refusals[model_type].partition(": ")
            message = f"This {model_type} model {opening}{what}."
            return Refusal("", message, f"{advice[0].upper()}{advice[1:]}.", reads_tokens=refusals is not NOT_TOKENS)
    return Refusal("", f"The model type {model_type!r} is not in ctxextend's registry.", "")
