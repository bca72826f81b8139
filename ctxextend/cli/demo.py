"""`ctxextend demo`."""

import tempfile
from pathlib import Path
from typing import Annotated

from ctxextend.cli.options import AsJson, Force, Quiet, output_folder
from ctxextend.cli.output import Output

__all__ = ["demo"]


def demo(
    output: Annotated[Path | None, output_folder(True, "Keep the new checkpoint here.")] = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Resize the bundled checkpoint and let it write past its old end.

    Examples:
        ctxextend demo
        ctxextend demo --output tiny-gpt2-512
    """
    from ctxextend.demonstration import run_demo

    sink = Output(as_json, quiet)
    sink.note("Resizing tiny-gpt2 to 512 positions, then loading it in transformers ...")
    with tempfile.TemporaryDirectory() as temporary:
        shown = run_demo(output or Path(temporary) / "tiny-gpt2-512", force)
    before, after = shown.max_len_before, shown.max_len_after
    same = "are equal to the last bit" if shown.same_outputs else "DIFFER"
    sink.data(
        f"Before: {shown.source} reads {before} tokens, and fails at {before + 1}: {shown.failure_before}\n"
        f"After:  it reads {after}. Its outputs for {before} tokens and the original's {same}.\n\n"
        f"{shown.text_within}\n---- position {before}: the original ends here ----\n{shown.text_beyond}\n\n"
        f"{shown.tokens} tokens. {shown.consequences}"
    )
    sink.result("demo", shown.as_dict() | {"output": str(output) if output else None})
    if output:
        sink.note(f"The checkpoint is in {output}.")
