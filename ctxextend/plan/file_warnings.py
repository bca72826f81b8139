"""Warnings about links in the folder of a checkpoint, and about code that its files name."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.checkpoints.source import OUTSIDE, dereference_hint
from ctxextend.errors import CheckpointError, listed

# Files whose auto_map names code that transformers runs with trust_remote_code=True.
AUTO_MAP_FILES = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
)


def file_warnings(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield a warning for links that leave the folder, and for auto_map entries."""
    outside = [name for name, reason in checkpoint.omitted.items() if reason == OUTSIDE]
    if outside:
        kind = "symlinks that point" if len(outside) > 1 else "a symlink that points"
        yield (
            f"Not copied: {listed(outside)}, {kind} outside the folder. "
            f"{dereference_hint(checkpoint.root)}"
        )
    classes = list(dict.fromkeys(_auto_map_classes(checkpoint)))
    if classes:
        yield (
            f"auto_map in the output's config files refers to code: {listed(classes)}. Loading "
            "the output with trust_remote_code=True runs it, wherever it is."
        )


def _auto_map_classes(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the classes in auto_map: ``modeling_x.XModel``, ``owner/repo--modeling_x.XModel``."""
    for name in checkpoint.copied:
        if PurePosixPath(name).name not in AUTO_MAP_FILES:
            continue
        try:
            auto_map = load_object(checkpoint.root / name).get("auto_map")
        except CheckpointError:  # reported when the file is edited
            continue
        if not isinstance(auto_map, Mapping):
            continue
        for value in auto_map.values():
            values = value if isinstance(value, list) else [value]
            yield from (item for item in values if isinstance(item, str))
