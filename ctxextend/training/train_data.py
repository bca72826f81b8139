"""Training data: the user's text as a file of token ids, and the sequences that are cut from it.

A sequence depends only on the seed and its number, so that resumed runs and several processes see
the same sequences. Pairs of texts are in `pairs`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctxextend.checkpoint.atomic_output import atomic_file, os_errors_as_output_error
from ctxextend.held_out import Ids
from ctxextend.lab.eval_model import ENCODER, EvalModel
from ctxextend.lab.text_tokenizer import TextTokenizer

Tokens = NDArray[np.int32]
TOKENS_PER_MESSAGE = 10_000_000  # between progress messages while a long text is tokenized
IGNORE_INDEX = -100  # the label that torch's cross entropy ignores
# Of the tokens of a text for a masked language model; evaluation masks `losses.MASKED_SHARE`.
PREDICTED_SHARE = 0.15
# Of the predicted tokens, those with a random number below the first limit are masked, and others
# below the second limit replaced.
MASKED_BELOW = 0.8
REPLACED_BELOW = 0.9
# First part of the seed of each random generator.
ORDER = 1
POSITION = 2
MASK = 3


class Text(NamedTuple):
    """A tokenized text, and the parts of it that sequences are cut from."""

    tokens: Tokens  # shape (tokens,)
    spans: Ids  # first token and end of each part, in order, shape (parts, 2)


def write_tokens(
    chunks: Iterable[Ids], path: Path, notify: Callable[[str], None] = lambda text: None
) -> list[int]:
    """Write chunks of token ids to a file, int32 in native byte order.

    The file is renamed into place when it is complete.

    Returns:
        The number of tokens of each chunk.

    Raises:
        OutputError: The file cannot be written.
        DataError: The text that the chunks are read from cannot be read.
    """
    sizes = []
    with (
        os_errors_as_output_error(path),
        atomic_file(path) as temporary,
        temporary.open("wb") as file,
    ):
        unreported = 0
        for ids in chunks:
            file.write(ids.astype(np.int32).data)
            sizes.append(len(ids))
            unreported += len(ids)
            if unreported > TOKENS_PER_MESSAGE:
                notify(f"tokenized {sum(sizes):,} tokens")
                unreported = 0
    return sizes


def open_tokens(path: Path) -> Tokens:
    """Return the tokens that `write_tokens` wrote, memory-mapped, shape (tokens,)."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, np.int32)
    return np.memmap(path, np.int32, mode="r")


@dataclass(frozen=True)
class Masking:
    """How tokens are masked for a masked language model."""

    mask_token: int
    vocab_size: int  # token ids known to the model
    special: frozenset[int]  # ids that are neither predicted nor used as replacements

    @classmethod
    def for_model(cls, model: EvalModel) -> "Masking":
        """Return the masking for a model and its tokenizer."""
        tokenizer = model.tokenizer.tokenizer
        embeddings = getattr(model.model.get_input_embeddings(), "num_embeddings", len(tokenizer))
        return cls(
            mask_token=tokenizer.mask_token_id,
            vocab_size=min(len(tokenizer), embeddings),
            special=frozenset(tokenizer.all_special_ids),
        )

    def apply(self, text: Ids, generator: np.random.Generator) -> tuple[Ids, Ids]:
        """Return a text with some tokens masked, and its labels, both of shape (tokens,).

        Of the ordinary tokens, 15 % are predicted, at least one. Of the predicted tokens, 80 % are
        masked and 10 % replaced with a random ordinary token. The label of all other tokens is
        `IGNORE_INDEX`. If a text has only special tokens, they count as ordinary.

        Source: Devlin et al. 2018, section 3.1 and appendix A.1, arXiv:1810.04805.
        """
        special = [*self.special]
        candidates = np.flatnonzero(~np.isin(text, special))
        if len(candidates) == 0:
            candidates = np.arange(len(text))
        count = max(1, round(PREDICTED_SHARE * len(candidates)))
        predicted = generator.choice(candidates, count, replace=False)
        draws = generator.random(count)
        replaced = predicted[(draws >= MASKED_BELOW) & (draws < REPLACED_BELOW)]
        changed = text.copy()
        changed[predicted[draws < MASKED_BELOW]] = self.mask_token
        ordinary = np.setdiff1d(np.arange(self.vocab_size), special)
        changed[replaced] = generator.choice(ordinary, len(replaced))
        labels = np.full_like(text, IGNORE_INDEX)
        labels[predicted] = text[predicted]
        return changed, labels


@dataclass(frozen=True)
class SequenceSettings:
    """Settings shared by all sequences of a training run."""

    special_before: tuple[int, ...]  # special tokens before each text
    special_after: tuple[int, ...]
    length: int  # tokens per sequence, special tokens included
    usable_positions: int  # ≥ `length`; if there are more, sequences are at random positions
    kind: str  # `CAUSAL`, `MASKED` or `ENCODER`
    masking: Masking | None = None  # for `MASKED`
    skips_once: bool = False  # whether positions and text skip ahead within a sequence (PoSE)
    seed: int = 0  # of order, positions and masks, ≥ 0

    @property
    def text_length(self) -> int:
        """Tokens per sequence without special tokens."""
        return self.length - len(self.special_before) - len(self.special_after)

    @property
    def largest_offset(self) -> int:
        """The largest offset of the positions of a sequence; 0 if it needs all positions."""
        return self.usable_positions - self.length

    def generator(self, purpose: int, number: int) -> np.random.Generator:
        """Return the random generator of the epoch or sequence of this number, for a purpose."""
        return np.random.default_rng([purpose, self.seed, number])


TrainItem = dict[str, Tensor]


class NumberedItems(torch.utils.data.Dataset[TrainItem]):
    """Training data: items that depend on the seed and their number only."""

    count: int

    def __len__(self) -> int:
        return self.count


class SequencePlace(NamedTuple):
    """Which tokens of the text a sequence has, and at which positions."""

    start: int  # index of its first token in the text
    offset: int  # of its positions, except those of leading special tokens
    size_before_skip: int  # tokens of the sequence before the skip
    skip: int = 0  # tokens of the text that are skipped, and as many positions


class SequenceCutter(NumberedItems):
    """Cuts sequences from the parts of a text; none crosses the end of a part.

    `TrainingSequences` and `HeldOutSequences` choose their places.
    """

    def __init__(self, text: Text, settings: SequenceSettings) -> None:
        self.tokens = text.tokens
        self.settings = settings
        sizes = text.spans[:, 1] - text.spans[:, 0]
        is_long_enough = sizes >= settings.text_length
        self.spans = text.spans[is_long_enough]
        self.sizes = sizes[is_long_enough]

    def __getitem__(self, number: int) -> TrainItem:
        """Return the sequence of a number as int64 tensors of shape (length,).

        ``input_ids``; for language models ``labels``, not shifted, `IGNORE_INDEX` for tokens not
        predicted; and for sequences at random positions ``position_ids``, counted from 0, the first
        usable position.
        """
        settings = self.settings
        place = self.place(number)
        before_skip = place.start + place.size_before_skip
        end = place.start + place.skip + settings.text_length
        chunks = (
            self.tokens[place.start : before_skip],
            self.tokens[before_skip + place.skip : end],
        )
        inputs = labels = np.concatenate(chunks).astype(np.int64)
        if settings.masking is not None:
            inputs, labels = settings.masking.apply(inputs, settings.generator(MASK, number))
        item = {
            "input_ids": np.concatenate([settings.special_before, inputs, settings.special_after])
        }
        first = len(settings.special_before)
        if settings.kind != ENCODER:
            special = (first, len(settings.special_after))
            item["labels"] = np.pad(labels, special, constant_values=IGNORE_INDEX)
        if settings.largest_offset > 0:
            # Leading special tokens keep their usual positions, from 0.
            positions = np.arange(settings.length)
            positions[first:] += place.offset
            positions[first + place.size_before_skip :] += place.skip
            item["position_ids"] = positions
        return {name: torch.from_numpy(values.astype(np.int64)) for name, values in item.items()}

    def place(self, number: int) -> SequencePlace:
        """Return the place of a sequence."""
        raise NotImplementedError


class TrainingSequences(SequenceCutter):
    """The sequences to train on, as many as are requested, in epochs.

    An epoch cuts each part of the text from a random token on, and shuffles the sequences of all
    parts. Of a part of 29 tokens, it has two sequences of 10 tokens, of which the first starts at
    token 0 to 9. A third sequence would leave no choice: in general, an epoch has as many sequences
    of a part as leave at least ``text_length`` tokens for the first one to start at. A part that is
    too short for this has one sequence.

    At least one part of the text is as long as a sequence.
    """

    def __init__(self, text: Text, settings: SequenceSettings, count: int) -> None:
        super().__init__(text, settings)
        self.count = count
        length = settings.text_length
        # In each part, a first sequence can start at `length` tokens.
        self.sequences_per_part: Ids = np.maximum((self.sizes - length + 1) // length, 1)
        self.epoch_size = int(self.sequences_per_part.sum())
        # Of the last epoch that was read: where its sequences start, and their parts end.
        self._epoch = -1
        self._starts: Ids = np.empty((0, 2), np.int64)

    def place(self, number: int) -> SequencePlace:
        """Return the place of a sequence: random positions, with a random skip if there is one.

        Source: PoSE, Zhu et al. 2024, section 3, with v = u of appendix A and two chunks, the first
            of which has an offset too; arXiv:2309.10400.
        """
        settings = self.settings
        length = settings.text_length
        epoch, index = divmod(number, self.epoch_size)
        if self._epoch != epoch:
            order = settings.generator(ORDER, epoch)
            counts = self.sequences_per_part
            largest_starts = self.sizes - counts * length  # counted from the start of each part
            first_starts = self.spans[:, 0] + order.integers(largest_starts + 1)
            starts = consecutive_starts(first_starts, counts, length)
            part_ends = np.repeat(self.spans[:, 1], counts)
            self._epoch = epoch
            self._starts = order.permutation(np.stack([starts, part_ends], axis=1))
        start, part_end = self._starts[index].tolist()
        generator = settings.generator(POSITION, number)
        offset = draw_offset(generator, length, settings.largest_offset)
        if not settings.skips_once or length <= 1:
            return SequencePlace(start, offset, length)
        # As many positions as tokens of the text are skipped once: fewer near the end of a part of
        # the text, where fewer tokens are left.
        other = draw_offset(generator, length, settings.largest_offset)
        return SequencePlace(
            start=start,
            offset=min(offset, other),
            size_before_skip=int(generator.integers(1, length)),
            skip=min(abs(offset - other), part_end - start - length),
        )


class MovedWindows(TrainingSequences):
    """Sequences at all positions; of those of every other batch, windows at random positions.

    Their tensors have shape (windows, w) instead of (length,). Every other window of those that
    the base reads is used.
    """

    def __init__(
        self,
        text: Text,
        settings: SequenceSettings,
        count: int,
        *,
        windows: Sequence[range],
        tokenizer: TextTokenizer,
        batch: int,
    ) -> None:
        super().__init__(text, settings, count)
        self.windows = windows[::2]
        self.tokenizer = tokenizer
        self.batch = batch  # sequences of a step

    def __getitem__(self, number: int) -> TrainItem:
        """Return a sequence, or its windows; see `SequenceCutter`."""
        item = super().__getitem__(number)
        if (number // self.batch) % 2 == 0:
            return item
        moved = {}
        for name, values in item.items():
            parts = [select(values[None], window, self.tokenizer) for window in self.windows]
            moved[name] = torch.cat(parts)
        settings = self.settings
        generator = settings.generator(POSITION, number)
        size = len(self.windows[0])
        positions = torch.arange(moved["input_ids"].shape[1]).repeat(len(self.windows), 1)
        for row in positions:  # special tokens lead from 0 on
            offset = draw_offset(generator, size, settings.text_length - size)
            row[len(settings.special_before) :] += offset
        return moved | {"position_ids": positions}


class HeldOutSequences(SequenceCutter):
    """The sequences of the held-out loss: the same at each evaluation, and for all batch sizes.

    They follow each other from the start of each part of the text. If there are more than are
    requested, they are chosen evenly spaced. Their positions are evenly spaced too.
    """

    def __init__(self, text: Text, settings: SequenceSettings, most: int) -> None:
        super().__init__(text, settings)
        length = settings.text_length
        starts = consecutive_starts(self.spans[:, 0], self.sizes // length, length)
        self.count = min(most, len(starts))
        spaced = np.linspace(0, len(starts) - 1, self.count).round().astype(np.int64)
        self.starts = starts[spaced]

    def place(self, number: int) -> SequencePlace:
        """Return the place of a sequence."""
        offset = round(self.settings.largest_offset * number / max(self.count - 1, 1))
        return SequencePlace(int(self.starts[number]), offset, self.settings.text_length)


def consecutive_starts(first_starts: Ids, counts: Ids, length: int) -> Ids:
    """Return where the sequences of all parts of a text start, shape (sequences,).

    Args:
        first_starts: Where the first sequence of each part starts.
        counts: How many sequences each part has, one directly after the other.
        length: Tokens of a sequence.
    """
    starts = [np.empty(0, np.int64)]
    for first, count in zip(first_starts, counts, strict=True):
        starts.append(first + length * np.arange(count))
    return np.concatenate(starts)


def plan_windows(tokens: int, length: int, stride: int) -> list[range]:
    """Return windows of at most `length` tokens that cover a text of `tokens` tokens.

    All numbers are ≥ 1, and stride ≤ length. Windows start `stride` tokens apart, except for the
    last one, which ends with the text.
    """
    last = max(tokens - length, 0)
    return [range(start, min(start + length, tokens)) for start in (*range(0, last, stride), last)]


def select(values: Tensor, window: range, tokenizer: TextTokenizer) -> Tensor:
    """Return the values of a window of texts, and of the special tokens around the texts.

    `values` has shape (b, w, …), one of each token of the texts.
    """
    before = len(tokenizer.before)
    after = values.shape[1] - len(tokenizer.after)
    inside = values[:, before + window.start : before + window.stop]
    return torch.cat([values[:, :before], inside, values[:, after:]], dim=1)


def draw_offset(generator: np.random.Generator, length: int, largest: int) -> int:
    """Return a random position offset from 0 to `largest` of a sequence of `length` tokens.

    It is drawn from ``1 - length`` to ``largest + length - 1``, then clipped: otherwise only one
    offset would reach the first and the last position.
    """
    drawn = int(generator.integers(1 - length, largest + length))
    return min(max(drawn, 0), largest)
