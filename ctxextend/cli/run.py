"""`ctxextend run`."""

from ctxextend.cli import options
from ctxextend.cli.console import Console
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
    from ctxextend.cli.run_steps import show_run
    from ctxextend.recipe import read_recipe
    from ctxextend.running import run_file

    file = read_recipe(settings.recipe, settings.changes)
    show_run(console, file.recipe.checkpoint.source, run_file(file, settings, console))
