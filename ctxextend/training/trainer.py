"""The training loop: transformers' Trainer with atomic saves, finite losses and a clean stop."""

import math
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object, release_memory
from accelerate.utils.memory import should_reduce_batch_size
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
from ctxextend.lab.eval_model import CAUSAL, ENCODER
from ctxextend.models.devices import peak_memory
from ctxextend.models.load import quiet_transformers
from ctxextend.progress import Progress
from ctxextend.training.memory import checkpoint_layers
from ctxextend.training.objectives import Contrastive
from ctxextend.training.parallel import shard
from ctxextend.training.sequence_losses import SequenceLosses, read_sequences
from ctxextend.training.setup import TrainingSetup
from ctxextend.training.train_data import IGNORE_INDEX, NumberedItems
from ctxextend.training.train_result import TrainResult
from ctxextend.training.training_run import SAVE, RunFolder

WARMUP = 0.05  # warmup steps of the learning rate, as a share of all steps
STATE = "state"  # folder of a saved state
BEST = "best of "  # prefix of the best values in it
ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names in a saved state
SAVES = 10  # default number of saved states
EVALUATIONS = 4  # default number of evaluations after the initial one
# In messages of torch if it cannot write.
TORCH_WRITER = ("PytorchStreamWriter", "inline_container", "iostream")
UNFINISHED = "unfinished"  # the folder of a saved state that is being written
# Seconds within which signals count as one: a terminal and a launcher both forward a single Ctrl-C.
SAME_SIGNAL = 2.0
# Parts of the held-out loss of language models: at the positions that the base has, and others.
LOSS_PARTS = ("short", "long")


def run_training(
    setup: TrainingSetup,
    folder: RunFolder,
    progress: Progress,
    notify: Callable[[str], None] = lambda text: None,
) -> TrainResult:
    """Train, resuming from the last saved state if there is one.

    If the first step runs out of memory, it is retried with smaller micro-batches, then with
    gradient checkpointing; the sequences of a step stay the same. Progress is in tokens, with the
    loss of each step.

    Raises:
        TrainingInterrupted: A signal arrived; the state is saved.
        TrainingError: Training failed, such as by a loss that is not finite or too little memory.
        OutputError: A state cannot be saved.
    """
    task = setup.task
    model = setup.objective.model
    if task.settings.fsdp:
        checkpoint_layers(model)
        names = setup.trainable.names
        tables = [names[table.name] for table in task.files.tables if table.name in names]
        shard(setup.objective, tables, task.devices)
    attempts = [(size, False) for size in task.micro_batches]
    attempts.append((task.micro_batches[-1], True))
    with quiet_transformers(), StopRequest() as stop, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        for per_device_batch_size, is_checkpointed in attempts:
            if is_checkpointed and not checkpoint_layers(model):
                break
            start = folder.step
            callback = RunCallback(setup, folder, stop, progress)
            trainer = _create_trainer(callback, per_device_batch_size)
            try:
                _train(trainer, callback)
            except Exception as error:
                if not (isinstance(error, MemoryError) or should_reduce_batch_size(error)):
                    raise
                failure = error.with_traceback(None)  # its frames keep tensors in memory
            else:
                return _finish(trainer, callback, per_device_batch_size)
            is_first_step = trainer.state.global_step <= start
            if is_checkpointed or not is_first_step or task.devices.num_processes > 1:
                break
            notify(
                f"Out of memory with micro-batch {per_device_batch_size}: retrying with less "
                "memory."
            )
            setup.objective.zero_grad()
            release_memory(trainer)
    message = (
        f"Out of memory with micro-batch {per_device_batch_size} and sequences of "
        f"{task.length:,} tokens."
    )
    hint = "Use a smaller per_device_batch_size, a shorter --seq-len, or --window."
    raise TrainingError(message, hint) from failure


def _train(trainer: "RunTrainer", callback: "RunCallback") -> None:
    folder = trainer.folder
    setup = trainer.setup
    steps = setup.task.settings.steps
    try:
        resumed = None if folder.save is None else str(folder.save)
        trainer.train(resume_from_checkpoint=resumed)
        step = trainer.state.global_step
        if step >= steps and step not in held_out_losses(trainer.state.log_history):
            trainer.evaluate()
    except NotFiniteError:
        folder.remove_saves([step for step in folder.steps if step > callback.last_finite_step])
        step = trainer.state.global_step
        message = f"The loss became NaN or infinite at step {step} of {steps}."
        restart = f"Restart with an --lr below {setup.lr:.2g}"
        if step == 0:
            message = f"The loss of {setup.model.name} is NaN or infinite before the first step."
            hint = "Check its table with ctxextend inspect, or train with --precision fp32."
        elif folder.save is None:
            message += " No state was saved."
            hint = f"{restart}."
        else:
            message += f" The state of step {folder.step} is saved in {folder.save}."
            finish = f"the same command and --resume --steps {folder.step}"
            hint = f"{restart} and --force, or finish at step {folder.step} with {finish}."
        raise TrainingError(message, hint) from None


def held_out_losses(log: Iterable[Mapping[str, Any]], name: str = "eval_loss") -> dict[int, float]:
    """Return the held-out losses of a log by step, in order.

    See `RunTrainer.evaluate` for names.
    """
    return {line["step"]: line[name] for line in log if name in line}


def _finish(
    trainer: "RunTrainer", callback: "RunCallback", per_device_batch_size: int
) -> TrainResult:
    """Load the weights to write into the model, and return the result, which is not written yet.

    Raises:
        TrainingInterrupted: A signal stopped the run before its last step.
    """
    setup = trainer.setup
    task = setup.task
    settings = task.settings
    step = trainer.state.global_step
    signal_number = callback.stop.signal
    if signal_number is not None and step < settings.steps:
        raise TrainingInterrupted(signal_number, step, trainer.folder.path)
    log = tuple(trainer.state.log_history)
    losses = held_out_losses(log)
    best = min(losses, key=losses.__getitem__)
    saved = best if settings.save == "best" else step
    first = trainer.sequences.get(0)
    kept = trainer.sequences.get(saved)
    improvement = None
    if first is not None and kept is not None:
        improvement = kept.improvement(first)

    if saved != step:
        setup.trainable.load(trainer.best)
    setup.trainable.gather(keep=task.devices.is_main_process)
    objective = setup.model.kind
    if objective == ENCODER:
        objective = "contrastive" if settings.contrastive else "distilled"
    return TrainResult(
        output=trainer.folder.path,
        source=task.files.ref.source,
        objective=objective,
        distill=settings.distill or 0.0,
        trainable=str(settings.trainable),
        lora=settings.lora,
        parameters=setup.trainable.count,
        distils_table=task.distils_table,
        steps=step,
        batch_size=settings.batch_size,
        per_device_batch_size=per_device_batch_size,
        devices=task.devices.num_processes,
        sharding="fsdp2" if settings.fsdp else None,
        seq_len=task.span,
        window=task.length,
        lr=setup.lr,
        tokens=step * settings.batch_size * task.length,
        held_out_sequences=len(setup.held_out),
        held_out_tokens=next(int(line["eval_tokens"]) for line in log if "eval_tokens" in line),
        loss_before=losses[0],
        loss_after=losses[saved],
        loss_last=losses[step],
        loss_best=losses[best],
        best_step=best,
        saved_step=saved,
        improvement=improvement,
        seconds=callback.seconds,
        peak_bytes=trainer.peak(),
        precision=settings.precision,
        threads=torch.get_num_threads(),
        short_positions=task.short_positions,
        loss_short=_before_and_after(log, "short", saved),
        loss_long=_before_and_after(log, "long", saved),
        log=log,
        is_first=task.devices.is_main_process,
    )


def _before_and_after(
    log: Iterable[Mapping[str, Any]], part: str, saved: int
) -> tuple[float, float] | None:
    losses = held_out_losses(log, f"eval_loss_{part}")
    if 0 in losses and saved in losses:
        return losses[0], losses[saved]
    return None


def _create_trainer(callback: "RunCallback", per_device_batch_size: int) -> "RunTrainer":
    setup = callback.setup
    settings = setup.task.settings
    if isinstance(setup.objective, Contrastive):
        setup.objective.micro_batch_size = per_device_batch_size
    arguments = _training_arguments(callback, per_device_batch_size)
    count = settings.steps * settings.batch_size
    items = setup.training_items(count)
    try:
        trainer = RunTrainer(callback, arguments, items)
    except (ImportError, RuntimeError, ValueError) as error:
        # Raised by integrations that are not installed.
        if settings.report_to == "none":
            raise
        message = f"--report-to {settings.report_to} is not available: {one_line(error)}"
        raise TrainingError(message, "Install it, or remove --report-to.") from error
    trainer.remove_callback(PrinterCallback)  # it prints to stdout
    return trainer


def _training_arguments(callback: "RunCallback", per_device_batch_size: int) -> TrainingArguments:
    setup = callback.setup
    folder = callback.folder
    settings = setup.task.settings
    devices = setup.task.devices
    is_cpu = devices.device.type == "cpu"
    micro_batch = per_device_batch_size
    if settings.contrastive:
        # The objective compares all pairs of a step, and splits them itself.
        micro_batch = settings.batch_size // devices.num_processes
    # Half-precision parameters are computed in their own dtype.
    autocast = settings.precision if setup.model.model.dtype == torch.float32 else "fp32"
    arguments = TrainingArguments(
        output_dir=str(folder.path),
        max_steps=settings.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=settings.batch_size // (micro_batch * devices.num_processes),
        learning_rate=setup.lr,
        weight_decay=settings.weight_decay,
        # In windows, a table ends with a lower loss after a linear schedule than after a cosine.
        lr_scheduler_type="linear" if setup.task.distils_table else "cosine",
        warmup_steps=round(WARMUP * settings.steps),  # the first step's rate is 0
        optim="adamw_torch",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps" if folder.keeps_saves else "no",
        save_steps=settings.save_every or max(settings.steps // SAVES, 1),
        eval_strategy="steps",
        eval_steps=settings.eval_every or math.ceil(settings.steps / EVALUATIONS),
        eval_on_start=folder.save is None,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
        use_cpu=is_cpu,
        bf16=autocast == "bf16",
        fp16=autocast == "fp16",
        seed=settings.seed,
        report_to=settings.report_to,
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


class RunTrainer(Trainer):
    """A Trainer that reads its data in order, and saves atomically, only trainable parameters."""

    def __init__(
        self, callback: "RunCallback", arguments: TrainingArguments, items: NumberedItems
    ) -> None:
        self.setup = callback.setup
        self.folder = callback.folder
        super().__init__(
            self.setup.objective,
            arguments,
            train_dataset=items,
            eval_dataset=self.setup.held_out,
            callbacks=[callback],
        )
        self.peak = peak_memory(self.setup.task.devices.device)
        self.best: dict[str, torch.Tensor] = {}  # values of the step with the lowest held-out loss
        # Held-out losses by step, if sequences are paired; none of before the run was resumed.
        self.sequences: dict[int, SequenceLosses] = {}
        # Set after Trainer's constructor, which refuses to save the optimizer of such a model.
        self.is_distributed_loading_by_transformers = self.setup.task.settings.fsdp

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
            self.setup.trainable.attach(optimizer)
        return optimizer

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Compute the held-out loss, weighted by tokens, and keep the best weights.

        Trainer would weight batches equally. The log gets ``eval_loss``, ``eval_tokens`` and
        ``eval_runtime`` and, of language models, ``eval_loss_short`` and ``eval_loss_long``.
        """
        start_time = time.perf_counter()
        if self.setup.task.distils_table:
            totals = self._sums_of_sequences()
        else:
            local = self._held_out_sums()
            totals = tuple(map(sum, zip(*gather_object([local]), strict=True)))
        total, tokens, *sums = totals
        loss = total / tokens
        lowest = min(held_out_losses(self.state.log_history).values(), default=math.inf)
        if self.setup.task.settings.save == "best" and loss < lowest:
            for name, value in self.setup.trainable.masters.items():
                if isinstance(value, DTensor):
                    self.best[name] = value.detach().clone()
                else:
                    self.best[name] = value.detach().to("cpu", copy=True)
        metrics = {
            "eval_loss": loss,
            "eval_tokens": tokens,
            "eval_runtime": time.perf_counter() - start_time,
        }
        for part, nats, count in zip(LOSS_PARTS, sums[:2], sums[2:], strict=True):
            if count:
                metrics[f"eval_loss_{part}"] = nats / count
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _held_out_sums(self) -> tuple[float, ...]:
        """Return the sums of this process: nats and tokens of all held-out tokens, then by part.

        The parts are two sums of nats, then two of tokens; see `LanguageModeling.forward`.
        """
        model: Any = self.model
        data = self.setup.held_out
        total = 0.0
        tokens = 0
        by_part = torch.zeros(2, 2)
        model.eval()
        size = self.args.per_device_train_batch_size
        processes = self.accelerator.num_processes
        if self.setup.task.settings.contrastive:  # each process compares all pairs
            size = len(data)
            processes = 1
        numbers = range(self.accelerator.process_index % processes, len(data), processes)
        for start in range(0, math.ceil(len(data) / processes), size):
            indices = numbers[start : start + size]
            # Every process runs a sharded model equally often: the last batch of some counts for
            # nothing.
            examples = [data[index] for index in indices or [0]]
            batch = self._prepare_inputs(default_collate(examples))
            labels = batch.get("labels", batch["input_ids"])
            if self.setup.model.kind == CAUSAL:
                labels = labels[:, 1:]
            count = int((labels != IGNORE_INDEX).sum()) if indices else 0
            with torch.no_grad():
                result = model(**batch)
            total += float(result["loss"]) * count
            tokens += count
            if "sums" in result:
                by_part = by_part + result["sums"].double().cpu()
        return total, tokens, *by_part.flatten().tolist()

    def _sums_of_sequences(self) -> tuple[float, ...]:
        """Read held-out sequences one by one, and return `_held_out_sums` of all processes.

        Their losses are kept, to be paired.
        """
        model: Any = self.model
        data = self.setup.held_out
        model.eval()
        processes = self.accelerator.num_processes
        numbers = range(self.accelerator.process_index, len(data), processes)
        local = read_sequences(model, data, numbers)
        losses = SequenceLosses.merged(gather_object([local]))
        self.sequences[self.state.global_step] = losses
        nats = losses.nats.sum(axis=0)
        tokens = losses.tokens.sum(axis=0)
        by_part = np.zeros((2, 2))
        if self.setup.model.kind != ENCODER:
            by_part = np.stack([nats, tokens])
        return float(nats.sum()), float(tokens.sum()), *by_part.flatten().tolist()

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.folder.saves / UNFINISHED)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save to a temporary folder, and rename it when all of it is on disk.

        Raises:
            OutputError: The state cannot be written.
        """
        unfinished = self.folder.saves / UNFINISHED
        if self.is_world_process_zero():
            shutil.rmtree(unfinished, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                saves = self.folder.saves
                name = f"{SAVE}{self.state.global_step}"
                for path in (*(unfinished / name).iterdir(), unfinished / name):
                    sync(path)
                if not (saves / name).exists():  # else this step is saved already
                    (unfinished / name).rename(saves / name)
                    sync(saves)
                shutil.rmtree(unfinished, ignore_errors=True)
        except (OSError, RuntimeError, CheckpointException) as failure:
            shutil.rmtree(unfinished, ignore_errors=True)
            error: BaseException = failure
            if isinstance(failure, CheckpointException):  # one for each process that failed
                error, _ = next(iter(failure.failures.values()))
            is_of_torch = any(name in str(error) for name in TORCH_WRITER)
            if not isinstance(error, OSError) and not (type(error) is RuntimeError and is_of_torch):
                raise
            saves = self.folder.saves
            previous = "no earlier state exists"
            if self.folder.save is not None:
                previous = f"the previous state, {self.folder.save}, is complete"
            _, space = disk_space(saves, {SAVE: self.setup.trainable.save_bytes})
            message = (
                f"Saving to {saves} failed ({one_line(error)}); {previous}. A saved state {space}."
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
        state = self._values()
        for name, master in self.setup.trainable.masters.items():
            for key, value in self._adam.state[master].items():
                state[_adam_name(key, name)] = value
        save(state, checkpoint_id=Path(output_dir) / STATE)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        """Load what was saved, by any number of processes."""
        if checkpoint_folder is None:
            return
        masters = self.setup.trainable.masters
        path = Path(checkpoint_folder) / STATE
        saved = FileSystemReader(path).read_metadata().state_dict_metadata
        if any(name.startswith(BEST) for name in saved):
            self.best = {name: value.detach().clone() for name, value in masters.items()}
        state = self._values()
        for name, master in masters.items():
            zeros = {key: torch.zeros_like(master) for key in ADAM_MOMENTS}
            zeros["step"] = torch.zeros(())
            self._adam.state[master] = zeros
            state |= {_adam_name(key, name): value for key, value in zeros.items()}
        load({name: value for name, value in state.items() if name in saved}, checkpoint_id=path)
        self.setup.trainable.load(masters)
        # The schedule does not depend on the steps of the interrupted run.
        scheduler: Any = self.lr_scheduler
        schedule = scheduler.state_dict()
        schedule["last_epoch"] = self.folder.step - 1
        schedule["_step_count"] = self.folder.step
        scheduler.load_state_dict(schedule)
        scheduler.step()

    def _values(self) -> dict[str, torch.Tensor]:
        best = {f"{BEST}{name}": value for name, value in self.best.items()}
        return self.setup.trainable.masters | best


def _adam_name(key: str, parameter: str) -> str:
    return f"{key} of {parameter}"


class RunCallback(TrainerCallback):
    """Reports each step, aborts the run if a loss is not finite, and stops it after a signal."""

    def __init__(
        self, setup: TrainingSetup, folder: RunFolder, stop: "StopRequest", progress: Progress
    ) -> None:
        self.setup = setup
        self.folder = folder
        self.stop = stop
        self.progress = progress
        # The last step whose weights are known to give a finite loss; later saved states are
        # removed if the loss becomes NaN.
        self.last_finite_step = min(folder.steps, default=0)
        self._start_time = 0.0
        self._reported = 0
        self._held_out = math.nan

    @property
    def seconds(self) -> float:
        """Wall clock since the first step, including the time before an interruption."""
        return time.perf_counter() - self._start_time

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Continue the clock of an interrupted run."""
        before = [line["seconds"] for line in state.log_history if "seconds" in line]
        self._start_time = time.perf_counter() - max(before, default=0.0)
        losses = [*held_out_losses(state.log_history).values()]
        self._held_out = losses[-1] if losses else math.nan

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        """Report the loss of a step.

        Raises:
            NotFiniteError: It is NaN or infinite.
        """
        state.log_history[-1]["seconds"] = round(self.seconds, 3)
        logs = logs or {}
        step = state.global_step
        self._held_out = logs.get("eval_loss", self._held_out)
        if "loss" in logs:
            task = self.setup.task
            tokens = task.settings.batch_size * task.length
            steps = task.settings.steps
            label = f"step {step}/{steps}, loss {logs['loss']:.3f}, held-out {self._held_out:.3f}"
            self.progress((step - self._reported) * tokens, steps * tokens, label)
            self._reported = step
        if not all(math.isfinite(logs.get(name, 0.0)) for name in ("loss", "eval_loss")):
            raise NotFiniteError
        if "loss" in logs:  # computed with the weights of the previous step
            self.last_finite_step = max(self.last_finite_step, step - 1)
            if state.is_world_process_zero:
                self.folder.remove_saves(self.folder.steps[1:])

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Stop if a signal arrived during a save: another step may take long."""
        if self.stop.is_requested():
            control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Evaluate and save after the last step; save and stop after a signal."""
        if state.global_step >= state.max_steps:
            control.should_evaluate = True
            control.should_save = self.folder.keeps_saves
        elif self.stop.is_requested():
            control.should_training_stop = True
            control.should_save = self.folder.keeps_saves


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
