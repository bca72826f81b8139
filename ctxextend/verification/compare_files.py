"""Compare all files but weights with those of the base, as edited: JSON files by content."""

import filecmp
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.card import CARD_FILE
from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.copy import reading
from ctxextend.checkpoint.filenames import IGNORED_NAMES, RECIPE_FILE, matches
from ctxextend.checkpoint.json_edit import load_object, parse_json, read_text, shown_value
from ctxextend.errors import CheckpointError, counted
from ctxextend.limits.statements import GENERATION_CONFIG
from ctxextend.positions.positions import Keys, nested
from ctxextend.verification.checks import Check, Evidence
from ctxextend.verification.config_meaning import changed_meaning
from ctxextend.verification.expected import Expected
from ctxextend.verification.json_changes import (
    INFORMATIONAL_KEYS,
    MISSING,
    ValueChange,
    changed_values,
    json_text,
)

# The files that have informational keys.
INFORMED_FILES = ("config.json", GENERATION_CONFIG)
NOT_COMPARED = (  # files that do not affect the model
    CARD_FILE,
    RECIPE_FILE,
    ".gitattributes",
    "trainer_state.json",
    "train_log.jsonl",
    "train_loss.png",
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
    weights = resized.weights
    listed = weights.index["weight_map"] if weights.index else weights.entries
    unlisted = [name for name in weights.entries if name not in listed]
    faults = [f"{weights.index_file} does not list {name}" for name in unlisted]
    faults += _omitted_files(resized)
    faults += _added_files(expected, resized)
    variant = expected.base.weights.variant
    if variant != weights.variant:
        expected_variant = variant or "no variant"
        faults.append(f"the weights are variant {weights.variant}, expected {expected_variant}")
    names = sorted(_compared_files(expected, resized))
    for name in names:
        faults += _compare_file(expected, resized, name)
    if faults:
        return Evidence(failures=faults).check("files")
    count = (
        f"{counted(len(names), 'file')} compared (model card, licenses, logs and recipe excluded)"
    )
    findings = [f"{count}: {_changes_text(expected)}", "no stale weight files"]
    return Evidence(findings=findings).check("files")


def _changes_text(expected: Expected) -> str:
    """Say which values the resize or conversion has changed, and which files it has generated."""
    written = [edit for edit in expected.plan.edits if edit.file not in expected.stale_files]
    edits = "; ".join(f"{edit.file} {edit.key} {shown_value(edit.after)}" for edit in written)
    if expected.conversion:
        text = "as the conversion writes them"
        return f"{text}, {edits}" if edits else text
    text = "nothing changed"
    if edits:
        text = f"only these values changed: {edits}"
    if expected.base.generated:
        text += f"; {', '.join(sorted(expected.base.generated))} generated"
    return text


def _compared_files(expected: Expected, resized: Checkpoint) -> set[str]:
    """Return the files of the output that affect the model, except weights."""
    base = expected.base
    excluded = set(base.weights.files)
    if {resized.relative(file) for file in resized.weights.files.values()} != excluded:
        excluded.add(base.weights.index_file)  # other shards need another index
    output = expected.planned.output
    files = {*output.texts, *output.files.copied, *output.files.linked} - excluded
    files -= expected.stale_files
    return {name for name in files if not _is_not_compared(name)}


def _is_not_compared(name: str) -> bool:
    return matches(name, NOT_COMPARED)


def _omitted_files(resized: Checkpoint) -> Iterator[str]:
    """Yield the files in the folder that do not belong to a checkpoint, such as other weights."""
    for name, reason in resized.omitted.items():
        if PurePosixPath(name).name not in IGNORED_NAMES:
            yield f"unexpected {name}: {reason}"


def _added_files(expected: Expected, resized: Checkpoint) -> Iterator[str]:
    """Yield the files that are neither in the output nor created by transformers."""
    known = {*expected.planned.output.sizes} - expected.stale_files
    if not expected.base.has_config and _states_lengths(expected, resized):
        known.add(resized.config_file)  # a bare weights file needs one
    for name in resized.copied:
        is_known = name in known or _is_not_compared(name)
        if not is_known and not _repeats_config(resized, name):
            yield f"{name} is not in the base"


def _states_lengths(expected: Expected, resized: Checkpoint) -> bool:
    """Whether the config of a resized checkpoint states the new lengths of all tables."""
    for table in expected.plan.changes:
        length = table.positions.key_value(table.max_len_after)
        if nested(resized.config, table.positions.length_paths[0]) != length:
            return False
    return True


def _repeats_config(resized: Checkpoint, name: str) -> bool:
    """Whether a file is a generation config that repeats config.json: transformers adds one."""
    if PurePosixPath(name) != PurePosixPath(resized.config_file).with_name(GENERATION_CONFIG):
        return False
    try:
        content = load_object(resized.root / name)
    except CheckpointError:
        return False
    stated = {key: value for key, value in content.items() if (key,) not in INFORMATIONAL_KEYS}
    return all(resized.config.get(key, MISSING) == value for key, value in stated.items())


def _compare_file(expected: Expected, resized: Checkpoint, name: str) -> list[str]:
    """Return how one file differs from the base's file with its edits."""
    if name not in resized.files:
        if name in resized.omitted:  # reported as unexpected
            return []
        return [f"{name} is missing"]
    path = resized.root / name
    base_path = expected.base.root / name
    text = expected.planned.output.texts.get(name)
    try:
        if text is None:
            if _have_same_bytes(base_path, path):
                return []
            if path.suffix != ".json":
                return [f"{name} is not byte-identical to the base's"]
            expected_text = read_text(base_path)
        else:
            expected_text = text.decode("utf-8")
        actual = read_text(path)
        if actual == expected_text:
            return []
        before = parse_json(expected_text, name)
        after = parse_json(actual, name)
    except CheckpointError as error:
        return [error.message]
    return [*_other_values(expected, name, before, after)]


def _have_same_bytes(first: Path, second: Path) -> bool:
    with reading(second):
        return filecmp.cmp(first, second, shallow=False)


def _other_values(expected: Expected, name: str, before: Any, after: Any) -> Iterator[str]:
    """Yield the values of a JSON file that are not the expected ones, in any spelling."""
    changes: list[ValueChange] = list(changed_values(before, after))
    if PurePosixPath(name).name in INFORMED_FILES:
        changes = [change for change in changes if change.path not in INFORMATIONAL_KEYS]
    is_config = expected.base.has_config and name == expected.base.config_file
    if is_config:
        changes = [change for change in changes if not _is_engine_key(expected, change)]
    if is_config and changes:
        changes = changed_meaning(expected.base, expected.plan.changes, before, after, changes)
    lengths = _edited_lengths(expected, name)
    for path, old, new in changes:
        text = f"{name}: {'.'.join(path)} is {json_text(new)}, expected {json_text(old)}"
        if any(path[: len(edited)] == edited for edited in lengths):
            text += " (the new length)"
        yield text


def _is_engine_key(expected: Expected, change: ValueChange) -> bool:
    """Whether a change is only a key that other engines need, stated or left out.

    Outputs of earlier versions lack it as their bases do, and those that were only trained state it
    although their bases do not.
    """
    for table in expected.plan.changes:
        key = table.positions.engine_paths.get(change.path)
        if key is None:
            continue
        if change.before is MISSING:
            needed = key.value or table.positions.key_value(table.max_len_after)
            return bool(change.after == needed)
        is_generated = expected.base.config_file in expected.base.generated
        is_in_base = nested(expected.base.config, change.path) is not None and not is_generated
        return change.after is MISSING and not is_in_base
    return False


def _edited_lengths(expected: Expected, name: str) -> list[Keys]:
    """Return the paths of the lengths that the resize writes to a file; others are rotary."""
    paths = [edit.path for edit in expected.plan.edits if edit.file == name]
    return [path for path in paths if not any("rope" in key for key in path)]
