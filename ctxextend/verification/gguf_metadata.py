"""Compare the metadata of a resized GGUF file with those of its base, as edited."""

from dataclasses import dataclass
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.gguf_checkpoint import RECIPE_KEY, gguf_file
from ctxextend.checkpoints.gguf_header import ARRAY, GgufHeader, Pair
from ctxextend.errors import counted
from ctxextend.families.gguf_positions import shortest
from ctxextend.limits.length_edits import Edit
from ctxextend.verification.checks import Check, Evidence
from ctxextend.verification.expected import Expected
from ctxextend.verification.json_changes import MISSING, json_text


@dataclass(frozen=True)
class WrongPair:
    """A key of the metadata with another value than expected."""

    key: str
    found: Any  # `MISSING` if it is not stated
    expected: Any


@dataclass(frozen=True)
class ComparedMetadata:
    """What was compared of the metadata, and what is wrong."""

    count: int  # keys that were compared
    wrong: tuple[WrongPair, ...]
    wrong_version: tuple[int, int] | None  # of the format: found and expected


ARRAY_VALUE = "an array"  # in messages, instead of its values
OTHER_ARRAY = "another array"


def compare_metadata(expected: Expected, resized: Checkpoint) -> ComparedMetadata:
    """Compare all keys but the recipe: values that change by value, all others byte by byte."""
    before = _header(expected.base)
    after = _header(resized)
    edits = {edit.key: edit for edit in expected.files.edits}
    wrong = list[WrongPair]()
    keys = {**before.pairs, **edits, **after.pairs}.keys() - {RECIPE_KEY}
    for key in sorted(keys):
        fault = _compare_pair(key, edits.get(key), before, after)
        if fault is not None:
            wrong.append(fault)
    wrong_version = None
    if before.version != after.version:
        wrong_version = (after.version, before.version)
    return ComparedMetadata(count=len(keys), wrong=tuple(wrong), wrong_version=wrong_version)


def _header(checkpoint: Checkpoint) -> GgufHeader:
    return gguf_file(checkpoint).metadata


def _compare_pair(
    key: str, edit: Edit | None, before: GgufHeader, after: GgufHeader
) -> WrongPair | None:
    """Return how a key differs from what is expected; None if it does not."""
    found = _value(after.pairs.get(key))
    if edit is not None:
        if found == edit.after:
            return None
        return WrongPair(key, found, edit.after)
    if _content(key, before) == _content(key, after):
        return None
    stated = _value(before.pairs.get(key))
    if found == stated == ARRAY_VALUE:
        found = OTHER_ARRAY
    return WrongPair(key, found, stated)


def _value(pair: Pair | None) -> Any:
    """Return the value of a pair, with numbers in the digits that the format keeps."""
    if pair is None:
        return MISSING
    if pair.value_type == ARRAY:
        return ARRAY_VALUE
    if isinstance(pair.value, float):
        return shortest(pair.value)
    return pair.value


def _content(key: str, header: GgufHeader) -> bytes | None:
    """Return the bytes of a pair; None if the file does not state the key."""
    pair = header.pairs.get(key)
    if pair is None:
        return None
    return header.content[pair.start : pair.end]


def metadata_check(expected: Expected, compared: ComparedMetadata) -> Check:
    """Return the check of the metadata, in words."""
    faults = list[str]()
    if compared.wrong_version is not None:
        found, stated = compared.wrong_version
        faults.append(f"the file has version {found} of the format, expected {stated}")
    for wrong in compared.wrong:
        found_text = json_text(wrong.found)
        faults.append(f"{wrong.key} is {found_text}, expected {json_text(wrong.expected)}")
    edits = "; ".join(f"{edit.key} {edit.after}" for edit in expected.files.edits)
    changes = f"only {edits} changed" if edits else "nothing changed"
    finding = f"{counted(compared.count, 'key')} compared (recipe excluded): {changes}"
    if faults:
        return Evidence(failures=faults).check("metadata")
    return Evidence(findings=[finding]).check("metadata")
