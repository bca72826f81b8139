"""`ctxextend run`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.evaluate import show_evaluation
from ctxextend.cli.output import INTERRUPTED, Output, is_other_process
from ctxextend.cli.resize import show_plan, show_settings, show_values
from ctxextend.cli.train import execute
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.pipeline import RunPlan


def run(
    recipe: Annotated[
        Path,
        typer.Argument(
            metavar="RECIPE", readable=False, help="A recipe file, such as the ctxextend.yaml in any output."
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE...", help="Put this in place of what the recipe says."),
    ] = None,
    output: Annotated[Path | None, options.output_folder("what the recipe says")] = None,
    force: options.Force = False,
    resume: options.Resume = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Resize, train and evaluate as a recipe file says.

    Examples:
        ctxextend run recipes/gpt2-4096.yaml
        ctxextend run tiny-gpt2-512/ctxextend.yaml --output again
        ctxextend run recipe.yaml --set train.steps=100 evaluate=null --dry-run

    Keys are the flags of resize, train and evaluate, with underscores: resize.keep_first, train.data. A relative path
    in a recipe starts where the command is run.
    """
    from ctxextend.pipeline import plan_run
    from ctxextend.recipe_file import read_recipe

    sink = Output(as_json, quiet, silent=is_other_process())
    plan = plan_run(read_recipe(recipe, changes or ()))
    sink.note(*(plan.resize.notes if plan.resize else ()))
    sink.warning(*plan.warnings)
    if dry_run:
        _show_dry_run(sink, plan, output, force)
        return
    result = execute(sink, plan, output, force=force, resume=resume)
    if result.evaluation is not None:
        show_evaluation(sink, result.evaluation)
    sink.result("run", to_json(result) | {"dry_run": False}, result.warnings)
    if result.evaluation is not None and not result.evaluation.complete:
        sink.note("Stopped: what is shown was measured until then.")
        raise typer.Exit(INTERRUPTED)


def _show_dry_run(sink: Output, plan: "RunPlan", output: Path | None, force: bool) -> None:
    named = plan.output(output)
    folder = None if named is None else Path(named)
    steps = {name: asdict(step) for name in ("train", "evaluate") if (step := getattr(plan.recipe, name)) is not None}
    values, warnings = show_plan(sink, plan.resize, folder, force=force) if plan.resize else (None, [])
    if values is not None:
        folder = Path(values["output"])
    elif steps:
        items = {"source": plan.recipe.checkpoint.source, "output": str(folder)}
        show_values(sink, list(items.items())[: 2 if folder else 1])
    show_settings(sink, **steps)
    shown = {"output": None if folder is None else str(folder), "dry_run": True, "resize": values}
    sink.result("run", shown | dict.fromkeys(("train", "evaluate")) | steps, warnings)
