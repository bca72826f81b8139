"""Training data: the user's text as a file of token ids, and the sequences cut from it.

A sequence is a function of the seed and its number only, so that a resumed run and several processes see the same
sequences as one uninterrupted process.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_file, os_errors_as_output_error
from ctxextend.errors import DataError
from ctxextend.evaluation.eval_model import CAUSAL, MASKED, EvalModel
from ctxextend.held_out import Ids

Tokens = NDArray[np.int32]
# Tokens of text between two messages while a long text is tokenized: some seconds' worth.
TOLD = 10_000_000
# The label that torch's cross entropy ignores.
IGNORE_INDEX = -100
# The share of tokens that are predicted; of these, a draw in [0, 1) below 0.8 masks, and one below 0.9 replaces.
PREDICTED, IS_MASKED, IS_REPLACED = 0.15, 0.8, 0.9
# The first word of the seed of each random generator.
ORDER, POSITION, MASK = 1, 2, 3


class Text(NamedTuple):
    """A text as tokens, and the parts of it that sequences are cut from."""

    tokens: Tokens  # shape (tokens,)
    spans: Ids  # the first token of each part and the one after its last, shape (parts, 2)

    @classmethod
    def whole(cls, tokens: Tokens) -> "Text":
        """Return a text that is used from end to end."""
        return cls(tokens, np.array([[0, len(tokens)]]))


def write_tokens(pieces: Iterable[Ids], path: Path, notify: Callable[[str], None] = lambda text: None) -> None:
    """Write token ids in pieces into a file, int32 in native byte order, which gets its name when it is complete."""
    with os_errors_as_output_error(path), atomic_file(path) as unfinished, unfinished.open("wb") as file:
        written = 0
        for ids in pieces:
            file.write(ids.astype(np.int32).data)
            before, written = written, written + len(ids)
            if written // TOLD > before // TOLD:
                notify(f"{written:,} tokens of text were read")


def open_tokens(path: Path) -> Tokens:
    """Return the tokens that `write_tokens` wrote, memory-mapped, shape (tokens,)."""
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, np.int32)
    return np.memmap(path, np.int32, mode="r")


def check_enough(tokens: Tokens, minimum: int, use: str = "a sequence takes", what: str = "The text") -> None:
    """Raise DataError if a text has fewer tokens than its use takes."""
    if len(tokens) < minimum:
        raise DataError(
            f"{what} has {len(tokens):,} tokens, and {use} {minimum:,}.",
            "Name more text with --data, text to measure on with --eval-data, or a shorter --seq-len or --window.",
        )


@dataclass(frozen=True)
class Masking:
    """How tokens are masked for a masked language model."""

    mask_token: int
    vocab_size: int  # token ids that the model knows
    special: frozenset[int]  # ids that are neither predicted nor used as replacements

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
        """Return a text with some tokens masked, and the labels, `IGNORE_INDEX` at other tokens; both (tokens,).

        Of its ordinary tokens 15 % are predicted, at least one: 80 % of these are masked, 10 % replaced by a random
        ordinary token. Those of a text that has only special ones count as ordinary.

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


@dataclass(frozen=True)
class SequenceSettings:
    """What all sequences of a training run have in common."""

    special_before: tuple[int, ...]  # special tokens before each text
    special_after: tuple[int, ...]
    length: int  # tokens of a sequence, special tokens included
    span: int  # positions that it may use, ≥ `length`; if there are more, sequences stand at random positions
    kind: str  # `CAUSAL`, `MASKED` or `ENCODER`
    masking: Masking | None = None  # for `MASKED`
    skip: bool = False  # whether the positions of a sequence jump once, as the text does (PoSE)
    seed: int = 0  # of order, positions and masks, ≥ 0

    @property
    def text_length(self) -> int:
        """Tokens of a sequence without special tokens."""
        return self.length - len(self.special_before) - len(self.special_after)

    def generator(self, purpose: int, number: int) -> np.random.Generator:
        """Return the random generator for a purpose in the epoch or sequence of that number."""
        return np.random.default_rng([purpose, self.seed, number])


class SequenceDataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences cut from the parts of a text, by number; none lies in two parts.

    For training, `count` are shuffled: each epoch cuts each part from another first token and draws the order of all;
    for evaluation they follow each other from the first token of each part, `count` of them, evenly spread, at most.
    """

    def __init__(self, text: Text, settings: SequenceSettings, count: int, *, shuffled: bool) -> None:
        self.tokens, self.settings, self.shuffled = text.tokens, settings, shuffled
        length, sizes = settings.text_length, text.spans[:, 1] - text.spans[:, 0]
        self.spans, sizes = text.spans[sizes >= length], sizes[sizes >= length]
        # An epoch leaves out one sequence of each part, so that the first can begin at any of its tokens.
        self.sequences = np.maximum((sizes + 1) // length - 1, 1) if shuffled else sizes // length
        self.slack = (sizes - self.sequences * length) * shuffled
        self.epoch = int(self.sequences.sum())
        self.count = count if shuffled else min(count, self.epoch)
        self._drawn = -1, np.empty((0, 2), np.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return a sequence: int64 tensors of shape (length,).

        ``input_ids``; for language models ``labels``, not shifted, `IGNORE_INDEX` where nothing is predicted; and for
        sequences at random positions ``position_ids``, counted from 0, the first usable position.
        """
        if not 0 <= number < self.count:
            raise IndexError(number)
        settings = self.settings
        start, first, jump, offset = self._placement(number)
        rest = start + first + jump
        parts = self.tokens[start : start + first], self.tokens[rest : rest + settings.text_length - first]
        labels = text = np.concatenate(parts).astype(np.int64)
        if settings.masking is not None:
            text, labels = settings.masking.apply(text, settings.generator(MASK, number))
        before, after = len(settings.special_before), len(settings.special_after)
        item = {"input_ids": np.concatenate([settings.special_before, text, settings.special_after])}
        if settings.kind in (CAUSAL, MASKED):
            item["labels"] = np.pad(labels, (before, after), constant_values=IGNORE_INDEX)
        if settings.span > settings.length:
            positions = np.arange(settings.length)
            positions[before:] += offset  # those before it stay where models always see them
            positions[before + first :] += jump
            item["position_ids"] = positions
        return {name: torch.from_numpy(values.astype(np.int64)) for name, values in item.items()}

    def _placement(self, number: int) -> tuple[int, int, int, int]:
        """Return a sequence's first token, its tokens before the jump, what the jump leaves out, and its offset.

        The tokens after a jump are as far on in the text as their positions say; where a part ends, it is shorter.

        Source: Zhu et al. 2024, section 3, with v = u of appendix A and two parts, the first of which has an offset
            too; arXiv:2309.10400.
        """
        settings, length = self.settings, self.settings.text_length
        largest = settings.span - settings.length
        start, stop = self._epoch(number // self.epoch)[number % self.epoch].tolist()
        if not self.shuffled:
            return start, length, 0, round(largest * number / max(self.count - 1, 1))
        draw = settings.generator(POSITION, number)
        # Drawn beyond both ends: else the first and the last position would be seen at one offset out of all.
        drawn = draw.integers(1 - length, largest + length, size=2).clip(0, largest).tolist()
        if not settings.skip or length < 2:
            return start, length, 0, drawn[0]
        offset, end = sorted(drawn)
        return start, int(draw.integers(1, length)), min(end - offset, stop - start - length), offset

    def _epoch(self, number: int) -> Ids:
        """Return the first token of each sequence of an epoch and the end of its part, shape (sequences, 2)."""
        if self._drawn[0] != number:
            draw = self.settings.generator(ORDER, number)
            firsts = self.spans[:, 0] + draw.integers(self.slack + 1)
            pairs = np.stack([firsts, self.spans[:, 1]], axis=1).repeat(self.sequences, axis=0)
            pairs[:, 0] += np.concatenate([np.arange(n) for n in self.sequences]) * self.settings.text_length
            spread = np.linspace(0, self.epoch - 1, self.count).round().astype(np.int64)
            self._drawn = number, draw.permutation(pairs) if self.shuffled else pairs[spread]
        return self._drawn[1]
