"""`ctxextend demo`."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from ctxextend.cli import options
from ctxextend.cli.compare import add_comparison
from ctxextend.cli.output import Output
from ctxextend.cli.tables import Page
from ctxextend.errors import counted
from ctxextend.json_output import to_json

REPORT = "ctxextend-demo.html"


def demo(
    output: Annotated[Path | None, options.output_folder(True, "Keep the trained checkpoint here.")] = None,
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
        ctxextend demo --output tiny-gpt2-256
    """
    from ctxextend.demo import DEMO_SOURCE, compare_demo, train_demo
    from ctxextend.report import figures
    from ctxextend.report.html import write_report

    sink = Output(as_json, quiet)
    target = report or ((output.parent if output else Path()) / REPORT if (not figures.REPORT.missing()) else None)
    options.check_files(report=target)
    with sink.progress("Comparing", unit="tokens") as progress:
        comparison = compare_demo(progress, threads)
    add_comparison(page := Page.for_stdout(), comparison)
    sink.screen(page.lines)
    method, to = comparison.rows[0].method, comparison.max_len_after
    sink.note(f"Training {method} at {to} tokens ...")
    with TemporaryDirectory() as folder, sink.progress("Training", unit="tokens") as progress:
        path = output or Path(folder) / f"{DEMO_SOURCE}-{to}"
        result = train_demo(to, method, path, force, threads, progress)
    before, after = math.exp(result.loss_before), math.exp(result.loss_after)
    page = Page.for_stdout()
    page.line()
    change = f"changes the perplexity at {to} tokens from {before:.1f} to {after:.1f}"
    base = f"The base in sliding windows of {result.max_len_before} tokens: {page.numbers.perplexity(comparison.base)}"
    page.text(f"Training for {counted(result.steps, 'step')} {change}. {base}.", "title")
    for title, text in (
        (f"A prompt of {result.max_len_before} tokens, as many as {result.source} accepts", result.prompt),
        ("The base, with one more token", result.failure),
        (f"{method} at {to} tokens, before training", result.text_before),
        ("After training", result.text_after),
    ):
        page.line()
        page.line((f"{title}:", "label"))
        for line in text.splitlines():
            page.line(line)
    page.line()
    page.text("A model of 0.9 million parameters writes no sense at any length; its perplexity is what improves.")
    values = to_json(result) | {"output": str(output) if output else None, "comparison": to_json(comparison)}
    files = [(target, lambda path: write_report(comparison, path, options.command_line()))]
    sink.measurement("demo", comparison, page.lines, files, values)
    sink.note(f"Open {target} in a browser." if target else "For an HTML report: pip install 'ctxextend[plot]'")
