"""The same passages at growing positions, so that the effect of positions is not mixed with that of
the text there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.embedding import Embedder
from ctxextend.evaluation.eval_model import Task, position_base
from ctxextend.evaluation.evaluation_result import (
    COSINE,
    MODEL,
    UNBOUNDED,
    Shift,
    ShiftPoint,
    estimate,
    estimate_loss,
)
from ctxextend.evaluation.losses import LossTask, ReadingMode, Scorer
from ctxextend.held_out import Ids

PASSAGE_TOKENS, PASSAGES, STARTS = (
    128,
    16,
    12,
)  # at most; a passage has at most a quarter of the context length


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
    boundary: (
        int  # effects are averaged over passages that reach beyond the first `boundary` positions
    )
    base: int  # position id of position 0
    seed: int  # for the masks of a masked model, which are the same at each start
    # By start, for each passage: the losses of its tokens, shape (k,), or its embedding, shape
    # (d,).
    measured: dict[int, Sequence[NDArray[Any]]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""
        return self.size * len(self.passages) * len(self.starts)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Read all passages from each start on."""
        self.measured = {}
        for start in self.starts:
            evaluator = replace(
                self.evaluator,
                model=replace(self.evaluator.model, first_position=self.base + start),
            )
            if isinstance(evaluator, Embedder):
                self.measured[start] = list(evaluator.embed(self.passages))
            else:
                mode = ReadingMode("position", MODEL, evaluator, self.size, 1)
                task = LossTask(evaluator, self.passages, self.size, self.seed, (), [mode], None)
                task.measure(lambda tokens: None)
                self.measured[start] = task.scores
            advance(self.size * len(self.passages))

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures."""
        if self.starts[-1] not in self.measured:
            return {}
        points = list[ShiftPoint]()
        is_loss = isinstance(self.evaluator, Scorer)
        beyond = []
        bounds = UNBOUNDED if is_loss else COSINE
        for start, values in self.measured.items():
            pairs = zip(values, self.measured[0], strict=True)
            effects = [
                value - first if is_loss else np.array([value @ first]) for value, first in pairs
            ]
            beyond += [effects] * (start + self.size > self.boundary)
            points.append(
                ShiftPoint(
                    start, estimate_loss(values) if is_loss else None, estimate(effects, bounds)
                )
            )
        effect = estimate(
            [np.concatenate(effects) for effects in zip(*beyond, strict=True)], bounds
        )
        return {"shift": Shift(self.size, len(self.passages), self.boundary, effect, tuple(points))}


def plan_shift(
    evaluator: Scorer | Embedder,
    windows: Sequence[Ids],
    length: int,
    base_len: int | None,
    seed: int,
) -> ShiftTask:
    """Cut passages from windows, and choose starts up to `length`: two are next to the end of the
    base's context.
    """
    base = position_base(evaluator.model, "shift from --measure")
    special = evaluator.model.tokenizer.num_special
    size = max(min(PASSAGE_TOKENS, length // 4), special + 2)
    text, last = size - special, length - size
    passages = [
        part[i : i + text] for part in windows for i in range(0, len(part) - text + 1, text)
    ]
    boundary = base_len if base_len is not None and base_len < length else size
    starts = {
        *range(0, last, -(-last // STARTS)),
        max(boundary - size, 0),
        min(boundary, last),
        last,
    }
    chosen = tuple(passages[:: -(-len(passages) // PASSAGES)])
    return ShiftTask(evaluator, chosen, size, tuple(sorted(starts)), boundary, base, seed)
