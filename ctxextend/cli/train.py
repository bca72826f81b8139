"""`ctxextend train`."""

from typing import TYPE_CHECKING

from ctxextend.cli import options
from ctxextend.cli.console import Console, Page
from ctxextend.cli.resize import show_steps
from ctxextend.settings import CheckpointRef, Run, Train

if TYPE_CHECKING:
    from ctxextend.training.train_result import TrainingPlan


@options.command(CheckpointRef, Train, Run, without=("table", "trained_length"))
def train(ref: CheckpointRef, settings: Train, saving: Run, console: Console) -> None:
    """Fine-tune a resized or converted checkpoint at its new length.

    Examples:
        ctxextend train gpt2-4096 --data a.jsonl --steps 500 --trainable all --resume
        ctxextend train gpt2-4096 --data a.jsonl --steps 500 --dry-run

    Trains language models to predict tokens, and distils other models from their base.
    """
    from ctxextend.pipeline import run_recipe
    from ctxextend.recipe import Recipe
    from ctxextend.training.start import plan_recipe_training

    recipe = Recipe(ref, train=settings)
    if saving.dry_run:
        plan = plan_recipe_training(recipe, saving.output, force=saving.force)
        console.note(*plan.notes)
        console.warning(*plan.warnings)
        page = Page.for_terminal()
        add_training_plan(page, plan)
        console.screen(page.lines)
        console.result("train", plan, plan.warnings)
        return
    result = run_recipe(recipe, None, saving, console)
    show_steps(console, result)
    console.result("train", result.train, result.warnings)


def add_training_plan(page: Page, plan: "TrainingPlan") -> None:
    """Add what a training run would train."""
    what = plan.trainable
    if plan.lora is not None:
        what += f", adapters of rank {plan.lora}"
    page.values([("trained", what), ("steps", plan.steps_text)])
