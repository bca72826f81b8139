"""`ctxextend run`."""

from dataclasses import replace

from ctxextend.cli import options
from ctxextend.cli.console import Console, Page
from ctxextend.cli.resize import show_plan, show_steps
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
    from ctxextend.lab.evaluation import Evaluation
    from ctxextend.planned import ResizeResult
    from ctxextend.recipe import read_recipe
    from ctxextend.running import run_file

    file = read_recipe(settings.recipe, settings.changes)
    result = run_file(file, settings, console)
    if result.dry_run:
        resized = result.resize if isinstance(result.resize, ResizeResult) else None
        show_plan(
            console,
            file.recipe.checkpoint.source,
            resized,
            output=result.output,
            train=result.train,
            evaluate=result.evaluate,
        )
        console.result("run", result)
        return
    show_steps(console, result)
    evaluation = result.evaluate
    if not isinstance(evaluation, Evaluation):
        console.result("run", result, result.warnings)
        return
    page = Page.for_stdout()
    add_evaluation(page, evaluation)
    console = replace(console, is_path_only=result.output is not None)
    console.measurement("run", evaluation, page.lines, files=[], value=result.to_json())
