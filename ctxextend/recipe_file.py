"""Read recipe files: parse the YAML, apply changes, and check every key and value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from functools import partial, reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

import yaml

from ctxextend.checkpoints.filenames import GGUF_SUFFIX
from ctxextend.errors import RecipeChangeError, RecipeError, ResizeError, did_you_mean, one_line
from ctxextend.recipe import SECTIONS, TABLE_KEYS, CheckpointRef, Recipe, accepted_type
from ctxextend.recipe_names import builtin_recipes
from ctxextend.recipe_paths import map_paths, read_path

TYPE_NAMES: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    int | str: "a length, such as 4096, 4k or 4x",
    float | str: "auto or a number",
    tuple[str, ...]: "a string or a list of strings",
    tuple[int | str, ...]: "a length, such as 4096 or 4k, or a list of them",
}
CHANGE = -1  # in place of the line of a value that a change sets
MAX_CHARACTERS = 200_000  # of an untrusted recipe, which could otherwise take minutes to parse
# Replace invalid or missing values, so that the remaining ones are checked too.
PLACEHOLDERS: dict[Any, Any] = {int: 8, float: 1.0, int | str: 8, str: "-", tuple[str, ...]: ("-",)}
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


class Key(NamedTuple):
    """A key of a recipe file."""

    kind: Any  # settings class; dict for keys of the file itself
    name: str  # field of that class
    type: Any  # type of the value
    is_required: bool = False


def _recipe_keys() -> dict[str, Key]:
    """Return all keys of a recipe file, such as ``train.data``, by path."""
    keys = {}
    for setting in fields(CheckpointRef):
        path = setting.name
        if setting.name in TABLE_KEYS:
            path = f"resize.{setting.name}"
        keys[path] = _key_of(CheckpointRef, setting)
    for section, kind in SECTIONS.items():
        for setting in fields(kind):
            keys[f"{section}.{setting.name}"] = _key_of(kind, setting)
    keys["output"] = Key(dict, "output", str)
    for name in (*SECTIONS, "provenance"):
        keys[name] = Key(dict, name, dict)
    return keys


def _key_of(kind: Any, setting: Field[Any]) -> Key:
    """Return the key of a field; ``str | None`` is a string that need not be given."""
    type_: Any = accepted_type(setting)
    if isinstance(type_, UnionType):
        options = [option for option in get_args(type_) if option is not type(None)]
        type_ = reduce(or_, options)
    return Key(kind, setting.name, type_, is_required=setting.default is MISSING)


KEYS = _recipe_keys()


class RecipeFile(NamedTuple):
    """The contents of a recipe file."""

    recipe: Recipe
    provenance: Mapping[str, Any]  # how an output was created; empty in a recipe that a user wrote
    values: Mapping[str, Any]  # all values by key
    # What the file states, before any change of a value; None without a length to resize to.
    stated: "StatedResize | None" = None


class StatedResize(NamedTuple):
    """The length of a resize, and the method with the settings that were chosen for it."""

    to: object
    method: object


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
        text = _read_text(file)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, ValueError):
            reason = "it is not UTF-8"
        hint = did_you_mean(str(path), builtin)
        if not hint:
            hint = "Pass a YAML file, or a name from `ctxextend recipes`."
        raise RecipeError(f"The recipe {path} cannot be read: {reason}.", hint) from None
    return parse_recipe(text, str(path), changes, folder)


def _read_text(file: Path) -> str:
    """Return the text of a recipe file, or the recipe in a resized GGUF file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not UTF-8.
        CheckpointError: The GGUF file is malformed.
        RecipeError: It contains no recipe.
    """
    if file.suffix.lower() != GGUF_SUFFIX or not file.is_file():
        return file.read_text(encoding="utf-8-sig")
    # Here, since reading it takes numpy.
    from ctxextend.checkpoints.gguf_checkpoint import RECIPE_KEY
    from ctxextend.checkpoints.gguf_file import open_gguf

    text = open_gguf(file).metadata.values.get(RECIPE_KEY)
    if isinstance(text, str):
        return text
    raise RecipeError(
        f"{file} contains no recipe: ctxextend did not write it.",
        "Pass a YAML file, or a GGUF file that `ctxextend resize` wrote.",
    )


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
    entries, errors = _read_entries(text, name, folder)
    stated = _stated_resize(entries)
    for change in changes:
        if "=" in change:
            entries = _changed(entries, change)
        else:
            message = "expected key=value, such as train.steps=100"
            errors.append((CHANGE, f"--set {change}: {message}"))
    entries = {path: entry for path, entry in entries.items() if entry.value is not None}
    no_line = Entry(None, 0, name)
    errors += _key_errors(entries, no_line)
    top_level = _settings(dict, entries, no_line, errors) or {}
    ref = _settings(CheckpointRef, entries, no_line, errors)
    steps = {}
    for section, kind in SECTIONS.items():
        if section in entries and isinstance(entries[section].value, dict):
            steps[section] = _settings(kind, entries, entries[section], errors)
    if errors:
        kind = RecipeError
        if all(line == CHANGE for line, _ in errors):
            kind = RecipeChangeError
        raise kind("\n".join(message for _, message in sorted(set(errors))), KEYS_HINT)
    return RecipeFile(
        recipe=Recipe(ref, **steps, output=top_level.get("output")),
        provenance=top_level.get("provenance", {}),
        values=_nested_values(entries),
        stated=stated,
    )


def _stated_resize(entries: Mapping[str, Entry]) -> StatedResize | None:
    """Return what a recipe states about its resize; None without a length."""
    if "resize.to" not in entries:
        return None
    method = entries.get("resize.method")
    return StatedResize(
        to=entries["resize.to"].value,
        method=method.value if method is not None else None,
    )


def _read_entries(
    text: str, name: str, folder: Path | None
) -> tuple[dict[str, Entry], list[tuple[int, str]]]:
    """Return the entries of a recipe by path, and errors about keys that are given twice."""
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
    return entries, errors


def _changed(entries: Mapping[str, Entry], change: str) -> dict[str, Entry]:
    """Return the entries with one change, such as ``train.steps=100``."""
    typed, _, value = change.partition("=")
    key = typed.strip().replace("-", "_")
    flag = f"--set {typed}"
    changed = {
        path: entry for path, entry in entries.items() if not f"{path}.".startswith(f"{key}.")
    }
    parsed = dict(parse_yaml(value or "null", flag, key))
    added = {path: entry for path, entry in parsed.items() if entry.value is not None}
    section = key.partition(".")[0]
    if added and section in SECTIONS:
        changed.setdefault(section, Entry({}, CHANGE, flag))
    changed |= added
    _drop_wrong_provenance(changed, key)
    return changed


def _drop_wrong_provenance(entries: dict[str, Entry], key: str) -> None:
    """Remove what the provenance states about a checkpoint or a text that a change replaced."""
    if key in KEYS and KEYS[key].kind is CheckpointRef and key != "tokenizer":
        entries.pop("provenance", None)
    provenance = entries.get("provenance")
    if key in ("train", "train.data") and provenance and isinstance(provenance.value, dict):
        provenance.value.pop("trained", None)


def _key_errors(entries: Mapping[str, Entry], no_line: Entry) -> Iterator[tuple[int, str]]:
    """Yield errors about unknown keys, and about steps that are missing or exclude each other."""
    for path, entry in entries.items():
        if path not in KEYS:
            yield entry.error(_unknown(path))
    if "resize" in entries and "convert" in entries:
        message = "a recipe either resizes or converts; use one recipe for each"
        yield entries["convert"].error(message)
    if not any(section in entries for section in SECTIONS):
        yield no_line.error(f"no steps: add one or more of {', '.join(SECTIONS)}")


def _nested_values(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """Return the values of a recipe by key, those of a section by section and key."""
    values = dict[str, Any]()
    for path, entry in entries.items():
        section, _, key = path.rpartition(".")
        if key in SECTIONS:
            values[key] = {}
        elif section:
            values[section][key] = entry.value
        else:
            values[key] = entry.value
    return values


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
        message = f"expected a mapping, got {_node_kind(node)}."
    except YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or error
        if isinstance(error, RecursionError):
            reason = "nested too deeply"
        line = 0 if mark is None or key else mark.line + 1
        message = f"invalid YAML: {one_line(reason)}."
    kind = RecipeChangeError if key else RecipeError
    raise kind(Entry(None, line, name).error(message)[1], KEYS_HINT)


def _node_kind(node: Any) -> str:
    if node is None:
        return "nothing"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "a single value"


def _entries(node: Any, path: str, name: str, line: int) -> Iterator[tuple[str, Entry]]:
    """Yield a value with its key, and the values in a section as ``section.key``."""
    if path not in ("", *SECTIONS) or not isinstance(node, yaml.MappingNode):
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
    kind: Any, entries: Mapping[str, Entry], section: Entry, errors: list[tuple[int, str]]
) -> Any:
    """Create a settings object from its entries.

    Args:
        kind: The dataclass, or dict for the keys of the file itself.
        entries: All entries by path.
        section: Where errors are reported that no entry is about.
        errors: Errors are appended here.

    Returns:
        The settings; None if an entry is invalid.
    """
    errors_before = len(errors)
    keys = {path: key for path, key in KEYS.items() if key.kind is kind}
    given = _field_values(keys, entries, section, errors)
    if len(errors) > errors_before:
        given |= _placeholders(keys, entries, given)
    places: dict[str | None, Entry] = {
        key.name: entries[path] for path, key in keys.items() if path in entries
    }
    try:
        settings = kind(**given)
    except ResizeError as error:
        for item in (error, *error.others):
            errors.append(places.get(item.setting, section).error(str(item)))
    if len(errors) > errors_before:
        return None
    return settings


def _field_values(
    keys: Mapping[str, Key],
    entries: Mapping[str, Entry],
    section: Entry,
    errors: list[tuple[int, str]],
) -> dict[str, Any]:
    """Return the values of fields by name, and append an error for each that is not valid."""
    values = dict[str, Any]()
    for path, key in keys.items():
        if path in entries:
            try:
                values[key.name] = _converted(entries[path].value, key.type)
            except (TypeError, ValueError, OverflowError):
                errors.append(_type_error(path, entries[path], key))
        elif key.is_required:
            errors.append(section.error(f"{path} is missing"))
    return values


def _placeholders(
    keys: Mapping[str, Key], entries: Mapping[str, Entry], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return valid values for fields that lack one, so that the others are checked too.

    Other fields than numbers have a default if they are not required.
    """
    placeholders = dict[str, Any]()
    for path, key in keys.items():
        if key.name in values:
            continue
        if key.is_required or (path in entries and key.type in (int, float, int | str)):
            placeholders[key.name] = PLACEHOLDERS[key.type]
    return placeholders


def _type_error(path: str, entry: Entry, key: Key) -> tuple[int, str]:
    expected = TYPE_NAMES[key.type]
    if key.type == int | str and key.name != "to":  # only a new length may be a factor
        expected = "a length, such as 4096 or 4k"
    message = f"{path} must be {expected}"
    message += f", got {TYPE_NAMES.get(type(entry.value), 'another type')}"
    if key.type is str and not isinstance(entry.value, dict | list):
        message += ": put it in quotes"
    return entry.error(message)


def _converted(value: Any, kind: Any) -> Any:
    """Return a value as the type of a field.

    Raises:
        TypeError, ValueError, OverflowError: It has another type.
    """
    if get_origin(kind) is tuple:
        items = value if isinstance(value, list) else [value]
        item_type = get_args(kind)[0]
        return tuple(_converted(item, item_type) for item in items)
    if kind is float and type(value) in (int, float, str):
        return float(value)  # PyYAML reads 1e-4 as a string
    if kind == float | str and type(value) is int:
        return float(value)
    if type(value) not in (get_args(kind) or (kind,)):
        raise TypeError
    return value


def _unknown(path: str) -> str:
    """Return the error message about an unknown key."""
    section, _, name = path.rpartition(".")
    keys = [key for key in KEYS if key.rpartition(".")[0] == section]
    if not keys:
        keys = [key for key in KEYS if "." not in key]
    names = {key.rpartition(".")[2]: key for key in (*KEYS, *keys)}
    near = get_close_matches(name, names, 1)
    if near:
        return f"unknown key {path}; did you mean {names[near[0]]}?"
    return f"unknown key {path}; use one of {', '.join(keys)}"
