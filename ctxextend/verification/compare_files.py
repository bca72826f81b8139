"""Compare all files but weights with those of the base, as edited: JSON files by content."""

import filecmp
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoints.copy import reading
from ctxextend.checkpoints.filenames import IGNORED_NAMES, first_match
from ctxextend.checkpoints.folder import Checkpoint, code_files
from ctxextend.checkpoints.json_edit import load_object, parse_json, read_bytes
from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import Keys, nested
from ctxextend.limits.statements import GENERATION_CONFIG
from ctxextend.output.card import CARD_FILE
from ctxextend.recipe import RECIPE_FILE
from ctxextend.verification.config_meaning import changed_meaning
from ctxextend.verification.expected import Expected
from ctxextend.verification.json_changes import (
    INFORMATIONAL_KEYS,
    MISSING,
    ValueChange,
    changed_values,
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


@dataclass(frozen=True)
class MissingFile:
    """A file that the resized checkpoint lacks."""

    file: str


@dataclass(frozen=True)
class OtherContent:
    """A file, not JSON, whose bytes are not those of the base."""

    file: str


@dataclass(frozen=True)
class UnreadableFile:
    """A file that cannot be compared."""

    reason: str  # a sentence that names the file


@dataclass(frozen=True)
class OtherValue:
    """A value in a JSON file that is not the expected one."""

    file: str
    path: Keys
    found: Any  # `MISSING` if there is none
    expected: Any
    is_length: bool  # whether the resize writes it, as a length


FileDifference = MissingFile | OtherContent | UnreadableFile | OtherValue


@dataclass(frozen=True)
class UnexpectedFile:
    """A file that the output should not have."""

    file: str
    reason: str  # why no checkpoint has it; empty: the base does not have it


@dataclass(frozen=True)
class WrongVariant:
    """Weights of another variant than those of the base; None: of no variant."""

    found: str | None
    expected: str | None


@dataclass(frozen=True)
class ComparedFiles:
    """What was compared of a checkpoint's files, and what is wrong."""

    count: int  # files that were compared
    unlisted: tuple[str, ...]  # tensors that the index does not list
    index_file: str
    unexpected: tuple[UnexpectedFile, ...]
    wrong_variant: WrongVariant | None
    differences: tuple[FileDifference, ...]


def compare_files(expected: Expected, resized: Checkpoint) -> ComparedFiles:
    """Compare all files except weights, cards, licenses, logs and recipes.

    Raises:
        CheckpointError: A file of the base cannot be read.
    """
    names = sorted(_compared_files(expected, resized))
    listed = (
        resized.weights.index["weight_map"] if resized.weights.index else resized.weights.entries
    )
    wrong_variant = None
    if expected.base.weights.variant != resized.weights.variant:
        wrong_variant = WrongVariant(resized.weights.variant, expected.base.weights.variant)
    differences = list[FileDifference]()
    for name in names:
        differences += _compare_file(expected, resized, name)
    return ComparedFiles(
        count=len(names),
        unlisted=tuple(name for name in resized.weights.entries if name not in listed),
        index_file=resized.weights.index_file,
        unexpected=(*_omitted_files(resized), *_added_files(expected, resized)),
        wrong_variant=wrong_variant,
        differences=tuple(differences),
    )


def _compared_files(expected: Expected, resized: Checkpoint) -> set[str]:
    """Return the files of the output that affect the model, except weights."""
    base = expected.base
    excluded = set(base.weights.files)
    if {resized.relative(file) for file in resized.weights.files.values()} != excluded:
        excluded.add(base.weights.index_file)  # other shards need another index
    code = set(code_files(base)) & set(code_files(resized))  # code files are optional in an output
    files = {*expected.files.texts, *expected.files.copied, *code} - excluded
    files -= expected.stale_files
    return {name for name in files if not _is_not_compared(name)}


def _is_not_compared(name: str) -> bool:
    return first_match(PurePosixPath(name), NOT_COMPARED) is not None


def _omitted_files(resized: Checkpoint) -> Iterator[UnexpectedFile]:
    """Yield the files in the folder that do not belong to a checkpoint, such as other weights."""
    for name, reason in resized.omitted.items():
        if PurePosixPath(name).name not in IGNORED_NAMES and name not in code_files(resized):
            yield UnexpectedFile(name, reason)


def _added_files(expected: Expected, resized: Checkpoint) -> Iterator[UnexpectedFile]:
    """Yield the files that are neither in the output nor created by transformers."""
    known = {*expected.files.names, *code_files(expected.base)} - expected.stale_files
    if not expected.base.has_config and _states_lengths(expected, resized):
        known.add(resized.config_file)  # a bare weights file needs one
    for name in (*resized.copied, *code_files(resized)):
        is_known = name in known or _is_not_compared(name)
        if not is_known and not _repeats_config(resized, name):
            yield UnexpectedFile(name, "")


def _states_lengths(expected: Expected, resized: Checkpoint) -> bool:
    """Whether the config of a resized checkpoint states the new lengths of all tables."""
    for table in expected.tables:
        length = table.location.key_value(table.max_len_after)
        if nested(resized.config, table.location.length_paths[0]) != length:
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


def _compare_file(expected: Expected, resized: Checkpoint, name: str) -> list[FileDifference]:
    """Return how one file differs from the base's file with its edits."""
    if name not in resized.files and name not in code_files(resized):
        if name in resized.omitted:  # reported as unexpected
            return []
        return [MissingFile(name)]
    path = resized.root / name
    base_path = expected.base.root / name
    text = expected.files.texts.get(name)
    try:
        if text is None:
            if _have_same_bytes(base_path, path):
                return []
            if path.suffix != ".json":
                return [OtherContent(name)]
            text = read_bytes(base_path)
        actual = read_bytes(path)
        if actual == text:
            return []
        before = parse_json(text.decode("utf-8"), name)
        after = parse_json(actual.decode("utf-8"), name)
    except CheckpointError as error:
        return [UnreadableFile(error.message)]
    except UnicodeDecodeError as error:
        return [UnreadableFile(f"{name} is not UTF-8 text (byte {error.start}).")]
    return [*_other_values(expected, name, before, after)]


def _have_same_bytes(first: Path, second: Path) -> bool:
    with reading(second):
        return filecmp.cmp(first, second, shallow=False)


def _other_values(expected: Expected, name: str, before: Any, after: Any) -> Iterator[OtherValue]:
    """Yield the values of a JSON file that are not the expected ones, in any spelling."""
    changes: list[ValueChange] = list(changed_values(before, after))
    if PurePosixPath(name).name in INFORMED_FILES:
        changes = [change for change in changes if change.path not in INFORMATIONAL_KEYS]
    is_config = expected.base.has_config and name == expected.base.config_file
    if is_config:
        changes = [change for change in changes if not _is_engine_key(expected, change)]
    if is_config and changes:
        changes = changed_meaning(expected.base, expected.tables, before, after, changes)
    lengths = _edited_lengths(expected, name)
    for path, old, new in changes:
        is_length = any(path[: len(edited)] == edited for edited in lengths)
        yield OtherValue(file=name, path=path, found=new, expected=old, is_length=is_length)


def _is_engine_key(expected: Expected, change: ValueChange) -> bool:
    """Whether a change is only a key that other engines need, stated or left out.

    Outputs of earlier versions lack it as their bases do, and those that were only trained state it
    although their bases do not.
    """
    for table in expected.tables:
        key = table.location.engine_paths.get(change.path)
        if key is None:
            continue
        if change.before is MISSING:
            needed = key.value or table.location.key_value(table.max_len_after)
            return bool(change.after == needed)
        is_generated = expected.base.config_file in expected.base.generated
        is_in_base = nested(expected.base.config, change.path) is not None and not is_generated
        return change.after is MISSING and not is_in_base
    return False


def _edited_lengths(expected: Expected, name: str) -> list[Keys]:
    """Return the paths of the lengths that the resize writes to a file; others are rotary."""
    paths = [edit.path for edit in expected.files.edits if edit.file == name]
    return [path for path in paths if not any("rope" in key for key in path)]
