"""Read recipe files, reporting all errors at once, write them, and read the provenance of an
output.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
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
MACHINE_KEYS = (
    "device",
    "threads",
    "fsdp",
)  # depend on the machine, and are not written into recipes
# Keys of paths, and whether each may also be the name of a bundled checkpoint or a Hub id.
PATH_KEYS = {"source": True, "tokenizer": True, "base": True}
PATH_KEYS |= dict.fromkeys(("data", "eval_data", "corpus", "queries", "qrels", "output"), False)
# Suffixes of config keys that contain the path that something was loaded from.
CONFIG_PATHS = ("name_or_path", "tokenizer_file", "special_tokens_map_file")
TYPE_NAMES: dict[Any, str] = {
    **{str: "a string", int: "an integer", float: "a number", bool: "true or false"},
    **{dict: "a mapping", list: "a list", int | str: "a length, such as 4096, 4k or 4x"},
    **{
        tuple[str, ...]: "a string or a list of strings",
        tuple[int, ...]: "an integer or a list of them",
    },
}
MENTIONED = re.compile(
    r"(?:--|Unknown )([a-z][a-z-]*)"
)  # finds the setting that an error message is about
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
HINT = (
    "Keys are the settings of resize, convert, train and evaluate with underscores, such as "
    "resize.keep_first or "
    "train.data."
)


class Key(NamedTuple):
    """A key of a recipe file."""

    kind: Any  # settings class; dict for keys of the file itself
    name: str  # field of that class
    type: Any  # type of the value
    is_required: bool = False


def _keys() -> Iterator[tuple[str, Key]]:
    for kind, section in (
        (CheckpointRef, ""),
        *((kind, section) for section, kind in SECTIONS.items()),
    ):
        for setting in fields(kind):
            types = [option for option in get_args(setting.type) if option is not type(None)]
            parent = section or ("resize" if setting.name in TABLE_KEYS else "")
            path = f"{parent}.{setting.name}" if parent else setting.name
            is_required = setting.default is MISSING
            yield (
                path,
                Key(kind, setting.name, types[0] if len(types) == 1 else setting.type, is_required),
            )
    yield "output", Key(dict, "output", str)
    yield from ((name, Key(dict, name, dict)) for name in (*SECTIONS, "provenance"))


KEYS = dict(_keys())


class RecipeFile(NamedTuple):
    """The contents of a recipe file."""

    recipe: Recipe
    provenance: Mapping[str, Any]  # how an output was created; empty in a recipe that a user wrote
    values: Mapping[str, Any]  # all values by key


class _NoAliasLoader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases, with which a short file can expand to fill the
    memory.
    """

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
        return (
            self.line,
            f"{self.name}, line {self.line}: {message}" if self.line else f"{self.name}: {message}",
        )


def read_recipe(path: str | Path, changes: Sequence[str] = ()) -> RecipeFile:
    """Read a recipe file, with paths relative to its folder, or a built-in recipe by name; see
    `parse_recipe`.
    """
    builtin = builtin_recipes()
    try:
        file = Path(path).expanduser()
        is_name = not file.is_file() and str(path) in builtin
        text = (builtin[str(path)] if is_name else file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError, RuntimeError) as error:
        reason = (
            "it is not UTF-8"
            if isinstance(error, ValueError)
            else getattr(error, "strerror", None) or error
        )
        hint = (
            did_you_mean(str(path), builtin)
            or "Pass a YAML file, or a name from `ctxextend recipes`."
        )
        raise RecipeError(f"The recipe {path} cannot be read: {reason}.", hint) from None
    return parse_recipe(text, str(path), changes, None if is_name else file.parent)


def builtin_recipes() -> dict[str, Path]:
    """Return the recipes that ship with the package: file by name."""
    here = Path(__file__).resolve().parent
    folder = here / "recipes"  # in a wheel; next to the package in a checkout
    project = here.parent / "pyproject.toml"
    if (
        not folder.is_dir()
        and project.is_file()
        and 'name = "ctxextend"' in project.read_text("utf-8")
    ):
        folder = here.parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def parse_recipe(
    text: str, name: str, changes: Sequence[str] = (), folder: Path | None = None
) -> RecipeFile:
    """Parse a recipe and apply changes such as ``train.steps=100``; error messages call it `name`.

    Paths in the YAML are relative to `folder`, if it is given; paths in changes to the current
    folder.
    """
    errors, entries, no_line = list[tuple[int, str]](), dict[str, Entry](), Entry(None, 0, name)
    for path, entry in _parse_yaml(text, name):
        if path in entries:
            errors.append(entry.error(f"duplicate key {path}"))
        if folder is not None:
            key = path.rpartition(".")[2]
            entry = entry._replace(
                value=map_paths({key: entry.value}, partial(_read_path, folder))[key]
            )
        entries[path] = entry
    for change in changes:
        key_text, equals, value = change.partition("=")
        key = key_text.strip().replace("-", "_")
        flag = f"--set {key_text}"
        if not equals:
            errors.append((0, f"{flag}: expected key=value, such as train.steps=100"))
            continue
        entries = {
            path: entry for path, entry in entries.items() if not f"{path}.".startswith(f"{key}.")
        }
        parsed = [
            (path, entry)
            for path, entry in _parse_yaml(value or "null", flag, key)
            if entry.value is not None
        ]
        if parsed and (section := key.partition(".")[0]) in SECTIONS:
            entries.setdefault(section, Entry({}, 0, flag))
        entries |= parsed
        if key in KEYS and KEYS[key].kind is CheckpointRef and key != "tokenizer":
            entries.pop("provenance", None)  # it describes another checkpoint
        if key in ("train", "train.data") and isinstance(
            facts := entries.get("provenance", no_line).value, dict
        ):
            facts.pop("trained", None)  # of another text
    entries = {path: entry for path, entry in entries.items() if entry.value is not None}
    errors += [entry.error(_unknown(path)) for path, entry in entries.items() if path not in KEYS]
    if "resize" in entries and "convert" in entries:
        errors.append(
            entries["convert"].error("a recipe either resizes or converts; use one recipe for each")
        )
    if not any(section in entries for section in SECTIONS):
        errors.append(no_line.error(f"no steps: add one or more of {', '.join(SECTIONS)}"))
    top_level = _settings(dict, entries, no_line, errors) or {}
    ref = _settings(CheckpointRef, entries, no_line, errors)
    sections = {
        key: entries[key]
        for key in SECTIONS
        if key in entries and isinstance(entries[key].value, dict)
    }
    steps = {
        key: _settings(SECTIONS[key], entries, entry, errors) for key, entry in sections.items()
    }
    if errors:
        raise RecipeError("\n".join(message for _, message in sorted(set(errors))), HINT)
    values = dict[str, Any]()
    for path, entry in entries.items():
        section, _, key = path.rpartition(".")
        (values[section] if section else values)[key] = {} if key in SECTIONS else entry.value
    return RecipeFile(
        Recipe(ref, **steps, output=top_level.get("output")),
        top_level.get("provenance", {}),
        values,
    )


def _parse_yaml(text: str, name: str, key: str = "") -> list[tuple[str, Entry]]:
    """Parse YAML: the value of `key`, or a mapping if there is none; return all entries by key."""
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"{len(text):,} characters, more than {MAX_CHARACTERS:,}")
        node = _NoAliasLoader(text).get_single_node()
        if key or isinstance(node, yaml.MappingNode):
            return list(_entries(node, key, name, 0))
        kind = (
            "a list"
            if isinstance(node, yaml.SequenceNode)
            else "nothing"
            if node is None
            else "a single value"
        )
        line = 0
        message = f"expected a mapping, got {kind}."
    except YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        reason = (
            "nested too deeply"
            if isinstance(error, RecursionError)
            else getattr(error, "problem", None) or error
        )
        line = 0 if mark is None or key else mark.line + 1
        message = f"invalid YAML: {one_line(reason)}."
    raise RecipeError(Entry(None, line, name).error(message)[1], HINT)


def _entries(node: Any, path: str, name: str, line: int) -> Iterator[tuple[str, Entry]]:
    """Yield a value with its key, and the values in a section as ``section.key``."""
    if path not in ("", *SECTIONS) or not isinstance(node, yaml.MappingNode):
        yield path, Entry(_NoAliasLoader("").construct_object(node, deep=True), line, name)
        return
    if path:
        yield path, Entry({}, line, name)
    for key, value in node.value:
        inner = str(key.value if isinstance(key, yaml.ScalarNode) else key.tag).replace("-", "_")
        line = 0 if name.startswith("--set ") else key.start_mark.line + 1
        yield from _entries(value, f"{path}.{inner}" if path else inner, name, line)


def _settings(
    kind: Any, entries: Mapping[str, Entry], section: Entry, errors: list[tuple[int, str]]
) -> Any:
    """Create a settings object from its entries; if any are invalid, append to `errors` and return
    None.
    """
    given, errors_before = dict[str, Any](), len(errors)
    paths = {path: key for path, key in KEYS.items() if key.kind is kind}
    for path, key in paths.items():
        if path in entries:
            value = entries[path].value
            try:
                given[key.name] = _converted(value, key.type)
            except (TypeError, ValueError, OverflowError):
                hint = (
                    ": put it in quotes"
                    if key.type is str and not isinstance(value, dict | list)
                    else ""
                )
                found_type = TYPE_NAMES.get(type(value), "another type")
                errors.append(
                    entries[path].error(
                        f"{path} must be {TYPE_NAMES[key.type]}, got {found_type}{hint}"
                    )
                )
                if key.type is int:
                    given[key.name] = PLACEHOLDERS[int]
        elif key.is_required:
            errors.append(section.error(f"{path} is missing"))
    try:
        settings = kind(
            **{key.name: PLACEHOLDERS[key.type] for key in paths.values() if key.is_required}
            | given
        )
    except ResizeError as error:
        for item in (error, *error.others):
            names = {flag.replace("-", "_") for flag in MENTIONED.findall(item.message)}
            mentioned = (
                entries[path]
                for path in paths
                if path in entries and path.rpartition(".")[2] in names
            )
            errors.append(next(mentioned, section).error(str(item)))
    return None if len(errors) > errors_before else settings


def _converted(value: Any, kind: Any) -> Any:
    """Return a value as the type of a field; raise TypeError or ValueError if it has another
    type.
    """
    if get_origin(kind) is tuple:
        return tuple(
            _converted(item, get_args(kind)[0])
            for item in (value if isinstance(value, list) else [value])
        )
    if kind is float and type(value) in (int, float, str):
        return float(value)  # PyYAML reads 1e-4 as a string
    if type(value) not in (get_args(kind) or (kind,)):
        raise TypeError
    return value


def _unknown(path: str) -> str:
    section, _, name = path.rpartition(".")
    keys = [key for key in KEYS if key.rpartition(".")[0] == section] or [
        key for key in KEYS if "." not in key
    ]
    names = {key.rpartition(".")[2]: key for key in (*KEYS, *keys)}
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {names[near[0]]}?" if near else f"use one of {', '.join(keys)}"
    return f"unknown key {path}; {hint}"


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
    if (
        not text
        or _is_name(text, is_model, path)
        or text.startswith("~")
        or Path(text).is_absolute()
    ):
        return os.path.expanduser(text)  # noqa: PTH111 - never raises
    relative = _relative(path, os.curdir)
    return (
        path
        if relative.startswith(os.pardir)
        else relative
        if is_model
        else relative.removeprefix("./")
    )


def _written_path(folder: Path, text: str, is_model: bool) -> str:
    """Convert a path relative to the current folder to one relative to a recipe's folder."""
    path = os.path.expanduser(text)  # noqa: PTH111 - never raises
    if _is_name(text, is_model, path):
        return text
    above, name = os.path.split(path)
    return _relative(os.path.join(os.path.realpath(above), name), os.path.realpath(folder))  # noqa: PTH118


def _relative(path: str, folder: str) -> str:
    """Return a path relative to a folder, with ``/``; the full path if it is on another Windows
    drive.
    """
    try:
        relative = os.path.relpath(path, folder).replace(os.sep, "/")
    except ValueError:
        return path.replace(os.sep, "/")
    return relative if relative.startswith(os.pardir) else f"./{relative}"


def without_folders(text: str) -> str:
    """Return a recipe's YAML with every local path reduced to its last component."""
    values = yaml.safe_load(text)
    return yaml_text(
        map_paths(
            values, lambda path, is_m: path if _is_name(path, is_m) else f"./{Path(path).name}"
        )
    )


def texts_without_folders(folder: Path) -> dict[str, bytes]:
    """Return an output's recipe and configs with local paths reduced to their last components, if
    they have any.
    """
    texts, recipe = dict[str, str](), (folder / RECIPE_FILE).read_text("utf-8")
    for path in sorted(folder.rglob("*config*.json")):
        with suppress(CheckpointError):  # not a JSON object, so it contains no paths
            if changes := dict(_local_paths(load_object(path))):
                texts[path.relative_to(folder).as_posix()] = edit(read_text(path), changes)
    if (shortened := without_folders(recipe)) != recipe:
        texts[RECIPE_FILE] = shortened
    return {name: text.encode() for name, text in texts.items()}


def _local_paths(
    config: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the key path of every local path in a config, also nested ones, and the last component
    of that path.
    """
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _local_paths(value, (*above, key))
        elif isinstance(value, str) and key.endswith(CONFIG_PATHS) and not is_hub_id(value):
            name = PureWindowsPath(value).name  # accepts both / and \
            if name not in ("", value) and "://" not in value:
                yield (*above, key), name


def _is_name(text: str, is_model: bool, path: str = "") -> bool:
    """Whether a text is a Hub dataset, or a Hub id or bundled checkpoint rather than the existing
    file `path`.
    """
    return (
        is_hub_id(text) and not os.path.lexists(path) if is_model else text.startswith(HUB_PREFIX)
    )


def yaml_text(values: Mapping[str, Any], folder: Path | None = None) -> str:
    """Return a recipe's values as YAML, with paths relative to `folder` if it is given."""
    values = values if folder is None else map_paths(values, partial(_written_path, folder))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values by key, without defaults."""
    ref = _non_defaults(recipe.checkpoint)
    values = {key: value for key, value in ref.items() if key not in TABLE_KEYS}
    steps = {name: getattr(recipe, name) for name in SECTIONS}
    values |= {
        name: _non_defaults(settings) for name, settings in steps.items() if settings is not None
    }
    if recipe.resize is not None:
        table = {key: value for key, value in ref.items() if key in TABLE_KEYS}
        values["resize"] = {"to": recipe.resize.to} | values["resize"] | table
    return values


def _non_defaults(settings: Any) -> dict[str, Any]:
    """Return the fields of a settings object that differ from their defaults, without
    `MACHINE_KEYS`.
    """
    defaults = {
        setting.name: setting.default
        for setting in fields(settings)
        if setting.name not in MACHINE_KEYS
    }
    changed = {
        name: getattr(settings, name)
        for name, value in defaults.items()
        if getattr(settings, name) != value
    }
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()
    }


def any_layer(name: str) -> str:
    """Return a tensor name with ``*`` instead of the numbers of its layers, as recipes list adapted
    tensors.
    """
    return re.sub(r"\b[0-9]+\b", "*", name)


@dataclass(frozen=True)
class Provenance:
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
    methods: Mapping[str, str] = field(default_factory=dict)  # per table, if they differ
    rows: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # per table, before and after, if recorded
    hashes: Mapping[str, str] = field(default_factory=dict)  # see `source_hashes`
    written: Mapping[str, str] = field(
        default_factory=dict
    )  # SHA-256 of each table that was written
    values: Mapping[str, Any] = field(default_factory=dict)  # all values of the recipe
    before: "Provenance | None" = None  # the provenance of `base`, which is recorded by training

    @property
    def chain(self) -> "tuple[Provenance, ...]":
        """This provenance and earlier ones, newest first, each with everything trained since
        then.
        """
        if self.before is None:
            return (self,)
        parts = {part for part in (self.trainable, self.before.trainable) if part}
        is_all = len(parts) > 1 and "all-but-positions" in parts
        trained = "all" if is_all else max(parts, key=[*TRAINABLE].index, default=None)
        return (
            self,
            *replace(
                self.before, trainable=trained, adapted=self.adapted | self.before.adapted
            ).chain,
        )


def read_provenance(checkpoint: Checkpoint) -> Provenance | None:
    """Read the recipe in a checkpoint's folder; None if it is missing or cannot be read."""
    with suppress(CheckpointError, RecipeError):
        if RECIPE_FILE in checkpoint.copied:
            return parse_provenance(checkpoint.text(RECIPE_FILE), RECIPE_FILE, checkpoint.root)
    return None


def trainings(provenance: Provenance | None) -> list[Mapping[str, Any]]:
    """Return which text each training run used, as far as a checkpoint's recipe records it; see
    `trained_texts`.
    """
    runs = list[Mapping[str, Any]]()
    for step in provenance.chain if provenance else ():
        facts, train = step.values.get("provenance") or {}, step.values.get("train") or {}
        if isinstance(trained := facts.get("trained"), Mapping):
            text = {name: trained[name] for name in ("data", "held_out") if name in trained}
            runs.append({"text_field": train.get("text_field", "text"), **text})
        runs += facts["source_trainings"] if isinstance(facts.get("source_trainings"), list) else []
    return runs


@dataclass(frozen=True)
class BaseCheckpoint:
    """The base checkpoint of a resized or trained one."""

    ref: CheckpointRef
    hashes: Mapping[str, str] = field(
        default_factory=dict
    )  # expected hashes of its weights; see `source_hashes`
    chain: tuple[
        Provenance, ...
    ] = ()  # from the newest checkpoint to the base; empty if the user named the base


def find_base(
    provenance: Provenance | None, named: str | None, tokenizer: str | None = None
) -> BaseCheckpoint | None:
    """Return the base that the user named, or the oldest in a checkpoint's recipe, with this
    tokenizer.
    """
    if named is not None:
        read = (
            provenance.chain[-1].base if provenance else CheckpointRef(named)
        )  # as the resize read the base
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
    """Parse the recipe of an output, which is untrusted; see `parse_recipe`."""
    unregistered = None
    try:
        try:
            file = parse_recipe(text, name, folder=folder)
        except (
            RecipeError
        ):  # the method may be unregistered: read the rest with one that keeps no learned rows
            unregistered = str(dict(_parse_yaml(text, name))["resize.method"].value)
            file = parse_recipe(text, name, ["resize.method=linear"], folder=folder)
            file.values["resize"]["method"] = unregistered
        recipe, facts = file.recipe, file.provenance
        methods, before = table_methods(file), facts.get("source_recipe")
        names = (text.partition(":")[0] for text in (str(facts.get("method")), *methods.values()))
        if depth > MAX_NESTING:
            raise RecipeError(f"more than {MAX_NESTING} nested recipes.")
        adapted = frozenset(
            map(str, facts["trained"]["adapted"] if recipe.train and recipe.train.lora else ())
        )
        kept = (facts.get("trained") or {}).get(
            "saved_step"
        ) == 0  # no step was better than the untrained weights
        trainable = (recipe.train.trainable or "positions") if recipe.train and not kept else None
        rows = dict[str, Any]()
        for key, table in _tables(facts).items():
            counts = table.get("rows_before"), table.get("rows_after")
            rows |= (
                {key: counts}
                if all(type(count) is int and 0 <= count < 2**63 for count in counts)
                else {}
            )
        return Provenance(
            base=recipe.checkpoint,
            # Training keeps the length.
            settings=recipe.resize
            or Resize(recipe.convert.to if recipe.convert else facts["max_len"]),
            convert=recipe.convert,
            trainable=None if adapted and trainable == "all-but-positions" else trainable,
            adapted=adapted,
            method=next(
                (name for name in names if unregistered or name in (*METHODS, TRUNCATE)), None
            ),
            unregistered=unregistered,
            methods=methods,
            rows=rows,
            hashes=source_hashes(facts),
            written={
                name: str(table["sha256_after"])
                for name, table in _tables(facts).items()
                if "sha256_after" in table
            },
            values=file.values,
            before=None
            if before is None
            else parse_provenance(yaml_text(before), name, depth=depth + 1),
        )
    except (*YAML_ERRORS, CtxextendError) as error:
        if depth > 1:
            raise
        message = f"{name} is not a valid recipe of an output: {one_line(error)}"
        raise RecipeError(message, "Create the output again, or remove that file.") from None


def _tables(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    tables = facts["tables"] if isinstance(facts.get("tables"), list) else []
    return {
        item["name"]: item
        for item in tables
        if isinstance(item, Mapping) and isinstance(item.get("name"), str)
    }


def source_hashes(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes of the source that a ``provenance`` contains: SHA-256 by table, then its
    `FINGERPRINT`.
    """
    hashes = {name: str(table.get("sha256_before")) for name, table in _tables(facts).items()}
    hashes[FINGERPRINT] = str(facts.get(FINGERPRINT))
    return {name: value for name, value in hashes.items() if SHA256.fullmatch(value)}


def table_methods(file: RecipeFile) -> dict[str, str]:
    """Return the recorded method of each table if they differ; empty if the recipe's method was
    changed since.
    """
    resize, facts = file.recipe.resize, file.provenance
    if resize is None or resize.method != facts.get("method"):
        return {}
    methods = {
        name: str(table["method"]) for name, table in _tables(facts).items() if "method" in table
    }
    return {name: replace(resize, method=method).choice.text for name, method in methods.items()}


def learned_before(
    chain: Sequence[Provenance], table: str, reserved: int, maximum: int
) -> NDArray[np.bool_] | None:
    """Return a mask of the rows that were learned before a chain of resizes, shape (positions,);
    None if unknown.
    """
    oldest_first = chain[::-1]
    rows = [resize.rows.get(table, (0, 0)) for resize in oldest_first]
    are_known = [reserved < count <= maximum for counts in rows for count in counts]
    if not are_known or not all(are_known) or any(resize.unregistered for resize in chain):
        return None
    with suppress(ResizeError):  # an impossible resize
        steps = [
            (
                after - reserved,
                replace(
                    resize.settings, method=resize.methods.get(table, resize.settings.method)
                ).choice,
            )
            for (_, after), resize in zip(rows, oldest_first, strict=True)
        ]
        return learned_rows_after(rows[0][0] - reserved, steps)
    return None
