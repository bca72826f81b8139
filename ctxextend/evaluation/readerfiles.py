"""A checkpoint's config, headers and tokenizer: all that must be known of it before its weights are loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.weights import read_floats
from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import Place
from ctxextend.models.load import check_loadable
from ctxextend.plan.find_tables import OpenedModel, check_rows, describe_table
from ctxextend.plan.plan import table_hash
from ctxextend.recipe import CheckpointRef

__all__ = ["ReaderFiles", "check_tables", "open_files"]


@dataclass(frozen=True)
class ReaderFiles:
    """A checkpoint that can be loaded to read texts, its weights not read yet.

    Attributes:
        opened: The checkpoint.
        place: What the registry knows of the table that reads its texts.
        table: That table's tensor.
        rows: The table's rows, those in front of position 0 included.
        tokenizer: The tokenizer of transformers.
        prefix: As in `Reader`.
        suffix: As in `Reader`.
    """

    opened: OpenedModel
    place: Place
    table: str
    rows: int
    tokenizer: Any
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    @property
    def ref(self) -> CheckpointRef:
        """The checkpoint as the user named it."""
        return self.opened.ref

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint, its headers read."""
        return self.opened.checkpoint

    @property
    def max_len(self) -> int:
        """Tokens that it reads at once, special tokens included."""
        return self.place.positions(self.rows)

    @property
    def offset(self) -> int:
        """The table's rows in front of position 0."""
        return self.rows - self.max_len


def open_files(opened: OpenedModel, hashes: Mapping[str, str] | None = None) -> ReaderFiles:
    """Read the config, the headers and the tokenizer of a checkpoint.

    Args:
        opened: The checkpoint.
        hashes: The SHA-256 that its tables should have, by their names; None is whatever they have.

    Raises:
        CheckpointError: A table is another, transformers cannot load it alone, or it has no tokenizer.
    """
    checkpoint = opened.checkpoint
    check_tables(checkpoint, opened.ref, hashes or {})
    check_loadable(checkpoint, "Resize it first: what resize writes can be loaded.")
    place, name = opened.tables[0]
    rows = describe_table(checkpoint, name)[0][0]
    check_rows(place, rows, name, has_config=True)
    tokenizer = _tokenizer(checkpoint)
    return ReaderFiles(opened, place, name, rows, tokenizer, *_special_tokens(tokenizer))


def check_tables(checkpoint: Checkpoint, ref: CheckpointRef, hashes: Mapping[str, str], then: str = "then") -> None:
    """Refuse a checkpoint that took the place of another since that was resized.

    Args:
        checkpoint: What is there now.
        ref: What it is called.
        hashes: The SHA-256 that each table had, by the table's name.
        then: When it had them, in words.

    Raises:
        CheckpointError: A table is another, or there is none.
    """
    for name, known in hashes.items():
        if name not in checkpoint.names or table_hash(read_floats(checkpoint.holder(name), name)) != known:
            raise CheckpointError(f"{ref.source} is no longer what it was {then}: its table {name} is another.")


def _tokenizer(checkpoint: Checkpoint) -> Any:
    from transformers import AutoTokenizer

    folder = checkpoint.root / checkpoint.model
    hint = "Put the tokenizer's files into the folder: without them no text can be read."
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever a tokenizer of transformers raises on a folder that it cannot load
        said = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"transformers cannot load a tokenizer from {folder}: {type(error).__name__}: {said}", hint
        ) from error
    # Where there are no files, transformers makes one that knows no word.
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise CheckpointError(f"There is no tokenizer in {folder}.", hint)
    return tokenizer


def _special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that a tokenizer puts in front of a text and behind it."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a")["input_ids"]
    start = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), len(framed))
    return tuple(framed[:start]), tuple(framed[start + len(bare) :])
