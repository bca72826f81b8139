"""`ctxextend flags`."""

import sys
from typing import TYPE_CHECKING, Annotated

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.options import basic, complete_rotary_method
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.plan.runtime_flags import RuntimeFlags


def flags(
    source: Annotated[
        str, options.model("Folder, weights file, bundled model (tiny-gpt2) or Hub id.")
    ],
    to: options.To,
    runtime: Annotated[
        str,
        basic("--for ENGINE", "vllm, sglang or llama.cpp.", False, options.complete_flags_runtime),
    ],
    method: Annotated[
        str | None,
        basic(
            "--method NAME", "E.g. yarn or linear (see methods).", "auto", complete_rotary_method
        ),
    ] = None,
    trained_length: options.TrainedLength = None,
    model_type: options.ModelType = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Print the flags that serve a rotary model at a longer length.

    Examples:
        ctxextend flags Qwen/Qwen3-8B --to 128k --for vllm
        ctxextend flags path/to/llama --to 4x --for llama.cpp
    """
    from ctxextend.plan.runtime_flags import find_flags, find_flags_runtime
    from ctxextend.recipe import CheckpointRef, Resize

    console = Console(as_json, quiet)
    with options.usage_errors():
        ref = CheckpointRef(
            source,
            revision=revision,
            subfolder=subfolder,
            model_type=model_type,
            trained_length=trained_length,
        )
        settings = Resize(to, method=method)
        find_flags_runtime(runtime)
    result = find_flags(ref, settings, runtime)
    show_flags(console, result)
    console.result("flags", to_json(result), result.warnings)


def show_flags(console: Console, result: "RuntimeFlags") -> None:
    """Print flags, with what they mean and the command that they belong to on stderr.

    A terminal shows both outputs: there, only the command is printed, which has the flags.
    """
    console.warning(*result.warnings)
    console.note(*result.notes)
    console.note(f"{result.max_len_before} -> {result.max_len_after} tokens, {result.method}:")
    if sys.stdout.isatty() and sys.stderr.isatty() and not console.quiet:
        console.data(result.serve)
        return
    console.note(f"  {result.serve}")
    console.data(result.flags)
