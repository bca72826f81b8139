"""Losses of tokens, with the logits of few of them in memory at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import UnsupportedModelError
from ctxextend.evaluation.eval_model import CAUSAL, EvalModel, prepare_inputs, reads_only_text

if TYPE_CHECKING:
    import torch

# Logits that are held at once: 128 MiB of float32, 667 tokens of GPT-2's vocabulary of 50,257.
LOGITS_AT_ONCE = 2**25
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
    has_separate_head: bool  # whether the head can run apart from the rest, on the states that are needed only

    def losses(self, windows: Sequence[ScoredWindow]) -> list[NDArray[np.float64]]:
        """Return the negative log-likelihoods of each window's labels, in nats, each of shape (k,)."""
        import torch

        found: dict[int, NDArray[np.float64]] = {}
        batch_size = self.batch_size if self.has_separate_head else 1
        for batch in batches([len(window.input_ids) for window in windows], batch_size):
            ids = torch.from_numpy(np.stack([windows[i].input_ids for i in batch])).to(self.model.model.device)
            with torch.inference_mode(), without_head(self.model.model, apart=self.has_separate_head):
                states = self.model.model(**prepare_inputs(self.model.model, ids)).logits
            for i, row in zip(batch, states, strict=True):
                places, labels = (
                    torch.from_numpy(each).to(row.device) for each in (windows[i].places, windows[i].labels)
                )
                found[i] = self._losses_of(row[places], labels)
        return [found[i] for i in range(len(windows))]

    def _losses_of(self, states: "torch.Tensor", labels: "torch.Tensor") -> NDArray[np.float64]:
        """Return the losses of labels, (k,), from states before a separate head, (k, d), or from logits."""
        import torch
        from torch.nn.functional import cross_entropy

        head: Any = self.model.model.get_output_embeddings() if self.has_separate_head else torch.nn.Identity()
        size = max(LOGITS_AT_ONCE // (head.out_features if self.has_separate_head else states.shape[-1]), 1)
        with torch.inference_mode():
            found = [
                cross_entropy(head(some).float(), wanted, reduction="none")
                for some, wanted in zip(torch.split(states, size), torch.split(labels, size), strict=True)
            ]
        return torch.cat(found).cpu().double().numpy()


def open_scorer(model: EvalModel, batch_size: int | None = None) -> Scorer:
    """Return the scorer of a language model; refuse one that gives no logits of a text alone or sees what follows."""
    import torch

    with reads_only_text(model, "logits"):
        is_separate = _has_separate_head(model)
        one, other = (_trial_logits(model, last)[0, :-1].float() for last in (0, 1))
    if model.kind == CAUSAL and not torch.allclose(one, other, rtol=1e-3, atol=1e-3, equal_nan=True):
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


def _has_separate_head(model: EvalModel) -> bool:
    """Whether a model's logits are its head's output at single places, and nothing is done to them afterwards."""
    import torch

    head = model.model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        return False
    whole = _trial_logits(model)
    try:
        with torch.inference_mode():
            with without_head(model.model):
                states = _trial_logits(model)
            return torch.allclose(head(states).float(), whole.float(), rtol=1e-3, atol=1e-3)
    except RuntimeError:  # what comes after the head does not fit the states, as the bias of ESM's does not
        return False


def _trial_logits(model: EvalModel, last: int = 0) -> "torch.Tensor":
    """Return the logits of a text of four tokens, the last another where that is asked for."""
    import torch

    vocab_size = getattr(model.model.get_output_embeddings(), "out_features", 200)
    ids = torch.arange(4, dtype=torch.int64, device=model.model.device)[None] + min(vocab_size // 2, 100)
    ids[0, -1] += last
    with torch.inference_mode():
        logits: torch.Tensor = model.model(**prepare_inputs(model.model, ids)).logits
    return logits
