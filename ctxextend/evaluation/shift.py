"""The same passages at growing positions: the effect of positions without that of the text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.embedding import Embedder
from ctxextend.evaluation.evaluation_result import (
    COSINE_BOUNDS,
    UNBOUNDED,
    Shift,
    ShiftPoint,
    estimate,
    estimate_loss,
)
from ctxextend.evaluation.losses import LossTask, ReadingMode, TargetWindows
from ctxextend.evaluation.position_ids import position_base
from ctxextend.evaluation.scorer import Scorer
from ctxextend.evaluation.task import Task
from ctxextend.held_out import Ids

PASSAGE_TOKENS = 128  # at most; a passage has at most a quarter of the context length
MAX_PASSAGES = 16
MAX_STARTS = 12  # evenly spaced

# Of each passage: the losses of its tokens, shape (k,), or its embedding, shape (d,).
Measured = Sequence[NDArray[Any]]


@dataclass
class ShiftTask(Task):
    """Passages, the positions at which they start, and the results so far.

    Source: unsloth, pull request 7028, places one passage of 2,048 tokens at increasing absolute
    positions.
    """

    evaluator: Scorer | Embedder
    passages: tuple[Ids, ...]  # without special tokens, all equally long
    size: int  # tokens of a passage, special tokens included
    starts: tuple[int, ...]  # positions, from 0 on
    boundary: int  # effects are averaged over passages that reach beyond so many positions
    base: int  # position id of position 0
    seed: int  # for the masks of a masked model, which are the same at each start
    measured: dict[int, Measured] = field(default_factory=dict)  # by start

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""
        return self.size * len(self.passages) * len(self.starts)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Read all passages from each start on."""
        self.measured = {}
        for start in self.starts:
            model = replace(self.evaluator.model, first_position=self.base + start)
            self.measured[start] = self._read(replace(self.evaluator, model=model))
            advance(self.size * len(self.passages))

    def _read(self, evaluator: Scorer | Embedder) -> Measured:
        if isinstance(evaluator, Embedder):
            return list(evaluator.embed(self.passages))
        text_size = self.size - evaluator.model.tokenizer.num_special
        task = LossTask(
            scorer=evaluator,
            windows=TargetWindows(
                model=evaluator.model, texts=self.passages, length=self.size, seed=self.seed
            ),
            requested=(),
            modes=[ReadingMode.of_whole_texts(evaluator, text_size)],
            base_length=None,
        )
        task.measure(lambda tokens: None)
        return task.scores

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures."""
        if self.starts[-1] not in self.measured:
            return {}
        points = list[ShiftPoint]()
        beyond = list[list[NDArray[Any]]]()
        bounds = UNBOUNDED if self._is_loss else COSINE_BOUNDS
        for start, values in self.measured.items():
            effects = self._effects(values)
            if start + self.size > self.boundary:
                beyond.append(effects)
            points.append(
                ShiftPoint(
                    start=start,
                    loss=estimate_loss(values) if self._is_loss else None,
                    effect=estimate(effects, bounds),
                )
            )
        by_passage = [np.concatenate(effects) for effects in zip(*beyond, strict=True)]
        shift = Shift(
            size=self.size,
            passages=len(self.passages),
            boundary=self.boundary,
            effect=estimate(by_passage, bounds),
            points=tuple(points),
        )
        return {"shift": shift}

    @property
    def _is_loss(self) -> bool:
        return isinstance(self.evaluator, Scorer)

    def _effects(self, values: Measured) -> list[NDArray[Any]]:
        """Return the losses minus those at position 0, or the cosines to the embeddings there."""
        pairs = zip(values, self.measured[0], strict=True)
        if self._is_loss:
            return [losses - first for losses, first in pairs]
        return [np.array([embedding @ first]) for embedding, first in pairs]


def plan_shift(
    evaluator: Scorer | Embedder,
    windows: Sequence[Ids],
    length: int,
    base_len: int | None,
    seed: int,
) -> ShiftTask:
    """Cut passages from windows, and choose starts: two are next to the end of the base's context.

    Args:
        evaluator: The model.
        windows: Token ids without special tokens.
        length: Positions in all.
        base_len: Context length of the base; None if unknown.
        seed: For the masks of a masked model.

    Raises:
        UnsupportedModelError: The model does not accept position ids.
    """
    base = position_base(evaluator.model, "shift from --measure")
    special = evaluator.model.tokenizer.num_special
    size = max(min(PASSAGE_TOKENS, length // 4), special + 2)
    text = size - special
    passages = list[Ids]()
    for window in windows:
        passages += [window[i : i + text] for i in range(0, len(window) - text + 1, text)]
    step = -(-len(passages) // MAX_PASSAGES)

    last = length - size
    boundary = size
    if base_len is not None and base_len < length:
        boundary = base_len
    starts = {*range(0, last, -(-last // MAX_STARTS)), last}
    starts.add(max(boundary - size, 0))
    starts.add(min(boundary, last))
    return ShiftTask(
        evaluator=evaluator,
        passages=tuple(passages[::step]),
        size=size,
        starts=tuple(sorted(starts)),
        boundary=boundary,
        base=base,
        seed=seed,
    )
