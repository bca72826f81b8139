"""One loaded model of the new length that gets the tables of one method after another and can be
trained in memory.
"""

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
from ctxextend.errors import TrainingError, TrainingInterrupted
from ctxextend.evaluation.eval_model import EvalModel, ModelFiles
from ctxextend.families.lookup import nested
from ctxextend.models.extend import set_config, set_length, set_tables, to_tensor
from ctxextend.models.load import match_parameters
from ctxextend.plan.edits import config_changes
from ctxextend.plan.new_rows import resize_rows
from ctxextend.plan.plan import Plan
from ctxextend.recipe import Train
from ctxextend.tables.apply import learned_rows_after

if TYPE_CHECKING:
    from ctxextend.training.setup import TrainingTask
    from ctxextend.training.training_run import RunFolder


Table = NDArray[Any]
ROPE = "rope_parameters"  # key of rotary settings in configs of transformers


@dataclass(frozen=True)
class ResizedModel:
    """A model of the new length that shares everything except its positions with the base."""

    model: EvalModel
    config: Mapping[str, Any]  # of the base, as plain values
    names: Mapping[str, str]  # parameter names by tensor names of the checkpoint's files
    learned: Mapping[str, Table]  # tables of the checkpoint by tensor name, each of shape (rows, d)

    def set_positions(self, plan: Plan, *, is_first: bool = False) -> dict[str, Table]:
        """Give the model the tables and settings of a plan, and return the tables, as `resize`
        writes them.
        """
        tables = {
            one.name: resize_rows(
                one, self.learned[one.name][: one.rows_before], plan.choice_of(one)
            )
            for one in plan.stored
        }
        if not is_first and not any(
            table.rope for table in plan.tables
        ):  # plans of one length differ only in tables
            set_tables(self.model.model, self.tensors(tables))
            return tables
        edits = config_changes(
            self.config,
            plan.model.architecture,
            plan.tables,
            fix_limits=plan.settings.fix_limits,
        )
        set_config(config := copy.deepcopy(self.config), edits)
        # All rotary settings, and all lengths: those of another plan must not remain.
        paths = {path[: path.index(ROPE) + 1] if ROPE in path else path for path in edits}
        paths |= {
            path for table in plan.tables if table.rope for path in table.location.length_paths
        }
        set_length(
            self.model.model, self.tensors(tables), {path: nested(config, path) for path in paths}
        )
        return tables

    def tensors(self, tables: Mapping[str, Table]) -> dict[str, Any]:
        """Return tables by parameter name, in the dtype of the loaded model."""
        parameter = self.model.model.get_parameter
        return {
            self.names[name]: to_tensor(table).to(parameter(self.names[name]))
            for name, table in tables.items()
        }


def open_resized(base: EvalModel, plan: Plan, *, shares: bool = True) -> ResizedModel:
    """Return a model with the tables of a plan; it must not share tensors that are trained while
    the base is used.
    """
    names = match_parameters(base.model, plan.checkpoint, [table.name for table in plan.stored])
    model = copy.deepcopy(
        base.model, {id(value): value for value in base.model.parameters()} if shares else {}
    )
    learned = {
        table.name: read_floats(plan.checkpoint.names[table.name], table.name)
        for table in plan.stored
    }
    config = {**model.config.to_dict(), "model_type": model.config.model_type}
    resized = ResizedModel(
        replace(base, model=model, max_len=plan.max_len_after), config, names, learned
    )
    resized.set_positions(plan, is_first=True)
    return resized


@dataclass(frozen=True)
class InMemoryTrainer:
    """Trains one model with the tables of each method in turn; writes only the tokenized text."""

    task: "TrainingTask"  # as `train` would prepare it for the output of `resize`
    folder: "RunFolder"  # for the tokenized text; no saves are written
    teacher: EvalModel  # the base, from which encoders are distilled

    @contextmanager
    def trained(
        self, resized: ResizedModel, plan: Plan, advance: Callable[[int], None]
    ) -> Iterator[None]:
        """Train a model with the tables of a plan; restore its weights at the end of the block."""
        import torch

        from ctxextend.training.setup import set_up
        from ctxextend.training.trainer import run_training

        task, model = self.task, resized.model.model
        if task.settings.trainable == "new":
            table = plan.tables[0]
            rows = np.zeros(plan.tables[0].rows_after, np.bool_)
            first = table.reserved_rows
            created = table.rows_after - first, plan.choice_of(table)
            rows[first:] = ~learned_rows_after(table.rows_before - first, [created])
            task = replace(task, rows=rows)
        # The trainer measures the held-out loss at both ends; one sequence is enough here.
        start = int(task.held_out.spans[0, 0])
        held_out = task.held_out._replace(spans=np.array([[start, start + task.text_length]]))
        task = replace(
            task, held_out=held_out, settings=replace(task.settings, eval_every=task.settings.steps)
        )
        setup = set_up(resized.model, resized.names, task, self.teacher)
        before = {
            name: value.detach().clone() for name, value in setup.trainable.parameters.items()
        }
        try:
            run_training(setup, self.folder, lambda tokens, total, label="": advance(tokens))
            with torch.no_grad():  # round to the dtypes of the files, as written weights would be
                for name, parameter in setup.trainable.names.items():
                    weight = model.get_parameter(parameter)
                    dtype = numpy_dtype(plan.checkpoint.entries[name].dtype)
                    weight.copy_(to_tensor(weight.detach().float().cpu().numpy().astype(dtype)))
            model.train(False)
            yield
        except TrainingInterrupted as stop:  # re-raise the signal for the handler of the command
            signal.raise_signal(stop.signal)
            raise
        finally:
            setup.trainable.load(before)
            model.zero_grad()
            model.train(False)


def open_trainer(
    files: ModelFiles, plan: Plan, train: Train, base: EvalModel, folder: Path
) -> InMemoryTrainer:
    """Tokenize the training text into a folder and prepare training; `plan` is the plan of any
    method.
    """
    from ctxextend.training.memory import open_devices
    from ctxextend.training.setup import open_task
    from ctxextend.training.training_run import RunFolder

    devices, run_folder = open_devices(train.device), RunFolder(folder, keeps_saves=False)
    if devices.num_processes > 1:
        message = (
            "Comparing with training runs in one process, but torchrun or accelerate started "
            "several."
        )
        raise TrainingError(message, "Run without them, or train each method with its recipe.")
    task = open_task(
        replace(files, rows=plan.tables[0].rows_after), train, devices, run_folder, is_base=True
    )
    return InMemoryTrainer(task, run_folder, base)
