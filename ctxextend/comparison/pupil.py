"""A model that is trained in memory by one method's tables after the other's, and is each time what it was before."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError, TrainingError
from ctxextend.evaluation.eval_model import EvalModel, ModelFiles
from ctxextend.models.extend import to_tensor
from ctxextend.plan.plan import ResizePlan
from ctxextend.recipe import Recipe, Train
from ctxextend.tables.apply import still_learned
from ctxextend.text_data import check_texts, shared

if TYPE_CHECKING:
    from ctxextend.training.devices import Devices
    from ctxextend.training.opening import Opened, Texts
    from ctxextend.training.parameters import Trained
    from ctxextend.training.work import Work

__all__ = ["Pupil", "check_training_texts"]

Ids = NDArray[np.int64]


def check_training_texts(train: Train) -> None:
    """Refuse text to train on that cannot be read, or that methods are measured on too.

    Raises:
        DataError: What is wrong with it.
    """
    for paths in filter(None, (train.data, train.eval_data)):
        check_texts(paths, train.text_field)
    if train.eval_data and (both := shared(train.eval_data, train.data)):
        names = ", ".join(map(str, both[:3]))
        raise DataError(
            f"{names} is named by --data, which is trained on, and by --eval-data, which is measured on.",
            "Leave --eval-data out: the last twentieth of --data is then measured on, and not trained on.",
        )


@dataclass(frozen=True)
class Pupil:
    """How a model is trained, the same way by every method.

    Attributes:
        opened: What `train` would be told of the checkpoint that `resize` writes.
        texts: The text as tokens.
        work: Where the text lies; nothing that is learned is written.
        devices: This process alone.
    """

    opened: "Opened"
    texts: "Texts"
    work: "Work"
    devices: "Devices"

    @classmethod
    def of(cls, files: ModelFiles, plan: ResizePlan, train: Train, original: EvalModel, folder: Path) -> "Pupil":
        """Cut the text into tokens, and choose how they are trained on.

        Args:
            files: What is known of the model as it is.
            plan: A plan of any method.
            train: How to train.
            original: The model as it is, from which encoders learn.
            folder: Where the tokens go.

        Raises:
            DataError: There is too little text.
            TrainingError: Lengths that the model will not have, or a device that does not train so.
        """
        from ctxextend.training.devices import Devices
        from ctxextend.training.opening import Opened, Original, fitted_settings, open_texts
        from ctxextend.training.work import Work

        longer, devices = replace(files, rows=plan.tables[0].rows_after), Devices.here()
        settings = fitted_settings(Recipe(files.ref, train=train), longer)
        settings = replace(settings, precision=devices.precision(settings.precision))
        devices.micro_batches(settings)
        if devices.count > 1:
            raise TrainingError(
                "Methods are compared in one process, and torchrun or accelerate started several.",
                "Start it without them, or train each method by its recipe.",
            )
        opened = Opened(longer, settings, Original(files.ref, reader=original), None)
        work = Work(folder, keeps_saves=False)
        return cls(opened, open_texts(opened, work, packs=True), work, devices)

    @property
    def tokens(self) -> int:
        """Tokens that are trained on."""
        return self.opened.settings.steps * self.opened.settings.batch_size * self.opened.length

    @property
    def left_out(self) -> list[Ids] | None:
        """The documents that training leaves out of its own text; None where it was given others to measure on."""
        if self.opened.settings.eval_data:
            return None
        tokens, between = self.texts.held_out, self.opened.files.tokenizer.separator
        ends: NDArray[np.intp] = np.flatnonzero(tokens == (-1 if between is None else between))
        pieces = (piece[piece != between] for piece in np.split(tokens, ends))
        return [piece.astype(np.int64) for piece in pieces if len(piece)]

    @contextmanager
    def taught(
        self, reader: EvalModel, names: Mapping[str, str], plan: ResizePlan, progress: Callable[[int], None]
    ) -> Iterator[None]:
        """Train a model for as long as the block runs; behind it, its weights are bit for bit what they were.

        Args:
            reader: The model, with the tables of a method in it.
            names: The parameter that holds each tensor of the checkpoint's files.
            plan: What made the tables.
            progress: Told the tokens of each step.

        Raises:
            CtxextendError: As `ctxextend.train`.
            KeyboardInterrupt: Ctrl-C between two steps; another signal is passed on to whoever hears it.
        """
        from ctxextend.training.setup import set_up_reader

        is_new = self.opened.settings.trainable == "new"
        opened = replace(self.opened, rows=_new_rows(plan) if is_new else None)
        # The trainer measures what it holds out at both ends: one sequence does.
        texts = replace(self.texts, held_out=self.texts.held_out[: opened.room])
        learner = set_up_reader(reader, names, opened, texts, self.devices)
        held = {name: value.detach().clone() for name, value in learner.trained.parameters.items()}
        try:
            learned = learner.learn(self.work, self.devices, _steps(self.tokens // opened.settings.steps, progress))
            if learned.stopped_by is not None:
                signal.raise_signal(learned.stopped_by)
                raise KeyboardInterrupt
            _round(learner.trained, plan)
            reader.model.train(False)
            yield
        finally:
            _restore(reader.model, held)


def _new_rows(plan: ResizePlan) -> NDArray[np.bool_]:
    """Return which rows of the table are new, shape (rows,); those in front of position 0 are none."""
    table = plan.tables[0]
    rows = np.zeros(table.rows_after, np.bool_)
    behind = (table.rows_after - table.offset, plan.settings.options)
    rows[table.offset :] = ~still_learned(table.rows_before - table.offset, [behind])
    return rows


def _steps(tokens: int, progress: Callable[[int], None]) -> Callable[[int, Mapping[str, float]], None]:
    """Return what tells the tokens of each step, of which a trainer also says other things."""
    return lambda step, logs: progress(tokens) if "loss" in logs else None


def _round(trained: "Trained", plan: ResizePlan) -> None:
    """Round what was trained to the dtypes of the checkpoint's files, as it would be written."""
    import torch

    from ctxextend.checkpoints.dtypes import numpy_dtype

    with torch.no_grad():
        for name, parameter in trained.names.items():
            dtype = numpy_dtype(plan.checkpoint.holder(name).entries[name].dtype)
            weight = trained.model.get_parameter(parameter)
            weight.copy_(to_tensor(weight.detach().float().cpu().numpy().astype(dtype)))


def _restore(model: Any, held: Mapping[str, Any]) -> None:
    import torch

    with torch.no_grad():
        for name, value in held.items():
            parameter = model.get_parameter(name)
            parameter.copy_(value)
            parameter.grad = None
    model.train(False)
