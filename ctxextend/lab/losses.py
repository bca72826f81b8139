"""Losses of a language model on the tokens of windows, read at once or in chunks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ctxextend.held_out import Ids
from ctxextend.lab.eval_model import MASKED
from ctxextend.lab.reader import Reader
from ctxextend.lab.scorer import Losses, ScoredWindow
from ctxextend.lab.scores import ONE_PASS, SEPARATE, SLIDING, Score
from ctxextend.lab.texts import Texts

if TYPE_CHECKING:
    from ctxextend.lab.scorer import ScoreLabels

# Of a masked model's tokens, as in BERT: Devlin et al. 2018, section 3.1. Training predicts
# `train_data.PREDICTED_SHARE`.
MASKED_SHARE = 0.15
# Share of a window whose tokens are scored at each context length; a larger share leaves less text
# before the first.
SCORED_SHARE = 1 / 8
SLIDING_SHARE = 1 / 2  # of a sliding window that is scored: windows overlap by half
PARTS = 16  # of a window


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


@dataclass(frozen=True)
class Targets:
    """The tokens of windows that are scored: all of a range, or of a masked model a share of it."""

    scored: range
    indices: Sequence[Ids]  # of each window, sorted, shape (k,)


def all_targets(reader: Reader, texts: Texts) -> Targets:
    """Return all tokens of each window that something predicts."""
    return _targets(reader, texts)[0]


def late_targets(reader: Reader, texts: Texts) -> Targets:
    """Return an eighth of each window's tokens, with text around them at each context length.

    They are the last ones or, for a masked model, which also reads what follows, in the middle.
    """
    return _targets(reader, texts)[1]


def _targets(reader: Reader, texts: Texts) -> tuple[Targets, Targets]:
    tokenizer = reader.model.tokenizer
    size = texts.length - tokenizer.num_special
    count = max(int(size * SCORED_SHARE), 1)
    if reader.kind != MASKED:
        first = 0 if tokenizer.before else 1  # nothing precedes token 0 otherwise
        every = range(first, size)
        late = range(size - count, size)
        windows = len(texts.windows)
        return (
            Targets(every, [np.arange(first, size)] * windows),
            Targets(late, [np.arange(size - count, size)] * windows),
        )
    start = (size - count) // 2
    every = range(size)
    late = range(start, start + count)
    masked_every = []
    masked_late = []
    for number in range(len(texts.windows)):
        generator = np.random.default_rng([texts.seed, number])
        masked_every.append(choose_masked(np.arange(size), generator))
        masked_late.append(choose_masked(np.arange(start, start + count), generator))
    return Targets(every, masked_every), Targets(late, masked_late)


def by_position(
    reader: Reader,
    texts: Texts,
    measure: str,
    name: str,
    unit: str,
    score: "ScoreLabels | None" = None,
) -> Iterator[Score]:
    """Yield the scores of whole windows, and of each part of them.

    A model reads each window in one pass. A base, whose context is shorter, reads it in windows of
    its own length, back to back or overlapping by half, as a user without the longer context would.

    Args:
        reader: The model.
        texts: The windows.
        measure, name, unit: Of the scores.
        score: What to make of the logits of each token, instead of its loss.
    """
    shares = {ONE_PASS: 1.0}
    if reader.max_len < texts.length:
        shares = {SLIDING: SLIDING_SHARE, SEPARATE: 1.0}
    context = min(reader.max_len, texts.length)
    targets = all_targets(reader, texts)
    before = len(reader.model.tokenizer.before)
    width = math.ceil(texts.length / PARTS)
    part_of = [(indices + before) // width for indices in targets.indices]
    for reading, share in shares.items():
        values = read_losses(reader, texts, targets, context, share, score)
        whole = Score(
            model=reader.name,
            measure=measure,
            name=name,
            reading=reading,
            length=context,
            values=values,
            tokens=texts.length,
            unit=unit,
        )
        yield whole
        for number in np.unique(np.concatenate(part_of)).tolist():
            pairs = zip(values, part_of, strict=True)
            yield whole.of_part(
                (number * width, min((number + 1) * width, texts.length)),
                [of_window[own == number] for of_window, own in pairs],
            )


def choose_masked(indices: Ids, generator: np.random.Generator) -> Ids:
    """Return a random share of tokens to mask, at least one, sorted."""
    count = max(round(len(indices) * MASKED_SHARE), 1)
    return np.sort(generator.choice(indices, count, replace=False))


def read_losses(
    reader: Reader,
    texts: Texts,
    targets: Targets,
    context: int,
    share: float = 1.0,
    score: "ScoreLabels | None" = None,
) -> list[Losses]:
    """Return the losses of each window's targets, read in chunks.

    Args:
        reader: The model.
        texts: The windows.
        targets: What is scored.
        context: Tokens of a chunk, special tokens included.
        share: Of a chunk that is scored, at most.
        score: What to make of the logits of targets, instead of losses.
    """
    tokenizer = reader.model.tokenizer
    is_masked = reader.kind == MASKED
    size = context - tokenizer.num_special
    predicted = size
    # A causal model needs something before a token. Without a special token there, chunks overlap
    # by one token.
    if not is_masked and not tokenizer.before:
        predicted -= 1
    stride = max(int(predicted * share), 1)
    # The output that predicts the first token of a chunk: in a masked model the one at it, in a
    # causal model the one before it; -1 without special tokens before the chunk, which cannot
    # predict its first token.
    first_output = len(tokenizer.before) - 1
    if is_masked:
        first_output += 1

    windows = list[ScoredWindow]()
    for text, indices in zip(texts.windows, targets.indices, strict=True):
        inputs = text
        spans = causal_spans(targets.scored, size, stride)
        if is_masked:
            inputs = text.copy()
            inputs[indices] = tokenizer.tokenizer.mask_token_id
            spans = centred_spans(targets.scored, len(text), size, stride)
        for span in spans:
            labelled = indices[(indices >= span.first_scored) & (indices < span.scored_stop)]
            if len(labelled):
                window = ScoredWindow(
                    input_ids=tokenizer.add_special_tokens(inputs[span.start : span.stop]),
                    outputs=labelled - span.start + first_output,
                    labels=text[labelled],
                )
                windows.append(window)
    losses = np.concatenate(reader.losses(windows, score))
    ends = np.cumsum([len(indices) for indices in targets.indices])
    return np.split(losses, ends[:-1])
