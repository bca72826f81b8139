"""`ctxextend train`."""

import math
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ctxextend.cli import options
from ctxextend.cli.output import Output, ignore_ctrl_c, is_other_process

if TYPE_CHECKING:
    from ctxextend.plan.plan import ResizePlan
    from ctxextend.recipe import Recipe
    from ctxextend.training.training_result import TrainingInterrupted, TrainResult

TEACHES = "What it was made of: it tells which rows are new, and teaches encoders without a head."


def train(
    source: options.Model,
    data: options.Data,
    steps: Annotated[int, options.learning(min=1, metavar="N", help="Optimizer steps.")],
    text_field: options.TextField = "text",
    eval_data: options.EvalData = None,
    seq_len: options.SeqLen = None,
    window: options.Window = None,
    window_skip: Annotated[
        bool, options.text("--window-skip", help="Let the positions of a window jump once (PoSE).")
    ] = False,
    trainable: options.Trainable = None,
    lr: options.LearningRate = None,
    weight_decay: Annotated[float, options.learning(metavar="X", help="AdamW's weight decay.")] = 0.0,
    batch_size: options.StepBatch = None,
    original: Annotated[str | None, options.original_model(options.learning, TEACHES)] = None,
    micro_batch: Annotated[
        int | None,
        options.running(
            min=1, metavar="b", show_default="as memory allows", help="Sequences that a device holds at once."
        ),
    ] = None,
    precision: options.PrecisionName = "auto",
    seed: options.Seed = 0,
    eval_every: Annotated[
        int | None,
        options.running(
            min=1, metavar="K", show_default="first and last", help="Measure the held-out loss every K steps."
        ),
    ] = None,
    save_every: Annotated[
        int | None, options.running(min=1, metavar="K", show_default="a tenth of N", help="Save every K steps.")
    ] = None,
    resume: options.Resume = False,
    report_to: Annotated[
        str, options.running(metavar="NAME", help="Also show losses there: tensorboard, wandb, ...")
    ] = "none",
    output: Annotated[Path | None, options.output_folder("<name>-trained")] = None,
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        options.files(show_default="the source's", help="The dtype of the weights written."),
    ] = None,
    keep_code: options.KeepCode = False,
    force: options.Force = False,
    model_type: options.ModelType = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a checkpoint at its new length for a short while.

    Examples:
        ctxextend train tiny-gpt2-512 --data book.txt --steps 200
        ctxextend train gpt2-4096 --data articles/ --steps 500 --window 512
        ctxextend train bert-2048 --data a.jsonl --steps 100 --trainable new
        ctxextend train minilm-2048 --data docs.parquet --steps 300 --resume

    Causal and masked language models learn to tell words; encoders without a head learn to give, on long texts, what
    the original gives on windows that it can read. A run that is stopped goes on with --resume. Several devices:
    torchrun --nproc-per-node 2 -m ctxextend train ..., or accelerate launch.
    """
    flags = locals()
    from ctxextend.recipe import CheckpointRef, Recipe, Train

    sink = Output(as_json, quiet, silent=is_other_process())
    recipe = Recipe(options.from_flags(CheckpointRef, flags), train=options.from_flags(Train, flags))
    result = run_training(sink, recipe, output, force=force, resume=resume)
    sink.result("train", result, result.warnings)


def run_training(
    sink: Output,
    recipe: "Recipe",
    output: Path | None,
    *,
    force: bool,
    resume: bool,
    plan: "ResizePlan | None" = None,
) -> "TrainResult":
    """Train under a bar, and print the result, but for the warnings of the resize, which were printed before.

    Raises:
        Exit: It was stopped by Ctrl-C or another signal, and saved.
        CtxextendError: As `train_recipe`.
    """
    from ctxextend.training.train import train_recipe
    from ctxextend.training.training_result import TrainingInterrupted

    try:
        with sink.progress("Training", of="tokens") as progress:
            result = train_recipe(
                recipe, output, plan=plan, force=force, resume=resume, progress=progress, tell=sink.note
            )
    except TrainingInterrupted as stop:
        raise interrupted(sink, stop) from None
    sink.warning(*(warning for warning in result.warnings if plan is None or warning not in plan.warnings))
    sink.note(*losses_text(result).splitlines())
    sink.data(str(result.output))
    folder = shlex.quote(str(result.output))
    sink.note(f"Next, to measure: ctxextend evaluate {folder} --data TEXT; to look: ctxextend inspect {folder}")
    return result


def interrupted(sink: Output, stop: "TrainingInterrupted") -> typer.Exit:
    """Say where a training stopped, and how it goes on; return the exit to raise."""
    ignore_ctrl_c()
    typed = shlex.join(["ctxextend", *(word for word in sys.argv[1:] if word != "--resume")])
    message = f"Stopped after step {stop.step}, which is saved in {stop.folder}."
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1  # then a launcher stood in front of it
    sink.failure("Interrupted", message, "Go on with --resume." if several else f"Go on with: {typed} --resume")
    return typer.Exit(128 + stop.signal)


def losses_text(result: "TrainResult") -> str:
    """Say what was gained, and what it cost."""
    before, after = result.loss_before, result.loss_after
    if result.objective == "distilled":
        gain = f"error {before:.4f} -> {after:.4f}"
    else:
        perplexities = [f"{math.exp(min(loss, 700.0)):.4g}" for loss in (before, after)]
        gain = f"loss {before:.4f} -> {after:.4f} nats a token, perplexity {' -> '.join(perplexities)}"
    peak = f", {result.peak_bytes / 2**20:,.0f} MiB at the peak" if result.peak_bytes else ""
    rate = f"{result.tokens:,} tokens at {result.tokens_per_second:,.0f} tokens/s"
    return f"held-out {gain}; {rate}, {result.seconds:.1f} s with measurements{peak}"
