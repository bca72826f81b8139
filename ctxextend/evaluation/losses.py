"""Losses of one window's tokens, read whole by a model and in pieces by the original that it was made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.readers import MASKED, Reader
from ctxextend.evaluation.reports import MODEL, SLIDING, TRUNCATED
from ctxextend.evaluation.scoring import Scorer, Window
from ctxextend.evaluation.windows import Span, spans

__all__ = ["LossMeasure", "Way", "WindowLosses"]

Ids = NDArray[np.int64]
Losses = NDArray[np.float64]

# Of a masked model's tokens, those that are masked: as BERT was trained, Devlin et al. 2018, section 3.1.
MASKED_SHARE = 0.15

# The part of a window whose tokens are scored with every context: the larger, the less text before the first of them.
SCORED_SHARE = 1 / 8

# The part of each piece that is scored where contexts are compared: so all have near as much of themselves to offer.
PIECE_SHARE = 1 / 4


@dataclass(frozen=True)
class Way:
    """A way of reading a text that may be longer than what is read at once.

    Attributes:
        name: What it is called.
        scorer: The model.
        length: Tokens that are read at once, special tokens included.
        stride: Tokens that are scored of each piece.
    """

    name: str
    scorer: Scorer
    length: int
    stride: int

    @classmethod
    def by(cls, name: str, scorer: Scorer, length: int, share: float) -> "Way":
        """Return the way in which at most a share of each piece is scored."""
        reader = scorer.reader
        # Without a token in front, the first of a piece is only read, so that the next has one before it.
        most = length - reader.special - (reader.kind != MASKED and not reader.prefix)
        return cls(name, scorer, length, max(int(most * share), 1))

    @property
    def reader(self) -> Reader:
        """The model that reads."""
        return self.scorer.reader

    def spans(self, scored: tuple[int, int], tokens: int) -> Iterator[Span]:
        """Yield the pieces of a text by which some of its tokens are scored."""
        return spans(scored, tokens, self.length - self.reader.special, self.stride, centred=self.reader.kind == MASKED)

    def losses(self, texts: Sequence[Ids], targets: Sequence[Ids], scored: tuple[int, int]) -> list[Losses]:
        """Return the losses of some texts' tokens, in nats.

        Args:
            texts: Each of shape (tokens,), without special tokens.
            targets: For each the places of those to score, rising, shape (k,).
            scored: The first place that a target can have, and one behind the last: where pieces begin and end.

        Returns:
            For each, shape (k,).
        """
        pieces = [list(self._pieces(text, places, scored)) for text, places in zip(texts, targets, strict=True)]
        found = iter(self.scorer.losses([piece for parts in pieces for piece in parts]))
        return [np.concatenate([next(found) for _ in parts]) for parts in pieces]

    def _pieces(self, text: Ids, targets: Ids, scored: tuple[int, int]) -> Iterator[Window]:
        """Yield what is read of a text, piece by piece."""
        inputs, shift = text.copy(), len(self.reader.prefix)
        if self.reader.kind == MASKED:
            inputs[targets] = self.reader.tokenizer.mask_token_id
        else:
            shift -= 1  # a causal model's answer stands one place before the token
        for span in self.spans(scored, len(text)):
            here = targets[(targets >= span.first) & (targets < span.last)]
            if len(here):
                framed = self.reader.framed(inputs[span.start : span.stop])
                yield Window(framed, here - span.start + shift, text[here])


@dataclass(frozen=True)
class WindowLosses:
    """What was measured on one window.

    Attributes:
        places: The positions of the tokens that every way of `by_position` scored, shape (k,).
        by_position: Their losses by the way of reading, each of shape (k,); empty where not asked for.
        by_context: The losses of the tokens that all contexts share, by the way of reading and the context, each of
            one shape; empty where not asked for.
    """

    places: Ids
    by_position: Mapping[str, Losses]
    by_context: Mapping[tuple[str, int], Losses]

    def with_those_of(self, other: "WindowLosses") -> "WindowLosses":
        """Return these and what other ways of reading gave on the same tokens of the same window."""
        by_position = {**self.by_position, **other.by_position}
        return WindowLosses(self.places, by_position, {**self.by_context, **other.by_context})


@dataclass(frozen=True)
class LossMeasure:
    """How windows are read.

    Attributes:
        length: Tokens of a window, special tokens included.
        seed: What a masked model's tokens are drawn with.
        whole: The ways to read a whole window; empty where loss by position is not asked for.
        contexts: The ways to read the tokens that all contexts share; empty where loss by context is not asked for.
    """

    length: int
    seed: int
    whole: tuple[Way, ...]
    contexts: tuple[Way, ...]

    @classmethod
    def of(cls, model: Scorer, original: Scorer | None, lengths: Sequence[int], seed: int) -> "LossMeasure":
        """Return the measure of a model, and of the original where that is known.

        Args:
            model: The model.
            original: What it was made of.
            lengths: The contexts; the longest is the window.
            seed: What a masked model's tokens are drawn with.
        """
        length = max(lengths)
        whole = [Way.by(MODEL, model, length, 1)]
        contexts = [Way.by(MODEL, model, context, PIECE_SHARE) for context in sorted(lengths)]
        if original is not None:
            piece = min(original.reader.max_len, length)
            whole += [Way.by(TRUNCATED, original, piece, 1), Way.by(SLIDING, original, piece, 0.5)]
            # Its own longest is what every context is compared with, whichever were asked for.
            read = sorted({piece, *(context for context in lengths if context <= piece)})
            contexts += [Way.by(SLIDING, original, context, PIECE_SHARE) for context in read]
        return cls(length, seed, tuple(whole), tuple(contexts))

    def parted(self) -> tuple["LossMeasure", "LossMeasure"]:
        """Return the same by the model's ways of reading alone, and by the original's, which may be none."""
        own = [tuple(way for way in ways if way.name == MODEL) for ways in (self.whole, self.contexts)]
        others = [tuple(way for way in ways if way.name != MODEL) for ways in (self.whole, self.contexts)]
        return replace(self, whole=own[0], contexts=own[1]), replace(self, whole=others[0], contexts=others[1])

    @property
    def reader(self) -> Reader:
        """The model."""
        return (*self.whole, *self.contexts)[0].reader

    @property
    def size(self) -> int:
        """Tokens of a window's text."""
        return self.length - self.reader.special

    @property
    def tokens_to_read(self) -> int:
        """Tokens that the models read for one window, all pieces together."""
        whole = [span for way in self.whole for span in way.spans(self._everything(), self.size)]
        parts = [
            span
            for way in self.contexts
            if not self._is_read_already(way)
            for span in way.spans(self._shared(), self.size)
        ]
        return sum(span.stop - span.start for span in (*whole, *parts))

    def _everything(self) -> tuple[int, int]:
        """Return the first token that can be scored, and one behind the last."""
        return int(self.reader.kind != MASKED and not self.reader.prefix), self.size

    def _shared(self) -> tuple[int, int]:
        """Return the first token that is scored with every context, and one behind the last."""
        wanted = max(int(self.size * SCORED_SHARE), 1)
        start = (self.size - wanted) // 2 if self.reader.kind == MASKED else self.size - wanted
        return start, start + wanted

    def read(self, first: int, texts: Sequence[Ids]) -> list[WindowLosses]:
        """Measure some windows at once.

        Args:
            first: Which window of the text the first is, from 0.
            texts: Their tokens, each of shape (size,).
        """
        drawn = [np.random.default_rng([self.seed, first + i]) for i in range(len(texts))]
        everywhere = [self._targets(*self._everything(), generator) for generator in drawn]
        shared = [self._targets(*self._shared(), generator) for generator in drawn]
        whole = {way.name: way.losses(texts, everywhere, self._everything()) for way in self.whole}
        known = [np.searchsorted(every, some) for every, some in zip(everywhere, shared, strict=True)]
        contexts = {
            (way.name, way.length): (
                [losses[places] for losses, places in zip(whole[MODEL], known, strict=True)]
                if self._is_read_already(way)
                else way.losses(texts, shared, self._shared())
            )
            for way in self.contexts
        }
        return [
            WindowLosses(
                everywhere[i] + len(self.reader.prefix),
                {name: losses[i] for name, losses in whole.items()},
                {key: losses[i] for key, losses in contexts.items()},
            )
            for i in range(len(texts))
        ]

    def _is_read_already(self, way: Way) -> bool:
        """Whether a way gives what reading the whole window gave; a masked model has other tokens masked then."""
        return bool(self.whole) and way.name == MODEL and way.length == self.length and self.reader.kind != MASKED

    def _targets(self, start: int, stop: int, generator: np.random.Generator) -> Ids:
        """Return the places of the tokens to score: all for a causal model, a drawn share for a masked one."""
        if self.reader.kind != MASKED:
            return np.arange(start, stop)
        count = max(round((stop - start) * MASKED_SHARE), 1)
        return np.sort(generator.choice(np.arange(start, stop), count, replace=False))
