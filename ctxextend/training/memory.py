"""What the devices of a training hold at once: micro-batches, few logits, and activations that are computed again."""

import os
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ctxextend.errors import TrainingError
from ctxextend.models.devices import open_device
from ctxextend.recipe import Train
from ctxextend.training.train_data import IGNORE_INDEX

try:
    from accelerate import PartialState
except ImportError as error:
    raise TrainingError(
        "Training stands on accelerate, which is not installed.", "pip install 'ctxextend[train]'"
    ) from error

# Launchers' flags for ways to shard a model over devices, which a position table does not need.
SHARDED = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}
# Tokens of a micro-batch, at most: more are not faster.
CPU_TOKENS, ACCELERATOR_TOKENS = 4096, 16_384
# Logits that are held at once: 64 MiB of float32, 333 tokens of GPT-2's vocabulary of 50,257.
LOGITS_AT_ONCE = 2**24
# The activation functions of transformers that are written as several operations.
COMPOSED = (
    *("NewGELUActivation", "FastGELUActivation", "QuickGELUActivation", "AccurateGELUActivation"),
    *("ClippedGELUActivation", "ReLUSquaredActivation", "LaplaceActivation"),
)


def open_devices(device: str | None = None) -> PartialState:
    """Return the state of this process among those that torchrun or accelerate started to train together."""
    for name, what in SHARDED.items():
        if os.environ.get(name, "").lower() in ("1", "true", "yes"):
            raise TrainingError(
                f"{what} shards a model over devices, and each must hold it whole here.",
                "Launch with torchrun, or with accelerate's MULTI_GPU or MULTI_CPU.",
            )
    wanted = open_device(device)
    if wanted.index:  # transformers' Trainer takes the first
        how = f"Set CUDA_VISIBLE_DEVICES={wanted.index}, and use --device {wanted.type}."
        raise TrainingError(f"--device {device}: training runs on the first device that it sees.", how)
    return PartialState(cpu=wanted.type == "cpu")


def micro_batch_sizes(devices: PartialState, settings: Train, length: int) -> list[int]:
    """Return how many sequences of `length` tokens a device may hold at a time, the largest first."""
    count, size = devices.num_processes, settings.per_device_batch_size
    if settings.batch_size % (count * (size or 1)):
        among = f" in micro-batches of {size}" if size else ""
        raise TrainingError(
            f"--batch-size {settings.batch_size} cannot be shared by {count} devices{among}.",
            f"Make it a multiple of {count * (size or 1)}"
            + (", or leave --per-device-batch-size out." if size else "."),
        )
    if size:
        return [size]
    each, maximum = settings.batch_size // count, CPU_TOKENS if devices.device.type == "cpu" else ACCELERATOR_TOKENS
    return [size for size in range(each, 0, -1) if each % size == 0 and (size == 1 or size * length <= maximum)]


def chunked_loss(head: torch.nn.Linear, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of a language model's head in nats, with few logits in memory at a time.

    `states` before the head have shape (..., hidden_size), `labels` shape (...). In half precision torch's own loss
    would round, so there the chunks are cross entropies in float32, whose logits are computed again to go backward.
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
    """Set all dropout rates of a model to 0; `model.eval()` would disable gradient checkpointing too."""
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
    """Compute activation functions again in the backward pass: GPT-2's GELU keeps four tensors of its input's size."""
    for module in model.modules():
        if type(module).__name__ in COMPOSED:
            module.forward = partial(checkpoint, type(module).forward, module, use_reentrant=False)
