"""Losses of a text's tokens by position and by context length, of a model and of the base that it was made from.

The model reads each window whole. The base, whose context is shorter, reads the same tokens in pieces, back to back or
overlapping, as a user would have to do without the longer context.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.eval_model import MASKED
from ctxextend.evaluation.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    Bucket,
    ContextLosses,
    ContextPoint,
    PositionLosses,
    estimate,
    estimate_loss,
)
from ctxextend.evaluation.scoring import ScoredWindow, Scorer, batches

Ids = NDArray[np.int64]
Losses = NDArray[np.float64]

# The share of a masked model's tokens that is masked: as BERT was trained, Devlin et al. 2018, section 3.1.
MASKED_SHARE = 0.15
# The part of a window whose tokens are scored with every context: the larger, the less text before the first of them.
SCORED_SHARE = 1 / 8
# The part of each piece that is scored where contexts are compared: so all have near as much of themselves to offer.
PIECE_SHARE = 1 / 4
# Into how many buckets positions are divided.
BUCKETS = 16
# With fewer windows a standard error is itself a guess.
FEW_WINDOWS = 8


@dataclass(frozen=True)
class Span:
    """A piece of a text that is read at once, `start` to `stop` - 1, whose tokens `first` to `last` - 1 are scored."""

    start: int
    stop: int
    first: int
    last: int


def spans(scored: tuple[int, int], tokens: int, size: int, stride: int, *, centred: bool) -> Iterator[Span]:
    """Yield pieces of a text of so many tokens that score those of `scored`, first and end, once each.

    A piece has `size` tokens at most and scores `stride` of them at most: those in its middle (`centred`), as masked
    tokens should stand, or at its end. At the end of the text they stand at the end of a piece as long as the others.
    """
    stride = min(stride, scored[1] - scored[0])
    before = (size - stride) // 2 if centred else size - stride
    for first in range(scored[0], scored[1], stride):
        last, start = min(first + stride, scored[1]), max(first - before, 0)
        if centred:
            start = min(start, max(tokens - size, 0))
        yield Span(start, min(start + size, tokens) if centred else last, first, last)


@dataclass(frozen=True)
class ReadingMode:
    """How a text is read that may be longer than what is read at once."""

    name: str  # `MODEL`, `TRUNCATED` or `SLIDING`
    scorer: Scorer
    context: int  # tokens that are read at once, special tokens included
    share: float  # of each piece, the part that is scored, at most

    def spans(self, scored: tuple[int, int], tokens: int) -> Iterator[Span]:
        """Yield the pieces of a text of so many tokens by which those of `scored`, first and end, are scored."""
        tokenizer, is_masked = self.scorer.model.tokenizer, self.scorer.model.kind == MASKED
        size = self.context - tokenizer.num_special
        # Without a token in front, the first of a piece is only read, so that the next has one before it.
        most = size - (not is_masked and not tokenizer.before)
        return spans(scored, tokens, size, max(int(most * self.share), 1), centred=is_masked)

    def losses(self, texts: Sequence[Ids], targets: Sequence[Ids], scored: tuple[int, int]) -> list[Losses]:
        """Return the losses in nats of the tokens at each text's targets, rising and inside `scored`, shape (k,)."""
        pieces = [list(self._pieces(text, places, scored)) for text, places in zip(texts, targets, strict=True)]
        found = iter(self.scorer.losses([piece for parts in pieces for piece in parts]))
        return [np.concatenate([next(found) for _ in parts]) for parts in pieces]

    def _pieces(self, text: Ids, targets: Ids, scored: tuple[int, int]) -> Iterator[ScoredWindow]:
        model = self.scorer.model
        inputs, shift = text.copy(), len(model.tokenizer.before)
        if model.kind == MASKED:
            inputs[targets] = model.tokenizer.tokenizer.mask_token_id
        else:
            shift -= 1  # a causal model's prediction stands one place before the token
        for span in self.spans(scored, len(text)):
            here = targets[(targets >= span.first) & (targets < span.last)]
            if len(here):
                ids = model.tokenizer.add_special_tokens(inputs[span.start : span.stop])
                yield ScoredWindow(ids, here - span.start + shift, text[here])


@dataclass(frozen=True)
class WindowLosses:
    """What was measured on one window."""

    positions: Ids  # of the tokens that every mode of `by_position` scored, shape (k,)
    by_position: Mapping[str, Losses]  # by the mode's name, each of shape (k,)
    by_context: Mapping[tuple[str, int], Losses]  # of the same tokens each, by the mode's name and context

    def merged(self, other: "WindowLosses") -> "WindowLosses":
        """Return these and the losses by other modes of the same tokens of the same window."""
        by_position = {**self.by_position, **other.by_position}
        return WindowLosses(self.positions, by_position, {**self.by_context, **other.by_context})


@dataclass
class LossTask:
    """The losses of windows of one text, and those measured so far."""

    scorer: Scorer
    texts: Sequence[Ids]  # the windows without special tokens, each of shape (length - special tokens,)
    length: int  # tokens of a window, special tokens included
    seed: int  # of a masked model's masks
    whole: Sequence[ReadingMode]  # by which whole windows are read; none where loss by position is not asked for
    contexts: Sequence[ReadingMode]  # by which the tokens are read that all contexts share; none likewise
    base_length: int | None  # tokens that the base reads; None where that is not known
    windows: list[WindowLosses] = field(default_factory=list)
    by_base: list[WindowLosses] = field(default_factory=list)  # from `read_base`

    def __post_init__(self) -> None:
        model, tokens = self.scorer.model, self.length - self.scorer.model.tokenizer.num_special
        self.is_masked = model.kind == MASKED
        # The first token that can be scored, and one behind the last; and those that are scored with every context.
        self.all_scored = int(not self.is_masked and not model.tokenizer.before), tokens
        wanted = max(int(tokens * SCORED_SHARE), 1)
        start = (tokens - wanted) // 2 if self.is_masked else tokens - wanted
        self.shared = start, start + wanted

    @property
    def tokens(self) -> int:
        """Tokens that the model reads."""
        return self._window_tokens(of_base=False) * len(self.texts)

    @property
    def base_tokens(self) -> int:
        """Tokens that the base reads."""
        return self._window_tokens(of_base=True) * len(self.texts)

    def _window_tokens(self, *, of_base: bool) -> int:
        pieces = [span for mode in _of(self.whole, of_base) for span in mode.spans(self.all_scored, self.all_scored[1])]
        for mode in _of(self.contexts, of_base):
            if not self._is_read_already(mode):
                pieces += mode.spans(self.shared, self.all_scored[1])
        return sum(span.stop - span.start for span in pieces)

    def read_base(self, advance: Callable[[int], None]) -> None:
        """Let the base read everything, once for however many models."""
        for batch in self._batches():
            self.by_base += self._read(batch, of_base=True)
            advance(self._window_tokens(of_base=True) * len(batch))

    def measure(self, advance: Callable[[int], None]) -> None:
        """Let the model read everything, and unless it did so before the base."""
        self.windows, is_read = [], bool(self.by_base)
        per_window = self._window_tokens(of_base=False) + (0 if is_read else self._window_tokens(of_base=True))
        for batch in self._batches():
            base = [self.by_base[i] for i in batch] if is_read else self._read(batch, of_base=True)
            model = self._read(batch, of_base=False)
            self.windows += [own.merged(other) for own, other in zip(model, base, strict=True)]
            advance(per_window * len(batch))

    def _batches(self) -> Iterator[list[int]]:
        return batches([self.length] * len(self.texts), self.scorer.batch_size)

    def _read(self, numbers: Sequence[int], *, of_base: bool) -> list[WindowLosses]:
        """Return what the model or the base makes of the windows with these numbers."""
        texts = [self.texts[i] for i in numbers]
        generators = [np.random.default_rng([self.seed, i]) for i in numbers]
        everywhere = [self._targets(*self.all_scored, generator) for generator in generators]
        shared = [self._targets(*self.shared, generator) for generator in generators]
        whole = {mode.name: mode.losses(texts, everywhere, self.all_scored) for mode in _of(self.whole, of_base)}
        contexts: dict[tuple[str, int], list[Losses]] = {}
        for mode in _of(self.contexts, of_base):
            if self._is_read_already(mode):
                known = [np.searchsorted(every, some) for every, some in zip(everywhere, shared, strict=True)]
                found = [losses[places] for losses, places in zip(whole[MODEL], known, strict=True)]
            else:
                found = mode.losses(texts, shared, self.shared)
            contexts[mode.name, mode.context] = found
        return [
            WindowLosses(
                everywhere[i] + len(self.scorer.model.tokenizer.before),
                {name: losses[i] for name, losses in whole.items()},
                {key: losses[i] for key, losses in contexts.items()},
            )
            for i in range(len(texts))
        ]

    def _is_read_already(self, mode: ReadingMode) -> bool:
        """Whether a mode gives what reading the whole window gave; a masked model has other tokens masked then."""
        is_whole = mode.name == MODEL and mode.context == self.length
        return bool(self.whole) and is_whole and not self.is_masked

    def _targets(self, start: int, stop: int, generator: np.random.Generator) -> Ids:
        """Return the places of the tokens to score: all for a causal model, a drawn share for a masked one."""
        if not self.is_masked:
            return np.arange(start, stop)
        count = max(round((stop - start) * MASKED_SHARE), 1)
        return np.sort(generator.choice(np.arange(start, stop), count, replace=False))

    @property
    def scores(self) -> tuple[Losses, ...]:
        """What models are ranked by: the losses of each window, shape (k,)."""
        return tuple(window.by_position[MODEL] for window in self.windows)

    @property
    def warnings(self) -> list[str]:
        """What should be known of the losses that were measured."""
        found = []
        if 0 < len(self.windows) < FEW_WINDOWS:
            found.append(
                f"{len(self.windows)} windows of {self.length:,} tokens were read: standard errors of so few "
                "are rough. Raise --tokens, or name more text."
            )
        losses = [each for one in self.windows for each in (*one.by_position.values(), *one.by_context.values())]
        if not all(np.isfinite(each).all() for each in losses):
            found.append(
                "Some losses are no finite numbers: a model gives NaN or infinity, or a token no chance at all."
            )
        return found

    def report(self) -> dict[str, Any]:
        """Return the fields of `Evaluation` that were measured."""
        if not self.windows:
            return {}
        return {
            "positions": self._positions() if self.whole else None,
            "contexts": self._contexts() if self.contexts else None,
        }

    def _positions(self) -> PositionLosses:
        positions, width = [window.positions for window in self.windows], -(-self.length // BUCKETS)
        by_name = {name: [one.by_position[name] for one in self.windows] for name in self.windows[0].by_position}
        losses = {name: estimate_loss(found) for name, found in by_name.items()}
        changes = {
            name: estimate([own - other for own, other in zip(by_name[MODEL], found, strict=True)])
            for name, found in by_name.items()
            if name != MODEL
        }
        buckets = []
        for start in range(0, self.length, width):
            stop = min(start + width, self.length)
            inside = [(places >= start) & (places < stop) for places in positions]
            if any(chosen.any() for chosen in inside):
                of_bucket = {
                    name: estimate_loss([one[chosen] for one, chosen in zip(found, inside, strict=True)])
                    for name, found in by_name.items()
                }
                buckets.append(Bucket(start, stop, of_bucket))
        return PositionLosses(self.length, len(self.windows), losses, changes, tuple(buckets))

    def _contexts(self) -> ContextLosses:
        losses = [window.by_context for window in self.windows]
        contexts = sorted(context for name, context in losses[0] if name == MODEL)
        reference = self.base_length if self.base_length in contexts else contexts[0]
        by_base = [context for name, context in losses[0] if name == SLIDING]
        points = tuple(
            ContextPoint(
                context,
                loss=estimate_loss([loss[MODEL, context] for loss in losses]),
                change=estimate([loss[MODEL, context] - loss[MODEL, reference] for loss in losses]),
                original=estimate_loss([loss[SLIDING, context] for loss in losses]) if context in by_base else None,
                against_original=(
                    estimate([loss[MODEL, context] - loss[SLIDING, max(by_base)] for loss in losses])
                    if by_base
                    else None
                ),
            )
            for context in contexts
        )
        return ContextLosses(reference, len(losses), points)


def _of(modes: Sequence[ReadingMode], of_base: bool) -> list[ReadingMode]:
    """Return the modes of the base, or of the model."""
    return [mode for mode in modes if (mode.name != MODEL) == of_base]


def plan_losses(
    scorer: Scorer,
    base: Scorer | None,
    texts: Sequence[Ids],
    lengths: Sequence[int],
    seed: int,
    measures: Sequence[str] = ("position", "context"),
) -> LossTask:
    """Return how windows as long as the longest of the lengths are read by a model, and by its base if it is known."""
    length = max(lengths)
    whole = [ReadingMode(MODEL, scorer, length, 1)]
    contexts = [ReadingMode(MODEL, scorer, context, PIECE_SHARE) for context in sorted(lengths)]
    if base is not None:
        longest = min(base.model.max_len, length)
        whole += [ReadingMode(TRUNCATED, base, longest, 1), ReadingMode(SLIDING, base, longest, 0.5)]
        # Its own longest is what every context is compared with, whichever were asked for.
        read = sorted({longest, *(context for context in lengths if context <= longest)})
        contexts += [ReadingMode(SLIDING, base, context, PIECE_SHARE) for context in read]
    return LossTask(
        scorer,
        texts,
        length,
        seed,
        whole if "position" in measures else (),
        contexts if "context" in measures else (),
        base.model.max_len if base else None,
    )
