"""Training data: the user's text as a file of token ids, and the sequences that are cut from it.

A sequence depends only on the seed and its number, so that resumed runs and several processes see
the same sequences. Pairs of texts are in `pairs`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.checkpoint.atomic_output import atomic_file, os_errors_as_output_error
from ctxextend.held_out import Ids
from ctxextend.lab.eval_model import CAUSAL, MASKED, EvalModel

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

    @classmethod
    def whole(cls, tokens: Tokens) -> "Text":
        """Return a text that is a single part."""
        return cls(tokens=tokens, spans=np.array([[0, len(tokens)]]))


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
        written = 0
        for ids in chunks:
            file.write(ids.astype(np.int32).data)
            sizes.append(len(ids))
            messages = written // TOKENS_PER_MESSAGE
            written += len(ids)
            if written // TOKENS_PER_MESSAGE > messages:
                notify(f"tokenized {written:,} tokens")
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

    @cached_property
    def ordinary(self) -> Ids:
        """The ids of tokens that are not special, shape (vocab_size - special,)."""
        return np.setdiff1d(np.arange(self.vocab_size), [*self.special])

    def apply(self, text: Ids, generator: np.random.Generator) -> tuple[Ids, Ids]:
        """Return a text with some tokens masked, and its labels, both of shape (tokens,).

        Of the ordinary tokens, 15 % are predicted, at least one. Of the predicted tokens, 80 % are
        masked and 10 % replaced with a random ordinary token. The label of all other tokens is
        `IGNORE_INDEX`. If a text has only special tokens, they count as ordinary.

        Source: Devlin et al. 2018, section 3.1 and appendix A.1, arXiv:1810.04805.
        """
        candidates = np.flatnonzero(~np.isin(text, [*self.special]))
        if len(candidates) == 0:
            candidates = np.arange(len(text))
        count = max(1, round(PREDICTED_SHARE * len(candidates)))
        chosen = generator.choice(candidates, count, replace=False)
        draws = generator.random(count)
        masked = chosen[draws < MASKED_BELOW]
        replaced = chosen[(draws >= MASKED_BELOW) & (draws < REPLACED_BELOW)]
        changed = text.copy()
        changed[masked] = self.mask_token
        changed[replaced] = generator.choice(self.ordinary, len(replaced))
        labels = np.full_like(text, IGNORE_INDEX)
        labels[chosen] = text[chosen]
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

    @property
    def has_random_positions(self) -> bool:
        """Whether a sequence has fewer tokens than there are positions for it."""
        return self.largest_offset > 0

    def generator(self, purpose: int, number: int) -> np.random.Generator:
        """Return the random generator of the epoch or sequence of this number, for a purpose."""
        return np.random.default_rng([purpose, self.seed, number])


TrainItem = dict[str, torch.Tensor]


class NumberedItems(Protocol):
    """Training data: items that depend on the seed and their number only."""

    @property
    def tokens(self) -> Tokens:
        """The tokens of the text that the items are cut from, shape (tokens,)."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> TrainItem: ...


def check_number(number: int, items: NumberedItems) -> None:
    """Check that items have one of this number, which ends loops over them.

    Raises:
        IndexError: They have none.
    """
    if not 0 <= number < len(items):
        raise IndexError(number)


class SequencePlace(NamedTuple):
    """Which tokens of the text a sequence has, and at which positions."""

    start: int  # index of its first token in the text
    size_before_skip: int  # tokens of the sequence before the skip
    skip: int  # tokens of the text that are skipped, and as many positions
    offset: int  # of its positions, except those of leading special tokens


class SequenceCutter(torch.utils.data.Dataset[TrainItem]):
    """Cuts sequences from the parts of a text; none crosses the end of a part.

    `TrainingSequences` and `HeldOutSequences` choose their places.
    """

    count: int

    def __init__(self, text: Text, settings: SequenceSettings) -> None:
        self.tokens = text.tokens
        self.settings = settings
        sizes = text.spans[:, 1] - text.spans[:, 0]
        is_long_enough = sizes >= settings.text_length
        self.spans = text.spans[is_long_enough]
        self.sizes = sizes[is_long_enough]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> TrainItem:
        """Return the sequence of a number as int64 tensors of shape (length,).

        ``input_ids``; for language models ``labels``, not shifted, `IGNORE_INDEX` for tokens not
        predicted; and for sequences at random positions ``position_ids``, counted from 0, the first
        usable position.

        Raises:
            IndexError: The number is not below `count`.
        """
        check_number(number, self)
        settings = self.settings
        place = self.place(number)
        before_skip = place.start + place.size_before_skip
        after_skip = before_skip + place.skip
        end = place.start + place.skip + settings.text_length
        chunks = (self.tokens[place.start : before_skip], self.tokens[after_skip:end])
        inputs = labels = np.concatenate(chunks).astype(np.int64)
        if settings.masking is not None:
            inputs, labels = settings.masking.apply(inputs, settings.generator(MASK, number))
        item = {
            "input_ids": np.concatenate([settings.special_before, inputs, settings.special_after])
        }
        if settings.kind in (CAUSAL, MASKED):
            special = (len(settings.special_before), len(settings.special_after))
            item["labels"] = np.pad(labels, special, constant_values=IGNORE_INDEX)
        if settings.has_random_positions:
            # Leading special tokens keep their usual positions, from 0.
            first = len(settings.special_before)
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
        # The last token of each part that its first sequence can start at, counted from 0.
        self.largest_starts = self.sizes - self.sequences_per_part * length
        self.epoch_size = int(self.sequences_per_part.sum())
        self._cached_number = -1
        self._cached_starts: Ids = np.empty((0, 2), np.int64)

    def place(self, number: int) -> SequencePlace:
        """Return the place of a sequence: random positions, with a random skip if there is one.

        Source: PoSE, Zhu et al. 2024, section 3, with v = u of appendix A and two chunks, the first
            of which has an offset too; arXiv:2309.10400.
        """
        settings = self.settings
        epoch, index = divmod(number, self.epoch_size)
        if self._cached_number != epoch:  # the last epoch is cached
            order = settings.generator(ORDER, epoch)
            first_starts = self.spans[:, 0] + order.integers(self.largest_starts + 1)
            counts = self.sequences_per_part
            starts = consecutive_starts(first_starts, counts, settings.text_length)
            part_ends = np.repeat(self.spans[:, 1], counts)
            self._cached_number = epoch
            self._cached_starts = order.permutation(np.stack([starts, part_ends], axis=1))
        start, part_end = self._cached_starts[index].tolist()
        generator = settings.generator(POSITION, number)
        length = settings.text_length
        offset = draw_offset(generator, length, settings.largest_offset)
        if not settings.skips_once or length <= 1:
            return SequencePlace(start=start, size_before_skip=length, skip=0, offset=offset)
        # As many positions as tokens of the text are skipped once: fewer near the end of a part of
        # the text, where fewer tokens are left.
        other = draw_offset(generator, length, settings.largest_offset)
        return SequencePlace(
            start=start,
            size_before_skip=int(generator.integers(1, length)),
            skip=min(abs(offset - other), part_end - start - length),
            offset=min(offset, other),
        )


@dataclass(frozen=True)
class Pieces:
    """How texts of one length are cut into overlapping windows of another."""

    tokens: int  # of a text, without special tokens
    size: int  # of a window, without special tokens, at most `tokens`

    @property
    def starts(self) -> list[int]:
        """The first token of each window: half a window apart, and the last one ends the text."""
        last = self.tokens - self.size
        return [*range(0, last, max(self.size // 2, 1)), last]


class SequencesWithPieces(torch.utils.data.Dataset[TrainItem]):
    """Sequences at all positions: those of every other batch are to be read in moved windows.

    These have ``offsets``, shape (windows,): of the positions of every other one of the windows.
    """

    def __init__(self, sequences: TrainingSequences, pieces: Pieces, batch: int) -> None:
        self.sequences = sequences
        self.tokens = sequences.tokens
        self.pieces = pieces
        self.batch = batch  # sequences of a step

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, number: int) -> TrainItem:
        """Return a sequence; see `SequenceCutter`.

        Raises:
            IndexError: There is none of this number.
        """
        item = self.sequences[number]
        if (number // self.batch) % 2 == 0:
            return item
        generator = self.sequences.settings.generator(POSITION, number)
        largest = self.pieces.tokens - self.pieces.size
        offsets = []
        for _ in self.pieces.starts[::2]:
            offsets.append(draw_offset(generator, self.pieces.size, largest))
        return {**item, "offsets": torch.tensor(offsets)}


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
        chosen = np.linspace(0, len(starts) - 1, self.count).round().astype(np.int64)
        self.starts = starts[chosen]

    def place(self, number: int) -> SequencePlace:
        """Return the place of a sequence."""
        last = max(self.count - 1, 1)
        return SequencePlace(
            start=int(self.starts[number]),
            size_before_skip=self.settings.text_length,
            skip=0,
            offset=round(self.settings.largest_offset * number / last),
        )


def consecutive_starts(
    first_starts: Sequence[int] | Ids, counts: Sequence[int] | Ids, length: int
) -> Ids:
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


def draw_offset(generator: np.random.Generator, length: int, largest: int) -> int:
    """Return a random position offset from 0 to `largest` of a sequence of `length` tokens.

    It is drawn from ``1 - length`` to ``largest + length - 1``, then clipped: otherwise only one
    offset would reach the first and the last position.
    """
    drawn = int(generator.integers(1 - length, largest + length))
    return min(max(drawn, 0), largest)
