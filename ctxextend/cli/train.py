"""`ctxextend train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.options import advanced, learning, text
from ctxextend.cli.run_steps import execute
from ctxextend.cli.tables import Page

if TYPE_CHECKING:
    from ctxextend.recipe import Recipe
    from ctxextend.training.train_result import TrainingPlan


def train(
    context: typer.Context,
    source: options.Model,
    steps: Annotated[int, learning("--steps N", "Optimizer steps.", False)],
    data: options.OptionalData = None,
    pairs: Annotated[
        str | None, text("--pairs FILE", "Instead: anchors and positives: .jsonl or .tsv.")
    ] = None,
    text_field: options.TextField = "text",
    eval_data: options.EvalData = None,
    seq_len: options.SeqLen = None,
    window: options.Window = None,
    window_skip: Annotated[
        bool, advanced("--window-skip", "Skip positions once in each window (PoSE).")
    ] = False,
    trainable: options.Trainable = None,
    lora: options.Lora = None,
    lr: options.LearningRate = None,
    weight_decay: Annotated[float, advanced("--weight-decay X", "AdamW's weight decay.")] = 0.0,
    batch_size: options.StepBatch = None,
    per_device_batch_size: Annotated[
        int | None, advanced("--per-device-batch-size B", "Micro-batch size.", "as memory allows")
    ] = None,
    precision: options.Precision = "auto",
    seed: options.Seed = 0,
    fsdp: Annotated[
        bool, advanced("--fsdp", "Shard the model across processes (torchrun).")
    ] = False,
    device: options.Device = None,
    threads: options.Threads = None,
    eval_every: Annotated[
        int | None, advanced("--eval-every K", "Evaluate every K steps.", "N/4")
    ] = None,
    save: Annotated[
        Literal["best", "last"], advanced("--save WHAT", "best (by held-out loss) or last.")
    ] = "best",
    save_every: Annotated[
        int | None, advanced("--save-every K", "Save every K steps.", "N/10")
    ] = None,
    resume: options.Resume = False,
    report_to: Annotated[
        str, advanced("--report-to NAME", "Log to tensorboard, wandb, ...")
    ] = "none",
    output: Annotated[Path | None, options.output_folder("<name>-trained")] = None,
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        advanced("--dtype T", "Output dtype: fp32, bf16 or fp16.", "as in MODEL"),
    ] = None,
    save_adapter: Annotated[
        bool, advanced("--save-adapter", "Save a PEFT adapter instead of merged weights.")
    ] = False,
    force: options.Force = False,
    model_type: options.ModelType = None,
    tokenizer: options.Tokenizer = None,
    base: options.Base = None,
    contrastive: Annotated[
        bool, learning("--contrastive", "Train encoders to find documents by passages.")
    ] = False,
    distill: Annotated[
        float | None,
        advanced(
            "--distill W", "Weight of distillation from the base.", "4 converted, 5 contrastive"
        ),
    ] = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Fine-tune a resized or converted checkpoint at its new length.

    Examples:
        ctxextend train gpt2-4096 --data a.jsonl --steps 500 --trainable all
        ctxextend train gpt2-4096 --data a.jsonl --steps 500 --trainable all --resume
        ctxextend train gpt2-4096 --data a.jsonl --steps 500 --dry-run

    Trains language models to predict tokens, and distils converted models and encoders without a
    head from their base checkpoint. For several devices: torchrun --nproc-per-node 2 -m ctxextend
    train ..., or accelerate launch.
    """
    from ctxextend.recipe import CheckpointRef, Recipe, Train

    console = Console(as_json, quiet)
    if pairs is not None and data:
        raise options.WrongFlags("--pairs cannot be used with --data.", "Remove one of them.")
    objective = "passages" if contrastive else None
    texts = data or []
    if pairs is not None:
        objective = "pairs"
        texts = [pairs]
    flags = options.given(context)
    settings = options.from_flags(Train, flags, data=texts, contrastive=objective)
    recipe = Recipe(options.from_flags(CheckpointRef, flags), train=settings)
    if dry_run:
        show_training_plan(console, recipe, output, force=force)
        return
    result = execute(console, recipe, None, output, force=force, resume=resume)
    console.result("train", result.train, result.warnings)


def show_training_plan(
    console: Console, recipe: "Recipe", output: Path | None, *, force: bool
) -> None:
    """Print what a training run would train."""
    from ctxextend.training.start import plan_recipe_training

    plan = plan_recipe_training(recipe, output, force=force)
    console.note(*plan.notes)
    console.warning(*plan.warnings)
    page = Page.for_terminal()
    add_training_plan(page, plan)
    console.screen(page.lines)
    console.result("train", plan, plan.warnings)


def add_training_plan(page: Page, plan: "TrainingPlan") -> None:
    """Add what a training run would train."""
    what = plan.trainable
    if plan.lora is not None:
        what += f", adapters of rank {plan.lora}"
    page.values([("trained", what), ("steps", plan.steps_text)])
