"""From a config to what the registry knows of its architecture, or to the reason why nothing can be done."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.families.registry import FAMILIES
from ctxextend.families.schema import Buffer, Family, Offset, Part, Requirement, Table
from ctxextend.families.unsupported import INSTEAD, NOT_TOKENS, OTHERWISE

__all__ = [
    "FAMILIES_HINT",
    "Architecture",
    "FamilyTable",
    "Place",
    "Refusal",
    "by_hand",
    "find_architecture",
    "is_known",
    "list_families",
    "nested",
    "refused",
]

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """One table of a family, where a certain model has it.

    Attributes:
        table: The table.
        family: Its family.
        part: What it is called in this model, with dots where parts have parts; empty where it is the only one.
        prefixes: What may stand in front of its name.
        path: The keys that lead to its config.
        overrides: Keys that lead to configs whose values transformers prefers.
        config: The whole config.
        tokenizer: The folder of the tokenizer whose texts it reads; empty is the model's own, None where another part,
            without such a table, reads those first.
        usual_prefix: What stands in front of its name in files that transformers writes of the model itself.
    """

    table: Table
    family: Family
    part: str
    prefixes: tuple[str, ...]
    path: Keys
    overrides: tuple[Keys, ...]
    config: Mapping[str, Any]
    tokenizer: str | None = ""
    usual_prefix: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that the table can have in a file."""
        return tuple(dict.fromkeys(prefix + self.table.name for prefix in self.prefixes))

    @property
    def usual_name(self) -> str:
        """The name that it has in files that transformers writes of the model itself."""
        return self.usual_prefix + self.table.name

    @property
    def config_key(self) -> str:
        """The key that states its length, with dots."""
        return ".".join((*self.path, self.table.config_key))

    @property
    def offset(self) -> int:
        """How many of its rows stand in front of position 0.

        Raises:
            CheckpointError: The key that decides it is not a whole number ≥ 0.
        """
        rule = self.table.offset
        return rule.rows + (self.value(rule.config_key) if rule.config_key else 0)

    def stated(self, key: str) -> Any:
        """Return what the config says for a key of this model's own config; None where it says nothing."""
        return nested(self.config, (*self._obeyed, *key.split(".")))

    @property
    def _obeyed(self) -> Keys:
        """Where its config stands: an overriding one takes the place of the other, and its gaps are not filled."""
        overriding = (path for path in self.overrides if isinstance(nested(self.config, path), Mapping))
        return next(overriding, self.path)

    def value(self, key: str) -> int:
        """Return the whole number that the config states for a key, or transformers' default for it.

        Raises:
            CheckpointError: It is neither stated nor known, or not a whole number ≥ 0.
        """
        value = self.stated(key)
        value = self.family.defaults.get(key) if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CheckpointError(
                f"config.json: {'.'.join((*self.path, key))} is {value!r}, and a {self.family.model_type} model needs "
                "a whole number there.",
                "Correct config.json.",
            )
        return value

    @property
    def obeyed_key(self) -> str:
        """The key of its own config that transformers obeys: an alias, where one is stated, wins."""
        stated = (key for key in reversed(self.table.aliases) if self.stated(key) is not None)
        return next(stated, self.table.config_key)

    @property
    def obeyed_path(self) -> Keys:
        """The keys that lead to the length that transformers obeys."""
        return (*self._obeyed, *self.obeyed_key.split("."))

    def paths_of(self, key: str) -> tuple[Keys, ...]:
        """Return where a key must state a new value: in its own config, and in the one that overrides it."""
        split = tuple(key.split("."))
        return tuple(dict.fromkeys(((*self.path, *split), (*self._obeyed, *split))))

    @property
    def length_paths(self) -> tuple[Keys, ...]:
        """Where a new length must be stated: by its own key, and by other names of it that are stated now."""
        others = (*self.table.aliases, *self.table.unused_keys)
        keys = (self.table.config_key, *(key for key in others if self.stated(key) is not None))
        return tuple(path for key in keys for path in self.paths_of(key))

    def key_value(self, positions: int) -> int:
        """Return what the key says for so many usable positions."""
        inside = self.offset if self.table.offset.inside_key else 0
        return positions + self.table.ahead + inside

    def rows(self, value: int) -> int:
        """Return the table's rows where the key says `value`."""
        return value if self.table.offset.inside_key else value + self.offset

    def positions(self, rows: int) -> int:
        """Return how many positions so many rows are."""
        return rows - self.offset - self.table.ahead

    def buffer(self, name: str) -> Buffer | None:
        """Return the buffer of exactly that name, with or without a prefix, or None."""
        if not name.endswith(self._endings):
            return None
        return next((buffer for buffer in self.table.buffers if self._has(buffer, name)), None)

    @cached_property
    def _endings(self) -> tuple[str, ...]:
        """How the buffers' names end: of the names in a file, which may be a million, nearly all end otherwise."""
        return tuple(buffer.name.rpartition("*")[2] for buffer in self.table.buffers)

    def _has(self, buffer: Buffer, name: str) -> bool:
        before, star, after = buffer.name.partition("*")
        for prefix in self.prefixes:
            start = prefix + before
            if not star and name == start:
                return True
            layer = name[len(start) : len(name) - len(after)]
            if star and name == start + layer + after and layer.isdecimal() and layer.isascii():
                return True
        return False


@dataclass(frozen=True)
class Refusal:
    """A model in this model that has no learned table.

    Attributes:
        part: What it is called; empty for the outermost.
        message: What it uses instead.
        advice: What to do.
        reads_tokens: Whether it reads texts all the same.
    """

    part: str
    message: str
    advice: str
    reads_tokens: bool = False


@dataclass(frozen=True)
class Architecture:
    """What the registry knows of one model.

    Attributes:
        family: The family of the outermost model.
        places: Every table that it can have; a file need not hold all.
        refusals: Those of its parts that have none.
    """

    family: Family
    places: tuple[Place, ...]
    refusals: tuple[Refusal, ...] = ()


def nested(config: Mapping[str, Any], path: Keys) -> Any:
    """Return the value at a path of keys; None where the path ends early."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


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
