"""Losses of a language model and its base, by position and by context length, on the same tokens.

The model reads each window in one forward pass. The base, whose context is shorter, reads it in
chunks, back to back or overlapping, as a user without the longer context would.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation import evaluation_result as results
from ctxextend.evaluation.eval_model import MASKED, EvalModel, batches
from ctxextend.evaluation.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    Bucket,
    Estimate,
    estimate,
    estimate_loss,
)
from ctxextend.evaluation.scorer import Losses, ScoredWindow, Scorer
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
        size = self.key.context - self.scorer.model.tokenizer.num_special
        predicted = size - self._unpredicted_tokens
        stride = max(int(predicted * self.share), 1)
        if self.is_masked:
            return centred_spans(scored, tokens, size, stride)
        return causal_spans(scored, size, stride)

    @property
    def _unpredicted_tokens(self) -> int:
        """How many tokens at the start of a chunk the model cannot predict.

        A causal model needs something before a token. Without a special token there, chunks
        overlap by one token.
        """
        if self.is_masked or self.scorer.model.tokenizer.before:
            return 0
        return 1

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
        return split_by_text(losses_of_all, [len(indices) for indices in targets])

    def _windows(self, text: Ids, targets: Ids, scored: range) -> Iterator[ScoredWindow]:
        """Yield the inputs that score the targets of a text."""
        tokenizer = self.scorer.model.tokenizer
        inputs = self._masked(text, targets) if self.is_masked else text
        for span in self.chunks(scored, len(text)):
            is_scored = (targets >= span.first_scored) & (targets < span.scored_stop)
            labelled = targets[is_scored]
            if len(labelled):
                yield ScoredWindow(
                    input_ids=tokenizer.add_special_tokens(inputs[span.start : span.stop]),
                    outputs=labelled - span.start + self._output_of_first_token,
                    labels=text[labelled],
                )

    def _masked(self, text: Ids, targets: Ids) -> Ids:
        """Return a text with its targets masked."""
        masked = text.copy()
        masked[targets] = self.scorer.model.tokenizer.tokenizer.mask_token_id
        return masked

    @property
    def _output_of_first_token(self) -> int:
        """The index of the output that predicts the first token of a chunk.

        In a masked model, it is the output at the token. In a causal one, it is the output before
        it: -1 without special tokens before the chunk, which cannot predict its first token.
        """
        before = len(self.scorer.model.tokenizer.before)
        return before if self.is_masked else before - 1


def split_by_text(values: NDArray[Any], counts: Sequence[int]) -> list[NDArray[Any]]:
    """Return the values of each text, given all values in order and how many each text has."""
    ends = np.cumsum(counts)
    return np.split(values, ends[:-1])


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
        """Return how many tokens modes read per window, over all chunks."""
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
        """Score all windows in some modes, a batch of windows at a time."""
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
            losses_of[MODEL, self.windows.length] = self._longest_context_losses()
        return losses_of

    def _longest_context_losses(self) -> list[Losses]:
        """Return the losses with the longest context.

        They are the last losses by position: both ranges of scored tokens end with the window.
        """
        key = ModeKey(measure=BY_POSITION, name=MODEL, context=self.windows.length)
        count = len(self.windows.ranges[BY_CONTEXT])
        return [losses[-count:] for losses in self.losses_by_mode[key]]

    def report(self) -> dict[str, Any]:
        """Return the fields of `Evaluation` that this task measures."""
        reported = self.requested
        warnings = []
        if not all(are_finite(losses) for losses in self.losses_by_mode.values()):
            warnings.append(NOT_FINITE)
        if BY_POSITION in reported:
            warnings += _unsuitable_text(self)
        return {
            "tokens": self.windows.length * len(self.windows.texts),
            "across_documents": self.across_documents,
            "warnings": warnings,
            "positions": _position_losses(self) if BY_POSITION in reported else None,
            "contexts": _context_losses(self) if BY_CONTEXT in reported else None,
        }


def reuses_position_losses(model: EvalModel, requested: Sequence[str]) -> bool:
    """Whether losses by position are reused as those by context length, of the longest context.

    Both read a whole window at once, and a causal model is scored at its last tokens in both. A
    masked model reads other masks.
    """
    return BY_POSITION in requested and model.kind != MASKED


def _position_losses(task: LossTask) -> results.PositionLosses:
    by_name = {name: losses for (name, _), losses in task.losses(BY_POSITION).items()}
    before = len(task.scorer.model.tokenizer.before)
    positions = [
        task.windows.targets(number)[BY_POSITION] + before
        for number in range(len(task.windows.texts))
    ]
    changes = dict[str, Estimate]()
    for name, losses in by_name.items():
        if name != MODEL:
            changes[name] = _difference(by_name[MODEL], losses)
    return results.PositionLosses(
        length=task.windows.length,
        windows=len(task.windows.texts),
        losses={name: estimate_loss(losses) for name, losses in by_name.items()},
        changes=changes,
        buckets=tuple(loss_buckets(positions, by_name, task.windows.length)),
    )


def _unsuitable_text(task: LossTask) -> Iterator[str]:
    """Yield a warning if the base predicts a text worse with more context."""
    by_name = {name: losses for (name, _), losses in task.losses(BY_POSITION).items()}
    if SLIDING not in by_name:  # without a base
        return
    cost = _difference(by_name[SLIDING], by_name[TRUNCATED])
    if cost.sign == 1:
        amount = f"{cost.mean:.3f} ± {cost.half_width:.3f} nats/token"
        yield UNSUITABLE_TEXT.format(amount=amount)


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
    longest_of_base = of_base[max(of_base)] if of_base else None
    points = list[results.ContextPoint]()
    for context, losses in of_model.items():
        points.append(
            results.ContextPoint(
                context=context,
                loss=estimate_loss(losses),
                change=_difference(losses, of_model[reference]),
                base=_loss_of_base(of_base.get(context)),
                against_base=_against_base(losses, longest_of_base),
            )
        )
    return results.ContextLosses(
        reference=reference, windows=len(task.windows.texts), points=tuple(points)
    )


def _loss_of_base(of_base: Sequence[Losses] | None) -> results.LossEstimate | None:
    """Return the loss of the base at a context length; None if it was not measured there."""
    return None if of_base is None else estimate_loss(of_base)


def _against_base(
    losses: Sequence[Losses], longest_of_base: Sequence[Losses] | None
) -> Estimate | None:
    """Return the difference from the base at its longest context; None if no base was measured."""
    return None if longest_of_base is None else _difference(losses, longest_of_base)


def choose_masked(indices: Ids, generator: np.random.Generator) -> Ids:
    """Return a random share of tokens to mask, at least one, sorted."""
    count = max(round(len(indices) * MASKED_SHARE), 1)
    return np.sort(generator.choice(indices, count, replace=False))


def are_finite(losses: Sequence[Losses]) -> bool:
    """Whether no loss is NaN or infinite."""
    return all(np.isfinite(window).all() for window in losses)


def loss_buckets(
    positions: Sequence[Ids], losses_of: Mapping[str, list[Losses]], length: int
) -> Iterator[Bucket]:
    """Yield losses by position.

    Args:
        positions: Positions of each text's targets, shape (k,).
        losses_of: Losses of each text's targets, by name of the mode.
        length: Positions in all.
    """
    width = math.ceil(length / POSITION_BUCKETS)
    bucket_of = [indices // width for indices in positions]  # of each target of each text
    for number in np.unique(np.concatenate(bucket_of)).tolist():
        inside = dict[str, results.LossEstimate]()
        for name, losses in losses_of.items():
            inside[name] = estimate_loss(_inside_bucket(losses, bucket_of, number))
        yield Bucket(
            start=number * width,
            stop=min((number + 1) * width, length),
            losses=inside,
        )


def _inside_bucket(losses: Sequence[Losses], bucket_of: Sequence[Ids], number: int) -> list[Losses]:
    """Return the losses of each text's targets that are in the bucket of a number."""
    pairs = zip(losses, bucket_of, strict=True)
    return [text[buckets == number] for text, buckets in pairs]


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
    modes = [*_modes_of_model(scorer, lengths, measures), *_modes_of_base(base, lengths, measures)]
    return LossTask(
        scorer=scorer,
        windows=TargetWindows(model=scorer.model, texts=texts, length=max(lengths), seed=seed),
        requested=measures,
        modes=modes,
        base_length=None if base is None else base.model.max_len,
    )


def _modes_of_model(
    scorer: Scorer, lengths: Sequence[int], measures: Sequence[str]
) -> Iterator[ReadingMode]:
    """Yield the modes of the model: by position, then by context length, shortest first."""
    if BY_POSITION in measures:
        key = ModeKey(measure=BY_POSITION, name=MODEL, context=max(lengths))
        yield ReadingMode(key=key, scorer=scorer, share=1)
    if BY_CONTEXT in measures:
        contexts = sorted(lengths)
        if reuses_position_losses(scorer.model, measures):
            contexts.pop()
        for context in contexts:
            key = ModeKey(measure=BY_CONTEXT, name=MODEL, context=context)
            yield ReadingMode(key=key, scorer=scorer, share=CHUNK_SHARE)


def _modes_of_base(
    base: Scorer | None, lengths: Sequence[int], measures: Sequence[str]
) -> Iterator[ReadingMode]:
    """Yield the modes of the base, if it is known: by position, then by context length.

    The base's longest context is always among these, since all contexts of the model are compared
    with it.
    """
    if base is None:
        return
    longest = min(base.model.max_len, max(lengths))
    if BY_POSITION in measures:
        for name, share in ((TRUNCATED, 1), (SLIDING, SLIDING_SHARE)):
            key = ModeKey(measure=BY_POSITION, name=name, context=longest)
            yield ReadingMode(key=key, scorer=base, share=share)
    if BY_CONTEXT in measures:
        contexts = {longest, *(context for context in lengths if context <= longest)}
        for context in sorted(contexts):
            key = ModeKey(measure=BY_CONTEXT, name=SLIDING, context=context)
            yield ReadingMode(key=key, scorer=base, share=CHUNK_SHARE)
