"""Find the length limits in the files of tokenizers and of sentence-transformers."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ctxextend.checkpoints.filenames import matches
from ctxextend.checkpoints.folder import MODULES, Checkpoint
from ctxextend.families.lookup import Keys, nested
from ctxextend.limits.statements import NO_LIMIT, STATEMENTS, LengthStatement

# Files that AutoTokenizer can load.
TOKENIZER_FILES = {
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
}
# Configs of sentence-transformers, in the order in which it looks them up.
SENTENCE_CONFIGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
INPUT_LIMITS = tuple(row for row in STATEMENTS if row.meaning in ("truncation", "padding"))
PADS_TO_LONGEST = "BatchLongest"  # padding strategy of tokenizers without a length


class StatedLimit(NamedTuple):
    """One length limit in a side file."""

    file: str  # relative to the checkpoint's root
    path: Keys
    value: Any  # as in the file; None if the key is missing
    statement: LengthStatement

    @property
    def number(self) -> Any:
        """The value, without the name of a padding strategy."""
        return self.value.get("Fixed") if isinstance(self.value, dict) else self.value

    @property
    def tokens(self) -> int | None:
        """The limit in tokens; None if there is none."""
        number = self.number
        if isinstance(number, bool) or not isinstance(number, int):
            return None
        return number if 0 < number < NO_LIMIT else None


def stated_limits(checkpoint: Checkpoint, tokenizer: str = "") -> Iterator[StatedLimit]:
    """Yield the length limits in a folder's tokenizer and side files.

    `tokenizer` is the tokenizer's folder if it has a separate one.
    """
    folders = {PurePosixPath(tokenizer)} if tokenizer else {PurePosixPath("."), checkpoint.model}
    for file in checkpoint.copied:
        path = PurePosixPath(file)
        if path.parent not in folders:
            continue
        for statement in INPUT_LIMITS:
            if matches(path.name, statement.file):
                yield from _stated_limit(checkpoint, file, statement)


def _stated_limit(
    checkpoint: Checkpoint, file: str, statement: LengthStatement
) -> Iterator[StatedLimit]:
    """Yield the limit that a file states by a key, if any."""
    values = checkpoint.read_object(file)
    path = statement.key
    value = nested(values, path)
    old_key = statement.old_key
    if old_key is not None and old_key[0] in values and path[0] not in values:
        path = old_key
        value = nested(values, path)
    if statement.is_expected or value not in (None, PADS_TO_LONGEST):
        yield StatedLimit(file=file, path=path, value=value, statement=statement)


def sentence_config(checkpoint: Checkpoint) -> str | None:
    """Return the config that sentence-transformers uses: its first one that is not empty.

    None without modules.json, or without such a config.
    """
    if MODULES not in checkpoint.copied:
        return None
    for name in SENTENCE_CONFIGS:
        path = (checkpoint.model / name).as_posix()
        if path in checkpoint.copied and checkpoint.read_object(path):
            return path
    return None
