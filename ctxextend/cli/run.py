"""`ctxextend run`."""

from dataclasses import replace

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.tables import Page
from ctxextend.settings import RunRecipe


@options.command(RunRecipe)
def run(settings: RunRecipe, console: Console) -> None:
    """Resize, train and evaluate with the settings of a recipe file.

    Examples:
        ctxextend run gpt2-4096 --set train.steps=500
        ctxextend run tiny-gpt2-512/ctxextend.yaml --output again
        ctxextend run recipe.yaml --set train.steps=100 --set evaluate=null --dry-run

    Keys are the flags of resize, train and evaluate with underscores, e.g. resize.keep_first. Paths
    in a recipe are relative to its folder. The source and the training text of an output's recipe
    must not have changed.
    """
    from ctxextend.cli.evaluate import add_evaluation
    from ctxextend.cli.run_steps import execute
    from ctxextend.cli.show_result import show_plan
    from ctxextend.evaluation.evaluation_result import Evaluation
    from ctxextend.pipeline import RunResult, plan_run, with_recorded_threads
    from ctxextend.recipe import read_recipe
    from ctxextend.resizing import announce, check_can_write

    file = with_recorded_threads(read_recipe(settings.recipe, settings.changes))
    recipe = file.recipe
    if settings.output is None and recipe.output:
        settings = replace(settings, output=recipe.output)
    planned = plan_run(file)
    if planned is not None:
        if not settings.dry_run:
            check_can_write(recipe, planned, settings)
        announce(planned, console)
    if settings.dry_run:
        resized = None
        output = settings.output
        if planned is not None:
            resized = planned.dry_run(output, force=settings.force)
            output = resized.output
        planned_run = RunResult(
            output=output,
            resize=resized,
            train=recipe.train,
            evaluate=recipe.evaluate,
            dry_run=True,
        )
        show_plan(
            console,
            recipe.checkpoint.source,
            resized,
            output=output,
            train=recipe.train,
            evaluate=recipe.evaluate,
        )
        console.result("run", planned_run)
        return
    result = execute(console, recipe, planned, settings)
    evaluation = result.evaluate
    if not isinstance(evaluation, Evaluation):
        console.result("run", result, result.warnings)
        return
    page = Page.for_stdout()
    add_evaluation(page, evaluation)
    console = replace(console, is_path_only=result.output is not None)
    console.measurement("run", evaluation, page.lines, files=[], value=result.to_json())
