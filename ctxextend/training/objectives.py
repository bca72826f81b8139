"""What a language model is trained to do: to tell the next word, or those that were masked."""

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from ctxextend.evaluation.eval_model import CAUSAL, EvalModel, prepare_inputs
from ctxextend.evaluation.scoring import open_scorer, without_head
from ctxextend.training.chunkedloss import IGNORED, chunked_loss
from ctxextend.training.positions import position_base

__all__ = ["LanguageModelling"]


class LanguageModelling(torch.nn.Module):
    """The mean loss of words by a causal or a masked language model, never with all its logits in memory.

    Attributes:
        model: The model, the only thing here that has parameters.
        reader: The model with its tokenizer.
        is_apart: Whether the head can be kept from the rest; elsewhere the model makes its logits whole.
        position_base: What the model counts its first usable position as.
    """

    def __init__(self, reader: EvalModel, *, is_apart: bool, position_base: int = 0) -> None:
        super().__init__()
        self.model: Any = reader.model
        self.reader, self.is_apart, self.position_base = reader, is_apart, position_base

    @classmethod
    def of(cls, reader: EvalModel, *, placed: bool = False) -> "LanguageModelling":
        """Return the objective of a model, having tried on short texts how it can be trained.

        Args:
            reader: A causal or a masked model, not in training.
            placed: Whether it will be told at which positions its texts stand.

        Raises:
            UnsupportedModelError: It gives no logits of a text alone, sees the tokens that it is to tell, or takes no
                positions though it is to be told some.
        """
        is_apart = open_scorer(reader).has_separate_head
        return cls(reader, is_apart=is_apart, position_base=position_base(reader) if placed else 0)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the mean loss of the words that are to be told, in nats, as ``loss``.

        Args:
            input_ids: Texts of one length, special tokens included, shape (b, w), int64.
            labels: The word at each place, shape (b, w), int64, and not shifted for a causal model; `IGNORED` where
                nothing is to be told.
            position_ids: Where each token stands, counted from the first usable position, shape (b, w), int64; None
                is at the start.
        """
        answers = self.answers(input_ids, position_ids)
        if self.reader.kind == CAUSAL:
            answers, labels = answers[:, :-1], labels[:, 1:]
        return {"loss": self._loss(answers, labels)}

    def answers(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Return what stands in front of the head, shape (b, w, d), or the logits where that is not apart.

        Args:
            input_ids: As in `forward`.
            position_ids: As in `forward`.
        """
        places = None if position_ids is None else position_ids + self.position_base
        given = prepare_inputs(self.model, input_ids, places)
        with without_head(self.model, apart=self.is_apart):
            found: torch.Tensor = self.model(**given).logits
        return found

    def _loss(self, answers: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.is_apart:
            return chunked_loss(self.model.get_output_embeddings(), answers, labels)
        summed = cross_entropy(answers.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return summed / (labels != IGNORED).sum().clamp(min=1)
