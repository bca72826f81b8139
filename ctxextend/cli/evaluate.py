"""`ctxextend evaluate`."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli.options import (
    RUNNING,
    TEXT,
    AsJson,
    FamilyName,
    Model,
    Plot,
    PrecisionName,
    Quiet,
    Revision,
    Subfolder,
    TextField,
    Variant,
    check_plot,
    original_model,
    usage_errors,
)
from ctxextend.cli.output import INTERRUPTED, Output, screen_lines, shows_unicode, terminal_width
from ctxextend.errors import OutputError
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.evaluation.evaluation_result import Evaluation

__all__ = ["MEASURE_NAMES", "complete_measure", "evaluate", "show_evaluation"]

MEASURES = "What to measure"

# The recipe's names, which a test compares: importing them would bring numpy into --help.
MEASURE_NAMES = ("position", "context", "passkey", "retrieval")


def complete_measure(incomplete: str) -> list[str]:
    """Return the measures that begin so."""
    return [name for name in MEASURE_NAMES if name.startswith(incomplete)]


def evaluate(
    model: Model,
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            readable=False,
            metavar="PATH...",
            help="Text, .jsonl, .parquet, folders, or hf:OWNER/NAME.",
            rich_help_panel=TEXT,
        ),
    ],
    text_field: TextField = "text",
    tokens: Annotated[
        int, typer.Option(min=1, metavar="T", help="Use so many of its tokens, or one window.", rich_help_panel=TEXT)
    ] = 65_536,
    original: Annotated[
        str | None,
        original_model("What it was made of, to compare with.", MEASURES),
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Leave the original out.", rich_help_panel=MEASURES)] = False,
    length: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            min=8,
            metavar="L...",
            show_default="128, 256, ... up to the model's",
            help="Contexts to measure, in tokens.",
            rich_help_panel=MEASURES,
        ),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            "--measure",
            metavar="NAME...",
            autocompletion=complete_measure,
            show_default="all that fit",
            help=f"Measure these alone: {', '.join(MEASURE_NAMES)}.",
            rich_help_panel=MEASURES,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="S", help="What masks and numbers are drawn with.", rich_help_panel=MEASURES)
    ] = 0,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="B",
            show_default="as hold 4,096 tokens",
            help="As many windows are read at once.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    precision: PrecisionName = "auto",
    plot: Plot = None,
    family: FamilyName = None,
    revision: Revision = None,
    subfolder: Subfolder = None,
    variant: Variant = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what a context length is worth, on a text of yours.

    Examples:
        ctxextend evaluate tiny-gpt2-512 --data book.txt
        ctxextend evaluate gpt2-4096 --data articles.jsonl --length 1024 4096
        ctxextend evaluate path/to/minilm-2048 --original path/to/minilm --data texts/

    Of language models: loss by position and by how much text there is around a token, and whether a number that stands
    far back is found. Of encoders: that, and whether long documents are. The original reads the same text in pieces.
    """
    from ctxextend.evaluation.evaluate import EvaluationInterrupted, evaluate_checkpoint
    from ctxextend.recipe import CheckpointRef, Evaluate

    sink = Output(as_json, quiet)
    check_plot(plot)
    with usage_errors():
        ref = CheckpointRef(model, revision, subfolder, variant, family)
        settings = Evaluate(
            data=tuple(map(str, data)),
            original=original,
            alone=alone,
            length=tuple(length or ()),
            tokens=tokens,
            batch_size=batch_size,
            precision=precision,
            seed=seed,
            measure=tuple(measure or ()),
            text_field=text_field,
        )
    try:
        with sink.progress("Reading", of="tokens") as progress:
            found = evaluate_checkpoint(ref, settings, progress)
    except EvaluationInterrupted as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # hands that are slow to let go must not lose what was measured
        _show(sink, stop.evaluation, plot)
        raise typer.Exit(INTERRUPTED) from None
    _show(sink, found, plot)


def show_evaluation(sink: Output, found: "Evaluation") -> None:
    """Print what was measured for people to read."""
    from ctxextend.cli.evaluationscreen import evaluation_lines

    for note in found.notes:
        sink.note(note)
    for warning in found.warnings:
        sink.warning(warning)
    sink.screen(list(evaluation_lines(found, terminal_width(), unicode=shows_unicode(), screen=screen_lines())))


def _show(sink: Output, found: "Evaluation", plot: Path | None) -> None:
    # Before the figure: if that cannot be written, what took hours to measure was at least seen.
    show_evaluation(sink, found)
    failure = _plot(sink, found, plot)
    sink.result("evaluate", to_json(found), [*found.warnings, *([str(failure)] if failure else [])])
    if not found.complete:
        sink.note("Stopped: what is shown was measured until then.")
    if failure:
        sink.note(f"Error: {failure}")
        raise typer.Exit(1)


def _plot(sink: Output, found: "Evaluation", plot: Path | None) -> OutputError | None:
    """Write the figure; return why that failed, since what was measured must be printed all the same."""
    if plot is None:
        return None
    from ctxextend.report.figures import plot_evaluation

    try:
        plot_evaluation(found, plot)
    except OutputError as error:
        return error
    sink.note(f"The figure is in {plot}.")
    return None
