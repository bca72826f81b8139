"""A tokenizer of transformers for texts of any length, without padding or truncation."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctxextend.checkpoint.source import BUNDLED, HUB_ID
from ctxextend.errors import CheckpointError, DataError, one_line
from ctxextend.held_out import Ids
from ctxextend.limits.statements import TOKENIZER_FILES

COPY_TOKENIZER = (
    "Copy the tokenizer files into the folder, or pass --tokenizer: the model's own, or "
    "nanoGPT's meta.pkl."
)
MAX_UNKNOWN = 40  # characters without a token that a message lists


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer, and the special tokens that it adds to each text."""

    tokenizer: Any  # from transformers
    before: tuple[int, ...] = ()  # ids of the special tokens before a text
    after: tuple[int, ...] = ()  # ids of the special tokens after a text

    @classmethod
    def open(cls, name: str | os.PathLike[str]) -> "TextTokenizer":
        """Load a tokenizer from a folder, a bundled name, a Hub id or a ``meta.pkl`` of nanoGPT.

        Raises:
            CheckpointError: transformers cannot load it, or it has no vocabulary.
        """
        if Path(name).suffix == ".pkl":
            from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
            from transformers import PreTrainedTokenizerFast

            from ctxextend.checkpoint.nanogpt import read_characters

            characters = Tokenizer(models.WordLevel(read_characters(Path(name))))
            characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            characters.decoder = decoders.Fuse()
            return cls(PreTrainedTokenizerFast(tokenizer_object=characters))  # type: ignore[no-untyped-call]
        tokenizer = _load_tokenizer(name)
        plain = tokenizer("a", add_special_tokens=False)["input_ids"]
        full = tokenizer("a")["input_ids"]
        size = len(plain)
        starts = (at for at in range(len(full)) if full[at : at + size] == plain)
        start = next(starts, len(full))
        return cls(
            tokenizer=tokenizer,
            before=tuple(full[:start]),
            after=tuple(full[start + size :]),
        )

    @property
    def num_special(self) -> int:
        """The number of special tokens added to each text."""
        return len(self.before) + len(self.after)

    @property
    def separator(self) -> int | None:
        """The token between joined documents, or None."""
        token: int | None = self.tokenizer.eos_token_id
        if token is None:
            token = self.tokenizer.sep_token_id
        return token

    def encode(self, text: str) -> Ids:
        """Return the ids of a text of any length, without special tokens, shape (tokens,).

        Raises:
            DataError: The tokenizer has no token for a character.
        """
        (ids,) = self.encode_all([text])
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """Return what `encode` returns of each text, in less time for many short ones.

        Raises:
            DataError: The tokenizer has no token for a character.
        """
        try:
            encoded = self.tokenizer(
                texts, add_special_tokens=False, truncation=False, verbose=False
            )
        except Exception as error:  # of tokenizers' own type, from a vocabulary of characters
            unknown = sorted({*"".join(texts)} - self.tokenizer.get_vocab().keys())
            listed = "".join(unknown)[:MAX_UNKNOWN]
            hint = "Use text with characters of its vocabulary."
            raise DataError(f"The tokenizer has no token for {listed!r}.", hint) from error
        return [np.array(ids, np.int64) for ids in encoded["input_ids"]]

    def add_special_tokens(self, ids: Ids) -> Ids:
        """Return ids with the special tokens around them: shape (k,), then (k + num_special,)."""
        before = np.array(self.before, np.int64)
        after = np.array(self.after, np.int64)
        return np.concatenate([before, ids, after])


def check_tokenizer_name(name: str | os.PathLike[str]) -> None:
    """Check that a name can be one of a tokenizer; see `TextTokenizer.open`.

    Raises:
        CheckpointError: It is neither a file or folder, nor a bundled name or Hub id.
    """
    if not Path(name).exists() and re.fullmatch(HUB_ID, os.fspath(name)) is None:
        message = f"Tokenizer {os.fspath(name)} is neither a file or folder nor a Hub id."
        raise CheckpointError(message, "Check the path (or the id, OWNER/NAME).")


def _load_tokenizer(name: str | os.PathLike[str]) -> Any:
    from transformers import AutoTokenizer

    source = BUNDLED.get(str(name), name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # of various types, for a folder that transformers cannot load
        message = (
            f"transformers cannot load a tokenizer from {name}: {type(error).__name__}: "
            f"{one_line(error)}"
        )
        folder = Path(name)
        if folder.is_dir() and not any((folder / file).exists() for file in TOKENIZER_FILES):
            message = f"No tokenizer found in {name}."
        raise CheckpointError(message, COPY_TOKENIZER) from error
    # Without tokenizer files, transformers can return a tokenizer with an empty vocabulary.
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise CheckpointError(f"No tokenizer found in {name}.", COPY_TOKENIZER)
    return tokenizer
