"""Run the steps of a recipe, and print what they did; shared by several commands."""

import shlex
from typing import TYPE_CHECKING

from ctxextend.cli.console import Console
from ctxextend.cli.show_result import show_output
from ctxextend.cli.show_training import show_training

if TYPE_CHECKING:
    from ctxextend.pipeline import RunResult
    from ctxextend.planned import Planned
    from ctxextend.recipe import Recipe
    from ctxextend.settings import Run


def execute(
    console: Console, recipe: "Recipe", planned: "Planned | None", run: "Run"
) -> "RunResult":
    """Run a recipe and print its result.

    Raises:
        TrainingInterrupted: Training was interrupted.
        CtxextendError: As `run_recipe`.
    """
    from ctxextend.pipeline import run_recipe
    from ctxextend.planned import ResizeResult
    from ctxextend.training.train_result import TrainResult

    result = run_recipe(recipe, planned, run, console)
    if isinstance(result.resize, ResizeResult):
        show_output(console, result.resize)
    elif isinstance(result.train, TrainResult):
        show_training(console, result.train)
        console.data(str(result.train.output))
        is_adapter = recipe.train is not None and recipe.train.save_adapter
        if result.evaluate is None and not is_adapter:
            folder = shlex.quote(str(result.train.output))
            console.next_steps(f"ctxextend evaluate {folder} --data TEXT")
    return result
