"""A model that reads texts for the measures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.held_out import Ids
from ctxextend.lab.embedding import Embedder, open_embedder
from ctxextend.lab.eval_model import EvalModel, ignore
from ctxextend.lab.scorer import Losses, ScoredWindow, Scorer, open_scorer

if TYPE_CHECKING:
    from ctxextend.lab.scorer import ScoreLabels


@dataclass
class Reader:
    """A model that reads texts, or only counts the tokens that it would read."""

    name: str  # of the model, or of the method that gave it its positions
    model: EvalModel
    batch_size: int | None = None  # texts per batch; None: as many as fit 4,096 tokens
    is_dry: bool = False  # whether it only counts; its losses and embeddings are then 0
    advance: Callable[[int], None] = ignore  # gets the tokens of each batch
    memory: dict[Any, Any] = field(default_factory=dict)  # what several measures need

    @property
    def kind(self) -> str:
        """The kind of the model: ``causal``, ``masked`` or ``encoder``."""
        return self.model.kind

    @property
    def max_len(self) -> int:
        """The context length in tokens, special tokens included."""
        return self.model.max_len

    @cached_property
    def scorer(self) -> Scorer:
        """The model as a language model."""
        return open_scorer(self.model, self.batch_size)

    @cached_property
    def embedder(self) -> Embedder:
        """The model as an encoder."""
        return open_embedder(self.model, self.batch_size)

    def losses(
        self, windows: Sequence[ScoredWindow], score: "ScoreLabels | None" = None
    ) -> list[Losses]:
        """Return the losses of each window's labels, or what else `score` makes of their logits."""
        if self.is_dry:
            self.advance(sum(len(window.input_ids) for window in windows))
            return [np.zeros(len(window.labels)) for window in windows]
        return self.scorer.losses(windows, self.advance, score)

    def embed(self, texts: Sequence[Ids]) -> NDArray[np.float32]:
        """Return the embeddings of texts without special tokens, shape (texts, d)."""
        if self.is_dry:
            special = len(texts) * self.model.tokenizer.num_special
            self.advance(sum(map(len, texts)) + special)
            return np.zeros((len(texts), 1), np.float32)
        return self.embedder.embed(texts, self.advance)
