"""The side files that state how much text is read, and what they must say at another length."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.json_output import not_in_json

# From here on a number is no limit that anybody meant: transformers writes 1e30.
NO_LIMIT = 10**9


@dataclass(frozen=True)
class Edit:
    """One value that changes in one JSON file."""

    file: str  # below the checkpoint's root
    path: tuple[str, ...] = field(metadata=not_in_json)
    before: Any  # None where the key was missing
    after: Any
    is_limit: bool = field(default=False, metadata=not_in_json)  # a number of tokens at which texts are cut
    why: str = ""  # a reason where the change is not plain

    json_properties: ClassVar = ("key",)

    @property
    def key(self) -> str:
        """The path of keys, with dots."""
        return ".".join(self.path)


@dataclass(frozen=True)
class StatedLimit:
    """One place in a side file that states how much text is read."""

    file: str  # below the checkpoint's root
    path: tuple[str, ...]
    value: Any  # as it stands there; None where the key is missing
    # Who obeys it: transformers' tokenizer or generate, sentence-transformers, or the tokenizers library by the others.
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

    A longer table, or `mend`, raises every limit to its length, but for that of generated texts, which is only lowered;
    a shorter one lowers those above it. `tokenizer` is the tokenizer's folder if it has one of its own.
    """
    edits = []
    for limit in stated_limits(checkpoint, tokenizer) if mend or after != before else ():
        stated = limit.value.get("Fixed") if isinstance(limit.value, dict) else limit.value
        is_within = isinstance(stated, int | float) and stated <= after
        is_raised = (mend or after > before) and limit.kind != "generation"
        edit = limit.edit(after)
        if (is_raised or not is_within) and edit.before != edit.after:
            edits.append(edit)
    return tuple(edits)


def stated_limits(checkpoint: Checkpoint, tokenizer: str = "") -> Iterator[StatedLimit]:
    """Yield every place in a folder's tokenizer and side files that states how much text is read."""
    folders = (PurePosixPath(tokenizer),) if tokenizer else (PurePosixPath("."), checkpoint.model)
    for name in checkpoint.copied:
        path = PurePosixPath(name)
        kinds = (kind for pattern, kind in _KINDS.items() if fnmatchcase(path.name, pattern))
        if path.parent not in folders or (kind := next(kinds, None)) is None:
            continue
        values = load_object(checkpoint.root / name)
        if kind == "tokenizer":
            # transformers goes by the old name where the new one is not there at all.
            key = "max_len" if "max_len" in values and "model_max_length" not in values else "model_max_length"
            yield StatedLimit(name, (key,), values.get(key), kind)
        elif kind == "sentence" and values.get("max_seq_length") is not None:
            yield StatedLimit(name, ("max_seq_length",), values["max_seq_length"], kind)
        elif kind == "generation" and isinstance(values.get("max_length"), int):
            yield StatedLimit(name, ("max_length",), values["max_length"], kind)
        elif kind == "truncation":
            truncation, padding = values.get("truncation"), values.get("padding")
            if isinstance(truncation, dict) and "max_length" in truncation:
                yield StatedLimit(name, ("truncation", "max_length"), truncation["max_length"], "truncation")
            if isinstance(padding, dict) and isinstance(padding.get("strategy"), dict):
                yield StatedLimit(name, ("padding", "strategy"), padding["strategy"], "padding")


_KINDS: dict[str, Literal["tokenizer", "truncation", "sentence", "generation"]] = {
    "tokenizer_config.json": "tokenizer",
    "tokenizer.json": "truncation",
    # sentence-transformers reads the name of several families in place of bert, and the first that it finds.
    "sentence_*_config.json": "sentence",
    "generation_config.json": "generation",
}
