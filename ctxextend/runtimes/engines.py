"""Engines and their rules, as `engines.json` states them; `serving.engine_statements` reads them.

The first rule of an engine that fits a folder counts; without one, nothing is said. A rule may
state:

- ``types`` and ``positions``: those that it is about; all if it names none. Names in capitals are
  groups. ``has``: what else a folder must have, as in ``Facts.has``.
- ``outcome``, if it is not "serves", with its ``reason`` as a clause.
- ``length``: the length that the engine takes from the folder: the first of these names that
  ``Facts.lengths`` has; without any, it reads inputs of the new length.
- ``options``: names of options of the engine that make it right.
- ``ignores``: what of ``Facts.has`` the engine does not read, so that outputs differ a little.
- ``evidence``: "run" or, in ``source``, the file that was read.

An engine's ``evidence`` and ``ignores`` are those of its rules that state none. In commands and
options, {folder}, {max_len}, … stand for values. ``why`` is for readers.
"""

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from ctxextend.errors import ResizeError, did_you_mean
from ctxextend.tables.rope_types import NONE

# Positions of a folder: the scheme of a table of rows, a rope type, or one of these.
UNSCALED = "unscaled"  # rotary positions that no setting changes
RAISED_THETA = "theta"  # another base than the default of the model type
SWITCHED = "switch"  # rope type ``longrope`` with an attention factor, as the method states it
REMOVED = NONE  # ``linear`` settings that rotate nothing
WITHOUT_SETTINGS = ("learned", "sinusoidal", "ALiBi", "relative", UNSCALED, REMOVED)

# What else a folder may have: rotary settings that it states only as ``rope_parameters``, or betas
# of yarn other than transformers' defaults. Settings have their key as a name.
ONLY_ROPE_PARAMETERS = "only_rope_parameters"
BETAS = "betas"

RUN = "run"  # how evidence starts that is not the URL of what was read


class Outcome(StrEnum):
    """What an engine makes of a folder."""

    SERVES = "serves"  # it reads the requested length, and applies the method
    DERIVES = "derives"  # it applies the method, but reads another length without an option
    IGNORES = "ignores"  # it loads the folder without the method
    DIFFERS = "differs"  # it loads the folder, and computes other positions than transformers
    REFUSES = "refuses"  # it fails with an error


class Rule(NamedTuple):
    """What an engine does with some folders; the module explains the values."""

    types: tuple[str, ...]
    positions: tuple[str, ...]
    has: frozenset[str]
    outcome: Outcome
    reason: str
    length: tuple[str, ...]
    options: tuple[str, ...]
    ignores: tuple[str, ...]
    evidence: str


class Engine(NamedTuple):
    """A program that loads the folder, or a file that is converted from it."""

    key: str  # as ``--for`` takes it
    name: str
    version: str  # that was run or read
    command: str  # that serves or converts a folder; empty: Python code loads it
    own_command: str  # that serves a checkpoint that only this engine reads; empty: the same
    options: Mapping[str, str]
    rules: tuple[Rule, ...]


def _words(value: str | list[str], groups: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the words of a text, or of several, with groups as what they contain."""
    text = value
    if isinstance(text, list):
        text = " ".join(text)
    for word in text.split():
        if word in groups:
            yield from _words(groups[word], groups)
        else:
            yield word


def _read_engine(key: str, stated: Mapping[str, Any]) -> Engine:
    types = stated.get("types", {})
    rules = list[Rule]()
    for row in stated["rules"]:
        evidence = row.get("evidence", stated.get("evidence", RUN))
        if not evidence.startswith(RUN):
            evidence = stated["source"] + evidence
        ignores = row.get("ignores", stated.get("ignores", ""))
        rules.append(
            Rule(
                types=tuple(_words(row.get("types", ""), types)),
                positions=tuple(_words(row.get("positions", ""), _CONTENT["positions"])),
                has=frozenset(row.get("has", "").split()),
                outcome=Outcome(row.get("outcome", Outcome.SERVES)),
                reason=row.get("reason", ""),
                length=tuple(row.get("length", "").split()),
                options=tuple(row.get("options", "").split()),
                ignores=tuple(ignores.split()),
                evidence=evidence,
            )
        )
    return Engine(
        key=key,
        name=stated["name"],
        version=stated["version"],
        command=stated.get("command", ""),
        own_command=stated.get("own_command", ""),
        options=stated.get("options", {}),
        rules=tuple(rules),
    )


_CONTENT = json.loads(Path(__file__).with_name("engines.json").read_text(encoding="utf-8"))
ENGINES = {key: _read_engine(key, stated) for key, stated in _CONTENT["engines"].items()}
EXPORT_TASKS: Mapping[str, str] = _CONTENT["tasks"]


def find_engine(key: str) -> Engine:
    """Return an engine by its key or its name, as ``--for`` takes it.

    Raises:
        ResizeError: There is none.
    """
    for engine in ENGINES.values():
        if key.lower() in (engine.key, engine.name.lower()):
            return engine
    hint = did_you_mean(key, list(ENGINES)) or f"Use one of {', '.join(ENGINES)}."
    raise ResizeError(f"Unknown engine {key!r}.", hint)
