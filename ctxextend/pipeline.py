"""Run the steps of a recipe: resize or convert, train, evaluate."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ctxextend.json_output import Result
from ctxextend.planned import Planned, ResizeResult
from ctxextend.progress import Events
from ctxextend.recipe import Recipe
from ctxextend.settings import Candidates, Evaluate, Run, Train
from ctxextend.text_data import check_texts

if TYPE_CHECKING:
    from ctxextend.lab.evaluation import Evaluation
    from ctxextend.training.train_result import TrainResult

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True, eq=False, repr=False)
class RunResult(Result, shows=("output",)):
    """The results of a recipe's steps."""

    output: Path | None = None  # output folder, if the recipe creates a checkpoint
    # The resize or conversion; of a recipe that trains, it is planned, and written after that.
    resize: ResizeResult | Planned | None = None
    train: "TrainResult | Train | None" = None  # of a dry run, the settings; so of `evaluate`
    evaluate: "Evaluation | Evaluate | None" = None
    dry_run: bool = False  # True if nothing was written

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the training and of the evaluation; `resize` has notes."""
        warnings = list[str]()
        for step in (self.train, self.evaluate):
            if isinstance(step, Result):
                warnings += step.warnings
        return tuple(warnings)


def run_recipe(recipe: Recipe, planned: Planned | None, run: Run, events: Events) -> RunResult:
    """Run the steps of a recipe; see `run`.

    Args:
        recipe: The steps.
        planned: Its resize or conversion.
        run: Where the output is saved, and whether a training run is resumed.
        events: What the steps report.
    """
    evaluate = recipe.evaluate
    if evaluate is not None:  # fail now rather than after a long training run
        from ctxextend.lab.search_set import read_search_set

        if evaluate.data:
            check_texts(evaluate.data, evaluate.text_field, imports_datasets=True)
        read_search_set(evaluate)
    result = RunResult()
    if recipe.train is not None:
        from ctxextend.training.training_source import TrainingSource

        source = TrainingSource.open(recipe, planned)
        source.check_start(run.output, force=run.force)

        from ctxextend.training.train import train_source

        with events.progress("Training", "tokens") as step:
            trained = train_source(
                source,
                run.output,
                force=run.force,
                resume=run.resume,
                notify=events.note,
                progress=step,
            )
        result = RunResult(output=trained.output, resize=planned, train=trained)
    elif planned is not None:
        with events.progress("Writing") as step:
            resized = planned.execute(run.output, force=run.force, progress=step)
        result = RunResult(output=resized.output, resize=resized)
    if evaluate is None:
        return result
    from ctxextend.lab.evaluate import evaluate_models

    with events.progress("Reading", "tokens") as step:
        ref = recipe.checkpoint
        output = result.output
        if output is not None:
            path = str(output) if output.is_absolute() else f".{os.sep}{output}"  # not a Hub id
            ref = replace(ref, source=path, revision=None, subfolder=None)
        evaluation = evaluate_models(ref, Candidates(models=ref.source), evaluate, step)
    return replace(result, evaluate=evaluation)
