"""What a training gave."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["TrainResult", "TrainingInterrupted", "counted"]


def counted(number: int, word: str) -> str:
    """Return a number of things in words: 1 step, 2,000 steps."""
    return f"{number:,} {word}{'s' * (number != 1)}"


class TrainingInterrupted(KeyboardInterrupt):
    """A training was stopped by Ctrl-C or another signal, and saved.

    Attributes:
        signal: The signal's number.
        step: The steps that were taken and saved.
        folder: The folder that holds the save.
    """

    def __init__(self, signal: int, step: int, folder: Path) -> None:
        super().__init__(f"stopped after step {step}, which is saved in {folder}")
        self.signal = signal
        self.step = step
        self.folder = folder


@dataclass(frozen=True)
class TrainResult:
    """A training that came to its end.

    Attributes:
        output: The folder that was written.
        source: What was trained, as the user named it.
        objective: ``causal``, ``masked`` or ``distilled``.
        trainable: ``new``, ``positions`` or ``all``.
        parameters: Numbers that were trained.
        steps: Optimizer steps.
        batch_size: Sequences of a step, over all devices.
        micro_batch: Sequences that a device held at once.
        devices: How many there were.
        seq_len: Positions that a sequence reached over.
        window: Tokens of a sequence.
        lr: The highest learning rate.
        tokens: Tokens that were trained on.
        loss_before: The loss on the held-out text before the first step: nats a token, or a distilled encoder's error.
        loss_after: The same behind the last.
        seconds: How long the steps and the measurements took, wall clock, those before a stop included.
        peak_bytes: The most memory that a process held, on the accelerator where there is one; None if unknown.
        precision: The dtype of the arithmetic.
        log: What was logged, a mapping for each step or measurement.
        is_first: Whether this process wrote the output; of several that train together one does.
        warnings: What the user should know.
        notes: What is worth saying.
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
    log: tuple[dict[str, Any], ...]
    is_first: bool = True
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Tokens that were trained on in a second, the time for measurements left out."""
        measuring = sum(line.get("eval_runtime", 0.0) for line in self.log)
        return self.tokens / (self.seconds - measuring) if self.seconds > measuring else math.nan

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, in the words of ``--json``; what is no finite number is null."""
        left_out = ("output", "log", "is_first", "warnings")  # the log is a file of the output
        values = {name: value for name, value in vars(self).items() if name not in left_out}
        values |= {"output": str(self.output), "notes": list(self.notes), "tokens_per_second": self.tokens_per_second}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
