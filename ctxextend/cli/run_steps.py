"""Print what the steps of a recipe did, or would do."""

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from ctxextend.cli.console import Console
from ctxextend.cli.show_result import show_output, show_plan
from ctxextend.cli.show_training import show_training
from ctxextend.cli.tables import Page

if TYPE_CHECKING:
    from ctxextend.pipeline import RunResult


def show_run(console: Console, source: str, result: "RunResult") -> None:
    """Print the result of `run`, of a recipe of a checkpoint."""
    from ctxextend.cli.evaluate import add_evaluation
    from ctxextend.evaluation.evaluation_result import Evaluation
    from ctxextend.planned import ResizeResult

    if result.dry_run:
        resized = result.resize if isinstance(result.resize, ResizeResult) else None
        show_plan(
            console,
            source,
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


def show_steps(console: Console, result: "RunResult") -> None:
    """Print what a resize, a conversion or a training did."""
    from ctxextend.planned import ResizeResult
    from ctxextend.training.train_result import TrainResult

    if isinstance(result.resize, ResizeResult):
        show_output(console, result.resize)
    elif isinstance(result.train, TrainResult):
        show_training(console, result.train)
        console.data(str(result.train.output))
        if result.evaluate is None and not result.train.is_adapter:
            folder = shlex.quote(str(result.train.output))
            console.next_steps(f"ctxextend evaluate {folder} --data TEXT")
