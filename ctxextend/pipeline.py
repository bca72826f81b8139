"""Run the steps of a recipe: resize or convert, train, evaluate."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.conversion.convert import plan_conversion
from ctxextend.errors import DataError, RecipeError
from ctxextend.evaluation.eval_model import check_source
from ctxextend.evaluation.evaluate import EvaluationInterrupted, evaluate_checkpoint
from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.evaluation.search import read_search_set
from ctxextend.held_out import fingerprint, text_key, trained_texts
from ctxextend.json_output import Result, not_in_json
from ctxextend.plan.find_tables import open_model
from ctxextend.plan.plan import ResizePlan, ResizeResult, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import Recipe
from ctxextend.recipe_file import RecipeFile, read_recipe, source_hashes, table_methods
from ctxextend.text_data import check_paths, check_texts

if TYPE_CHECKING:
    from ctxextend.training.train_result import TrainResult

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True, eq=False, repr=False)
class RunResult(Result, shows="output"):
    """The results of a recipe's steps."""

    output: Path | None = None  # output folder, if the recipe creates a checkpoint
    resize: ResizeResult | None = field(
        default=None, metadata=not_in_json
    )  # of a recipe that does not train
    training: "TrainResult | None" = field(default=None, metadata={"json": "train"})
    evaluation: Evaluation | None = field(default=None, metadata={"json": "evaluate"})
    planned: ResizePlan | None = field(
        default=None, metadata=not_in_json
    )  # resize of a recipe that trains

    def json_more(self) -> dict[str, Any]:
        """Return the JSON values that are not fields."""
        return {"resize": self.resize or self.planned}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all steps."""
        steps = (self.resize, self.training, self.evaluation)
        return tuple(warning for step in steps if step is not None for warning in step.warnings)


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during the evaluation of a recipe; `result` has the finished steps and the evaluation
    so far.
    """

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
    progress: Callable[[str, str], AbstractContextManager[Progress]] = lambda label, unit: (
        nullcontext(no_progress)
    ),
    notify: Callable[[str], None] = lambda text: None,
) -> RunResult:
    """Run the steps of a recipe; see `run`. In distributed training, only the first process
    evaluates.
    """
    folder = recipe.output if output is None else output
    # Fail now rather than after a long training run.
    if resume and recipe.train is None:
        raise RecipeError(
            "The recipe has no train section, so there is nothing to resume.", "Remove --resume."
        )
    if folder is not None and recipe.train is None and plan is None:
        message = (
            f"The recipe neither resizes, converts nor trains, so {folder} would not be written."
        )
        raise RecipeError(message, "Remove the output, or add a resize, convert or train section.")
    if recipe.evaluate is not None:
        if recipe.evaluate.data:
            check_texts(recipe.evaluate.data, recipe.evaluate.text_field)
        read_search_set(recipe.evaluate)
    result = RunResult()
    if recipe.train is not None:
        from ctxextend.training.train import train_recipe

        with progress("Training", "tokens") as step:
            trained = train_recipe(
                recipe, folder, plan=plan, force=force, resume=resume, notify=notify, progress=step
            )
        result = RunResult(trained.output, training=trained, planned=plan)
    elif plan is not None:
        with progress("Writing", "bytes") as step:
            resized = plan.execute(folder, force=force, progress=step)
        result = RunResult(resized.output, resize=resized)
    if recipe.evaluate is None or (result.training and not result.training.is_first):
        return result
    ref = recipe.checkpoint
    if (written := result.output) is not None:
        source = str(written) if written.is_absolute() else f".{os.sep}{written}"  # not a Hub id
        ref = replace(ref, source=source, revision=None, subfolder=None)
    try:
        with progress("Reading", "tokens") as step:
            return replace(result, evaluation=evaluate_checkpoint(ref, recipe.evaluate, step))
    except EvaluationInterrupted as error:
        raise RunInterrupted(replace(result, evaluation=error.evaluation)) from None


def plan_run(file: RecipeFile) -> ResizePlan | None:
    """Check that source and training text are those of a recipe, and plan its resize or conversion;
    write nothing.
    """
    recipe = file.recipe
    hashes = source_hashes(file.provenance)
    if recipe.evaluate is not None and recipe.evaluate.data:
        check_paths(recipe.evaluate.data)
    texts = check_paths(recipe.train.data) if recipe.train else ()
    facts: Any = file.provenance.get("trained")
    if isinstance(facts, dict) and (recorded := [*trained_texts([{"text_field": "", **facts}])]):
        keys = {
            text: text_key(fingerprint(text)) for text in texts[: len(facts["data"])]
        }  # others were not read
        if [*dict.fromkeys(keys.values())] != recorded:
            changed = next(
                (f": {text} has changed" for text, key in keys.items() if key not in recorded), ""
            )
            message = f"The training text is not the one that the recipe was written for{changed}."
            raise DataError(message, "Restore it, or train on another text: --set train.data=PATH")
    if recipe.resize is None and recipe.convert is None and not hashes:
        return None
    model = open_model(recipe.checkpoint)
    check_source(
        model.checkpoint, recipe.checkpoint, hashes
    )  # with the names that the recipe was written for
    if recipe.convert is not None:
        return plan_conversion(model, recipe.convert)
    return plan_model(model, recipe.resize, table_methods(file)) if recipe.resize else None


def run(
    recipe: str | os.PathLike[str] | Recipe,
    output: Folder = None,
    *,
    changes: Sequence[str] = (),
    force: bool = False,
    resume: bool = False,
) -> RunResult:
    """Run the steps of a recipe: resize or convert, train, evaluate.

    Paths in a recipe file are relative to its folder. For the recipe of an output, the source must
    have the recorded table hashes and fingerprint, which samples tensors larger than 12 KiB, and a
    training text the recorded SHA-256.

    Args:
        recipe: A recipe file, such as ``ctxextend.yaml`` in any output, the name of a built-in one,
            or a `Recipe`.
        output: Output folder. Defaults to the recipe's ``output``, or ``<name>-<length>`` in the
            current folder (``<name>-trained`` if the recipe does not resize).
        changes: Values that override those in the file, as ``key=value``, such as
            ``train.steps=100``.
        force: Replace an existing checkpoint folder, once the new one is complete.
        resume: Resume an interrupted training run.

    Raises:
        RecipeError: The recipe cannot be read or is invalid; the message lists all errors.
        CheckpointError: The source changed after the recipe was written.
        CtxextendError: As `resize`, `ResizePlan.execute`, `train` and `evaluate`.
        TrainingInterrupted: A signal such as Ctrl-C arrived during training; see `train`.
        RunInterrupted: Ctrl-C was pressed during evaluation; it has the results so far.
    """
    if isinstance(recipe, Recipe) and changes:
        raise RecipeError(
            "Changes apply only to recipe files.", "Pass a Recipe with the final values."
        )
    file = (
        RecipeFile(recipe, {}, {})
        if isinstance(recipe, Recipe)
        else read_recipe(os.fspath(recipe), changes)
    )
    return run_recipe(file.recipe, plan_run(file), output, force=force, resume=resume)
