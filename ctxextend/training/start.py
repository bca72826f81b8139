"""Train a checkpoint, or plan it: most errors are found before torch is imported."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import (
    TABLE_KEYS,
    CheckpointRef,
    Recipe,
    Train,
    accepts_settings,
    path_names,
    split_ref,
)
from ctxextend.training.training_source import TrainingSource

if TYPE_CHECKING:
    from ctxextend.training.train_result import TrainingPlan, TrainResult


@accepts_settings(CheckpointRef, Train, without=TABLE_KEYS)
def train(
    reference: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    steps: int,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    resume: bool = False,
    progress: Progress = no_progress,
    **settings: Any,
) -> "TrainResult":
    """Fine-tune a checkpoint on text, and save it as a new checkpoint.

    Causal and masked language models learn to predict tokens; encoders without an LM head are
    distilled from their base checkpoint, so that they reproduce, on long texts, its hidden states
    on windows that it can read. Under torchrun or accelerate, call this in every process; the main
    process saves.

    Args:
        reference: As in `resize`.
        data: Text files, folders, .jsonl, .parquet, or Hub datasets as ``hf:OWNER/NAME``.
        steps: Optimizer steps, ≥ 1.
        output: The new folder; by default ``<name>-trained`` in the current folder.
        force: Replace an existing checkpoint folder, and discard the saved state of an interrupted
            run.
        resume: Resume from the last saved state, if there is one.
        progress: Called with the tokens of each step, and its loss.
        settings: Other fields of `Train`: ``trainable``, ``seq_len``, ``window``, …;
            and ``revision``, ``subfolder``, ``variant`` and ``model_type`` as in `resize`.

    Raises:
        CtxextendError: As `resize`; or windows are used and the model does not accept position ids.
        DataError: The text cannot be read or is too short.
        TrainingError: Training failed to start, resume or finish.
        OutputError: The output or a saved state cannot be written.
        TrainingInterrupted: A signal such as Ctrl-C arrived; it has the step and folder of the
            saved state.
    """
    recipe = _recipe(reference, data, steps, settings)
    source = TrainingSource.open(recipe, None)
    source.check_start(output, force=force, resume=resume)

    from ctxextend.training.train import train_recipe

    return train_recipe(
        recipe, output, source=source, force=force, resume=resume, progress=progress
    )


@accepts_settings(CheckpointRef, Train, without=TABLE_KEYS)
def plan_training(
    reference: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    steps: int,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    **settings: Any,
) -> "TrainingPlan":
    """Check a training run, and say what it would train.

    No weights are loaded, and only temporary files are written. Of a long text, only the start is
    read.

    Args:
        reference, data, steps, output, force, settings: As in `train`.

    Raises:
        CtxextendError: As `train`, if the run could not start.
    """
    return plan_recipe_training(_recipe(reference, data, steps, settings), output, force=force)


def plan_recipe_training(
    recipe: Recipe, output: str | os.PathLike[str] | None = None, *, force: bool = False
) -> "TrainingPlan":
    """Plan the training of a recipe that neither resizes nor converts; see `plan_training`.

    Raises:
        CtxextendError: As `plan_training`.
    """
    source = TrainingSource.open(recipe, None)
    source.check_start(output, force=force)

    from ctxextend.training.train import plan_run

    return plan_run(source, source.output_path(output))


def _recipe(
    reference: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    steps: int,
    settings: dict[str, Any],
) -> Recipe:
    """Return the recipe of a training run."""
    ref, others = split_ref(reference, settings)
    others["eval_data"] = path_names(others.get("eval_data") or (), "eval_data")
    return Recipe(ref, train=Train(path_names(data), steps, **others))
