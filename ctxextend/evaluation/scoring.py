"""Losses of tokens, with the logits of few of them in memory at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import UnsupportedModelError
from ctxextend.evaluation.readers import CAUSAL, Reader, prepare_attention, reading_alone

if TYPE_CHECKING:
    import torch

__all__ = [
    "LOGITS_AT_ONCE",
    "TOKENS_AT_ONCE",
    "Scorer",
    "Window",
    "batches",
    "head_is_apart",
    "inputs_of",
    "without_head",
]

# Logits that are held at once: 128 MiB of float32, 667 tokens of GPT-2's 50,257 words.
LOGITS_AT_ONCE = 2**25

# Tokens that a model reads at once where nothing else is asked for.
TOKENS_AT_ONCE = 4096


@dataclass(frozen=True)
class Window:
    """What a model reads at once, and which tokens are scored.

    Attributes:
        input_ids: Shape (w,), special tokens included.
        places: Where the model's answers are taken, shape (k,); the same place may stand there several times.
        labels: The tokens whose loss is asked for, shape (k,).
    """

    input_ids: NDArray[np.int64]
    places: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Scorer:
    """Gives the losses of tokens by a language model.

    Attributes:
        reader: A causal or a masked model.
        batch_size: Windows that are read at once; None is as many as hold 4,096 tokens.
        is_apart: Whether the head can be kept from the rest, so that no more logits are made than are asked for.
    """

    reader: Reader
    batch_size: int | None
    is_apart: bool

    @classmethod
    def of(cls, reader: Reader, batch_size: int | None = None) -> "Scorer":
        """Return the scorer of a model, having tried on a short text whether its head can be kept apart.

        Raises:
            UnsupportedModelError: It gives no logits of a text alone, or sees the tokens that it is to tell.
        """
        with reading_alone(reader, "logits"):
            is_apart, sees_what_follows = head_is_apart(reader), reader.kind == CAUSAL and _sees_what_follows(reader)
        if sees_what_follows:
            raise UnsupportedModelError(
                f"{reader.name} reads the tokens behind a place too: what it is to tell, it sees.",
                "Say is_decoder: true in config.json if it was trained to tell the next token.",
            )
        return cls(reader, batch_size, is_apart)

    def losses(self, windows: Sequence[Window]) -> list[NDArray[np.float64]]:
        """Return the negative log-likelihoods of each window's labels, in nats, each of shape (k,)."""
        found: dict[int, NDArray[np.float64]] = {}
        for batch in batches([len(window.input_ids) for window in windows], self.batch_size if self.is_apart else 1):
            answers = _answers(self.reader, [windows[i] for i in batch], apart=self.is_apart)
            for i, rows in zip(batch, answers, strict=True):
                found[i] = _losses(self.reader, rows, windows[i].labels, apart=self.is_apart)
        return [found[i] for i in range(len(windows))]


def batches(lengths: Sequence[int], batch_size: int | None = None) -> Iterator[list[int]]:
    """Yield the numbers of texts of one length, so that none needs padding.

    Args:
        lengths: Tokens of each text.
        batch_size: Texts that are read at once; None is as many as hold 4,096 tokens.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for length, group in groupby(order, key=lengths.__getitem__):
        numbers, size = list(group), batch_size or max(TOKENS_AT_ONCE // length, 1)
        yield from (numbers[start : start + size] for start in range(0, len(numbers), size))


def _answers(reader: Reader, windows: Sequence[Window], *, apart: bool) -> "Iterator[torch.Tensor]":
    """Yield for each window what stands in front of the head at its places, or the logits themselves."""
    import torch

    ids = torch.from_numpy(np.stack([window.input_ids for window in windows])).to(reader.model.device)
    prepare_attention(reader)
    with torch.inference_mode(), without_head(reader.model, apart=apart):
        states = reader.model(**inputs_of(reader.model, ids)).logits
    for row, window in zip(states, windows, strict=True):
        yield row[torch.from_numpy(window.places).to(row.device)]


def inputs_of(model: Any, ids: "torch.Tensor") -> dict[str, Any]:
    """Return texts as a model is given them, so that it reads them whole and holds no keys and values.

    Args:
        model: The model.
        ids: The texts, all of one length, shape (b, w), int64.
    """
    import torch

    # A mask of ones: without one, some models look for padding in the ids, or for several texts in the positions.
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return given | ({"use_cache": False} if getattr(model.config, "use_cache", None) is not None else {})


@contextmanager
def without_head(model: Any, *, apart: bool = True) -> Iterator[None]:
    """Let a model's head give back what it is given, so that what should be logits are hidden states.

    Args:
        model: The model.
        apart: From `head_is_apart`; where it is not, everything stays as it is.
    """
    if not apart:
        yield
        return
    head = model.get_output_embeddings()
    head.forward = lambda states: states
    try:
        yield
    finally:
        del head.forward


def _losses(reader: Reader, rows: "torch.Tensor", labels: NDArray[np.int64], *, apart: bool) -> NDArray[np.float64]:
    """Return the losses of some tokens, shape (k,), by as many logits at a time as may be held."""
    import torch

    head: Any = reader.model.get_output_embeddings() if apart else torch.nn.Identity()
    words = head.out_features if apart else rows.shape[-1]
    wanted = torch.from_numpy(labels).to(rows.device)
    size = max(min(LOGITS_AT_ONCE // words, len(rows)), 1)
    # One room for all pieces: to be given fresh memory for each takes a fifth of the time of the product.
    room = rows.new_empty(size, words) if type(head) is torch.nn.Linear and rows.dtype == torch.float32 else None
    found = torch.empty(len(rows), dtype=torch.float64)
    with torch.inference_mode():
        for piece in (slice(start, start + size) for start in range(0, len(rows), size)):
            found[piece] = _cross_entropy_of(_logits(head, rows[piece], room), wanted[piece])
    return found.numpy()


def _logits(head: Any, rows: "torch.Tensor", room: "torch.Tensor | None") -> "torch.Tensor":
    """Return what a head makes of rows, float32, in a room of at least as many rows where there is one."""
    import torch

    if room is None:
        logits: torch.Tensor = head(rows).float()
        return logits
    logits = torch.mm(rows, head.weight.t(), out=room[: len(rows)])
    return logits if head.bias is None else logits.add_(head.bias)


def _cross_entropy_of(logits: "torch.Tensor", words: "torch.Tensor") -> "torch.Tensor":
    """Return the cross entropy of each row, shape (k,), float64, and leave nothing of the logits."""
    import torch

    told = logits.gather(1, words[:, None])[:, 0]
    highest = logits.amax(1, keepdim=True)
    summed = logits.sub_(highest).exp_().sum(1)
    # To the CPU first: not every device knows float64.
    told, most, summed = torch.stack([told, highest[:, 0], summed]).cpu().double()
    losses: torch.Tensor = most + summed.log() - told
    return losses


def head_is_apart(reader: Reader) -> bool:
    """Whether a model's logits are its head's answer to single places, and nothing is done to them afterwards."""
    import torch

    head = reader.model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        return False
    inputs = _trial(reader)
    with torch.inference_mode():
        whole = reader.model(**inputs).logits
        try:
            with without_head(reader.model):
                states = reader.model(**inputs).logits
        except RuntimeError:  # what comes behind the head does not fit the states, as the bias of ESM's does not
            return False
        if states.shape[-1] != head.in_features:
            return False
        return torch.allclose(head(states).float(), whole.float(), rtol=1e-3, atol=1e-3)


def _trial(reader: Reader, last: int = 0) -> dict[str, Any]:
    """Return a text of four tokens as a model takes it, the last another where that is asked for."""
    import torch

    words = getattr(reader.model.get_output_embeddings(), "out_features", 200)
    ids = torch.arange(4, dtype=torch.int64, device=reader.model.device)[None] + min(words // 2, 100)
    ids[0, -1] += last
    return inputs_of(reader.model, ids)


def _sees_what_follows(reader: Reader) -> bool:
    """Whether what a model answers at a place changes with the tokens behind it."""
    import torch

    with torch.inference_mode():
        one, other = (reader.model(**_trial(reader, last)).logits[0, :-1] for last in (0, 1))
    return not torch.allclose(one.float(), other.float(), rtol=1e-3, atol=1e-3, equal_nan=True)
