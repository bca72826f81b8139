"""`ctxextend recipes`."""

from pathlib import Path
from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.output import Output
from ctxextend.cli.tables import Page
from ctxextend.errors import OutputError, RecipeError, did_you_mean


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default="all", help="Print this recipe.")] = None,
    output: Annotated[Path | None, options.files("--output -o FILE", "Copy it to a new file.", readable=False)] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the shipped recipes, or copy one.

    Examples:
        ctxextend recipes
        ctxextend recipes gpt2-4096 --output my-recipe.yaml
    """
    from ctxextend.recipe_file import shipped_recipes

    sink, page, shipped = Output(as_json), Page.of_stdout(), shipped_recipes()
    if name is not None and name not in shipped:
        raise RecipeError(f"There is no shipped recipe {name}.", did_you_mean(name, shipped) or "See `recipes`.")
    if output is not None and name is None:
        raise typer.BadParameter("--output copies one recipe: add its NAME.")
    texts = {key: path.read_text("utf-8") for key, path in shipped.items() if name in (None, key)}
    # Each begins with a comment that says what it makes before its first colon.
    about = {key: text.split(":")[0].replace("\n#", "").removeprefix("# ") for key, text in texts.items()}
    if output is not None:
        try:
            with output.expanduser().open("x", encoding="utf-8") as file:
                file.write(texts[str(name)])
        except OSError as error:
            raise OutputError(f"{output} cannot be written: {error.strerror}.", "Choose another --output.") from None
        sink.data(str(output))
    elif name is not None:
        sink.data(texts[name].rstrip())
    else:
        page.values(about.items(), margin=max(map(len, about)) + 2)
        sink.screen(page.lines)
    found = [{"name": key, "about": about[key], "text": text} for key, text in texts.items()]
    sink.result("recipes", {"recipes": found, "output": output})
