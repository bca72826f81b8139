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
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
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
FAMILIES_HINT = "List supported model types with `ctxextend families`."
# What objects under a key are; for those under ``positions``, see `_kind`.
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


def _read(key: str, value: Any) -> Any:
    """Return a value of the file as `positions` has it.

    Raises:
        ValueError: It names no shared value, or no kind of positions.
        TypeError: It states something that its class does not have.
    """
    if isinstance(value, str) and key in _SHARED:
        value = _shared(key, value)
    items = list[Any]()
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and key in _SHARED:
            item = _shared(key, item)
        if not isinstance(item, dict):
            items.append(item)
            continue
        own = dict(item)
        if "like" in own:
            own = {**_shared(key, own.pop("like")), **own}
        own.pop("why", None)
        for name, inner in own.items():
            if isinstance(inner, dict | list) or name in _SHARED:
                own[name] = _read(name, inner)
        cls: Any = CLASSES.get(key, dict)
        if key == "positions":
            cls = _kind(own.pop("kind", None))
        items.append(cls(**own) if cls is not dict else own)
    return tuple(items) if isinstance(value, list) else items[0]


def _shared(key: str, name: str) -> Any:
    if name not in _SHARED.get(key, {}):
        raise ValueError(f"{key} {name!r} is not under shared")
    return _SHARED[key][name]


def _kind(name: str | None) -> Any:
    """Return a kind of positions: they need NumPy, which those who read only names do not."""
    from ctxextend.positions.rotary import Rotary
    from ctxextend.positions.rows import Rows
    from ctxextend.positions.sinusoids import Sinusoids
    from ctxextend.positions.unlimited import Unlimited

    kinds = {"rows": Rows, "sinusoids": Sinusoids, "rotary": Rotary, "unlimited": Unlimited}
    if name not in kinds:
        raise ValueError(f"positions have kind {name!r}, not one of {', '.join(kinds)}")
    return kinds[name]


@cache
def read_family(model_type: str) -> Family:
    """Return the entry of a type.

    Raises:
        ValueError: The file states something that no type has.
    """
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
        return Family(model_type=model_type, tables=tables, defaults=defaults, **facts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{DATA_FILE}: {model_type}: {error}") from error


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
    """The entries of model types by name.

    A type of the installed transformers without an entry is looked up in its classes, only when it
    is asked for: this takes seconds.
    """

    def __getitem__(self, model_type: str) -> Family:
        if model_type in ENTRIES:
            return read_family(model_type)
        if ":" in model_type:  # of a file of another format, whose architectures have other names
            from ctxextend.families.gguf_family import gguf_family

            return gguf_family(model_type.partition(":")[2])
        if not _has_only_classes(model_type):
            raise KeyError(model_type)
        from ctxextend.families.rotary_class import UnclearClassError, class_family  # numpy

        try:
            return class_family(model_type, LANGUAGE_MODEL)
        except UnclearClassError as error:
            raise KeyError(model_type) from error

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)

    def __contains__(self, model_type: Any) -> bool:
        if model_type in ENTRIES:
            return True
        return isinstance(model_type, str) and self.get(model_type) is not None


FAMILIES: Mapping[str, Family] = KnownFamilies()


def is_known(model_type: str) -> bool:
    """Whether the positions of a model type are known, also those that cannot be resized."""
    return model_type in POSITION_SCHEMES or model_type in FAMILIES


def known_parts(config: Mapping[str, Any]) -> list[str]:
    """Return the known model types of the parts of a model."""
    parts = [value for value in config.values() if isinstance(value, Mapping)]
    types = [part.get("model_type") for part in parts]
    return [name for name in types if isinstance(name, str) and name in FAMILIES]


def is_unknown(model_type: str, config: Mapping[str, Any]) -> bool:
    """Whether the tensors must decide: a type is unknown, or only a part of the model is known."""
    if model_type in FAMILIES:
        return False
    return model_type not in POSITION_SCHEMES or bool(known_parts(config))


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
