"""Training data: the user's text as a file of token ids, and the sequences or pairs cut from it.

A sequence depends only on the seed and its index, so that resumed runs and several processes see
the same ones.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_file, os_errors_as_output_error
from ctxextend.errors import DataError, counted
from ctxextend.evaluation.embedding import read_prompts
from ctxextend.evaluation.eval_model import CAUSAL, MASKED, EvalModel
from ctxextend.evaluation.search_set import read_rows
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.held_out import Ids, fingerprint
from ctxextend.text_data import without_surrogates

Tokens = NDArray[np.int32]
TOKENS_PER_MESSAGE = 10_000_000  # between progress messages while a long text is tokenized
IGNORE_INDEX = -100  # the label that torch's cross entropy ignores
PREDICTED_SHARE = 0.15  # of the tokens of a text for a masked language model
# Of these, tokens with a random number below the first are masked, below the second replaced.
MASKED_BELOW = 0.8
REPLACED_BELOW = 0.9
# First part of the seed of each random generator.
ORDER = 1
POSITION = 2
MASK = 3
COLUMNS = ("anchor", "positive", "negative")  # sentence-transformers' names; the last is optional
REQUIRED_COLUMNS = COLUMNS[:2]
# Tokens of a passage: the lengths of questions and of answers.
MIN_PASSAGE = 16
MAX_PASSAGE = 128
REMOVED_SHARE = 0.9  # of passages that are removed from their document
MAX_DOCUMENT = 8  # context lengths; longer documents are cut into pieces


class Text(NamedTuple):
    """A tokenized text, and the parts of it that sequences are cut from."""

    tokens: Tokens  # shape (tokens,)
    spans: Ids  # first token and end of each part, shape (parts, 2)

    @classmethod
    def whole(cls, tokens: Tokens) -> "Text":
        """Return a text that is a single part."""
        return cls(tokens, np.array([[0, len(tokens)]]))


def write_tokens(
    chunks: Iterable[Ids], path: Path, notify: Callable[[str], None] = lambda text: None
) -> None:
    """Write chunks of token ids to a file, int32 in native byte order.

    The file is renamed into place when it is complete.

    Raises:
        OutputError: The file cannot be written.
        DataError: The text that the chunks are read from cannot be read.
    """
    with (
        os_errors_as_output_error(path),
        atomic_file(path) as temporary,
        temporary.open("wb") as file,
    ):
        written = 0
        for ids in chunks:
            file.write(ids.astype(np.int32).data)
            messages = written // TOKENS_PER_MESSAGE
            written += len(ids)
            if written // TOKENS_PER_MESSAGE > messages:
                notify(f"tokenized {written:,} tokens")


def open_tokens(path: Path) -> Tokens:
    """Return the tokens that `write_tokens` wrote, memory-mapped, shape (tokens,)."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, np.int32)
    return np.memmap(path, np.int32, mode="r")


def read_pairs(
    paths: Sequence[str],
    tokenizer: TextTokenizer,
    pairs: list[list[int]],
    files: list[dict[str, Any]],
) -> Iterator[Ids]:
    """Yield the ids of texts, equal ones once.

    Each pair is added to `pairs`: the first token and the end of each of its texts. The fingerprint
    of each file is added to `files`.

    Raises:
        DataError: A file cannot be read, a field is empty, or a negative is missing.
    """
    total = 0
    known = dict[str, list[int]]()
    for path in paths:
        for where, row in read_rows(path, *REQUIRED_COLUMNS):
            texts = [row[name] for name in COLUMNS if name in row]
            expected = len(texts)
            if pairs:  # as many as the first
                expected = len(pairs[0]) // 2
            _check_filled(texts, where, expected)
            for text in texts:
                if text not in known:
                    ids = tokenizer.encode(without_surrogates(text))
                    known[text] = [total, total + len(ids)]
                    total += len(ids)
                    yield ids
            pairs.append(list(chain.from_iterable(known[text] for text in texts)))
        files.append(fingerprint(Path(path)) | {"first_token": 0})


def _check_filled(texts: list[Any], where: str, expected: int) -> None:
    """Raise DataError unless a row has as many texts as expected, none of them empty."""
    filled = [text for text in texts if isinstance(text, str) and text.strip()]
    if len(filled) != expected:
        message = f"{where} has {counted(len(filled), 'text')} instead of {expected}."
        raise DataError(message, "Fill all fields, and give every line a negative, or none.")


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

        Of the ordinary tokens, 15 % are predicted, at least one: 80 % of these are masked, 10 %
        replaced with a random ordinary token. The label of other tokens is `IGNORE_INDEX`. If a
        text has only special tokens, they count as ordinary.

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
    # positions available to a sequence, ≥ `length`; if more, sequences are at random positions
    span: int
    kind: str  # `CAUSAL`, `MASKED` or `ENCODER`
    masking: Masking | None = None  # for `MASKED`
    skip: bool = False  # whether positions and text skip ahead once within a sequence (PoSE)
    seed: int = 0  # of order, positions and masks, ≥ 0

    @property
    def text_length(self) -> int:
        """Tokens per sequence without special tokens."""
        return self.length - len(self.special_before) - len(self.special_after)

    def generator(self, purpose: int, number: int) -> np.random.Generator:
        """Return the random generator of the epoch or sequence of this number, for a purpose."""
        return np.random.default_rng([purpose, self.seed, number])


class SequencePlace(NamedTuple):
    """Where a sequence is in the text, and at which positions."""

    start: int  # its first token
    first: int  # its tokens before the skip
    skip: int  # tokens of the text, and positions, that are skipped
    offset: int  # of its first position


class SequenceDataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences cut from the parts of a text; none crosses the end of a part.

    For training, there are `count` (`shuffled`): each epoch cuts each part at a random offset and
    shuffles all. For evaluation, they follow each other from the start of each part; at most
    `count`, evenly spaced, are used.
    """

    def __init__(
        self, text: Text, settings: SequenceSettings, count: int, *, shuffled: bool
    ) -> None:
        self.tokens = text.tokens
        self.settings = settings
        self.shuffled = shuffled
        length = settings.text_length
        sizes = text.spans[:, 1] - text.spans[:, 0]
        is_long_enough = sizes >= length
        self.spans = text.spans[is_long_enough]
        sizes = sizes[is_long_enough]
        self.sequences = sizes // length
        self.slack = np.zeros_like(sizes)
        if shuffled:
            # An epoch skips one sequence of each part, so that the first can start at any of its
            # tokens.
            self.sequences = np.maximum((sizes + 1) // length - 1, 1)
            self.slack = sizes - self.sequences * length
        self.epoch = int(self.sequences.sum())
        self.count = count if shuffled else min(count, self.epoch)
        self._cached_number = -1
        self._cached_epoch: Ids = np.empty((0, 2), np.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return a sequence as int64 tensors of shape (length,).

        ``input_ids``; for language models ``labels``, not shifted, `IGNORE_INDEX` for tokens not
        predicted; and for sequences at random positions ``position_ids``, counted from 0, the first
        usable position.

        Raises:
            IndexError: The number is not below `count`.
        """
        if not 0 <= number < self.count:
            raise IndexError(number)
        settings = self.settings
        place = self._place(number)
        labels = text = self._text(place)
        if settings.masking is not None:
            text, labels = settings.masking.apply(text, settings.generator(MASK, number))
        before = len(settings.special_before)
        after = len(settings.special_after)
        item = {
            "input_ids": np.concatenate([settings.special_before, text, settings.special_after])
        }
        if settings.kind in (CAUSAL, MASKED):
            item["labels"] = np.pad(labels, (before, after), constant_values=IGNORE_INDEX)
        if settings.span > settings.length:
            positions = np.arange(settings.length)
            positions[before:] += place.offset  # leading special tokens keep their usual positions
            positions[before + place.first :] += place.skip
            item["position_ids"] = positions
        return {name: torch.from_numpy(values.astype(np.int64)) for name, values in item.items()}

    def _text(self, place: SequencePlace) -> Ids:
        """Return the tokens of a sequence without special tokens, shape (text_length,)."""
        pause = place.start + place.first
        resumed = pause + place.skip
        stop = place.start + place.skip + self.settings.text_length
        chunks = (self.tokens[place.start : pause], self.tokens[resumed:stop])
        return np.concatenate(chunks).astype(np.int64)

    def _place(self, number: int) -> SequencePlace:
        """Return where a sequence is.

        Text and positions skip by the same number of tokens, by fewer near the end of a part.

        Source: PoSE, Zhu et al. 2024, section 3, with v = u of appendix A and two chunks, the first
            of which has an offset too; arXiv:2309.10400.
        """
        settings = self.settings
        length = settings.text_length
        largest = settings.span - settings.length
        start, stop = self._epoch(number // self.epoch)[number % self.epoch].tolist()
        if not self.shuffled:
            offset = round(largest * number / max(self.count - 1, 1))
            return SequencePlace(start, first=length, skip=0, offset=offset)
        generator = settings.generator(POSITION, number)
        offset, end = draw_offsets(generator, length, largest, 2)
        if not settings.skip or length < 2:
            return SequencePlace(start, first=length, skip=0, offset=offset)
        offset, end = sorted((offset, end))
        first = int(generator.integers(1, length))
        skip = min(end - offset, stop - start - length)
        return SequencePlace(start, first=first, skip=skip, offset=offset)

    def _epoch(self, number: int) -> Ids:
        """Return the sequences of an epoch, shape (sequences, 2).

        A row is the first token of a sequence, and the end of its part.
        """
        if self._cached_number != number:
            self._cached_number = number
            self._cached_epoch = self._new_epoch(self.settings.generator(ORDER, number))
        return self._cached_epoch

    def _new_epoch(self, generator: np.random.Generator) -> Ids:
        """Return what `_epoch` returns, from its random generator."""
        firsts = self.spans[:, 0] + generator.integers(self.slack + 1)
        pairs = np.stack([firsts, self.spans[:, 1]], axis=1).repeat(self.sequences, axis=0)
        within = np.concatenate([np.arange(count) for count in self.sequences])
        pairs[:, 0] += within * self.settings.text_length
        if self.shuffled:
            return generator.permutation(pairs)
        spaced = np.linspace(0, self.epoch - 1, self.count).round().astype(np.int64)
        return pairs[spaced]


def draw_offsets(
    generator: np.random.Generator, length: int, largest: int, count: int
) -> list[int]:
    """Return random position offsets from 0 to `largest` of sequences of `length` tokens.

    They are drawn beyond both ends, then clipped: otherwise only one offset would reach the first
    and the last position.
    """
    drawn = generator.integers(1 - length, largest + length, size=count)
    offsets: list[int] = drawn.clip(0, largest).tolist()
    return offsets


class PairDataset(SequenceDataset):
    """Pairs of texts: a passage (anchor) and its document (positive), or those of `read_pairs`.

    An epoch takes each document or positive once, in whole batches, so that none is a negative of
    its anchor. Without windows, a text from `read_pairs` is read from its start.

    Source: the inverse cloze task of Lee et al. 2019, section 4, arXiv:1906.00300, which also
    removes 90 % of passages.
    """

    def __init__(
        self,
        text: Text,
        settings: SequenceSettings,
        count: int,
        *,
        shuffled: bool,
        model: EvalModel,
        batch: int,
    ) -> None:
        """Find the documents of a text, or take its pairs.

        Raises:
            DataError: There are fewer than two documents or positives.
        """
        self.tokens = text.tokens
        self.spans = text.spans
        self.settings = settings
        self.prompts = [model.tokenizer.encode(prompt) for prompt in read_prompts(model.root)]
        self.is_cut = text.spans.shape[1] == 2  # whether pairs are cut from documents
        self.shortest = min(MIN_PASSAGE, settings.length // 8)  # tokens of a passage
        if self.is_cut:
            self.spans = self._documents(text, model.tokenizer.separator)
        positives = self.spans[:, 0] if self.is_cut else self.spans[:, 2]
        firsts, self.positive = np.unique(positives, return_inverse=True)
        size = len(firsts)
        if size < 2:
            part = "to train on" if shuffled else "held out"
            message = f"The text {part} has fewer than two documents or positives."
            hint = f"Pass more text; documents require {2 * self.shortest} tokens."
            raise DataError(message, hint)
        if shuffled:
            self.epoch = size - size % batch or size
            self.count = count
        else:
            self.epoch = size
            self.count = min(count, size)

    def _documents(self, text: Text, separator: int | None) -> Ids:
        """Return the first token and the end of each document in the parts of a text, shape (k, 2).

        Documents that are too short for a passage are left out, and long ones cut.
        """
        inner = text.spans.ravel()
        borders = np.flatnonzero(text.tokens == separator)
        pieces = np.arange(0, len(text.tokens), MAX_DOCUMENT * self.settings.span)
        edges = np.unique(np.concatenate([inner, borders, borders + 1, pieces]))
        documents = np.stack([edges[:-1], edges[1:]], axis=1)
        is_inside = np.searchsorted(inner, edges[:-1], side="right") % 2 == 1
        is_long_enough = np.diff(edges) >= 2 * self.shortest
        chosen: Ids = documents[is_inside & is_long_enough]
        return chosen

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return a pair as int64 tensors of shape (texts, length).

        ``input_ids``, padded with `IGNORE_INDEX`, and for windows ``position_ids``.
        """
        settings = self.settings
        length = settings.length
        largest = settings.span - length
        draw = settings.generator(POSITION, number)
        texts = self._texts(number, draw)
        ids = np.full((len(texts), length), IGNORE_INDEX)
        positions = np.tile(np.arange(length), (len(texts), 1))
        for row, text in enumerate(texts):
            before = [*settings.special_before, *self.prompts[min(row, 1)]]
            first = 0
            size = length - len(before) - len(settings.special_after)
            if row and (self.is_cut or largest):
                first = int(draw.integers(max(len(text) - size, 0) + 1))
                (offset,) = draw_offsets(draw, length, largest, 1)
                positions[row, len(settings.special_before) :] += offset
            content = [*before, *text[first : first + size], *settings.special_after]
            ids[row, : len(content)] = content
        item = {"input_ids": ids}
        if largest:
            item["position_ids"] = positions
        return {name: torch.from_numpy(values) for name, values in item.items()}

    def _texts(self, number: int, draw: np.random.Generator) -> list[Tokens]:
        """Return the texts of a pair: an anchor, its positive and maybe a negative."""
        epoch, index = divmod(number, self.epoch)
        order = self.settings.generator(ORDER, epoch).permutation(self.positive.max() + 1)
        spans = draw.choice(self.spans[self.positive == order[index]]).reshape(-1, 2)
        texts = [self.tokens[start:stop] for start, stop in spans]
        return self._cut(texts[0], draw) if self.is_cut else texts

    def _cut(self, document: Tokens, draw: np.random.Generator) -> list[Tokens]:
        """Return a random passage of a document, and the document, mostly without it."""
        longest = min(MAX_PASSAGE, len(document) // 2)
        size = int(draw.integers(self.shortest, longest + 1))
        passage = int(draw.integers(len(document) - size + 1)) + np.arange(size)
        is_removed = draw.random() < REMOVED_SHARE
        rest = np.delete(document, passage) if is_removed else document
        return [document[passage], rest]
