"""`ctxextend convert`."""

from pathlib import Path
from typing import Annotated

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.options import basic, files
from ctxextend.cli.resize import write


def convert(
    source: Annotated[str, options.model("Folder, bundled model (tiny-gpt2) or Hub id.")],
    scheme: Annotated[str, basic("--scheme NAME", "Position scheme: rotary or alibi.", None)],
    to: options.To,
    theta: Annotated[
        float | None, basic("--theta T", "Base of the rotary frequencies.", "1000")
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
    lora: Annotated[
        int | None, basic("--lora R", "With --train: also train adapters of rank R.")
    ] = None,
    model_type: options.ModelType = None,
    output: Annotated[Path | None, options.output_folder("<name>-<scheme>-<N>")] = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    force: options.Force = False,
    push_to_hub: options.PushToHub = None,
    verify: Annotated[
        bool, files("--verify", "Verify the output before moving it into place.")
    ] = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Convert learned positions to rotary or ALiBi positions.

    Examples:
        ctxextend convert gpt2 --scheme rotary --to 4096 --train articles/ --steps 500
        ctxextend convert path/to/bert --scheme rotary --to 2048 -o bert-rotary

    GPT-2 becomes GPT-NeoX (rotary) or Falcon (alibi); BERT, RoBERTa, CamemBERT, XLM-RoBERTa and ELECTRA become RoFormer
    (rotary). Not usable before training.
    """
    flags = locals()
    training = options.training_flags(flags)
    from ctxextend.conversion.convert import check_type, plan_conversion
    from ctxextend.plan.find_tables import open_model
    from ctxextend.recipe import CheckpointRef, Convert, Recipe

    sink = Console(as_json, quiet)
    settings = options.from_flags(Convert, flags)
    recipe = Recipe(options.from_flags(CheckpointRef, flags), train=training, convert=settings)
    plan = plan_conversion(open_model(recipe.checkpoint, check_type), settings)
    sink.note(*plan.notes, *(plan.details if training and not dry_run else ()))
    sink.warning(*plan.warnings)
    write(sink, "convert", recipe, plan, flags, {})
