"""Compare all files but weights with those of the base, as edited: JSON files by content."""

import filecmp
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from ctxextend.card import CARD_FILE
from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.copy import reading
from ctxextend.checkpoint.filenames import IGNORED_NAMES, RECIPE_FILE, matches
from ctxextend.checkpoint.json_edit import load_object, parse_json, read_text, shown_value
from ctxextend.errors import CheckpointError, counted
from ctxextend.limits.statements import GENERATION_CONFIG
from ctxextend.output import edited_texts
from ctxextend.positions.positions import nested
from ctxextend.verification.checks import Check
from ctxextend.verification.expected import Expected
from ctxextend.verification.json_changes import (
    MISSING,
    ValueChange,
    changed_meaning,
    changed_values,
    json_text,
)

# Keys that no model uses, and the files that have them.
INFORMATIONAL_KEYS = ("transformers_version", "_name_or_path", "_from_model_config")
INFORMED_FILES = ("config.json", GENERATION_CONFIG)
NOT_COMPARED = (  # files that do not affect the model
    CARD_FILE,
    RECIPE_FILE,
    ".gitattributes",
    "trainer_state.json",
    "train_log.jsonl",
    "runs/*",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "LICENCE",
    "LICENCE.txt",
    "LICENCE.md",
    "NOTICE",
    "NOTICE.txt",
    "NOTICE.md",
)


def check_files(expected: Expected, resized: Checkpoint) -> Check:
    """Compare all files except weights, cards, licenses, logs and recipes.

    Raises:
        CheckpointError: A file of the base cannot be read.
    """
    check = Check("files")
    faults = check.failures
    base = expected.base
    weights = resized.weights
    texts = edited_texts(expected.plan)
    names = {*base.files, *texts}
    if weights.index is not None:
        for name in weights.entries:
            if name not in weights.index["weight_map"]:
                faults.append(f"{weights.index_file} does not list {name}")
    faults += _unexpected_files(expected, resized, names)
    if base.weights.variant != weights.variant:
        variant = base.weights.variant or "no variant"
        faults.append(f"the weights are variant {weights.variant}, expected {variant}")
    names -= base.weights.files.keys()
    if {resized.relative(file) for file in weights.files.values()} != base.weights.files.keys():
        names.discard(base.weights.index_file)  # other shards need another index
    compared = sorted(name for name in names if not matches(name, NOT_COMPARED))
    for name in compared:
        if name in resized.files:
            faults += _compare_file(expected, resized, name, texts)
        elif name not in resized.omitted:  # else it is reported as unexpected
            faults.append(f"{name} is missing")
    if not faults:
        count = counted(len(compared), "file")
        check.findings.append(
            f"{count} compared (model card, licenses, logs and recipe excluded): "
            f"{_changes_text(expected)}"
        )
        check.findings.append("no stale weight files")
    return check


def _changes_text(expected: Expected) -> str:
    """Say which values the resize or conversion has changed, and which files it has generated."""
    changes = list[str]()
    for edit in expected.plan.edits:
        changes.append(f"{edit.file} {edit.key} {shown_value(edit.after)}")
    changes += [f"{name} generated" for name in sorted(expected.base.generated)]
    if not changes:
        changes.append("nothing")
    return f"changed {'; '.join(changes)}"


def _unexpected_files(
    expected: Expected, resized: Checkpoint, names: Collection[str]
) -> Iterator[str]:
    """Yield the files that are neither in the output, by their names, nor of transformers."""
    for name, reason in resized.omitted.items():  # files that belong to no checkpoint
        if PurePosixPath(name).name not in IGNORED_NAMES:
            yield f"unexpected {name}: {reason}"
    lengths_are_new = all(
        nested(resized.config, change.positions.length_paths[0])
        == change.positions.key_value(change.max_len_after)
        for change in expected.plan.changes
    )
    # A bare weights file needs a config.
    added = "" if expected.base.has_config or not lengths_are_new else resized.config_file
    for name in resized.copied:
        is_known = name in names or name == added or matches(name, NOT_COMPARED)
        if not is_known and not _repeats_config(resized, name):
            yield f"{name} is not in the base"


def _repeats_config(resized: Checkpoint, name: str) -> bool:
    """Whether a file is a generation config that repeats config.json: transformers adds one."""
    if PurePosixPath(name) != PurePosixPath(resized.config_file).with_name(GENERATION_CONFIG):
        return False
    try:
        stated = _without_information(load_object(resized.root / name))
    except CheckpointError:
        return False
    return all(resized.config.get(key, MISSING) == value for key, value in stated.items())


def _without_information(value: Any) -> Any:
    """Return the content of a JSON file without keys that no model uses."""
    if not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if key not in INFORMATIONAL_KEYS}


def _compare_file(
    expected: Expected, resized: Checkpoint, name: str, texts: Mapping[str, bytes]
) -> list[str]:
    """Return how one file differs from the base's file with its edits: values, if it is JSON."""
    base = expected.base
    path = resized.root / name
    try:
        if name in texts:
            text = texts[name].decode("utf-8")
        else:
            with reading(path):
                if filecmp.cmp(base.root / name, path, shallow=False):
                    return []
            if path.suffix != ".json":
                return [f"{name} is not byte-identical to the base's"]
            text = read_text(base.root / name)
        actual = read_text(path)
        if actual == text:
            return []
        before = parse_json(text, name)
        after = parse_json(actual, name)
    except CheckpointError as error:
        return [error.message]
    if path.name in INFORMED_FILES:
        before = _without_information(before)
        after = _without_information(after)
    if base.has_config and name == base.config_file:
        ignored = partial(_is_compared_elsewhere, expected)
        changes = changed_meaning(base, before, after, ignored)
    else:
        changes = list(changed_values(before, after))
    faults = list[str]()
    for keys, old, new in changes:
        faults.append(f"{name}: {'.'.join(keys)} is {json_text(new)}, expected {json_text(old)}")
    return faults


def _is_compared_elsewhere(expected: Expected, change: ValueChange) -> bool:
    """Whether a change is of rotary settings, or only a key that other engines need.

    Such a key may be stated or left out: outputs of earlier versions lack it as their bases do, and
    those that were only trained state it although their bases do not.
    """
    base = expected.base
    for table in expected.plan.changes:
        for start in table.positions.settings_paths(table):
            if change.path[: len(start)] == start:
                return True
        key = table.positions.engine_paths.get(change.path)
        if key is None:
            continue
        if change.before is MISSING:
            needed = key.value or table.positions.key_value(table.max_len_after)
            return bool(change.after == needed)
        is_generated = base.config_file in base.generated
        is_in_base = nested(base.config, change.path) is not None and not is_generated
        return change.after is MISSING and not is_in_base
    return False
