"""A recipe of several steps carried out: resize, train, evaluate."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.errors import RecipeError
from ctxextend.evaluation.eval_model import check_source
from ctxextend.evaluation.evaluate import EvaluationInterrupted, evaluate_checkpoint
from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.json_output import Result, not_in_json
from ctxextend.plan.find_tables import identify_model, open_reference
from ctxextend.plan.plan import ResizePlan, ResizeResult, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import Recipe
from ctxextend.recipe_file import RecipeFile, read_recipe, source_hashes, table_methods
from ctxextend.text_data import check_texts

if TYPE_CHECKING:
    from ctxextend.training.training_run import TrainResult

# Told what is done and in what it is counted; gives what is told of its progress.
Stages = Callable[[str, str], AbstractContextManager[Progress]]

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True, eq=False, repr=False)
class RunResult(Result, shows="output"):
    """What became of a run."""

    output: Path | None = None  # the new folder, where one was asked for
    resize: ResizeResult | None = field(default=None, metadata=not_in_json)  # where the recipe does not train
    training: "TrainResult | None" = field(default=None, metadata={"json": "train"})
    evaluation: Evaluation | None = field(default=None, metadata={"json": "evaluate"})
    planned: ResizePlan | None = field(default=None, metadata=not_in_json)  # its resize, where the recipe trains

    def json_more(self) -> dict[str, Any]:
        """Return what its JSON says beside its fields."""
        return {"resize": self.resize or self.planned}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What should not be missed of any step."""
        steps = (self.resize, self.training, self.evaluation)
        return tuple(warning for step in steps if step is not None for warning in step.warnings)


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C while the output of a run was measured; `result` is what was done until then."""

    def __init__(self, result: RunResult) -> None:
        super().__init__("interrupted")
        self.result = result


def run_recipe(
    recipe: Recipe,
    plan: ResizePlan | None,
    output: Folder = None,
    *,
    force: bool = False,
    resume: bool = False,
    progress: Stages = lambda what, of: nullcontext(no_progress),
    notify: Callable[[str], None] = lambda text: None,
) -> RunResult:
    """Resize by a plan, train and evaluate, as far as a recipe asks for it; see `run`.

    Of several processes that train together, each calls this, and the first alone evaluates. `progress` is called at
    the start of each step, `tell` with what should be known before a training begins.
    """
    folder = recipe.output if output is None else output
    # What a step behind a long training would refuse is refused now.
    if resume and recipe.train is None:
        raise RecipeError("The recipe asks for no training, so there is none to go on with.", "Leave out --resume.")
    if folder is not None and recipe.train is None and plan is None:
        raise RecipeError(f"The recipe makes no checkpoint that could go to {folder}.", "Leave out the output.")
    if recipe.evaluate is not None:
        check_texts(recipe.evaluate.data, recipe.evaluate.text_field)
    result = RunResult()
    if recipe.train is not None:
        from ctxextend.training.train import train_recipe

        with progress("Training", "tokens") as moved:
            trained = train_recipe(recipe, folder, plan=plan, force=force, resume=resume, notify=notify, progress=moved)
        result = RunResult(trained.output, training=trained, planned=plan)
    elif plan is not None:
        with progress("Writing", "bytes") as moved:
            resized = plan.execute(folder, force=force, progress=moved)
        result = RunResult(resized.output, resize=resized)
    if recipe.evaluate is None or (result.training and not result.training.is_first):
        return result
    measured = recipe.checkpoint
    if (made := result.output) is not None:
        name = str(made) if made.is_absolute() else f".{os.sep}{made}"  # no id of the Hub begins with a dot
        measured = replace(measured, source=name, revision=None, subfolder=None)
    try:
        with progress("Reading", "tokens") as moved:
            return replace(result, evaluation=evaluate_checkpoint(measured, recipe.evaluate, moved))
    except EvaluationInterrupted as stop:
        raise RunInterrupted(replace(result, evaluation=stop.evaluation)) from None


def plan_run(written: RecipeFile) -> ResizePlan | None:
    """See that a run's source is what its recipe says, and plan its resize if there is one; nothing is written."""
    recipe, hashes = written.recipe, source_hashes(written.provenance)
    if recipe.resize is None and not hashes:
        return None
    checkpoint = open_reference(recipe.checkpoint)
    check_source(checkpoint, recipe.checkpoint, hashes)
    if recipe.resize is None:
        return None
    return plan_model(identify_model(checkpoint, recipe.checkpoint), recipe.resize, table_methods(written))


def run(
    recipe: str | os.PathLike[str] | Recipe,
    output: Folder = None,
    *,
    changes: Sequence[str] = (),
    force: bool = False,
    resume: bool = False,
) -> RunResult:
    """Do what a recipe file asks for: resize, train and evaluate, one behind the other.

    Paths in the file count from its folder. Where it lies in an output, its source is checked by a fingerprint of the
    weights, which cannot see a change inside a tensor of more than 12 KiB that spares its start, middle and end.

    Args:
        recipe: The file, such as the ``ctxextend.yaml`` in any output, the name of a shipped one, or a `Recipe`.
        output: The new folder; None is what the recipe says, and else ``<name>-<length>`` in the current folder.
        changes: What to put in place of what the file says, each as ``key=value``: ``train.steps=100``.
        force: Replace an existing checkpoint folder at the last moment.
        resume: Go on with a training that was stopped.

    Raises:
        RecipeError: The file cannot be read; the message holds everything that is wrong in it.
        CheckpointError: The source is no longer what it was when the recipe was written.
        CtxextendError: As `plan_resize`, `ResizePlan.execute`, `train` and `evaluate`.
        TrainingInterrupted: Ctrl-C or another signal while it trained; it says what is saved.
        RunInterrupted: Ctrl-C while the output was measured; it holds what was done.
    """
    if isinstance(recipe, Recipe):
        if changes:
            raise RecipeError("Changes are made to what a file says.", "Give the Recipe as it should be.")
        written = RecipeFile(recipe, {}, {})
    else:
        written = read_recipe(os.fspath(recipe), changes)
    return run_recipe(written.recipe, plan_run(written), output, force=force, resume=resume)
