"""`ctxextend train`."""

import math
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console, ignore_ctrl_c
from ctxextend.cli.options import files, learning, text
from ctxextend.cli.tables import Page
from ctxextend.errors import TrainingInterrupted, counted, size_text, time_text
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.pipeline import RunResult
    from ctxextend.planned import Planned
    from ctxextend.recipe import Recipe
    from ctxextend.training.training_run import TrainResult

# How to go on after an interrupted run of a command with --resume, and of one without it.
RESUME = "Resume with the same command and --resume."
RESUME_OR_START_OVER = "Resume with the same command; --force starts over."


def train(
    source: options.Model,
    steps: Annotated[int, learning("--steps N", "Optimizer steps.")],
    data: options.OptionalData = None,
    pairs: Annotated[
        str | None, text("--pairs FILE", "Instead: anchors and positives: .jsonl or .tsv.")
    ] = None,
    text_field: options.TextField = "text",
    eval_data: options.EvalData = None,
    seq_len: options.SeqLen = None,
    window: options.Window = None,
    window_skip: Annotated[
        bool, learning("--window-skip", "Skip positions once in each window (PoSE).")
    ] = False,
    trainable: options.Trainable = None,
    lora: options.Lora = None,
    lr: options.LearningRate = None,
    weight_decay: Annotated[float, learning("--weight-decay X", "AdamW's weight decay.")] = 0.0,
    batch_size: options.StepBatch = None,
    per_device_batch_size: Annotated[
        int | None, learning("--per-device-batch-size B", "Micro-batch size.", "as memory allows")
    ] = None,
    precision: options.Precision = "auto",
    seed: options.Seed = 0,
    fsdp: Annotated[
        bool, learning("--fsdp", "Shard the model across processes (torchrun).")
    ] = False,
    device: options.Device = None,
    threads: options.Threads = None,
    eval_every: Annotated[
        int | None, learning("--eval-every K", "Evaluate every K steps.", "N/4")
    ] = None,
    save: Annotated[
        Literal["best", "last"], learning("--save WHAT", "best (by held-out loss) or last.")
    ] = "best",
    save_every: Annotated[
        int | None, learning("--save-every K", "Save every K steps.", "N/10")
    ] = None,
    resume: options.Resume = False,
    report_to: Annotated[
        str, learning("--report-to NAME", "Log to tensorboard, wandb, ...")
    ] = "none",
    output: Annotated[Path | None, options.output_folder("<name>-trained")] = None,
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        files("--dtype T", "Output dtype: fp32, bf16 or fp16.", "as in MODEL"),
    ] = None,
    save_adapter: Annotated[
        bool, files("--save-adapter", "Save a PEFT adapter instead of merged weights.")
    ] = False,
    copy_code: options.CopyCode = False,
    force: options.Force = False,
    model_type: options.ModelType = None,
    tokenizer: options.Tokenizer = None,
    base: options.Base = None,
    contrastive: Annotated[
        bool, learning("--contrastive", "Train encoders to find documents by passages.")
    ] = False,
    distill: Annotated[
        float | None,
        learning(
            "--distill W", "Weight of distillation from the base.", "4 converted, 5 contrastive"
        ),
    ] = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    push_to_hub: options.PushToHub = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Fine-tune a resized or converted checkpoint at its new length.

    Examples:
        ctxextend train gpt2-4096 --data a.jsonl --steps 500 --trainable all
        ctxextend train gpt2-4096 --data a.jsonl --steps 500 --trainable all --resume

    Trains language models to predict tokens, and distils converted models and encoders without a head from their base
    checkpoint. For several devices: torchrun --nproc-per-node 2 -m ctxextend train ..., or accelerate launch.
    """
    flags = locals()
    from ctxextend.recipe import CheckpointRef, Recipe, Train

    sink = Console(as_json, quiet)
    if pairs is not None and data:
        raise typer.BadParameter("--pairs cannot be used with --data. Remove one of them.")
    kind = "pairs" if pairs is not None else "passages" if contrastive else None
    settings = options.from_flags(
        Train, flags, data=data or (pairs,) * (pairs is not None), contrastive=kind
    )
    recipe = Recipe(options.from_flags(CheckpointRef, flags), train=settings)
    if dry_run:
        from ctxextend.training.train import plan_training

        planned, page = plan_training(recipe, output, force=force), Page()
        sink.note(*planned.notes)
        sink.warning(*planned.warnings)
        adapters = f", adapters of rank {lora}" if lora else ""
        trained = f"{planned.parameters:,} ({planned.trainable}{adapters})"
        page.values([("parameters", f"{planned.model_parameters:,}"), ("trained", trained)])
        page.values((counted(memory.devices, "device"), str(memory)) for memory in planned.memory)
        sink.screen(page.lines)
        sink.result("train", planned, planned.warnings)
        return
    result = execute(sink, recipe, None, output, force=force, resume=resume)
    sink.result(
        "train", to_json(result.training) | push(sink, result.output, push_to_hub), result.warnings
    )


def push(sink: Console, folder: Path | None, repo: str | None) -> dict[str, str]:
    """Upload an output if a repository is given, with local paths shortened to names; return its URL."""
    if repo is None or folder is None or sink.silent:
        return {}
    from ctxextend.checkpoints.hub import LOGS, push_folder
    from ctxextend.recipe import RECIPE_FILE
    from ctxextend.recipe_file import texts_without_folders

    texts = texts_without_folders(folder)
    for name in texts:
        kept = "; fingerprints are kept" if name == RECIPE_FILE else ""
        sink.note(f"{name} is uploaded with local paths shortened to names{kept}.")
    if (folder / LOGS).is_dir():
        sink.note(f"{LOGS}/ is not uploaded: logs contain the host name and local paths.")
    url = push_folder(folder, repo, texts)
    sink.note(f"pushed to {url}")
    return {"pushed_to": url}


@contextmanager
def exit_if_interrupted(console: Console, resume_hint: str) -> Iterator[None]:
    """Print how to resume a training run that a signal interrupted, and exit."""
    try:
        yield
    except TrainingInterrupted as stop:
        ignore_ctrl_c()
        saved = f"Stopped after step {stop.step}, saved in {stop.folder}. {resume_hint}"
        console.failure("Interrupted", saved, None)
        raise typer.Exit(128 + stop.signal) from None


def execute(
    console: Console,
    recipe: "Recipe",
    planned: "Planned | None",
    output: Path | None,
    *,
    force: bool,
    resume: bool,
) -> "RunResult":
    """Run a recipe and print its result; exit if training is interrupted."""
    from ctxextend.pipeline import RunInterrupted, run_recipe

    with exit_if_interrupted(console, RESUME):
        try:
            result = run_recipe(recipe, planned, output, force=force, resume=resume, events=console)
        except RunInterrupted as stop:
            result = stop.result
    if result.resize is not None:
        console.warning(*result.resize.warnings)
    if result.training is not None:
        show_training(console, result.training)
    if result.output is not None:
        console.data(str(result.output))
    is_adapter = recipe.train is not None and recipe.train.save_adapter
    if result.training is not None and result.evaluation is None and not is_adapter:
        console.next_steps(*steps_after_training(result.training.output))
    return result


def steps_after_training(output: Path) -> tuple[str, ...]:
    """Return commands to run on a trained checkpoint."""
    folder = shlex.quote(str(output))
    return (f"ctxextend evaluate {folder} --data TEXT", f"ctxextend inspect {folder}")


def show_training(console: Console, trained: "TrainResult") -> None:
    """Print the losses of a training run, and what it cost."""
    console.warning(*trained.warnings)
    before, after = trained.loss_before, trained.loss_after
    losses = f"{before:.4f} -> {after:.4f}"
    if trained.objective in ("causal", "masked"):
        losses += (
            ", perplexity "
            f"{' -> '.join(f'{math.exp(min(loss, 700.0)):.4g}' for loss in (before, after))}"
        )
    held_out = (
        f"{counted(trained.held_out_sequences, 'sequence')}, "
        f"{counted(trained.held_out_tokens, 'token')}"
    )
    peak = f", peak memory {size_text(trained.peak_bytes)}" if trained.peak_bytes else ""
    saved = (
        f"step {trained.saved_step} of {trained.steps}"
        if trained.saved_step
        else "the untrained weights"
    )
    best = (
        " (best)"
        if trained.saved_step == trained.best_step
        else f"; step {trained.best_step} was best"
    )
    speed = f"{time_text(trained.seconds)}, {trained.tokens_per_second:,.0f} tokens/s"
    apart = list[str]()
    first = trained.short_positions
    if trained.loss_short and trained.loss_long:
        short, long = (
            f"{start:.4f} -> {end:.4f}" for start, end in (trained.loss_short, trained.loss_long)
        )
        apart.append(f"positions below {first}: {short}, from {first} on: {long}")
    console.note(
        f"held-out loss {losses}",
        *apart,
        f"evaluated on {held_out}; saved {saved}{best}",
        f"trained on {trained.tokens:,} tokens in {speed}{peak}",
    )
