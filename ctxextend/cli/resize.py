"""`ctxextend resize`."""

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.settings import CheckpointRef, Resize


@options.command(CheckpointRef, Resize)
def resize(ref: CheckpointRef, settings: Resize, console: Console) -> None:
    """Resize the position embeddings and save a new checkpoint.

    Examples:
        ctxextend resize gpt2 --to 4096
        ctxextend resize Qwen/Qwen2.5-7B-Instruct --to 128k --edit-only

    With --for vllm, sglang or llama.cpp, --dry-run -q prints only the flags that serve MODEL
    itself.
    """
    from ctxextend.cli.show_result import finish
    from ctxextend.resizing import resize_checkpoint

    result = resize_checkpoint(ref, settings, console)
    finish("resize", console, result)
