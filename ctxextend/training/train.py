"""Train a checkpoint on the user's text, and save it as a new checkpoint."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ctxextend.checkpoint.atomic_output import check_disk_space
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.checkpoint.writing import write_output
from ctxextend.errors import counted
from ctxextend.models.devices import torch_threads
from ctxextend.progress import Progress, no_progress
from ctxextend.settings import Train
from ctxextend.training.run import TrainingRun
from ctxextend.training.train_result import TrainingPlan, TrainResult
from ctxextend.training.trained_output import trained_output
from ctxextend.training.trainer import run_training
from ctxextend.training.training_run import SAVE, RunFolder, open_run_folder, run_settings
from ctxextend.training.training_source import TrainingSource

Notify = Callable[[str], None]


def train_source(
    source: TrainingSource,
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    resume: bool = False,
    progress: Progress = no_progress,
    notify: Notify = lambda text: None,
) -> TrainResult:
    """Resize or convert a checkpoint if there is a plan, then train and save it; see `train`.

    Args:
        source: The checkpoint, the settings, and the plan of a resize or conversion before.
        output, force, resume, progress: As in `train`.
        notify: Called with each note.

    Raises:
        CtxextendError: As `train`.
        TrainingInterrupted: As `train`.
    """
    path = source.output_path(output)
    settings = source.settings
    with open_run(source, path, force=force, resume=resume, notify=notify) as run:
        notes = [*source.notes, *run.notes]
        if resume and run.folder.save is None:
            notes.append("Nothing to resume: training starts at step 0.")
        for note in notes:
            notify(note)
        for warning in run.warnings:
            notify(f"Warning: {warning}")
        notify(_summary(run))
        with torch_threads(run.model.model, settings.threads):
            result = run_training(run, progress, notify)
        result = replace(result, output=path, notes=tuple(notes))
        return save_trained(run, result, force=force)


@contextmanager
def open_run(
    source: TrainingSource,
    path: Path,
    *,
    force: bool,
    resume: bool = False,
    keeps_saves: bool = True,
    notify: Notify = lambda text: None,
) -> Iterator[TrainingRun]:
    """Prepare a run that writes to a path: its folder, text and model.

    Args:
        source: The checkpoint and the settings.
        path: The output folder.
        force, resume: As in `train`.
        keeps_saves: Whether states are saved, from which the run can be resumed.
        notify: Called with each message.

    Raises:
        CtxextendError: As `train`.
    """
    identity = run_settings(source.recipe, source.model)
    with open_run_folder(
        path, identity, resume=resume, force=force, keeps_saves=keeps_saves
    ) as folder:
        run = TrainingRun(source, folder, notify)
        run.load()
        # A state is written while the previous one exists.
        sizes = {f"{SAVE}{number}": run.trainable.save_bytes for number in (1, 2)}
        sizes |= {name: layout.size for name, layout in run.trainable.layouts.items()}
        check_disk_space(path, sizes)
        yield run


def save_trained(
    run: TrainingRun,
    result: TrainResult,
    *,
    force: bool,
    check: Callable[[Path], None] | None = None,
) -> TrainResult:
    """Write the output of a run, remove its folder, and return the result with all warnings.

    Args:
        run: The run.
        result: What it returned.
        force: As in `train`.
        check: Of the complete output, before it is moved into place.
    """
    warnings = (*run.source.warnings, *run.warnings, *_warnings(run, result))
    result = replace(result, warnings=warnings)
    write_output(trained_output(run, result), force=force, check=check)
    run.folder.remove()
    return result


def plan_run(source: TrainingSource, output: Path) -> TrainingPlan:
    """Plan a run that writes `output`; see `plan_training`.

    The text of one step is read, and its token ids are written to a folder that is removed again.

    Raises:
        CtxextendError: As `train`, if the run could not start.
    """
    settings = source.settings
    first_step = replace(source.recipe, train=replace(settings, steps=1))
    with TemporaryDirectory() as folder:
        run = TrainingRun(replace(source, recipe=first_step), RunFolder(Path(folder)))
    return TrainingPlan(
        output=output,
        source=source.recipe.checkpoint.source,
        trainable=str(run.settings.trainable),
        lora=settings.lora,
        precision=str(run.settings.precision),
        steps=settings.steps,
        batch_size=settings.batch_size,
        seq_len=run.span,
        window=run.length,
        notes=run.notes,
        warnings=run.warnings,
    )


def _summary(run: TrainingRun) -> str:
    settings = run.settings
    # The value of --trainable says it, unless adapters are trained too.
    trained = settings.trainable if settings.lora is None else settings.trained_text
    parts = [
        f"{counted(run.trainable.count, 'trainable parameter')} ({trained})",
        f"{counted(settings.steps, 'step')} of {counted(settings.batch_size, 'sequence')} of "
        f"{run.length:,} tokens",
        f"micro-batch {run.micro_batches[0]} on {run.device}",
        settings.precision,
        f"lr {run.lr:.3g}",
    ]
    if settings.distill and run.distils_table:
        parts.append("distilled from its base")
    elif settings.distill:
        parts.append(f"distilled from its base with weight {settings.distill:g}")
    return ", ".join(parts)


def _warnings(run: TrainingRun, result: TrainResult) -> Iterator[str]:
    settings = run.settings
    if not result.has_fallen or result.loss_last > result.loss_before:
        yield _loss_warning(settings, result)
    planned = run.planned_steps
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
