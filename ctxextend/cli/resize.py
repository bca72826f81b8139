"""`ctxextend resize`."""

from pathlib import Path
from typing import Annotated

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.options import basic, complete_method, files
from ctxextend.cli.show_result import finish


def resize(
    source: Annotated[
        str, options.model("Folder, weights or GGUF file, bundled tiny-gpt2 or Hub id.")
    ],
    to: options.To,
    method: Annotated[
        str | None,
        basic(
            "--method NAME", "E.g. linear or bands:gain=1.2 (see methods).", "auto", complete_method
        ),
    ] = None,
    tune: Annotated[
        list[str] | None, basic("--tune TEXT", "Train the rows of the table on this text.")
    ] = None,
    budget: Annotated[int | None, basic("--budget S", "With --tune: seconds for it.", "60")] = None,
    keep_first: Annotated[
        int | None, basic("--keep-first K", "Keep the first K rows.", "0; stretch: 20")
    ] = None,
    part: options.Part = None,
    runtime: options.ForRuntime = None,
    tokenizer: options.Tokenizer = None,
    model_type: options.ModelType = None,
    trained_length: options.TrainedLength = None,
    tensor: options.TensorName = None,
    reserved_rows: options.ReservedRows = 0,
    config_key: options.ConfigKey = None,
    fix_limits: Annotated[
        bool, basic("--fix-limits", "Make all length limits agree with the table.")
    ] = False,
    edit_only: Annotated[
        bool, files("--edit-only", "Write the edited small files, and no weights.")
    ] = False,
    link: options.Link = False,
    train: Annotated[
        list[str] | None, basic("--train PATH", "Then train on this text; requires --steps.")
    ] = None,
    steps: Annotated[
        int | None, basic("--steps N", "Optimizer steps (other settings: use train or run).")
    ] = None,
    output: Annotated[
        Path | None,
        options.output_folder("<name>-<N>", "Output folder or GGUF file."),
    ] = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    force: options.Force = False,
    verify: Annotated[
        bool, files("--verify", "Verify the output before moving it into place.")
    ] = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Resize the position embeddings and save a new checkpoint.

    Examples:
        ctxextend resize gpt2 --to 4096
        ctxextend resize Qwen/Qwen2.5-7B-Instruct --to 128k --edit-only

    With --for vllm, sglang or llama.cpp, --dry-run -q prints only the flags that serve MODEL
    itself.
    """
    from ctxextend.recipe import CheckpointRef, Recipe, Resize
    from ctxextend.resizing import ResizeOptions, resize_checkpoint, short_training

    console = Console(as_json, quiet)
    if tensor and part:
        raise options.WrongFlags(
            "--part cannot be used with --tensor, which already selects one table.",
            "Remove --part.",
        )
    with options.usage_errors():
        training = short_training(train or (), steps)
        more = ResizeOptions(
            tune=tuple(tune or ()),
            budget=budget,
            edit_only=edit_only,
            link=link,
            verify=verify,
            runtime=runtime,
        )
        more.check(is_trained=training is not None)
        ref = CheckpointRef(
            source,
            revision=revision,
            subfolder=subfolder,
            variant=variant,
            model_type=model_type,
            tensor=tensor,
            config_key=config_key,
            reserved_rows=reserved_rows,
            tokenizer=tokenizer,
            trained_length=trained_length,
        )
        settings = Resize(
            to,
            method=method,
            keep_first=keep_first,
            part=part,
            fix_limits=fix_limits,
        )
    recipe = Recipe(ref, resize=settings, train=training)
    result = resize_checkpoint(recipe, more, output, force=force, dry_run=dry_run, events=console)
    finish("resize", console, recipe, result)
