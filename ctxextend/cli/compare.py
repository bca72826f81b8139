"""`ctxextend compare`."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli.completion import complete_listed
from ctxextend.cli.evaluate import MEASURE_NAMES, complete_measure
from ctxextend.cli.options import (
    LEARNING,
    RUNNING,
    TEXT,
    AsJson,
    FamilyName,
    LearningRate,
    Model,
    Plot,
    PrecisionName,
    Quiet,
    Revision,
    SeqLen,
    Subfolder,
    TextField,
    Trainable,
    Variant,
    check_plot,
    check_report,
    report_file,
    usage_errors,
)
from ctxextend.cli.output import INTERRUPTED, Output, shows_unicode, terminal_width
from ctxextend.errors import OutputError
from ctxextend.json_output import to_json
from ctxextend.tables.method_facts import METHOD_NAMES

if TYPE_CHECKING:
    from ctxextend.comparison.reports import Comparison

__all__ = ["compare", "show_comparison", "write_files"]

COMPARED = "What to compare"
METHODS = ("all", *METHOD_NAMES)


def _complete_methods(incomplete: str) -> list[str]:
    return complete_listed(incomplete, METHODS)


def compare(
    model: Model,
    to: Annotated[int, typer.Option("--to", min=8, metavar="N", help="Usable token positions that each gives.")],
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            metavar="PATH...",
            help="Text, .jsonl, .parquet, folders, or hf:OWNER/NAME.",
            rich_help_panel=TEXT,
        ),
    ],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            metavar="NAME,...",
            autocompletion=_complete_methods,
            show_default="all",
            help="Methods, with flags where needed: stretch:keep-first=5.",
            rich_help_panel=COMPARED,
        ),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            min=8,
            metavar="L...",
            show_default="128, 256, ... up to N",
            help="Contexts to measure beside N, in tokens.",
            rich_help_panel=COMPARED,
        ),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            "--measure",
            metavar="NAME...",
            autocompletion=complete_measure,
            show_default="all that fit",
            help=f"Beside what methods are ranked by, these alone: {', '.join(MEASURE_NAMES)}.",
            rich_help_panel=COMPARED,
        ),
    ] = None,
    text_field: TextField = "text",
    tokens: Annotated[
        int,
        typer.Option(min=1, metavar="T", help="Measure on so many of its tokens, or one window.", rich_help_panel=TEXT),
    ] = 65_536,
    eval_data: Annotated[
        list[str] | None,
        typer.Option(
            "--eval-data",
            metavar="PATH...",
            show_default="the last 5 % of --data",
            help="With --steps: text to measure on.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(min=0, metavar="K", help="Also train each for so many optimizer steps.", rich_help_panel=LEARNING),
    ] = 0,
    trainable: Trainable = None,
    seq_len: SeqLen = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=8,
            metavar="W",
            show_default="L",
            help="Train by sequences of W tokens, each at a place of its own.",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    lr: LearningRate = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="B", show_default="8", help="Sequences of a step.", rich_help_panel=LEARNING),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, metavar="S", help="What masks, numbers and order are drawn with.", rich_help_panel=RUNNING),
    ] = 0,
    precision: PrecisionName = "auto",
    report: Annotated[Path | None, report_file(False, "Write a page that a browser opens.")] = None,
    plot: Plot = None,
    family: FamilyName = None,
    revision: Revision = None,
    subfolder: Subfolder = None,
    variant: Variant = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
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
    from ctxextend.comparison.comparing import ComparisonInterrupted, compare_model
    from ctxextend.comparison.settings import Compare
    from ctxextend.plan.find_tables import open_model
    from ctxextend.recipe import CheckpointRef

    if methods is not None and not any(name.strip() for listed in methods for name in listed.split(",")):
        raise typer.BadParameter("--methods names none: leave it out for all of them.")
    sink = Output(as_json, quiet)
    check_plot(plot)
    check_report(report)
    with usage_errors():
        ref = CheckpointRef(model, revision, subfolder, variant, family)
        settings = Compare.of(
            to,
            data,
            [name for listed in methods or () for name in listed.split(",") if name.strip()],
            steps,
            trainable=trainable,
            eval_data=tuple(eval_data or ()),
            length=tuple(length or ()),
            tokens=tokens,
            measure=tuple(measure or ()),
            precision=precision,
            seed=seed,
            text_field=text_field,
            seq_len=seq_len,
            window=window,
            lr=lr,
            batch_size=batch_size,
        )
    try:
        with sink.progress("Comparing", of="tokens") as progress:
            found = compare_model(open_model(ref, typed=("compare",)), settings, progress)
    except ComparisonInterrupted as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # hands that are slow to let go must not lose what was measured
        _show(sink, stop.comparison, report, plot)
        raise typer.Exit(INTERRUPTED) from None
    _show(sink, found, report, plot)


def show_comparison(sink: Output, found: "Comparison") -> None:
    """Print what was found for people to read."""
    from ctxextend.cli.comparisonscreen import comparison_lines

    for note in found.notes:
        sink.note(note)
    for warning in found.warnings:
        sink.warning(warning)
    sink.screen(list(comparison_lines(found, terminal_width(), unicode=shows_unicode())))
    sink.note(f"Compared in {found.seconds:.0f} s.")


def _show(sink: Output, found: "Comparison", report: Path | None, plot: Path | None) -> None:
    # Files first: a reader of stdout may go away, and a file that cannot be written stops nothing.
    failures = list(write_files(sink, found, report, plot)) if found.rows else []
    show_comparison(sink, found)
    sink.result("compare", to_json(found), [*found.warnings, *map(str, failures)])
    if not found.complete:
        sink.note("Stopped: what is shown was measured until then.")
    for failure in failures:
        sink.note(f"Error: {failure}")
    if failures:
        raise typer.Exit(1)


def write_files(
    sink: Output, found: "Comparison", report: Path | None, plot: Path | None = None
) -> Iterator[OutputError]:
    """Write the page and the figure; yield why one could not be, since what was found must be printed all the same."""
    from ctxextend.report.comparison_panels import plot_comparison
    from ctxextend.report.html import write_report

    asked: list[tuple[str, Path | None, Callable[[Comparison, Path], None]]] = [
        ("report", report, write_report),
        ("figure", plot, plot_comparison),
    ]
    for what, path, write in asked:
        if path is not None:
            try:
                write(found, path)
                sink.note(f"The {what} is in {path}.")
            except OutputError as error:
                yield error
