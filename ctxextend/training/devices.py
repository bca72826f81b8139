"""The processes that torchrun or accelerate started to train together, and what their devices can do."""

import os

import torch

from ctxextend.errors import TrainingError
from ctxextend.recipe import Train

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


def open_devices() -> PartialState:
    """Return the state of this process among those that train.

    Raises:
        TrainingError: The launcher is set to shard the model.
    """
    for name, what in SHARDED.items():
        if os.environ.get(name, "").lower() in ("1", "true", "yes"):
            raise TrainingError(
                f"{what} parts a model over devices, and each must hold it whole here.",
                "Launch with torchrun, or with accelerate's MULTI_GPU or MULTI_CPU.",
            )
    return PartialState(cpu=not torch.accelerator.is_available())


def choose_precision(devices: PartialState, precision: str) -> str:
    """Return the precision of arithmetic; ``auto`` is fp32 on a CPU, and bf16 on an accelerator that has it.

    Raises:
        TrainingError: The device cannot train in the precision.
    """
    kind = devices.device.type
    if kind == "cpu" and precision == "fp16":
        raise TrainingError("A CPU does not train in fp16.", "Use --precision bf16 or fp32.")
    if precision != "auto":
        return precision
    has_bfloat = kind != "cpu" and (kind != "cuda" or torch.cuda.is_bf16_supported())
    return "bf16" if has_bfloat else "fp32"


def micro_batch_sizes(devices: PartialState, settings: Train, length: int) -> list[int]:
    """Return how many sequences a device may hold at a time, the largest first.

    Args:
        devices: The processes that train.
        settings: The batch size of a step, and perhaps the micro-batch size.
        length: Tokens of a sequence.

    Raises:
        TrainingError: The sequences of a step cannot be divided so.
    """
    count = devices.num_processes
    each, rest = divmod(settings.batch_size, count)
    if rest:
        raise TrainingError(
            f"--batch-size {settings.batch_size} sequences cannot be shared by {count} devices.",
            f"Make it a multiple of {count}.",
        )
    if settings.micro_batch is None:
        most = CPU_TOKENS if devices.device.type == "cpu" else ACCELERATOR_TOKENS
        return [size for size in range(each, 0, -1) if each % size == 0 and (size == 1 or size * length <= most)]
    if each % settings.micro_batch:
        raise TrainingError(
            f"--micro-batch {settings.micro_batch} does not go into the {each} sequences that a device has of a step.",
            "Leave --micro-batch out (in a recipe: --set train.micro_batch=null), or make --batch-size a multiple "
            f"of it times {count}.",
        )
    return [settings.micro_batch]
