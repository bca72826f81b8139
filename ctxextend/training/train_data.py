"""Training data: the user's text as a file of token ids, and the sequences cut from it.

A sequence is a function of the seed and its number only, so that a resumed run and several processes see the same
sequences as one uninterrupted process.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import os_errors_as_output_error
from ctxextend.errors import DataError
from ctxextend.evaluation.eval_model import CAUSAL, MASKED, EvalModel

Tokens = NDArray[np.int32]
Ids = NDArray[np.int64]

# One token in how many is held out.
HELD_OUT = 20

# The label that torch's cross entropy ignores.
IGNORE_INDEX = -100

# The share of a text's tokens that are predicted; of these, below the first number in [0, 1) a token is masked, from
# there to the second it is replaced.
PREDICTED, IS_MASKED, IS_REPLACED = 0.15, 0.8, 0.9

# The first word of the seed of each random generator.
ORDER, POSITION, MASK = 1, 2, 3


# ---- tokens


def write_tokens(
    pieces: Iterable[tuple[str, bool]],
    encode: Callable[[str], Ids],
    separator: int | None,
    wanted: int,
    path: Path,
    advance: Callable[[int], None] = lambda tokens: None,
) -> int:
    """Write the tokens of a text into a file, until there are as many as are wanted; no more text is read than that.

    Args:
        pieces: From `read_pieces`: text, and whether a document ends with it.
        encode: Tokenizes a piece without special tokens, shape (tokens,).
        separator: The token after each document; None for none.
        wanted: Maximum number of tokens.
        path: The file, int32 in native byte order, no header. It gets its name when it is complete.
        advance: Called with the tokens written since the last call.

    Returns:
        The number of tokens.

    Raises:
        DataError: As the pieces raise it.
        OutputError: The file cannot be written.
    """
    unfinished, written = path.with_name(f"{path.name}.unfinished"), 0
    try:
        with os_errors_as_output_error(path), unfinished.open("wb") as file:
            for text, is_end in pieces:
                ids = encode(text)
                if is_end and separator is not None:
                    ids = np.append(ids, separator)
                ids = ids[: wanted - written].astype(np.int32)
                file.write(ids.data)
                written += len(ids)
                advance(len(ids))
                if written >= wanted:
                    break
            file.flush()
            os.fsync(file.fileno())
        with os_errors_as_output_error(path):
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return written


def open_tokens(path: Path) -> Tokens:
    """Return the tokens that `write_tokens` wrote, memory-mapped, shape (tokens,)."""
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, np.int32)
    return np.memmap(path, np.int32, mode="r")


def hold_out(tokens: Tokens, length: int) -> tuple[Tokens, Tokens]:
    """Split tokens into those to train on and the last twentieth, which is held out.

    Args:
        tokens: Shape (tokens,).
        length: Tokens of text in a sequence; at least as many are held out.

    Returns:
        Two views that do not overlap.

    Raises:
        DataError: One of them would be shorter than a sequence.
    """
    if len(tokens) < 2 * length:
        raise _too_few(len(tokens), f"{2 * length:,} are needed: a sequence to train on, and one held out")
    first = len(tokens) - max(len(tokens) // HELD_OUT, length)
    return tokens[:first], tokens[first:]


def check_enough(tokens: Tokens, length: int, what: str = "The text") -> None:
    """Raise DataError if a text, shape (tokens,), is shorter than a sequence."""
    if len(tokens) < length:
        raise _too_few(len(tokens), f"a sequence takes {length:,}", what)


def _too_few(tokens: int, needed: str, what: str = "The text") -> DataError:
    return DataError(
        f"{what} has {tokens:,} tokens, and {needed}.",
        "Name more text with --data, text to measure on with --eval-data, or a shorter --seq-len or --window.",
    )


# ---- masks


@dataclass(frozen=True)
class Masking:
    """How tokens are masked for a masked language model.

    Attributes:
        mask_token: The id of the mask token.
        vocab_size: Token ids that the model knows.
        special: Ids of special tokens, which are neither predicted nor used as replacements.
    """

    mask_token: int
    vocab_size: int
    special: frozenset[int]

    @classmethod
    def for_model(cls, reader: EvalModel) -> "Masking":
        """Return the masking of a model and its tokenizer."""
        tokenizer = reader.tokenizer.tokenizer
        known = getattr(reader.model.get_input_embeddings(), "num_embeddings", len(tokenizer))
        return cls(tokenizer.mask_token_id, min(len(tokenizer), known), frozenset(tokenizer.all_special_ids))

    @cached_property
    def ordinary(self) -> Ids:
        """The ids of tokens that are not special, shape (vocab_size - special,)."""
        return np.setdiff1d(np.arange(self.vocab_size), [*self.special])

    def apply(self, text: Ids, draw: np.random.Generator) -> tuple[Ids, Ids]:
        """Mask some tokens of a text.

        15 % of its ordinary tokens are predicted, at least one: 80 % of these are masked, 10 % replaced by a random
        ordinary token, and 10 % kept. The tokens of a text that has only special ones are treated as ordinary.

        Args:
            text: Shape (tokens,).
            draw: The random generator.

        Returns:
            The masked text and the labels, `IGNORE_INDEX` at other tokens; both of shape (tokens,).

        Source: Devlin et al. 2018, section 3.1 and appendix A.1, arXiv:1810.04805.
        """
        candidates = np.flatnonzero(~np.isin(text, [*self.special]))
        candidates = candidates if len(candidates) else np.arange(len(text))
        chosen = draw.choice(candidates, max(1, round(PREDICTED * len(candidates))), replace=False)
        masked, labels, lot = text.copy(), np.full_like(text, IGNORE_INDEX), draw.random(len(chosen))
        labels[chosen] = text[chosen]
        replaced = chosen[(lot >= IS_MASKED) & (lot < IS_REPLACED)]
        masked[chosen[lot < IS_MASKED]] = self.mask_token
        masked[replaced] = draw.choice(self.ordinary, len(replaced))
        return masked, labels


# ---- sequences


@dataclass(frozen=True)
class SequenceSettings:
    """What all sequences of a training run have in common.

    Attributes:
        special_before: Special tokens before each text.
        special_after: Special tokens after it.
        length: Tokens of a sequence, special tokens included.
        span: Positions that a sequence may use, ≥ `length`; if there are more, sequences stand at random positions.
        kind: `CAUSAL`, `MASKED` or `ENCODER`.
        masking: How a text is masked, for `MASKED`.
        skip: Whether the positions of a sequence jump once, as the text does (PoSE).
        seed: Seed of order, positions and masks, ≥ 0.
    """

    special_before: tuple[int, ...]
    special_after: tuple[int, ...]
    length: int
    span: int
    kind: str
    masking: Masking | None = None
    skip: bool = False
    seed: int = 0

    @property
    def text_length(self) -> int:
        """Tokens of a sequence without special tokens."""
        return self.length - len(self.special_before) - len(self.special_after)

    @property
    def largest_offset(self) -> int:
        """The largest position at which a sequence can begin."""
        return self.span - self.length

    def generator(self, purpose: int, number: int) -> np.random.Generator:
        """Return the random generator for a purpose in the epoch or sequence of that number."""
        return np.random.default_rng([purpose, self.seed, number])


class Placement(NamedTuple):
    """Where the text of a sequence is taken from, and at which positions it stands.

    Attributes:
        start: Its first token in the text.
        before: Tokens before the jump, ≥ 1.
        jump: Tokens and positions that the jump leaves out.
        offset: Positions left out between the special tokens before the text and the text.
    """

    start: int
    before: int
    jump: int
    offset: int


class SequenceDataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences cut from a text, by number.

    For training, each epoch cuts the text from another first token and shuffles the sequences; for evaluation they
    follow each other from the first token.

    Args:
        tokens: The text, shape (tokens,).
        settings: What the sequences have in common.
        count: Number of sequences, over all epochs.
        shuffled: Whether they are for training.

    Raises:
        DataError: The text is shorter than one sequence.
    """

    def __init__(self, tokens: Tokens, settings: SequenceSettings, count: int, *, shuffled: bool) -> None:
        check_enough(tokens, settings.text_length)
        self.tokens, self.settings, self.count, self.shuffled = tokens, settings, count, shuffled
        length = settings.text_length
        # An epoch leaves out one sequence, so that the first can begin at any of its tokens.
        self.epoch = max((len(tokens) + 1) // length - 1, 1) if shuffled else len(tokens) // length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return a sequence.

        Returns:
            ``input_ids``, int64, shape (length,); for language models ``labels`` of the same shape, not shifted,
            `IGNORE_INDEX` where nothing is predicted; and for sequences at random positions ``position_ids`` of the
            same shape, counted from 0, the first usable position.
        """
        if not 0 <= number < self.count:
            raise IndexError(number)
        settings, placed = self.settings, self._placement(number)
        after = placed.start + placed.before + placed.jump
        parts = (
            self.tokens[placed.start : placed.start + placed.before],
            self.tokens[after : after + settings.text_length - placed.before],
        )
        labels = text = np.concatenate(parts).astype(np.int64)
        if settings.kind == MASKED and settings.masking is not None:
            text, labels = settings.masking.apply(text, settings.generator(MASK, number))
        before, behind = len(settings.special_before), len(settings.special_after)
        item = {"input_ids": np.concatenate([settings.special_before, text, settings.special_after])}
        if settings.kind in (CAUSAL, MASKED):
            item["labels"] = np.pad(labels, (before, behind), constant_values=IGNORE_INDEX)
        if settings.largest_offset:
            positions = np.arange(settings.length)
            positions[before:] += placed.offset  # those before it stay where models always see them
            positions[before + placed.before :] += placed.jump
            item["position_ids"] = positions
        return {name: torch.from_numpy(values.astype(np.int64)) for name, values in item.items()}

    def _placement(self, number: int) -> Placement:
        """Return where a sequence is taken from; if `skip`, with a jump.

        It stands at the first and at the last position so often that the positions at both ends are seen as often as
        those between. The tokens after a jump are taken from as far on in the text as their positions say, so that
        distances are true; where the text ends before that, the jump is shorter.

        Source: Zhu et al. 2024, section 3, with v = u of appendix A and two parts, the first of which has an offset
            too; arXiv:2309.10400.
        """
        settings, length = self.settings, self.settings.text_length
        if not self.shuffled:
            offset = round(settings.largest_offset * number / max(self.count - 1, 1))
            return Placement(number % self.epoch * length, length, 0, offset)
        first, order = _epoch(settings, self.epoch, len(self.tokens), number // self.epoch)
        start = first + int(order[number % self.epoch]) * length
        draw, largest = settings.generator(POSITION, number), settings.largest_offset
        # Drawn beyond both ends: else the first and the last position would be seen at one offset out of all.
        drawn = draw.integers(1 - length, largest + length, size=2).clip(0, largest).tolist()
        if not settings.skip or length < 2:
            return Placement(start, length, 0, drawn[0])
        offset, end = sorted(drawn)
        left = len(self.tokens) - start - length
        return Placement(start, int(draw.integers(1, length)), min(end - offset, left), offset)


@lru_cache(maxsize=4)
def _epoch(settings: SequenceSettings, sequences: int, tokens: int, number: int) -> tuple[int, Ids]:
    """Return the first token of an epoch, and the order of its sequences, shape (sequences,)."""
    draw = settings.generator(ORDER, number)
    return int(draw.integers(tokens - sequences * settings.text_length + 1)), draw.permutation(sequences)
