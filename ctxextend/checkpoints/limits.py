"""The side files that state how much text is read, and what they must say at another length."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.jsontext import load_object, read_member, read_text

__all__ = ["Edit", "limit_edits"]


@dataclass(frozen=True)
class Edit:
    """One value that changes in one JSON file.

    Attributes:
        file: Path below the checkpoint's root.
        path: The keys that lead to the value.
        before: The old value; None where the key was missing.
        after: The new value.
        is_limit: Whether the value is a number of tokens at which texts are cut.
        why: A reason where the change is not plain; else empty.
    """

    file: str
    path: tuple[str, ...]
    before: Any
    after: Any
    is_limit: bool = False
    why: str = ""

    @property
    def key(self) -> str:
        """The path of keys, with dots."""
        return ".".join(self.path)

    def as_dict(self) -> dict[str, Any]:
        """Return file, key, old and new value and the reason as plain values."""
        # JSON has no word for the infinity that 1e400 is read as.
        endless = isinstance(self.before, float) and not math.isfinite(self.before)
        before = str(self.before) if endless else self.before
        return {"file": self.file, "key": self.key, "before": before, "after": self.after, "why": self.why}


def limit_edits(checkpoint: Checkpoint, before: int, after: int, tokenizer: str = "") -> tuple[Edit, ...]:
    """Return the edits that make a folder's tokenizer and side files read `after` tokens.

    A longer table raises every limit to its length; a shorter one lowers those above it.

    Args:
        checkpoint: The folder.
        before: Old length, in token positions.
        after: New length, in token positions.
        tokenizer: The folder of the tokenizer, below the root; empty is the checkpoint's own.

    Raises:
        CheckpointError: One of these files is not valid JSON.
    """
    if after == before:
        return ()
    folders = (PurePosixPath(tokenizer),) if tokenizer else (PurePosixPath("."), checkpoint.model)
    edits = _all_edits(checkpoint, after, folders)
    return tuple(edit for edit in edits if after > before or not _is_within(edit.before, after))


def _is_within(stated: Any, length: int) -> bool:
    if isinstance(stated, dict):
        stated = stated.get("Fixed")
    return isinstance(stated, int | float) and stated <= length


def _all_edits(checkpoint: Checkpoint, length: int, folders: tuple[PurePosixPath, ...]) -> Iterator[Edit]:
    for name in checkpoint.copied:
        path = PurePosixPath(name)
        edits = next((edits for pattern, edits in _READERS.items() if fnmatch(path.name, pattern)), None)
        if edits and path.parent in folders:
            yield from edits(name, checkpoint.root / name, length)


def _tokenizer_config(file: str, path: Path, length: int) -> Iterator[Edit]:
    before = load_object(path).get("model_max_length")
    why = "" if isinstance(before, int) and before < 10**9 else "it stated no limit, and longer texts would fail"
    yield Edit(file, ("model_max_length",), before, length, is_limit=True, why=why)


def _sentence_config(file: str, path: Path, length: int) -> Iterator[Edit]:
    before = load_object(path).get("max_seq_length")
    if before is not None:
        yield Edit(file, ("max_seq_length",), before, length, is_limit=True)


def _tokenizer(file: str, path: Path, length: int) -> Iterator[Edit]:
    text = read_text(path)
    truncation, padding = (read_member(text, key, str(path)) for key in ("truncation", "padding"))
    if isinstance(truncation, dict) and "max_length" in truncation:
        yield Edit(file, ("truncation", "max_length"), truncation["max_length"], length, is_limit=True)
    if isinstance(padding, dict) and isinstance(padding.get("strategy"), dict):
        yield Edit(
            file,
            ("padding", "strategy"),
            padding["strategy"],
            "BatchLongest",
            why=f"padding every text to {length} tokens would make short ones as slow as long ones",
        )


# sentence-transformers reads the name of several families in place of bert, and the first that it finds.
_READERS = {
    "tokenizer_config.json": _tokenizer_config,
    "tokenizer.json": _tokenizer,
    "sentence_*_config.json": _sentence_config,
}
