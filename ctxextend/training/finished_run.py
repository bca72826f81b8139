"""A finished training run, from which recipe, card and output are created."""

from dataclasses import dataclass, replace

from ctxextend.opening.opened_model import OpenedModel
from ctxextend.recipe import Recipe
from ctxextend.settings import Train
from ctxextend.training.train_result import TrainResult
from ctxextend.training.trained_weights import TrainedWeights
from ctxextend.training.training_run import RunFolder
from ctxextend.training.training_task import TrainingTask


@dataclass(frozen=True)
class FinishedRun:
    """A finished training run, whose output is to be written."""

    recipe: Recipe  # as the user gave it
    source: OpenedModel  # the checkpoint that it started from, before a resize or conversion
    task: TrainingTask
    weights: TrainedWeights
    folder: RunFolder
    result: TrainResult

    @property
    def settings(self) -> Train:
        """The settings of training with all defaults filled in."""
        return replace(
            self.task.settings,
            lr=self.result.lr,
            per_device_batch_size=self.result.per_device_batch_size,
        )
