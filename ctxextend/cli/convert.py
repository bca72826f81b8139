"""`ctxextend convert`."""

from pathlib import Path
from typing import Annotated

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.options import basic, complete_table_method, files
from ctxextend.cli.show_result import finish

WINDOW_DEFAULT = "256"
TO_DEFAULT = "the old one, with --scheme none"


def convert(
    source: Annotated[str, options.model("Folder, bundled model (tiny-gpt2) or Hub id.")],
    scheme: Annotated[
        str,
        basic("--scheme NAME", "rotary, alibi, window or none.", None, options.complete_scheme),
    ],
    to: Annotated[
        str | None,
        basic("--to N", "Context length of the output, e.g. 4096, 4k, 1m or 4x.", TO_DEFAULT),
    ] = None,
    theta: Annotated[
        float | None, basic("--theta T", "Base of the rotary frequencies.", "1000")
    ] = None,
    attention_window: Annotated[
        int | None,
        basic(
            "--attention-window W",
            "Tokens that each one attends to with --scheme window.",
            WINDOW_DEFAULT,
            parser=options.read_length,
        ),
    ] = None,
    method: Annotated[
        str | None,
        basic(
            "--method NAME",
            "Method of new rows with --scheme window.",
            "copy",
            complete_table_method,
        ),
    ] = None,
    encoder_only: Annotated[
        bool, basic("--encoder-only", "Drop the head, if it cannot be converted.")
    ] = False,
    train: Annotated[
        list[str] | None, basic("--train PATH", "Then train on this text; requires --steps.")
    ] = None,
    steps: Annotated[
        int | None, basic("--steps N", "Optimizer steps (other settings: use train or run).")
    ] = None,
    model_type: options.ModelType = None,
    output: Annotated[Path | None, options.output_folder("<name>-<scheme>-<N>")] = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    link: options.Link = False,
    force: options.Force = False,
    verify: Annotated[
        bool, files("--verify", "Verify the output before moving it into place.")
    ] = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Convert attention to windows, or positions to rotary, ALiBi or none.

    Examples:
        ctxextend convert path/to/bert --scheme window --to 8192 -o bert-8192
        ctxextend convert gpt2 --scheme rotary --to 4096 --train articles/ --steps 500
        ctxextend convert path/to/llama --scheme none -o llama-none

    BERT, RoBERTa, CamemBERT, XLM-RoBERTa and ELECTRA become Longformer, BART becomes LED (window):
    they read whole documents at once, at a cost linear in the length, also untrained. The other
    schemes need training. GPT-2 becomes GPT-NeoX (rotary) or Falcon (alibi), the encoders RoFormer
    (rotary). A rotary model keeps its type and weights without positions (none).
    """
    from ctxextend.recipe import CheckpointRef, Convert, Recipe
    from ctxextend.resizing import ResizeOptions, convert_checkpoint, short_training

    console = Console(as_json, quiet)
    with options.usage_errors():
        ref = CheckpointRef(
            source,
            revision=revision,
            subfolder=subfolder,
            variant=variant,
            model_type=model_type,
        )
        settings = Convert(
            scheme,
            to,
            theta=theta,
            encoder_only=encoder_only,
            attention_window=attention_window,
            method=method,
        )
        training = short_training(train or (), steps)
        ResizeOptions(link=link, verify=verify).check(is_trained=training is not None)
    recipe = Recipe(ref, train=training, convert=settings)
    result = convert_checkpoint(
        recipe,
        output,
        force=force,
        dry_run=dry_run,
        link=link,
        verify=verify,
        events=console,
    )
    finish("convert", console, recipe, result)
