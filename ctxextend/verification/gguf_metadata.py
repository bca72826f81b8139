"""Compare what a resized GGUF file has besides tensors with its base, as edited."""

from collections.abc import Iterator

from ctxextend.checkpoint.copy import open_source, reading
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.gguf_checkpoint import RECIPE_KEY, gguf_file
from ctxextend.checkpoint.gguf_header import GgufFile
from ctxextend.checkpoint.gguf_rewrite import new_pairs
from ctxextend.errors import counted
from ctxextend.verification.checks import Check, Evidence
from ctxextend.verification.compare_bytes import first_difference_of_streams
from ctxextend.verification.expected import Expected


def check_metadata(expected: Expected, resized: Checkpoint) -> Check:
    """Compare all bytes but those of tensors and the recipe.

    Raises:
        CheckpointError: A file cannot be read.
    """
    base = gguf_file(expected.base)
    other = gguf_file(resized)
    edits = {edit.key: edit.after for edit in expected.plan.edits}
    pairs = new_pairs(base, edits)
    found = {key: pair.content for key, pair in other.pairs.items()}
    keys = {**pairs, **found}.keys() - {RECIPE_KEY}
    stated = {**base.values, **edits}
    faults = list[str]()
    if other.version != base.version:
        faults.append(f"the file has version {other.version}, expected {base.version}")
    for key in sorted(keys):
        if pairs.get(key) != found.get(key):
            values = (other.values.get(key, "missing"), stated.get(key, "missing"))
            faults.append(f"{key} is {values[0]!r}, expected {values[1]!r}, or has another type")
    changed = {table.name for table in expected.plan.stored if table.is_changed}
    faults += _wrong_gaps(base, other, changed)
    changes = "; ".join(f"{key} {value}" for key, value in edits.items())
    text = f"only {changes} changed" if changes else "nothing changed"
    finding = f"{counted(len(keys), 'key')} compared (recipe excluded): {text}"
    return Evidence(failures=faults, findings=[finding]).check("metadata")


def _wrong_gaps(base: GgufFile, resized: GgufFile, changed: set[str]) -> Iterator[str]:
    """Yield the tensors that other bytes follow than in the base; after changed ones, any may."""
    found = _gaps(resized)
    with (
        open_source(base.path) as before,
        open_source(resized.path) as after,
        reading(f"{base.path} or {resized.path}"),
    ):
        for name, (offset, size) in _gaps(base).items():
            if name in changed or name not in found:
                continue
            before.seek(offset)
            after.seek(found[name][0])
            is_same = first_difference_of_streams(before, after, size) is None
            if found[name][1] != size or not is_same:
                yield f"after {name}, the file has other bytes that belong to no tensor"


def _gaps(file: GgufFile) -> dict[str, tuple[int, int]]:
    """Return offset and size of the bytes after the header and after each tensor, by its name."""
    gaps = dict[str, tuple[int, int]]()
    name = "the header"
    end = file.data_start
    for entry in sorted(file.entries.values(), key=lambda entry: (entry.start, entry.end)):
        gaps[name] = (end, file.data_start + entry.start - end)
        name = entry.name
        end = file.data_start + entry.end
    gaps[name] = (end, file.size - end)
    return gaps
