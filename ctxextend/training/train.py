"""Train a checkpoint on the user's text, and save it as a new checkpoint."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoints.atomic_output import (
    check_disk_space,
    nearest_existing_parent,
)
from ctxextend.errors import ResizeError, counted, listed
from ctxextend.evaluation.eval_model import open_files
from ctxextend.held_out import shared_texts
from ctxextend.models.devices import open_device, torch_threads
from ctxextend.output import no_check, write_output
from ctxextend.planned import Planned
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import RECIPE_FILE, Recipe
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

if TYPE_CHECKING:
    from accelerate import PartialState

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
    _check_steps(recipe, planned)
    devices = open_devices(settings.device, fsdp=settings.fsdp)
    opened = _opened_run(
        recipe,
        planned,
        source,
        output,
        devices,
        notify=notify,
        resume=resume,
        force=force,
        keeps_saves=limit is None,
    )
    with opened as run:
        setup = set_up(load_task(run.task))
        if limit is not None:
            with torch_threads(setup.model.model, settings.threads):
                setup = plan_steps(setup, limit.deadline)
        weights = TrainedWeights(run.task.files.checkpoint, setup.trainable, settings.dtype)
        _announce(setup, run.notes, notify)
        if devices.is_main_process:
            _check_disk_space(run.output, weights, save_adapter=settings.save_adapter)
        with torch_threads(setup.model.model, settings.threads):
            result = run_training(setup, run.folder, progress, notify)
        warnings = (*run.source.warnings, *run.task.warnings, *_warnings(setup.task, result))
        result = replace(result, output=run.output, notes=run.notes, warnings=warnings)
        is_kept = limit is None or limit.keeps(result)
        if devices.is_main_process and is_kept:
            finished = FinishedRun(
                recipe=recipe,
                source=run.source.model,
                task=setup.task,
                weights=weights,
                folder=run.folder,
                result=result,
            )
            check = no_check if limit is None else limit.check
            write_output(trained_output(finished), run.output, force=force, check=check)
        if devices.is_main_process:
            run.folder.remove()
    return replace(result, is_kept=is_kept)


@dataclass(frozen=True)
class TimeLimit:
    """The end of a run that takes as many steps as fit, and cannot be resumed."""

    deadline: float  # in seconds of `time.perf_counter`
    keeps: Callable[[TrainResult], bool]  # whether a result is written
    check: Callable[[Path], None]  # of the complete output, before it is moved into place


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


def _check_steps(recipe: Recipe, planned: Planned | None) -> None:
    """Raise ResizeError if an adapter is to be saved, but the recipe has other steps."""
    settings = training_settings(recipe)
    if settings.save_adapter and (planned is not None or recipe.evaluate is not None):
        message = (
            "--save-adapter cannot be combined with other steps: an adapter belongs to an "
            "existing checkpoint."
        )
        hint = "Run the other steps first, then ctxextend train MODEL --lora R --save-adapter."
        raise ResizeError(message, hint)


@contextmanager
def _prepared_folder(
    source: TrainingSource,
    output: Path,
    devices: "PartialState",
    *,
    resume: bool,
    force: bool,
    keeps_saves: bool,
) -> Iterator[RunFolder]:
    """Check the output, and create or reopen the run folder; only the main process does.

    Raises:
        OutputError: The output or the run folder cannot be written.
        TrainingError: As `open_run_folder`.
        DataError: A text cannot be read.
    """
    if not devices.is_main_process:
        yield replace(RunFolder.for_output(output), keeps_saves=keeps_saves)
        return
    source.check_output(output, force=force)
    identity = run_settings(source.recipe, source.model)
    with open_run_folder(output, identity, resume=resume, force=force) as folder:
        # The folder of a run to resume has the text as token ids already.
        if folder.save is None:
            _check_texts(training_settings(source.recipe))
        yield replace(folder, keeps_saves=keeps_saves)


@dataclass(frozen=True)
class OpenedRun:
    """A run that is about to load its model; its folder is locked."""

    source: TrainingSource
    output: Path
    folder: RunFolder
    task: TrainingTask
    notes: tuple[str, ...]


@contextmanager
def _opened_run(
    recipe: Recipe,
    planned: Planned | None,
    source: TrainingSource | None,
    output: str | os.PathLike[str] | None,
    devices: "PartialState",
    *,
    notify: Notify,
    resume: bool,
    force: bool,
    keeps_saves: bool,
) -> Iterator[OpenedRun]:
    """Open the source and the run folder, resize or convert if planned, and read the text.

    The main process comes first: the others find what it downloads and writes.

    Raises:
        CtxextendError: As `train`, if the run cannot start.
    """
    with ExitStack() as stack:
        with devices.main_process_first():
            if source is None:
                source = TrainingSource.open(recipe, planned)
            path = source.output_path(output)
            # It stays locked when the other processes go on, until the output is written.
            folder = stack.enter_context(
                _prepared_folder(
                    source, path, devices, resume=resume, force=force, keeps_saves=keeps_saves
                )
            )
            model = source.prepare_model(folder)
            settings = training_settings(recipe)
            task = open_task(
                open_files(model),
                settings,
                devices,
                folder,
                notify,
                source=None if planned is None else planned.base,
            )
        notes = _notes(source, task, folder, resume=resume)
        yield OpenedRun(source=source, output=path, folder=folder, task=task, notes=notes)


def _check_texts(settings: Train) -> None:
    """Raise DataError if a text cannot be read; pairs are checked when they are read."""
    if settings.contrastive != "pairs":
        check_texts((*settings.data, *settings.eval_data), settings.text_field)


def _check_disk_space(path: Path, weights: TrainedWeights, *, save_adapter: bool) -> None:
    """Raise OutputError if the output and two saved states do not fit on the disk.

    The new weights are written while up to two saved states exist.
    """
    sizes = {f"{SAVE}{number}": weights.trainable.save_bytes for number in (1, 2)}
    if not save_adapter:
        sizes |= {name: layout.size for name, layout in weights.layouts.items()}
    check_disk_space(nearest_existing_parent(path), sizes)


def _notes(
    source: TrainingSource, task: TrainingTask, folder: RunFolder, *, resume: bool
) -> tuple[str, ...]:
    """Return notes about the source, what is trained, and files without text."""
    settings = task.settings
    notes = [*source.notes, *task.notes]
    notes += empty_files((*settings.data, *settings.eval_data))
    if resume and folder.save is None:
        notes.append("Nothing to resume: training starts at step 0.")
    return tuple(notes)


def _announce(setup: TrainingSetup, notes: tuple[str, ...], notify: Notify) -> None:
    """Report notes, warnings and what is trained, before the first step."""
    for note in notes:
        notify(note)
    for warning in setup.task.warnings:
        notify(f"Warning: {warning}")
    notify(_summary(setup))


def _summary(setup: TrainingSetup) -> str:
    """Return what is trained, and how, as one line."""
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
    return ", ".join(parts)


def _warnings(task: TrainingTask, result: TrainResult) -> Iterator[str]:
    """Yield warnings about a finished run."""
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
    """Return the warning that the held-out loss did not fall, or rose again."""
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
