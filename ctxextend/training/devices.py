"""The processes that train together, as torchrun or accelerate started them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from ctxextend.errors import TrainingError

try:
    from accelerate import PartialState
except ImportError as error:
    raise TrainingError(
        "Training stands on accelerate, which is not installed.", "pip install 'ctxextend[train]'"
    ) from error

__all__ = ["Devices"]

# What accelerate's launcher says of ways to part a model over devices, which a table of positions does not need.
PARTED = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}


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

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Let the first process run the block before all others do.

        Raises:
            TrainingError: In the others, where the first failed, which says why itself.
        """
        if not self.is_first and not self._told_by_first(False):
            raise TrainingError("The first process failed.", "What it said is why.")
        is_done = False
        try:
            yield
            is_done = True
        finally:
            if self.is_first:
                self._told_by_first(is_done)

    def _told_by_first(self, value: bool) -> bool:
        """Return in every process what the first one gives."""
        if self.count == 1:
            return value
        told = torch.tensor(float(value), device=self.state.device)
        distributed.broadcast(told, 0)
        return bool(told)
