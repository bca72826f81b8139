"""Run a recipe file as the command does: check its source and texts, plan, and take its steps."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctxextend.checkpoint.features import LOAD
from ctxextend.errors import DataError, RecipeError
from ctxextend.held_out import fingerprint, text_key, trained_texts
from ctxextend.opening.opened_model import open_model
from ctxextend.pipeline import RunResult, run_recipe
from ctxextend.plan import make_plan
from ctxextend.planned import Planned, planned_conversion, planned_resize
from ctxextend.progress import Events, Silence
from ctxextend.provenance import check_source, step_of
from ctxextend.recipe import Recipe, RecipeFile, read_recipe
from ctxextend.resizing import check_before_writing
from ctxextend.settings import Run, Train
from ctxextend.text_data import check_paths


def run(
    recipe: str | os.PathLike[str] | Recipe,
    output: str | os.PathLike[str] | None = None,
    *,
    changes: Sequence[str] = (),
    force: bool = False,
    resume: bool = False,
) -> RunResult:
    """Run the steps of a recipe: resize or convert, train, evaluate.

    Paths in a recipe file are relative to its folder. For the recipe of an output, the source must
    have the recorded fingerprint, which samples tensors larger than 12 KiB, and a training text the
    recorded SHA-256.

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
        CtxextendError: As `resize`, `train` and `evaluate`.
        TrainingInterrupted: A signal such as Ctrl-C arrived during training; see `train`.
    """
    if not isinstance(recipe, Recipe):
        file = read_recipe(os.fspath(recipe), changes)
    elif changes:
        message = "Changes apply only to recipe files."
        raise RecipeError(message, "Pass a Recipe with the final values.")
    else:
        file = RecipeFile(recipe, {}, {})
    return run_file(file, Run(output=output, force=force, resume=resume))


def run_file(file: RecipeFile, settings: Run, events: Events | None = None) -> RunResult:
    """Run a recipe that was read; `events` says what the steps report. See `run`."""
    events = events or Silence()
    recipe = _with_recorded_threads(file)
    if settings.output is None and recipe.output is not None:
        settings = replace(settings, output=recipe.output)
    planned = _plan(file)
    if settings.resume and recipe.train is None:
        message = "The recipe has no train section, so there is nothing to resume."
        raise RecipeError(message, "Remove --resume.")
    if settings.output is not None and recipe.train is None and planned is None:
        message = "The recipe neither resizes, converts nor trains"
        raise RecipeError(
            f"{message}, so {settings.output} would not be written.",
            "Remove the output, or add a resize, convert or train section.",
        )
    if planned is not None:
        if not settings.dry_run:
            check_before_writing(recipe, planned, settings)
        events.warning(*planned.warnings)
    if not settings.dry_run:
        return run_recipe(recipe, planned, settings, events)
    result = RunResult(
        output=settings.output, train=recipe.train, evaluate=recipe.evaluate, dry_run=True
    )
    if planned is None:
        return result
    resized = planned.dry_run(settings.output, force=settings.force)
    return replace(result, output=resized.output, resize=resized)


def _with_recorded_threads(file: RecipeFile) -> Recipe:
    """Return the recipe of a trained output with the CPU threads that trained it.

    Other threads add numbers in another order, so weights would differ. Recipes state no threads:
    those that a user writes run on any machine.
    """
    train = file.recipe.train
    facts: Any = file.provenance.get("trained")
    if train is None or train.threads is not None or not isinstance(facts, dict):
        return file.recipe
    threads = facts.get("threads")
    if type(threads) is not int or not 0 < threads <= (os.cpu_count() or 1):
        return file.recipe
    return replace(file.recipe, train=replace(train, threads=threads))


def _plan(file: RecipeFile) -> Planned | None:
    """Check that source and training text are those of a recipe, and plan its resize or conversion.

    Raises:
        CheckpointError: The source changed after the recipe was written.
        DataError: The training text did.
        CtxextendError: As `resize`.
    """
    recipe = file.recipe
    recorded = step_of(file)
    if recipe.evaluate is not None and recipe.evaluate.data:
        check_paths(recipe.evaluate.data)
    if recipe.train is not None:
        _check_training_text(recipe.train, file.provenance)
    if recipe.resize is None and recipe.convert is None and recorded.fingerprint is None:
        return None
    model = open_model(recipe.checkpoint)
    if any((recipe.convert, recipe.train, recipe.evaluate)):
        model.checkpoint.check(LOAD)
    check_source(model.checkpoint, recipe.checkpoint, recorded.fingerprint)
    if recipe.convert is not None:
        return planned_conversion(model, recipe.convert)
    if recipe.resize is not None:
        return planned_resize(make_plan(model, recipe.resize, recorded.methods))
    return None


def _check_training_text(train: Train, provenance: Mapping[str, Any]) -> None:
    texts = check_paths(train.data)
    facts: Any = provenance.get("trained")
    if not isinstance(facts, dict):
        return
    recorded = list(trained_texts([{"text_field": "", **facts}]))  # in the order of `data`
    if not recorded:
        return
    read = texts[: len(facts["data"])]  # others were not read
    present = {str(text): text_key(fingerprint(text)) for text in read}
    without_copies = list(dict.fromkeys(present.values()))
    if without_copies == recorded:
        return
    message = "The training text is not the one that the recipe was written for"
    changed = [text for text, key in present.items() if key not in recorded]
    if changed:
        message += f": {changed[0]} has changed"
    hint = "Restore it, or train on another text: --set train.data=PATH"
    raise DataError(f"{message}.", hint)
