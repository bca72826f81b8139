"""All model types with positions to resize: those with an entry, and those of one rotary class."""

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ctxextend.families.registry import ENTRIES, read_family
from ctxextend.families.unsupported import POSITION_SCHEMES
from ctxextend.positions.facts import Family


class KnownFamilies(Mapping[str, Family]):
    """The entries of model types by name.

    A type of the installed transformers without an entry is looked up in its classes, only when it
    is asked for: this takes seconds.
    """

    def __getitem__(self, model_type: str) -> Family:
        if model_type in ENTRIES:
            return read_family(model_type)
        if not _has_only_classes(model_type):
            raise KeyError(model_type)
        from ctxextend.families.rotary_class import UnclearClassError, class_family  # numpy

        try:
            return class_family(model_type)
        except UnclearClassError as error:
            raise KeyError(model_type) from error

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)

    def __contains__(self, model_type: Any) -> bool:
        return isinstance(model_type, str) and self.get(model_type) is not None


FAMILIES: Mapping[str, Family] = KnownFamilies()


def is_known(model_type: str) -> bool:
    """Whether the positions of a model type are known, also those that cannot be resized."""
    return model_type in POSITION_SCHEMES or model_type in FAMILIES


def known_names() -> tuple[str, ...]:
    """Return the names of model types, to complete or to correct what a user types."""
    return (*ENTRIES, *POSITION_SCHEMES)


def describe_unknown(model_type: str) -> str:
    """Say that a model type is unknown, with what is missing in its classes in transformers."""
    if not _has_only_classes(model_type):
        return f"Unknown model type {model_type!r}."
    from ctxextend.families.rotary_class import UnclearClassError, class_family

    try:
        _ = class_family(model_type)
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
