"""The result of a training run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ctxextend.json_output import not_in_json


class TrainingInterrupted(KeyboardInterrupt):
    """A training run was stopped by a signal, such as Ctrl-C, after `step`, which is saved in `folder`."""

    def __init__(self, signal: int, step: int, folder: Path) -> None:
        super().__init__(f"stopped after step {step}, which is saved in {folder}")
        self.signal, self.step, self.folder = signal, step, folder


@dataclass(frozen=True)
class TrainResult:
    """A training run that finished."""

    output: Path  # the folder that was written
    source: str  # the checkpoint that was trained, as the user named it
    objective: str  # ``causal``, ``masked`` or ``distilled``
    trainable: str  # ``new``, ``positions`` or ``all``
    parameters: int  # number of trainable values
    steps: int  # optimizer steps
    batch_size: int  # sequences of a step, over all devices
    micro_batch: int  # sequences that a device held at a time
    devices: int
    seq_len: int  # positions that a sequence could use
    window: int  # tokens of a sequence
    lr: float  # peak learning rate
    tokens: int  # trained on
    loss_before: float  # on held-out text, before the first step: nats per token, or the error of a distilled encoder
    loss_after: float  # the same after the last step
    seconds: float  # wall clock of steps and evaluations, those before an interruption included
    peak_bytes: int | None  # peak memory of a process, or of its accelerator if it has one; None if unknown
    precision: str  # of the arithmetic
    notes: tuple[str, ...] = ()  # how the source was understood
    # What was logged, a mapping for each step or evaluation.
    log: tuple[Mapping[str, Any], ...] = field(default=(), metadata=not_in_json)
    is_first: bool = field(default=True, metadata=not_in_json)  # whether this process wrote the output
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)  # what the user should know

    json_properties: ClassVar = ("tokens_per_second",)

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on per second, without the time of evaluations."""
        evaluating = sum(line.get("eval_runtime", 0.0) for line in self.log)
        return self.tokens / (self.seconds - evaluating) if self.seconds > evaluating else math.nan
