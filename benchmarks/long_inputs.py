"""Losses of a causal language model on long inputs, token by token.

Logits are computed for `CHUNK` tokens at a time, so that memory does not grow with the vocabulary
times the length. All losses are in nats, in float32.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

__all__ = [
    "Ids",
    "TokenLosses",
    "batched_losses",
    "cached_losses",
    "input_losses",
    "sliding_losses",
]

Ids = NDArray[np.int64]  # shape (tokens,)
TokenLosses = NDArray[np.float32]  # of the tokens from position 1 on, shape (tokens - 1,)

CHUNK = 1024


def input_losses(model: Any, ids: Ids) -> TokenLosses:
    """Return the losses of one input, read in one call."""
    import torch

    with torch.inference_mode():
        states = model.model(torch.from_numpy(ids)[None], use_cache=False).last_hidden_state[0]
        return _losses(model, states[:-1], ids[1:])


def sliding_losses(model: Any, ids: Ids, size: int, stride: int) -> TokenLosses:
    """Return the losses in windows of `size` tokens, of which each adds `stride` to the last."""
    parts = [input_losses(model, ids[:size])]
    for stop in range(size + stride, len(ids) + 1, stride):
        losses = input_losses(model, ids[stop - size : stop])
        parts.append(losses[-stride:])
    return np.concatenate(parts)


def cached_losses(model: Any, ids: Ids, prefill: int, step: int) -> TokenLosses:
    """Return the losses from position `prefill` on, read through the cache in steps.

    Args:
        model: The model.
        ids: The tokens: a multiple of `step` after the first `prefill` ones.
        prefill: Tokens of the first call.
        step: Tokens of each later call; a generation has 1.

    Returns:
        The losses of the tokens after the one at position `prefill`.
    """
    import torch

    tokens = torch.from_numpy(ids)[None]
    parts: list[TokenLosses] = []
    with torch.inference_mode():
        cache = model.model(tokens[:, :prefill], use_cache=True)[1]
        for start in range(prefill, len(ids), step):
            output = model.model(tokens[:, start : start + step], cache=cache, use_cache=True)
            targets = ids[start + 1 : start + step + 1]
            states = output.last_hidden_state[0, : len(targets)]
            parts.append(_losses(model, states, targets))
    return np.concatenate(parts)


def _losses(model: Any, states: "torch.Tensor", targets: Ids) -> TokenLosses:
    """Return the losses of targets from hidden states of the positions before them."""
    import torch

    parts: list[TokenLosses] = []
    wanted = torch.from_numpy(targets)
    for start in range(0, len(targets), CHUNK):
        logits = model.lm_head(states[start : start + CHUNK]).float()
        losses = torch.nn.functional.cross_entropy(
            logits, wanted[start : start + CHUNK], reduction="none"
        )
        parts.append(losses.numpy())
    return np.concatenate(parts)


def batched_losses(model: Any, ids: Ids, longer: Ids) -> TokenLosses:
    """Return the losses of an input that is padded to the length of another in its batch."""
    import torch

    batch = torch.zeros(2, len(longer), dtype=torch.int64)
    batch[0, : len(ids)] = torch.from_numpy(ids)
    batch[1] = torch.from_numpy(longer)
    mask = torch.ones_like(batch)
    mask[0, len(ids) :] = 0
    with torch.inference_mode():
        output = model.model(batch, attention_mask=mask, use_cache=False)
        return _losses(model, output.last_hidden_state[0, : len(ids) - 1], ids[1:])
