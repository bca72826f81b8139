"""Mock models with known outputs."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from ctxextend.lab.eval_model import EvalModel


class MockModel(torch.nn.Module):
    """A model whose output is a given function of the input ids."""

    def __init__(
        self, compute: Callable[[torch.Tensor], torch.Tensor], device: str = "cpu"
    ) -> None:
        super().__init__()
        self.compute = compute
        self.device = device
        self.config = SimpleNamespace(get_text_config=SimpleNamespace)
        self.inputs: list[torch.Tensor] = []

    @property
    def base_model(self) -> "MockModel":
        return self

    def get_output_embeddings(self) -> None:
        return None

    def num_parameters(self, *, exclude_embeddings: bool = False) -> int:
        return 1000

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        assert bool(attention_mask.all())
        self.inputs.append(input_ids)
        output = self.compute(input_ids)
        return SimpleNamespace(logits=output, last_hidden_state=output)


def mock_model(
    model: EvalModel, compute: Callable[[torch.Tensor], torch.Tensor], **changes: Any
) -> EvalModel:
    """Replace the model by a mock."""
    return replace(model, model=MockModel(compute), **changes)


def counts(ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return the count of each token in each text, shape (texts, 1, vocab_size)."""
    return torch.stack([torch.bincount(text, minlength=vocab_size) for text in ids]).float()[
        :, None
    ]
