"""`ctxextend recipes`."""

from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.tables import Page
from ctxextend.errors import RecipeError, did_you_mean


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", show_default="all", help="Print this recipe.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the built-in recipes, or print one.

    Examples:
        ctxextend recipes
        ctxextend recipes gpt2-4096

    To edit a recipe, save it first: ctxextend recipes NAME > FILE
    """
    from ctxextend.recipe_file import builtin_recipes

    sink, page, builtin = Console(as_json), Page.for_stdout(), builtin_recipes()
    if name is not None and name not in builtin:
        with options.usage_errors(RecipeError):
            raise RecipeError(
                f"No built-in recipe {name}.",
                did_you_mean(name, builtin) or "See `ctxextend recipes`.",
            )
    texts = {key: path.read_text("utf-8") for key, path in builtin.items() if name in (None, key)}
    # Each file starts with a comment; its text up to the first colon is the summary.
    about = {
        key: text.split(":")[0].replace("\n#", "").removeprefix("# ") for key, text in texts.items()
    }
    if name is not None:
        sink.data(texts[name].rstrip())
    else:
        page.values(about.items(), margin=max(map(len, about)) + 2)
        sink.screen(page.lines)
    values = [{"name": key, "about": about[key], "text": text} for key, text in texts.items()]
    sink.result("recipes", {"recipes": values})
