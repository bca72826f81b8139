"""`ctxextend demo`."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from ctxextend.cli import options
from ctxextend.cli.compare import add_comparison
from ctxextend.cli.console import Console
from ctxextend.cli.tables import Page
from ctxextend.errors import TrainingError, counted, install_command
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Comparison
    from ctxextend.demo import Demo

REPORT = "ctxextend-demo.html"


def demo(
    output: Annotated[
        Path | None, options.output_folder(True, "Keep the trained checkpoint here.")
    ] = None,
    report: Annotated[
        Path | None,
        options.files("--report FILE.html", "Write an HTML report.", REPORT, readable=False),
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

    Compares methods at twice the length. With the extra ctxextend[train], also trains the best one and writes past the
    old end.
    """
    from ctxextend.demo import DEMO_SOURCE, Demo, compare_demo, open_training, train_demo
    from ctxextend.report import figures
    from ctxextend.report.html import write_report

    sink = Console(as_json, quiet)
    target = report
    if target is None and not figures.REPORT.missing():
        folder = output.parent if output else Path()
        target = folder / REPORT
    options.check_files(report=target)
    can_train = True
    try:
        open_training()
    except TrainingError:
        if output is not None:  # there would be nothing to keep
            raise
        can_train = False
    with sink.progress("Comparing", unit="tokens") as progress:
        comparison = compare_demo(progress, threads)
    add_comparison(page := Page.for_stdout(), comparison)
    method, to = comparison.recommended, comparison.max_len_after
    if can_train:
        sink.screen(page.lines)
        page = Page.for_stdout()
        sink.note(f"Training {method} at {to} tokens ...")
        with (
            TemporaryDirectory() as folder_name,
            sink.progress("Training", unit="tokens") as progress,
        ):
            path = output or Path(folder_name) / f"{DEMO_SOURCE}-{to}"
            result = train_demo(to, method, path, force, threads, progress)
        add_training(page, comparison, result)
    else:
        result = Demo(DEMO_SOURCE, method, comparison.max_len_before, to)
    values = to_json(result) | {
        "output": str(output) if output else None,
        "comparison": to_json(comparison),
    }
    files = [(target, lambda path: write_report(comparison, path, options.command_line()))]
    sink.measurement("demo", comparison, page.lines, files, values)
    if not can_train:
        sink.note(
            f"To also train {method} briefly and write past the old end: "
            f"{install_command('accelerate')}"
        )
    if target:
        sink.note(f"Open {target} in a browser.")
    else:
        sink.note(f"For an HTML report: {install_command('matplotlib')}")


def add_training(page: Page, comparison: "Comparison", result: "Demo") -> None:
    """Add what the training changed, and what the model wrote before and after it."""
    assert result.loss_before is not None
    assert result.loss_after is not None
    method, to = comparison.recommended, result.max_len_after
    before, after = math.exp(result.loss_before), math.exp(result.loss_after)
    page.line()
    change = f"changes the perplexity at {to} tokens from {before:.1f} to {after:.1f}"
    base = (
        f"The base in sliding windows of {result.max_len_before} tokens: "
        f"{page.numbers.perplexity(comparison.base)}"
    )
    page.text(f"Training for {counted(result.steps, 'step')} {change}. {base}.", "title")
    for title, text in (
        (
            f"A prompt of {result.max_len_before} tokens, as many as {result.source} accepts",
            result.prompt,
        ),
        ("The base, with one more token", result.failure),
        (f"{method} at {to} tokens, before training", result.text_before),
        ("After training", result.text_after),
    ):
        page.line()
        page.line((f"{title}:", "label"))
        for line in (text or "").splitlines():
            page.line(line)
    page.line()
    page.text(
        "A model of 0.9 million parameters writes no sense at any length; its perplexity is what "
        "improves."
    )
