"""Devices of a training run: which there are, how a batch is split, and how a model is sharded."""

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from ctxextend.errors import TrainingError, install_command
from ctxextend.models.devices import open_device
from ctxextend.settings import Train
from ctxextend.training.training_source import refuse_one_process

try:
    from accelerate import PartialState
except ImportError as error:
    message = "Training requires accelerate, which is not installed."
    raise TrainingError(message, install_command("accelerate")) from error

# Sharding by launchers, by the variable that they set.
LAUNCHED_SHARDING = {
    "ACCELERATE_USE_FSDP": "accelerate's FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
}
# Maximum tokens per micro-batch: larger ones are not faster.
CPU_TOKENS = 4096
ACCELERATOR_TOKENS = 16_384


def open_devices(device: str | None = None, *, fsdp: bool = False) -> PartialState:
    """Return accelerate's state of this process, maybe one of several.

    They are started by torchrun or `accelerate launch`.

    Raises:
        TrainingError: A launcher shards the model, the device is not the first visible one, or
            there is only one process to shard a model across.
        ResizeError: The device does not exist.
    """
    for name, sharding in LAUNCHED_SHARDING.items():
        if os.environ.get(name, "").lower() in ("1", "true", "yes"):
            hint = (
                "Launch with torchrun, or with accelerate's MULTI_GPU or MULTI_CPU; shard the "
                "model with --fsdp."
            )
            raise TrainingError(f"{sharding} is not supported.", hint)
    requested = open_device(device)
    if requested.index:  # transformers' Trainer uses the first
        message = f"--device {device} is not supported: training uses the first visible device."
        hint = f"Set CUDA_VISIBLE_DEVICES={requested.index} and use --device {requested.type}."
        raise TrainingError(message, hint)
    state = PartialState(cpu=requested.type == "cpu")
    if fsdp and state.num_processes == 1:
        refuse_one_process()
    return state


def micro_batch_sizes(devices: PartialState, settings: Train, length: int) -> list[int]:
    """Return the micro-batch sizes to try, largest first, in sequences per device.

    Sequences have `length` tokens.

    Raises:
        TrainingError: The batch cannot be split across the devices.
    """
    count = devices.num_processes
    given = settings.per_device_batch_size
    unit = count * (given or 1)
    if settings.batch_size % unit:
        across = f"{count} devices"
        hint = f"Use a multiple of {unit}."
        if given:
            across = f"{count} devices in micro-batches of {given}"
            hint = f"Use a multiple of {unit}, or remove per_device_batch_size."
        message = f"--batch-size {settings.batch_size} cannot be split across {across}."
        raise TrainingError(message, hint)
    if given:
        return [given]
    share = settings.batch_size // count
    tokens = CPU_TOKENS if devices.device.type == "cpu" else ACCELERATOR_TOKENS
    largest = max(tokens // length, 1)
    return [size for size in range(min(share, largest), 0, -1) if share % size == 0]


def shard(objective: Any, tables: Iterable[str], devices: PartialState) -> None:
    """Shard the parameters of an objective's model, in place, except `tables`.

    Each block is sharded, then all other parameters together.

    Source: Zhao et al. 2023, arXiv:2304.11277, in the second version of torch,
    `torch.distributed.fsdp.fully_shard`.
    """
    mesh = init_device_mesh(devices.device.type, (devices.num_processes,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    whole = {objective.model.get_parameter(name) for name in tables}
    modules = objective.modules()
    blocks = [module for module in modules if isinstance(module, GradientCheckpointingLayer)]
    for module in (*blocks, objective):
        fully_shard(module, mesh=mesh, mp_policy=policy, ignored_params=whole)
    objective.to(devices.device)  # the tables; all others are there
