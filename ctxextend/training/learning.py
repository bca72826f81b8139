"""A model, its objective and its data, set up to be trained, and trained."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PrinterCallback, TrainingArguments

from ctxextend.errors import CheckpointError, TrainingError
from ctxextend.evaluation.embedding import read_pooling
from ctxextend.evaluation.readers import (
    ENCODER,
    MASKED,
    SENTENCE_MODULES,
    Reader,
    check_known,
    load_reader,
    open_reader,
)
from ctxextend.running import quiet
from ctxextend.training.devices import Devices
from ctxextend.training.distillation import Distillation
from ctxextend.training.modes import switch_dropout_off
from ctxextend.training.objectives import LanguageModelling
from ctxextend.training.opening import EVAL_TOKENS, Opened, Texts
from ctxextend.training.parameters import Trained, match_parameters
from ctxextend.training.positions import position_base
from ctxextend.training.signals import Stop, heard_between_steps
from ctxextend.training.trainer import NotFiniteError, RunTrainer, Watch, not_saved
from ctxextend.training.windows import Cut, Masking, Windows
from ctxextend.training.work import Work

__all__ = ["Learned", "Learner"]

# The share of steps over which the learning rate rises.
WARMUP = 0.05

# The highest learning rate of a table, as a part of the root of its values' mean square.
TABLE_RATE = 0.05
# The highest learning rate where everything is trained, at GPT-2 small's width; narrower models bear more.
RATE, WIDTH = 3e-4, 768


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
        micro_batch: Sequences that a device holds at once.
        lr: The highest learning rate.
        texts: The text as tokens.
    """

    opened: Opened
    reader: Reader
    objective: torch.nn.Module
    trained: Trained
    micro_batch: int
    lr: float
    texts: Texts

    @property
    def cut(self) -> Cut:
        """How sequences are cut from the text."""
        opened, reader = self.opened, self.reader
        masking = Masking.of(reader) if reader.kind == MASKED else None
        skip, seed = opened.settings.window_skip, opened.settings.seed
        return Cut(reader.prefix, reader.suffix, opened.length, opened.span, reader.kind, masking, skip, seed)

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
            with heard_between_steps(stop), _explained(trainer, work, self):
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
            per_device_train_batch_size=self.micro_batch,
            per_device_eval_batch_size=self.micro_batch if self.measured >= settings.batch_size else 1,
            gradient_accumulation_steps=settings.batch_size // (self.micro_batch * devices.count),
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
        if arguments.n_gpu > 1:  # else Trainer would part a micro-batch over them; torchrun uses them better
            arguments._n_gpu = 1
        return arguments

    def save_failed(self, trainer: RunTrainer, error: NotFiniteError, work: Work) -> TrainingError:
        """Save what was learned before a number was not finite, and return what to say."""
        step, steps = error.step, self.opened.settings.steps
        if step == 0:
            return TrainingError(
                f"The loss of {self.opened.files.subject.source} is no finite number before the first step.",
                "Look at its table: ctxextend inspect; or train with --precision fp32.",
            )
        finite = all(bool(torch.isfinite(value).all()) for value in self.trained.parameters.values())
        if finite and trainer.state.global_step:
            trainer._save_checkpoint(trainer.model, None)
        kept = work.save.name.rpartition("-")[2] if work.save else None
        again = f"Begin anew with an --lr below {self.lr:.2g} and --force"
        return TrainingError(
            f"The loss or its gradient is no finite number at step {step} of {steps}. "
            + (f"What was learned in {kept} steps is saved in {work.save}." if kept else "Nothing was saved."),
            f"{again}, or write what is saved: the same command with --resume --steps {kept}." if kept else f"{again}.",
        )


def set_up(opened: Opened, texts: Texts, devices: Devices) -> Learner:
    """Load a model and make it ready to be trained.

    Args:
        opened: What is trained, and how, its precision filled in.
        texts: The text as tokens.
        devices: The processes that take part.

    Raises:
        CtxextendError: As `load_reader`; the objective does not fit, or what is trained cannot be written back.
    """
    reader = load_reader(opened.files, "fp32")
    check_known(reader, np.array([texts.train.max(), texts.held_out.max()], np.int64))
    settings = opened.settings
    objective = _objective(opened, reader)
    names, table = _trained_names(opened, reader)
    switch_dropout_off(reader.model)
    trained = Trained.of(reader.model, names, table, opened.rows)
    rate = settings.lr or _rate(trained, settings.trainable)
    return Learner(opened, reader, objective, trained, devices.micro_batch(settings, opened.length), rate, texts)


def _objective(opened: Opened, reader: Reader) -> LanguageModelling | Distillation:
    """Return what a model is trained to do, by what it is."""
    placed = opened.span > opened.length
    if reader.kind != ENCODER:
        return LanguageModelling.of(reader, placed=placed)
    if opened.original is None:
        raise TrainingError(
            f"{reader.name} has no head to train by, and what it was made of, which it could learn from, is not known.",
            "Name that with --original.",
        )

    teacher = open_reader(opened.original.subject, "fp32", opened.original.hashes)
    is_sentence = (reader.root / SENTENCE_MODULES).is_file()
    objective = Distillation.of(reader, teacher, read_pooling(reader.root) if is_sentence else None)
    objective.position_base = position_base(reader) if placed else 0
    return objective


def _trained_names(opened: Opened, reader: Reader) -> tuple[dict[str, str], str]:
    """Return what is trained, as the files and as the model call it, and the model's name of the table.

    Raises:
        CheckpointError: The model holds something that its files do not.
    """
    checkpoint, settings = opened.files.checkpoint, opened.settings
    shapes = {name: file.entries[name].shape for file in checkpoint.weights for name in file.entries}
    found = match_parameters(reader.model, shapes)
    if opened.files.table not in found:
        raise CheckpointError(f"The model of {reader.name} holds no table of the shape of {opened.files.table}.")
    table = found[opened.files.table]
    if settings.trainable != "all":
        return {opened.files.table: table}, table
    # A pooler is no part of what is trained: vectors of texts and words do without it.
    found = {name: parameter for name, parameter in found.items() if "pooler." not in parameter}
    held = {id(reader.model.get_parameter(parameter)) for parameter in found.values()}
    missing = [
        name for name, value in reader.model.named_parameters() if id(value) not in held and "pooler." not in name
    ]
    if missing:
        raise CheckpointError(
            f"{', '.join(missing[:3])} of the model {reader.name} cannot be found in its files, nor written back.",
            "Train the table alone: --trainable positions.",
        )
    return found, table


def _rate(trained: Trained, trainable: str) -> float:
    """Return the highest learning rate where none is asked for.

    Adam moves each value by about the rate in a step, so a table's is a part of the size of its values.
    """
    weight = trained.model.get_parameter(trained.table).detach()
    if trainable == "all":
        return float(RATE * (WIDTH / weight.shape[1]) ** 0.5)
    return float(TABLE_RATE * weight.square().mean().sqrt())


def _is_measured(state: Any) -> bool:
    """Whether the loss was measured behind the last step."""
    return any("eval_loss" in line and line["step"] == state.global_step for line in state.log_history)


@contextmanager
def _explained(trainer: RunTrainer, work: Work, learner: Learner) -> Iterator[None]:
    """Turn what ends a training early into errors that say what is left, and what to do."""
    try:
        yield
    except NotFiniteError as error:
        raise learner.save_failed(trainer, error, work) from None
    except OSError as error:  # on a full disk the log is the first that cannot be written
        raise not_saved(work, error) from error
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if type(error) is RuntimeError and "can't allocate memory" not in str(error):
            raise
        raise TrainingError(
            f"The memory did not hold {learner.micro_batch} sequences of {learner.opened.length:,} tokens at once.",
            "Give a smaller --micro-batch, a shorter --seq-len, or --window.",
        ) from error


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
