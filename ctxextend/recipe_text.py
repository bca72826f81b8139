"""Write recipes as YAML, and shorten the local paths in an output's recipe and configs."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml

from ctxextend.checkpoints.json_edit import edit, load_object, read_text
from ctxextend.checkpoints.source import is_hub_id
from ctxextend.errors import (
    CheckpointError,
)
from ctxextend.recipe import MACHINE_KEYS, RECIPE_FILE, SECTIONS, TABLE_KEYS, Recipe
from ctxextend.recipe_paths import is_name, map_paths, written_path

# Suffixes of config keys that contain the path that something was loaded from.
CONFIG_PATHS = ("name_or_path", "tokenizer_file", "special_tokens_map_file")


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


def texts_without_folders(folder: Path) -> dict[str, bytes]:
    """Return an output's recipe and configs with local paths reduced to their last components.

    Files without local paths are left out.
    """
    texts = dict[str, str]()
    recipe = (folder / RECIPE_FILE).read_text("utf-8")
    for path in sorted(folder.rglob("*config*.json")):
        with suppress(CheckpointError):  # not a JSON object, so it contains no paths
            if changes := dict(_local_paths(load_object(path))):
                texts[path.relative_to(folder).as_posix()] = edit(read_text(path), changes)
    shortened = without_folders(recipe)
    if shortened != recipe:
        texts[RECIPE_FILE] = shortened
    return {name: text.encode() for name, text in texts.items()}


def _local_paths(
    config: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the keys of every local path in a config, also nested ones, and its last component."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _local_paths(value, (*above, key))
        elif isinstance(value, str) and key.endswith(CONFIG_PATHS) and not is_hub_id(value):
            name = PureWindowsPath(value).name  # accepts both / and \
            if name not in ("", value) and "://" not in value:
                yield (*above, key), name
