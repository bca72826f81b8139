"""The training loop: transformers' Trainer with atomic saves, a check for finite losses, and a
clean stop.
"""

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

from ctxextend.checkpoints.atomic_output import SIGNALS, disk_space
from ctxextend.checkpoints.copy import sync
from ctxextend.errors import OutputError, TrainingError, TrainingInterrupted, one_line
from ctxextend.evaluation.eval_model import CAUSAL, ENCODER
from ctxextend.models.devices import peak_memory
from ctxextend.models.load import quiet_transformers
from ctxextend.progress import Progress
from ctxextend.training.memory import checkpoint_layers, shard
from ctxextend.training.setup import TrainingSetup
from ctxextend.training.train_data import IGNORE_INDEX, SequenceDataset
from ctxextend.training.training_run import SAVE, RunFolder, TrainResult

WARMUP = 0.05  # warmup steps of the learning rate, as a share of all steps
STATE, BEST = "state", "best of "  # folder of a saved state; prefix of the best values in it
EVALUATIONS = 4  # default number of evaluations after the initial one
TORCH_WRITER = (
    "PytorchStreamWriter",
    "inline_container",
    "iostream",
)  # in messages of torch if it cannot write
UNFINISHED = "unfinished"  # the folder of a saved state that is being written
# seconds within which signals count as one: a terminal and a launcher both forward a single Ctrl-C
SAME_SIGNAL = 2.0


def run_training(
    setup: TrainingSetup,
    folder: RunFolder,
    progress: Progress,
    notify: Callable[[str], None] = lambda text: None,
) -> TrainResult:
    """Train, resuming from the last saved state if there is one; progress is in tokens, with the
    loss of each step.

    If the first step runs out of memory, it is retried with smaller micro-batches, then with
    gradient checkpointing; the sequences of a step stay the same. A signal raises
    TrainingInterrupted.
    """
    task = setup.task
    if task.settings.fsdp:
        checkpoint_layers(setup.objective.model)
        tables = [
            setup.trainable.names[name]
            for _, name in task.files.tables
            if name in setup.trainable.names
        ]
        shard(setup.objective, tables, task.devices)
    attempts = [(size, False) for size in task.micro_batches] + [(task.micro_batches[-1], True)]
    with quiet_transformers(), StopRequest() as stop, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        for per_device_batch_size, is_checkpointed in attempts:
            if is_checkpointed and not checkpoint_layers(setup.objective.model):
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
                return _result(trainer, callback, per_device_batch_size)
            if (
                trainer.state.global_step > start
                or task.devices.num_processes > 1
                or is_checkpointed
            ):
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
    hint = "Use a smaller --per-device-batch-size, a shorter --seq-len, or --window."
    raise TrainingError(message, hint) from failure


def _train(trainer: "RunTrainer", callback: "RunCallback") -> None:
    folder, setup = trainer.folder, callback.setup
    try:
        trainer.train(resume_from_checkpoint=str(folder.save) if folder.save else None)
        step = trainer.state.global_step
        if step >= setup.task.settings.steps and step not in held_out_losses(
            trainer.state.log_history
        ):
            trainer.evaluate()
    except NotFiniteError:
        step = trainer.state.global_step
        if not step:
            message = f"The loss of {setup.model.name} is NaN or infinite before the first step."
            hint = "Check its table with ctxextend inspect, or train with --precision fp32."
            raise TrainingError(message, hint) from None
        folder.remove([saved for saved in folder.steps if saved > callback.last_finite_step])
        message = f"The loss became NaN or infinite at step {step} of {setup.task.settings.steps}."
        restart = f"Restart with an --lr below {setup.lr:.2g}"
        if folder.save is None:
            raise TrainingError(f"{message} No state was saved.", f"{restart}.") from None
        finish = (
            f"finish at step {folder.step} with the same command and --resume --steps {folder.step}"
        )
        message += f" The state of step {folder.step} is saved in {folder.save}."
        raise TrainingError(message, f"{restart} and --force, or {finish}.") from None


def held_out_losses(log: Iterable[Mapping[str, Any]], name: str = "eval_loss") -> dict[int, float]:
    """Return the held-out losses of a log by step, in order; see `RunTrainer.evaluate` for
    names.
    """
    return {line["step"]: line[name] for line in log if name in line}


def _result(
    trainer: "RunTrainer", callback: "RunCallback", per_device_batch_size: int
) -> TrainResult:
    """Return the result of a finished run, not written yet, and load the weights to write into the
    model.
    """
    setup, task, settings = trainer.setup, trainer.setup.task, trainer.setup.task.settings
    step = trainer.state.global_step
    stop = callback.stop.signal
    log = tuple(trainer.state.log_history)
    if stop is not None and step < settings.steps:
        raise TrainingInterrupted(stop, step, trainer.folder.path)
    losses = held_out_losses(log)
    best = min(losses, key=losses.__getitem__)
    if settings.save == "best" and best != step:
        setup.trainable.load(trainer.best)
    setup.trainable.gather(keep=task.devices.is_main_process)
    saved = best if settings.save == "best" else step
    apart = (held_out_losses(log, f"eval_loss_{name}") for name in ("short", "long"))
    short, long = ((part[0], part[saved]) if {0, saved} <= part.keys() else None for part in apart)
    of_encoder = "contrastive" if settings.contrastive else "distilled"
    return TrainResult(
        output=trainer.folder.path,
        source=task.files.ref.source,
        objective=of_encoder if setup.model.kind == ENCODER else setup.model.kind,
        distill=settings.distill or 0.0,
        trainable=str(settings.trainable),
        lora=settings.lora,
        parameters=setup.trainable.count,
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
        seconds=callback.seconds,
        peak_bytes=trainer.peak(),
        precision=settings.precision,
        short_positions=task.short_positions,
        loss_short=short,
        loss_long=long,
        log=log,
        is_first=task.devices.is_main_process,
    )


def _create_trainer(callback: "RunCallback", per_device_batch_size: int) -> "RunTrainer":
    setup, folder = callback.setup, callback.folder
    settings, devices = setup.task.settings, setup.task.devices
    is_cpu = devices.device.type == "cpu"
    count = settings.steps * settings.batch_size
    # A contrastive objective compares all pairs of a step, and splits them itself.
    vars(setup.objective)["micro_batch_size"] = per_device_batch_size
    micro_batch = (
        settings.batch_size // devices.num_processes
        if settings.contrastive
        else per_device_batch_size
    )
    # Half-precision parameters are computed in their own dtype.
    autocast = settings.precision if setup.model.model.dtype == torch.float32 else "fp32"
    arguments = TrainingArguments(
        output_dir=str(folder.path),
        max_steps=settings.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=settings.batch_size // (micro_batch * devices.num_processes),
        learning_rate=setup.lr,
        weight_decay=settings.weight_decay,
        lr_scheduler_type="cosine",
        warmup_steps=round(WARMUP * settings.steps),  # the first step's rate is 0
        optim="adamw_torch",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps" if folder.keeps_saves else "no",
        save_steps=settings.save_every or max(settings.steps // 10, 1),
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
    arguments._n_gpu = min(
        arguments.n_gpu, 1
    )  # otherwise Trainer would split a micro-batch across them
    sequences = setup.dataset(setup.task.train, setup.sequences, count, shuffled=True)
    try:
        trainer = RunTrainer(callback, arguments, sequences)
    except (
        ImportError,
        RuntimeError,
        ValueError,
    ) as error:  # raised by integrations that are not installed
        if settings.report_to == "none":
            raise
        message = f"--report-to {settings.report_to} is not available: {one_line(error)}"
        raise TrainingError(message, "Install it, or remove --report-to.") from error
    trainer.remove_callback(PrinterCallback)  # it prints to stdout
    return trainer


class NotFiniteError(Exception):
    """A loss is NaN or infinite."""


class RunTrainer(Trainer):
    """A Trainer that reads its data in order, saves only trainable parameters, and saves
    atomically.
    """

    def __init__(
        self, callback: "RunCallback", arguments: TrainingArguments, sequences: SequenceDataset
    ) -> None:
        self.setup, self.folder = callback.setup, callback.folder
        model, held_out = self.setup.objective, self.setup.held_out
        super().__init__(
            model, arguments, train_dataset=sequences, eval_dataset=held_out, callbacks=[callback]
        )
        self.peak = peak_memory(self.setup.task.devices.device)
        self.best: dict[str, torch.Tensor] = {}  # values of the step with the lowest held-out loss
        # Set after Trainer's constructor, which refuses to save the optimizer of such a model.
        self.is_distributed_loading_by_transformers = self.setup.task.settings.fsdp

    @contextmanager
    def _defer_fsdp_gradient_reduction(self) -> Iterator[None]:
        """Defer nothing: until they are reduced, gradients take as much memory as the whole
        model.
        """
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
        """Compute the held-out loss, weighted by tokens (Trainer weights batches equally); keep the
        best weights.
        """
        start_time = time.perf_counter()
        setup = self.setup
        size = self.args.per_device_train_batch_size
        model: Any = self.model
        # sums: see `LanguageModeling.forward`
        data = setup.held_out
        total = 0.0
        tokens = 0
        sums = torch.zeros(2, 2)
        is_whole = setup.task.settings.contrastive  # each process compares all pairs
        size, processes = (len(data), 1) if is_whole else (size, self.accelerator.num_processes)
        indices = range(self.accelerator.process_index % processes, len(data), processes)
        model.eval()
        for start in range(0, -(-len(data) // processes), size):
            # Every process runs a sharded model equally often: the last batch of some counts for
            # nothing.
            chosen = indices[start : start + size]
            batch = self._prepare_inputs(default_collate([data[index] for index in chosen or [0]]))
            labels = batch.get("labels", batch["input_ids"])[:, int(setup.model.kind == CAUSAL) :]
            count = int((labels != IGNORE_INDEX).sum()) if chosen else 0
            with torch.no_grad():
                result = model(**batch)
            total, tokens = total + float(result["loss"]) * count, tokens + count
            sums = sums + result["sums"].double().cpu() if "sums" in result else sums
        local = (total, tokens, *sums.flatten().tolist())
        total, tokens, *apart = map(sum, zip(*gather_object([local]), strict=True))
        minimum = min(held_out_losses(self.state.log_history).values(), default=math.inf)
        if setup.task.settings.save == "best" and total / tokens < minimum:
            for name, value in setup.trainable.masters.items():
                is_sharded = isinstance(value, DTensor)
                self.best[name] = (
                    value.detach().clone() if is_sharded else value.detach().to("cpu", copy=True)
                )
        metrics = {
            "eval_loss": total / tokens,
            "eval_tokens": tokens,
            "eval_runtime": time.perf_counter() - start_time,
        }
        named = zip(("short", "long"), apart[:2], apart[2:], strict=True)
        metrics |= {f"eval_loss_{name}": nats / count for name, nats, count in named if count}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.folder.saves / UNFINISHED)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save to a temporary folder, and rename it when all of it is on disk."""
        saves = self.folder.saves
        unfinished = self.folder.saves / UNFINISHED
        name = f"{SAVE}{self.state.global_step}"
        if self.is_world_process_zero():
            shutil.rmtree(unfinished, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                for path in (*(unfinished / name).iterdir(), unfinished / name):
                    sync(path)
                if not (saves / name).exists():  # otherwise this step is saved already
                    (unfinished / name).rename(saves / name)
                    sync(saves)
                shutil.rmtree(unfinished, ignore_errors=True)
        except (OSError, RuntimeError, CheckpointException) as failure:
            shutil.rmtree(unfinished, ignore_errors=True)
            error: BaseException = failure
            if isinstance(
                failure, CheckpointException
            ):  # one exception for each process that failed
                error, _ = next(iter(failure.failures.values()))
            is_writer = any(name in str(error) for name in TORCH_WRITER)
            if not (isinstance(error, OSError) or (type(error) is RuntimeError and is_writer)):
                raise
            save = self.folder.save
            previous = (
                f"the previous state, {save}, is complete" if save else "no earlier state exists"
            )
            _, space = disk_space(saves, {SAVE: self.setup.trainable.save_bytes})
            message = (
                f"Saving to {saves} failed ({one_line(error)}); {previous}. A saved state {space}."
            )
            raise OutputError(message, "Free disk space, then resume with --resume.") from failure
        self.accelerator.wait_for_everyone()

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Save nothing here: the optimizer's state contains the parameters, and all others are in
        the source.
        """

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load nothing here: `_load_optimizer_and_scheduler` loads the parameters."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save trainable parameters, their best values and AdamW's state; each process writes a
        part.
        """
        state = self._values()
        optimizer = self._adam
        for name, master in self.setup.trainable.masters.items():
            state |= {f"{key} of {name}": value for key, value in optimizer.state[master].items()}
        save(state, checkpoint_id=Path(output_dir) / STATE)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        """Load what was saved, by any number of processes."""
        if checkpoint_folder is None:
            return
        optimizer = self._adam
        trainable = self.setup.trainable
        path = Path(checkpoint_folder) / STATE
        saved = FileSystemReader(path).read_metadata().state_dict_metadata
        if any(name.startswith(BEST) for name in saved):
            self.best = {name: value.detach().clone() for name, value in trainable.masters.items()}
        state = self._values()
        for name, master in trainable.masters.items():
            zeros = {key: torch.zeros_like(master) for key in ("exp_avg", "exp_avg_sq")} | {
                "step": torch.zeros(())
            }
            optimizer.state[master] = zeros
            state |= {f"{key} of {name}": value for key, value in zeros.items()}
        load({name: value for name, value in state.items() if name in saved}, checkpoint_id=path)
        trainable.load(trainable.masters)
        # The schedule depends on the step only, and not on the planned steps of the interrupted
        # run.
        scheduler: Any = self.lr_scheduler
        step = self.folder.step
        scheduler.load_state_dict(
            {**scheduler.state_dict(), "last_epoch": step - 1, "_step_count": step}
        )
        scheduler.step()

    def _values(self) -> dict[str, torch.Tensor]:
        """Return the values of parameters by their names in a saved state."""
        return self.setup.trainable.masters | {
            f"{BEST}{name}": value for name, value in self.best.items()
        }


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
        # removed if it becomes NaN.
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
        *_, self._held_out = math.nan, *held_out_losses(state.log_history).values()

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        """Report the loss of a step; abort if it is not finite."""
        state.log_history[-1]["seconds"] = round(self.seconds, 3)
        logs = logs or {}
        step = state.global_step
        task = self.setup.task
        self._held_out = logs.get("eval_loss", self._held_out)
        if "loss" in logs:
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
                self.folder.remove(self.folder.steps[1:])

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
