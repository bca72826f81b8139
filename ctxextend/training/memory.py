"""What keeps the memory of training small: a chunked loss, and activations that are computed again."""

from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ctxextend.training.train_data import IGNORE_INDEX

# Logits that are held at once: 64 MiB of float32, 333 tokens of GPT-2's vocabulary of 50,257.
LOGITS_AT_ONCE = 2**24

# The activation functions of transformers that are written as several operations.
COMPOSED = (
    *("NewGELUActivation", "FastGELUActivation", "QuickGELUActivation", "AccurateGELUActivation"),
    *("ClippedGELUActivation", "ReLUSquaredActivation", "LaplaceActivation"),
)


def chunked_loss(head: torch.nn.Linear, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of a language model's head, with few logits in memory at a time.

    Only states with a label go through the head. In float32 torch's own `linear_cross_entropy` is used, where this
    torch has it. In half precision that rounds the loss to half precision too, so there the chunks are plain cross
    entropies in float32, whose logits are computed again in the backward pass.

    Args:
        head: The output head, from the hidden size to the vocabulary size.
        states: The hidden states before it, shape (..., hidden_size), any float.
        labels: Token ids, shape (...), int64; `IGNORE_INDEX` is left out.

    Returns:
        A scalar in nats, float32 at least; 0 if there is no label.
    """
    is_label = labels != IGNORE_INDEX
    states, labels = states[is_label], labels[is_label]
    chunk = max(LOGITS_AT_ONCE // len(head.weight), 1)
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
    is_float32 = {states.dtype, head.weight.dtype, dtype} == {torch.float32}
    if len(labels) and is_float32 and hasattr(torch.nn, "LinearCrossEntropyOptions"):
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)
        return functional.linear_cross_entropy(states, head.weight, labels, linear_bias=head.bias, options=options)
    total = states.new_zeros((), dtype=torch.promote_types(states.dtype, torch.float32))
    for some_states, some_labels in zip(torch.split(states, chunk), torch.split(labels, chunk), strict=True):
        total = total + checkpoint(_summed_loss, head, some_states, some_labels, use_reentrant=False)
    return total / max(len(labels), 1)


def _summed_loss(head: torch.nn.Linear, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = head(states)
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(exact, labels, reduction="sum")


def disable_dropout(model: torch.nn.Module) -> None:
    """Set all dropout rates of a model to 0, so that the same steps give the same losses everywhere.

    `model.eval()` would disable gradient checkpointing too.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        # Functional dropout and layer drop take their rates from the module around them.
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def checkpoint_layers(model: Any) -> bool:
    """Enable gradient checkpointing; return False if the model does not support it."""
    if not model.supports_gradient_checkpointing:
        return False
    # The newer versions of transformers call it activation checkpointing.
    named = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    getattr(model, f"{named}_checkpointing_enable")({"use_reentrant": False})
    return True


def checkpoint_activations(model: torch.nn.Module) -> None:
    """Compute activation functions of several operations again in the backward pass; no value changes.

    GELU as GPT-2 has it keeps four tensors of the size of its input otherwise, half of all that a model with frozen
    layers keeps.
    """
    for module in model.modules():
        if type(module).__name__ in COMPOSED:
            module.forward = partial(checkpoint, type(module).forward, module, use_reentrant=False)
