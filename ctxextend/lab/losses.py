"""Losses of a language model and its base, by position and by context length, on the same tokens.

The model reads each window in one forward pass. The base, whose context is shorter, reads it in
chunks, back to back or overlapping, as a user without the longer context would.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ctxextend.lab import evaluation_result as results
from ctxextend.lab.eval_model import MASKED, EvalModel, batches
from ctxextend.lab.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    Bucket,
    Estimate,
    estimate,
    estimate_loss,
)
from ctxextend.lab.scorer import Losses, ScoredWindow, Scorer
from ctxextend.held_out import Ids

# What is measured. By position, every token of a window is scored; by context length, the targets
# that all context lengths share.
BY_POSITION = "position"
BY_CONTEXT = "context"
# Of a masked model's tokens, as in BERT: Devlin et al. 2018, section 3.1. Training predicts
# `train_data.PREDICTED_SHARE`.
MASKED_SHARE = 0.15
# Share of a window whose tokens are scored at each context length; a larger share leaves less text
# before the first.
SCORED_SHARE = 1 / 8
# Share of a chunk that is scored when contexts are compared, so that all targets have nearly the
# full context.
CHUNK_SHARE = 1 / 4
SLIDING_SHARE = 1 / 2  # of a sliding window that is scored: windows overlap by half
POSITION_BUCKETS = 16
NOT_FINITE = (
    "Some losses are NaN or infinite: a model returns NaN or infinity, or gives a token "
    "probability 0."
)
UNSUITABLE_TEXT = (
    "This text does not show what a longer context is worth: the base reads it worse in sliding "
    "windows, with more context, than in separate ones, by {amount}. Pass other text, such as long "
    "documents. If no text helps, the base does not use its context."
)


@dataclass(frozen=True)
class Span:
    """A part of a text that is read at once, and the tokens of it that are scored."""

    start: int  # the first token that is read
    stop: int  # the token after the last one that is read
    first_scored: int
    scored_stop: int  # the token after the last one that is scored


def causal_spans(scored: range, size: int, stride: int) -> Iterator[Span]:
    """Yield chunks of a text that score each token of a range once, at the end of a chunk.

    With a size of 6 and a stride of 2, these chunks score tokens 4 to 9, here in brackets::

        0  1  2  3 [4  5]
              2  3  4  5 [6  7]
                    4  5  6  7 [8  9]

    Args:
        scored: The range of tokens.
        size: Maximum tokens of a chunk.
        stride: Maximum tokens of a chunk that are scored.
    """
    scored_per_chunk = min(stride, len(scored))
    before = size - scored_per_chunk
    for first in range(scored.start, scored.stop, scored_per_chunk):
        stop = min(first + scored_per_chunk, scored.stop)
        start = max(first - before, 0)
        yield Span(start=start, stop=stop, first_scored=first, scored_stop=stop)


def centred_spans(scored: range, tokens: int, size: int, stride: int) -> Iterator[Span]:
    """Yield chunks of a text that score each token of a range once, in the middle of a chunk.

    At both ends of the text, the scored tokens are off the middle, and chunks are as long as the
    others. With a size of 6 and a stride of 2, these chunks score tokens 4 to 9 of 10::

        2  3 [4  5] 6  7
              4  5 [6  7] 8  9
              4  5  6  7 [8  9]

    Args:
        scored: The range of tokens.
        tokens: Tokens of the text.
        size: Maximum tokens of a chunk.
        stride: Maximum tokens of a chunk that are scored.
    """
    scored_per_chunk = min(stride, len(scored))
    before = (size - scored_per_chunk) // 2
    largest_start = max(tokens - size, 0)
    for first in range(scored.start, scored.stop, scored_per_chunk):
        scored_stop = min(first + scored_per_chunk, scored.stop)
        start = min(max(first - before, 0), largest_start)
        stop = min(start + size, tokens)
        yield Span(start=start, stop=stop, first_scored=first, scored_stop=scored_stop)


class ModeKey(NamedTuple):
    """What identifies a reading mode, whichever model reads."""

    measure: str  # `BY_POSITION` or `BY_CONTEXT`
    name: str  # `MODEL`, or for the base `TRUNCATED` or `SLIDING`
    context: int  # tokens per chunk, special tokens included

    @property
    def is_base(self) -> bool:
        """Whether the base reads the text."""
        return self.name != MODEL


@dataclass(frozen=True)
class ReadingMode:
    """How to score a text: with which model, context length and stride."""

    key: ModeKey  # losses are kept by it, so that those of a base serve several models
    scorer: Scorer
    share: float  # of a chunk that is scored, at most

    @property
    def is_masked(self) -> bool:
        """Whether the model is a masked language model."""
        return self.scorer.model.kind == MASKED

    def chunks(self, scored: range, tokens: int) -> Iterator[Span]:
        """Return the chunks of a text of so many tokens that score a range."""
        tokenizer = self.scorer.model.tokenizer
        size = self.key.context - tokenizer.num_special
        predicted = size
        # A causal model needs something before a token. Without a special token there, chunks
        # overlap by one token.
        if not self.is_masked and not tokenizer.before:
            predicted -= 1
        stride = max(int(predicted * self.share), 1)
        if self.is_masked:
            return centred_spans(scored, tokens, size, stride)
        return causal_spans(scored, size, stride)

    def score(self, texts: Sequence[Ids], targets: Sequence[Ids], scored: range) -> list[Losses]:
        """Return the losses of each text's targets.

        Args:
            texts: Token ids without special tokens.
            targets: Sorted indices inside `scored` of each text, shape (k,).
            scored: The range of tokens that is scored.
        """
        windows = list[ScoredWindow]()
        for text, indices in zip(texts, targets, strict=True):
            windows += self._windows(text, indices, scored)
        losses_of_all = np.concatenate(self.scorer.losses(windows))
        ends = np.cumsum([len(indices) for indices in targets])
        return np.split(losses_of_all, ends[:-1])

    def _windows(self, text: Ids, targets: Ids, scored: range) -> Iterator[ScoredWindow]:
        tokenizer = self.scorer.model.tokenizer
        inputs = text
        # The output that predicts the first token of a chunk: in a masked model the one at it, in a
        # causal model the one before it; -1 without special tokens before the chunk, which cannot
        # predict its first token.
        first_output = len(tokenizer.before) - 1
        if self.is_masked:
            first_output += 1
            inputs = text.copy()
            inputs[targets] = tokenizer.tokenizer.mask_token_id
        for span in self.chunks(scored, len(text)):
            is_scored = (targets >= span.first_scored) & (targets < span.scored_stop)
            labelled = targets[is_scored]
            if len(labelled):
                yield ScoredWindow(
                    input_ids=tokenizer.add_special_tokens(inputs[span.start : span.stop]),
                    outputs=labelled - span.start + first_output,
                    labels=text[labelled],
                )


@dataclass(frozen=True)
class TargetWindows:
    """Windows of a text, and the tokens of each that are scored, its targets."""

    model: EvalModel  # that reads the windows
    texts: Sequence[Ids]  # windows without special tokens, each of shape (text_size,)
    length: int  # tokens of a window, special tokens included
    seed: int  # for the masks of a masked model

    @property
    def text_size(self) -> int:
        """Tokens of a window without special tokens."""
        return self.length - self.model.tokenizer.num_special

    @property
    def ranges(self) -> dict[str, range]:
        """The range of scored tokens of each window, by measure.

        By position, these are all tokens that something predicts. By context length, they are an
        eighth of the tokens, so that all of them have text around them at each context length: the
        last ones or, for a masked model, which also reads what follows, those in the middle.
        """
        size = self.text_size
        count = max(int(size * SCORED_SHARE), 1)
        if self.model.kind == MASKED:
            start = (size - count) // 2
            return {BY_POSITION: range(size), BY_CONTEXT: range(start, start + count)}
        first = 0 if self.model.tokenizer.before else 1  # nothing precedes token 0 otherwise
        return {BY_POSITION: range(first, size), BY_CONTEXT: range(size - count, size)}

    def targets(self, number: int) -> dict[str, Ids]:
        """Return the indices of a window's targets by measure: all of a range, or a share of it.

        It is a share for a masked model.
        """
        generator = np.random.default_rng([self.seed, number])
        targets = dict[str, Ids]()
        for measure, scored in self.ranges.items():
            indices = np.arange(scored.start, scored.stop)
            if self.model.kind == MASKED:
                indices = choose_masked(indices, generator)
            targets[measure] = indices
        return targets


def choose_masked(indices: Ids, generator: np.random.Generator) -> Ids:
    """Return a random share of tokens to mask, at least one, sorted."""
    count = max(round(len(indices) * MASKED_SHARE), 1)
    return np.sort(generator.choice(indices, count, replace=False))


@dataclass
class LossTask:
    """Scores windows of one text in several modes, and keeps the losses."""

    scorer: Scorer
    windows: TargetWindows
    requested: Sequence[str]  # what to report: `BY_POSITION`, `BY_CONTEXT`, or both
    modes: list[ReadingMode]  # the first ranks models: by position if that is measured
    base_length: int | None  # context length of the base; None if unknown
    across_documents: bool = False  # whether texts span several documents
    # losses of each window's targets
    losses_by_mode: dict[ModeKey, list[Losses]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""
        own = [mode for mode in self.modes if not mode.key.is_base]
        return self._tokens_per_window(own) * len(self.windows.texts)

    @property
    def base_tokens(self) -> int:
        """The number of tokens that the base reads."""
        base = [mode for mode in self.modes if mode.key.is_base]
        return self._tokens_per_window(base) * len(self.windows.texts)

    def _tokens_per_window(self, modes: Sequence[ReadingMode]) -> int:
        ranges = self.windows.ranges
        count = 0
        for mode in modes:
            chunks = mode.chunks(ranges[mode.key.measure], self.windows.text_size)
            count += sum(span.stop - span.start for span in chunks)
        return count

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Score the base, whose losses are reused for each model."""
        self._read([mode for mode in self.modes if mode.key.is_base], advance)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Score the model, and the base if it was not scored yet."""
        self.losses_by_mode = {
            key: losses for key, losses in self.losses_by_mode.items() if key.is_base
        }
        self._read([mode for mode in self.modes if mode.key not in self.losses_by_mode], advance)

    def _read(self, modes: Sequence[ReadingMode], advance: Callable[[int], None]) -> None:
        windows = self.windows
        ranges = windows.ranges
        for batch in batches([windows.length] * len(windows.texts), self.scorer.batch_size):
            texts = [windows.texts[i] for i in batch]
            targets = [windows.targets(i) for i in batch]
            for mode in modes:
                measure = mode.key.measure
                indices = [by_measure[measure] for by_measure in targets]
                losses = mode.score(texts, indices, ranges[measure])
                self.losses_by_mode.setdefault(mode.key, []).extend(losses)
            advance(self._tokens_per_window(modes) * len(batch))

    @property
    def scores(self) -> tuple[Losses, ...]:
        """The values that rank models: the losses of each window."""
        return tuple(self.losses_by_mode[self.modes[0].key])

    def losses(self, measure: str) -> dict[tuple[str, int], list[Losses]]:
        """Return the losses of all windows, by mode name and context length.

        Those of the model with its longest context are not read again if they are known by
        position.
        """
        losses_of = dict[tuple[str, int], list[Losses]]()
        for mode in self.modes:
            if mode.key.measure == measure:
                losses_of[mode.key.name, mode.key.context] = self.losses_by_mode[mode.key]
        is_reused = reuses_position_losses(self.scorer.model, self.requested)
        if measure == BY_CONTEXT and is_reused:
            # They are the last ones by position: both ranges of scored tokens end with the window.
            key = ModeKey(measure=BY_POSITION, name=MODEL, context=self.windows.length)
            count = len(self.windows.ranges[BY_CONTEXT])
            by_position = self.losses_by_mode[key]
            losses_of[MODEL, self.windows.length] = [losses[-count:] for losses in by_position]
        return losses_of

    def report(self) -> dict[str, Any]:
        """Return the fields of `Evaluation` that this task measures."""
        warnings = []
        of_windows = [losses for by_window in self.losses_by_mode.values() for losses in by_window]
        if not all(np.isfinite(losses).all() for losses in of_windows):
            warnings.append(NOT_FINITE)
        positions = None
        if BY_POSITION in self.requested:
            by_name = {name: losses for (name, _), losses in self.losses(BY_POSITION).items()}
            positions = _position_losses(self, by_name)
            if SLIDING in by_name:  # else without a base
                cost = _difference(by_name[SLIDING], by_name[TRUNCATED])
                if cost.sign == 1:
                    amount = f"{cost.mean:.3f} ± {cost.half_width:.3f} nats/token"
                    warnings.append(UNSUITABLE_TEXT.format(amount=amount))
        return {
            "tokens": self.windows.length * len(self.windows.texts),
            "across_documents": self.across_documents,
            "warnings": warnings,
            "positions": positions,
            "contexts": _context_losses(self) if BY_CONTEXT in self.requested else None,
        }


def reuses_position_losses(model: EvalModel, requested: Sequence[str]) -> bool:
    """Whether losses by position are reused as those by context length, of the longest context.

    Both read a whole window at once, and a causal model is scored at its last tokens in both. A
    masked model reads other masks.
    """
    return BY_POSITION in requested and model.kind != MASKED


def _position_losses(task: LossTask, by_name: Mapping[str, list[Losses]]) -> results.PositionLosses:
    before = len(task.scorer.model.tokenizer.before)
    positions = [
        task.windows.targets(number)[BY_POSITION] + before
        for number in range(len(task.windows.texts))
    ]
    changes = {}
    for name, losses in by_name.items():
        if name != MODEL:
            changes[name] = _difference(by_name[MODEL], losses)
    length = task.windows.length
    width = math.ceil(length / POSITION_BUCKETS)
    bucket_of = [indices // width for indices in positions]  # of each target of each window
    buckets = []
    for number in np.unique(np.concatenate(bucket_of)).tolist():
        inside = dict[str, results.LossEstimate]()
        for name, losses in by_name.items():
            pairs = zip(losses, bucket_of, strict=True)
            inside[name] = estimate_loss([window[of == number] for window, of in pairs])
        stop = min((number + 1) * width, length)
        buckets.append(Bucket(start=number * width, stop=stop, losses=inside))
    return results.PositionLosses(
        length=length,
        windows=len(task.windows.texts),
        losses={name: estimate_loss(losses) for name, losses in by_name.items()},
        changes=changes,
        buckets=tuple(buckets),
    )


def _context_losses(task: LossTask) -> results.ContextLosses:
    """Return the losses by context length, and their differences from two references.

    One is the model at the context length of its base, or at the shortest one. The other is the
    base at its longest context length.
    """
    of_model = dict[int, list[Losses]]()
    of_base = dict[int, list[Losses]]()
    for (name, context), losses in task.losses(BY_CONTEXT).items():
        if name == MODEL:
            of_model[context] = losses
        else:
            of_base[context] = losses
    reference = task.base_length
    if reference is None or reference not in of_model:
        reference = min(of_model)

    points = []
    for context, losses in of_model.items():
        base = None
        if context in of_base:
            base = estimate_loss(of_base[context])
        against_base = None
        if of_base:
            against_base = _difference(losses, of_base[max(of_base)])
        points.append(
            results.ContextPoint(
                context=context,
                loss=estimate_loss(losses),
                change=_difference(losses, of_model[reference]),
                base=base,
                against_base=against_base,
            )
        )
    return results.ContextLosses(
        reference=reference, windows=len(task.windows.texts), points=tuple(points)
    )


def _difference(losses: Sequence[Losses], references: Sequence[Losses]) -> Estimate:
    return estimate([loss - reference for loss, reference in zip(losses, references, strict=True)])


def plan_losses(
    scorer: Scorer,
    base: Scorer | None,
    texts: Sequence[Ids],
    lengths: Sequence[int],
    seed: int,
    measures: Sequence[str] = (BY_POSITION, BY_CONTEXT),
) -> LossTask:
    """Return the task that scores a model, and its base if known, on windows of the longest length.

    Args:
        scorer: The model.
        base: Its base.
        texts: Windows without special tokens.
        lengths: Context lengths to measure.
        seed: For the masks of a masked model.
        measures: `BY_POSITION`, `BY_CONTEXT`, or both; others are ignored.
    """
    longest = max(lengths)
    contexts = sorted(lengths)
    if reuses_position_losses(scorer.model, measures):
        contexts.pop()
    reads = [(scorer, BY_POSITION, MODEL, longest, 1.0)]
    reads += [(scorer, BY_CONTEXT, MODEL, context, CHUNK_SHARE) for context in contexts]
    if base is not None:
        # All contexts of the model are compared with the base's longest one.
        longest_of_base = min(base.model.max_len, longest)
        shorter = {context for context in lengths if context <= longest_of_base}
        reads += [
            (base, BY_POSITION, TRUNCATED, longest_of_base, 1.0),
            (base, BY_POSITION, SLIDING, longest_of_base, SLIDING_SHARE),
        ]
        for context in sorted({longest_of_base, *shorter}):
            reads.append((base, BY_CONTEXT, SLIDING, context, CHUNK_SHARE))
    modes = []
    for reader, measure, name, context, share in reads:
        if measure in measures:
            key = ModeKey(measure=measure, name=name, context=context)
            modes.append(ReadingMode(key=key, scorer=reader, share=share))
    return LossTask(
        scorer=scorer,
        windows=TargetWindows(model=scorer.model, texts=texts, length=longest, seed=seed),
        requested=measures,
        modes=modes,
        base_length=None if base is None else base.model.max_len,
    )
