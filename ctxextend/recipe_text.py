"""Write recipes as YAML, and shorten the local paths in them."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ctxextend.recipe import MACHINE_KEYS, SECTIONS, TABLE_KEYS, Recipe
from ctxextend.recipe_paths import is_name, map_paths, written_path


def yaml_text(values: Mapping[str, Any], folder: Path | None = None) -> str:
    """Return a recipe's values as YAML, with paths relative to `folder` if it is given."""
    if folder is not None:
        values = map_paths(values, partial(written_path, folder))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values by key, without defaults."""
    ref = _non_defaults(recipe.checkpoint)
    table = {key: ref.pop(key) for key in TABLE_KEYS if key in ref}
    values = dict(ref)
    for section in SECTIONS:
        settings = getattr(recipe, section)
        if settings is not None:
            values[section] = _non_defaults(settings)
    if recipe.resize is not None:
        values["resize"] = {"to": recipe.resize.to} | values["resize"] | table
    return values


def _non_defaults(settings: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults, without `MACHINE_KEYS`."""
    changed = dict[str, Any]()
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if setting.name not in MACHINE_KEYS and value != setting.default:
            changed[setting.name] = list(value) if isinstance(value, tuple) else value
    return changed


def without_folders(text: str) -> str:
    """Return a recipe's YAML with every local path reduced to its last component."""

    def shortened(path: str, may_be_model: bool) -> str:
        return path if is_name(path, "", may_be_model=may_be_model) else f"./{Path(path).name}"

    return yaml_text(map_paths(yaml.safe_load(text), shortened))
