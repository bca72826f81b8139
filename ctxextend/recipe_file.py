"""Recipe files: read with every fault in them at once, written, and what one says of the output that it lies beside."""

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
from ctxextend.checkpoints.source import HUB_ID
from ctxextend.errors import CheckpointError, CtxextendError, RecipeError, ResizeError, did_you_mean, one_line
from ctxextend.recipe import HUB, RECIPE_FILE, TRAINABLE, CheckpointRef, Evaluate, Recipe, Resize, Train
from ctxextend.tables.apply import learned_rows_after
from ctxextend.tables.method_facts import TRUNCATE
from ctxextend.tables.methods import METHODS

SECTIONS: Mapping[str, Any] = {"resize": Resize, "train": Train, "evaluate": Evaluate}
# Keys of the checkpoint that stand in `resize`, since they describe its table.
TABLE_KEYS = ("tensor", "config_key", "reserved_rows")
MACHINE_KEYS = ("device", "threads")  # keys that belong to the machine of a run: no recipe that is written has them
# Keys of paths, and whether each may also name a bundled checkpoint or a model of the Hub.
PATH_KEYS = {"source": True, "tokenizer": True, "base": True, "data": False, "eval_data": False, "output": False}
# How the keys of configs end that hold the path of what was loaded.
CONFIG_PATHS = ("name_or_path", "tokenizer_file", "special_tokens_map_file")
# What a value is called, by its type.
KINDS: dict[Any, str] = {
    **{str: "text", int: "a whole number", float: "a number", bool: "true or false"},
    **{dict: "a mapping", list: "a list", int | str: "a length, such as 4096, 4k or 4x"},
    **{tuple[str, ...]: "a text or a list of texts", tuple[int, ...]: "a whole number or a list of such"},
}
NAMED = re.compile(r"(?:--|There is no |Unknown )([a-z][a-z-]*)")  # how a message names a key
# Of all weights of a source; see `Checkpoint.weights_fingerprint`. No tensor is called so.
FINGERPRINT = "source_fingerprint"
SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_CHARACTERS = 200_000  # no recipe needs more; a stranger's may hold so much that reading it takes minutes
# In the place of values that are wrong or missing, so that faults of the others are found too.
STAND_INS: dict[Any, Any] = {int: 8, int | str: 8, str: "-", tuple[str, ...]: ("-",)}
MAX_RUNS = 16  # no output came about by more runs, one after the other
# What PyYAML raises on a value that is not what its tag says, or too large.
NOT_PLAIN = (yaml.YAMLError, AttributeError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
HINT = (
    "Keys are the settings of resize, train and evaluate, with underscores, such as resize.keep_first and train.data."
)


class Key(NamedTuple):
    """What a key of a file stands for."""

    kind: Any  # the settings class that it belongs to; dict for those of the file itself
    name: str  # the field of that class
    wanted: Any  # the type of its value
    is_needed: bool = False


def _keys() -> Iterator[tuple[str, Key]]:
    """Yield every key of a file, those in sections with a dot."""
    for kind, section in ((CheckpointRef, ""), *((kind, section) for section, kind in SECTIONS.items())):
        for known in fields(kind):
            types = [one for one in get_args(known.type) if one is not type(None)]
            wanted = types[0] if len(types) == 1 else known.type
            within = section or ("resize" if known.name in TABLE_KEYS else "")
            path = f"{within}.{known.name}" if within else known.name
            yield path, Key(kind, known.name, wanted, known.default is MISSING)
    yield "output", Key(dict, "output", str)
    yield from ((name, Key(dict, name, dict)) for name in (*SECTIONS, "provenance"))


KEYS = dict(_keys())


class RecipeFile(NamedTuple):
    """What a recipe file holds."""

    recipe: Recipe
    provenance: Mapping[str, Any]  # how the output came about that it lies beside; empty where a user wrote it
    values: Mapping[str, Any]  # the whole of it, as plain values by its keys


class PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases, by which a few lines stand for what no memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse an alias."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="it refers to itself by aliases", problem_mark=mark)
        return super().compose_node(parent, index)


class Entry(NamedTuple):
    """The value of a key, and where the key was written: a line from 1 on, else 0, of a file, or a flag."""

    value: Any
    line: int
    name: str

    def fault(self, message: str) -> tuple[int, str]:
        """Return something that is wrong there, by its line."""
        return self.line, f"{self.name}, line {self.line}: {message}" if self.line else f"{self.name}: {message}"


def read_recipe(path: str | Path, changes: Sequence[str] = ()) -> RecipeFile:
    """Read a recipe file, whose paths count from its folder, or a shipped recipe by name; see `parse_recipe`."""
    shipped = shipped_recipes()
    try:
        file = Path(path).expanduser()
        is_name = not file.is_file() and str(path) in shipped
        text = (shipped[str(path)] if is_name else file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError, RuntimeError) as error:
        reason = "it is not UTF-8" if isinstance(error, ValueError) else getattr(error, "strerror", None) or error
        hint = did_you_mean(str(path), shipped) or "Name a YAML file, or one of `ctxextend recipes`."
        raise RecipeError(f"The recipe {path} cannot be read: {reason}.", hint) from None
    return parse_recipe(text, str(path), changes, None if is_name else file.parent)


def shipped_recipes() -> dict[str, Path]:
    """Return the files of the recipes that ship with the package, by name."""
    here = Path(__file__).resolve().parent
    folder = here / "recipes"  # in a wheel; a checkout has it beside the package
    project = here.parent / "pyproject.toml"
    if not folder.is_dir() and project.is_file() and 'name = "ctxextend"' in project.read_text("utf-8"):
        folder = here.parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def parse_recipe(text: str, name: str, changes: Sequence[str] = (), folder: Path | None = None) -> RecipeFile:
    """Read a recipe: YAML, which messages call `name`, with changes such as ``train.steps=100`` to what it says.

    Paths in the YAML count from `folder`, those of changes from the current one, as all do where `folder` is None.
    """
    faults, entries, nowhere = list[tuple[int, str]](), dict[str, Entry](), Entry(None, 0, name)
    for path, entry in _read(text, name):
        if path in entries:
            faults.append(entry.fault(f"{path} stands there twice"))
        if folder is not None:
            key = path.rpartition(".")[2]
            entry = entry._replace(value=map_paths({key: entry.value}, partial(_read_path, folder))[key])
        entries[path] = entry
    for change in changes:
        typed, equals, value = change.partition("=")
        key, flag = typed.strip().replace("-", "_"), f"--set {typed}"
        if not equals:
            faults.append((0, f"{flag}: write it as key=value, such as train.steps=100"))
            continue
        entries = {path: entry for path, entry in entries.items() if not f"{path}.".startswith(f"{key}.")}
        read = [(path, entry) for path, entry in _read(value or "null", flag, key) if entry.value is not None]
        if read and (section := key.partition(".")[0]) in SECTIONS:
            entries.setdefault(section, Entry({}, 0, flag))
        entries |= read
        if key in KEYS and KEYS[key].kind is CheckpointRef and key != "tokenizer":
            entries.pop("provenance", None)  # it is of another checkpoint
    entries = {path: entry for path, entry in entries.items() if entry.value is not None}
    faults += [entry.fault(_unknown(path)) for path, entry in entries.items() if path not in KEYS]
    if not any(section in entries for section in SECTIONS):
        faults.append(nowhere.fault(f"nothing is asked for: add {', '.join(SECTIONS)}, or several of them"))
    whole = _settings(dict, entries, nowhere, faults) or {}
    ref = _settings(CheckpointRef, entries, nowhere, faults)
    named = {key: entries[key] for key in SECTIONS if key in entries and isinstance(entries[key].value, dict)}
    steps = {key: _settings(SECTIONS[key], entries, entry, faults) for key, entry in named.items()}
    if faults:
        raise RecipeError("\n".join(message for _, message in sorted(set(faults))), HINT)
    values = dict[str, Any]()
    for path, entry in entries.items():
        section, _, key = path.rpartition(".")
        (values[section] if section else values)[key] = {} if key in SECTIONS else entry.value
    return RecipeFile(Recipe(ref, **steps, output=whole.get("output")), whole.get("provenance", {}), values)


def _read(text: str, name: str, key: str = "") -> list[tuple[str, Entry]]:
    """Read YAML, a mapping where no key is given; return its values by their keys."""
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"it holds {len(text):,} characters, which no recipe needs")
        node = PlainLoader(text).get_single_node()
        if key or isinstance(node, yaml.MappingNode):
            return list(_entries(node, key, name, 0))
        what = "a list" if isinstance(node, yaml.SequenceNode) else "nothing" if node is None else "a single value"
        line, fault = 0, f"there is {what} where a mapping should be."
    except NOT_PLAIN as error:
        mark = getattr(error, "problem_mark", None)
        reason = (
            "it is nested too deep" if isinstance(error, RecursionError) else getattr(error, "problem", None) or error
        )
        line = 0 if mark is None or key else mark.line + 1
        fault = f"it is no plain YAML: {one_line(reason)}."
    raise RecipeError(Entry(None, line, name).fault(fault)[1], HINT)


def _entries(node: Any, path: str, name: str, line: int) -> Iterator[tuple[str, Entry]]:
    """Yield a value by its key; of a section also the values in it, as ``section.key``."""
    if path not in ("", *SECTIONS) or not isinstance(node, yaml.MappingNode):
        yield path, Entry(PlainLoader("").construct_object(node, deep=True), line, name)
        return
    if path:
        yield path, Entry({}, line, name)
    for key, value in node.value:
        inner = str(key.value if isinstance(key, yaml.ScalarNode) else key.tag).replace("-", "_")
        at = 0 if name.startswith("--set ") else key.start_mark.line + 1
        yield from _entries(value, f"{path}.{inner}" if path else inner, name, at)


def _settings(kind: Any, entries: Mapping[str, Entry], place: Entry, faults: list[tuple[int, str]]) -> Any:
    """Build settings from their keys; None where something is wrong with them, which `faults` takes."""
    given, known_faults = dict[str, Any](), len(faults)
    paths = {path: key for path, key in KEYS.items() if key.kind is kind}
    for path, key in paths.items():
        if path in entries:
            value = entries[path].value
            try:
                given[key.name] = _converted(value, key.wanted)
            except (TypeError, ValueError, OverflowError):
                quotes = ": put it in quotes" if key.wanted is str and not isinstance(value, dict | list) else ""
                found = f"{path} is {KINDS.get(type(value), 'a value')}, and should be {KINDS[key.wanted]}{quotes}"
                faults.append(entries[path].fault(found))
                if key.wanted is int:
                    given[key.name] = STAND_INS[int]
        elif key.is_needed:
            faults.append(place.fault(f"{path} is missing"))
    stand_ins = {key.name: STAND_INS[key.wanted] for key in paths.values() if key.is_needed}
    try:
        made = kind(**stand_ins | given)
    except ResizeError as error:
        for fault in (error, *error.others):
            flags = {flag.replace("-", "_") for flag in NAMED.findall(fault.message)}
            named = (entries[path] for path in paths if path in entries and path.rpartition(".")[2] in flags)
            faults.append(next(named, place).fault(str(fault)))
    return None if len(faults) > known_faults else made


def _converted(value: Any, wanted: Any) -> Any:
    """Return a value as the type that a field wants; raise TypeError or ValueError where it is of another."""
    if get_origin(wanted) is tuple:
        return tuple(_converted(one, get_args(wanted)[0]) for one in (value if isinstance(value, list) else [value]))
    if wanted is float and type(value) in (int, float, str):
        return float(value)  # PyYAML reads 1e-4 as text
    if type(value) not in (get_args(wanted) or (wanted,)):
        raise TypeError
    return value


def _unknown(path: str) -> str:
    """Say that there is no such key, and which is nearest."""
    section, _, name = path.rpartition(".")
    siblings = [known for known in KEYS if known.rpartition(".")[0] == section]
    siblings = siblings or [known for known in KEYS if "." not in known]
    names = {known.rpartition(".")[2]: known for known in (*KEYS, *siblings)}
    near = get_close_matches(name, names, 1)
    advice = f"did you mean {names[near[0]]}?" if near else f"there are {', '.join(siblings)}"
    return f"there is no key {path}; {advice}"


def map_paths(values: Mapping[str, Any], change: Callable[[str, bool], str]) -> dict[str, Any]:
    """Return a recipe's plain values with each path changed: `change` takes it, and whether it may name a model."""

    def changed(key: str, value: Any) -> Any:
        if key in PATH_KEYS and isinstance(value, list):
            return [changed(key, one) for one in value]
        if key in PATH_KEYS and isinstance(value, str):
            return change(value, PATH_KEYS[key])
        is_nested = key in (*SECTIONS, "provenance", "source_recipe") and isinstance(value, Mapping)
        return map_paths(value, change) if is_nested else value

    return {key: changed(key, value) for key, value in values.items()}


def _read_path(folder: Path, text: str, is_model: bool) -> str:
    """Return a path that counts from a recipe's folder as one that counts from the current folder."""
    path = os.path.normpath(Path(os.path.realpath(folder), text))
    if not text or _is_name(text, is_model, path) or text.startswith("~") or Path(text).is_absolute():
        return os.path.expanduser(text)  # noqa: PTH111 - never raises
    near = _relative(path, os.curdir)
    return path if near.startswith(os.pardir) else near if is_model else near.removeprefix("./")


def _written_path(folder: Path, text: str, is_model: bool) -> str:
    """Return a path that counts from the current folder as one that counts from a recipe's folder."""
    path = os.path.expanduser(text)  # noqa: PTH111 - never raises
    if _is_name(text, is_model, path):
        return text
    above, name = os.path.split(path)
    return _relative(os.path.join(os.path.realpath(above), name), os.path.realpath(folder))  # noqa: PTH118


def _relative(path: str, folder: str) -> str:
    """Return a path that counts from a folder, with ``/``; the whole path where it is on another drive of Windows."""
    try:
        near = os.path.relpath(path, folder).replace(os.sep, "/")
    except ValueError:
        return path.replace(os.sep, "/")
    return near if near.startswith(os.pardir) else f"./{near}"


def without_folders(text: str) -> str:
    """Return a recipe's YAML with the last component alone of every local path."""
    values = yaml.safe_load(text)
    return yaml_text(map_paths(values, lambda path, is_m: path if _is_name(path, is_m) else f"./{Path(path).name}"))


def texts_without_folders(folder: Path) -> dict[str, bytes]:
    """Return those of an output's recipe and configs that hold local paths, with their last components alone."""
    texts, recipe = dict[str, str](), (folder / RECIPE_FILE).read_text("utf-8")
    for path in sorted(folder.rglob("*config*.json")):
        with suppress(CheckpointError):  # no JSON object, so that no program finds a path in it
            if changes := dict(_local_paths(load_object(path))):
                texts[path.relative_to(folder).as_posix()] = edit(read_text(path), changes)
    if (shared := without_folders(recipe)) != recipe:
        texts[RECIPE_FILE] = shared
    return {name: text.encode() for name, text in texts.items()}


def _local_paths(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield where a config, or one nested in it, holds a local path, and the last component of that."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _local_paths(value, (*above, key))
        elif isinstance(value, str) and key.endswith(CONFIG_PATHS) and not HUB_ID.fullmatch(value):
            name = PureWindowsPath(value).name  # it takes separators of all systems
            if name not in ("", value) and "://" not in value:
                yield (*above, key), name


def _is_name(text: str, is_model: bool, path: str = "") -> bool:
    """Whether a text names a data set of the Hub, or a checkpoint that is bundled or on the Hub and not at `path`."""
    return bool(HUB_ID.fullmatch(text)) and not os.path.lexists(path) if is_model else text.startswith(HUB)


def yaml_text(values: Mapping[str, Any], folder: Path | None = None) -> str:
    """Return a recipe's plain values as YAML, in their order; its paths count from its folder, where one is given."""
    values = values if folder is None else map_paths(values, partial(_written_path, folder))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values, by the keys of a file; what is the default is left out."""
    named = _given(recipe.checkpoint)
    content = {key: value for key, value in named.items() if key not in TABLE_KEYS}
    if recipe.resize is not None:
        tables = {key: value for key, value in named.items() if key in TABLE_KEYS}
        content["resize"] = {"to": recipe.resize.to} | _given(recipe.resize) | tables
    if recipe.train is not None:
        content["train"] = _given(recipe.train) | {"trainable": recipe.train.trainable}  # readers ask for that
    if recipe.evaluate is not None:
        content["evaluate"] = _given(recipe.evaluate)
    return content


def _given(settings: Any) -> dict[str, Any]:
    """Return the fields of a settings class that are not their default's, nor the machine's own."""
    own = {known.name: known.default for known in fields(settings) if known.name not in MACHINE_KEYS}
    given = {name: getattr(settings, name) for name, default in own.items() if getattr(settings, name) != default}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


# ---- the recipe beside an output


@dataclass(frozen=True)
class Provenance:
    """How an output came about, as the recipe beside it says."""

    base: CheckpointRef  # the checkpoint that it was made of
    settings: Resize  # how that was resized; where it was only trained, to the length that it had
    trainable: str | None = None  # what was then trained: ``new`` rows, ``positions`` or ``all``; None is nothing
    method: str | None = None  # that made the rows; None where it names none that there is
    # The method where there is none of that name; `settings` then have another, and the rows cannot be made again.
    unregistered: str | None = None
    methods: Mapping[str, str] = field(default_factory=dict)  # that made each table's rows, where they differ
    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # each table's before and then, where stated
    hashes: Mapping[str, str] = field(default_factory=dict)  # see `source_hashes`
    values: Mapping[str, Any] = field(default_factory=dict)  # the whole of the file, as plain values
    # The same of the checkpoint that it was made of, where that is kept: of a resize that was trained later.
    before: "Provenance | None" = None

    @property
    def chain(self) -> "tuple[Provenance, ...]":
        """This and those before it, the newest first, each with all that was trained since then."""
        if self.before is None:
            return (self,)
        maximum = max(self.trainable, self.before.trainable, key=lambda name: TRAINABLE.index(name) if name else -1)
        return (self, *replace(self.before, trainable=maximum).chain)


def read_provenance(checkpoint: Checkpoint) -> Provenance | None:
    """Read the recipe that lies beside a checkpoint's weights; None where none does that can be read."""
    if RECIPE_FILE not in checkpoint.copied:
        return None
    try:
        return parse_provenance(checkpoint.text(RECIPE_FILE), RECIPE_FILE, checkpoint.root)
    except (CheckpointError, RecipeError):
        return None


def trainings(written: Provenance | None) -> list[Mapping[str, Any]]:
    """Return on which text each training of a checkpoint was, as far as its recipe says so; see `trained_texts`."""
    found = list[Mapping[str, Any]]()
    for run in written.chain if written else ():
        facts, asked = run.values.get("provenance") or {}, run.values.get("train") or {}
        if isinstance(trained := facts.get("trained"), Mapping):
            text = {name: trained[name] for name in ("data", "held_out") if name in trained}
            found.append({"text_field": asked.get("text_field", "text"), **text})
        found += facts["source_trainings"] if isinstance(facts.get("source_trainings"), list) else []
    return found


@dataclass(frozen=True)
class BaseCheckpoint:
    """The base checkpoint of what was resized or trained."""

    ref: CheckpointRef
    hashes: Mapping[str, str] = field(default_factory=dict)  # that its weights should have; see `source_hashes`
    chain: tuple[Provenance, ...] = ()  # what was made of it, the newest first; empty where the user named the base


def find_base(
    written: Provenance | None, named: str | None = None, tokenizer: str | None = None
) -> BaseCheckpoint | None:
    """Return the base that the user named, or the first that a checkpoint's recipe knows; `tokenizer` reads it too."""
    if named is not None:
        return BaseCheckpoint(CheckpointRef(named, tokenizer=tokenizer))
    if written is None:
        return None
    first = written.chain[-1]
    ref = replace(first.base, tokenizer=tokenizer or first.base.tokenizer)
    return BaseCheckpoint(ref, first.hashes, written.chain)


def parse_provenance(text: str, name: str, folder: Path | None = None, runs: int = 1) -> Provenance:
    """Read the text of a recipe that lies in an output's folder; see `parse_recipe`. Anybody may have written it."""
    unregistered = None
    try:
        try:
            written = parse_recipe(text, name, folder=folder)
        except RecipeError:  # perhaps of its method alone, for which one stands in that promises nothing
            unregistered = str(dict(_read(text, name))["resize.method"].value)
            written = parse_recipe(text, name, ["resize.method=linear"], folder=folder)
            written.values["resize"]["method"] = unregistered
        asked, facts = written.recipe, written.provenance
        method, before = str(facts.get("method")).partition(":")[0], facts.get("source_recipe")
        if runs > MAX_RUNS:
            raise RecipeError(f"it holds more than {MAX_RUNS} recipes, one in the other.")
        rows = dict[str, Any]()
        for key, table in _tables(facts).items():
            counts = table.get("rows_before"), table.get("rows_after")
            rows |= {key: counts} if all(type(count) is int and 0 <= count < 2**63 for count in counts) else {}
        return Provenance(
            base=asked.checkpoint,
            settings=asked.resize or Resize(facts["max_len"]),  # what was only trained has the length that it had
            trainable=asked.train.trainable if asked.train else None,
            method=method if unregistered or method in (*METHODS, TRUNCATE) else None,
            unregistered=unregistered,
            methods=table_methods(written),
            rows=rows,
            hashes=source_hashes(facts),
            values=written.values,
            before=None if before is None else parse_provenance(yaml_text(before), name, runs=runs + 1),
        )
    except (*NOT_PLAIN, CtxextendError) as error:
        if runs > 1:
            raise
        message = f"{name} is no recipe of a resize: {one_line(error)}"
        raise RecipeError(message, "Make the output again, or move that file away.") from None


def _tables(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what a file's ``provenance`` says of each table, by the table's name."""
    tables = facts["tables"] if isinstance(facts.get("tables"), list) else []
    return {one["name"]: one for one in tables if isinstance(one, Mapping) and isinstance(one.get("name"), str)}


def source_hashes(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of a source's tables by name, then its `FINGERPRINT`, as far as a ``provenance`` has them."""
    found = {name: str(table.get("sha256_before")) for name, table in _tables(facts).items()}
    found[FINGERPRINT] = str(facts.get(FINGERPRINT))
    return {name: value for name, value in found.items() if SHA256.fullmatch(value)}


def table_methods(written: RecipeFile) -> dict[str, str]:
    """Return what made each table's rows, where it differs and the recipe does not ask for another method by now."""
    resize, facts = written.recipe.resize, written.provenance
    if resize is None or resize.method != facts.get("method"):
        return {}
    methods = {name: str(table["method"]) for name, table in _tables(facts).items() if "method" in table}
    return {name: replace(resize, method=method).full_method for name, method in methods.items()}


def learned_before(
    chain: Sequence[Provenance], table: str, reserved_rows: int, maximum: int
) -> NDArray[np.bool_] | None:
    """Return which rows were learned before a chain of resizes, shape (positions,); None where it does not tell."""
    oldest_first = chain[::-1]
    rows = [resize.rows.get(table, (0, 0)) for resize in oldest_first]
    are_known = [reserved_rows < count <= maximum for counts in rows for count in counts]
    if not are_known or not all(are_known) or any(one.unregistered for one in chain):
        return None
    try:
        steps = [
            (after - reserved_rows, replace(resize.settings, method=resize.methods.get(table, resize.settings.method)))
            for (_, after), resize in zip(rows, oldest_first, strict=True)
        ]
        return learned_rows_after(rows[0][0] - reserved_rows, steps)
    except ResizeError:  # no such resize was ever made
        return None
