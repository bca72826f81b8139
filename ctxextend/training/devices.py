"""The processes that train together, as torchrun or accelerate started them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from ctxextend.errors import TrainingError
from ctxextend.recipe import Train

try:
    from accelerate import PartialState
except ImportError as error:
    raise TrainingError(
        "Training stands on accelerate, which is not installed.", "pip install 'ctxextend[train]'"
    ) from error

__all__ = ["Devices", "first_failed"]

# What accelerate's launcher says of ways to part a model over devices, which a table of positions does not need.
PARTED = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}


def first_failed() -> TrainingError:
    """Return what all processes but the first say where all fail alike."""
    return TrainingError("The first process failed.", "What it said is why.")


@dataclass(frozen=True)
class Devices:
    """This process among those that train.

    Attributes:
        state: accelerate's own view of it.
    """

    state: Any

    @classmethod
    def here(cls) -> "Devices":
        """Return the devices that this process was started for.

        Raises:
            TrainingError: They are to hold a model in parts, or there are several and one process.
        """
        for name, what in PARTED.items():
            if os.environ.get(name, "").lower() in ("1", "true", "yes"):
                raise TrainingError(
                    f"{what} parts a model over devices, and each must hold it whole here.",
                    "Launch with torchrun, or with accelerate's MULTI_GPU or MULTI_CPU.",
                )
        return cls(PartialState(cpu=not torch.accelerator.is_available()))

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.state.num_processes)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return bool(self.state.is_main_process)

    @property
    def is_cpu(self) -> bool:
        """Whether there is no accelerator."""
        return bool(self.state.device.type == "cpu")

    def precision(self, asked: str) -> str:
        """Return the dtype of the arithmetic: on a CPU fp32, on an accelerator bf16 where it has that.

        Raises:
            TrainingError: The device does not train in what is asked for.
        """
        if self.is_cpu:
            if asked == "fp16":
                raise TrainingError("A CPU does not train in fp16.", "Use --precision bf16 or fp32.")
            return "fp32" if asked == "auto" else asked
        if asked != "auto":
            return asked
        return "bf16" if self.state.device.type != "cuda" or torch.cuda.is_bf16_supported() else "fp32"

    def micro_batches(self, settings: Train) -> list[int]:
        """Return how many sequences a device may hold at once: all that it has of a step are a whole multiple.

        Args:
            settings: How it is trained.

        Raises:
            TrainingError: The sequences of a step cannot be shared out so.
        """
        each, odd = divmod(settings.batch_size, self.count)
        if odd:
            raise TrainingError(
                f"--batch-size {settings.batch_size} sequences cannot be shared by {self.count} devices.",
                f"Make it a multiple of {self.count}.",
            )
        if settings.micro_batch is None:
            return [count for count in range(1, each + 1) if each % count == 0]
        if each % settings.micro_batch:
            raise TrainingError(
                f"--micro-batch {settings.micro_batch} does not go into the {each} sequences that a device has of a "
                "step.",
                "Leave --micro-batch out (in a recipe: --set train.micro_batch=null), or make --batch-size a multiple "
                f"of it times {self.count}.",
            )
        return [settings.micro_batch]

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Let the first process run the block before all others do.

        Raises:
            TrainingError: In the others, where the first failed, which says why itself.
        """
        if not self.is_first and not self.told_by_first(0):
            raise first_failed()
        is_done = False
        try:
            yield
            is_done = True
        finally:
            if self.is_first:
                self.told_by_first(int(is_done))

    def told_by_first(self, value: int) -> int:
        """Return in every process what the first one gives."""
        if self.count == 1:
            return value
        told = torch.tensor(value, device=self.state.device)
        distributed.broadcast(told, 0)
        return int(told)
