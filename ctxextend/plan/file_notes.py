"""Notes on files of a checkpoint that its output lacks, and on code that its files name."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.checkpoints.source import OUTSIDE, dereference_hint
from ctxextend.errors import CheckpointError, listed
from ctxextend.notes import Code, Level, Note

# Files whose auto_map names code that transformers runs with trust_remote_code=True.
AUTO_MAP_FILES = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
)


def file_notes(checkpoint: Checkpoint) -> Iterator[Note]:
    """Yield the files that are not copied, by reason, and a warning for auto_map entries."""
    by_reason = dict[str, list[str]]()
    for name, reason in checkpoint.omitted.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        if reason != OUTSIDE:
            yield Note(Code.FILES, Level.NOTE, f"Not copied: {listed(names)} ({reason}).")
            continue
        kind = "symlinks that point" if len(names) > 1 else "a symlink that points"
        text = (
            f"Not copied: {listed(names)}, {kind} outside the folder. "
            f"{dereference_hint(checkpoint.root)}"
        )
        yield Note(Code.FILES, Level.WARNING, text)

    classes = dict[str, None]()  # ``modeling_x.XModel``, ``owner/repo--modeling_x.XModel``
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
            classes |= {item: None for item in values if isinstance(item, str)}
    if classes:
        text = (
            f"auto_map in the output's config files refers to code: {listed(list(classes))}. "
            "Loading the output with trust_remote_code=True runs it, wherever it is."
        )
        yield Note(Code.OWN_CODE, Level.WARNING, text)
