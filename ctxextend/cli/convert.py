"""`ctxextend convert`."""

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.resize import finish
from ctxextend.settings import CheckpointRef, Convert


@options.command(CheckpointRef, Convert, without=("table", "tokenizer", "trained_length"))
def convert(ref: CheckpointRef, settings: Convert, console: Console) -> None:
    """Convert attention to windows, or positions to rotary, ALiBi or none.

    Examples:
        ctxextend convert path/to/bert --scheme window --to 8192 -o bert-8192
        ctxextend convert gpt2 --scheme rotary --to 4096
        ctxextend convert path/to/llama --scheme none -o llama-none

    Encoders of the BERT family become Longformer, BART becomes LED (window): they read whole
    documents at once, also untrained. The other schemes need training.
    """
    from ctxextend.resizing import convert_checkpoint

    result = convert_checkpoint(ref, settings, console)
    finish("convert", console, result)
