"""Training objectives: language modelling, and self-distillation for encoders without an LM head."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from ctxextend.errors import CheckpointError
from ctxextend.evaluation import eval_model
from ctxextend.evaluation.embedding import POOLINGS, last_states
from ctxextend.evaluation.eval_model import CAUSAL, EvalModel, position_base, prepare_inputs
from ctxextend.evaluation.losses import Span, identity_lm_head, open_scorer
from ctxextend.training.memory import chunked_loss
from ctxextend.training.train_data import IGNORE_INDEX

SAMPLED_IDS = 512  # number of evenly spaced token ids on which the tokenizers of student and teacher must agree


class LanguageModeling(torch.nn.Module):
    """Mean loss of a causal or masked language model; if the LM head is separate, logits are computed in chunks.

    The constructor checks on short texts whether it is. `position_ids`: whether `forward` is called with position ids.
    """

    def __init__(self, model: EvalModel, *, position_ids: bool = False) -> None:
        super().__init__()
        self.kind = model.kind
        self.model: Any = model.model
        self.has_separate_head = open_scorer(model).has_separate_head
        self.position_base = position_base(model, "--window") if position_ids else 0

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the mean loss in nats as ``loss``; all inputs are int64 of shape (b, w).

        Texts are not padded. Labels are not shifted for a causal model; those equal to `IGNORE_INDEX` are ignored.
        Position ids count from the first usable position; None means default positions.
        """
        positions = None if position_ids is None else position_ids + self.position_base
        head: Any = self.model.get_output_embeddings() if self.has_separate_head else torch.nn.Identity()
        with identity_lm_head(head):  # the model then returns hidden states as logits
            outputs: torch.Tensor = self.model(**prepare_inputs(self.model, input_ids, positions)).logits
        if self.kind == CAUSAL:
            outputs, labels = outputs[:, :-1], labels[:, 1:]
        if self.has_separate_head:
            return {"loss": chunked_loss(head, outputs, labels)}
        return {"loss": cross_entropy(outputs.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)}


def plan_windows(tokens: int, length: int) -> list[Span]:
    """Return overlapping windows of at most `length` tokens that cover a text of `tokens` tokens, both ≥ 1.

    The stride is half the window length, except for the last window, which ends with the text. Tokens `first` to
    `last` of the text belong to a window: each belongs to the first window in which it is most central.

    Source: `run_squad.py` of Devlin et al. 2018, arXiv:1810.04805, assigns the tokens of long paragraphs to windows by
        maximum context.
    """
    size, last = min(tokens, length), max(tokens - length, 0)
    starts = [*range(0, last, max(length // 2, 1)), last]
    # A token as far from the middle of one window as from that of the next belongs to the first.
    borders = [(start + following + size + 1) // 2 for start, following in pairwise(starts)]
    edges = zip(starts, [0, *borders], [*borders, tokens], strict=True)
    return [Span(start, start + size, first, stop) for start, first, stop in edges]


class Distillation(torch.nn.Module):
    """Distils a base checkpoint (teacher), which reads windows, into a model (student) that reads long texts.

    The loss is the mean squared error of the last hidden states, divided by the mean square of the teacher's. For
    sentence encoders (`poolings`), the mean of 1 - cosine similarity of each window's embeddings is added. The target
    of a token is the teacher's state in the window in which it is most central; of a special token, the mean over all
    windows. A window's embedding is pooled from its tokens and the special tokens around the text, as the teacher's is;
    with a pooling that selects one token, such as [CLS], one embedding is compared with the mean direction of all.

    The teacher is not a submodule, so its weights are neither trained nor saved.
    Source: Dong et al. 2025, arXiv:2502.07365, keep an extended model's states close to the base model's on short
        texts; Zhang et al. 2025, arXiv:2503.20376, pull the embeddings of a long text's chunks towards the teacher's.
        Targets from overlapping windows are specific to ctxextend.
    """

    def __init__(
        self, student: EvalModel, teacher: EvalModel, poolings: tuple[str, ...] = (), *, position_ids: bool = False
    ) -> None:
        super().__init__()
        self.model: Any = student.model
        self.student, self.teacher, self.poolings = student, teacher, poolings
        teacher.model.eval()
        sampled = np.linspace(0, len(student.tokenizer.tokenizer) - 1, SAMPLED_IDS).astype(np.int64)
        eval_model.check_same_tokens(student, teacher, sampled)
        size, expected = map(_hidden_size, (student, teacher))
        if size != expected:
            message = f"The hidden size of {student.name} is {size:,}, but that of {teacher.name} is {expected:,}."
            raise CheckpointError(message, f"Pass the base checkpoint of {student.name} with --base.")
        self.position_base = position_base(student, "--window") if position_ids else 0

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, position_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the mean loss of texts, int64 of shape (b, w), as ``loss``; only the student uses position ids."""
        positions = None if position_ids is None else position_ids + self.position_base
        states = last_states(self.student, input_ids, positions)
        windows = plan_windows(input_ids.shape[1] - self.student.tokenizer.num_special, self.teacher.max_text)
        targets = self._teacher_states(input_ids, windows)
        merged = self._merge_windows(targets, windows)
        loss = (states - merged).square().mean(dim=(1, 2)) / merged.square().mean(dim=(1, 2))
        if self.poolings:
            embeddings = torch.stack([self._pool(self._select_window(states, window)) for window in windows])
            target_embeddings = torch.stack([self._pool(states) for states in targets])
            loss = loss + 1 - cosine_similarity(embeddings, target_embeddings, dim=-1).mean(dim=0)
        return {"loss": loss.mean()}

    def _teacher_states(self, input_ids: torch.Tensor, windows: list[Span]) -> torch.Tensor:
        """Return the teacher's states of windows, special tokens included, (windows, b, s, d), float32."""
        self.teacher.model.to(input_ids.device)
        ids = torch.cat([self._select_window(input_ids, window) for window in windows])
        batches = torch.split(ids, max(eval_model.TOKENS_PER_BATCH // ids.shape[1], 1))
        with torch.no_grad():
            states = [last_states(self.teacher, batch) for batch in batches]
        return torch.cat(states).view(len(windows), -1, *states[0].shape[1:])

    def _select_window(self, values: torch.Tensor, window: Span) -> torch.Tensor:
        """Return the values of a window and of the special tokens around the text, from values of shape (b, w, …)."""
        start, stop = len(self.student.tokenizer.before), values.shape[1] - len(self.student.tokenizer.after)
        inside = values[:, start + window.start : start + window.stop]
        return torch.cat([values[:, :start], inside, values[:, stop:]], dim=1)

    def _merge_windows(self, targets: torch.Tensor, windows: list[Span]) -> torch.Tensor:
        """Return the target state of each token, (b, w, d), from the states of windows, (windows, b, s, d)."""
        start, stop = len(self.student.tokenizer.before), targets.shape[2] - len(self.student.tokenizer.after)
        special = targets.mean(dim=0)
        parts = [
            states[:, start + window.first - window.start : start + window.last - window.start]
            for states, window in zip(targets, windows, strict=True)
        ]
        return torch.cat([special[:, :start], *parts, special[:, stop:]], dim=1)

    def _pool(self, states: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of texts from their states, shape (b, s, d)."""
        return torch.cat([POOLINGS[name](states) for name in self.poolings], dim=-1)


def _hidden_size(model: EvalModel) -> int:
    tokenizer = model.tokenizer
    ids = torch.from_numpy(tokenizer.add_special_tokens(tokenizer.encode("a"))).to(model.model.device)
    with torch.no_grad(), eval_model.needs_only_text(model, "states"):
        return int(last_states(model, ids[None]).shape[-1])
