"""transformers' Trainer with saves that are whole or not there, finite losses, and a gentle stop."""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.utils.data import Sampler, SequentialSampler
from transformers import Trainer, TrainerCallback

from ctxextend.checkpoints.atomic_output import disk_space
from ctxextend.errors import OutputError
from ctxextend.training.parameters import Trained
from ctxextend.training.signals import Stop
from ctxextend.training.work import SAVE, Work

__all__ = ["NotFiniteError", "RunTrainer", "Watch", "not_saved"]

WEIGHTS = "trained.safetensors"
# What names torch's writer in errors that are none of their own kind.
TORCH_WRITER = ("PytorchStreamWriter", "inline_container", "iostream")
# The folder of a save that is being written.
UNFINISHED = "unfinished"

# Told the step, and what is logged of it.
Report = Callable[[int, dict[str, float]], None]


class NotFiniteError(Exception):
    """A loss or a gradient is no finite number.

    Attributes:
        step: The step at which it was so; what was learned before it is still there.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"not finite at step {step}")
        self.step = step


class RunTrainer(Trainer):
    """A Trainer that reads its data in order, saves what is trained alone, and never leaves half a save."""

    def __init__(self, *, trained: Trained, work: Work, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.trained = trained
        self.work = work

    def create_optimizer(self, *arguments: Any, **named: Any) -> torch.optim.Optimizer:
        """Make the optimizer, and let it leave alone what is not trained."""
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*arguments, **named)
        if is_new:
            self.trained.hold(optimizer)
        return optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        """Return the order of the data, which is shuffled already: what the n-th sequence is, depends on n alone."""
        return SequentialSampler(train_dataset or self.train_dataset)  # type: ignore[arg-type]

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.work.saves / UNFINISHED)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save under another name, and give it its own when all of it is on the disk; then remove the one before."""
        if not self.work.keeps_saves:
            return
        step, unfinished = self.state.global_step, self.work.saves / UNFINISHED
        if self.is_world_process_zero():
            shutil.rmtree(unfinished, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        with _saving(unfinished, self.work, self.trained):
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                _publish(unfinished / f"{SAVE}{step}", self.work.saves)
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Save the parameters that are trained: all others are the checkpoint's own."""
        folder = Path(output_dir or self._get_output_dir(None))
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().contiguous() for name, value in self.trained.parameters.items()}
        save_file(tensors, folder / WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load what `_save` saved."""
        with torch.no_grad():
            for name, value in load_file(Path(resume_from_checkpoint) / WEIGHTS).items():
                self.trained.parameters[name].copy_(value)


@contextmanager
def _saving(unfinished: Path, work: Work, trained: Trained) -> Iterator[None]:
    """Say what is left where a save fails: torch and safetensors each have an error of their own for a full disk.

    Raises:
        OutputError: The save failed; the one before it is whole.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        is_torch = any(word in str(error) for word in TORCH_WRITER)
        if not isinstance(error, OSError | SafetensorError) and not is_torch:
            raise
        raise not_saved(work, trained, error) from error


def not_saved(work: Work, trained: Trained, error: Exception) -> OutputError:
    """Return what to say where something of a run could not be written."""
    kept = f"the save before it, {work.save}, is whole" if work.save else "there was none before it"
    said, room = " ".join(str(error).split())[:200], disk_space(work.saves, {SAVE: trained.save_bytes})
    return OutputError(
        f"A save in {work.saves} could not be written ({said}); {kept}. A save {room}.",
        "Free some space, then go on with --resume.",
    )


def _publish(save: Path, saves: Path) -> None:
    """Give a finished save its name; the one before it stays until a step has shown that this one is sound."""
    for path in (*save.iterdir(), save):
        _sync(path)
    place = saves / save.name
    if not place.exists():  # else it was saved before: one step has one save
        save.rename(place)
        _sync(saves)
    shutil.rmtree(save.parent, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Watch(TrainerCallback):
    """Writes the log, ends the run where numbers are no longer finite, and stops it when asked to."""

    def __init__(self, trained: Trained, work: Work, stop: Stop, report: Report) -> None:
        self.trained = trained
        self.work = work
        self.stop = stop
        self.report = report
        self._began = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of the clock since the first step, those before a stop included."""
        return time.perf_counter() - self._began

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin the log with what is known of the steps that were taken before."""
        before = [line["seconds"] for line in state.log_history if "seconds" in line]
        self._began = time.perf_counter() - max(before, default=0.0)
        if state.is_world_process_zero:
            self.work.log.write_text("".join(f"{json.dumps(line)}\n" for line in state.log_history), "utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **others: Any) -> None:
        """Write a line of the log; stop where the loss is not finite."""
        if not state.log_history:
            return
        state.log_history[-1]["seconds"] = round(self.seconds, 3)
        if state.is_world_process_zero:
            with self.work.log.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(state.log_history[-1])}\n")
        self.report(state.global_step, logs or {})
        if not all(math.isfinite((logs or {}).get(name, 0.0)) for name in ("loss", "eval_loss")):
            raise NotFiniteError(state.global_step)
        if "loss" in (logs or {}) and state.is_world_process_zero:
            self.work.remove_older()

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Stop where that was asked for while a save was written: a further step may take long."""
        if self.stop.is_wanted():
            control.should_training_stop = True

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Stop before a step that would spoil what was learned; with fp16 the scaler leaves such a step out itself."""
        if args.fp16:
            return
        gradients = [value.grad for value in self.trained.parameters.values() if value.grad is not None]
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            raise NotFiniteError(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Measure and save at the end; save and stop when asked to."""
        if state.global_step >= state.max_steps:
            control.should_evaluate = control.should_save = True
        elif self.stop.is_wanted():
            control.should_save = control.should_training_stop = True
