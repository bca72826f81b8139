"""Distillation from a checkpoint's own past: how an encoder without a head learns to read with a longer table."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cosine_similarity

from ctxextend.errors import CheckpointError
from ctxextend.evaluation.embedding import POOLINGS, last_states
from ctxextend.evaluation.eval_model import EvalModel, check_same_tokens, reads_only_text
from ctxextend.evaluation.scoring import TOKENS_AT_ONCE
from ctxextend.evaluation.text_windows import Span
from ctxextend.training.positions import position_base

__all__ = ["Distillation", "plan_windows"]

# Ids of the vocabulary, evenly spread, whose words two tokenizers must cut alike.
SAMPLED = 512


def plan_windows(tokens: int, room: int) -> list[Span]:
    """Return the windows by which a text is read that is longer than a model can read, and whose each token is.

    Windows are of one length and begin half of it apart, but for the last, which ends where the text does. Each token
    belongs to one of them: to that in which it is most central, and of two such to the first.

    Args:
        tokens: Tokens of the text, ≥ 1.
        room: Tokens that are read at once, at most, ≥ 1.

    Returns:
        The windows; the tokens that belong to them, `first` to `last`, stand one behind the other.

    Source: a token's window by its context is taken as in `run_squad.py` of Devlin et al. 2018, arXiv:1810.04805, which
        reads paragraphs that are too long for BERT.
    """
    size, last = min(tokens, room), max(tokens - room, 0)
    starts = [*range(0, last, max(room // 2, 1)), last]
    # The first token that is as far from the middle of a window as from that of the next belongs to the first of them.
    borders = [(start + following + size + 1) // 2 for start, following in pairwise(starts)]
    edges = zip(starts, [0, *borders], [*borders, tokens], strict=True)
    return [Span(start, start + size, first, stop) for start, first, stop in edges]


class Distillation(torch.nn.Module):
    """Trains a model on long texts to give what its original gives on windows that it can read.

    The loss is the mean squared error of the last hidden states, over the mean square of the original's, so that models
    can be compared; and for sentence encoders, the mean of 1 - cosine of the vectors of each window. It needs neither
    labels nor a head. A token's state is compared with that in the window in which it is most central; those of the
    special tokens around the text with their means over the windows.

    The vector of a window is, on the model's side, pooled from the states of the window's tokens between those of the
    special tokens, as the original's is. So where a vector is one token's, such as that of [CLS], the whole text has
    one, and is compared with each window's: it is drawn to the mean of their directions, and a loss remains that says
    how far they differ.

    Attributes:
        model: The model that learns; the original follows it to its device.
        student: The reader of that model.
        teacher: The reader of the original. A reader is no module, so that the original's weights are neither trained
            nor saved.
        poolings: How a sentence encoder makes a vector of a text, by names of `POOLINGS`; empty for other models.
        position_base: What the model counts its first usable position as.

    Source: Dong et al. 2025, arXiv:2502.07365, keep the states of an extended model near its original's on short texts;
        Zhang et al. 2025, arXiv:2503.20376, draw the vectors of a long text's pieces to those that a teacher has of the
        pieces alone. Our own is that overlapping windows stand for a long text's states.
    """

    def __init__(
        self, student: EvalModel, teacher: EvalModel, poolings: tuple[str, ...], *, position_base: int = 0
    ) -> None:
        super().__init__()
        self.model: Any = student.model
        self.student, self.teacher, self.poolings, self.position_base = student, teacher, poolings, position_base
        teacher.model.eval()

    @classmethod
    def of(
        cls, student: EvalModel, teacher: EvalModel, poolings: tuple[str, ...] | None = None, *, placed: bool = False
    ) -> "Distillation":
        """Return the objective by which a model learns from its original, having tried both on short texts.

        Args:
            student: The model that learns.
            teacher: The original.
            poolings: As `read_pooling` says of a folder of sentence-transformers; None for other models.
            placed: Whether the model will be told at which positions its texts stand.

        Raises:
            CheckpointError: The two cut texts into different tokens, or have states of different sizes.
            UnsupportedModelError: One of them does not give states of a text alone, or the model takes no positions
                though it is to be told some.
        """
        words = np.linspace(0, len(student.tokenizer.tokenizer) - 1, SAMPLED).astype(np.int64)
        check_same_tokens(student, teacher, words)
        sizes = [_states_size(reader) for reader in (student, teacher)]
        if sizes[0] != sizes[1]:
            raise CheckpointError(
                f"The states of {student.name} have {sizes[0]:,} values, and those of {teacher.name} {sizes[1]:,}.",
                "Name what it was made of: --original.",
            )
        base = position_base(student) if placed else 0
        return cls(student, teacher, poolings or (), position_base=base)

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return the loss of some texts.

        Args:
            input_ids: Texts between their special tokens, shape (b, w), int64.
            labels: Not looked at: what is to be told is what the original tells.
            position_ids: Where each token stands, counted from the first usable position, shape (b, w), int64; None is
                at the start. The original reads tokens from the start and one behind the other, wherever they stand.

        Returns:
            The mean over the texts under ``loss``, float32.
        """
        places = None if position_ids is None else position_ids + self.position_base
        states = last_states(self.student, input_ids, places)
        windows = plan_windows(input_ids.shape[1] - self.student.tokenizer.num_special, self.teacher.max_text)
        given = self._teach(input_ids, windows)
        loss = _relative_error(states, self._joined(given, windows))
        if self.poolings:
            ours = torch.stack([self._vectors(self._framed(states, window)) for window in windows])
            theirs = torch.stack([self._vectors(states) for states in given])
            loss = loss + 1 - cosine_similarity(ours, theirs, dim=-1).mean(dim=0)
        return {"loss": loss.mean()}

    def _teach(self, input_ids: torch.Tensor, windows: list[Span]) -> torch.Tensor:
        """Return the original's states of windows and the special tokens around them, (windows, b, s, d), float32."""
        self.teacher.model.to(input_ids.device)
        framed = torch.cat([self._framed(input_ids, window) for window in windows])
        size = max(TOKENS_AT_ONCE // framed.shape[1], 1)
        with torch.no_grad():
            read = [last_states(self.teacher, framed[i : i + size]) for i in range(0, len(framed), size)]
        return torch.cat(read).view(len(windows), -1, *read[0].shape[1:])

    def _framed(self, values: torch.Tensor, window: Span) -> torch.Tensor:
        """Return, of the values of some texts, shape (b, w, …), those of a window and the special tokens around it."""
        start, stop = len(self.student.tokenizer.before), values.shape[1] - len(self.student.tokenizer.after)
        inside = values[:, start + window.start : start + window.stop]
        return torch.cat([values[:, :start], inside, values[:, stop:]], dim=1)

    def _joined(self, given: torch.Tensor, windows: list[Span]) -> torch.Tensor:
        """Return the state that each token is to have, (b, w, d), from those in the windows, (windows, b, s, d)."""
        start, stop = len(self.student.tokenizer.before), given.shape[2] - len(self.student.tokenizer.after)
        around = given.mean(dim=0)
        own = [
            states[:, start + window.first - window.start : start + window.last - window.start]
            for states, window in zip(given, windows, strict=True)
        ]
        return torch.cat([around[:, :start], *own, around[:, stop:]], dim=1)

    def _vectors(self, states: torch.Tensor) -> torch.Tensor:
        """Return the vectors of some texts from their states, shape (b, s, d)."""
        return torch.cat([POOLINGS[name](states) for name in self.poolings], dim=-1)


def _relative_error(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of each text's states over the mean square of those wanted, shape (b,)."""
    return (states - wanted).square().mean(dim=(1, 2)) / wanted.square().mean(dim=(1, 2))


def _states_size(reader: EvalModel) -> int:
    """Return how many values the state of a token has."""
    ids = torch.from_numpy(reader.tokenizer.add_special_tokens(reader.tokenizer.encode("a"))).to(reader.model.device)
    with torch.no_grad(), reads_only_text(reader, "states"):
        return int(last_states(reader, ids[None]).shape[-1])
