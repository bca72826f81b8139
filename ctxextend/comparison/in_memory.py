"""One loaded model at its new length, which takes the tables of one method after the other and is trained in memory."""

import copy
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.safetensors_file import numpy_dtype, read_floats
from ctxextend.errors import TrainingError
from ctxextend.evaluation.eval_model import EvalModel, ModelFiles
from ctxextend.held_out import split_documents
from ctxextend.models.extend import lengthen, set_tables, to_tensor
from ctxextend.models.load import match_parameters
from ctxextend.plan.edits import config_changes
from ctxextend.plan.plan import ResizePlan
from ctxextend.recipe import Train
from ctxextend.tables.apply import learned_rows_after

if TYPE_CHECKING:
    from ctxextend.training.setup import TrainingTask
    from ctxextend.training.training_run import RunFolder


Table = NDArray[Any]


@dataclass(frozen=True)
class ResizedModel:
    """A model at its new length beside its base, with which it shares everything but its tables."""

    model: EvalModel
    names: Mapping[str, str]  # the parameter that holds each tensor of the checkpoint's files, by the tensor's name
    learned: Mapping[str, Table]  # the tables as the files have them, by name, each of shape (rows, d)

    def tables(self, plan: ResizePlan) -> dict[str, Table]:
        """Return the tables that a plan makes, in the files' dtype, as `resize` writes them."""
        return {table.name: plan.resized(table, self.learned[table.name]) for table in plan.tables}

    def set_tables(self, plan: ResizePlan) -> dict[str, Table]:
        """Give the model the tables that a plan makes, and return them; nothing else changes."""
        tables = self.tables(plan)
        set_tables(self.model.model, self.tensors(tables))
        return tables

    def tensors(self, tables: Mapping[str, Table]) -> dict[str, Any]:
        """Return tables by the parameters that hold them, in the dtype in which the model was loaded."""
        parameter = self.model.model.get_parameter
        return {self.names[name]: to_tensor(table).to(parameter(self.names[name])) for name, table in tables.items()}


def open_resized(base: EvalModel, plan: ResizePlan, *, shares: bool = True) -> ResizedModel:
    """Return a model at its new length, with the tables that a plan makes.

    It may share the base's tensors, but not where all of them are trained while the base is read.
    """
    names = match_parameters(base.model, plan.checkpoint, [table.name for table in plan.tables])
    model = copy.deepcopy(base.model, {id(value): value for value in base.model.parameters()} if shares else {})
    learned = {table.name: read_floats(plan.checkpoint.names[table.name], table.name) for table in plan.tables}
    resized = ResizedModel(replace(base, model=model, max_len=plan.max_len_after), names, learned)
    stated = {**model.config.to_dict(), "model_type": model.config.model_type}
    edits = config_changes(stated, plan.model.architecture, plan.tables)
    lengthen(model, resized.tensors(resized.tables(plan)), edits)
    return resized


@dataclass(frozen=True)
class InMemoryTrainer:
    """Trains a model the same way by every method, without writing anything but the text as tokens."""

    task: "TrainingTask"  # what `train` would be told of the checkpoint that `resize` writes
    folder: "RunFolder"  # where the text lies; nothing that is learned is written
    teacher: EvalModel  # the base, from which encoders learn

    def held_out_documents(self) -> list[NDArray[np.int64]] | None:
        """Return the documents that training holds out of its text; None where others are measured on."""
        if self.task.settings.eval_data:
            return None
        (tokens, spans), separator = self.task.held_out, self.task.files.tokenizer.separator
        return split_documents([tokens[start:stop] for start, stop in spans], separator)

    @contextmanager
    def trained(self, resized: ResizedModel, plan: ResizePlan, advance: Callable[[int], None]) -> Iterator[None]:
        """Train a model with a plan's tables for as long as the block runs; then its weights are what they were."""
        import torch

        from ctxextend.training.setup import set_up
        from ctxextend.training.trainer import run_training
        from ctxextend.training.training_run import TrainingInterrupted

        task, model = self.task, resized.model.model
        if task.settings.trainable == "new":
            table, rows = plan.tables[0], np.zeros(plan.tables[0].rows_after, np.bool_)
            first = table.reserved_rows
            made = table.rows_after - first, plan.chosen[table.name].options
            rows[first:] = ~learned_rows_after(table.rows_before - first, [made])
            task = replace(task, rows=rows)
        # The trainer measures what it holds out at both ends: one sequence does.
        start = int(task.held_out.spans[0, 0])
        held_out = task.held_out._replace(spans=np.array([[start, start + task.text_length]]))
        task = replace(task, held_out=held_out, settings=replace(task.settings, eval_every=task.settings.steps))
        setup = set_up(resized.model, resized.names, task, self.teacher)
        before = {name: value.detach().clone() for name, value in setup.trainable.parameters.items()}
        try:
            run_training(setup, self.folder, lambda tokens, total, label="": advance(tokens))
            with torch.no_grad():  # rounded to the dtypes of the files, as it would be written
                for name, parameter in setup.trainable.names.items():
                    weight = model.get_parameter(parameter)
                    dtype = numpy_dtype(plan.checkpoint.entries[name].dtype)
                    weight.copy_(to_tensor(weight.detach().float().cpu().numpy().astype(dtype)))
            model.train(False)
            yield
        except TrainingInterrupted as stop:  # passed on to whoever hears it
            signal.raise_signal(stop.signal)
            raise
        finally:
            setup.trainable.load(before)
            model.zero_grad()
            model.train(False)


def open_trainer(files: ModelFiles, plan: ResizePlan, train: Train, base: EvalModel, folder: Path) -> InMemoryTrainer:
    """Cut the text into tokens, which go into a folder, and choose how they are trained on; `plan` is any method's."""
    from ctxextend.training.memory import open_devices
    from ctxextend.training.setup import open_task
    from ctxextend.training.training_run import RunFolder

    devices, run_folder = open_devices(train.device), RunFolder(folder, keeps_saves=False)
    if devices.num_processes > 1:
        raise TrainingError(
            "Methods are compared in one process, and torchrun or accelerate started several.",
            "Start it without them, or train each method by its recipe.",
        )
    task = open_task(replace(files, rows=plan.tables[0].rows_after), train, devices, run_folder)
    return InMemoryTrainer(task, run_folder, base)
