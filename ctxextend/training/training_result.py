"""The result of a training run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ctxextend.json_output import not_in_json


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 step, 2,000 steps."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


class TrainingInterrupted(KeyboardInterrupt):
    """A training run was stopped by Ctrl-C or another signal, and saved.

    Attributes:
        signal: The signal's number.
        step: The step of the save.
        folder: The folder that holds the save.
    """

    def __init__(self, signal: int, step: int, folder: Path) -> None:
        super().__init__(f"stopped after step {step}, which is saved in {folder}")
        self.signal = signal
        self.step = step
        self.folder = folder


@dataclass(frozen=True)
class TrainResult:
    """A training run that finished.

    Attributes:
        output: The folder that was written.
        source: The checkpoint that was trained, as the user named it.
        objective: ``causal``, ``masked`` or ``distilled``.
        trainable: ``new``, ``positions`` or ``all``.
        parameters: Number of trainable values.
        steps: Optimizer steps.
        batch_size: Sequences of a step, over all devices.
        micro_batch: Sequences that a device held at a time.
        devices: Number of devices.
        seq_len: Positions that a sequence could use.
        window: Tokens of a sequence.
        lr: Peak learning rate.
        tokens: Tokens trained on.
        loss_before: Loss on held-out text before the first step: nats per token, or the error of a distilled encoder.
        loss_after: The same after the last step.
        seconds: Wall clock of steps and evaluations, those before an interruption included.
        peak_bytes: Peak memory of a process, or of its accelerator if it has one; None if unknown.
        precision: Precision of the arithmetic.
        notes: How the source was understood.
        log: What was logged, a mapping for each step or evaluation.
        is_first: Whether this process wrote the output; one of several does.
        warnings: What the user should know.
    """

    output: Path
    source: str
    objective: str
    trainable: str
    parameters: int
    steps: int
    batch_size: int
    micro_batch: int
    devices: int
    seq_len: int
    window: int
    lr: float
    tokens: int
    loss_before: float
    loss_after: float
    seconds: float
    peak_bytes: int | None
    precision: str
    notes: tuple[str, ...] = ()
    log: tuple[Mapping[str, Any], ...] = field(default=(), metadata=not_in_json)
    is_first: bool = field(default=True, metadata=not_in_json)
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)

    json_properties: ClassVar = ("tokens_per_second",)

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on per second, without the time of evaluations."""
        evaluating = sum(line.get("eval_runtime", 0.0) for line in self.log)
        return self.tokens / (self.seconds - evaluating) if self.seconds > evaluating else math.nan
