"""A recipe file of several steps, read with every fault in it found at once."""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin

from ctxextend.errors import RecipeError, ResizeError
from ctxextend.plainyaml import MOST_CHARACTERS, Entries, Place, Value, plain, read_value
from ctxextend.recipe import CheckpointRef, Evaluate, Recipe, Resize, Train
from ctxextend.recipetext import REF_KEYS, TABLE_KEYS
from ctxextend.writtenrecipe import table_hashes

__all__ = ["WrittenRun", "read_run", "read_run_file"]

SECTIONS: Mapping[str, Any] = {"resize": Resize, "train": Train, "evaluate": Evaluate}
PROVENANCE = "provenance"
# What says which source is meant: with one of them changed, what was written of the source holds no longer.
ORIGIN = tuple(REF_KEYS)

# Stand in for what must be given and was not, so that the rest can be checked all the same.
PLACEHOLDERS: Mapping[str, Any] = {"to": 1, "steps": 1, "data": ("",)}

KINDS: Mapping[Any, str] = {
    **{str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing"},
    **{Entries: "a mapping", list: "a list"},
    **{tuple[str, ...]: "a text or a list of texts", tuple[int, ...]: "a whole number or a list of such"},
    **{tuple[int, int]: "a list of two whole numbers"},
}

HINT = "Keys are the flags of resize, train and evaluate, with underscores; see ctxextend resize --help and the like."


@dataclass(frozen=True)
class WrittenRun:
    """A recipe as a file holds it.

    Attributes:
        recipe: What is asked for.
        provenance: How the output beside which the recipe lay came about; empty where it lay beside none.
    """

    recipe: Recipe
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hashes(self) -> Mapping[str, str]:
        """The SHA-256 that each of the source's tables had, as far as it is said, by the table's name."""
        return table_hashes(self.provenance)


@dataclass(frozen=True, order=True)
class Fault:
    """Something that is wrong in a recipe.

    Attributes:
        place: Where.
        message: What.
    """

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


def _key_type(known: "Field[Any]") -> Any:
    """Return the type of a field of a dataclass, without the None that may stand in its place."""
    kinds = [kind for kind in get_args(known.type) if kind is not type(None)]
    return known.type if get_origin(known.type) is tuple or not kinds else kinds[0]


# Every key, those of sections with a dot, and the type of its value.
KEYS: Mapping[str, Any] = {
    **dict.fromkeys((*ORIGIN, "output"), str),
    **{f"{section}.{known.name}": _key_type(known) for section, made in SECTIONS.items() for known in fields(made)},
    **{f"resize.{key}": int if key == "offset" else str for key in TABLE_KEYS},
    **dict.fromkeys((*SECTIONS, PROVENANCE), Entries),
}


def read_run_file(path: str | Path, changes: Sequence[str] = ()) -> WrittenRun:
    """Read a recipe file; see `read_run`.

    Raises:
        RecipeError: It cannot be read, or as `read_run`.
    """
    try:
        with open(Path(path).expanduser(), encoding="utf-8-sig", opener=_open) as stream:
            text = stream.read(MOST_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise RecipeError(f"{path} is not UTF-8, so it is no recipe.", "Name a YAML file.") from None
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise RecipeError(f"The recipe {path} cannot be read: {why}.", "Name a YAML file that is there.") from None
    return read_run(text, str(path), changes)


def _open(path: str, flags: int) -> int:
    """Open a file, or the pipe of a shell's ``<(…)``, and wait for no one who might write to a pipe one day."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "set_blocking"):
        os.set_blocking(descriptor, True)
    return descriptor


def read_run(text: str, where: str, changes: Sequence[str] = ()) -> WrittenRun:
    """Read a recipe of several steps.

    Args:
        text: YAML.
        where: What to call it in messages.
        changes: What to put in place of what it says, each as ``key=value``, the value YAML too.

    Raises:
        RecipeError: Everything that is wrong in it, one a line.
    """
    faults: list[Fault] = []
    file = Place(0, where)
    root = read_value(text, file)
    if not isinstance(root.content, Entries):
        raise RecipeError(f"{file}: there is {KINDS[type(root.content)]} where a mapping should be.", HINT)
    values = _flat(root.content)
    changed = [_change(values, change, faults) for change in changes]
    if any(key.split(".")[0] in ORIGIN for key in changed):
        values.pop(PROVENANCE, None)
    given = _checked(values, faults)
    found = _recipe(file, values, given, faults)
    if faults or found is None:
        raise RecipeError("\n".join(map(str, sorted(set(faults)))), HINT)
    return WrittenRun(found, given.get(PROVENANCE, {}))


def _flat(entries: Entries, prefix: str = "") -> dict[str, Value]:
    """Return keys, those of sections with a dot and behind their section's own, with their values."""
    flat: dict[str, Value] = {}
    for written, value in entries:
        key = prefix + written.replace("-", "_")
        if key in SECTIONS and value.content is None:
            continue
        flat[key] = replace(value, is_second=key in flat)
        if key in SECTIONS and isinstance(value.content, Entries):
            flat |= _flat(value.content, f"{key}.")
    return flat


def _change(values: dict[str, Value], change: str, faults: list[Fault]) -> str:
    """Put a value in the place of what the file says; return its key."""
    written, equals, text = change.partition("=")
    key, place = written.strip().replace("-", "_"), Place(0, f"--set {written}")
    if not equals:
        faults.append(Fault(place, "write it as key=value, such as train.steps=100"))
        return key
    try:
        value = read_value(text, place, in_lines=False)
    except RecipeError as error:
        faults.append(Fault(place, error.message.removeprefix(f"{place}: ")))
        return key
    section = key.partition(".")[0]
    for old in [name for name in values if name.startswith(f"{key}.")]:
        del values[old]
    values.pop(key, None)
    if section in SECTIONS and key != section and value.content is not None:
        values.setdefault(section, Value(Entries(), place))
    values |= _flat(Entries([(key, value)]))
    return key


def _checked(values: Mapping[str, Value], faults: list[Fault]) -> dict[str, Any]:
    """Return the values of keys that there are, of the types that they should have; null stands for nothing."""
    given: dict[str, Any] = {}
    for key, value in values.items():
        place = value.place
        if value.is_second:
            faults.append(Fault(place, f"{key} stands there twice"))
        if key not in KEYS:
            faults.append(Fault(place, _unknown(key)))
        elif value.content is not None:
            content = plain(value)
            fitted = _fitted(content, KEYS[key])
            if fitted is None:
                found = KINDS[type(value.content)]
                faults.append(Fault(place, f"{key} is {found}, and should be {KINDS[KEYS[key]]}{_quoted(value, key)}"))
            given[key] = fitted
    return given


def _quoted(value: Value, key: str) -> str:
    is_text = KEYS[key] is str and isinstance(value.content, bool | int | float)
    return ": put it in quotes" if is_text else ""


def _fitted(content: Any, wanted: Any) -> Any:
    """Return a value as the type that is wanted; None where it cannot be."""
    if get_origin(wanted) is tuple:
        items = content if isinstance(content, list) else [content]
        fitted = tuple(_fitted(item, get_args(wanted)[0]) for item in items)
        return None if None in fitted else fitted
    if wanted is Entries:
        return content if isinstance(content, dict) else None
    if wanted is float:
        return _number(content)
    return content if type(content) is wanted else None


def _number(content: Any) -> float | None:
    """Return a number; PyYAML takes one such as 1e-4, which has no dot, for text."""
    if isinstance(content, bool) or not isinstance(content, int | float | str):
        return None
    try:
        number = float(content)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) or not isinstance(content, str) else None


def _unknown(key: str) -> str:
    """Say that there is no such key, and which is nearest."""
    section, dot, name = key.rpartition(".")
    siblings = [known for known in KEYS if known.rpartition(".")[0] == section]
    elsewhere = [known for known in KEYS if known.rpartition(".")[2] == name]
    names = get_close_matches(name, [known.rpartition(".")[2] for known in siblings], 1)
    near = [*elsewhere, *(f"{section}{dot}{known}" for known in names)]
    advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(siblings or KEYS)}"
    return f"there is no key {key}; {advice}"


def _recipe(file: Place, values: Mapping[str, Value], given: Mapping[str, Any], faults: list[Fault]) -> Recipe | None:
    """Return the recipe that is asked for; None where something is missing."""
    if "source" not in values or values["source"].content is None:
        faults.append(Fault(file, "source is missing: name the checkpoint to begin with"))
    asked = [section for section in SECTIONS if section in values]
    if not asked:
        faults.append(Fault(file, f"nothing is asked for: add {', '.join(SECTIONS)}, or several of them"))
    made = {section: _section(section, values, given, faults) for section in asked if given.get(section) is not None}
    ref = {name: given.get(key) for key, name in REF_KEYS.items()} | {"source": given.get("source") or ""}
    ref |= {name: found for key, name in TABLE_KEYS.items() if (found := given.get(f"resize.{key}")) is not None}
    try:
        recipe = Recipe(CheckpointRef(**ref), **made, output=given.get("output"))
    except ResizeError as error:
        faults.append(Fault(values["resize"].place, str(error)))
        return None
    return None if faults else recipe


def _section(section: str, values: Mapping[str, Value], given: Mapping[str, Any], faults: list[Fault]) -> Any:
    """Return a section as its dataclass, whatever is wrong in it left out."""
    names = [known.name for known in fields(SECTIONS[section]) if f"{section}.{known.name}" in given]
    found = {name: given[f"{section}.{name}"] for name in names}
    wrong = {name for name, value in found.items() if value is None}
    for known in _needed(section):
        if known not in found:
            faults.append(Fault(values[section].place, f"{section}.{known} is missing"))
    found = {known: PLACEHOLDERS[known] for known in _needed(section)} | {
        name: value for name, value in found.items() if value is not None
    }
    while True:
        try:
            return SECTIONS[section](**found)
        except ResizeError as error:
            name = _culprit(section, found, error)
            if all(_named_at(error, other) == math.inf for other in wrong):
                faults.append(Fault(values[f"{section}.{name}"].place, str(error)))
            wrong.add(name)
            del found[name]
            found |= {known: PLACEHOLDERS[known] for known in _needed(section) if known not in found}


def _needed(section: str) -> Iterator[str]:
    yield from (known.name for known in fields(SECTIONS[section]) if known.default is MISSING)


def _culprit(section: str, found: Mapping[str, Any], error: ResizeError) -> str:
    """Return the key without which there would be no such error, or another."""
    cured, changed = [], []
    for name in found:
        without = {key: value for key, value in found.items() if key != name}
        without |= {name: PLACEHOLDERS[name]} if name in _needed(section) else {}
        try:
            SECTIONS[section](**without)
        except ResizeError as other:
            changed += [name] if other.message != error.message else []
        else:
            cured.append(name)
    candidates = cured or changed or list(found)
    return min(candidates, key=lambda name: _named_at(error, name))


def _named_at(error: ResizeError, name: str) -> float:
    """Return where an error's message names a key, as the flag that it is on the command line; inf if nowhere."""
    named = re.search(rf"--{name.replace('_', '-')}(?![\w-])", error.message)
    return named.start() if named else math.inf
