"""`ctxextend evaluate`."""

from typing import TYPE_CHECKING, Annotated

from ctxextend.cli import options
from ctxextend.cli.output import Output, ignore_ctrl_c, screen_of_stdout, show_measured, written_files

if TYPE_CHECKING:
    from ctxextend.evaluation.evaluation_result import Evaluation


def evaluate(
    source: options.Model,
    data: options.Data,
    text_field: options.TextField = "text",
    tokens: options.Tokens = 65_536,
    original: Annotated[
        str | None, options.original_model(options.measures, "What it was made of, to compare with.")
    ] = None,
    alone: Annotated[bool, options.measures("--alone", help="Leave the original out.")] = False,
    length: Annotated[
        list[int] | None,
        options.measures(
            min=8,
            metavar="L...",
            show_default="128, 256, ... up to the model's",
            help="Contexts to measure, in tokens.",
        ),
    ] = None,
    measure: Annotated[
        list[str] | None,
        options.measures(
            metavar="NAME...",
            autocompletion=options.complete_names(options.MEASURES),
            show_default="all that fit",
            help=f"Measure these alone: {', '.join(options.MEASURES)}.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        options.running(
            min=1, metavar="B", show_default="as hold 4,096 tokens", help="As many windows are read at once."
        ),
    ] = None,
    precision: options.PrecisionName = "auto",
    seed: options.Seed = 0,
    plot: options.Plot = None,
    model_type: options.ModelType = None,
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

    failures = written_files(
        sink, {"figure": (plot, lambda path: write_figure(path, lambda: evaluation_figure(found)))}
    )
    show_measured(sink, "evaluate", found, failures)


def show_evaluation(sink: Output, found: "Evaluation") -> None:
    """Print what was measured for people to read."""
    from ctxextend.cli.evaluation_screen import evaluation_lines

    sink.note(*found.notes)
    sink.warning(*found.warnings)
    sink.screen(evaluation_lines(found, screen_of_stdout()))
