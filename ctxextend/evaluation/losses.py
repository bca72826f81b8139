"""Losses of a language model and its base, by position and by context length, on the same tokens.

The model reads each window in one forward pass. The base, whose context is shorter, reads it in
chunks, back to back or overlapping, as a user without the longer context would.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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

MASKED_SHARE = 0.15  # of a masked model's tokens, as in BERT: Devlin et al. 2018, section 3.1
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


@dataclass(frozen=True)
class Span:
    """Tokens `start` to `stop` - 1 of a text, of which `first` to `last` - 1 are scored."""

    start: int
    stop: int
    first: int
    last: int


def spans(
    scored: tuple[int, int], tokens: int, size: int, stride: int, *, centred: bool
) -> Iterator[Span]:
    """Yield chunks of a text that score each token of a range once.

    Args:
        scored: The first token of the range, and its end.
        tokens: Tokens of the text.
        size: Maximum tokens of a chunk.
        stride: Maximum tokens of a chunk that are scored.
        centred: Whether these are in the middle of a chunk, for masked models; else at its end. A
            centred chunk at the end of the text is as long as the others.
    """
    stop = scored[1]
    stride = min(stride, stop - scored[0])
    before = (size - stride) // 2 if centred else size - stride
    for first in range(scored[0], stop, stride):
        last = min(first + stride, stop)
        start = max(first - before, 0)
        if centred:
            start = min(start, max(tokens - size, 0))
            yield Span(start=start, stop=min(start + size, tokens), first=first, last=last)
        else:
            yield Span(start=start, stop=last, first=first, last=last)


@dataclass(frozen=True)
class ReadingMode:
    """How to score a text: with which model, context length and stride.

    Of equal modes, only the model differs.
    """

    # ``position``: scores every token; ``context``: scores the targets that all contexts share
    measure: str
    name: str  # `MODEL`, or for the base `TRUNCATED` or `SLIDING`
    scorer: Scorer = field(compare=False)
    context: int  # tokens per chunk, special tokens included
    share: float  # of a chunk that is scored, at most

    @property
    def is_base(self) -> bool:
        """Whether the base reads the text."""
        return self.name != MODEL

    @property
    def is_masked(self) -> bool:
        """Whether the model is a masked language model."""
        return self.scorer.model.kind == MASKED

    def spans(self, scored: tuple[int, int], tokens: int) -> Iterator[Span]:
        """Yield the chunks of a text of so many tokens that score a range; see `spans`."""
        tokenizer = self.scorer.model.tokenizer
        size = self.context - tokenizer.num_special
        most = size
        if not self.is_masked and not tokenizer.before:
            most -= 1  # nothing predicts a chunk's first token, so chunks overlap by one
        return spans(scored, tokens, size, max(int(most * self.share), 1), centred=self.is_masked)

    def losses(
        self, texts: Sequence[Ids], targets: Sequence[Ids], scored: tuple[int, int]
    ) -> list[Losses]:
        """Return the losses of each text's targets.

        Args:
            texts: Token ids without special tokens.
            targets: Sorted indices inside `scored` of each text, shape (k,).
            scored: The first token of the range that is scored, and its end.
        """
        windows = [
            window
            for text, indices in zip(texts, targets, strict=True)
            for window in self._windows(text, indices, scored)
        ]
        losses = np.concatenate(self.scorer.losses(windows))
        counts = [len(indices) for indices in targets]
        return np.split(losses, np.cumsum(counts)[:-1])

    def _windows(self, text: Ids, targets: Ids, scored: tuple[int, int]) -> Iterator[ScoredWindow]:
        """Yield the inputs that score the targets of a text."""
        tokenizer = self.scorer.model.tokenizer
        shift = len(tokenizer.before)
        inputs = text
        if self.is_masked:
            inputs = text.copy()
            inputs[targets] = tokenizer.tokenizer.mask_token_id
        else:
            shift -= 1  # causal logits predict the next token
        for span in self.spans(scored, len(text)):
            inside = targets[(targets >= span.first) & (targets < span.last)]
            if len(inside):
                yield ScoredWindow(
                    input_ids=tokenizer.add_special_tokens(inputs[span.start : span.stop]),
                    outputs=inside - span.start + shift,
                    labels=text[inside],
                )


def scored_ranges(model: EvalModel, length: int) -> dict[str, tuple[int, int]]:
    """Return the range of scored tokens of a window by measure: the first one, and the end."""
    tokens = length - model.tokenizer.num_special
    count = max(int(tokens * SCORED_SHARE), 1)
    if model.kind == MASKED:
        first = 0
        start = (tokens - count) // 2
    else:
        first = 0 if model.tokenizer.before else 1
        start = tokens - count
    return {"position": (first, tokens), "context": (start, start + count)}


@dataclass
class LossTask:
    """Scores windows of one text in several modes, and keeps the losses so far."""

    scorer: Scorer
    texts: Sequence[Ids]  # windows without special tokens, each of shape (length - special tokens,)
    length: int  # tokens of a window, special tokens included
    seed: int  # for the masks of a masked model
    measures: Sequence[str]  # ``position``, ``context``, or both
    modes: list[ReadingMode]  # the first ranks models: by position if that is measured
    base_length: int | None  # context length of the base; None if unknown
    across_documents: bool = False  # whether texts span several documents
    # losses of each window's targets, for the windows read so far
    measured: dict[ReadingMode, list[Losses]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""
        own = [mode for mode in self.modes if not mode.is_base]
        return self._tokens_per_window(own) * len(self.texts)

    @property
    def base_tokens(self) -> int:
        """The number of tokens that the base reads."""
        base = [mode for mode in self.modes if mode.is_base]
        return self._tokens_per_window(base) * len(self.texts)

    def _tokens_per_window(self, modes: Sequence[ReadingMode]) -> int:
        """Return how many tokens modes read per window, over all chunks."""
        size = self.length - self.scorer.model.tokenizer.num_special
        ranges = scored_ranges(self.scorer.model, self.length)
        count = 0
        for mode in modes:
            count += sum(span.stop - span.start for span in mode.spans(ranges[mode.measure], size))
        return count

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Score the base, whose losses are reused for each model."""
        self._read([mode for mode in self.modes if mode.is_base], advance)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Score the model, and the base if it was not scored yet."""
        self.measured = {mode: losses for mode, losses in self.measured.items() if mode.is_base}
        self._read([mode for mode in self.modes if mode not in self.measured], advance)

    def _read(self, modes: Sequence[ReadingMode], advance: Callable[[int], None]) -> None:
        for batch in batches([self.length] * len(self.texts), self.scorer.batch_size):
            texts = [self.texts[i] for i in batch]
            targets = [self.targets(i) for i in batch]
            for mode in modes:
                indices = [by_measure[mode.measure] for by_measure in targets]
                losses = mode.losses(
                    texts, indices, scored_ranges(self.scorer.model, self.length)[mode.measure]
                )
                self.measured.setdefault(mode, []).extend(losses)
            advance(self._tokens_per_window(modes) * len(batch))

    def targets(self, number: int) -> dict[str, Ids]:
        """Return the indices of a window's target tokens by measure: all, or a share if masked."""
        generator = np.random.default_rng([self.seed, number])
        targets = dict[str, Ids]()
        for measure, (first, stop) in scored_ranges(self.scorer.model, self.length).items():
            indices = np.arange(first, stop)
            if self.scorer.model.kind == MASKED:
                indices = choose_masked(indices, generator)
            targets[measure] = indices
        return targets

    @property
    def windows(self) -> int:
        """The number of windows scored in all modes."""
        return min((len(self.measured.get(mode, ())) for mode in self.modes), default=0)

    @property
    def scores(self) -> tuple[Losses, ...]:
        """The values that rank models: the losses of each window."""
        return tuple(self.measured[self.modes[0]])

    def losses(self, measure: str) -> dict[tuple[str, int], list[Losses]]:
        """Return the losses of the windows scored in all modes, by mode name and context length."""
        count = self.windows
        losses_of = dict[tuple[str, int], list[Losses]]()
        for mode in self.modes:
            if mode.measure == measure:
                losses_of[mode.name, mode.context] = self.measured[mode][:count]
        longest = (MODEL, self.length)
        if measure == "context" and longest not in losses_of:
            # The losses by position include them.
            start, stop = scored_ranges(self.scorer.model, self.length)[measure]
            by_position = self.measured[self.modes[0]][:count]
            losses_of[longest] = [losses[start - stop :] for losses in by_position]
        return losses_of

    def report(self) -> dict[str, Any]:
        """Return the fields of `Evaluation` that this task measures."""
        measured = self.measures if self.windows else ()
        warnings = []
        if not all(are_finite(losses) for losses in self.measured.values()):
            warnings.append(NOT_FINITE)
        return {
            "tokens": self.length * self.windows,
            "across_documents": self.across_documents,
            "warnings": warnings,
            "positions": _position_losses(self) if "position" in measured else None,
            "contexts": _context_losses(self) if "context" in measured else None,
        }


def _position_losses(task: LossTask) -> results.PositionLosses:
    by_name = {name: losses for (name, _), losses in task.losses("position").items()}
    before = len(task.scorer.model.tokenizer.before)
    positions = [task.targets(i)["position"] + before for i in range(task.windows)]
    changes = dict[str, Estimate]()
    for name, losses in by_name.items():
        if name != MODEL:
            changes[name] = _difference(by_name[MODEL], losses)
    return results.PositionLosses(
        length=task.length,
        windows=task.windows,
        losses={name: estimate_loss(losses) for name, losses in by_name.items()},
        changes=changes,
        buckets=tuple(loss_buckets(positions, by_name, task.length)),
    )


def _context_losses(task: LossTask) -> results.ContextLosses:
    by_model = dict[int, list[Losses]]()
    by_base = dict[int, list[Losses]]()
    for (name, context), losses in task.losses("context").items():
        if name == MODEL:
            by_model[context] = losses
        else:
            by_base[context] = losses
    reference = task.base_length
    if reference is None or reference not in by_model:
        reference = min(by_model)
    points = []
    for context, losses in by_model.items():
        base = None
        if context in by_base:
            base = estimate_loss(by_base[context])
        against_base = None
        if by_base:
            against_base = _difference(losses, by_base[max(by_base)])
        points.append(
            results.ContextPoint(
                context=context,
                loss=estimate_loss(losses),
                change=_difference(losses, by_model[reference]),
                base=base,
                against_base=against_base,
            )
        )
    return results.ContextLosses(reference=reference, windows=task.windows, points=tuple(points))


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
    width = -(-length // POSITION_BUCKETS)
    buckets = [indices // width for indices in positions]
    for number in sorted({*np.concatenate(buckets).tolist()}):
        inside = dict[str, results.LossEstimate]()
        for name, losses in losses_of.items():
            pairs = zip(losses, buckets, strict=True)
            inside[name] = estimate_loss([text[at == number] for text, at in pairs])
        yield Bucket(
            start=number * width,
            stop=min((number + 1) * width, length),
            losses=inside,
        )


def _difference(losses: Sequence[Losses], references: Sequence[Losses]) -> Estimate:
    return estimate([loss - reference for loss, reference in zip(losses, references, strict=True)])


def plan_losses(
    scorer: Scorer,
    base: Scorer | None,
    texts: Sequence[Ids],
    lengths: Sequence[int],
    seed: int,
    measures: Sequence[str] = ("position", "context"),
) -> LossTask:
    """Return the task that scores a model, and its base if known, on windows of the longest length.

    Args:
        scorer: The model.
        base: Its base.
        texts: Windows without special tokens.
        lengths: Context lengths to measure.
        seed: For the masks of a masked model.
        measures: ``position``, ``context``, or both.
    """
    modes = [*_modes_of_model(scorer, lengths, measures), *_modes_of_base(base, lengths)]
    return LossTask(
        scorer=scorer,
        texts=texts,
        length=max(lengths),
        seed=seed,
        measures=measures,
        modes=[mode for mode in modes if mode.measure in measures],
        base_length=None if base is None else base.model.max_len,
    )


def _modes_of_model(
    scorer: Scorer, lengths: Sequence[int], measures: Sequence[str]
) -> Iterator[ReadingMode]:
    length = max(lengths)
    contexts = sorted(lengths)
    if "position" in measures and scorer.model.kind != MASKED:
        contexts.pop()  # the losses by position include those with the longest context
    yield ReadingMode(
        measure="position",
        name=MODEL,
        scorer=scorer,
        context=length,
        share=1,
    )
    for context in contexts:
        yield ReadingMode(
            measure="context",
            name=MODEL,
            scorer=scorer,
            context=context,
            share=CHUNK_SHARE,
        )


def _modes_of_base(base: Scorer | None, lengths: Sequence[int]) -> Iterator[ReadingMode]:
    if base is None:
        return
    longest = min(base.model.max_len, max(lengths))
    for name, share in ((TRUNCATED, 1), (SLIDING, SLIDING_SHARE)):
        yield ReadingMode(
            measure="position",
            name=name,
            scorer=base,
            context=longest,
            share=share,
        )
    # Always with the base's longest context, which all contexts are compared with.
    contexts = {longest, *(context for context in lengths if context <= longest)}
    for context in sorted(contexts):
        yield ReadingMode(
            measure="context",
            name=SLIDING,
            scorer=base,
            context=context,
            share=CHUNK_SHARE,
        )
