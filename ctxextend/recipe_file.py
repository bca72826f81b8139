"""Recipe files: read with every fault in them at once, and written."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import yaml

from ctxextend.errors import RecipeError, ResizeError, one_line
from ctxextend.recipe import REF_KEYS, CheckpointRef, Evaluate, Recipe, Resize, Train

SECTIONS: Mapping[str, Any] = {"resize": Resize, "train": Train, "evaluate": Evaluate}
# Keys of the checkpoint that stand in `resize`, since they describe its table.
TABLE_KEYS = ("table", "config_key", "offset")
# What a value is called, by its type.
KINDS: dict[Any, str] = {
    **{str: "text", int: "a whole number", float: "a number", bool: "true or false"},
    **{dict: "a mapping", list: "a list", tuple[int, int]: "a list of two whole numbers"},
    **{tuple[str, ...]: "a text or a list of texts", tuple[int, ...]: "a whole number or a list of such"},
}
# How a message names a key.
NAMED = re.compile(r"(?:--|There is no )([a-z][a-z-]*)")
# No recipe needs more; a stranger's may hold so much that reading it takes minutes.
MAX_CHARACTERS = 200_000
# What PyYAML raises on a value that is not what its tag says, or too large.
NOT_PLAIN = (yaml.YAMLError, AttributeError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
HINT = "Keys are the flags of resize, train and evaluate, with underscores; see ctxextend resize --help and the like."


class Key(NamedTuple):
    """What a key of a file stands for."""

    kind: Any  # the settings class that it belongs to; dict for those of the file itself
    name: str  # the field of that class
    wanted: Any  # the type of its value
    is_needed: bool = False


def _keys() -> Iterator[tuple[str, Key]]:
    """Yield every key of a file, those in sections with a dot."""
    in_ref = {name: f"resize.{key}" if key in TABLE_KEYS else key for key, name in REF_KEYS.items()}
    for kind, section in ((CheckpointRef, ""), *((kind, section) for section, kind in SECTIONS.items())):
        for known in fields(kind):
            types = [one for one in get_args(known.type) if one is not type(None)]
            wanted = known.type if get_origin(known.type) is tuple or not types else types[0]
            path = f"{section}.{known.name}" if section else in_ref[known.name]
            yield path, Key(kind, known.name, wanted, known.default is MISSING)
    yield "output", Key(dict, "output", str)
    yield from ((name, Key(dict, name, dict)) for name in (*SECTIONS, "provenance"))


KEYS = dict(_keys())


class RecipeFile(NamedTuple):
    """What a recipe file holds."""

    recipe: Recipe
    provenance: Mapping[str, Any]  # how the output came about that it lies beside; empty where a user wrote it


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
    """Read a recipe file; see `parse_recipe`."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, ValueError, RuntimeError) as error:
        why = "it is not UTF-8" if isinstance(error, ValueError) else getattr(error, "strerror", None) or error
        raise RecipeError(f"The recipe {path} cannot be read: {why}.", "Name a YAML file that is there.") from None
    return parse_recipe(text, str(path), changes)


def parse_recipe(text: str, name: str, changes: Sequence[str] = ()) -> RecipeFile:
    """Read a recipe: YAML, which messages call `name`, with changes such as ``train.steps=100`` to what it says."""
    faults, entries, nowhere = list[tuple[int, str]](), dict[str, Entry](), Entry(None, 0, name)
    for path, entry in _read(text, name):
        if path in entries:
            faults.append(entry.fault(f"{path} stands there twice"))
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
        if key in REF_KEYS:
            entries.pop("provenance", None)  # it is of another checkpoint
    entries = {path: entry for path, entry in entries.items() if entry.value is not None}
    faults += [entry.fault(_unknown(path)) for path, entry in entries.items() if path not in KEYS]
    if not any(section in entries for section in SECTIONS):
        faults.append(nowhere.fault(f"nothing is asked for: add {', '.join(SECTIONS)}, or several of them"))
    whole = _settings(dict, entries, nowhere, faults) or {}
    ref = _settings(CheckpointRef, entries, nowhere, faults)
    steps = {key: _settings(kind, entries, entries[key], faults) for key, kind in SECTIONS.items() if key in whole}
    if faults:
        raise RecipeError("\n".join(message for _, message in sorted(set(faults))), HINT)
    return RecipeFile(Recipe(ref, **steps, output=whole.get("output")), whole.get("provenance", {}))


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
        why = "it is nested too deep" if isinstance(error, RecursionError) else getattr(error, "problem", None) or error
        line = 0 if mark is None or key else mark.line + 1
        fault = f"it is no plain YAML: {one_line(why)}."
    raise RecipeError(Entry(None, line, name).fault(fault)[1], HINT)


def _entries(node: Any, path: str, name: str, line: int) -> Iterator[tuple[str, Entry]]:
    """Yield a value by its key; of a section also the values in it, as ``section.key``."""
    if path not in ("", *SECTIONS) or not isinstance(node, yaml.MappingNode):
        yield path, Entry(PlainLoader("").construct_object(node, deep=True), line, name)
        return
    if path:
        yield path, Entry({}, line, name)
    for key, value in node.value:
        inner = str(key.value).replace("-", "_")
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
        elif key.is_needed:
            faults.append(place.fault(f"{path} is missing"))
    if len(faults) > known_faults:
        return None
    try:
        return kind(**given)
    except ResizeError as error:
        for fault in (error, *error.others):
            flags = {flag.replace("-", "_") for flag in NAMED.findall(fault.message)}
            named = (entries[path] for path in paths if path in entries and path.rpartition(".")[2] in flags)
            faults.append(next(named, place).fault(str(fault)))
    return None


def _converted(value: Any, wanted: Any) -> Any:
    """Return a value as the type that a field wants; raise TypeError or ValueError where it is of another."""
    if get_origin(wanted) is tuple:
        values, types = value if isinstance(value, list) else [value], get_args(wanted)
        if types[-1] is not ... and len(values) != len(types):
            raise ValueError
        return tuple(_converted(one, types[0]) for one in values)
    if wanted is float and type(value) in (int, float, str):
        return float(value)  # PyYAML reads 1e-4 as text
    if type(value) is not wanted:
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


def recipe_text(recipe: Recipe, provenance: Mapping[str, Any], *, makes_rows: bool = True) -> str:
    """Return a recipe as YAML, and how its output came about; without new rows, it must name no method."""
    return yaml_text(recipe_values(recipe, makes_rows=makes_rows) | {"provenance": dict(provenance)})


def yaml_text(values: Mapping[str, Any]) -> str:
    """Return plain values as YAML, in their order."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def recipe_values(recipe: Recipe, *, makes_rows: bool = True) -> dict[str, Any]:
    """Return a recipe as plain values, by the keys of a file; what is the default is left out."""
    ref = _given(recipe.checkpoint)
    named = {key: ref[name] for key, name in REF_KEYS.items() if name in ref}
    content = {key: value for key, value in named.items() if key not in TABLE_KEYS}
    if recipe.resize is not None:
        resize, given = recipe.resize, _given(recipe.resize)
        method = {"method": resize.facts.name, "keep_first": resize.kept_first, "drop_last": resize.drop_last}
        content["resize"] = {
            "to": resize.to,
            **(method | resize.flags if makes_rows else {}),
            **{key: value for key, value in named.items() if key in TABLE_KEYS},
            **{key: given[key] for key in ("part", "mend_limits", "keep_code") if key in given},
        }
    if recipe.train is not None:
        content["train"] = _given(recipe.train) | {"trainable": recipe.train.trainable}  # readers ask for that
    if recipe.evaluate is not None:
        content["evaluate"] = _given(recipe.evaluate)
    return content


def _given(settings: Any) -> dict[str, Any]:
    """Return the fields of a settings class that are not their default's."""
    values = {known.name: (getattr(settings, known.name), known.default) for known in fields(settings)}
    given = {name: value for name, (value, default) in values.items() if default is MISSING or value != default}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
