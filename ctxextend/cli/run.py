"""`ctxextend run`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.evaluate import add_evaluation
from ctxextend.cli.output import Output
from ctxextend.cli.resize import show_plan
from ctxextend.cli.tables import Page
from ctxextend.cli.train import execute, push
from ctxextend.errors import RecipeError
from ctxextend.json_output import to_json


def run(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", readable=False, help="A recipe file, or a name that `recipes` lists.")
    ],
    changes: Annotated[list[str] | None, options.basic("--set KEY=VALUE", "Replace a value of the recipe.")] = None,
    output: Annotated[Path | None, options.output_folder("what the recipe says")] = None,
    force: options.Force = False,
    resume: options.Resume = False,
    push_to_hub: options.PushToHub = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Resize, train and evaluate as a recipe file says.

    Examples:
        ctxextend run gpt2-4096 --set train.steps=500
        ctxextend run tiny-gpt2-512/ctxextend.yaml --output again
        ctxextend run recipe.yaml --set train.steps=100 --set evaluate=null --dry-run

    Keys are the settings of resize, train and evaluate, with underscores: resize.keep_first. Paths in a recipe
    count from its folder, those of flags from the current one. Where the recipe lies in an output, its source must be
    what it was: tables are compared whole, other tensors by 4 KiB at their start, middle and end.
    """
    from ctxextend.pipeline import plan_run
    from ctxextend.recipe_file import read_recipe

    sink = Output(as_json, quiet)
    try:
        written = read_recipe(recipe, changes or ())
    except RecipeError as error:
        if all(line.startswith("--set ") for line in error.message.split("\n")):
            raise typer.BadParameter(str(error)) from error
        raise
    asked, plan = written.recipe, plan_run(written)
    if push_to_hub and plan is None and asked.train is None:
        raise typer.BadParameter("--push-to-hub: this recipe makes no checkpoint.")
    if plan is not None:
        sink.note(*plan.notes)
        sink.warning(*plan.warnings)
    if dry_run:
        folder = output or (Path(asked.output) if asked.output else None)
        sink.result("run", *show_plan(sink, asked, plan, folder, force=force))
        return
    result = execute(sink, asked, plan, output, force=force, resume=resume)
    values = to_json(result) | {"dry_run": False, "warnings": result.warnings}
    if result.evaluation is None or result.evaluation.complete:
        values |= push(sink, result.output, push_to_hub)
    if result.evaluation is None:
        sink.result("run", values)
    else:
        add_evaluation(page := Page.of_stdout(), result.evaluation)
        sink = replace(sink, is_path_only=result.output is not None)
        sink.measured("run", result.evaluation, page.lines, [], values)
