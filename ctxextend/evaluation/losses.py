"""Losses of a text's tokens by position and by context length, of a model and of the base that it was made from.

The model reads each window whole. The base, whose context is shorter, reads the same tokens in pieces, back to back or
overlapping, as a user would have to do without the longer context.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.eval_model import MASKED, EvalModel
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
from ctxextend.evaluation.scoring import ScoredWindow, Scorer
from ctxextend.evaluation.text_windows import Span, spans

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


@dataclass(frozen=True)
class LossMeasure:
    """How windows are read."""

    model: EvalModel
    length: int  # tokens of a window, special tokens included
    seed: int  # of a masked model's masks
    whole: tuple[ReadingMode, ...]  # by which whole windows are read; empty where loss by position is not asked for
    contexts: tuple[ReadingMode, ...]  # by which the tokens are read that all contexts share; empty likewise

    def only(self, *, base: bool) -> "LossMeasure":
        """Return the same by the base's modes only, which may be none, or by the model's only."""

        def chosen(modes: tuple[ReadingMode, ...]) -> tuple[ReadingMode, ...]:
            return tuple(mode for mode in modes if (mode.name != MODEL) == base)

        return replace(self, whole=chosen(self.whole), contexts=chosen(self.contexts))

    @property
    def tokens_to_read(self) -> int:
        """Tokens that the models read for one window, all pieces together."""
        tokens = self.length - self.model.tokenizer.num_special
        pieces = [span for mode in self.whole for span in mode.spans(self._everything(), tokens)]
        for mode in self.contexts:
            if not self._is_read_already(mode):
                pieces += mode.spans(self._shared(), tokens)
        return sum(span.stop - span.start for span in pieces)

    def read(self, first: int, texts: Sequence[Ids]) -> list[WindowLosses]:
        """Measure some windows at once.

        Args:
            first: Which window of the text the first is, from 0.
            texts: Their tokens, each of shape (length - special tokens,).
        """
        generators = [np.random.default_rng([self.seed, first + i]) for i in range(len(texts))]
        everywhere = [self._targets(*self._everything(), generator) for generator in generators]
        shared = [self._targets(*self._shared(), generator) for generator in generators]
        whole = {mode.name: mode.losses(texts, everywhere, self._everything()) for mode in self.whole}
        contexts: dict[tuple[str, int], list[Losses]] = {}
        for mode in self.contexts:
            if self._is_read_already(mode):
                known = [np.searchsorted(every, some) for every, some in zip(everywhere, shared, strict=True)]
                found = [losses[places] for losses, places in zip(whole[MODEL], known, strict=True)]
            else:
                found = mode.losses(texts, shared, self._shared())
            contexts[mode.name, mode.context] = found
        return [
            WindowLosses(
                everywhere[i] + len(self.model.tokenizer.before),
                {name: losses[i] for name, losses in whole.items()},
                {key: losses[i] for key, losses in contexts.items()},
            )
            for i in range(len(texts))
        ]

    def _everything(self) -> tuple[int, int]:
        """Return the first token that can be scored, and one behind the last."""
        tokenizer = self.model.tokenizer
        return int(self.model.kind != MASKED and not tokenizer.before), self.length - tokenizer.num_special

    def _shared(self) -> tuple[int, int]:
        """Return the first token that is scored with every context, and one behind the last."""
        tokens = self.length - self.model.tokenizer.num_special
        wanted = max(int(tokens * SCORED_SHARE), 1)
        start = (tokens - wanted) // 2 if self.model.kind == MASKED else tokens - wanted
        return start, start + wanted

    def _is_read_already(self, mode: ReadingMode) -> bool:
        """Whether a mode gives what reading the whole window gave; a masked model has other tokens masked then."""
        is_whole = mode.name == MODEL and mode.context == self.length
        return bool(self.whole) and is_whole and self.model.kind != MASKED

    def _targets(self, start: int, stop: int, generator: np.random.Generator) -> Ids:
        """Return the places of the tokens to score: all for a causal model, a drawn share for a masked one."""
        if self.model.kind != MASKED:
            return np.arange(start, stop)
        count = max(round((stop - start) * MASKED_SHARE), 1)
        return np.sort(generator.choice(np.arange(start, stop), count, replace=False))


def plan_losses(
    scorer: Scorer,
    base: Scorer | None,
    lengths: Sequence[int],
    seed: int,
    measures: Sequence[str] = ("position", "context"),
) -> LossMeasure:
    """Return how the windows of a text are read by a model, and by its base where that is known.

    Args:
        scorer: Of the model.
        base: Of its base.
        lengths: The contexts; the longest is the window.
        seed: Random seed of a masked model's masks.
        measures: Which of ``position`` and ``context`` are asked for.
    """
    length = max(lengths)
    whole = [ReadingMode(MODEL, scorer, length, 1)]
    contexts = [ReadingMode(MODEL, scorer, context, PIECE_SHARE) for context in sorted(lengths)]
    if base is not None:
        longest = min(base.model.max_len, length)
        whole += [ReadingMode(TRUNCATED, base, longest, 1), ReadingMode(SLIDING, base, longest, 0.5)]
        # Its own longest is what every context is compared with, whichever were asked for.
        read = sorted({longest, *(context for context in lengths if context <= longest)})
        contexts += [ReadingMode(SLIDING, base, context, PIECE_SHARE) for context in read]
    whole, contexts = (whole if "position" in measures else []), (contexts if "context" in measures else [])
    return LossMeasure(scorer.model, length, seed, tuple(whole), tuple(contexts))


def sum_up_positions(windows: Sequence[WindowLosses], length: int) -> PositionLosses | None:
    """Return loss by position; None where it was not measured.

    Args:
        windows: What was measured.
        length: Tokens of each window, special tokens included.
    """
    if not windows or not windows[0].by_position:
        return None
    names, width = tuple(windows[0].by_position), -(-length // BUCKETS)
    losses = {name: estimate_loss([window.by_position[name] for window in windows]) for name in names}
    changes = {
        name: estimate([window.by_position[MODEL] - window.by_position[name] for window in windows])
        for name in names
        if name != MODEL
    }
    buckets = []
    for start in range(0, length, width):
        stop = min(start + width, length)
        inside = [(window.positions >= start) & (window.positions < stop) for window in windows]
        if any(chosen.any() for chosen in inside):
            of_bucket = {
                name: estimate_loss([w.by_position[name][chosen] for w, chosen in zip(windows, inside, strict=True)])
                for name in names
            }
            buckets.append(Bucket(start, stop, of_bucket))
    return PositionLosses(length, len(windows), losses, changes, tuple(buckets))


def sum_up_contexts(windows: Sequence[WindowLosses], base_length: int | None) -> ContextLosses | None:
    """Return loss by context length; None where it was not measured.

    Args:
        windows: What was measured.
        base_length: Tokens that the base reads; None where that is not known.
    """
    if not windows or not windows[0].by_context:
        return None
    losses = [window.by_context for window in windows]
    contexts = sorted(context for name, context in losses[0] if name == MODEL)
    reference = base_length if base_length in contexts else contexts[0]
    by_base = [context for name, context in losses[0] if name == SLIDING]
    points = []
    for context in contexts:
        own = [loss[MODEL, context] for loss in losses]
        point = ContextPoint(
            context,
            loss=estimate_loss(own),
            change=estimate([loss[MODEL, context] - loss[MODEL, reference] for loss in losses]),
            original=estimate_loss([loss[SLIDING, context] for loss in losses]) if context in by_base else None,
            against_original=(
                estimate([loss[MODEL, context] - loss[SLIDING, max(by_base)] for loss in losses]) if by_base else None
            ),
        )
        points.append(point)
    return ContextLosses(reference, len(windows), tuple(points))
