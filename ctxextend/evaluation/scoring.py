"""Losses of tokens, with the logits of few of them in memory at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import UnsupportedModelError
from ctxextend.evaluation.eval_model import CAUSAL, EvalModel, prepare_inputs, reads_only_text

if TYPE_CHECKING:
    import torch

# Logits that are held at once: 128 MiB of float32, 667 tokens of GPT-2.
LOGITS_AT_ONCE = 2**25
# Rows of logits whose normalizers are computed at once.
ROWS_AT_ONCE = 8
# Tokens that a model reads at once where nothing else is asked for.
TOKENS_AT_ONCE = 4096


@dataclass(frozen=True)
class ScoredWindow:
    """What a model reads at once, and which tokens are scored."""

    input_ids: NDArray[np.int64]  # shape (w,), special tokens included
    places: NDArray[np.int64]  # where predictions are taken, shape (k,), in any order and also several times
    labels: NDArray[np.int64]  # the tokens whose loss is asked for, shape (k,)


@dataclass(frozen=True)
class Scorer:
    """Gives the losses of tokens by a causal or masked language model."""

    model: EvalModel
    batch_size: int | None  # windows that are read at once; None is as many as hold 4,096 tokens
    has_separate_head: bool  # whether logits are its head's output, so that it can run on the needed states only

    def losses(self, windows: Sequence[ScoredWindow]) -> list[NDArray[np.float64]]:
        """Return the negative log-likelihoods of each window's labels, in nats, each of shape (k,)."""
        import torch

        model, found = self.model.model, dict[int, NDArray[np.float64]]()
        head: Any = model.get_output_embeddings() if self.has_separate_head else torch.nn.Identity()
        batch_size = self.batch_size if self.has_separate_head else 1
        for batch in batches([len(window.input_ids) for window in windows], batch_size):
            ids = torch.from_numpy(np.stack([windows[i].input_ids for i in batch])).to(model.device)
            with torch.inference_mode():
                with without_head(model, apart=self.has_separate_head):
                    outputs = model(**prepare_inputs(model, ids)).logits  # hidden states where the head is apart
                size = max(LOGITS_AT_ONCE // (head.out_features if self.has_separate_head else outputs.shape[-1]), 1)
                for i, output in zip(batch, outputs, strict=True):
                    places, labels = (
                        torch.split(torch.from_numpy(each).to(output.device), size)
                        for each in (windows[i].places, windows[i].labels)
                    )
                    parts = zip(places, labels, strict=True)
                    losses = [_cross_entropy(head(output[some]).float(), wanted) for some, wanted in parts]
                    found[i] = torch.cat(losses).numpy()
        return [found[i] for i in range(len(windows))]


def open_scorer(model: EvalModel, batch_size: int | None = None) -> Scorer:
    """Return the scorer of a language model; refuse one that gives no logits of a text alone or sees what follows."""
    import torch

    def logits(last: int = 3) -> "torch.Tensor":
        """Return what the model gives for a text of four tokens, in float32."""
        ids = torch.tensor([[0, 1, 2, last]], device=model.model.device)
        ids += min(getattr(head, "out_features", 200) // 2, 100)  # none of them is padding
        found: torch.Tensor = model.model(**prepare_inputs(model.model, ids)).logits
        return found.float()

    with reads_only_text(model, "logits"), torch.inference_mode():
        head = model.model.get_output_embeddings()
        whole, other = logits(), logits(last=4)
        is_separate = False
        if isinstance(head, torch.nn.Linear):
            with suppress(RuntimeError):  # what comes after the head does not fit the states, as ESM's bias does not
                with without_head(model.model):
                    states = logits()
                again = head(states.to(head.weight.dtype)).float()
                is_separate = torch.allclose(again, whole, rtol=1e-3, atol=1e-3)
    causal = whole[:, :-1], other[:, :-1]
    if model.kind == CAUSAL and not torch.allclose(*causal, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise UnsupportedModelError(
            f"{model.name} reads the tokens behind a place too: what it is to tell, it sees.",
            "Say is_decoder: true in config.json if it was trained to tell the next token.",
        )
    return Scorer(model, batch_size, is_separate)


def batches(lengths: Sequence[int], batch_size: int | None = None) -> Iterator[list[int]]:
    """Yield numbers of texts of one length, which need no padding; by default as many as hold 4,096 tokens."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for length, group in groupby(order, key=lengths.__getitem__):
        numbers, size = list(group), batch_size or max(TOKENS_AT_ONCE // length, 1)
        yield from (numbers[start : start + size] for start in range(0, len(numbers), size))


@contextmanager
def without_head(model: Any, *, apart: bool = True) -> Iterator[None]:
    """Make the head of a model of transformers the identity, so that its logits are hidden states; if it is apart."""
    if not apart:
        yield
        return
    head = model.get_output_embeddings()
    head.forward = lambda states: states
    try:
        yield
    finally:
        del head.forward


def _cross_entropy(logits: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """Return the cross entropy of each row of float32 logits, shape (k,), float64."""
    import torch

    # A few rows at a time stay in the processor's cache.
    normalizers = torch.cat([rows.logsumexp(1) for rows in torch.split(logits, ROWS_AT_ONCE)])
    scores = logits.gather(1, targets[:, None])[:, 0]
    # To the CPU first: not every device knows float64.
    normalizers, scores = torch.stack([normalizers, scores]).cpu().double()
    losses: torch.Tensor = normalizers - scores
    return losses
