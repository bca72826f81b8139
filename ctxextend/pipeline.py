"""A recipe of several steps carried out: resize, train, evaluate."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.errors import RecipeError
from ctxextend.evaluation.eval_model import check_tables
from ctxextend.evaluation.evaluate import EvaluationInterrupted, evaluate_checkpoint
from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.json_output import to_json
from ctxextend.plan.find_tables import identify_model, open_reference
from ctxextend.plan.plan import ResizePlan, ResizeResult, plan_model
from ctxextend.provenance import table_hashes
from ctxextend.recipe import CheckpointRef, Recipe
from ctxextend.recipe_file import RecipeFile, read_recipe
from ctxextend.text_data import check_texts

if TYPE_CHECKING:
    from ctxextend.training.training_result import TrainResult

__all__ = ["RunInterrupted", "RunPlan", "RunResult", "plan_run", "run"]

# Told what is done and in what it is counted; gives the function that is told how many were done and there are.
Stages = Callable[[str, str], AbstractContextManager[Callable[..., None]]]

Folder = str | os.PathLike[str] | None


@contextmanager
def _silent(what: str, of: str) -> Iterator[Callable[..., None]]:
    yield lambda done, total, said="": None


@dataclass(frozen=True)
class RunResult:
    """What became of a run.

    Attributes:
        output: The new folder; None where none was asked for.
        resize: What was written, where the recipe resizes and does not train.
        planned: What its resize did, where the recipe then trains.
        training: What was trained and written, where the recipe trains.
        evaluation: What was measured, where the recipe evaluates.
    """

    output: Path | None = None
    resize: ResizeResult | None = None
    training: "TrainResult | None" = None
    evaluation: Evaluation | None = None
    planned: ResizePlan | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What should not be missed of any step."""
        steps = (self.resize, self.training, self.evaluation)
        return tuple(warning for step in steps if step is not None for warning in step.warnings)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and prints, where several trained together."""
        return self.training is None or self.training.is_first

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, in the words of ``--json``."""
        return {
            "output": None if self.output is None else str(self.output),
            "resize": to_json(self.resize or self.planned),
            "train": to_json(self.training),
            "evaluate": to_json(self.evaluation),
        }


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C while the output of a run was measured.

    Attributes:
        result: What was done until then.
    """

    def __init__(self, result: RunResult) -> None:
        super().__init__("interrupted")
        self.result = result


@dataclass(frozen=True)
class RunPlan:
    """A run whose source was found to be what its recipe says; `execute` does it.

    Attributes:
        recipe: What is asked for.
        resize: What its resize will do; None where none is asked for.
    """

    recipe: Recipe
    resize: ResizePlan | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before the plan is carried out."""
        return () if self.resize is None else self.resize.warnings

    def output(self, output: Folder = None) -> Folder:
        """Return where the new folder goes, given what was asked for; None where a step names it itself."""
        return self.recipe.output if output is None else output

    def execute(
        self,
        output: Folder = None,
        *,
        force: bool = False,
        resume: bool = False,
        progress: Stages = _silent,
        tell: Callable[[str], None] = lambda text: None,
    ) -> RunResult:
        """Resize, train and evaluate, as far as the recipe asks for it.

        Of several processes that train together, each calls this, and the first alone evaluates.

        Args:
            output: The new folder; None is what the recipe says, and else `<name>-<length>`.
            force: Replace an existing checkpoint folder at the last moment.
            resume: Go on with a training that was stopped.
            progress: Called at the start of each step that counts bytes or tokens.
            tell: Told what should be known before a training begins.

        Raises:
            CtxextendError: As `ResizePlan.execute`, `train` and `evaluate`.
            TrainingInterrupted: Ctrl-C or another signal while it trained; it says what is saved.
            RecipeError: An output or a training to go on with is named, and the recipe asks for none.
            RunInterrupted: Ctrl-C while the output was measured; it holds what was done.
        """
        folder = self.output(output)
        self._check(folder, resume=resume)
        if self.recipe.train is None:
            result = self._make(folder, progress, force=force)
        else:
            result = self._train(folder, progress, {"force": force, "resume": resume, "tell": tell})
        if self.recipe.evaluate is None or not result.is_first:
            return result
        try:
            with progress("Reading", "tokens") as moved:
                return replace(
                    result, evaluation=evaluate_checkpoint(self._measured(result), self.recipe.evaluate, moved)
                )
        except EvaluationInterrupted as stop:
            raise RunInterrupted(replace(result, evaluation=stop.evaluation)) from None

    def _check(self, folder: Folder, *, resume: bool) -> None:
        """Refuse what the steps behind a long training would refuse when it is done."""
        if resume and self.recipe.train is None:
            raise RecipeError("The recipe asks for no training, so there is none to go on with.", "Leave out --resume.")
        if folder is not None and self.recipe.train is None and self.resize is None:
            raise RecipeError(f"The recipe makes no checkpoint that could go to {folder}.", "Leave out the output.")
        if self.recipe.evaluate is not None:
            check_texts(self.recipe.evaluate.data, self.recipe.evaluate.text_field)

    def _train(self, folder: Folder, stages: Stages, options: Mapping[str, Any]) -> RunResult:
        from ctxextend.training.train import train_recipe

        with stages("Training", "tokens") as moved:
            trained = train_recipe(self.recipe, folder, plan=self.resize, progress=moved, **options)
        return RunResult(trained.output, training=trained, planned=self.resize)

    def _make(self, folder: Folder, stages: Stages, *, force: bool) -> RunResult:
        if (plan := self.resize) is None:
            return RunResult()
        with stages("Writing", "bytes") as moved:
            resized = plan.execute(folder, force=force, progress=lambda done: moved(done, plan.bytes_to_write))
        return RunResult(resized.output, resize=resized)

    def _measured(self, result: RunResult) -> CheckpointRef:
        """Return what is measured: the output, or the source where there is none."""
        ref = self.recipe.checkpoint
        if result.output is None:
            return ref
        # No id of the Hub begins so.
        folder = str(result.output) if result.output.is_absolute() else f".{os.sep}{result.output}"
        return replace(ref, source=folder, revision=None, subfolder=None)


def plan_run(written: RecipeFile) -> RunPlan:
    """See that a run's source is what its recipe says, and plan its resize; nothing is written.

    Raises:
        CtxextendError: As `plan_recipe`.
        CheckpointError: The source is no longer what it was when the recipe was written.
    """
    recipe, resized = written.recipe, None
    hashes = table_hashes(written.provenance)
    if recipe.resize is not None or hashes:
        checkpoint = open_reference(recipe.checkpoint)
        check_tables(checkpoint, recipe.checkpoint, hashes, "when this recipe was written")
        if recipe.resize is not None:
            model = identify_model(checkpoint, recipe.checkpoint, typed=recipe.typed)
            resized = plan_model(model, recipe.resize)
    return RunPlan(recipe, resized)


def run(
    recipe: str | os.PathLike[str] | Recipe,
    output: Folder = None,
    *,
    changes: Sequence[str] = (),
    force: bool = False,
    resume: bool = False,
) -> RunResult:
    """Do what a recipe file asks for: resize, train and evaluate, one behind the other.

    Args:
        recipe: The file, such as the ``ctxextend.yaml`` beside any output, or a `Recipe`.
        output: The new folder; None is what the recipe says, and else ``<name>-<length>`` in the current folder.
        changes: What to put in place of what the file says, each as ``key=value``: ``train.steps=100``.
        force: Replace an existing checkpoint folder at the last moment.
        resume: Go on with a training that was stopped.

    Raises:
        RecipeError: The file cannot be read; the message holds everything that is wrong in it.
        CtxextendError: As `plan_run` and `RunPlan.execute`.
        RunInterrupted: As `RunPlan.execute`.
    """
    if isinstance(recipe, Recipe):
        if changes:
            raise RecipeError("Changes are made to what a file says.", "Give the Recipe as it should be.")
        written = RecipeFile(recipe)
    else:
        written = read_recipe(os.fspath(recipe), changes)
    return plan_run(written).execute(output, force=force, resume=resume)
