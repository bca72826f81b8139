"""Recipe files: read with every fault in them at once, and written."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import yaml

from ctxextend.errors import RecipeError, ResizeError
from ctxextend.recipe import REF_KEYS as ALL_REF_KEYS
from ctxextend.recipe import CheckpointRef, Evaluate, Recipe, Resize, Train

# Keys that name the table of a checkpoint stand in `resize`, those that name the checkpoint in the file itself.
TABLE_KEYS = {key: ALL_REF_KEYS[key] for key in ("table", "config_key", "offset")}
REF_KEYS = {key: name for key, name in ALL_REF_KEYS.items() if key not in TABLE_KEYS}
SECTIONS: Mapping[str, Any] = {"resize": Resize, "train": Train, "evaluate": Evaluate}

# Stand in for what must be given and is wrong, so that the rest can be checked all the same.
PLACEHOLDERS: Mapping[str, Any] = {"to": 1, "steps": 1, "data": ("",), "source": ""}

# How a message names a key.
NAMED = re.compile(r"(?:--|There is no )([a-z][a-z-]*)")

MAX_CHARACTERS = 200_000
# What PyYAML raises on a value that is not what its tag says, or too large.
NOT_PLAIN = (yaml.YAMLError, AttributeError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
HINT = "Keys are the flags of resize, train and evaluate, with underscores; see ctxextend resize --help and the like."


def value_type(known: "Field[Any]") -> Any:
    """Return the type of a field of a settings class, without the None that may stand in its place."""
    types = [kind for kind in get_args(known.type) if kind is not type(None)]
    return known.type if get_origin(known.type) is tuple or not types else types[0]


# The type of the value of every key; those of sections have a dot.
KEYS: dict[str, Any] = {
    **dict.fromkeys((*REF_KEYS, "output"), str),
    **{f"{name}.{known.name}": value_type(known) for name, kind in SECTIONS.items() for known in fields(kind)},
    **{f"resize.{key}": int if key == "offset" else str for key in TABLE_KEYS},
    **dict.fromkeys((*SECTIONS, "provenance"), dict),
}
# What a value is called, by its type.
KINDS: dict[Any, str] = {
    **{str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing"},
    **{dict: "a mapping", list: "a list", tuple[int, int]: "a list of two whole numbers"},
    **{tuple[str, ...]: "a text or a list of texts", tuple[int, ...]: "a whole number or a list of such"},
}


@dataclass(frozen=True)
class RecipeFile:
    """What a recipe file holds."""

    recipe: Recipe  # what it asks for
    # How the output came about that it was written beside; empty where it was written by hand.
    provenance: Mapping[str, Any] = field(default_factory=dict)


class PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases, by which a few lines stand for what no memory holds; dates are texts."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML declares them
        first: [rule for rule in rules if not rule[0].endswith(":timestamp")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

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


class Fault(NamedTuple):
    """Something that is wrong in a recipe; faults sort by their lines."""

    line: int
    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}, line {self.line}: {self.message}" if self.line else f"{self.name}: {self.message}"


def read_recipe(path: str | Path, changes: Sequence[str] = ()) -> RecipeFile:
    """Read a recipe file; see `parse_recipe`.

    Raises:
        RecipeError: It cannot be read, or as `parse_recipe`.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise RecipeError(f"{path} is not UTF-8, so it is no recipe.", "Name a YAML file.") from None
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise RecipeError(f"The recipe {path} cannot be read: {why}.", "Name a YAML file that is there.") from None
    return parse_recipe(text, str(path), changes)


def parse_recipe(text: str, name: str, changes: Sequence[str] = ()) -> RecipeFile:
    """Read a recipe.

    Args:
        text: YAML.
        name: What to call it in messages.
        changes: What to put in place of what it says, each as ``key=value``, the value YAML too.

    Raises:
        RecipeError: Everything that is wrong in it, one a line.
    """
    root = _compose(text, name)
    if not isinstance(root, yaml.MappingNode):
        kind = {yaml.ScalarNode: "a single value", yaml.SequenceNode: "a list"}.get(type(root), "nothing")
        raise RecipeError(f"{name}: there is {kind} where a mapping should be.", HINT)
    faults, entries = list[Fault](), dict[str, Entry]()
    for key, node in root.value:
        for path, entry in _entries(_key(key), node, name, key.start_mark.line + 1, faults):
            if path in entries:
                faults.append(Fault(entry.line, name, f"{path} stands there twice"))
            entries[path] = entry
    for change in changes:
        _change(entries, change, faults)
    entries = {path: entry for path, entry in entries.items() if entry.value is not None}
    for path, entry in entries.items():
        if path not in KEYS:
            faults.append(Fault(entry.line, entry.name, _unknown(path)))
        elif "." not in path and path not in REF_KEYS and not isinstance(entry.value, KEYS[path]):
            faults.append(Fault(entry.line, entry.name, _mistyped(path, entry.value)))
    if "source" not in entries:
        faults.append(Fault(0, name, "source is missing: name the checkpoint to begin with"))
    asked = [section for section in SECTIONS if any(path.partition(".")[0] == section for path in entries)]
    if not asked:
        faults.append(Fault(0, name, f"nothing is asked for: add {', '.join(SECTIONS)}, or several of them"))
    mappings = [section for section in asked if isinstance(entries.get(section, Entry({}, 0, name)).value, dict)]
    steps = {section: _settings(section, SECTIONS[section], entries, faults) for section in mappings}
    ref = _settings("", CheckpointRef, {"source": Entry("", 0, name)} | entries, faults)
    output, provenance = (entries.get(key, Entry(None, 0, name)).value for key in ("output", "provenance"))
    if not faults:
        try:
            return RecipeFile(Recipe(ref, **steps, output=output), provenance or {})
        except ResizeError as error:
            faults.append(Fault(entries["resize"].line, entries["resize"].name, str(error)))
    raise RecipeError("\n".join(map(str, sorted(set(faults)))), HINT)


def _compose(text: str, name: str) -> Any:
    """Return YAML as the nodes of PyYAML, which say where each was written; None where there is nothing."""
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"it holds {len(text):,} characters, which no recipe needs")
        return PlainLoader(text).get_single_node()
    except NOT_PLAIN as error:
        mark = getattr(error, "problem_mark", None)
        line = 0 if mark is None or name.startswith("--set ") else mark.line + 1
        raise RecipeError(str(Fault(line, name, _not_yaml(error))), HINT) from None


def _not_yaml(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is no plain YAML: it is nested too deep."
    return f"it is no plain YAML: {' '.join(str(getattr(error, 'problem', None) or error).split())[:200]}."


def _key(node: Any) -> str:
    return str(node.value).replace("-", "_")


def _entries(key: str, node: Any, name: str, line: int, faults: list[Fault]) -> Iterator[tuple[str, Entry]]:
    """Yield a key with its value; of a section also the keys in it, as ``section.key``."""
    if key in SECTIONS and isinstance(node, yaml.MappingNode):
        yield key, Entry({}, line, name)
        for inner, value in node.value:
            inner_line = inner.start_mark.line + 1 if line else 0
            yield from _entries(f"{key}.{_key(inner)}", value, name, inner_line, faults)
        return
    try:
        value = PlainLoader("").construct_object(node, deep=True)
        str(value)  # refuses numbers that Python does not print
        yield key, Entry(value, line, name)
    except NOT_PLAIN as error:
        faults.append(Fault(line, name, _not_yaml(error)))
        yield key, Entry(None, line, name)


def _change(entries: dict[str, Entry], change: str, faults: list[Fault]) -> None:
    """Put what was typed as ``key=value`` in the place of what a file says."""
    typed, equals, text = change.partition("=")
    key, name = typed.strip().replace("-", "_"), f"--set {typed}"
    if not equals:
        faults.append(Fault(0, name, "write it as key=value, such as train.steps=100"))
        return
    try:
        node = _compose(text or "null", name)
    except RecipeError as error:
        faults.append(Fault(0, name, error.message.removeprefix(f"{name}: ")))
        return
    for path in [path for path in entries if path == key or path.startswith(f"{key}.")]:
        del entries[path]
    entries.update(_entries(key, node, name, 0, faults))
    if key in REF_KEYS:
        entries.pop("provenance", None)  # it is of another checkpoint


def _settings(section: str, kind: type[Any], entries: Mapping[str, Entry], faults: list[Fault]) -> Any:
    """Build the settings that a section asks for; None where something is wrong with them.

    Args:
        section: Its name; empty for the keys that name the checkpoint.
        kind: The settings class.
        entries: What the recipe says.
        faults: Takes whatever is wrong.
    """
    from pydantic import TypeAdapter, ValidationError  # at use: it takes as long to import as a small resize

    keys = {known.name: f"{section}.{known.name}" for known in fields(kind)}
    if not section:
        keys = {name: key for key, name in REF_KEYS.items()}
        keys |= {name: f"resize.{key}" for key, name in TABLE_KEYS.items()}
    place = entries.get(section or "resize") or next(entries[key] for key in entries if key in keys.values())
    given, wrong = dict[str, Any](), set[str]()
    for known in fields(kind):
        key, wanted = keys[known.name], KEYS[keys[known.name]]
        if key in entries:
            value, line, where = entries[key]
            if get_origin(wanted) is tuple:
                value = tuple(value) if isinstance(value, list) else (value,)
            try:
                # A number may be text to PyYAML, which reads 1e-4 so; all else must be of its very type.
                given[known.name] = TypeAdapter(wanted).validate_python(value, strict=wanted is not float)
            except ValidationError:
                faults.append(Fault(line, where, _mistyped(key, entries[key].value)))
                wrong.add(known.name)
        elif known.default is MISSING:
            faults.append(Fault(place.line, place.name, f"{key} is missing"))
            wrong.add(known.name)
    try:
        settings = kind(**{name: PLACEHOLDERS[name] for name in wrong & set(PLACEHOLDERS)} | given)
        return None if wrong else settings
    except ResizeError as error:
        for fault in (error, *error.others):
            flags = [flag.replace("-", "_") for flag in NAMED.findall(fault.message)]
            if not wrong.intersection(flags):  # else it may follow from what is wrong there
                entry = next((entries[key] for flag in flags if (key := f"{section}.{flag}") in entries), place)
                faults.append(Fault(entry.line, entry.name, str(fault)))
    return None


def _mistyped(key: str, value: Any) -> str:
    quotes = ": put it in quotes" if KEYS[key] is str and isinstance(value, bool | int | float) else ""
    return f"{key} is {KINDS.get(type(value), 'a value')}, and should be {KINDS[KEYS[key]]}{quotes}"


def _unknown(key: str) -> str:
    """Say that there is no such key, and which is nearest."""
    section, dot, name = key.rpartition(".")
    siblings = [known for known in KEYS if known.rpartition(".")[0] == section]
    siblings = siblings or [known for known in KEYS if "." not in known]
    elsewhere = [known for known in KEYS if known.rpartition(".")[2] == name]
    near = get_close_matches(name, [known.rpartition(".")[2] for known in siblings], 1)
    nearest = [*elsewhere, *(f"{section}{dot}{known}" for known in near)]
    advice = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(siblings)}"
    return f"there is no key {key}; {advice}"


def recipe_text(recipe: Recipe, provenance: Mapping[str, Any], *, makes_rows: bool = True) -> str:
    """Write a recipe as YAML, and how its output came about.

    Args:
        recipe: What was asked for.
        provenance: Plain values, for readers and for checks of the source.
        makes_rows: Whether the resize made new rows; elsewhere the recipe must name no method.
    """
    return yaml_text(recipe_values(recipe, makes_rows=makes_rows) | {"provenance": dict(provenance)})


def yaml_text(values: Mapping[str, Any]) -> str:
    """Return plain values as YAML, in their order, without secrets."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def recipe_values(recipe: Recipe, *, makes_rows: bool = True) -> dict[str, Any]:
    """Return a recipe as plain values, by the keys of a file; what is the default is left out."""
    ref = _given(recipe.checkpoint)
    content = {key: ref[name] for key, name in REF_KEYS.items() if name in ref}
    if recipe.resize is not None:
        given, options = _given(recipe.resize), recipe.resize
        method = {"method": options.facts.name, "keep_first": options.kept_first, "drop_last": options.drop_last}
        given |= {key: ref[name] for key, name in TABLE_KEYS.items() if name in ref}
        content["resize"] = {
            "to": recipe.resize.to,
            **(method | dict(options.flags) if makes_rows else {}),
            **{key: given[key] for key in ("part", *TABLE_KEYS, "mend_limits", "keep_code") if key in given},
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
