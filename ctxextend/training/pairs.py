"""Tokenized pairs for contrastive training: those of a file, or passages and their documents."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.errors import DataError
from ctxextend.held_out import Ids
from ctxextend.lab.embedding import read_prompts
from ctxextend.lab.eval_model import EvalModel
from ctxextend.training.train_data import (
    IGNORE_INDEX,
    ORDER,
    POSITION,
    SequenceSettings,
    Text,
    Tokens,
    TrainItem,
    check_number,
    draw_offset,
)

POSITIVE = 1  # the index of a pair's positive, as in `pair_rows.COLUMNS`
# Tokens of a passage: the lengths of questions and of answers.
MIN_PASSAGE = 16
MAX_PASSAGE = 128
REMOVED_SHARE = 0.9  # of passages that are removed from their document
MAX_DOCUMENT = 8  # context lengths; longer documents are cut into pieces


class PairedText(NamedTuple):
    """Tokenized texts, and which of them are pairs."""

    tokens: Tokens  # of all texts, shape (tokens,)
    # first token and end of each pair's anchor, positive and maybe negative, (pairs, texts, 2)
    spans: Ids

    @property
    def positive_of_pair(self) -> Ids:
        """The number of each pair's positive, shape (pairs,); equal positives have one number."""
        first_tokens = self.spans[:, POSITIVE, 0]
        return np.unique(first_tokens, return_inverse=True)[1]

    def select(self, chosen: NDArray[np.bool_]) -> "PairedText":
        """Return some of the pairs, given a mask of shape (pairs,)."""
        return self._replace(spans=self.spans[chosen])


# ---- drawing pairs


class Pairs:
    """The pairs of files."""

    has_documents = False

    def __init__(self, text: PairedText) -> None:
        self.tokens = text.tokens
        self.spans = text.spans
        self.positive_of_pair = text.positive_of_pair
        self.num_positives = len(np.unique(self.positive_of_pair))

    def draw(self, positive: int, generator: np.random.Generator) -> list[Tokens]:
        """Return the texts of a random pair that has this positive."""
        pairs = self.spans[self.positive_of_pair == positive]
        return [self.tokens[start:end] for start, end in generator.choice(pairs)]


class Documents:
    """Documents, from which passages are cut as anchors.

    Source: the inverse cloze task of Lee et al. 2019, section 4, arXiv:1906.00300, which also
    removes 90 % of passages.
    """

    has_documents = True

    def __init__(self, text: Text, settings: SequenceSettings, separator: int | None) -> None:
        self.tokens = text.tokens
        self.shortest_passage = shortest_passage(settings)
        self.spans = find_documents(
            text,
            separator,
            shortest=2 * self.shortest_passage,
            longest=MAX_DOCUMENT * settings.usable_positions,
        )
        self.num_positives = len(self.spans)

    def draw(self, positive: int, generator: np.random.Generator) -> list[Tokens]:
        """Return a random passage of a document, and the document, mostly without it."""
        start, end = self.spans[positive]
        document = self.tokens[start:end]
        longest = min(MAX_PASSAGE, len(document) // 2)
        size = int(generator.integers(self.shortest_passage, longest + 1))
        passage = int(generator.integers(len(document) - size + 1)) + np.arange(size)
        is_removed = generator.random() < REMOVED_SHARE
        rest = np.delete(document, passage) if is_removed else document
        return [document[passage], rest]


def shortest_passage(settings: SequenceSettings) -> int:
    """Return the minimum tokens of a passage."""
    return min(MIN_PASSAGE, settings.length // 8)


def find_documents(text: Text, separator: int | None, *, shortest: int, longest: int) -> Ids:
    """Return the first token and the end of each document in the parts of a text, shape (k, 2).

    The text is cut into pieces before and after each separator, at both ends of each part, and at
    multiples of `longest`. Here a part ends between tokens 6 and 7, and separators are ``|``::

        tokens   0  1  2  |  4  5  6  7  8  |
        pieces  [0  1  2][|][4  5  6][7  8][|]

    A piece is a document if it is inside a part and has enough tokens, which no separator has.

    Args:
        text: Documents with a separator after each.
        separator: The token between documents, or None if there is none.
        shortest: Minimum tokens, ≥ 2; shorter documents are left out.
        longest: The text is cut at multiples of this, so that no document has more tokens.
    """
    separators = np.empty(0, np.int64)
    if separator is not None:
        separators = np.flatnonzero(text.tokens == separator)
    cuts = np.arange(0, len(text.tokens), longest)
    borders = np.unique(np.concatenate([text.spans.ravel(), separators, separators + 1, cuts]))
    starts = borders[:-1]
    ends = borders[1:]
    # Inside a part, there is an odd number of borders before or at a token: two of each earlier
    # part, and one of the part that it is in.
    is_inside = np.searchsorted(text.spans.ravel(), starts, side="right") % 2 == 1
    is_document = is_inside & (ends - starts >= shortest)
    documents: Ids = np.stack([starts, ends], axis=1)[is_document]
    return documents


class PairDataset(torch.utils.data.Dataset[TrainItem]):
    """Pairs of texts, in epochs.

    In an epoch, each positive occurs at most once. In training, epochs consist of whole batches, so
    that no batch has a positive twice, as a negative of its anchor. Only fewer positives than a
    batch has pairs are repeated in a batch.

    Anchors are read from their first token. Positives and negatives are read from their first
    token if they are texts of files at their usual positions. Of documents, and at random
    positions, a random part is read.
    """

    def __init__(
        self,
        source: Pairs | Documents,
        settings: SequenceSettings,
        count: int,
        *,
        is_held_out: bool,
        model: EvalModel,
        batch: int,
    ) -> None:
        """Plan the epochs of `count` pairs; if they are held out, there is at most one epoch.

        Args:
            source: What pairs are drawn from.
            settings: Of all texts.
            count: The number of pairs; of held-out ones, the maximum.
            is_held_out: Whether the pairs are for the held-out loss.
            model: The model that reads them, with its prompts.
            batch: Pairs per optimizer step, whose texts are compared with each other.

        Raises:
            DataError: There are fewer than two positives, or sequences are too short for special
                tokens, a prompt and a text.
            CheckpointError: The prompts of the model cannot be read.
        """
        self.source = source
        self.tokens = source.tokens
        self.settings = settings
        query_prompt, document_prompt = read_prompts(model.root)
        encode = model.tokenizer.encode
        self.before_anchor = [*settings.special_before, *encode(query_prompt)]
        self.before_others = [*settings.special_before, *encode(document_prompt)]
        positives = source.num_positives
        if positives < 2:  # which nothing can be compared with
            part = "held out" if is_held_out else "to train on"
            message = f"The text {part} has fewer than two documents or positives."
            hint = f"Pass more text; documents require {2 * shortest_passage(settings)} tokens."
            raise DataError(message, hint)
        most = min(self._max_tokens(self.before_anchor), self._max_tokens(self.before_others))
        if most < 1:
            message = (
                f"The prompt of the model and special tokens have {settings.length - most} tokens, "
                f"so no text fits into a sequence of {settings.length}."
            )
            raise DataError(message, "Use a longer --seq-len or --window.")
        self.epoch_size = positives
        self.count = count
        if is_held_out:
            self.count = min(count, positives)
        elif positives >= batch:
            self.epoch_size -= positives % batch  # whole batches

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> TrainItem:
        """Return a pair as int64 tensors of shape (texts, length).

        ``input_ids``, padded with `IGNORE_INDEX`, and at random positions ``position_ids``.

        Raises:
            IndexError: The number is not below `count`.
        """
        check_number(number, self)
        settings = self.settings
        generator = settings.generator(POSITION, number)
        epoch, index = divmod(number, self.epoch_size)
        order = settings.generator(ORDER, epoch).permutation(self.source.num_positives)
        anchor, *others = self.source.draw(int(order[index]), generator)
        texts = [self._read(self.before_anchor, anchor, first=0, offset=0)]
        for text in others:
            first = 0
            offset = 0
            # A random part is read of a document and at random positions.
            if self.source.has_documents or settings.has_random_positions:
                left_out = max(len(text) - self._max_tokens(self.before_others), 0)
                first = int(generator.integers(left_out + 1))
                offset = draw_offset(generator, settings.length, settings.largest_offset)
            texts.append(self._read(self.before_others, text, first=first, offset=offset))
        item = {"input_ids": np.stack([ids for ids, _ in texts])}
        if settings.has_random_positions:
            item["position_ids"] = np.stack([positions for _, positions in texts])
        return {name: torch.from_numpy(values) for name, values in item.items()}

    def _max_tokens(self, before: Sequence[int]) -> int:
        return self.settings.length - len(before) - len(self.settings.special_after)

    def _read(
        self, before: Sequence[int], text: Tokens, *, first: int, offset: int
    ) -> tuple[Ids, Ids]:
        """Return a text from a token on, padded, and its positions, which have an offset.

        Both have shape (length,). Leading special tokens keep their usual positions, from 0.
        """
        settings = self.settings
        read = text[first : first + self._max_tokens(before)]
        content = [*before, *read, *settings.special_after]
        ids = np.full(settings.length, IGNORE_INDEX)
        ids[: len(content)] = content
        positions = np.arange(settings.length)
        positions[len(settings.special_before) :] += offset
        return ids, positions
