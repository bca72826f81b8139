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

REPORT_FILE = "ctxextend-demo.html"


def demo(
    output: Annotated[
        Path | None, options.output_folder(True, "Keep the trained checkpoint here.")
    ] = None,
    report: Annotated[
        Path | None,
        options.files("--report FILE.html", "Write an HTML report.", REPORT_FILE, readable=False),
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

    Compares methods at twice the length. With the extra ctxextend[train], also trains the rows of
    the best one for a while, as `resize --tune` does, and writes past the old end.
    """
    from ctxextend.demo import DEMO_SOURCE, Demo, check_demo_output, compare_demo
    from ctxextend.report.html import write_report

    console = Console(as_json, quiet)
    report = report or _default_report(output)
    options.check_files(report=report)
    if output is not None:
        check_demo_output(output, force=force)
    can_train = _can_train(must_train=output is not None)
    with console.progress("Comparing", unit="tokens") as progress:
        comparison = compare_demo(progress, threads)
    page = Page.for_stdout()
    add_comparison(page, comparison)
    if can_train:
        console.screen(page.lines)
        result = _train(console, comparison, output, force=force, threads=threads)
        page = Page.for_stdout()
        add_training(page, comparison, result)
    else:
        result = Demo(
            source=DEMO_SOURCE,
            method=comparison.recommended,
            max_len_before=comparison.max_len_before,
            max_len_after=comparison.max_len_after,
        )
    values = to_json(result) | {
        "output": str(output) if output else None,
        "comparison": to_json(comparison),
    }
    next_command = f"ctxextend resize {result.source} --to {result.max_len_after}"
    if can_train:
        next_command += " --tune TEXT"

    def write_page(path: Path) -> None:
        training = describe_training(comparison, result)
        write_report(comparison, path, options.command_line(), next_command, training)

    files = [(report, write_page)]
    console.measurement("demo", comparison, page.lines, files, values)
    if not can_train:
        console.note(
            f"To also train its rows and write past the old end: {install_command('accelerate')}"
        )
    if report:
        console.note(f"Open {report} in a browser.")
    else:
        console.note(f"For an HTML report: {install_command('matplotlib')}")
    page = Page.for_stdout()
    page.command("Next, on your text: " if can_train else "Next: ", next_command)
    console.screen(page.lines)


def _default_report(output: Path | None) -> Path | None:
    """Return where the report is written, or None if what it needs is not installed."""
    from ctxextend.report import figures

    if figures.REPORT.missing():
        return None
    if output is None:
        return Path(REPORT_FILE)
    return output.parent / REPORT_FILE


def _can_train(*, must_train: bool) -> bool:
    """Whether what training needs is installed.

    Raises:
        TrainingError: It is not, and without training there would be nothing to keep.
    """
    from ctxextend.demo import check_can_train

    try:
        check_can_train()
    except TrainingError:
        if must_train:
            raise
        return False
    return True


def _train(
    console: Console,
    comparison: "Comparison",
    output: Path | None,
    *,
    force: bool,
    threads: int | None,
) -> "Demo":
    """Train the recommended method into the output, or into a temporary folder."""
    from ctxextend.demo import DEMO_SOURCE, train_demo

    method = comparison.recommended
    to = comparison.max_len_after
    console.note(f"Training {method} at {to} tokens ...")
    with (
        TemporaryDirectory() as folder,
        console.progress("Training", unit="tokens") as progress,
    ):
        path = output or Path(folder) / f"{DEMO_SOURCE}-{to}"
        return train_demo(to, method, path, force=force, threads=threads, progress=progress)


def describe_training(comparison: "Comparison", result: "Demo") -> str:
    """Return what was trained after the comparison, on what, and what that changed.

    It is empty if nothing was trained.
    """
    from ctxextend.recipe import TRAINABLE

    if result.loss_before is None or result.loss_after is None:
        return ""
    before = math.exp(result.loss_before)
    after = math.exp(result.loss_after)
    trained = (
        f"after the comparison, {TRAINABLE[str(result.trainable)]} of {comparison.recommended}"
    )
    text = f"{counted(result.documents, 'document')} of Python"
    to = result.max_len_after
    change = f"perplexity of other documents at {to} tokens: {before:.1f} -> {after:.1f}"
    return f"{trained}, {counted(result.steps, 'step')} on {text}; {change}"


def add_training(page: Page, comparison: "Comparison", result: "Demo") -> None:
    """Add what the training changed, and what the model wrote before and after it."""
    assert result.loss_before is not None
    assert result.loss_after is not None
    method = comparison.recommended
    to = result.max_len_after
    before = math.exp(result.loss_before)
    after = math.exp(result.loss_after)
    training = f"Training the rows for {counted(result.steps, 'step')}"
    change = f"changes the perplexity at {to} tokens from {before:.1f} to {after:.1f}"
    base = page.numbers.perplexity(comparison.base)
    windows = f"The base in sliding windows of {result.max_len_before} tokens: {base}"
    prompt = f"A prompt of {result.max_len_before} tokens, as many as {result.source} accepts"
    page.line()
    page.text(f"{training} {change}. {windows}.", "title")
    _add_written(page, prompt, result.prompt)
    _add_written(page, "The base, with one more token", result.failure)
    _add_written(page, f"{method} at {to} tokens, before training", result.text_before)
    _add_written(page, "After training", result.text_after)
    page.line()
    page.text(
        "A model of 0.9 million parameters writes no sense at any length; its perplexity is what "
        "improves."
    )


def _add_written(page: Page, title: str, text: str | None) -> None:
    page.line()
    page.line((f"{title}:", "label"))
    for line in (text or "").splitlines():
        page.line(line)
