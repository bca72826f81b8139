"""Training objectives: language modeling, and self-distillation for encoders without a head."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.evaluation.embedding import POOLINGS, last_states
from ctxextend.evaluation.eval_model import (
    CAUSAL,
    TOKENS_AT_ONCE,
    EvalModel,
    check_same_tokens,
    prepare_inputs,
    reads_only_text,
)
from ctxextend.evaluation.losses import Span, open_scorer, without_head
from ctxextend.training.memory import chunked_loss
from ctxextend.training.train_data import IGNORE_INDEX

# Token ids of the vocabulary, evenly spread, whose tokens two tokenizers must share.
SAMPLED = 512
# Position ids that `position_base` tries: the default ones, these reversed, and some with a jump.
DEFAULT, REVERSED, JUMPING = (0, 1, 2, 3), (3, 2, 1, 0), (0, 1, 5, 6)
# Two outputs are the same if they differ by less than this share of what other positions change.
SAME = 0.01


class LanguageModeling(torch.nn.Module):
    """The mean loss of a causal or a masked language model, which never holds all its logits if its head is separate.

    The model is tried on short texts first; `placed` says that it will be given position ids.
    """

    def __init__(self, reader: EvalModel, *, placed: bool = False) -> None:
        super().__init__()
        self.reader = reader
        self.model: Any = reader.model
        self.has_separate_head = open_scorer(reader).has_separate_head
        self.position_base = position_base(reader) if placed else 0

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the mean loss in nats as ``loss``; all inputs are int64 of shape (b, w).

        The texts have one length; labels are not shifted for a causal model, `IGNORE_INDEX` where nothing is predicted;
        position ids count from the first usable position, None is from the start.
        """
        positions = None if position_ids is None else position_ids + self.position_base
        head: Any = self.model.get_output_embeddings() if self.has_separate_head else torch.nn.Identity()
        with without_head(head):  # then hidden states take the place of logits
            outputs: torch.Tensor = self.model(**prepare_inputs(self.model, input_ids, positions)).logits
        if self.reader.kind == CAUSAL:
            outputs, labels = outputs[:, :-1], labels[:, 1:]
        if self.has_separate_head:
            return {"loss": chunked_loss(head, outputs, labels)}
        flat = outputs.float().flatten(0, 1), labels.flatten()
        return {"loss": cross_entropy(*flat, ignore_index=IGNORE_INDEX)}


def plan_windows(tokens: int, length: int) -> list[Span]:
    """Return the windows of at most `length` tokens by which a model reads a text that is longer, both ≥ 1.

    Windows have one length and begin half of it apart, but for the last, which ends with the text. A token belongs to
    the window in which it is most central, and of two such to the first: `first` to `last` follow each other.

    Source: the token's window by its context as in `run_squad.py` of Devlin et al. 2018, arXiv:1810.04805, which reads
        paragraphs that are too long for BERT.
    """
    size, last = min(tokens, length), max(tokens - length, 0)
    starts = [*range(0, last, max(length // 2, 1)), last]
    # The first token that is as far from the middle of a window as from that of the next belongs to the first of them.
    borders = [(start + following + size + 1) // 2 for start, following in pairwise(starts)]
    edges = zip(starts, [0, *borders], [*borders, tokens], strict=True)
    return [Span(start, start + size, first, stop) for start, first, stop in edges]


class Distillation(torch.nn.Module):
    """Trains a model on long texts to give what its base checkpoint gives on windows that it can read.

    The loss is the mean squared error of the last hidden states over the mean square of the teacher's; for sentence
    encoders, whose `poolings` are given, plus the mean of 1 - cosine of the vectors of each window. A token's state is
    compared with that in the window in which it is most central; those of special tokens with their means over the
    windows. A window's vector is pooled from its tokens and the special tokens around the text, as the teacher's is. If
    a vector is one token's, such as [CLS], the text has one, compared with the mean direction of all windows' vectors.

    The teacher is no submodule, so its weights are neither trained nor saved.
    Source: Dong et al. 2025, arXiv:2502.07365, keep the states of an extended model near the base model's on short
        texts; Zhang et al. 2025, arXiv:2503.20376, draw the vectors of a long text's pieces to the teacher's vectors of
        the pieces. That overlapping windows stand for a long text's states is our own.
    """

    def __init__(
        self, student: EvalModel, teacher: EvalModel, poolings: tuple[str, ...] = (), *, placed: bool = False
    ) -> None:
        super().__init__()
        self.model: Any = student.model
        self.student, self.teacher, self.poolings = student, teacher, poolings
        teacher.model.eval()
        sampled = np.linspace(0, len(student.tokenizer.tokenizer) - 1, SAMPLED).astype(np.int64)
        check_same_tokens(student, teacher, sampled)
        sizes = [_hidden_size(reader) for reader in (student, teacher)]
        if sizes[0] != sizes[1]:
            raise CheckpointError(
                f"The states of {student.name} have {sizes[0]:,} values, and those of {teacher.name} {sizes[1]:,}.",
                "Name what it was made of: --base.",
            )
        self.position_base = position_base(student) if placed else 0

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, position_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the mean loss of texts, int64 of shape (b, w), as ``loss``; position ids are the student's alone."""
        positions = None if position_ids is None else position_ids + self.position_base
        states = last_states(self.student, input_ids, positions)
        windows = plan_windows(input_ids.shape[1] - self.student.tokenizer.num_special, self.teacher.max_text)
        targets = self._teacher_states(input_ids, windows)
        wanted = self._joined(targets, windows)
        loss = (states - wanted).square().mean(dim=(1, 2)) / wanted.square().mean(dim=(1, 2))
        if self.poolings:
            ours = torch.stack([self._pooled(self._window_of(states, window)) for window in windows])
            theirs = torch.stack([self._pooled(states) for states in targets])
            loss = loss + 1 - cosine_similarity(ours, theirs, dim=-1).mean(dim=0)
        return {"loss": loss.mean()}

    def _teacher_states(self, input_ids: torch.Tensor, windows: list[Span]) -> torch.Tensor:
        """Return the teacher's states of windows with their special tokens, (windows, b, s, d), float32."""
        self.teacher.model.to(input_ids.device)
        ids = torch.cat([self._window_of(input_ids, window) for window in windows])
        batches = torch.split(ids, max(TOKENS_AT_ONCE // ids.shape[1], 1))
        with torch.no_grad():
            states = [last_states(self.teacher, batch) for batch in batches]
        return torch.cat(states).view(len(windows), -1, *states[0].shape[1:])

    def _window_of(self, values: torch.Tensor, window: Span) -> torch.Tensor:
        """Return those of the values of texts, shape (b, w, …), that belong to a window or a special token."""
        start, stop = len(self.student.tokenizer.before), values.shape[1] - len(self.student.tokenizer.after)
        inside = values[:, start + window.start : start + window.stop]
        return torch.cat([values[:, :start], inside, values[:, stop:]], dim=1)

    def _joined(self, targets: torch.Tensor, windows: list[Span]) -> torch.Tensor:
        """Return the target of each token, (b, w, d), from the states of the windows, (windows, b, s, d)."""
        start, stop = len(self.student.tokenizer.before), targets.shape[2] - len(self.student.tokenizer.after)
        special = targets.mean(dim=0)
        own = [
            states[:, start + window.first - window.start : start + window.last - window.start]
            for states, window in zip(targets, windows, strict=True)
        ]
        return torch.cat([special[:, :start], *own, special[:, stop:]], dim=1)

    def _pooled(self, states: torch.Tensor) -> torch.Tensor:
        """Return the vectors of texts from their states, shape (b, s, d)."""
        return torch.cat([POOLINGS[name](states) for name in self.poolings], dim=-1)


def _hidden_size(reader: EvalModel) -> int:
    tokenizer = reader.tokenizer
    ids = torch.from_numpy(tokenizer.add_special_tokens(tokenizer.encode("a"))).to(reader.model.device)
    with torch.no_grad(), reads_only_text(reader, "states"):
        return int(last_states(reader, ids[None]).shape[-1])


def position_base(reader: EvalModel) -> int:
    """Return the position id of a model's first usable position: 0, or the number of its reserved rows.

    No config says which, so it is tried: the ids are right if the default positions change nothing and others do.
    """
    try:
        bases = [base for base in (0, reader.reserved_rows) if _counts_from(reader, base)]
    except (IndexError, RuntimeError, TypeError, ValueError):  # each class has its own way to take no position ids
        bases = []
    if not bases:
        raise UnsupportedModelError(
            f"{reader.name} takes no position ids: models of type {reader.model_type} count positions by themselves.",
            "Leave --window out.",
        )
    return bases[0]


def _counts_from(reader: EvalModel, base: int) -> bool:
    """Whether a model's position ids begin at `base`, and it attends across a jump of them."""
    size = int(reader.model.config.get_text_config().vocab_size)

    def output(positions: tuple[int, ...] | None, first: int = 0) -> torch.Tensor:
        ids = torch.arange(4, device=reader.model.device)[None] + min(size // 2, 100)  # none of them is padding
        ids[0, 0] -= first
        position_ids = None if positions is None else torch.tensor([positions], device=ids.device) + base
        with torch.inference_mode():
            found: torch.Tensor = reader.model(**prepare_inputs(reader.model, ids, position_ids))[0]
        return found.float()

    usual, given, reversed_ = output(None), output(DEFAULT), output(REVERSED)
    if (given - usual).abs().max() >= SAME * (reversed_ - usual).abs().max():
        return False
    return not torch.equal(output(JUMPING)[:, -1], output(JUMPING, first=1)[:, -1])
