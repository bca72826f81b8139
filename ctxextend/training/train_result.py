"""The result of a training run, and of its dry run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctxextend.errors import counted
from ctxextend.json_output import Result, not_in_json
from ctxextend.lab.statistics import Estimate


class Steps:
    """The steps of a training, as text."""

    steps: int  # optimizer steps
    batch_size: int  # sequences per step
    seq_len: int  # positions available to a sequence
    window: int  # tokens per sequence

    @property
    def steps_text(self) -> str:
        """The steps and their sequences, as text."""
        text = counted(self.steps, "step")
        text += f" of {counted(self.batch_size, 'sequence')} of {self.window:,} tokens"
        if self.window < self.seq_len:
            text += f" at random positions below {self.seq_len:,}"
        return text


@dataclass(frozen=True, eq=False, repr=False)
class TrainResult(Steps, Result, shows=("source", "output", "steps", "loss_before", "loss_after")):
    """The result of a finished training run.

    Losses are means of the held-out sequences, which are the same at each evaluation: nats per
    token, or the distillation loss.
    """

    output: Path  # the folder that was written
    source: str  # the reference of the checkpoint, as the user passed it
    objective: str  # ``causal``, ``masked``, ``distilled`` or ``contrastive``
    distill: float  # weight of distillation next to another objective; 0 without
    trainable: str  # one of `TRAINABLE`
    lora: int | None  # rank of adapters, in addition to a table
    parameters: int  # trainable parameters
    steps: int  # optimizer steps
    batch_size: int  # sequences per step
    per_device_batch_size: int  # the micro-batch
    seq_len: int  # positions available to a sequence
    window: int  # tokens per sequence
    lr: float  # peak learning rate
    tokens: int  # trained on
    held_out_sequences: int
    held_out_tokens: int  # predicted in these sequences
    loss_before: float  # before the first step
    loss_after: float  # of the saved weights
    loss_last: float  # after the last step
    loss_best: float  # the lowest measured
    best_step: int  # its step; 0 is before the first step
    saved_step: int  # the step of the saved weights
    # How much lower `loss_after` is than `loss_before`, paired by sequence; None if sequences were
    # not read one by one, as they are where windows train only a table.
    improvement: Estimate | None
    # Wall clock of steps and evaluations, including those before an interruption.
    seconds: float
    # Peak memory of the process, or of its accelerator if it has one; None if unknown.
    peak_bytes: int | None
    precision: str  # of the computation
    threads: int  # of the CPU
    notes: tuple[str, ...] = ()  # how the reference was resolved, skipped files, …
    # Whether windows that the base reads from position 0 on trained only a table: `distill` is then
    # the share of distillation.
    distils_table: bool = field(default=False, metadata=not_in_json)
    # One mapping per logged step or evaluation.
    log: tuple[Mapping[str, Any], ...] = field(default=(), metadata=not_in_json)
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)

    @property
    def has_fallen(self) -> bool:
        """Whether the loss was lower after any step than before the first one."""
        return self.best_step > 0

    @property
    def saves_trained(self) -> bool:
        """Whether the saved weights are trained; else no later ones were better."""
        return self.saved_step > 0


@dataclass(frozen=True, eq=False, repr=False)
class TrainingPlan(Steps, Result, shows=("source", "trainable", "steps")):
    """What a training run would train."""

    output: Path  # the folder that a run would write
    source: str  # the reference of the checkpoint, as the user passed it
    trainable: str  # one of `TRAINABLE`
    lora: int | None  # the rank of adapters, if any
    precision: str  # of the computation
    steps: int  # optimizer steps
    batch_size: int  # sequences per step
    seq_len: int  # positions available to a sequence
    window: int  # tokens per sequence
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)
    dry_run: bool = True
