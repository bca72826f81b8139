"""Token losses of a language model, with few logits in memory at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import UnsupportedModelError
from ctxextend.held_out import Ids
from ctxextend.lab.eval_model import (
    CAUSAL,
    EvalModel,
    batches,
    errors_as_unsupported,
    ignore,
    prepare_inputs,
)
from ctxextend.models.load import first_trial_token

if TYPE_CHECKING:
    import torch

    # From float32 logits, shape (k, vocabulary), and labels, (k,), to one value each.
    ScoreLabels = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

Losses = NDArray[np.float64]  # negative log-likelihoods in nats, shape (k,)

MAX_LOGITS = 2**25  # upper limit per LM head call: 128 MiB in float32, 667 tokens of GPT-2
ROWS_PER_CHUNK = 8  # rows of logits per logsumexp
LOGITS_TOLERANCE = 1e-3  # relative and absolute, of logits that are computed in two ways
UNKNOWN_VOCABULARY = 200  # assumed size if the LM head does not state it


@dataclass(frozen=True)
class ScoredWindow:
    """The input of a forward pass and its target tokens."""

    input_ids: Ids  # shape (w,), special tokens included
    # indices of the logits that predict the labels, shape (k,), in any order, with repetitions
    outputs: Ids
    labels: Ids  # target token ids, shape (k,)


@dataclass(frozen=True)
class Scorer:
    """Computes token losses with a causal or masked language model."""

    model: EvalModel
    batch_size: int | None  # windows per batch; None: as many as fit 4,096 tokens
    has_separate_head: bool  # whether the LM head can be applied to selected hidden states

    def losses(
        self,
        windows: Sequence[ScoredWindow],
        advance: Callable[[int], None] = ignore,
        score: "ScoreLabels | None" = None,
    ) -> list[Losses]:
        """Return the losses of each window's labels, or what else `score` makes of their logits.

        `advance` gets the tokens of each batch.
        """
        import torch

        model = self.model.model
        head: Any = torch.nn.Identity()
        batch_size: int | None = 1
        if self.has_separate_head:
            head = model.get_output_embeddings()
            batch_size = self.batch_size
        losses_of = dict[int, Losses]()
        for batch in batches([len(window.input_ids) for window in windows], batch_size):
            ids = torch.from_numpy(np.stack([windows[i].input_ids for i in batch])).to(model.device)
            with torch.inference_mode():
                with identity_lm_head(head):
                    inputs = prepare_inputs(model, ids)
                    outputs = model(**inputs).logits  # hidden states with a separate head
                for i, output in zip(batch, outputs, strict=True):
                    losses_of[i] = self._score(windows[i], output, head, score or cross_entropy)
            advance(ids.numel())
        return [losses_of[i] for i in range(len(windows))]

    def _score(
        self, window: ScoredWindow, output: "torch.Tensor", head: Any, score: "ScoreLabels"
    ) -> Losses:
        """Return the losses of a window's labels, from its logits or hidden states, (w, d)."""
        import torch

        vocab_size = head.out_features if self.has_separate_head else output.shape[-1]
        size = max(MAX_LOGITS // vocab_size, 1)
        pairs = torch.from_numpy(np.stack([window.outputs, window.labels])).to(output.device)
        losses = []
        for indices, labels in torch.split(pairs, size, dim=1):
            losses.append(score(head(output[indices]).float(), labels))
        scored: Losses = torch.cat(losses).cpu().double().numpy()
        return scored


def open_scorer(model: EvalModel, batch_size: int | None = None) -> Scorer:
    """Return the scorer of a language model, after trying it on four tokens.

    Raises:
        UnsupportedModelError: It needs more than text, or a causal model sees later tokens.
    """
    import torch

    with errors_as_unsupported(model, "logits"), torch.inference_mode():
        head = model.model.get_output_embeddings()
        expected = _logits(model, last_token=3)
        other = _logits(model, last_token=4)
        has_separate_head = _is_separate(model, head, expected)
    if model.kind == CAUSAL and not _are_close(expected[:, :-1], other[:, :-1]):
        message = f"{model.name} is not causal: its predictions depend on later tokens."
        hint = "Set is_decoder: true in config.json if it was trained to predict the next token."
        raise UnsupportedModelError(message, hint)
    return Scorer(model=model, batch_size=batch_size, has_separate_head=has_separate_head)


def _logits(model: EvalModel, *, last_token: int) -> "torch.Tensor":
    """Return the logits of four tokens, shape (1, 4, vocabulary), float32."""
    import torch

    ids = torch.tensor([[0, 1, 2, last_token]], device=model.model.device)
    head = model.model.get_output_embeddings()
    vocab_size = getattr(head, "out_features", UNKNOWN_VOCABULARY)
    ids += first_trial_token(vocab_size)
    logits: torch.Tensor = model.model(**prepare_inputs(model.model, ids)).logits
    return logits.float()


def _is_separate(model: EvalModel, head: Any, expected: "torch.Tensor") -> bool:
    """Whether an LM head returns the expected logits for hidden states of the model without it."""
    import torch

    if not isinstance(head, torch.nn.Linear):
        return False
    # Layers after the head may not fit hidden states, such as ESM's bias.
    with suppress(RuntimeError):
        with identity_lm_head(head):
            states = _logits(model, last_token=3)
        logits = head(states.to(head.weight.dtype)).float()
        return _are_close(logits, expected, equal_nan=False)
    return False


def _are_close(logits: "torch.Tensor", others: "torch.Tensor", *, equal_nan: bool = True) -> bool:
    import torch

    return torch.allclose(
        logits, others, rtol=LOGITS_TOLERANCE, atol=LOGITS_TOLERANCE, equal_nan=equal_nan
    )


@contextmanager
def identity_lm_head(head: Any) -> Iterator[None]:
    """Replace an LM head with the identity, so that the model returns hidden states as logits."""
    head.forward = lambda states: states
    try:
        yield
    finally:
        del head.forward


def cross_entropy(logits: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """Return the cross entropy of each row of float32 logits, shape (k,), as float64."""
    import torch

    # Few rows at a time fit the CPU cache.
    normalizers = torch.cat([rows.logsumexp(1) for rows in torch.split(logits, ROWS_PER_CHUNK)])
    scores = logits.gather(1, targets[:, None])[:, 0]
    # Move to the CPU first: some devices do not support float64.
    normalizers, scores = torch.stack([normalizers, scores]).cpu().double()
    losses: torch.Tensor = normalizers - scores
    return losses
