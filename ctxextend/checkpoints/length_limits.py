"""The side files that state how much text is read, and what they must say at another length."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal, TypeAlias

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.families.lookup import nested
from ctxextend.json_output import not_in_json

Kind: TypeAlias = Literal["tokenizer", "sentence", "truncation", "padding", "generation"]
# Where limits are stated, and who obeys them: transformers' tokenizer or generate, sentence-transformers (which reads
# the name of several families in place of bert), or by the others the tokenizers library.
PLACES: tuple[tuple[str, Kind, tuple[str, ...]], ...] = (
    ("tokenizer_config.json", "tokenizer", ("model_max_length",)),
    ("tokenizer.json", "truncation", ("truncation", "max_length")),
    ("tokenizer.json", "padding", ("padding", "strategy")),
    ("sentence_*_config.json", "sentence", ("max_seq_length",)),
    ("generation_config.json", "generation", ("max_length",)),
)
NO_LIMIT = 10**9  # from here on a number is no limit that anybody meant: transformers writes 1e30


@dataclass(frozen=True)
class Edit:
    """One value that changes in one JSON file."""

    file: str  # below the checkpoint's root
    path: tuple[str, ...] = field(metadata=not_in_json)
    before: Any  # None where the key was missing
    after: Any
    is_limit: bool = field(default=False, metadata=not_in_json)  # a number of tokens at which texts are cut
    reason: str = ""  # a reason where the change is not plain

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
    kind: Kind

    @property
    def tokens(self) -> int | None:
        """The number of tokens that it states; None where it states none."""
        value = self.value.get("Fixed") if isinstance(self.value, dict) else self.value
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < NO_LIMIT else None


def limit_edits(
    checkpoint: Checkpoint, before: int, after: int, tokenizer: str = "", *, fix_limits: bool = False
) -> tuple[Edit, ...]:
    """Return the edits that make a folder's tokenizer and side files read `after` tokens.

    A longer table, or `mend`, raises every limit to its length, but for that of generated texts, which is only lowered;
    a shorter one lowers those above it. `tokenizer` is the tokenizer's folder if it has one of its own.
    """
    edits = []
    for limit in stated_limits(checkpoint, tokenizer) if fix_limits or after != before else ():
        stated = limit.value.get("Fixed") if isinstance(limit.value, dict) else limit.value
        is_within = isinstance(stated, int | float) and stated <= after
        is_raised = (fix_limits or after > before) and limit.kind != "generation"
        new, reason = "BatchLongest" if limit.kind == "padding" else after, ""
        if limit.kind == "padding":
            reason = f"padding every text to {after} tokens would make short ones as slow as long ones"
        elif limit.kind == "tokenizer" and limit.tokens is None:
            reason = "it stated no limit, and longer texts would fail"
        if (is_raised or not is_within) and limit.value != new:
            is_limit = limit.kind not in ("generation", "padding")
            edits.append(Edit(limit.file, limit.path, limit.value, new, is_limit, reason))
    return tuple(edits)


def stated_limits(checkpoint: Checkpoint, tokenizer: str = "") -> Iterator[StatedLimit]:
    """Yield every place in a folder's tokenizer and side files that states how much text is read."""
    folders = (PurePosixPath(tokenizer),) if tokenizer else (PurePosixPath("."), checkpoint.model)
    for name in checkpoint.copied:
        path = PurePosixPath(name)
        places = [(kind, keys) for pattern, kind, keys in PLACES if fnmatchcase(path.name, pattern)]
        if path.parent not in folders or not places:
            continue
        values = load_object(checkpoint.root / name)
        for kind, keys in places:
            # transformers goes by the old name where the new one is not there at all.
            is_old = kind == "tokenizer" and "max_len" in values and keys[0] not in values
            found = ("max_len",) if is_old else keys
            value = nested(values, found)
            if kind == "tokenizer" or value not in (None, "BatchLongest"):
                yield StatedLimit(name, found, value, kind)
