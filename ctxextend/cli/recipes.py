"""`ctxextend recipes`."""

from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console, Page
from ctxextend.errors import RecipeError, did_you_mean
from ctxextend.recipe_names import builtin_recipes


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Print this recipe.", show_default="all"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the built-in recipes, or print one.

    Examples:
        ctxextend recipes
        ctxextend recipes gpt2-4096

    To edit a recipe, save it first: ctxextend recipes NAME > FILE
    """
    console = Console(as_json)
    texts = {key: path.read_text("utf-8") for key, path in builtin_recipes().items()}
    if name is not None:
        with options.usage_errors(RecipeError):
            if name not in texts:
                hint = did_you_mean(name, texts) or "See `ctxextend recipes`."
                raise RecipeError(f"No built-in recipe {name}.", hint)
        texts = {name: texts[name]}
        console.data(texts[name].rstrip())
    else:
        page = Page.for_stdout()
        margin = max(len(key) for key in texts) + 2
        page.values(((key, _summary(text)) for key, text in texts.items()), margin=margin)
        console.screen(page.lines)
    values = [{"name": key, "about": _summary(text), "text": text} for key, text in texts.items()]
    console.result("recipes", {"recipes": values})


def _summary(text: str) -> str:
    return text.split(":")[0].replace("\n#", "").removeprefix("# ")
