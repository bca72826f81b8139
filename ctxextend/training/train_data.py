"""Training data: the user's text as a file of token ids, and the sequences or pairs cut from it.

A sequence depends only on the seed and its index, so that resumed runs and several processes see
the same ones.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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
PREDICTED, IS_MASKED, IS_REPLACED = (
    0.15,
    0.8,
    0.9,
)  # share of tokens; random numbers below 0.8 mask, below 0.9 replace
ORDER, POSITION, MASK = 1, 2, 3  # first part of the seed of each random generator
COLUMNS = (
    "anchor",
    "positive",
    "negative",
)  # sentence-transformers' names; the last one is optional
PASSAGE = (
    16,
    128,
)  # minimum and maximum tokens of a passage: the lengths of questions and of answers
REMOVED = 0.9  # share of passages that are removed from their document
PIECE = 8  # maximum length of a document, in context lengths; longer ones are cut into pieces


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
    """Write chunks of token ids to a file, int32 in native byte order, renamed into place when
    complete.
    """
    with (
        os_errors_as_output_error(path),
        atomic_file(path) as temporary,
        temporary.open("wb") as file,
    ):
        written = 0
        for ids in chunks:
            file.write(ids.astype(np.int32).data)
            before = written
            written = written + len(ids)
            if written // TOKENS_PER_MESSAGE > before // TOKENS_PER_MESSAGE:
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
    """Yield the ids of texts, equal ones once; add to `pairs` the first token and the end of each
    text of a pair.
    """
    total = 0
    known = dict[str, list[int]]()
    for path in paths:
        for where, row in read_rows(path, *COLUMNS[:2]):
            texts = [row[name] for name in COLUMNS if name in row]
            filled = sum(isinstance(text, str) and bool(text.strip()) for text in texts)
            if filled != (expected := len(pairs[0]) // 2 if pairs else len(texts)):
                message = f"{where} has {counted(filled, 'text')} instead of {expected}."
                raise DataError(
                    message, "Fill all fields, and give every line a negative, or none."
                )
            for text in (text for text in texts if text not in known):
                ids = tokenizer.encode(without_surrogates(text))
                known[text] = [total, total := total + len(ids)]
                yield ids
            pairs.append([number for text in texts for number in known[text]])
        files.append(fingerprint(Path(path)) | {"first_token": 0})


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
            tokenizer.mask_token_id,
            min(len(tokenizer), embeddings),
            frozenset(tokenizer.all_special_ids),
        )

    @cached_property
    def ordinary(self) -> Ids:
        """The ids of tokens that are not special, shape (vocab_size - special,)."""
        return np.setdiff1d(np.arange(self.vocab_size), [*self.special])

    def apply(self, text: Ids, generator: np.random.Generator) -> tuple[Ids, Ids]:
        """Return a text with some tokens masked, and its labels, `IGNORE_INDEX` for other tokens;
        both (tokens,).

        Of the ordinary tokens, 15 % are predicted, at least one: 80 % of these are masked, 10 %
        replaced with a random ordinary token. If a text has only special tokens, they count as
        ordinary.

        Source: Devlin et al. 2018, section 3.1 and appendix A.1, arXiv:1810.04805.
        """
        candidates = np.flatnonzero(~np.isin(text, [*self.special]))
        candidates = candidates if len(candidates) else np.arange(len(text))
        chosen = generator.choice(
            candidates, max(1, round(PREDICTED * len(candidates))), replace=False
        )
        masked, labels, draws = (
            text.copy(),
            np.full_like(text, IGNORE_INDEX),
            generator.random(len(chosen)),
        )
        labels[chosen] = text[chosen]
        replaced = chosen[(draws >= IS_MASKED) & (draws < IS_REPLACED)]
        masked[chosen[draws < IS_MASKED]] = self.mask_token
        masked[replaced] = generator.choice(self.ordinary, len(replaced))
        return masked, labels


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
        self.spans, sizes = text.spans[sizes >= length], sizes[sizes >= length]
        # An epoch skips one sequence of each part, so that the first can start at any of its
        # tokens.
        self.sequences = np.maximum((sizes + 1) // length - 1, 1) if shuffled else sizes // length
        self.slack = (sizes - self.sequences * length) * shuffled
        self.epoch = int(self.sequences.sum())
        self.count = count if shuffled else min(count, self.epoch)
        self._cached_epoch = -1, np.empty((0, 2), np.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return a sequence as int64 tensors of shape (length,).

        ``input_ids``; for language models ``labels``, not shifted, `IGNORE_INDEX` for tokens not
        predicted; and for sequences at random positions ``position_ids``, counted from 0, the first
        usable position.
        """
        if not 0 <= number < self.count:
            raise IndexError(number)
        settings = self.settings
        start, first, skip, offset = self._placement(number)
        resumed = start + first + skip
        chunks = (
            self.tokens[start : start + first],
            self.tokens[resumed : resumed + settings.text_length - first],
        )
        labels = text = np.concatenate(chunks).astype(np.int64)
        if settings.masking is not None:
            text, labels = settings.masking.apply(text, settings.generator(MASK, number))
        before, after = len(settings.special_before), len(settings.special_after)
        item = {
            "input_ids": np.concatenate([settings.special_before, text, settings.special_after])
        }
        if settings.kind in (CAUSAL, MASKED):
            item["labels"] = np.pad(labels, (before, after), constant_values=IGNORE_INDEX)
        if settings.span > settings.length:
            positions = np.arange(settings.length)
            positions[before:] += offset  # leading special tokens keep their usual positions
            positions[before + first :] += skip
            item["position_ids"] = positions
        return {name: torch.from_numpy(values.astype(np.int64)) for name, values in item.items()}

    def _placement(self, number: int) -> tuple[int, int, int, int]:
        """Return a sequence's first token, its tokens before the skip, the tokens skipped, and its
        position offset.

        Text and positions skip by the same number of tokens, by fewer near the end of a part.

        Source: PoSE, Zhu et al. 2024, section 3, with v = u of appendix A and two chunks, the first
            of which has an offset too; arXiv:2309.10400.
        """
        settings, length = self.settings, self.settings.text_length
        largest = settings.span - settings.length
        start, stop = self._epoch(number // self.epoch)[number % self.epoch].tolist()
        if not self.shuffled:
            return start, length, 0, round(largest * number / max(self.count - 1, 1))
        generator = settings.generator(POSITION, number)
        # Draw beyond both ends, then clip: otherwise only one offset would reach the first and the
        # last position.
        offsets = generator.integers(1 - length, largest + length, size=2).clip(0, largest).tolist()
        if not settings.skip or length < 2:
            return start, length, 0, offsets[0]
        offset, end = sorted(offsets)
        return (
            start,
            int(generator.integers(1, length)),
            min(end - offset, stop - start - length),
            offset,
        )

    def _epoch(self, number: int) -> Ids:
        """Return the first token of each sequence of an epoch, and the end of its part, shape
        (sequences, 2).
        """
        if self._cached_epoch[0] != number:
            generator = self.settings.generator(ORDER, number)
            firsts = self.spans[:, 0] + generator.integers(self.slack + 1)
            pairs = np.stack([firsts, self.spans[:, 1]], axis=1).repeat(self.sequences, axis=0)
            pairs[:, 0] += (
                np.concatenate([np.arange(n) for n in self.sequences]) * self.settings.text_length
            )
            spaced = np.linspace(0, self.epoch - 1, self.count).round().astype(np.int64)
            self._cached_epoch = (
                number,
                generator.permutation(pairs) if self.shuffled else pairs[spaced],
            )
        return self._cached_epoch[1]


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
        self.tokens, self.spans, self.settings = *text, settings
        self.prompts = [model.tokenizer.encode(prompt) for prompt in read_prompts(model.root)]
        # Whether pairs are cut from documents, and the minimum tokens of a passage.
        self.is_cut = text.spans.shape[1] == 2
        self.shortest = min(PASSAGE[0], settings.length // 8)
        if self.is_cut:
            inner, borders = (
                text.spans.ravel(),
                np.flatnonzero(text.tokens == model.tokenizer.separator),
            )
            pieces = np.arange(0, len(text.tokens), PIECE * settings.span)
            edges = np.unique(np.concatenate([inner, borders, borders + 1, pieces]))
            is_inside = np.searchsorted(inner, edges[:-1], side="right") % 2 == 1
            self.spans = np.stack([edges[:-1], edges[1:]], axis=1)[
                is_inside & (np.diff(edges) >= 2 * self.shortest)
            ]
        firsts, self.positive = np.unique(
            self.spans[:, 0 if self.is_cut else 2], return_inverse=True
        )
        if (size := len(firsts)) < 2:
            message = (
                f"The text {'to train on' if shuffled else 'held out'} has fewer than two "
                "documents or positives."
            )
            raise DataError(
                message, f"Pass more text; documents require {2 * self.shortest} tokens."
            )
        self.epoch, self.count = (
            (size - size % batch or size, count) if shuffled else (size, min(count, size))
        )

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return ``input_ids``, padded with `IGNORE_INDEX`, and for windows ``position_ids``: both
        (texts, length).
        """
        settings = self.settings
        length = self.settings.length
        largest = self.settings.span - self.settings.length
        draw, (epoch, index) = settings.generator(POSITION, number), divmod(number, self.epoch)
        chosen = settings.generator(ORDER, epoch).permutation(self.positive.max() + 1)[index]
        spans = draw.choice(self.spans[self.positive == chosen]).reshape(-1, 2)
        texts = [self.tokens[start:stop] for start, stop in spans]
        if self.is_cut:
            size = int(draw.integers(self.shortest, min(PASSAGE[1], len(texts[0]) // 2) + 1))
            passage = int(draw.integers(len(texts[0]) - size + 1)) + np.arange(size)
            texts = [
                texts[0][passage],
                np.delete(texts[0], passage) if draw.random() < REMOVED else texts[0],
            ]
        ids, positions = (
            np.full((len(texts), length), IGNORE_INDEX),
            np.tile(np.arange(length), (len(texts), 1)),
        )
        for row, text in enumerate(texts):
            before = [*settings.special_before, *self.prompts[min(row, 1)]]
            first = 0
            size = length - len(before) - len(settings.special_after)
            if row and (self.is_cut or largest):
                first = int(draw.integers(max(len(text) - size, 0) + 1))
                offset = draw.integers(1 - length, largest + length).clip(0, largest)
                positions[row, len(settings.special_before) :] += offset
            content = [*before, *text[first : first + size], *settings.special_after]
            ids[row, : len(content)] = content
        item = {"input_ids": ids} | ({"position_ids": positions} if largest else {})
        return {name: torch.from_numpy(values) for name, values in item.items()}
