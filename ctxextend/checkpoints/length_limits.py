"""Length limits in tokenizer and side files, and their edits for another context length."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal, TypeAlias

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.families.length_keys import NO_LIMIT
from ctxextend.families.lookup import nested
from ctxextend.json_output import not_in_json

LimitKind: TypeAlias = Literal["tokenizer", "sentence", "truncation", "padding"]
# File pattern, kind and key path of each limit. Kind tokenizer is used by transformers, kind
# sentence by sentence-transformers (with one of several model types in the file name), the others
# by tokenizers.
LOCATIONS: tuple[tuple[str, LimitKind, tuple[str, ...]], ...] = (
    ("tokenizer_config.json", "tokenizer", ("model_max_length",)),
    ("tokenizer.json", "truncation", ("truncation", "max_length")),
    ("tokenizer.json", "padding", ("padding", "strategy")),
    ("sentence_*_config.json", "sentence", ("max_seq_length",)),
)


@dataclass(frozen=True)
class Edit:
    """One changed value in a JSON file."""

    file: str  # relative to the checkpoint's root
    path: tuple[str, ...] = field(metadata=not_in_json)
    before: Any  # None if the key was missing
    after: Any
    is_limit: bool = field(
        default=False, metadata=not_in_json
    )  # a number of tokens that texts are truncated to
    reason: str = ""  # shown to the user if the change is not obvious

    json_properties: ClassVar = ("key",)

    @property
    def key(self) -> str:
        """The key path, joined with dots."""
        return ".".join(self.path)


@dataclass(frozen=True)
class StatedLimit:
    """One length limit in a side file."""

    file: str  # relative to the checkpoint's root
    path: tuple[str, ...]
    value: Any  # as in the file; None if the key is missing
    kind: LimitKind

    @property
    def tokens(self) -> int | None:
        """The limit in tokens; None if there is none."""
        value = self.value.get("Fixed") if isinstance(self.value, dict) else self.value
        return (
            value
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < NO_LIMIT
            else None
        )


def limit_edits(
    checkpoint: Checkpoint,
    lengths: tuple[int, int],
    tokenizer: str,
    *,
    fix_limits: bool,
    fixed_padding: bool,
    is_hard: bool = True,
) -> tuple[Edit, ...]:
    """Return the edits that set the limits in tokenizer and side files from one length to another,
    in tokens.

    A longer table, or `fix_limits`, sets every limit to `after`; a shorter table lowers the limits
    above `after`. `tokenizer` is the tokenizer's folder if it has a separate one. Padding to a
    fixed length becomes padding to the longest text, or to `after` with `fixed_padding`. A limit is
    added to a tokenizer without one if longer inputs fail (`is_hard`).
    """
    edits, (before, after) = list[Edit](), lengths
    for limit in stated_limits(checkpoint, tokenizer) if fix_limits or after != before else ():
        stated = limit.value.get("Fixed") if isinstance(limit.value, dict) else limit.value
        is_within = isinstance(stated, int | float) and stated <= after
        is_raised = fix_limits or after > before
        new = (
            ({"Fixed": after} if fixed_padding else "BatchLongest")
            if limit.kind == "padding"
            else after
        )
        reason = ""
        if new == "BatchLongest":
            reason = (
                f"padding every text to {after} tokens would make short texts as slow as long ones"
            )
        elif limit.kind == "tokenizer" and limit.tokens is None:
            if not is_hard:
                continue
            reason = "no limit was stated, and longer texts would fail"
        if (is_raised or not is_within) and limit.value != new:
            is_limit = limit.kind != "padding"
            edits.append(Edit(limit.file, limit.path, limit.value, new, is_limit, reason))
    return tuple(edits)


def stated_limits(checkpoint: Checkpoint, tokenizer: str = "") -> Iterator[StatedLimit]:
    """Yield the length limits in a folder's tokenizer and side files."""
    folders = (PurePosixPath(tokenizer),) if tokenizer else (PurePosixPath("."), checkpoint.model)
    for name in checkpoint.copied:
        path = PurePosixPath(name)
        locations = [
            (kind, keys) for pattern, kind, keys in LOCATIONS if fnmatchcase(path.name, pattern)
        ]
        if path.parent not in folders or not locations:
            continue
        values = load_object(checkpoint.root / name)
        for kind, keys in locations:
            is_old = (
                kind == "tokenizer" and "max_len" in values and keys[0] not in values
            )  # else the new name counts
            path_in_file = ("max_len",) if is_old else keys
            value = nested(values, path_in_file)
            if kind == "tokenizer" or value not in (None, "BatchLongest"):
                yield StatedLimit(name, path_in_file, value, kind)
