"""Compare a resized GGUF file with its base, as edited, but for its tensors: all other bytes."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from ctxextend.checkpoint.copy import open_source, reading
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.gguf_checkpoint import gguf_file
from ctxextend.checkpoint.gguf_header import ARRAY, RECIPE_KEY, GgufFile, GgufHeader, Pair, padded
from ctxextend.checkpoint.json_edit import Edit
from ctxextend.errors import counted
from ctxextend.gguf.gguf_config import shortest
from ctxextend.verification.checks import Check, Evidence
from ctxextend.verification.compare_bytes import first_difference_of_streams
from ctxextend.verification.expected import Expected
from ctxextend.verification.json_changes import MISSING, json_text


class BytesAfter(NamedTuple):
    """The bytes from the end of a tensor to the next one, or to the end of the file."""

    offset: int  # in the file
    padding: int  # bytes that align the next tensor; fewer or none at the end of the file
    others: int  # bytes after the padding, which belong to no tensor


ARRAY_VALUE = "an array"  # in messages, instead of its values
OTHER_ARRAY = "another array"


def check_metadata(expected: Expected, resized: Checkpoint) -> Check:
    """Compare all bytes but those of tensors and the recipe: values that change by value.

    Raises:
        CheckpointError: A file cannot be read.
    """
    base = gguf_file(expected.base)
    other = gguf_file(resized)
    before = base.metadata
    after = other.metadata
    faults = list[str]()
    if before.version != after.version:
        faults.append(
            f"the file has version {after.version} of the format, expected {before.version}"
        )
    edits = {edit.key: edit for edit in expected.plan.edits}
    keys = {**before.pairs, **edits, **after.pairs}.keys() - {RECIPE_KEY}
    for key in sorted(keys):
        faults += _compare_pair(key, edits.get(key), before, after)
    changed = {table.name for table in expected.plan.stored if table.is_changed}
    for name in _wrong_after(base, other, changed):
        place = name or "the header"
        faults.append(f"after {place}, the file has other bytes that belong to no tensor")
    if faults:
        return Evidence(failures=faults).check("metadata")
    changes = "; ".join(f"{edit.key} {edit.after}" for edit in expected.plan.edits)
    text = f"only {changes} changed" if changes else "nothing changed"
    finding = f"{counted(len(keys), 'key')} compared (recipe excluded): {text}"
    return Evidence(findings=[finding]).check("metadata")


def _wrong_after(base: GgufFile, resized: GgufFile, changed: Collection[str]) -> Iterator[str]:
    """Yield the tensors after which other bytes follow than in the base.

    Padding at the end of a file may be missing, and that of a changed tensor is new.

    Args:
        base: The base.
        resized: The resized file.
        changed: The tensors that change.

    Raises:
        CheckpointError: A file cannot be read.
    """
    found = _bytes_after(resized)
    with (
        open_source(base.path) as base_file,
        open_source(resized.path) as resized_file,
        reading(f"{base.path} or {resized.path}"),
    ):
        for name, expected in _bytes_after(base).items():
            if name not in found:
                continue
            after = found[name]
            padding = min(expected.padding, after.padding)
            if name in changed:
                padding = 0
            parts = (
                (expected.offset, after.offset, padding),
                (
                    expected.offset + expected.padding,
                    after.offset + after.padding,
                    expected.others,
                ),
            )
            is_same = expected.others == after.others
            for base_offset, offset, size in parts:
                base_file.seek(base_offset)
                resized_file.seek(offset)
                difference = first_difference_of_streams(base_file, resized_file, size)
                is_same = is_same and difference is None
            if not is_same:
                yield name


def _bytes_after(file: GgufFile) -> dict[str, BytesAfter]:
    """Return the bytes after each tensor by its name, and after the header by an empty one."""
    found = dict[str, BytesAfter]()
    name = ""
    end = 0
    entries = sorted(file.entries.values(), key=lambda entry: (entry.start, entry.end))
    starts = [entry.start for entry in entries]
    for index, start in enumerate((*starts, file.metadata.file_size - file.data_start)):
        available = max(start - end, 0)
        padding = min(padded(end, file.metadata.alignment) - end, available)
        found[name] = BytesAfter(
            offset=file.data_start + end,
            padding=padding,
            others=available - padding,
        )
        if index < len(entries):
            name = entries[index].name
            end = entries[index].end
    return found


def _compare_pair(
    key: str, edit: Edit | None, before: GgufHeader, after: GgufHeader
) -> Iterator[str]:
    """Yield how a key differs from what is expected, if it does."""
    found = _value(after.pairs.get(key))
    if edit is not None:
        if found != edit.after:
            yield f"{key} is {json_text(found)}, expected {json_text(edit.after)}"
    elif _content(key, before) != _content(key, after):
        stated = _value(before.pairs.get(key))
        if found == stated == ARRAY_VALUE:
            found = OTHER_ARRAY
        yield f"{key} is {json_text(found)}, expected {json_text(stated)}"


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
