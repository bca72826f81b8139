"""`ctxextend demo`."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.checkpoints.siblings import scratch
from ctxextend.cli.compare import show_comparison, write_files
from ctxextend.cli.options import AsJson, Force, Quiet, check_report, output_folder, report_file
from ctxextend.cli.output import INTERRUPTED, Output
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.comparison.reports import Comparison
    from ctxextend.demo import Demo

__all__ = ["demo"]

REPORT = "ctxextend-demo.html"


def demo(
    output: Annotated[Path | None, output_folder(True, "Keep the new checkpoint here.")] = None,
    report: Annotated[Path | None, report_file(REPORT, "Write the page of all methods here.")] = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Resize the bundled checkpoint, let it write, and compare methods.

    Examples:
        ctxextend demo
        ctxextend demo --output tiny-gpt2-512
    """
    from ctxextend.comparison.comparing import ComparisonInterrupted
    from ctxextend.demo import compare_demo, run_demo

    sink = Output(as_json, quiet)
    page = report or (output.parent if output else Path()) / REPORT
    check_report(page)
    sink.note("Resizing tiny-gpt2 to 512 positions, then loading it in transformers ...")
    with scratch() as temporary:
        shown = run_demo(output or temporary / "tiny-gpt2-512", force)
    _show(sink, shown)
    if output:
        sink.note(f"The checkpoint is in {output}.")
    sink.note("Comparing all methods on Python's own documentation, for about a minute ...")
    try:
        with sink.progress("Comparing", of="tokens") as progress:
            found = compare_demo(progress)
    except ComparisonInterrupted as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # hands that are slow to let go must not lose what was measured
        _compared(sink, shown, stop.comparison, output)
        raise typer.Exit(INTERRUPTED) from None
    failures = list(write_files(sink, found, page))
    _compared(sink, shown, found, output)
    if failures:
        raise failures[0]
    sink.note(f"Open {page} in a browser.")


def _show(sink: Output, shown: "Demo") -> None:
    before, after = shown.max_len_before, shown.max_len_after
    same = "are equal to the last bit" if shown.same_outputs else "DIFFER"
    sink.data(
        f"Before: {shown.source} reads {before} tokens, and fails at {before + 1}: {shown.failure_before}\n"
        f"After:  it reads {after}. Its outputs for {before} tokens and the original's {same}.\n\n"
        f"{shown.text_within}\n---- position {before}: the original ends here ----\n{shown.text_beyond}\n\n"
        f"{shown.tokens} tokens. {shown.consequences}\n"
    )


def _compared(sink: Output, shown: "Demo", found: "Comparison", output: Path | None) -> None:
    show_comparison(sink, found)
    values = shown.as_dict() | {"output": str(output) if output else None, "comparison": to_json(found)}
    sink.result("demo", values, found.warnings)
