"""The training loop: transformers' Trainer with atomic saves, finite losses and a clean stop."""

import math
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object, release_memory
from accelerate.utils.memory import should_reduce_batch_size
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
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
from ctxextend.training.parallel import shard
from ctxextend.training.run import TrainingRun
from ctxextend.training.train_data import IGNORE_INDEX, NumberedItems
from ctxextend.training.train_result import TrainResult
from ctxextend.training.training_run import SAVE

WARMUP = 0.05  # warmup steps of the learning rate, as a share of all steps
STATE = "state"  # folder of a saved state
BEST = "best of "  # prefix of the best values in it
ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names in a saved state
SAVES = 10  # default number of saved states
EVALUATIONS = 4  # default number of evaluations after the initial one
UNFINISHED = "unfinished"  # the folder of a saved state that is being written
# Seconds within which signals count as one: a terminal and a launcher both forward a single Ctrl-C.
SAME_SIGNAL = 2.0
# Parts of the held-out loss of language models: at the positions that the base has, and others.
LOSS_PARTS = ("short", "long")
# Of held-out sequences: their nats, then their tokens, by part of `LOSS_PARTS`; (sequences, 2, 2).
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
    if run.settings.fsdp:
        checkpoint_layers(objective.model)
        names = run.trainable.names
        tables = [names[table.name] for table in run.files.tables if table.name in names]
        shard(objective, tables, run.devices)
    attempts = [(size, False) for size in run.micro_batches]
    attempts.append((run.micro_batches[-1], True))
    with quiet_transformers(), StopRequest() as stop, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
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
            is_first_step = trainer.state.global_step <= start
            if is_checkpointed or not is_first_step or run.devices.num_processes > 1:
                break
            notify(f"Out of memory with micro-batch {micro_batch}: retrying with less memory.")
            objective.zero_grad()
            release_memory(trainer)
    message = (
        f"Out of memory with micro-batch {micro_batch} and sequences of {run.length:,} tokens."
    )
    hint = "Use a smaller per_device_batch_size, a shorter --seq-len, or --window."
    raise TrainingError(message, hint) from failure


def held_out_losses(log: Iterable[Mapping[str, Any]], name: str = "eval_loss") -> dict[int, float]:
    """Return the held-out losses of a log by step, in order.

    See `RunTrainer.evaluate` for names.
    """
    return {line["step"]: line[name] for line in log if name in line}


def read_held_out(objective: Any, items: NumberedItems, batches: Iterable[Sequence[int]]) -> Sums:
    """Return the losses of batches of held-out items, which are given by their numbers.

    Of models without positions of two kinds, all tokens count as those at long positions.

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
        if "sums" in result:
            sums.append(result["sums"].double().cpu().numpy())
        else:
            tokens = int((batch["input_ids"] != IGNORE_INDEX).sum())
            sums.append(np.array([[0, float(result["loss"]) * tokens], [0, tokens]]))
    return np.array(sums)


def _training_arguments(run: TrainingRun, micro_batch: int) -> TrainingArguments:
    settings = run.settings
    devices = run.devices
    is_cpu = devices.device.type == "cpu"
    if settings.contrastive:
        # The objective compares all pairs of a step, and splits them itself.
        micro_batch = settings.batch_size // devices.num_processes
    # Half-precision parameters are computed in their own dtype.
    autocast = settings.precision if run.model.model.dtype == torch.float32 else "fp32"
    arguments = TrainingArguments(
        output_dir=str(run.folder.path),
        max_steps=settings.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=settings.batch_size // (micro_batch * devices.num_processes),
        learning_rate=run.lr,
        weight_decay=settings.weight_decay,
        # In windows, a table ends with a lower loss after a linear schedule than after a cosine.
        lr_scheduler_type="linear" if run.distils_table else "cosine",
        warmup_steps=round(WARMUP * settings.steps),  # the first step's rate is 0
        optim="adamw_torch",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps" if run.folder.keeps_saves else "no",
        save_steps=settings.save_every or max(settings.steps // SAVES, 1),
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
        ddp_backend="gloo" if is_cpu and devices.num_processes > 1 else None,
        ddp_find_unused_parameters=settings.trains_weights,
        dataloader_pin_memory=not is_cpu,
    )
    # Otherwise the precision of accelerate's launcher would take precedence.
    arguments.mixed_precision = "no" if autocast == "fp32" else autocast
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
        # The last step whose weights are known to give a finite loss; later saved states are
        # removed if the loss becomes NaN.
        self.last_finite_step = min(run.folder.steps, default=0)
        self._start_time = 0.0
        self._reported = 0  # steps
        self._held_out = math.nan
        self.peak = peak_memory(run.devices.device)
        self.best: dict[str, Tensor] = {}  # values of the step with the lowest held-out loss
        self.sums: dict[int, Sums] = {}  # by step; none of before the run was resumed
        # Set after Trainer's constructor, which refuses to save the optimizer of such a model.
        self.is_distributed_loading_by_transformers = run.settings.fsdp

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
            folder.remove_saves([step for step in folder.steps if step > self.last_finite_step])
            step = self.state.global_step
            message = f"The loss became NaN or infinite at step {step} of {steps}."
            restart = f"Restart with an --lr below {run.lr:.2g}"
            if step == 0:
                message = f"The loss of {run.model.name} is NaN or infinite before the first step."
                hint = "Check its table with ctxextend inspect, or train with --precision fp32."
            elif folder.save is None:
                message += " No state was saved."
                hint = f"{restart}."
            else:
                message += f" The state of step {folder.step} is saved in {folder.save}."
                finish = f"the same command and --resume --steps {folder.step}"
                hint = f"{restart} and --force, or finish at step {folder.step} with {finish}."
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
        run.trainable.gather(keep=run.devices.is_main_process)
        parts = dict[str, tuple[float, float] | None]()
        for part in LOSS_PARTS:
            of_part = held_out_losses(log, f"eval_loss_{part}")
            is_known = 0 in of_part and saved in of_part
            parts[part] = (of_part[0], of_part[saved]) if is_known else None
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
            devices=run.devices.num_processes,
            sharding="fsdp2" if settings.fsdp else None,
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
            short_positions=run.short_positions,
            loss_short=parts["short"],
            loss_long=parts["long"],
            log=log,
            is_first=run.devices.is_main_process,
        )

    def _improvement(self, saved: int) -> Estimate | None:
        """Return how much lower the held-out loss of a step is, if sequences are to be paired."""
        if not self.run.distils_table or not {0, saved} <= self.sums.keys():
            return None
        before = self.sums[0]
        gained = before[:, 0] - self.sums[saved][:, 0]
        return estimate_ratio(gained.sum(axis=1), before[:, 1].sum(axis=1).astype(np.int64))

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
        folder = self.run.folder
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
        if "loss" in logs:  # computed with the weights of the previous step
            self.last_finite_step = max(self.last_finite_step, step - 1)
            if state.is_world_process_zero:
                folder.remove_saves(folder.steps[1:])

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Stop if a signal arrived during a save: another step may take long."""
        if self.stop.is_requested():
            control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Evaluate and save after the last step; save and stop after a signal."""
        if state.global_step >= state.max_steps:
            control.should_evaluate = True
        elif self.stop.is_requested():
            control.should_training_stop = True
        else:
            return
        control.should_save = self.run.folder.keeps_saves

    @contextmanager
    def _defer_fsdp_gradient_reduction(self) -> Iterator[None]:
        """Defer nothing: gradients would take as much memory as the whole model."""
        yield

    def create_optimizer(self, *arguments: Any) -> torch.optim.Optimizer:
        """Create AdamW, which updates float32 values."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(*arguments)
        if is_new:
            self._adam = optimizer  # accelerate wraps it
            self.run.trainable.attach(optimizer)
        return optimizer

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Compute the held-out loss, weighted by tokens, and keep the best weights.

        Sequences are read one by one, so that the loss is the same for all batch sizes, and that
        of two steps can be paired. The log gets ``eval_loss``, ``eval_tokens`` and
        ``eval_runtime`` and, if the base has fewer positions, ``eval_loss_short`` and
        ``eval_loss_long``.
        """
        run = self.run
        start_time = time.perf_counter()
        count = len(run.held_out)
        batches = [[number] for number in range(count)]
        if run.settings.contrastive:  # all pairs are compared
            batches = [[*range(count)]]
        processes = self.accelerator.num_processes
        own = batches[self.accelerator.process_index :: processes]
        # Every process runs a sharded model equally often: the last batch of some is not used.
        padding = [batches[0]] * (math.ceil(len(batches) / processes) - len(own))
        run.objective.eval()
        read = read_held_out(self.model, run.held_out, own + padding)[: len(own)]
        sums = np.empty((len(batches), 2, 2))
        for first, part in enumerate(gather_object([read])):
            sums[first::processes] = part
        self.sums[self.state.global_step] = sums
        nats, tokens = sums.sum(axis=0)
        loss = float(nats.sum() / tokens.sum())
        metrics = {
            "eval_loss": loss,
            "eval_tokens": float(tokens.sum()),
            "eval_runtime": time.perf_counter() - start_time,
        }
        if run.short_positions is not None and run.model.kind != ENCODER:
            for part, total, number in zip(LOSS_PARTS, nats, tokens, strict=True):
                if number:
                    metrics[f"eval_loss_{part}"] = float(total / number)
        lowest = min(held_out_losses(self.state.log_history).values(), default=math.inf)
        if run.settings.save == "best" and loss < lowest:
            for name, value in run.trainable.masters.items():
                if isinstance(value, DTensor):
                    self.best[name] = value.detach().clone()
                else:
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
        if self.is_world_process_zero():
            shutil.rmtree(unfinished, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                name = f"{SAVE}{self.state.global_step}"
                for path in (*(unfinished / name).iterdir(), unfinished / name):
                    sync(path)
                if not (folder.saves / name).exists():  # else this step is saved already
                    (unfinished / name).rename(folder.saves / name)
                    sync(folder.saves)
                shutil.rmtree(unfinished, ignore_errors=True)
        except (OSError, RuntimeError, CheckpointException) as failure:
            shutil.rmtree(unfinished, ignore_errors=True)
            error: BaseException = failure
            if isinstance(failure, CheckpointException):  # one for each process that failed
                error, _ = next(iter(failure.failures.values()))
            if not isinstance(error, OSError | RuntimeError):
                raise
            previous = "no earlier state exists"
            if folder.save is not None:
                previous = f"the previous state, {folder.save}, is complete"
            _, space = disk_space(folder.saves, {SAVE: self.run.trainable.save_bytes})
            message = (
                f"Saving to {folder.saves} failed ({one_line(error)}); {previous}. A saved state "
                f"{space}."
            )
            hint = "Free disk space, then resume with --resume."
            raise OutputError(message, hint) from failure
        self.accelerator.wait_for_everyone()

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Save nothing here.

        The optimizer's state contains the parameters, and all others are in the source.
        """

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load nothing here: `_load_optimizer_and_scheduler` loads the parameters."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save trainable parameters, their best values and AdamW's state, a part per process."""
        save(self._state(), checkpoint_id=Path(output_dir) / STATE)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        """Load what was saved, by any number of processes."""
        if checkpoint_folder is None:
            return
        masters = self.run.trainable.masters
        path = Path(checkpoint_folder) / STATE
        saved = FileSystemReader(path).read_metadata().state_dict_metadata
        if any(name.startswith(BEST) for name in saved):
            self.best = {name: value.detach().clone() for name, value in masters.items()}
        for master in masters.values():
            zeros = {key: torch.zeros_like(master) for key in ADAM_MOMENTS}
            self._adam.state[master] = zeros | {"step": torch.zeros(())}
        state = self._state()
        load({name: value for name, value in state.items() if name in saved}, checkpoint_id=path)
        self.run.trainable.load(masters)
        # The schedule does not depend on the steps of the interrupted run.
        scheduler: Any = self.lr_scheduler
        scheduler.last_epoch = self.run.folder.step - 1
        scheduler._step_count = self.run.folder.step
        scheduler.step()

    def _state(self) -> dict[str, Tensor]:
        state = dict[str, Tensor]()
        for name, master in self.run.trainable.masters.items():
            state[name] = master
            for key, value in self._adam.state[master].items():
                state[f"{key} of {name}"] = value
        for name, value in self.best.items():
            state[f"{BEST}{name}"] = value
        return state


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

    def is_requested(self) -> bool:
        """Whether any process of the run received a signal: all must stop after the same step."""
        return any(gather_object([self.signal is not None]))
