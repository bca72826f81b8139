"""`ctxextend run`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.evaluate import add_evaluation
from ctxextend.cli.run_steps import execute, push
from ctxextend.cli.show_result import show_plan
from ctxextend.cli.tables import Page
from ctxextend.errors import RecipeError
from ctxextend.json_output import to_json


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
    push_to_hub: options.PushToHub = None,
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
    from ctxextend.pipeline import plan_run, with_recorded_threads
    from ctxextend.recipe_file import read_recipe
    from ctxextend.resizing import announce, check_can_write, check_upload

    console = Console(as_json, quiet)
    with _errors_in_changes():
        recipe_file = with_recorded_threads(read_recipe(recipe, changes or ()))
    settings = recipe_file.recipe
    folder = output
    if folder is None and settings.output:
        folder = Path(settings.output)
    planned = plan_run(recipe_file)
    if push_to_hub and planned is None and settings.train is None:
        raise options.WrongFlags(
            "--push-to-hub does not apply: this recipe creates no checkpoint.", "Remove it."
        )
    if planned is not None:
        if push_to_hub:
            check_upload(planned.plan.checkpoint)
        if not dry_run:
            check_can_write(settings, planned, folder, force=force)
        announce(planned, console)
    if dry_run:
        values, warnings = show_plan(console, settings, planned, folder, force=force)
        console.result("run", values, warnings)
        return
    result = execute(console, settings, planned, output, force=force, resume=resume)
    evaluation = result.evaluation
    values = to_json(result) | {"dry_run": False, "warnings": result.warnings}
    values |= push(console, result.output, push_to_hub)
    if evaluation is None:
        console.result("run", values)
        return
    page = Page.for_stdout()
    add_evaluation(page, evaluation)
    console = replace(console, is_path_only=result.output is not None)
    console.measurement("run", evaluation, page.lines, files=[], value=values)


@contextmanager
def _errors_in_changes() -> Iterator[None]:
    """Turn the errors of a recipe into a usage error if all of them are in values of --set."""
    try:
        yield
    except RecipeError as error:
        if all(line.startswith("--set ") for line in error.message.split("\n")):
            raise typer.BadParameter(str(error)) from error
        raise
