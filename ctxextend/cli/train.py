"""`ctxextend train`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ctxextend.cli.options import (
    FILES,
    LEARNING,
    RUNNING,
    TEXT,
    AsJson,
    FamilyName,
    Force,
    KeepCode,
    LearningRate,
    Model,
    PrecisionName,
    Quiet,
    Resume,
    Revision,
    SeqLen,
    Subfolder,
    TextField,
    Trainable,
    Variant,
    original_model,
    output_folder,
    usage_errors,
)
from ctxextend.cli.output import Output, is_other_process
from ctxextend.cli.training import run_training

__all__ = ["train"]


DtypeName = Literal["fp32", "bf16", "fp16"]


def train(
    model: Model,
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            metavar="PATH...",
            help="Text files, folders, .jsonl, .parquet, or hf:OWNER/NAME of the Hub.",
            rich_help_panel=TEXT,
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Optimizer steps.", rich_help_panel=LEARNING)],
    text_field: TextField = "text",
    eval_data: Annotated[
        list[str] | None,
        typer.Option(
            "--eval-data",
            metavar="PATH...",
            show_default="the last 5 % of --data",
            help="Text to measure the loss on.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    seq_len: SeqLen = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=8,
            metavar="W",
            show_default="L",
            help="Train L positions by sequences of W tokens, each at a place of its own.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    window_skip: Annotated[
        bool,
        typer.Option("--window-skip", help="Let the positions of a window jump once (PoSE).", rich_help_panel=TEXT),
    ] = False,
    trainable: Trainable = None,
    lr: LearningRate = None,
    weight_decay: Annotated[
        float, typer.Option(metavar="X", help="AdamW's weight decay.", rich_help_panel=LEARNING)
    ] = 0.0,
    batch_size: Annotated[
        int,
        typer.Option(min=1, metavar="B", help="Sequences of a step, over all devices.", rich_help_panel=LEARNING),
    ] = 8,
    seed: Annotated[
        int,
        typer.Option(min=0, metavar="S", help="What order, masks and places are drawn with.", rich_help_panel=LEARNING),
    ] = 0,
    original: Annotated[
        str | None,
        original_model(
            "What it was made of: it tells which rows are new, and teaches encoders without a head.", LEARNING
        ),
    ] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="b",
            show_default="as memory allows",
            help="Sequences that a device holds at once.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    precision: PrecisionName = "auto",
    eval_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            show_default="first and last",
            help="Measure the held-out loss every K steps.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    save_every: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="K", show_default="a tenth of N", help="Save every K steps.", rich_help_panel=RUNNING
        ),
    ] = None,
    resume: Resume = False,
    report_to: Annotated[
        str,
        typer.Option(metavar="NAME", help="Also show losses there: tensorboard, wandb, ...", rich_help_panel=RUNNING),
    ] = "none",
    output: Annotated[Path | None, output_folder("<name>-trained")] = None,
    dtype: Annotated[
        DtypeName | None,
        typer.Option(show_default="the source's", help="The dtype of the weights written.", rich_help_panel=FILES),
    ] = None,
    keep_code: KeepCode = False,
    force: Force = False,
    family: FamilyName = None,
    revision: Revision = None,
    subfolder: Subfolder = None,
    variant: Variant = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
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
    from ctxextend.recipe import CheckpointRef, Recipe, Train

    sink = Output(as_json, quiet, silent=is_other_process())
    with usage_errors():
        settings = Train(
            data=tuple(data),
            steps=steps,
            text_field=text_field,
            seq_len=seq_len,
            window=window,
            window_skip=window_skip,
            trainable=trainable or "positions",
            lr=lr,
            weight_decay=weight_decay,
            batch_size=batch_size,
            micro_batch=micro_batch,
            precision=precision,
            seed=seed,
            eval_data=tuple(eval_data or ()),
            eval_every=eval_every,
            save_every=save_every,
            report_to=report_to,
            original=original,
            dtype=dtype,
            keep_code=keep_code,
        )
    recipe = Recipe(CheckpointRef(model, revision, subfolder, variant, family), train=settings)
    result = run_training(sink, recipe, output, force=force, resume=resume)
    sink.result("train", result.as_dict(), result.warnings)
