"""`ctxextend run`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.evaluate import add_evaluation
from ctxextend.cli.run_steps import execute
from ctxextend.cli.show_result import show_plan
from ctxextend.cli.tables import Page


def run(
    recipe: Annotated[
        Path,
        typer.Argument(
            metavar="RECIPE",
            readable=False,
            help="Recipe file, or a name from `ctxextend recipes`.",
            autocompletion=options.complete_recipe,
        ),
    ],
    changes: Annotated[
        list[str] | None, options.basic("--set KEY=VALUE", "Override a value of the recipe.")
    ] = None,
    output: Annotated[Path | None, options.output_folder("from the recipe")] = None,
    force: options.Force = False,
    resume: options.Resume = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Resize, train and evaluate with the settings of a recipe file.

    Examples:
        ctxextend run gpt2-4096 --set train.steps=500
        ctxextend run tiny-gpt2-512/ctxextend.yaml --output again
        ctxextend run recipe.yaml --set train.steps=100 --set evaluate=null --dry-run

    Keys are the flags of resize, train and evaluate with underscores, e.g. resize.keep_first. Paths
    in a recipe are relative to its folder. The source and the training text of an output's recipe
    must not have changed.
    """
    from ctxextend.evaluation.evaluation_result import Evaluation
    from ctxextend.pipeline import RunResult, plan_run, with_recorded_threads
    from ctxextend.recipe_file import read_recipe
    from ctxextend.resizing import announce, check_can_write

    console = Console(as_json, quiet)
    recipe_file = with_recorded_threads(read_recipe(recipe, changes or ()))
    settings = recipe_file.recipe
    folder = output
    if folder is None and settings.output:
        folder = Path(settings.output)
    planned = plan_run(recipe_file)
    if planned is not None:
        if not dry_run:
            check_can_write(settings, planned, folder, force=force)
        announce(planned, console)
    if dry_run:
        resized = None
        if planned is not None:
            resized = planned.dry_run(folder, force=force)
            folder = resized.output
        show_plan(console, settings, resized, folder)
        planned_run = RunResult(
            output=folder,
            resize=resized,
            train=settings.train,
            evaluate=settings.evaluate,
            dry_run=True,
        )
        console.result("run", planned_run)
        return
    result = execute(console, settings, planned, output, force=force, resume=resume)
    evaluation = result.evaluate
    if not isinstance(evaluation, Evaluation):
        console.result("run", result, result.warnings)
        return
    page = Page.for_stdout()
    add_evaluation(page, evaluation)
    console = replace(console, is_path_only=result.output is not None)
    console.measurement("run", evaluation, page.lines, files=[], value=result)
