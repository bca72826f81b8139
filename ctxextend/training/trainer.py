"""The training loop: transformers' Trainer with atomic saves, finite losses and a clean stop."""

import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate.utils import release_memory
from accelerate.utils.memory import should_reduce_batch_size
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from ctxextend.checkpoint.atomic_output import SIGNALS, disk_space
from ctxextend.checkpoint.copy import sync
from ctxextend.errors import OutputError, TrainingError, TrainingInterrupted, one_line
from ctxextend.lab.eval_model import ENCODER
from ctxextend.lab.statistics import Estimate, estimate_ratio
from ctxextend.models.devices import peak_memory
from ctxextend.models.load import quiet_transformers
from ctxextend.progress import Progress
from ctxextend.training.memory import checkpoint_layers
from ctxextend.training.objectives import Contrastive
from ctxextend.training.run import TrainingRun
from ctxextend.training.train_data import IGNORE_INDEX, NumberedItems
from ctxextend.training.train_result import TrainResult
from ctxextend.training.training_run import SAVE

WARMUP = 0.05  # warmup steps of the learning rate, as a share of all steps
STATE = "trained.pt"  # of a saved state: trainable parameters, and their best values so far
SAVES = 10  # saved states
EVALUATIONS = 4  # default number of evaluations after the initial one
UNFINISHED = "unfinished"  # the folder of a saved state that is being written
# Seconds within which signals count as one: a terminal and a launcher both forward a single Ctrl-C.
SAME_SIGNAL = 2.0
# Of held-out sequences: their nats and their tokens, shape (sequences, 2).
Sums = NDArray[np.float64]


def run_training(
    run: TrainingRun, progress: Progress, notify: Callable[[str], None] = lambda text: None
) -> TrainResult:
    """Train, resuming from the last saved state if there is one.

    If the first step runs out of memory, it is retried with smaller micro-batches, then with
    gradient checkpointing; the sequences of a step stay the same. Progress is in tokens, with the
    loss of each step.

    Returns:
        The result; its output is not written yet, and the model has the weights to write.

    Raises:
        TrainingInterrupted: A signal arrived; the state is saved.
        TrainingError: Training failed, such as by a loss that is not finite or too little memory.
        OutputError: A state cannot be saved.
    """
    objective: Any = run.objective
    attempts = [(size, False) for size in run.micro_batches]
    attempts.append((run.micro_batches[-1], True))
    with quiet_transformers(), StopRequest() as stop:
        for micro_batch, is_checkpointed in attempts:
            if is_checkpointed and not checkpoint_layers(objective.model):
                break
            start = run.folder.step
            trainer = RunTrainer(run, stop, progress, micro_batch)
            try:
                trainer.fit()
            except Exception as error:
                if not (isinstance(error, MemoryError) or should_reduce_batch_size(error)):
                    raise
                failure = error.with_traceback(None)  # its frames keep tensors in memory
            else:
                return trainer.finish()
            if is_checkpointed or trainer.state.global_step > start:
                break
            notify(f"Out of memory with micro-batch {micro_batch}: retrying with less memory.")
            objective.zero_grad()
            release_memory(trainer)
    message = (
        f"Out of memory with micro-batch {micro_batch} and sequences of {run.length:,} tokens."
    )
    hint = "Use a smaller per_device_batch_size, a shorter --seq-len, or --window."
    raise TrainingError(message, hint) from failure


def held_out_losses(log: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the held-out losses of a log by step, in order."""
    return {line["step"]: line["eval_loss"] for line in log if "eval_loss" in line}


def read_held_out(objective: Any, items: NumberedItems, batches: Iterable[Sequence[int]]) -> Sums:
    """Return the losses of batches of held-out items, which are given by their numbers.

    Args:
        objective: In evaluation mode.
        items: The sequences or pairs.
        batches: The numbers of the items to read at once; several have one loss.
    """
    device = objective.model.device
    sums = []
    for numbers in batches:
        batch = {}
        for name, value in default_collate([items[number] for number in numbers]).items():
            batch[name] = value.to(device)
        with torch.no_grad():
            result = objective(**batch)
        tokens = int(result.get("tokens", (batch["input_ids"] != IGNORE_INDEX).sum()))
        sums.append([float(result["loss"]) * tokens, tokens])
    return np.array(sums)


def _training_arguments(run: TrainingRun, micro_batch: int) -> TrainingArguments:
    settings = run.settings
    is_cpu = run.device.type == "cpu"
    if settings.contrastive:
        # The objective compares all pairs of a step, and splits them itself.
        micro_batch = settings.batch_size
    # Half-precision parameters are computed in their own dtype.
    autocast = settings.precision if run.model.model.dtype == torch.float32 else "fp32"
    arguments = TrainingArguments(
        output_dir=str(run.folder.path),
        max_steps=settings.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=settings.batch_size // micro_batch,
        learning_rate=run.lr,
        weight_decay=settings.weight_decay,
        # In windows, a table ends with a lower loss after a linear schedule than after a cosine.
        lr_scheduler_type="linear" if run.distils_table else "cosine",
        warmup_steps=round(WARMUP * settings.steps),  # the first step's rate is 0
        optim="adamw_torch",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps" if run.folder.keeps_saves else "no",
        save_steps=max(settings.steps // SAVES, 1),
        eval_strategy="steps",
        eval_steps=settings.eval_every or math.ceil(settings.steps / EVALUATIONS),
        eval_on_start=run.folder.save is None,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
        use_cpu=is_cpu,
        bf16=autocast == "bf16",
        fp16=autocast == "fp16",
        seed=settings.seed,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=not is_cpu,
    )
    # Otherwise Trainer would split a micro-batch across several GPUs.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


class NotFiniteError(Exception):
    """A loss is NaN or infinite."""


class RunTrainer(Trainer, TrainerCallback):
    """A Trainer that reads its data in order, and saves atomically, only trainable parameters.

    It is its own callback: it reports each step, and stops after a signal or a loss that is not
    finite.
    """

    def __init__(
        self, run: TrainingRun, stop: "StopRequest", progress: Progress, micro_batch: int
    ) -> None:
        """Prepare an attempt to train in micro-batches of a size.

        Raises:
            DataError: There are too few documents or pairs.
        """
        self.run = run
        self.stop = stop
        self.progress = progress
        self.micro_batch = micro_batch
        if isinstance(run.objective, Contrastive):
            run.objective.micro_batch_size = micro_batch
        super().__init__(
            run.objective,
            _training_arguments(run, micro_batch),
            train_dataset=run.training_items(run.settings.steps * run.settings.batch_size),
            eval_dataset=run.held_out,
            callbacks=[self],
        )
        self.remove_callback(PrinterCallback)  # it prints to stdout
        self._start_time = 0.0
        self._reported = 0  # steps
        self._held_out = math.nan
        self.peak = peak_memory(run.device)
        self.best: dict[str, Tensor] = {}  # values of the step with the lowest held-out loss
        self.sums: dict[int, Sums] = {}  # by step; none of before the run was resumed

    def fit(self) -> None:
        """Train to the last step, or until a signal arrives.

        Raises:
            TrainingError: The loss is not finite.
            OutputError: A state cannot be saved.
        """
        run = self.run
        folder = run.folder
        steps = run.settings.steps
        try:
            self.train(resume_from_checkpoint=None if folder.save is None else str(folder.save))
            step = self.state.global_step
            if step >= steps and step not in held_out_losses(self.state.log_history):
                self.evaluate()
        except NotFiniteError:
            step = self.state.global_step
            message = f"The loss became NaN or infinite at step {step} of {steps}."
            hint = f"Restart with --force and an --lr below {run.lr:.2g}."
            if step == 0:
                message = f"The loss of {run.model.name} is NaN or infinite before the first step."
                hint = "Check its table with ctxextend inspect, or train with --precision fp32."
            raise TrainingError(message, hint) from None

    def finish(self) -> TrainResult:
        """Load the weights to write into the model, and return the result.

        Raises:
            TrainingInterrupted: A signal stopped the run before its last step.
        """
        run = self.run
        settings = run.settings
        step = self.state.global_step
        signal_number = self.stop.signal
        if signal_number is not None and step < settings.steps:
            raise TrainingInterrupted(signal_number, step, run.folder.path)
        log = tuple(self.state.log_history)
        losses = held_out_losses(log)
        best = min(losses, key=losses.__getitem__)
        saved = best if settings.save == "best" else step
        if saved != step:
            run.trainable.load(self.best)
        objective = run.model.kind
        if objective == ENCODER:
            objective = "contrastive" if settings.contrastive else "distilled"
        return TrainResult(
            output=run.folder.path,
            source=run.files.ref.source,
            objective=objective,
            distill=settings.distill or 0.0,
            trainable=str(settings.trainable),
            lora=settings.lora,
            parameters=run.trainable.count,
            distils_table=run.distils_table,
            steps=step,
            batch_size=settings.batch_size,
            per_device_batch_size=self.micro_batch,
            seq_len=run.span,
            window=run.length,
            lr=run.lr,
            tokens=step * settings.batch_size * run.length,
            held_out_sequences=len(run.held_out),
            held_out_tokens=next(int(line["eval_tokens"]) for line in log if "eval_tokens" in line),
            loss_before=losses[0],
            loss_after=losses[saved],
            loss_last=losses[step],
            loss_best=losses[best],
            best_step=best,
            saved_step=saved,
            improvement=self._improvement(saved),
            seconds=time.perf_counter() - self._start_time,
            peak_bytes=self.peak(),
            precision=settings.precision,
            threads=torch.get_num_threads(),
            log=log,
        )

    def _improvement(self, saved: int) -> Estimate | None:
        """Return how much lower the held-out loss of a step is, if sequences are to be paired."""
        if not self.run.distils_table or not {0, saved} <= self.sums.keys():
            return None
        before, tokens = self.sums[0].T
        return estimate_ratio(before - self.sums[saved][:, 0], tokens.astype(np.int64))

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Start the clock, or continue that of an interrupted run."""
        before = [line["seconds"] for line in state.log_history if "seconds" in line]
        self._start_time = time.perf_counter() - max(before, default=0.0)
        for loss in held_out_losses(state.log_history).values():
            self._held_out = loss

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Report the loss of a step.

        Raises:
            NotFiniteError: It is NaN or infinite.
        """
        state.log_history[-1]["seconds"] = round(time.perf_counter() - self._start_time, 3)
        self._held_out = logs.get("eval_loss", self._held_out)
        step = state.global_step
        settings = self.run.settings
        if "loss" in logs:
            label = f"step {step}/{settings.steps}"
            if not settings.distill:  # else it is another quantity than the held-out loss
                label += f", loss {logs['loss']:.3f}"
            label += f", held-out {self._held_out:.3f}"
            tokens = settings.batch_size * self.run.length
            self.progress((step - self._reported) * tokens, settings.steps * tokens, label)
            self._reported = step
        if not all(math.isfinite(logs.get(name, 0.0)) for name in ("loss", "eval_loss")):
            raise NotFiniteError

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Stop if a signal arrived during a save: another step may take long."""
        if self.stop.signal is not None:
            control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Evaluate and save after the last step; save and stop after a signal."""
        if state.global_step >= state.max_steps:
            control.should_evaluate = True
        elif self.stop.signal is not None:
            control.should_training_stop = True
        else:
            return
        control.should_save = self.run.folder.keeps_saves

    def create_optimizer(self, *arguments: Any) -> torch.optim.Optimizer:
        """Create AdamW, which updates float32 values."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(*arguments)
        if is_new:
            self.run.trainable.attach(optimizer)
        return optimizer

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Compute the held-out loss, weighted by tokens, and keep the best weights.

        Sequences are read one by one, so that the loss is the same for all batch sizes, and that
        of two steps can be paired. The log gets ``eval_loss`` and ``eval_tokens``.
        """
        run = self.run
        count = len(run.held_out)
        batches = [[number] for number in range(count)]
        if run.settings.contrastive:  # all pairs are compared
            batches = [[*range(count)]]
        run.objective.eval()
        sums = read_held_out(self.model, run.held_out, batches)
        self.sums[self.state.global_step] = sums
        nats, tokens = sums.sum(axis=0)
        loss = float(nats / tokens)
        metrics = {"eval_loss": loss, "eval_tokens": float(tokens)}
        lowest = min(held_out_losses(self.state.log_history).values(), default=math.inf)
        if run.settings.save == "best" and loss < lowest:
            for name, value in run.trainable.masters.items():
                self.best[name] = value.detach().to("cpu", copy=True)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.run.folder.saves / UNFINISHED)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save to a temporary folder, and rename it when all of it is on disk.

        Raises:
            OutputError: The state cannot be written.
        """
        folder = self.run.folder
        unfinished = folder.saves / UNFINISHED
        name = f"{SAVE}{self.state.global_step}"
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            super()._save_checkpoint(model, trial)
            for path in (*(unfinished / name).iterdir(), unfinished / name):
                sync(path)
            if not (folder.saves / name).exists():  # else this step is saved already
                (unfinished / name).rename(folder.saves / name)
                sync(folder.saves)
        except (OSError, RuntimeError) as error:
            previous = "no earlier state exists"
            if folder.save is not None:
                previous = f"the previous state, {folder.save}, is complete"
            shutil.rmtree(unfinished, ignore_errors=True)
            _, space = disk_space(folder.saves, {SAVE: self.run.trainable.save_bytes})
            message = (
                f"Saving to {folder.saves} failed ({one_line(error)}); {previous}. A saved state "
                f"{space}."
            )
            hint = "Free disk space, then resume with --resume."
            raise OutputError(message, hint) from error
        shutil.rmtree(unfinished, ignore_errors=True)
        folder.remove_earlier_saves()

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Save trainable parameters, and their best values; all others are in the source."""
        folder = Path(str(output_dir))
        folder.mkdir(parents=True)
        torch.save({"last": self.run.trainable.masters, "best": self.best}, folder / STATE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load what `_save` saved."""
        state = torch.load(Path(resume_from_checkpoint) / STATE, "cpu", weights_only=True)
        self.best = state["best"]
        self.run.trainable.load(state["last"])


class StopRequest(ExitStack):
    """A request to stop between steps, set by a signal until this context is left."""

    def __init__(self) -> None:
        super().__init__()
        self.signal: int | None = None
        self._received_at = 0.0
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                    self.callback(signal.signal, number, signal.signal(number, self._receive))

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            self._received_at = time.monotonic()
        elif time.monotonic() - self._received_at > SAME_SIGNAL:
            raise KeyboardInterrupt
