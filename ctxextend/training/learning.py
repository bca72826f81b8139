"""A model, its objective and its data, set up to be trained, and trained."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PrinterCallback, TrainingArguments

from ctxextend.evaluation.eval_model import MASKED, EvalModel
from ctxextend.models.load import quiet
from ctxextend.training.devices import Devices
from ctxextend.training.failures import explained
from ctxextend.training.memory import Choice
from ctxextend.training.opening import EVAL_TOKENS, Opened, Texts
from ctxextend.training.parameters import Trained
from ctxextend.training.signals import Stop, heard_between_steps
from ctxextend.training.trainer import RunTrainer, Watch
from ctxextend.training.windows import Cut, Masking, Windows
from ctxextend.training.work import Work

__all__ = ["Learned", "Learner"]

# The share of steps over which the learning rate rises.
WARMUP = 0.05


@dataclass(frozen=True)
class Learned:
    """What the steps gave.

    Attributes:
        log: What was logged, a mapping for each step or measurement.
        step: Steps that were taken.
        seconds: How long they took, wall clock, those before a stop included.
        peak_bytes: The most memory that this process held.
        stopped_by: The signal that ended it early; None where it came to its end.
    """

    log: tuple[Mapping[str, Any], ...]
    step: int
    seconds: float
    peak_bytes: int | None
    stopped_by: int | None


@dataclass(frozen=True)
class Learner:
    """A model that is set up to be trained.

    Attributes:
        opened: What is trained, and how.
        reader: The model, its weights in float32.
        objective: What it is trained to do.
        trained: Which of its parameters are.
        choice: How much is held at once.
        lr: The highest learning rate.
        texts: The text as tokens.
    """

    opened: Opened
    reader: EvalModel
    objective: torch.nn.Module
    trained: Trained
    choice: Choice
    lr: float
    texts: Texts

    @property
    def cut(self) -> Cut:
        """How sequences are cut from the text."""
        opened, reader = self.opened, self.reader
        masking = Masking.of(reader) if reader.kind == MASKED else None
        skip, seed = opened.settings.window_skip, opened.settings.seed
        before, after = reader.tokenizer.before, reader.tokenizer.after
        return Cut(before, after, opened.length, opened.span, reader.kind, masking, skip, seed)

    @property
    def measured(self) -> int:
        """Held-out sequences that the loss is measured on.

        There are so many that every device reads whole batches: of what is left over it would read some twice.
        """
        found, step = len(self.texts.held_out) // self.cut.room, self.opened.settings.batch_size
        most = min(found, max(EVAL_TOKENS // self.cut.length, 1))
        return most - most % step if most >= step else most

    def learn(self, work: Work, devices: Devices, report: Callable[[int, Mapping[str, float]], None]) -> Learned:
        """Take the steps, from the last save on where there is one.

        Args:
            work: Where saves are kept.
            devices: The processes that take part.
            report: Told the step, and what is logged of it.

        Raises:
            TrainingError: A loss is no finite number, memory does not suffice, or what must not change did.
            OutputError: A save cannot be written.
        """
        stop = Stop()
        watch = Watch(self.trained, work, stop, report)
        with quiet():
            trainer = self._trainer(work, devices, watch)
            with heard_between_steps(stop), explained(self, trainer, work):
                trainer.train(resume_from_checkpoint=str(work.save) if work.save else None)
                if stop.signal is None and not _is_measured(trainer.state):
                    trainer.evaluate()
        self.trained.check()
        stopped_by = stop.signal if trainer.state.global_step < self.opened.settings.steps else None
        return Learned(tuple(trainer.state.log_history), trainer.state.global_step, watch.seconds, _peak(), stopped_by)

    def _trainer(self, work: Work, devices: Devices, watch: Watch) -> RunTrainer:
        settings, cut = self.opened.settings, self.cut
        trainer = RunTrainer(
            trained=self.trained,
            work=work,
            model=self.objective,
            args=self._arguments(work, devices),
            train_dataset=Windows(self.texts.train, cut, settings.steps * settings.batch_size, shuffled=True),
            eval_dataset=Windows(self.texts.held_out, cut, self.measured, shuffled=False),
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)  # it prints to stdout
        return trainer

    def _arguments(self, work: Work, devices: Devices) -> TrainingArguments:
        settings = self.opened.settings
        arguments = TrainingArguments(
            output_dir=str(work.folder),
            max_steps=settings.steps,
            per_device_train_batch_size=self.choice.micro_batch,
            per_device_eval_batch_size=self.choice.micro_batch if self.measured >= settings.batch_size else 1,
            gradient_accumulation_steps=settings.batch_size // (self.choice.micro_batch * devices.count),
            learning_rate=self.lr,
            weight_decay=settings.weight_decay,
            lr_scheduler_type="cosine",
            warmup_steps=round(WARMUP * settings.steps),  # at the first of them the rate is 0
            optim="adamw_torch",
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="steps",
            save_steps=settings.save_every or max(settings.steps // 10, 1),
            eval_strategy="steps",
            eval_steps=settings.eval_every or settings.steps,
            eval_on_start=work.save is None,
            prediction_loss_only=True,
            label_names=["input_ids"],
            remove_unused_columns=False,
            use_cpu=devices.is_cpu,
            bf16=settings.precision == "bf16",
            fp16=settings.precision == "fp16",
            seed=settings.seed,
            report_to=settings.report_to,
            disable_tqdm=True,
            ddp_backend="gloo" if devices.is_cpu and devices.count > 1 else None,
            ddp_find_unused_parameters=settings.trainable == "all",
            dataloader_pin_memory=not devices.is_cpu,
        )
        # Else the precision that accelerate's launcher was set to would be taken, whatever is said here.
        arguments.mixed_precision = "no" if settings.precision == "fp32" else settings.precision
        if arguments.n_gpu > 1:  # else Trainer would part a micro-batch over them; torchrun uses them better
            arguments._n_gpu = 1
        return arguments


def _is_measured(state: Any) -> bool:
    """Whether the loss was measured behind the last step."""
    return any("eval_loss" in line and line["step"] == state.global_step for line in state.log_history)


def _peak() -> int | None:
    """Return the most memory that this process held, in bytes: on the accelerator, or else of the process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit
