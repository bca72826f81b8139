"""Read and write recipe files, and read the provenance of an output from its recipe."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple, get_args, get_origin

import numpy as np
import yaml
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import edit, load_object, read_text
from ctxextend.checkpoints.source import is_hub_id
from ctxextend.errors import (
    CheckpointError,
    CtxextendError,
    RecipeError,
    ResizeError,
    did_you_mean,
    one_line,
)
from ctxextend.recipe import (
    HUB_PREFIX,
    MAX_CONTEXT,
    RECIPE_FILE,
    TRAINABLE,
    CheckpointRef,
    Convert,
    Evaluate,
    Recipe,
    Resize,
    Train,
)
from ctxextend.tables.apply import learned_rows_after
from ctxextend.tables.method_facts import TRUNCATE
from ctxextend.tables.methods import METHODS

SECTIONS: Mapping[str, Any] = {
    "convert": Convert,
    "resize": Resize,
    "train": Train,
    "evaluate": Evaluate,
}
# Fields of `CheckpointRef` that are keys of `resize`, because they describe the table.
TENSOR_KEYS = ("tensor", "config_key", "reserved_rows")
TABLE_KEYS = (*TENSOR_KEYS, "trained_length")
# Keys that depend on the machine, and are not written into recipes.
MACHINE_KEYS = ("device", "threads", "fsdp")
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
# Suffixes of config keys that contain the path that something was loaded from.
CONFIG_PATHS = ("name_or_path", "tokenizer_file", "special_tokens_map_file")
TYPE_NAMES: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    int | str: "a length, such as 4096, 4k or 4x",
    tuple[str, ...]: "a string or a list of strings",
    tuple[int, ...]: "an integer or a list of them",
}
# Finds the setting that an error message is about.
MENTIONED = re.compile(r"(?:--|Unknown )([a-z][a-z-]*)")
FINGERPRINT = "source_fingerprint"  # of all weights; see `Weights.fingerprint`
SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_CHARACTERS = 200_000  # of an untrusted recipe, which could otherwise take minutes to parse
# Replace invalid or missing values, so that the remaining ones are checked too.
PLACEHOLDERS: dict[Any, Any] = {int: 8, int | str: 8, str: "-", tuple[str, ...]: ("-",)}
MAX_NESTING = 16  # depth of nested recipes
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
        path = f"resize.{setting.name}" if setting.name in TABLE_KEYS else setting.name
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
    types = [option for option in get_args(setting.type) if option is not type(None)]
    type_ = types[0] if len(types) == 1 else setting.type
    return Key(kind, setting.name, type_, is_required=setting.default is MISSING)


KEYS = _recipe_keys()


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
    line: int  # from 1; 0 if there is none
    name: str  # file, or flag

    def error(self, message: str) -> tuple[int, str]:
        """Return an error message with its location, and the line to sort by."""
        where = f"{self.name}, line {self.line}" if self.line else self.name
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
        is_name = not file.is_file() and str(path) in builtin
        text = (builtin[str(path)] if is_name else file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, ValueError):
            reason = "it is not UTF-8"
        hint = did_you_mean(str(path), builtin)
        if not hint:
            hint = "Pass a YAML file, or a name from `ctxextend recipes`."
        raise RecipeError(f"The recipe {path} cannot be read: {reason}.", hint) from None
    return parse_recipe(text, str(path), changes, None if is_name else file.parent)


def builtin_recipes() -> dict[str, Path]:
    """Return the recipes that ship with the package: file by name."""
    here = Path(__file__).resolve().parent
    folder = here / "recipes"  # in a wheel
    project = here.parent / "pyproject.toml"
    if not folder.is_dir() and project.is_file():
        is_checkout = 'name = "ctxextend"' in project.read_text("utf-8")
        if is_checkout:
            folder = here.parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


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
    for change in changes:
        if "=" in change:
            entries = _changed(entries, change)
        else:
            message = "expected key=value, such as train.steps=100"
            errors.append((0, f"--set {change}: {message}"))
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
        raise RecipeError("\n".join(message for _, message in sorted(set(errors))), KEYS_HINT)
    return RecipeFile(
        recipe=Recipe(ref, **steps, output=top_level.get("output")),
        provenance=top_level.get("provenance", {}),
        values=_nested_values(entries),
    )


def _read_entries(
    text: str, name: str, folder: Path | None
) -> tuple[dict[str, Entry], list[tuple[int, str]]]:
    """Return the entries of a recipe by path, and errors about keys that are given twice."""
    entries = dict[str, Entry]()
    errors = list[tuple[int, str]]()
    for path, entry in _parse_yaml(text, name):
        if path in entries:
            errors.append(entry.error(f"duplicate key {path}"))
        if folder is not None:
            key = path.rpartition(".")[2]
            moved = map_paths({key: entry.value}, partial(_read_path, folder))
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
    parsed = dict(_parse_yaml(value or "null", flag, key))
    added = {path: entry for path, entry in parsed.items() if entry.value is not None}
    section = key.partition(".")[0]
    if added and section in SECTIONS:
        changed.setdefault(section, Entry({}, 0, flag))
    changed |= added
    if key in KEYS and KEYS[key].kind is CheckpointRef and key != "tokenizer":
        changed.pop("provenance", None)  # it describes another checkpoint
    provenance = changed.get("provenance")
    if key in ("train", "train.data") and provenance and isinstance(provenance.value, dict):
        provenance.value.pop("trained", None)  # of another text
    return changed


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


def _parse_yaml(text: str, name: str, key: str = "") -> list[tuple[str, Entry]]:
    """Parse YAML: the value of `key`, or a mapping if there is none; return all entries by key."""
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"{len(text):,} characters, more than {MAX_CHARACTERS:,}")
        node = _NoAliasLoader(text).get_single_node()
        if key or isinstance(node, yaml.MappingNode):
            return list(_entries(node, key, name, 0))
        line = 0
        message = f"expected a mapping, got {_node_kind(node)}."
    except YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or error
        if isinstance(error, RecursionError):
            reason = "nested too deeply"
        line = 0 if mark is None or key else mark.line + 1
        message = f"invalid YAML: {one_line(reason)}."
    raise RecipeError(Entry(None, line, name).error(message)[1], KEYS_HINT)


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
    is_flag = name.startswith("--set ")
    for key, value in node.value:
        text = key.value if isinstance(key, yaml.ScalarNode) else key.tag
        inner = str(text).replace("-", "_")
        line = 0 if is_flag else key.start_mark.line + 1
        yield from _entries(value, f"{path}.{inner}" if path else inner, name, line)


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
    given = dict[str, Any]()
    errors_before = len(errors)
    paths = {path: key for path, key in KEYS.items() if key.kind is kind}
    for path, key in paths.items():
        if path in entries:
            try:
                given[key.name] = _converted(entries[path].value, key.type)
            except (TypeError, ValueError, OverflowError):
                errors.append(_type_error(path, entries[path], key))
        elif key.is_required:
            errors.append(section.error(f"{path} is missing"))
    # Replaced by a valid value, so that the others are checked too.
    for path, key in paths.items():
        is_invalid = path in entries and key.name not in given
        if key.name not in given and (key.is_required or (is_invalid and key.type is int)):
            given[key.name] = PLACEHOLDERS[key.type]
    try:
        settings = kind(**given)
    except ResizeError as error:
        for item in (error, *error.others):
            entry = _mentioned(item.message, paths, entries) or section
            errors.append(entry.error(str(item)))
    return None if len(errors) > errors_before else settings


def _type_error(path: str, entry: Entry, key: Key) -> tuple[int, str]:
    message = f"{path} must be {TYPE_NAMES[key.type]}"
    message += f", got {TYPE_NAMES.get(type(entry.value), 'another type')}"
    if key.type is str and not isinstance(entry.value, dict | list):
        message += ": put it in quotes"
    return entry.error(message)


def _mentioned(message: str, paths: Iterable[str], entries: Mapping[str, Entry]) -> Entry | None:
    """Return the entry that an error message is about, if it mentions one."""
    names = {flag.replace("-", "_") for flag in MENTIONED.findall(message)}
    for path in paths:
        if path in entries and path.rpartition(".")[2] in names:
            return entries[path]
    return None


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


def map_paths(values: Mapping[str, Any], change: Callable[[str, bool], str]) -> dict[str, Any]:
    """Return a recipe's values with `change(path, may_be_model)` applied to each path."""

    def changed(key: str, value: Any) -> Any:
        if key in PATH_KEYS and isinstance(value, list):
            return [changed(key, item) for item in value]
        if key in PATH_KEYS and isinstance(value, str):
            return change(value, PATH_KEYS[key])
        is_nested = key in (*SECTIONS, "provenance", "source_recipe") and isinstance(value, Mapping)
        return map_paths(value, change) if is_nested else value

    return {key: changed(key, value) for key, value in values.items()}


def _read_path(folder: Path, text: str, is_model: bool) -> str:
    """Convert a path relative to a recipe's folder to one relative to the current folder."""
    path = os.path.normpath(Path(os.path.realpath(folder), text))
    is_relative = text and not text.startswith("~") and not Path(text).is_absolute()
    if not is_relative or _is_name(text, is_model, path):
        return os.path.expanduser(text)  # noqa: PTH111 - never raises
    relative = _relative(path, os.curdir)
    if relative.startswith(os.pardir):
        return path
    if is_model:
        return relative
    return relative.removeprefix("./")


def _written_path(folder: Path, text: str, is_model: bool) -> str:
    """Convert a path relative to the current folder to one relative to a recipe's folder."""
    path = os.path.expanduser(text)  # noqa: PTH111 - never raises
    if _is_name(text, is_model, path):
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


def without_folders(text: str) -> str:
    """Return a recipe's YAML with every local path reduced to its last component."""

    def shortened(path: str, is_model: bool) -> str:
        return path if _is_name(path, is_model) else f"./{Path(path).name}"

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


def _is_name(text: str, is_model: bool, path: str = "") -> bool:
    """Whether a text names something that is not a local file.

    It is a Hub dataset, or, if `is_model`, a Hub id or bundled checkpoint, and `path` does not
    exist.
    """
    if not is_model:
        return text.startswith(HUB_PREFIX)
    return is_hub_id(text) and not os.path.lexists(path)


def yaml_text(values: Mapping[str, Any], folder: Path | None = None) -> str:
    """Return a recipe's values as YAML, with paths relative to `folder` if it is given."""
    if folder is not None:
        values = map_paths(values, partial(_written_path, folder))
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


def any_layer(name: str) -> str:
    """Return a tensor name with ``*`` for the numbers of its layers, as recipes list them."""
    return re.sub(r"\b[0-9]+\b", "*", name)


class Provenance(NamedTuple):
    """How an output was created, according to its recipe."""

    base: CheckpointRef  # the checkpoint that was resized or trained
    settings: Resize  # how it was resized; after training only, its length
    convert: Convert | None = None  # how it was converted, if it was
    trainable: str | None = None  # what was trained: one of `TRAINABLE`, or None
    adapted: frozenset[str] = frozenset()  # tensors that adapters changed, with ``*`` for layers
    method: str | None = None  # the (first) method that created rows; None if it is not known
    # The name of a method that is not registered; `settings` has another one, and rows cannot be
    # reproduced.
    unregistered: str | None = None
    methods: Mapping[str, str] = {}  # per table, if they differ
    # Per table, before and after, if recorded.
    rows: Mapping[str, tuple[int, int]] = {}
    hashes: Mapping[str, str] = {}  # see `source_hashes`
    written: Mapping[str, str] = {}  # SHA-256 of each written table
    values: Mapping[str, Any] = {}  # all values of the recipe
    before: "Provenance | None" = None  # the provenance of `base`, which is recorded by training

    @property
    def chain(self) -> "tuple[Provenance, ...]":
        """This provenance and earlier ones, newest first.

        Each states everything that was trained since then.
        """
        if self.before is None:
            return (self,)
        before = self.before._replace(
            trainable=_trained_by_both(self.trainable, self.before.trainable),
            adapted=self.adapted | self.before.adapted,
        )
        return (self, *before.chain)


def _trained_by_both(*parts: str | None) -> str | None:
    """Return what two trainings changed together, as one of `TRAINABLE`, or None."""
    trained = {part for part in parts if part}
    if len(trained) > 1 and "all-but-positions" in trained:
        return "all"
    return max(trained, key=[*TRAINABLE].index, default=None)


def read_provenance(checkpoint: Checkpoint) -> Provenance | None:
    """Read the recipe in a checkpoint's folder; None if it is missing or cannot be read."""
    with suppress(CheckpointError, RecipeError):
        if RECIPE_FILE in checkpoint.copied:
            return parse_provenance(checkpoint.text(RECIPE_FILE), RECIPE_FILE, checkpoint.root)
    return None


def trainings(provenance: Provenance | None) -> list[Mapping[str, Any]]:
    """Return which text each training run used, as far as a checkpoint's recipe records it.

    See `trained_texts` for their form.
    """
    runs = list[Mapping[str, Any]]()
    for step in provenance.chain if provenance else ():
        facts = step.values.get("provenance") or {}
        train = step.values.get("train") or {}
        trained = facts.get("trained")
        if isinstance(trained, Mapping):
            text = {name: trained[name] for name in ("data", "held_out") if name in trained}
            runs.append({"text_field": train.get("text_field", "text"), **text})
        earlier = facts.get("source_trainings")
        if isinstance(earlier, list):
            runs += earlier
    return runs


class BaseCheckpoint(NamedTuple):
    """The base checkpoint of a resized or trained one."""

    ref: CheckpointRef
    # Expected hashes of its weights; see `source_hashes`.
    hashes: Mapping[str, str] = {}
    # From the newest checkpoint to the base; empty if the user named the base.
    chain: tuple[Provenance, ...] = ()


def find_base(
    provenance: Provenance | None, named: str | None, tokenizer: str | None = None
) -> BaseCheckpoint | None:
    """Return the base that the user named, or the oldest in a checkpoint's recipe.

    Args:
        provenance: What the checkpoint's recipe records, if anything.
        named: The base that the user named.
        tokenizer: The tokenizer that the user named; it replaces that of the base.
    """
    if named is not None:
        # As the resize read the base.
        read = provenance.chain[-1].base if provenance else CheckpointRef(named)
        ref = CheckpointRef(
            source=named,
            tokenizer=tokenizer,
            model_type=read.model_type,
            trained_length=read.trained_length,
        )
        return BaseCheckpoint(ref)
    if provenance is None:
        return None
    first = provenance.chain[-1]
    tokenizers = (tokenizer, *(step.base.tokenizer for step in provenance.chain))
    ref = replace(first.base, tokenizer=next(filter(None, tokenizers), None))
    return BaseCheckpoint(ref, first.hashes, provenance.chain)


def parse_provenance(
    text: str, name: str, folder: Path | None = None, depth: int = 1
) -> Provenance:
    """Parse the recipe of an output, which is untrusted.

    Args:
        text: The recipe.
        name: What error messages call it.
        folder: See `parse_recipe`.
        depth: How many recipes contain each other, with this one.

    Raises:
        RecipeError: It is not a valid recipe of an output.
    """
    try:
        if depth > MAX_NESTING:
            raise RecipeError(f"more than {MAX_NESTING} nested recipes.")
        try:
            file = parse_recipe(text, name, folder=folder)
            unregistered = None
        except RecipeError:  # the method may be unregistered
            file, unregistered = _parse_unregistered(text, name, folder)
        return _provenance_of(file, unregistered, name, depth)
    except (*YAML_ERRORS, CtxextendError) as error:
        if depth > 1:
            raise
        message = f"{name} is not a valid recipe of an output: {one_line(error)}"
        raise RecipeError(message, "Create the output again, or remove that file.") from None


def _parse_unregistered(text: str, name: str, folder: Path | None) -> tuple[RecipeFile, str]:
    """Parse a recipe whose method is not registered, and return this method.

    The recipe gets a method that keeps no learned rows.
    """
    method = str(dict(_parse_yaml(text, name))["resize.method"].value)
    file = parse_recipe(text, name, ["resize.method=linear"], folder=folder)
    file.values["resize"]["method"] = method
    return file, method


def _provenance_of(file: RecipeFile, unregistered: str | None, name: str, depth: int) -> Provenance:
    recipe, facts, _ = file
    settings = recipe.resize
    if settings is None:  # training keeps the length
        settings = Resize(recipe.convert.to if recipe.convert else facts["max_len"])
    methods = table_methods(file)
    trainable, adapted = _trained_parts(recipe, facts)
    before = facts.get("source_recipe")
    return Provenance(
        base=recipe.checkpoint,
        settings=settings,
        convert=recipe.convert,
        trainable=trainable,
        adapted=adapted,
        method=_first_method(facts, methods, unregistered),
        unregistered=unregistered,
        methods=methods,
        rows=_recorded_rows(facts),
        hashes=source_hashes(facts),
        written={
            table: str(recorded["sha256_after"])
            for table, recorded in _tables(facts).items()
            if "sha256_after" in recorded
        },
        values=file.values,
        before=None
        if before is None
        else parse_provenance(yaml_text(before), name, depth=depth + 1),
    )


def _trained_parts(recipe: Recipe, facts: Mapping[str, Any]) -> tuple[str | None, frozenset[str]]:
    """Return what was trained, as one of `TRAINABLE`, and the tensors that adapters changed."""
    if recipe.train is None:
        return None, frozenset()
    adapted = frozenset[str]()
    if recipe.train.lora:
        adapted = frozenset(map(str, facts["trained"]["adapted"]))
    trained = facts.get("trained") or {}
    if trained.get("saved_step") == 0:  # no step was better than the untrained weights
        return None, adapted
    trainable = recipe.train.trainable or "positions"
    if adapted and trainable == "all-but-positions":
        return None, adapted
    return trainable, adapted


def _first_method(
    facts: Mapping[str, Any], methods: Mapping[str, str], unregistered: str | None
) -> str | None:
    """Return the name of the (first) method that created rows; None if it is not known."""
    for text in (str(facts.get("method")), *methods.values()):
        name = text.partition(":")[0]
        if unregistered or name in METHODS or name == TRUNCATE:
            return name
    return None


def _recorded_rows(facts: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the numbers of rows before and after, by table, if they are recorded."""
    rows = dict[str, tuple[int, int]]()
    for name, table in _tables(facts).items():
        before: Any = table.get("rows_before")
        after: Any = table.get("rows_after")
        if _is_count(before) and _is_count(after):
            rows[name] = (before, after)
    return rows


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_CONTEXT


def _tables(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    tables = facts["tables"] if isinstance(facts.get("tables"), list) else []
    return {
        item["name"]: item
        for item in tables
        if isinstance(item, Mapping) and isinstance(item.get("name"), str)
    }


def source_hashes(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the recorded hashes of the source: SHA-256 by table, then its `FINGERPRINT`."""
    hashes = {name: str(table.get("sha256_before")) for name, table in _tables(facts).items()}
    hashes[FINGERPRINT] = str(facts.get(FINGERPRINT))
    return {name: value for name, value in hashes.items() if SHA256.fullmatch(value)}


def table_methods(file: RecipeFile) -> dict[str, str]:
    """Return the recorded method of each table if they differ.

    It is empty if the recipe's method was changed since.
    """
    resize = file.recipe.resize
    facts = file.provenance
    if resize is None or resize.method != facts.get("method"):
        return {}
    methods = {
        name: str(table["method"]) for name, table in _tables(facts).items() if "method" in table
    }
    return {name: replace(resize, method=method).choice.text for name, method in methods.items()}


def learned_before(
    chain: Sequence[Provenance], table: str, reserved: int, maximum: int
) -> NDArray[np.bool_] | None:
    """Return a mask of the rows that were learned before a chain of resizes, shape (positions,).

    Args:
        chain: The provenances, newest first.
        table: The name of the table.
        reserved: Its number of reserved rows.
        maximum: Its number of rows now.

    Returns:
        The mask; None if the chain does not record it.
    """
    oldest_first = chain[::-1]
    rows = [resize.rows.get(table, (0, 0)) for resize in oldest_first]
    is_recorded = all(reserved < min(counts) and max(counts) <= maximum for counts in rows)
    if not rows or not is_recorded or any(resize.unregistered for resize in chain):
        return None
    steps = []
    with suppress(ResizeError):  # an impossible resize
        for (_, after), resize in zip(rows, oldest_first, strict=True):
            method = resize.methods.get(table, resize.settings.method)
            choice = replace(resize.settings, method=method).choice
            steps.append((after - reserved, choice))
        first, _ = rows[0]
        return learned_rows_after(first - reserved, steps)
    return None
