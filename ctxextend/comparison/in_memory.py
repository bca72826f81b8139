"""One loaded model that gets the positions of one plan after another, and is trained in memory."""

import copy
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.safetensors_file import numpy_dtype
from ctxextend.errors import TrainingError, TrainingInterrupted
from ctxextend.evaluation.eval_model import EvalModel, ResizableFiles
from ctxextend.families.lookup import nested
from ctxextend.models.extend import set_config, set_length, set_tables, to_tensor
from ctxextend.models.load import match_parameters
from ctxextend.plan.choose import resize_rows
from ctxextend.plan.edits import config_changes
from ctxextend.plan.plan import Plan
from ctxextend.recipe import Train
from ctxextend.tables.apply import learned_rows_after

if TYPE_CHECKING:
    from ctxextend.training.training_run import RunFolder
    from ctxextend.training.training_task import TrainingTask


TableRows = NDArray[Any]  # shape (rows, d)
ROPE_KEY = "rope_parameters"  # of rotary settings in configs of transformers


@dataclass(frozen=True)
class InMemoryResizer:
    """Gives a loaded model the positions of one plan after another, all of one length."""

    model: EvalModel  # of the new length; it shares all but its positions with the base
    config: Mapping[str, Any]  # of the base, as plain values
    names: Mapping[str, str]  # parameter names by tensor names of the checkpoint's files
    learned: Mapping[str, TableRows]  # tables of the checkpoint by tensor name

    def set_positions(self, plan: Plan) -> None:
        """Give the model the tables and settings of a plan, as `resize` writes them."""
        if any(table.rope for table in plan.tables):
            self.set_length(plan)
        else:  # plans of one length differ only in tables
            set_tables(self.model.model, self.parameters(self._resized(plan)))

    def set_length(self, plan: Plan) -> None:
        """Give the model the tables, the settings and the length of a plan."""
        edits = config_changes(
            self.config,
            plan.model.architecture,
            plan.tables,
            fix_limits=plan.settings.fix_limits,
        )
        config = copy.deepcopy(self.config)
        set_config(config, edits)
        # All rotary settings, and all lengths: those of another plan must not remain.
        paths = {_settings_path(path) for path in edits}
        for table in plan.tables:
            if table.rope:
                paths.update(table.location.length_paths)
        values = {path: nested(config, path) for path in paths}
        set_length(self.model.model, self.parameters(self._resized(plan)), values)

    def _resized(self, plan: Plan) -> dict[str, TableRows]:
        tables = dict[str, TableRows]()
        for table in plan.stored:
            rows = self.learned[table.name][: table.rows_before]
            tables[table.name] = resize_rows(table, rows, plan.choice_of(table))
        return tables

    def parameters(self, tables: Mapping[str, TableRows]) -> dict[str, Any]:
        """Return tables by parameter name, in the dtype of the loaded model."""
        parameters = dict[str, Any]()
        for name, table in tables.items():
            parameter = self.names[name]
            current = self.model.model.get_parameter(parameter)
            parameters[parameter] = to_tensor(table).to(current)
        return parameters


def _settings_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of a config key or, inside rotary settings, of all of them."""
    if ROPE_KEY not in path:
        return path
    return path[: path.index(ROPE_KEY) + 1]


def open_resizer(base: EvalModel, plan: Plan, *, shares: bool = True) -> InMemoryResizer:
    """Copy a model and give the copy the positions of a plan.

    The copy `shares` all other tensors with the base, unless they are trained while the base is
    used.
    """
    stored = [table.name for table in plan.stored]
    shared = {}
    if shares:
        shared = {id(value): value for value in base.model.parameters()}
    model = copy.deepcopy(base.model, shared)
    resizer = InMemoryResizer(
        model=replace(base, model=model, max_len=plan.max_len_after),
        config={**model.config.to_dict(), "model_type": model.config.model_type},
        names=match_parameters(base.model, plan.checkpoint, stored),
        learned={name: plan.checkpoint.weights.read_floats(name) for name in stored},
    )
    resizer.set_length(plan)
    return resizer


@dataclass(frozen=True)
class InMemoryTrainer:
    """Trains one model with the tables of each method in turn; writes only the tokenized text."""

    task: "TrainingTask"  # as `train` would prepare it for the output of `resize`
    folder: "RunFolder"  # for the tokenized text; no saves are written
    teacher: EvalModel  # the base, from which encoders are distilled

    @contextmanager
    def trained(
        self,
        resizer: InMemoryResizer,
        plan: Plan,
        advance: Callable[[int], None],
        deadline: float | None = None,
    ) -> Iterator[Train]:
        """Train a model with the tables of a plan; restore its weights at the end of the block.

        Args:
            resizer: The model, with the positions of the plan.
            plan: The plan.
            advance: Called with the number of tokens of each step.
            deadline: Take as many steps as fit until this time of `time.perf_counter`, not those
                of the task.

        Yields:
            The settings of the training, with the steps taken.

        Raises:
            TrainingError: The loss became NaN or infinite, or memory is too small.
            TimeTooShortError: There is too little time until the deadline.
        """
        from ctxextend.training import time_limit
        from ctxextend.training.setup import set_up
        from ctxextend.training.trainer import run_training
        from ctxextend.training.training_task import LoadedTask

        model = resizer.model.model
        loaded = LoadedTask.of_models(
            self._task_of(plan), resizer.model, resizer.names, teacher=self.teacher
        )
        setup = set_up(loaded)
        trainable = setup.trainable
        before = {name: value.detach().clone() for name, value in trainable.parameters.items()}
        try:
            if deadline is not None:
                setup = time_limit.plan_steps(setup, deadline)
            run_training(setup, self.folder, lambda tokens, total, label="": advance(tokens))
            round_to_files(model, trainable.names, plan)
            model.train(False)
            yield setup.task.settings
        except TrainingInterrupted as stop:  # re-raise the signal for the handler of the command
            signal.raise_signal(stop.signal)
            raise
        finally:
            trainable.load(before)
            model.zero_grad()
            model.train(False)

    def of_rows(self, trainable: str) -> "InMemoryTrainer":
        """Return a trainer of other rows of the table: ``new`` or ``positions``."""
        settings = replace(self.task.settings, trainable=trainable)
        return replace(self, task=replace(self.task, settings=settings))

    @property
    def tokens(self) -> int:
        """The number of tokens that training reads."""
        settings = self.task.settings
        return settings.steps * settings.batch_size * self.task.lengths.length

    @property
    def held_out_windows(self) -> list[NDArray[Any]]:
        """The windows held out of the training text, each of shape (tokens,)."""
        text = self.task.text.held_out
        return [text.tokens[start:stop] for start, stop in text.spans]

    def _task_of(self, plan: Plan) -> "TrainingTask":
        """Return the task with the trainable rows of a plan, and as little evaluation as can be."""
        task = self.task
        if task.settings.trainable == "new":
            task = replace(task, rows=_new_rows(plan))
        # The trainer measures the held-out loss at both ends; one sequence is enough here.
        held_out = task.text.held_out
        start = int(held_out.spans[0, 0])
        sequence = np.array([[start, start + task.lengths.text]])
        return replace(
            task,
            text=replace(task.text, held_out=held_out._replace(spans=sequence)),
            settings=replace(task.settings, eval_every=task.settings.steps),
        )


def _new_rows(plan: Plan) -> NDArray[np.bool_]:
    """Return the mask of the rows of the first table that are not learned ones, shape (rows,)."""
    table = plan.tables[0]
    reserved = table.reserved_rows
    before = table.rows_before - reserved
    after = table.rows_after - reserved
    rows = np.zeros(table.rows_after, np.bool_)
    rows[reserved:] = ~learned_rows_after(before, after, plan.choice_of(table))
    return rows


def round_to_files(model: Any, names: Mapping[str, str], plan: Plan) -> None:
    """Round parameters, given by tensor name, to the dtypes of the files, as when written."""
    import torch

    with torch.no_grad():
        for name, parameter in names.items():
            weight = model.get_parameter(parameter)
            dtype = numpy_dtype(plan.checkpoint.weights.entries[name].dtype)
            rounded = weight.detach().float().cpu().numpy().astype(dtype)
            weight.copy_(to_tensor(rounded))


def open_trainer(task: "TrainingTask", base: EvalModel, folder: Path) -> InMemoryTrainer:
    """Return the trainer of a task of `open_training`, with the base as the teacher."""
    from ctxextend.training.training_run import RunFolder

    return InMemoryTrainer(task=task, folder=RunFolder(folder, keeps_saves=False), teacher=base)


def open_training(files: ResizableFiles, plan: Plan, train: Train, folder: Path) -> "TrainingTask":
    """Tokenize the training text into a folder and prepare training; `plan` is of any method.

    The model is not loaded yet.

    Raises:
        TrainingError: There are several processes, or a setting does not apply to the model.
        DataError: The text is too short.
    """
    from ctxextend.training.parallel import open_devices
    from ctxextend.training.training_run import RunFolder
    from ctxextend.training.training_task import open_task

    devices = open_devices(train.device)
    run_folder = RunFolder(folder, keeps_saves=False)
    if devices.num_processes > 1:
        message = (
            "Methods are compared and tuned in one process, but torchrun or accelerate started "
            "several."
        )
        raise TrainingError(message, "Run without them, or train each method with its recipe.")
    longer = replace(files, max_len=plan.tables[0].max_len_after)
    return open_task(longer, train, devices, run_folder, base_length=files.max_len)
