"""Find the length limits in the files of tokenizers and of sentence-transformers."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ctxextend.checkpoints.filenames import matches
from ctxextend.checkpoints.folder import MODULES, Checkpoint
from ctxextend.limits.statements import NO_LIMIT, STATEMENTS, LengthStatement
from ctxextend.positions.positions import Keys, nested

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
    number: Any  # the value, without the name of a padding strategy
    tokens: int | None  # the limit; None if there is none
    statement: LengthStatement


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
            if not matches(path.name, statement.file):
                continue
            values = checkpoint.read_object(file)
            keys = statement.key
            old_key = statement.old_key
            if old_key is not None and old_key[0] in values and keys[0] not in values:
                keys = old_key
            value = nested(values, keys)
            if not statement.should_be_stated and value in (None, PADS_TO_LONGEST):
                continue
            number = value.get("Fixed") if isinstance(value, dict) else value
            tokens = None
            if type(number) is int and 0 < number < NO_LIMIT:
                tokens = number
            yield StatedLimit(
                file=file,
                path=keys,
                value=value,
                number=number,
                tokens=tokens,
                statement=statement,
            )


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
