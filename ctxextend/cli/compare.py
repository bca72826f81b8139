"""`ctxextend compare`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.output import Output, ignore_ctrl_c, screen_of_stdout, show_measured, written_files
from ctxextend.tables.method_facts import METHOD_NAMES

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Comparison

compared = partial(typer.Option, rich_help_panel="What to compare")


def compare(
    source: options.Model,
    to: Annotated[int, typer.Option("--to", min=8, metavar="N", help="Usable token positions that each gives.")],
    data: options.Data,
    methods: Annotated[
        list[str] | None,
        compared(
            "--methods",
            metavar="NAME,...",
            autocompletion=options.complete_names(("all", *METHOD_NAMES)),
            show_default="all",
            help="Methods, with flags where needed: stretch:keep-first=5.",
        ),
    ] = None,
    length: Annotated[
        list[int] | None,
        compared(
            min=8, metavar="L...", show_default="128, 256, ... up to N", help="Contexts to measure beside N, in tokens."
        ),
    ] = None,
    measure: Annotated[
        list[str] | None,
        compared(
            metavar="NAME...",
            autocompletion=options.complete_names(options.MEASURES),
            show_default="all that fit",
            help=f"Beside what methods are ranked by, these alone: {', '.join(options.MEASURES)}.",
        ),
    ] = None,
    text_field: options.TextField = "text",
    tokens: options.Tokens = 65_536,
    eval_data: options.EvalData = None,
    steps: Annotated[
        int, options.learning(min=0, metavar="K", help="Also train each for so many optimizer steps.")
    ] = 0,
    trainable: options.Trainable = None,
    seq_len: options.SeqLen = None,
    window: options.Window = None,
    lr: options.LearningRate = None,
    batch_size: options.StepBatch = None,
    precision: options.PrecisionName = "auto",
    seed: options.Seed = 0,
    report: Annotated[
        Path | None, options.report_file(False, "Write a page that a browser opens; needs ctxextend[plot].")
    ] = None,
    plot: options.Plot = None,
    model_type: options.ModelType = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Rank methods by what they are worth on a model and a text of yours.

    Examples:
        ctxextend compare tiny-gpt2 --to 512 --data book.txt
        ctxextend compare gpt2 --to 4096 --data a.jsonl --methods linear,copy
        ctxextend compare path/to/bert --to 2048 --data texts/ --steps 100
        ctxextend compare tiny-gpt2 --to 512 --data book.txt --report page.html

    The model is loaded once, and nothing but its position table is changed from one method to the next. Language models
    are ranked by their loss on windows of N tokens, encoders by the documents that they find; with --steps, by what
    they are worth after a short training on the rest of the text.
    """
    flags = locals()
    from ctxextend.comparison.compare import ComparisonInterrupted, compare_model
    from ctxextend.comparison.compare_settings import Compare
    from ctxextend.plan.find_tables import open_model
    from ctxextend.recipe import CheckpointRef, Evaluate, Train

    named = [name for listed in methods or () for name in listed.split(",") if name.strip()]
    if methods is not None and not named:
        raise typer.BadParameter("--methods names none: leave it out for all of them.")
    sink = Output(as_json, quiet)
    options.check_files(plot, report)
    with options.usage_errors():
        ref = options.from_flags(CheckpointRef, flags)
        settings = Compare.from_flags(methods=named, **options.given_flags(flags, Evaluate, Train), to=to)
    try:
        with sink.progress("Comparing", of="tokens") as progress:
            found = compare_model(open_model(ref, typed=("compare",)), settings, progress)
    except ComparisonInterrupted as stop:
        ignore_ctrl_c()
        found = stop.comparison
    # Files first: a reader of stdout may go away, and a file that cannot be written stops nothing.
    failures = write_comparison(sink, found, report, plot)
    show_comparison(sink, found)
    show_measured(sink, "compare", found, failures)


def write_comparison(sink: Output, found: "Comparison", report: Path | None, plot: Path | None = None) -> list[str]:
    """Write the report and the figure; return why one could not be."""
    from ctxextend.report.figures import write_figure
    from ctxextend.report.html import comparison_figure, write_report

    if not found.rows:
        return []
    asked = {
        "report": (report, lambda path: write_report(found, path)),
        "figure": (plot, lambda path: write_figure(path, lambda: comparison_figure(found))),
    }
    return written_files(sink, asked)


def show_comparison(sink: Output, found: "Comparison") -> None:
    """Print what was found for people to read."""
    from ctxextend.cli.comparison_screen import comparison_lines

    sink.note(*found.notes)
    sink.warning(*found.warnings)
    sink.screen(comparison_lines(found, screen_of_stdout()))
    sink.note(f"Compared in {found.seconds:.0f} s.")
