"""Recipes: a checkpoint and the steps to run on it, as YAML.

Keys are the names of settings. Paths are relative to the recipe's folder in a file, and to the
current folder once it is read.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ctxextend.checkpoint.formats import recipe_text
from ctxextend.checkpoint.source import is_hub_id
from ctxextend.errors import RecipeChangeError, RecipeError, ResizeError, did_you_mean, one_line
from ctxextend.recipe_names import builtin_recipes
from ctxextend.settings import (
    RECIPE_STEPS,
    CheckpointRef,
    Convert,
    Evaluate,
    Resize,
    Settings,
    Train,
    option_of,
    ordered_fields,
)

HUB_PREFIX = "hf:"  # of datasets on the Hub
CHANGE = -1  # in place of the line of a value that a change sets
MAX_CHARACTERS = 200_000  # of an untrusted recipe, which could otherwise take minutes to parse
# What PyYAML raises if a value does not match its tag or is too large.
YAML_ERRORS = (
    yaml.YAMLError,
    AttributeError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    RecursionError,
)
KEYS_HINT = (
    "Keys are the settings of resize, convert, train and evaluate with underscores, such as "
    "resize.keep_first or train.data."
)


@dataclass(frozen=True)
class Recipe:
    """A checkpoint and the steps to run on it, in this order; None skips a step."""

    checkpoint: CheckpointRef
    resize: Resize | None = None
    train: Train | None = None
    evaluate: Evaluate | None = None
    # Output folder; defaults to ``<name>-<length>``, or ``<name>-trained`` without `resize`.
    output: str | None = None
    convert: Convert | None = None  # instead of `resize`


# The fields of settings that are keys of recipes.
SECTIONS: dict[str, type[Settings]] = {"": CheckpointRef, **RECIPE_STEPS}
FIELDS: dict[type[Settings], list[Field[Any]]] = {}
for kind_of_settings in SECTIONS.values():
    FIELDS[kind_of_settings] = [
        item for item in ordered_fields(kind_of_settings) if option_of(item).in_recipe
    ]
OF_CHECKPOINT = [item.name for item in FIELDS[CheckpointRef]]
OF_STEPS = [f"{step}.{item.name}" for step in RECIPE_STEPS for item in FIELDS[RECIPE_STEPS[step]]]
KEYS = (*OF_CHECKPOINT, *OF_STEPS, "output", *RECIPE_STEPS, "provenance")
# Keys of paths, and whether each may also be the name of a bundled checkpoint or a Hub id. The
# others may be names of datasets on the Hub.
PATH_KEYS = {"output": False}
# Settings that depend on the machine, and are not written into recipes.
MACHINE_KEYS = list[str]()
for declared in FIELDS.values():
    for item in declared:
        if option_of(item).kind.is_path:
            PATH_KEYS[item.name] = option_of(item).kind.may_be_model
        if option_of(item).depends_on_machine:
            MACHINE_KEYS.append(item.name)


# ---- writing


def yaml_text(values: Mapping[str, Any], folder: Path | None = None) -> str:
    """Return a recipe's values as YAML, with paths relative to `folder` if it is given."""
    if folder is not None:
        values = map_paths(values, partial(written_path, folder))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values by key, without defaults."""
    values = plain_values(recipe.checkpoint)
    for step in RECIPE_STEPS:
        settings = getattr(recipe, step)
        if settings is not None:
            values[step] = plain_values(settings)
    return values


def plain_values(settings: Settings, *, defaults: bool = False) -> dict[str, Any]:
    """Return settings as YAML and JSON state them, by key, with or without defaults."""
    values = dict[str, Any]()
    for item in FIELDS[type(settings)]:
        value = getattr(settings, item.name)
        if defaults or (value != item.default and item.name not in MACHINE_KEYS):
            is_repeated = type(value) is tuple
            plain = list[Any]()
            for one in value if is_repeated else (value,):
                if one is not None and not isinstance(one, bool | int | float):
                    one = str(getattr(one, "recipe_text", one))
                plain.append(one)
            values[item.name] = plain if is_repeated else plain[0]
    return values


def without_folders(text: str) -> str:
    """Return a recipe's YAML with every local path reduced to its last component."""

    def shortened(path: str, may_be_model: bool) -> str:
        return path if is_name(path, "", may_be_model=may_be_model) else f"./{Path(path).name}"

    return yaml_text(map_paths(yaml.safe_load(text), shortened))


# ---- paths


def map_paths(values: Mapping[str, Any], change: Callable[[str, bool], str]) -> dict[str, Any]:
    """Return a recipe's values with `change(path, may_be_model)` applied to each path.

    See `PATH_KEYS` for what else than a path a value may be.
    """
    mapped = dict[str, Any]()
    for key, value in values.items():
        if key in PATH_KEYS and isinstance(value, str):
            mapped[key] = change(value, PATH_KEYS[key])
        elif key in PATH_KEYS and isinstance(value, list):
            mapped[key] = [map_paths({key: item}, change)[key] for item in value]
        elif key in (*RECIPE_STEPS, "provenance") and isinstance(value, Mapping):
            mapped[key] = map_paths(value, change)
        elif key == "steps" and isinstance(value, list):
            steps = [map_paths({"provenance": step}, change) for step in value]
            mapped[key] = [step["provenance"] for step in steps]
        else:
            mapped[key] = value
    return mapped


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
    return relative == os.pardir or relative.startswith(f"{os.pardir}/")


def is_name(text: str, path: str, *, may_be_model: bool) -> bool:
    """Whether a text names something that is not a local file; `path` is where it would be."""
    if may_be_model:
        return is_hub_id(text) and not os.path.lexists(path)
    return text.startswith(HUB_PREFIX)


# ---- reading


class RecipeFile(NamedTuple):
    """The contents of a recipe file."""

    recipe: Recipe
    provenance: Mapping[str, Any]  # how an output was created; empty in a recipe that a user wrote
    values: Mapping[str, Any]  # all values by key


class _NoAliasLoader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases: with them, a short file can fill the memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not supported", problem_mark=mark)
        return super().compose_node(parent, index)


class Entry(NamedTuple):
    """The value of a key and where it was set."""

    value: Any
    line: int  # from 1; 0 if there is none; `CHANGE` with --set
    name: str  # file, or flag

    def error(self, message: str) -> tuple[int, str]:
        """Return an error message with its location, and the line to sort by."""
        where = self.name
        if self.line > 0:
            where += f", line {self.line}"
        return self.line, f"{where}: {message}"


def read_recipe(path: str | Path, changes: Sequence[str] = ()) -> RecipeFile:
    """Read a recipe file, with paths relative to its folder, or a built-in recipe by name.

    Args:
        path: The file, or the name of a built-in recipe.
        changes: See `parse_recipe`.

    Raises:
        RecipeError: The recipe cannot be read, or is invalid; see `parse_recipe`.
    """
    builtin = builtin_recipes()
    try:
        file = Path(path).expanduser()
        folder: Path | None = file.parent
        if not file.is_file() and str(path) in builtin:
            file = builtin[str(path)]
            folder = None
        text = recipe_text(file)
        if text is None:
            raise RecipeError(
                f"{file} contains no recipe: ctxextend did not write it.",
                "Pass a YAML file, or a GGUF file that `ctxextend resize` wrote.",
            )
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, ValueError):
            reason = "it is not UTF-8"
        hint = did_you_mean(str(path), builtin)
        if not hint:
            hint = "Pass a YAML file, or a name from `ctxextend recipes`."
        raise RecipeError(f"The recipe {path} cannot be read: {reason}.", hint) from None
    return parse_recipe(text, str(path), changes, folder)


def parse_recipe(
    text: str, name: str, changes: Sequence[str] = (), folder: Path | None = None
) -> RecipeFile:
    """Parse a recipe and apply changes.

    Args:
        text: The YAML.
        name: What error messages call the recipe.
        changes: New values, such as ``train.steps=100``; an empty one removes the key.
        folder: The folder to which paths in the YAML are relative; None leaves them as they are.
            Paths in changes are relative to the current folder.

    Raises:
        RecipeError: The YAML, a key or a value is invalid. The message lists all errors.
    """
    entries = dict[str, Entry]()
    errors = list[tuple[int, str]]()
    for path, entry in parse_yaml(text, name):
        if path in entries:
            errors.append(entry.error(f"duplicate key {path}"))
        if folder is not None:
            key = path.rpartition(".")[2]
            moved = map_paths({key: entry.value}, partial(read_path, folder))
            entry = entry._replace(value=moved[key])
        entries[path] = entry
    no_line = Entry(None, 0, name)
    for change in changes:
        typed, equals, value = change.partition("=")
        if equals:
            key = typed.strip().replace("-", "_")
            entries = _changed(entries, key, value, f"--set {typed}")
        else:
            message = "expected key=value, such as train.steps=100"
            errors.append((CHANGE, f"--set {change}: {message}"))
    entries = {path: entry for path, entry in entries.items() if entry.value is not None}
    errors += _key_errors(entries, no_line)
    ref = _settings(CheckpointRef, "", entries, no_line, errors)
    steps = {}
    for step, kind in RECIPE_STEPS.items():
        if step in entries and isinstance(entries[step].value, dict):
            steps[step] = _settings(kind, f"{step}.", entries, entries[step], errors)
    if errors:
        error = RecipeError
        if all(line == CHANGE for line, _ in errors):
            error = RecipeChangeError
        raise error("\n".join(message for _, message in sorted(set(errors))), KEYS_HINT)
    values = {path: entry.value for path, entry in entries.items()}
    nested = dict[str, Any]()
    for path, value in values.items():
        section, _, key = path.rpartition(".")
        if section:
            nested[section] = {**nested[section], key: value}
        else:
            nested[key] = value
    return RecipeFile(
        recipe=Recipe(ref, **steps, output=values.get("output")),
        provenance=values.get("provenance", {}),
        values=nested,
    )


def _changed(entries: Mapping[str, Entry], key: str, value: str, flag: str) -> dict[str, Entry]:
    """Return the entries with another value, such as ``100`` of ``train.steps``."""
    changed = {
        path: entry for path, entry in entries.items() if not f"{path}.".startswith(f"{key}.")
    }
    parsed = dict(parse_yaml(value or "null", flag, key))
    added = {path: entry for path, entry in parsed.items() if entry.value is not None}
    section = key.partition(".")[0]
    if added and section in RECIPE_STEPS:
        changed.setdefault(section, Entry({}, CHANGE, flag))
    changed |= added

    # What the provenance states about a checkpoint or a text that the change replaced.
    if key in OF_CHECKPOINT and key != "tokenizer":
        changed.pop("provenance", None)
    provenance = changed.get("provenance")
    if key in ("train", "train.data") and provenance and isinstance(provenance.value, dict):
        provenance.value.pop("trained", None)
    return changed


def _key_errors(entries: Mapping[str, Entry], no_line: Entry) -> Iterator[tuple[int, str]]:
    for path, entry in entries.items():
        if path not in KEYS:
            section, _, name = path.rpartition(".")
            keys = [key for key in KEYS if key.rpartition(".")[0] == section]
            if not keys:
                keys = [key for key in KEYS if "." not in key]
            names = {key.rpartition(".")[2]: key for key in (*KEYS, *keys)}
            near = get_close_matches(name, names, 1)
            advice = f"use one of {', '.join(keys)}"
            if near:
                advice = f"did you mean {names[near[0]]}?"
            yield entry.error(f"unknown key {path}; {advice}")
        elif path in (*RECIPE_STEPS, "provenance") and not isinstance(entry.value, dict):
            yield entry.error(f"{path} must be a mapping")
    output = entries.get("output")
    if output is not None and not isinstance(output.value, str):
        yield output.error(f"output must be text, got {output.value!r:.100}")
    if "resize" in entries and "convert" in entries:
        message = "a recipe either resizes or converts; use one recipe for each"
        yield entries["convert"].error(message)
    if not any(step in entries for step in RECIPE_STEPS):
        yield no_line.error(f"no steps: add one or more of {', '.join(RECIPE_STEPS)}")


def parse_yaml(text: str, name: str, key: str = "") -> list[tuple[str, Entry]]:
    """Parse YAML: the value of `key`, or a mapping if there is none; return all entries by key.

    Raises:
        RecipeError: The YAML is invalid, or not a mapping.
    """
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"{len(text):,} characters, more than {MAX_CHARACTERS:,}")
        node = _NoAliasLoader(text).get_single_node()
        if key or isinstance(node, yaml.MappingNode):
            return list(_entries(node, key, name, CHANGE if key else 0))
        line = 0
        message = "expected a mapping of keys to values."
    except YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or error
        if isinstance(error, RecursionError):
            reason = "nested too deeply"
        line = 0 if mark is None or key else mark.line + 1
        message = f"invalid YAML: {one_line(reason)}."
    kind = RecipeChangeError if key else RecipeError
    raise kind(Entry(None, line, name).error(message)[1], KEYS_HINT)


def _entries(node: Any, path: str, name: str, line: int) -> Iterator[tuple[str, Entry]]:
    """Yield a value with its key, and the values in a section as ``section.key``."""
    if path not in ("", *RECIPE_STEPS) or not isinstance(node, yaml.MappingNode):
        yield path, Entry(_NoAliasLoader("").construct_object(node, deep=True), line, name)
        return
    if path:
        yield path, Entry({}, line, name)
    for key, value in node.value:
        text = key.value if isinstance(key, yaml.ScalarNode) else key.tag
        inner = str(text).replace("-", "_")
        if path:
            inner = f"{path}.{inner}"
        if line != CHANGE:
            line = key.start_mark.line + 1
        yield from _entries(value, inner, name, line)


def _settings(
    kind: Any,
    prefix: str,
    entries: Mapping[str, Entry],
    section: Entry,
    errors: list[tuple[int, str]],
) -> Any:
    given = dict[str, Entry]()
    for item in FIELDS[kind]:
        key = f"{prefix}{item.name}"
        if key in entries:
            given[item.name] = entries[key]
        elif item.default is MISSING:
            given[item.name] = section._replace(value=None)
    try:
        return kind(**{name: entry.value for name, entry in given.items()})
    except ResizeError as error:
        for wrong in (error, *error.others):
            entry = given.get(str(wrong.setting), section)
            message = str(wrong)
            if wrong.setting in given and entry.value is None:
                message = f"{prefix}{wrong.setting} is missing"
            errors.append(entry.error(message))
    return None
