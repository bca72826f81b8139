"""`ctxextend demo`."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from ctxextend.cli import options
from ctxextend.cli.compare import show_comparison
from ctxextend.cli.output import Output
from ctxextend.json_output import to_json

REPORT = "ctxextend-demo.html"


def demo(
    output: Annotated[Path | None, options.output_folder(True, "Keep the resized checkpoint here.")] = None,
    report: Annotated[
        Path | None, options.files("--report FILE.html", "Write an HTML report.", REPORT, readable=False)
    ] = None,
    threads: options.Threads = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a guided demo on the bundled model.

    Examples:
        ctxextend demo
        ctxextend demo --output tiny-gpt2-512
    """
    from ctxextend.comparison.compare import ComparisonInterrupted
    from ctxextend.demo import compare_demo, run_demo
    from ctxextend.report import figures

    sink = Output(as_json, quiet)
    target = report
    if target is None and not figures.REPORT.missing():
        target = (output.parent if output else Path()) / REPORT
    options.check_files(report=target)
    with TemporaryDirectory() as temporary:
        result = run_demo(output or Path(temporary) / "tiny-gpt2-512", force, threads)
    before, after = result.max_len_before, result.max_len_after
    same = "identical bit for bit" if result.same_outputs else "DIFFERENT"
    sink.data(
        f"Before: {result.source} accepts {before} tokens and fails at {before + 1}: {result.failure_before}\n"
        f"After:  it accepts {after} tokens; base and resized outputs for {before} tokens are {same}.\n\n"
        f"{result.text_within}\n---- position {before}: the base checkpoint ends here ----\n{result.text_beyond}\n\n"
        f"{result.tokens} tokens. {result.consequences}\n"
    )
    sink.note("Comparing all methods on Python's documentation (about a minute) ...")
    try:
        with sink.progress("Comparing", unit="tokens") as progress:
            comparison = compare_demo(progress, threads)
    except ComparisonInterrupted as stop:
        comparison = stop.comparison
    values = to_json(result) | {"output": str(output) if output else None, "comparison": to_json(comparison)}
    show_comparison(sink, "demo", comparison, target, value=values)
    sink.note(f"Open {target} in a browser." if target else "For an HTML report: pip install 'ctxextend[plot]'")
