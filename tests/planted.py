"""Readers whose models are planted: what they find is known beforehand."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from ctxextend.evaluation.eval_model import EvalModel


class Planted(torch.nn.Module):
    """A model whose answer is a function of the ids that it reads, and of nothing else."""

    def __init__(self, answer: Callable[[torch.Tensor], torch.Tensor], device: str = "cpu") -> None:
        super().__init__()
        self.answer, self.device, self.config = answer, device, SimpleNamespace()
        self.read: list[torch.Tensor] = []

    @property
    def base_model(self) -> "Planted":
        return self

    def get_output_embeddings(self) -> None:
        return None

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        assert bool(attention_mask.all())
        self.read.append(input_ids)
        answer = self.answer(input_ids)
        return SimpleNamespace(logits=answer, last_hidden_state=answer)


def plant(model: EvalModel, answer: Callable[[torch.Tensor], torch.Tensor], **changes: Any) -> EvalModel:
    """Put a planted model in the place of a reader's own."""
    return replace(model, model=Planted(answer), **changes)


def counts(ids: torch.Tensor, words: int) -> torch.Tensor:
    """How often each word stands in each text, as one place that stands for all, shape (texts, 1, words)."""
    return torch.stack([torch.bincount(text, minlength=words) for text in ids]).float()[:, None]
