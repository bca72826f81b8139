"""Tokenized pairs for contrastive training: those of a file, or passages and their documents."""

from collections.abc import Sequence

import numpy as np
import torch

from ctxextend.errors import DataError
from ctxextend.held_out import Ids
from ctxextend.lab.embedding import read_prompts
from ctxextend.lab.eval_model import EvalModel
from ctxextend.training.train_data import (
    IGNORE_INDEX,
    ORDER,
    POSITION,
    NumberedItems,
    SequenceSettings,
    Text,
    Tokens,
    TrainItem,
    draw_offset,
)

POSITIVE = 1  # the index of a pair's positive, as in `pair_rows.COLUMNS`
# Tokens of a passage: the lengths of questions and of answers.
MIN_PASSAGE = 16
MAX_PASSAGE = 128
REMOVED_SHARE = 0.9  # of passages that are removed from their document
MAX_DOCUMENT = 8  # context lengths; longer documents are cut into pieces


class PairDataset(NumberedItems):
    """Pairs of texts, in epochs. `Pairs` and `Documents` draw them.

    In an epoch, each positive occurs at most once. In training, epochs consist of whole batches, so
    that no batch has a positive twice, as a negative of its anchor. Only fewer positives than a
    batch has pairs are repeated in a batch.

    Anchors are read from their first token. Positives and negatives are read from their first
    token if they are texts of files at their usual positions. Of documents, and at random
    positions, a random part is read.
    """

    reads_parts = False  # whether a random part of a text is read at all positions too

    def __init__(
        self,
        text: Text,
        settings: SequenceSettings,
        count: int,
        *,
        model: EvalModel,
        batch: int | None,
    ) -> None:
        """Plan the epochs of `count` pairs; if they are held out, there is at most one epoch.

        Args:
            text: What pairs are drawn from.
            settings: Of all texts.
            count: The number of pairs; of held-out ones, the maximum.
            model: The model that reads them, with its prompts.
            batch: Pairs per optimizer step, whose texts are compared with each other; None for
                those of the held-out loss.

        Raises:
            DataError: There are fewer than two positives, or sequences are too short for special
                tokens, a prompt and a text.
            CheckpointError: The prompts of the model cannot be read.
        """
        self.tokens = text.tokens
        self.settings = settings
        self.shortest_passage = min(MIN_PASSAGE, settings.length // 8)
        self.positives = positives = self.count_positives(text, model.tokenizer.separator)
        query_prompt, document_prompt = read_prompts(model.root)
        encode = model.tokenizer.encode
        self.before_anchor = [*settings.special_before, *encode(query_prompt)]
        self.before_others = [*settings.special_before, *encode(document_prompt)]
        if positives < 2:  # which nothing can be compared with
            part = "held out" if batch is None else "to train on"
            message = f"The text {part} has fewer than two documents or positives."
            hint = f"Pass more text; documents require {2 * self.shortest_passage} tokens."
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
        if batch is None:
            self.count = min(count, positives)
        elif positives >= batch:
            self.epoch_size -= positives % batch  # whole batches

    def count_positives(self, text: Text, separator: int | None) -> int:
        """Return how many different positives a text has; documents end with a separator."""
        raise NotImplementedError

    def draw(self, positive: int, generator: np.random.Generator) -> list[Tokens]:
        """Return the texts of a random pair that has this positive."""
        raise NotImplementedError

    def __getitem__(self, number: int) -> TrainItem:
        """Return a pair as int64 tensors of shape (texts, length).

        ``input_ids``, padded with `IGNORE_INDEX`, and at random positions ``position_ids``.
        """
        settings = self.settings
        generator = settings.generator(POSITION, number)
        epoch, index = divmod(number, self.epoch_size)
        order = settings.generator(ORDER, epoch).permutation(self.positives)
        anchor, *others = self.draw(int(order[index]), generator)
        texts = [self._read(self.before_anchor, anchor)]
        for text in others:
            offset = 0
            if self.reads_parts or settings.largest_offset > 0:
                left_out = max(len(text) - self._max_tokens(self.before_others), 0)
                text = text[int(generator.integers(left_out + 1)) :]
                offset = draw_offset(generator, settings.length, settings.largest_offset)
            texts.append(self._read(self.before_others, text, offset))
        item = {"input_ids": np.stack([ids for ids, _ in texts])}
        if settings.largest_offset > 0:
            item["position_ids"] = np.stack([positions for _, positions in texts])
        return {name: torch.from_numpy(values) for name, values in item.items()}

    def _max_tokens(self, before: Sequence[int]) -> int:
        return self.settings.length - len(before) - len(self.settings.special_after)

    def _read(self, before: Sequence[int], text: Tokens, offset: int = 0) -> tuple[Ids, Ids]:
        """Return a text, padded, and its positions, which have an offset, each (length,).

        Leading special tokens keep their usual positions, from 0.
        """
        settings = self.settings
        content = [*before, *text[: self._max_tokens(before)], *settings.special_after]
        ids = np.full(settings.length, IGNORE_INDEX)
        ids[: len(content)] = content
        positions = np.arange(settings.length)
        positions[len(settings.special_before) :] += offset
        return ids, positions


def number_positives(text: Text) -> Ids:
    """Return the number of each pair's positive, shape (pairs,); equal positives have one number.

    The spans of the text are those of each pair's anchor, positive and maybe negative, shape
    (pairs, texts, 2).
    """
    return np.unique(text.spans[:, POSITIVE, 0], return_inverse=True)[1]


class Pairs(PairDataset):
    """The pairs of files."""

    def count_positives(self, text: Text, separator: int | None) -> int:
        """Return how many different positives there are."""
        self.spans = text.spans
        self.positive_of_pair = number_positives(text)
        return len(np.unique(self.positive_of_pair))

    def draw(self, positive: int, generator: np.random.Generator) -> list[Tokens]:
        """Return the texts of a random pair that has this positive."""
        pairs = self.spans[self.positive_of_pair == positive]
        return [self.tokens[start:end] for start, end in generator.choice(pairs)]


class Documents(PairDataset):
    """Documents, and passages that are cut from them as anchors.

    Source: the inverse cloze task of Lee et al. 2019, section 4, arXiv:1906.00300, which also
    removes 90 % of passages.
    """

    reads_parts = True

    def count_positives(self, text: Text, separator: int | None) -> int:
        """Find the documents in the parts of a text, and return how many there are.

        The text is cut into pieces before and after each separator, at both ends of each part, and
        at multiples of `MAX_DOCUMENT` context lengths. Here a part ends between tokens 6 and 7, and
        separators are ``|``::

            tokens   0  1  2  |  4  5  6  7  8  |
            pieces  [0  1  2][|][4  5  6][7  8][|]

        A piece is a document if it is inside a part and has the tokens of two passages, which no
        separator has.
        """
        separators = np.empty(0, np.int64)
        if separator is not None:
            separators = np.flatnonzero(text.tokens == separator)
        cuts = np.arange(0, len(text.tokens), MAX_DOCUMENT * self.settings.usable_positions)
        borders = np.unique(np.concatenate([text.spans.ravel(), separators, separators + 1, cuts]))
        pieces = np.stack([borders[:-1], borders[1:]], axis=1)
        # Inside a part, there is an odd number of borders before or at a token: two of each earlier
        # part, and one of the part that it is in.
        is_inside = np.searchsorted(text.spans.ravel(), borders[:-1], side="right") % 2 == 1
        is_long = np.diff(borders) >= 2 * self.shortest_passage
        self.spans = pieces[is_inside & is_long]
        return len(self.spans)

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
