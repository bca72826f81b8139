"""Facts about model types: `model_types.json`, with transformers' names.

A type has the facts of its group, and its own, which take precedence. Keys are those of the
classes in `positions`. Where a name is stated instead of an object or a list, it is that under
``shared``; an object with ``like`` is that one with other values. ``why`` and ``about`` are for
readers. A type may also state:

- ``rope``: it has rotary positions with these facts, and no others.
- ``length``, ``head_dim``, ``hidden``, ``heads``, ``theta``: transformers' defaults of the length,
  of the sizes of a head and of what it follows from, and of the base; other keys are in ``keys``.
- ``signature``: tells types with the same table name apart if a config has no ``model_type``, by
  prefixes of tensor names (after the table's prefix) or config keys that a type has, or with ``!``
  does not have.
- ``unrelated_keys``: keys that say nothing about the length of its table, despite their names.
- ``has_causal_mask``: false if each token of the model sees the later ones too.

Types under ``unsupported`` have no positions to resize, but what is there ``instead``.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

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

DATA_FILE = "model_types.json"
# What objects under a key are; for those under ``positions``, see `_kinds`.
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
# Facts that `Family` does not have.
OTHER_FACTS = ("why", "signature", "unrelated_keys", "has_causal_mask")

_DATA = json.loads(Path(__file__).with_name(DATA_FILE).read_text(encoding="utf-8"))

# The facts of each type, as the file states them.
ENTRIES: Mapping[str, Mapping[str, Any]] = {
    model_type: {**group.get("facts", {}), **facts}
    for group in _DATA["groups"]
    for model_type, facts in group["types"].items()
}


def fact(name: str) -> dict[str, Any]:
    """Return one of `OTHER_FACTS`, by the types that state it."""
    types = {model_type: facts for model_type, facts in ENTRIES.items() if name in facts}
    return {model_type: _read(name, facts[name]) for model_type, facts in types.items()}


@cache
def read_family(model_type: str) -> Family:
    """Return the entry of a type.

    Raises:
        ValueError: The file states something that no type has.
    """
    facts = {key: value for key, value in ENTRIES[model_type].items() if key not in OTHER_FACTS}
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
        others = {key: _read(key, value) for key, value in facts.items()}
        return Family(model_type=model_type, tables=tables, defaults=defaults, **others)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{DATA_FILE}: {model_type}: {error}") from error


def language_model(model_type: str) -> Part:
    """Return the part for a language model of any type; by default, of this one."""
    part: Part = _read("parts", {"like": "language", "model_type": model_type})
    return part


def position_schemes() -> dict[str, PositionScheme]:
    """Return what each type without positions to resize has instead."""
    schemes = dict[str, PositionScheme]()
    for group in _DATA["unsupported"]:
        scheme = _read("instead", group["instead"])
        schemes.update(dict.fromkeys(group["types"], scheme))
    return schemes


@cache
def _kinds() -> dict[str, Any]:
    """Return the kinds of positions: they need NumPy, which those who read only names do not."""
    from ctxextend.positions.rotary import Rotary
    from ctxextend.positions.rows import Rows
    from ctxextend.positions.sinusoids import Sinusoids
    from ctxextend.positions.unlimited import Unlimited

    return {"rows": Rows, "sinusoids": Sinusoids, "rotary": Rotary, "unlimited": Unlimited}


def _read(key: str, value: Any) -> Any:
    """Return a value of the file as `positions` has it."""
    if isinstance(value, str) and key in _DATA["shared"]:
        value = _shared(key, value)
    if isinstance(value, list):
        return tuple(_read(key, item) for item in value)
    if not isinstance(value, dict):
        return value
    if "like" in value:
        own = dict(value)
        value = {**_shared(key, own.pop("like")), **own}
    cls = CLASSES.get(key)
    if key == "positions":
        kinds = _kinds()
        kind = value.get("kind")
        if kind not in kinds:
            raise ValueError(f"positions have kind {kind!r}, not one of {', '.join(kinds)}")
        cls = kinds[kind]
        value = {name: item for name, item in value.items() if name != "kind"}
    if cls is None:
        return value
    return cls(**{name: _read(name, item) for name, item in value.items() if name != "why"})


def _shared(key: str, name: str) -> Any:
    values = _DATA["shared"].get(key, {})
    if name not in values:
        raise ValueError(f"{key} {name!r} is not under shared")
    return values[name]


SIGNATURES: Mapping[str, tuple[str, ...]] = fact("signature")
