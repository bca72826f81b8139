"""Train a checkpoint, or plan it: most errors are found before torch is imported."""

import os
from typing import TYPE_CHECKING

from ctxextend.keywords import keyword_arguments
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import Recipe
from ctxextend.settings import CheckpointRef, Run, Train
from ctxextend.training.training_source import TrainingSource

if TYPE_CHECKING:
    from ctxextend.training.train_result import TrainingPlan, TrainResult


NOT_FOR_TRAINING = ("table", "trained_length")


@keyword_arguments(CheckpointRef, Train, Run, without=NOT_FOR_TRAINING)
def train(
    ref: CheckpointRef, settings: Train, saving: Run, progress: Progress = no_progress
) -> "TrainResult":
    """Fine-tune a checkpoint on text, and save it as a new checkpoint.

    Causal and masked language models learn to predict tokens; encoders without an LM head are
    distilled from their base checkpoint, so that they reproduce, on long texts, its hidden states
    on windows that it can read.

    Raises:
        CtxextendError: As `resize`; or windows are used and the model does not accept position ids.
        DataError: The text cannot be read or is too short.
        TrainingError: Training failed to start, resume or finish.
        OutputError: The output or a saved state cannot be written.
        TrainingInterrupted: A signal such as Ctrl-C arrived; it has the step and folder of the
            saved state.
    """
    recipe = Recipe(ref, train=settings)
    source = TrainingSource.open(recipe, None)
    source.check_start(saving.output, force=saving.force)

    from ctxextend.training.train import train_source

    return train_source(
        source,
        saving.output,
        force=saving.force,
        resume=saving.resume,
        progress=progress,
    )


@keyword_arguments(CheckpointRef, Train, Run, without=(*NOT_FOR_TRAINING, "resume"))
def plan_training(ref: CheckpointRef, settings: Train, saving: Run) -> "TrainingPlan":
    """Check a training run, and say what it would train.

    No weights are loaded, and only temporary files are written. Of a long text, only the start is
    read.

    Raises:
        CtxextendError: As `train`, if the run could not start.
    """
    recipe = Recipe(ref, train=settings)
    return plan_recipe_training(recipe, saving.output, force=saving.force)


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
