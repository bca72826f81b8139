"""`ctxextend evaluate`."""

from typing import TYPE_CHECKING, Annotated

from ctxextend.cli import options
from ctxextend.cli.output import Output, ignore_ctrl_c
from ctxextend.cli.tables import Page

if TYPE_CHECKING:
    from ctxextend.evaluation.evaluation_result import Evaluation


def evaluate(
    source: options.Model,
    data: options.Data,
    text_field: options.TextField = "text",
    tokens: options.Tokens = 65_536,
    alone: Annotated[bool, options.measures(None, "Leave the original out.", "--alone")] = False,
    length: options.Length = None,
    measure: options.Measure = None,
    batch_size: Annotated[
        int | None,
        options.running("B", "As many windows are read at once.", default="as hold 4,096 tokens", min=1),
    ] = None,
    precision: options.Precision = "auto",
    seed: options.Seed = 0,
    plot: options.Plot = None,
    model_type: options.ModelType = None,
    original: options.Original = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what a context length is worth, on a text of yours.

    Examples:
        ctxextend evaluate tiny-gpt2-512 --data book.txt
        ctxextend evaluate gpt2-4096 --data articles.jsonl --length 1024 4096
        ctxextend evaluate path/to/minilm-2048 --original path/to/minilm --data texts/

    Of language models: loss by position and by how much text there is around a token, and whether a number that stands
    far back is found. Of encoders: that, and whether long documents are. The original reads the same text in pieces.
    """
    flags = locals()
    from ctxextend.evaluation.evaluate import EvaluationInterrupted, evaluate_checkpoint
    from ctxextend.recipe import CheckpointRef, Evaluate

    sink = Output(as_json, quiet)
    options.check_files(plot)
    ref, settings = options.from_flags(CheckpointRef, flags), options.from_flags(Evaluate, flags)
    try:
        with sink.progress("Reading", of="tokens") as progress:
            found = evaluate_checkpoint(ref, settings, progress)
    except EvaluationInterrupted as stop:
        ignore_ctrl_c()
        found = stop.evaluation
    # Before the figure: if that cannot be written, what took hours to measure was at least seen.
    show_evaluation(sink, found)
    from ctxextend.report.figures import evaluation_figure, write_figure

    failures = sink.saved("figure", plot, lambda path: write_figure(path, lambda: evaluation_figure(found)))
    sink.measured("evaluate", found, failures)


def show_evaluation(sink: Output, found: "Evaluation") -> None:
    """Print what was measured for people to read."""
    from ctxextend.cli.evaluation_screen import add_evaluation

    sink.note(*found.notes)
    sink.warning(*found.warnings)
    add_evaluation(page := Page.of_stdout(), found)
    sink.screen(page.lines)
