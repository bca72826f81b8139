"""Train a checkpoint on the user's text, and save it as a new checkpoint."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from ctxextend.checkpoint.atomic_output import (
    check_disk_space,
)
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.checkpoint.writing import write_output
from ctxextend.errors import ResizeError, counted, listed
from ctxextend.held_out import shared_texts
from ctxextend.lab.eval_model import open_files
from ctxextend.models.devices import open_device, torch_threads
from ctxextend.planned import Planned
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import Recipe
from ctxextend.settings import Train
from ctxextend.text_data import check_texts, empty_files
from ctxextend.training.finished_run import FinishedRun
from ctxextend.training.parallel import open_devices
from ctxextend.training.setup import TrainingSetup, set_up
from ctxextend.training.time_limit import plan_steps
from ctxextend.training.train_result import TrainingPlan, TrainResult
from ctxextend.training.trained_output import trained_output
from ctxextend.training.trained_weights import TrainedWeights
from ctxextend.training.trainer import run_training
from ctxextend.training.training_run import SAVE, RunFolder, open_run_folder, run_settings
from ctxextend.training.training_source import TrainingSource, training_settings
from ctxextend.training.training_task import TrainingTask, load_task, open_task

Notify = Callable[[str], None]


def train_recipe(
    recipe: Recipe,
    output: str | os.PathLike[str] | None = None,
    *,
    planned: Planned | None = None,
    source: TrainingSource | None = None,
    force: bool = False,
    resume: bool = False,
    progress: Progress = no_progress,
    notify: Notify = lambda text: None,
    limit: "TimeLimit | None" = None,
) -> TrainResult:
    """Resize or convert a checkpoint if there is a plan, then train and save it; see `train`.

    Args:
        recipe: The source, the settings, and the resize or conversion before.
        output, force, resume, progress: As in `train`.
        planned: The plan of that resize or conversion.
        source: The source, if it is open already.
        notify: Called with each note.
        limit: Take as many steps as fit a time, not those of the recipe.

    Raises:
        CtxextendError: As `train`.
        TimeTooShortError: The time of `limit` is too short.
        TrainingInterrupted: As `train`.
    """
    settings = training_settings(recipe)
    if settings.save_adapter and (planned is not None or recipe.evaluate is not None):
        message = (
            "--save-adapter cannot be combined with other steps: an adapter belongs to an "
            "existing checkpoint."
        )
        hint = "Run the other steps first, then ctxextend train MODEL --lora R --save-adapter."
        raise ResizeError(message, hint)
    devices = open_devices(settings.device, fsdp=settings.fsdp)
    with ExitStack() as stack:
        # The main process comes first: the others find what it downloads and writes.
        with devices.main_process_first():
            if source is None:
                source = TrainingSource.open(recipe, planned)
            path = source.output_path(output)
            folder = RunFolder.for_output(path)
            if devices.is_main_process:
                source.check_output(path, force=force)
                identity = run_settings(source.recipe, source.model)
                # It stays locked when the other processes go on, until the output is written.
                opened = open_run_folder(path, identity, resume=resume, force=force)
                folder = stack.enter_context(opened)
                # The folder of a run to resume has the text as token ids already.
                if folder.save is None:
                    _check_texts(settings)
            folder = replace(folder, keeps_saves=limit is None)
            task = open_task(
                open_files(source.prepare_model(folder)),
                settings,
                devices,
                folder,
                notify,
                source=None if planned is None else planned.base,
            )
        texts = (*settings.data, *settings.eval_data)
        notes = [*source.notes, *task.notes, *empty_files(texts)]
        if resume and folder.save is None:
            notes.append("Nothing to resume: training starts at step 0.")
        setup = set_up(load_task(task))
        if limit is not None:
            with torch_threads(setup.model.model, settings.threads):
                setup = plan_steps(setup, limit.deadline)
        weights = TrainedWeights(task.files.checkpoint, setup.trainable, settings.dtype)
        _announce(setup, notes, notify)
        if devices.is_main_process:
            _check_disk_space(path, weights, save_adapter=settings.save_adapter)
        with torch_threads(setup.model.model, settings.threads):
            result = run_training(setup, folder, progress, notify)
        warnings = (*source.warnings, *task.warnings, *_warnings(setup.task, result))
        result = replace(result, output=path, notes=tuple(notes), warnings=warnings)
        check: Callable[[Path], None] | None = None
        if limit is not None:
            check = limit.check
            result = replace(result, is_kept=limit.keeps(result))
        if devices.is_main_process:
            if result.is_kept:
                finished = FinishedRun(
                    recipe=recipe,
                    source=source.model,
                    task=setup.task,
                    weights=weights,
                    folder=folder,
                    result=result,
                )
                write_output(trained_output(finished), force=force, check=check)
            folder.remove()
    return result


@dataclass(frozen=True)
class TimeLimit:
    """The end of a run that takes as many steps as fit, and cannot be resumed."""

    deadline: float  # in seconds of `time.perf_counter`
    keeps: Callable[[TrainResult], bool]  # whether a result is written
    check: Callable[[Path], None] | None  # of the complete output, before it is moved into place


def plan_run(source: TrainingSource, output: Path) -> TrainingPlan:
    """Plan a run that writes `output`; see `plan_training`.

    The text of one step is read, and its token ids are written to a folder that is removed again.

    Raises:
        CtxextendError: As `train`, if the run could not start.
    """
    settings = training_settings(source.recipe)
    _check_texts(settings)
    # What `open_task` reads of accelerate's state.
    devices: Any = SimpleNamespace(
        device=open_device(settings.device), num_processes=1, is_main_process=True
    )
    with TemporaryDirectory() as folder:
        task = open_task(
            open_files(source.model),
            replace(settings, fsdp=False, steps=1),
            devices,
            RunFolder(Path(folder)),
        )
    return TrainingPlan(
        output=output,
        source=source.recipe.checkpoint.source,
        trainable=str(task.settings.trainable),
        lora=task.settings.lora,
        precision=str(task.settings.precision),
        steps=settings.steps,
        batch_size=settings.batch_size,
        seq_len=task.span,
        window=task.length,
        notes=task.notes,
        warnings=task.warnings,
    )


def _check_texts(settings: Train) -> None:
    if settings.contrastive != "pairs":  # which are checked when they are read
        check_texts((*settings.data, *settings.eval_data), settings.text_field)


def _check_disk_space(path: Path, weights: TrainedWeights, *, save_adapter: bool) -> None:
    """Raise OutputError if the output and two saved states do not fit on the disk.

    The new weights are written while up to two saved states exist.
    """
    sizes = {f"{SAVE}{number}": weights.trainable.save_bytes for number in (1, 2)}
    if not save_adapter:
        sizes |= {name: layout.size for name, layout in weights.layouts.items()}
    check_disk_space(path, sizes)


def _announce(setup: TrainingSetup, notes: Sequence[str], notify: Notify) -> None:
    for note in notes:
        notify(note)
    for warning in setup.task.warnings:
        notify(f"Warning: {warning}")
    task = setup.task
    settings = task.settings
    # The value of --trainable says it, unless adapters are trained too.
    trained = settings.trainable if settings.lora is None else settings.trained_text
    devices = counted(task.devices.num_processes, "device")
    parts = [
        f"{counted(setup.trainable.count, 'trainable parameter')} ({trained})",
        f"{counted(settings.steps, 'step')} of {counted(settings.batch_size, 'sequence')} of "
        f"{task.length:,} tokens",
        f"micro-batch {task.micro_batches[0]} on {devices}",
    ]
    if settings.fsdp:
        parts.append("sharded")
    parts.append(settings.precision)
    parts.append(f"lr {setup.lr:.3g}")
    if settings.distill and task.distils_table:
        parts.append("distilled from its base")
    elif settings.distill:
        parts.append(f"distilled from its base with weight {settings.distill:g}")
    notify(", ".join(parts))


def _warnings(task: TrainingTask, result: TrainResult) -> Iterator[str]:
    if not result.has_fallen or result.loss_last > result.loss_before:
        yield _loss_warning(task.settings, result)
    settings = task.settings
    shared = shared_texts(settings.eval_data, settings.data) if settings.eval_data else ()
    if shared:
        names = listed([str(text) for text in shared])
        yield (
            f"{names} is in both --data and --eval-data: the held-out loss does not measure new "
            "text."
        )
    planned = task.planned_steps
    if planned != settings.steps:
        yield (
            f"The run was planned for {planned:,} steps and ended at {settings.steps:,}. "
            f"Before it was resumed, the learning rate followed a {planned:,}-step schedule: "
            f"{RECIPE_FILE} does not reproduce it."
        )


def _loss_warning(settings: Train, result: TrainResult) -> str:
    measured = [f"{result.loss_before:.4f} at the start"]
    advice = f"Try a lower --lr than {result.lr:.3g}."
    if result.has_fallen:
        reason = f"The held-out loss rose after step {result.best_step}"
        measured.append(f"{result.loss_best:.4f} after step {result.best_step}")
    else:
        reason = "Training did not lower the held-out loss"
        if settings.trainable in ("new", "positions"):
            advice = f"Try --trainable all, or a lower --lr than {result.lr:.3g}."
    measured.append(f"{result.loss_last:.4f} after step {result.steps}")
    saved = "untrained weights"
    if result.saves_trained:
        saved = f"weights of step {result.saved_step}"
    return f"{reason}: {', '.join(measured)}. Saved the {saved}. {advice}"
