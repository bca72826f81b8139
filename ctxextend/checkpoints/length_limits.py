"""The side files that state how much text is read, and what they must say at another length."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import load_object, read_member, read_text
from ctxextend.json_output import not_in_json

# From here on a number is no limit that anybody meant: transformers writes 1e30.
NO_LIMIT = 10**9


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
    path: tuple[str, ...] = field(metadata=not_in_json)
    before: Any
    after: Any
    is_limit: bool = field(default=False, metadata=not_in_json)
    why: str = ""

    json_properties: ClassVar = ("key",)

    @property
    def key(self) -> str:
        """The path of keys, with dots."""
        return ".".join(self.path)


@dataclass(frozen=True)
class StatedLimit:
    """One place in a side file that states how much text is read.

    Attributes:
        file: Path below the checkpoint's root.
        path: The keys that lead to the value.
        value: The value, as it stands there; None where the key is missing.
        kind: Who obeys it: the ``tokenizer`` of transformers, ``sentence``-transformers, the tokenizers library, by
            ``truncation`` or ``padding``, or transformers' ``generation``.
    """

    file: str
    path: tuple[str, ...]
    value: Any
    kind: Literal["tokenizer", "sentence", "truncation", "padding", "generation"]

    @property
    def tokens(self) -> int | None:
        """The number of tokens that it states; None where it states none."""
        value = self.value.get("Fixed") if isinstance(self.value, dict) else self.value
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < NO_LIMIT else None

    def edit(self, length: int) -> Edit:
        """Return the edit that makes it read `length` tokens."""
        if self.kind == "padding":
            why = f"padding every text to {length} tokens would make short ones as slow as long ones"
            return Edit(self.file, self.path, self.value, "BatchLongest", why=why)
        unset = self.kind == "tokenizer" and self.tokens is None
        why = "it stated no limit, and longer texts would fail" if unset else ""
        return Edit(self.file, self.path, self.value, length, is_limit=self.kind != "generation", why=why)


def limit_edits(
    checkpoint: Checkpoint, before: int, after: int, tokenizer: str = "", *, mend: bool = False
) -> tuple[Edit, ...]:
    """Return the edits that make a folder's tokenizer and side files read `after` tokens.

    A longer table raises every limit to its length, but for that of generated texts, which is only lowered; a shorter
    one lowers those above it.

    Args:
        checkpoint: The folder.
        before: Old length, in token positions.
        after: New length, in token positions.
        tokenizer: The folder of the tokenizer, below the root; empty is the checkpoint's own.
        mend: Whether every limit is given the new length, whatever the old one was.

    Raises:
        CheckpointError: One of these files is not valid JSON.
    """
    stated = stated_limits(checkpoint, tokenizer) if mend or after != before else ()
    raised = mend or after > before
    wrong = (limit for limit in stated if not _is_within(limit.value, after) or (raised and limit.kind != "generation"))
    edits = (limit.edit(after) for limit in wrong)
    return tuple(edit for edit in edits if edit.before != edit.after)


def _is_within(stated: Any, length: int) -> bool:
    if isinstance(stated, dict):
        stated = stated.get("Fixed")
    return isinstance(stated, int | float) and stated <= length


def stated_limits(checkpoint: Checkpoint, tokenizer: str = "") -> Iterator[StatedLimit]:
    """Yield every place in a folder's tokenizer and side files that states how much text is read.

    Args:
        checkpoint: The folder.
        tokenizer: As in `limit_edits`.

    Raises:
        CheckpointError: One of these files is not valid JSON.
    """
    folders = (PurePosixPath(tokenizer),) if tokenizer else (PurePosixPath("."), checkpoint.model)
    for name in checkpoint.copied:
        path = PurePosixPath(name)
        read = next((read for pattern, read in _READERS.items() if fnmatchcase(path.name, pattern)), None)
        if read and path.parent in folders:
            yield from read(name, checkpoint.root / name)


def _tokenizer_config(file: str, path: Path) -> Iterator[StatedLimit]:
    values = load_object(path)
    # transformers goes by the old name where the new one is not there at all.
    key = "max_len" if "max_len" in values and "model_max_length" not in values else "model_max_length"
    yield StatedLimit(file, (key,), values.get(key), "tokenizer")


def _sentence_config(file: str, path: Path) -> Iterator[StatedLimit]:
    value = load_object(path).get("max_seq_length")
    if value is not None:
        yield StatedLimit(file, ("max_seq_length",), value, "sentence")


def _tokenizer(file: str, path: Path) -> Iterator[StatedLimit]:
    text = read_text(path)
    truncation, padding = (read_member(text, key, str(path)) for key in ("truncation", "padding"))
    if isinstance(truncation, dict) and "max_length" in truncation:
        yield StatedLimit(file, ("truncation", "max_length"), truncation["max_length"], "truncation")
    if isinstance(padding, dict) and isinstance(padding.get("strategy"), dict):
        yield StatedLimit(file, ("padding", "strategy"), padding["strategy"], "padding")


def _generation_config(file: str, path: Path) -> Iterator[StatedLimit]:
    value = load_object(path).get("max_length")
    if isinstance(value, int):
        yield StatedLimit(file, ("max_length",), value, "generation")


# sentence-transformers reads the name of several families in place of bert, and the first that it finds.
_READERS = {
    "tokenizer_config.json": _tokenizer_config,
    "tokenizer.json": _tokenizer,
    "sentence_*_config.json": _sentence_config,
    "generation_config.json": _generation_config,
}
