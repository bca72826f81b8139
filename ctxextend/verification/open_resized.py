"""Open the checkpoint to verify, as its base was opened."""

from pathlib import Path

from ctxextend.checkpoint.filenames import READABLE, is_gguf, variant_of
from ctxextend.checkpoint.folder import Checkpoint, open_checkpoint
from ctxextend.checkpoint.gguf_checkpoint import gguf_values, open_gguf_checkpoint
from ctxextend.checkpoint.source import Source, has_file, resolve_source
from ctxextend.errors import CheckpointError
from ctxextend.gguf.gguf_config import ARCHITECTURE


def open_resized(source: Source, base: Checkpoint) -> Checkpoint:
    """Open a checkpoint in the base's variant, or else its only variant or its only file.

    Raises:
        CheckpointError: A file is missing, malformed, or a link that points outside the folder.
    """
    if is_gguf(source.file) != base.is_gguf:
        message = f"Of {source.reference} and {base.source.reference}, only one is a GGUF file."
        raise CheckpointError(message, "Verify it against the one that it was resized from.")
    if is_gguf(source.file):
        return _open_gguf(source, base)
    files = list[Path]()
    if source.file is None:
        inside = (source.folder / base.model).glob("*.*")
        files = [path for path in inside if path.suffix in READABLE]
    variant = _find_variant(files, base.weights.variant)
    has_no_config = not base.has_config and not base.adapter_of
    if len(files) == 1 and has_no_config:
        # Rejects a link that points outside, since the user did not name this file.
        has_file(source, files[0])
        source = resolve_source(files[0])
    return open_checkpoint(source, variant)


def _open_gguf(source: Source, base: Checkpoint) -> Checkpoint:
    """Open a GGUF file of the architecture of its base.

    Raises:
        CheckpointError: It is malformed, or has another architecture.
    """
    resized = open_gguf_checkpoint(source)
    before = gguf_values(base)[ARCHITECTURE]
    after = gguf_values(resized)[ARCHITECTURE]
    if before != after:
        message = f"{source.reference} has architecture {after}, and its base {before}."
        raise CheckpointError(message, "Verify it against the one that it was resized from.")
    return resized


def _find_variant(files: list[Path], preferred: str | None) -> str | None:
    """Return the preferred variant if any file has it, else the one that all files have."""
    found = [variant_of(path.name) for path in files]
    variants = {name for name in found if name is not None}
    if preferred in variants:
        return preferred
    if len(variants) == 1 and None not in found:
        return variants.pop()
    return None
