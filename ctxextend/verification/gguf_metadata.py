"""Compare what a resized GGUF file has besides tensors with its base, as edited."""

from collections.abc import Iterator

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.copy import read_range
from ctxextend.checkpoint.gguf_checkpoint import gguf_file
from ctxextend.checkpoint.gguf_header import GgufFile
from ctxextend.checkpoint.gguf_rewrite import new_pairs
from ctxextend.errors import counted
from ctxextend.verification.checks import Check
from ctxextend.verification.expected import Expected


def check_metadata(expected: Expected, resized: Checkpoint) -> Check:
    """Compare all bytes but those of tensors and the recipe.

    Raises:
        CheckpointError: A file cannot be read.
    """
    base = gguf_file(expected.base)
    found = gguf_file(resized)
    edits = {edit.key: edit.after for edit in expected.plan.edits}
    pairs = new_pairs(base, edits)
    stated = {**base.values, **edits}
    keys = {**pairs, **found.pairs}
    faults = [
        f"{key} is {found.values.get(key)!r}, expected {stated.get(key)!r}, or of another type"
        for key in sorted(keys)
        if pairs.get(key) != found.pairs.get(key)
    ]
    if found.version != base.version:
        faults.append(f"the file has version {found.version}, expected {base.version}")
    for (name, before), (other, after) in zip(_gaps(base), _gaps(found), strict=False):
        # Other tensors are reported elsewhere, and new padding follows one that changes.
        if name == other and before != after and name not in expected.plan.tensors:
            faults.append(f"after {name}, the file has other bytes that belong to no tensor")
    changes = "; ".join(f"{key} {value}" for key, value in edits.items())
    finding = (
        f"{counted(len(keys), 'key')} compared (recipe excluded): changed {changes or 'nothing'}"
    )
    return Check("metadata", failures=faults, findings=[finding])


def _gaps(file: GgufFile) -> Iterator[tuple[str, bytearray]]:
    """Yield each tensor, the last one first, with the bytes after it, which belong to none."""
    end = file.size - file.data_start
    entries = sorted(file.entries.values(), key=lambda entry: (entry.start, entry.end))
    for entry in reversed(entries):
        yield entry.name, read_range(file.path, file.data_start + entry.end, end - entry.end)
        end = entry.start
