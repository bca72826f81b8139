"""Open the checkpoint to verify, as its base was opened."""

from pathlib import Path

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.filenames import READABLE, variant_of
from ctxextend.checkpoint.folder import open_checkpoint
from ctxextend.checkpoint.source import Source, has_file, resolve_source
from ctxextend.errors import CheckpointError


def open_resized(source: Source, base: Checkpoint) -> Checkpoint:
    """Open a checkpoint in the base's variant, or else its only variant or its only file.

    Raises:
        CheckpointError: A file is missing, malformed, or a link that points outside the folder.
    """
    files = list[Path]()
    if source.file is None:
        inside = (source.folder / base.model).glob("*.*")
        files = [path for path in inside if path.suffix in READABLE]
    # The base's variant if any file has it, else the one that all files have.
    variants = {variant_of(path.name) for path in files}
    variant = base.weights.variant
    if variant not in variants and len(variants) == 1:
        variant = variants.pop()
    elif variant not in variants:
        variant = None
    has_no_config = not base.has_config and not base.adapter_of
    if len(files) == 1 and has_no_config:
        # Rejects a link that points outside, since the user did not name this file.
        has_file(source, files[0])
        source = resolve_source(files[0])
    resized = open_checkpoint(source, variant)
    if base.file_suffix or resized.file_suffix:
        before, after = (one.config.get("model_type") for one in (base, resized))
        if before != after:
            message = f"{source.reference} is a {after} model, and its base a {before} one."
            raise CheckpointError(message, "Verify it against the one that it was resized from.")
    return resized
