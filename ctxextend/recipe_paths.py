"""Paths in recipes: relative to the recipe's folder in a file, to the current folder when read."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.source import is_hub_id
from ctxextend.recipe import HUB_PREFIX, SECTIONS

# Keys of paths, and whether each may also be the name of a bundled checkpoint or a Hub id
# (`may_be_model`). The others may be names of datasets on the Hub.
PATH_KEYS = {
    "source": True,
    "tokenizer": True,
    "base": True,
    "data": False,
    "eval_data": False,
    "search": False,
    "output": False,
}


def map_paths(values: Mapping[str, Any], change: Callable[[str, bool], str]) -> dict[str, Any]:
    """Return a recipe's values with `change(path, may_be_model)` applied to each path.

    See `PATH_KEYS` for what else than a path a value may be.
    """

    def changed(key: str, value: Any) -> Any:
        if key in PATH_KEYS and isinstance(value, list):
            return [changed(key, item) for item in value]
        if key in PATH_KEYS and isinstance(value, str):
            return change(value, PATH_KEYS[key])
        if key in (*SECTIONS, "provenance") and isinstance(value, Mapping):
            return map_paths(value, change)
        if key == "steps" and isinstance(value, list):
            return [changed("provenance", step) for step in value]
        return value

    return {key: changed(key, value) for key, value in values.items()}


def read_path(folder: Path, text: str, may_be_model: bool) -> str:
    """Return a path of a recipe as it is to be opened.

    A path relative to the recipe's folder becomes one relative to the current folder; it becomes
    absolute if it is outside of the current folder. ``~`` is expanded. Absolute paths and names
    stay.
    """
    if not text or text.startswith("~") or Path(text).is_absolute():
        return os.path.expanduser(text)  # noqa: PTH111 - never raises
    path = os.path.normpath(Path(os.path.realpath(folder), text))
    if is_name(text, path, may_be_model=may_be_model):
        return text
    relative = _relative(path, os.curdir)
    if _is_outside(relative):
        return path
    if may_be_model:
        return relative  # starts with ./, so that it is not taken for a Hub id
    return relative.removeprefix("./")


def written_path(folder: Path, text: str, may_be_model: bool) -> str:
    """Return a path as a recipe in a folder states it: relative to that folder. Names stay."""
    path = os.path.expanduser(text)  # noqa: PTH111 - never raises
    if is_name(text, path, may_be_model=may_be_model):
        return text
    above, name = os.path.split(path)
    # A link itself is named, not what it points to.
    resolved = os.path.join(os.path.realpath(above), name)  # noqa: PTH118
    return _relative(resolved, os.path.realpath(folder))


def _relative(path: str, folder: str) -> str:
    """Return a path relative to a folder, with ``/``; it starts with ``./`` or ``../``."""
    try:
        relative = os.path.relpath(path, folder).replace(os.sep, "/")
    except ValueError:  # on another drive of Windows
        return path.replace(os.sep, "/")
    return relative if _is_outside(relative) else f"./{relative}"


def _is_outside(relative: str) -> bool:
    """Whether a relative path leaves its folder."""
    return relative == os.pardir or relative.startswith(f"{os.pardir}/")


def is_name(text: str, path: str, *, may_be_model: bool) -> bool:
    """Whether a text names something that is not a local file; `path` is where it would be."""
    if may_be_model:
        return is_hub_id(text) and not os.path.lexists(path)
    return text.startswith(HUB_PREFIX)
