"""Paths in recipes: relative to the recipe's folder in a file, to the current folder when read."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.source import is_hub_id
from ctxextend.recipe import HUB_PREFIX, SECTIONS

# Keys of paths, and whether each may also be the name of a bundled checkpoint or a Hub id.
PATH_KEYS = {
    "source": True,
    "tokenizer": True,
    "base": True,
    "data": False,
    "eval_data": False,
    "corpus": False,
    "queries": False,
    "qrels": False,
    "output": False,
}


def map_paths(values: Mapping[str, Any], change: Callable[[str, bool], str]) -> dict[str, Any]:
    """Return a recipe's values with `change(path, may_be_model)` applied to each path."""

    def changed(key: str, value: Any) -> Any:
        if key in PATH_KEYS and isinstance(value, list):
            return [changed(key, item) for item in value]
        if key in PATH_KEYS and isinstance(value, str):
            return change(value, PATH_KEYS[key])
        if key in (*SECTIONS, "provenance", "source_recipe") and isinstance(value, Mapping):
            return map_paths(value, change)
        return value

    return {key: changed(key, value) for key, value in values.items()}


def read_path(folder: Path, text: str, is_model: bool) -> str:
    """Convert a path relative to a recipe's folder to one relative to the current folder."""
    path = os.path.normpath(Path(os.path.realpath(folder), text))
    is_relative = text and not text.startswith("~") and not Path(text).is_absolute()
    if not is_relative or is_name(text, is_model, path):
        return os.path.expanduser(text)  # noqa: PTH111 - never raises
    relative = _relative(path, os.curdir)
    if relative.startswith(os.pardir):
        return path
    if is_model:
        return relative
    return relative.removeprefix("./")


def written_path(folder: Path, text: str, is_model: bool) -> str:
    """Convert a path relative to the current folder to one relative to a recipe's folder."""
    path = os.path.expanduser(text)  # noqa: PTH111 - never raises
    if is_name(text, is_model, path):
        return text
    above, name = os.path.split(path)
    return _relative(os.path.join(os.path.realpath(above), name), os.path.realpath(folder))  # noqa: PTH118


def _relative(path: str, folder: str) -> str:
    """Return a path relative to a folder, with ``/``."""
    try:
        relative = os.path.relpath(path, folder).replace(os.sep, "/")
    except ValueError:  # on another drive of Windows
        return path.replace(os.sep, "/")
    return relative if relative.startswith(os.pardir) else f"./{relative}"


def is_name(text: str, is_model: bool, path: str = "") -> bool:
    """Whether a text names something that is not a local file.

    It is a Hub dataset, or, if `is_model`, a Hub id or bundled checkpoint, and `path` does not
    exist.
    """
    if not is_model:
        return text.startswith(HUB_PREFIX)
    return is_hub_id(text) and not os.path.lexists(path)
