"""Training in less memory: chunked loss, gradient checkpointing; and no dropout."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ctxextend.training.train_data import IGNORE_INDEX

# Maximum logits per chunk of the loss: 64 MiB of float32, 333 tokens with GPT-2's vocabulary.
CHUNK_LOGITS = 2**24


def chunked_loss(head: torch.nn.Linear, states: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of an LM head in nats, computing the logits in chunks.

    `states`, the inputs of the head, have shape (..., hidden_size), `labels` shape (...). In half
    precision torch's fused loss would round, so each chunk's loss is computed in float32, and its
    logits again in the backward pass.
    """
    is_label = labels != IGNORE_INDEX
    states = states[is_label]
    labels = labels[is_label]
    chunk = max(CHUNK_LOGITS // len(head.weight), 1)
    # Whether logits are computed in float32, from float32 values.
    device = states.device.type
    is_float32 = states.dtype == head.weight.dtype == torch.float32
    if torch.is_autocast_enabled(device):
        is_float32 = is_float32 and torch.get_autocast_dtype(device) == torch.float32
    if len(labels) and is_float32 and hasattr(torch.nn, "LinearCrossEntropyOptions"):
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)
        return functional.linear_cross_entropy(
            states, head.weight, labels, linear_bias=head.bias, options=options
        )
    return _mean_of_chunks(partial(_summed_loss, head), states, labels, chunk)


def chunked_divergence(
    heads: tuple[torch.nn.Module, torch.nn.Module], states: Tensor, targets: Tensor
) -> Tensor:
    """Return the mean Kullback-Leibler divergence of predictions from those of a teacher, in nats.

    Logits are computed in chunks, in float32, and again in the backward pass.

    Args:
        heads: The LM heads of the student and of the teacher, or the identity for both.
        states: The inputs of the student's head, shape (tokens, d).
        targets: The inputs of the teacher's head, shape (tokens, d).
    """
    vocabulary = states.shape[-1]
    if isinstance(heads[0], torch.nn.Linear):
        vocabulary = heads[0].out_features
    chunk = max(CHUNK_LOGITS // vocabulary, 1)
    return _mean_of_chunks(partial(_summed_divergence, *heads), states, targets, chunk)


def _mean_of_chunks(
    summed: Callable[[Tensor, Tensor], Tensor],
    states: Tensor,
    targets: Tensor,
    size: int,
) -> Tensor:
    total = states.new_zeros((), dtype=torch.promote_types(states.dtype, torch.float32))
    for parts in zip(torch.split(states, size), torch.split(targets, size), strict=True):
        total = total + checkpoint(summed, *parts, use_reentrant=False)
    return total / max(len(states), 1)


def _summed_divergence(
    head: torch.nn.Module,
    teacher_head: torch.nn.Module,
    states: Tensor,
    targets: Tensor,
) -> Tensor:
    with torch.no_grad():
        expected = teacher_head(targets).float().log_softmax(-1)
    predicted = head(states).float().log_softmax(-1)
    return functional.kl_div(predicted, expected, reduction="sum", log_target=True)


def _summed_loss(head: torch.nn.Linear, states: Tensor, labels: Tensor) -> Tensor:
    logits = head(states)
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(exact, labels, reduction="sum")


def disable_dropout(model: torch.nn.Module) -> None:
    """Set all dropout rates of a model to 0.

    `model.eval()` would also disable gradient checkpointing.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            # Rates of functional dropout and of layer drop.
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def checkpoint_layers(model: Any) -> bool:
    """Enable gradient checkpointing; return False if the model does not support it."""
    if not model.supports_gradient_checkpointing:
        return False
    arguments = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):  # the newer name
        model.activation_checkpointing_enable(arguments)
    else:
        model.gradient_checkpointing_enable(arguments)
    return True
