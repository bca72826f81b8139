"""`ctxextend compare`."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console, Files
from ctxextend.cli.effective import add_effective_lengths
from ctxextend.cli.options import complete_method, measures
from ctxextend.cli.tables import Cell, Page
from ctxextend.errors import ResizeError, counted, flag_name
from ctxextend.json_output import to_json
from ctxextend.progress import Progress

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Comparison, Outcome, Row
    from ctxextend.evaluation.effective_result import Effective
    from ctxextend.evaluation.evaluation_result import Estimate
    from ctxextend.report.numbers import NumberFormat


# Flags for one model: the settings of methods, and those of its reference.
OF_ONE_MODEL = (
    "to",
    "quick",
    "tune",
    "method",
    "eval_data",
    "steps",
    "trainable",
    "seq_len",
    "window",
    "lr",
    "batch_size",
    "model_type",
    "tokenizer",
    "revision",
    "subfolder",
    "variant",
)

Run = Callable[[Progress], "Comparison"]


def compare(
    context: typer.Context,
    source: Annotated[
        list[str], options.model("Model as in evaluate, or several, to compare side by side.")
    ],
    data: Annotated[
        list[str] | None,
        options.text("--data PATH", "As in evaluate.", "with --quick: Python's documentation"),
    ] = None,
    to: Annotated[
        str | None, options.basic("--to N", "New context length, e.g. 4096, 4k, 1m or 4x.", False)
    ] = None,
    quick: Annotated[
        bool, options.basic("--quick", "Advice within a minute; --to is 2x by default.")
    ] = False,
    tune: Annotated[
        bool, options.basic("--tune", "Also search the settings that yarn and switch leave open.")
    ] = False,
    method: Annotated[
        list[str] | None,
        measures(
            "--method NAME",
            "Method, e.g. stretch:keep-first=5; bands+tuned also trains its rows on the text.",
            "all",
            complete_method,
        ),
    ] = None,
    length: options.Length = None,
    measure: options.Measure = None,
    budget: Annotated[
        int | None,
        measures(
            "--budget SECONDS",
            "Time for each of: the search of --tune (60), a +tuned method (60), --measure "
            "effective (120).",
            False,
        ),
    ] = None,
    corpus: Annotated[str | None, options.rarely(options.Corpus)] = None,
    queries: Annotated[str | None, options.rarely(options.Queries)] = None,
    qrels: Annotated[str | None, options.rarely(options.Qrels)] = None,
    text_field: options.TextField = "text",
    tokens: options.Tokens = None,
    eval_data: Annotated[list[str] | None, options.rarely(options.EvalData)] = None,
    steps: Annotated[
        int, options.basic("--steps N", "Also train methods, by default auto, for N steps.")
    ] = 0,
    trainable: Annotated[
        Literal["new", "positions", "all-but-positions", "all"] | None,
        options.rarely(options.Trainable),
    ] = None,
    seq_len: Annotated[int | None, options.rarely(options.SeqLen)] = None,
    window: Annotated[int | None, options.rarely(options.Window)] = None,
    lr: Annotated[float | None, options.rarely(options.LearningRate)] = None,
    batch_size: Annotated[int | None, options.rarely(options.StepBatch)] = None,
    precision: options.Precision = "auto",
    seed: options.Seed = 0,
    device: options.Device = None,
    threads: options.Threads = None,
    report: options.Report = None,
    plot: options.Plot = None,
    model_type: options.ModelType = None,
    trained_length: options.TrainedLength = None,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Benchmark resize methods on your model and text, or several models.

    Examples:
        ctxextend compare gpt2 --quick
        ctxextend compare gpt2-bands gpt2-rotary --data a.jsonl --length 4096

    Ranks language models by loss on windows of N tokens, and encoders by document retrieval, or by
    nDCG@10 in a search set (--corpus, --queries, --qrels). With --steps, each method is first
    trained. With --quick, five methods on Python's text. METHOD+tuned also trains its rows, as
    resize --data does.
    """
    flags = options.given(context)
    _check_flags(flags)
    console = Console(as_json, quiet)
    options.check_files(plot, report)
    run = _read_flags(flags)

    from ctxextend.comparison.comparison_run import ComparisonInterrupted
    from ctxextend.report.next_steps import after_comparison
    from ctxextend.report.tuning import describe_search

    try:
        with console.progress("Comparing", unit="tokens") as progress:
            result = run(progress)
    except ComparisonInterrupted as stop:
        if not stop.comparison.rows:
            raise  # nothing was measured, and the line about that is all there is to print
        result = stop.comparison

    page = Page.for_stdout()
    add_comparison(page, result)
    console.note(*_skipped(result))
    console.note(*map(describe_search, result.searches))
    values = to_json(result) | {"verdict": _verdict(result, page.numbers)}
    next_command = after_comparison(result, flags["data"] or ())
    console.measurement(
        "compare", result, page.lines, _files(result, report, plot, next_command), values
    )
    if next_command is not None:
        console.next_steps(next_command)


def _check_flags(flags: Mapping[str, Any]) -> None:
    """Raise BadParameter for flags that cannot be used together."""
    sources = flags["source"]
    for name in OF_ONE_MODEL:
        if len(sources) > 1 and flags[name]:
            found = f"{flag_name(name)} is for one MODEL, got {len(sources)}: {', '.join(sources)}."
            raise options.WrongFlags(found, "Remove it to compare them as they are.")
    if not flags["quick"] and not flags["data"] and flags["corpus"] is None:
        with options.usage_errors():
            raise _no_text(flags)


def _no_text(flags: Mapping[str, Any]) -> ResizeError:
    """Return the error for a comparison without text, with whole commands."""
    words = ["ctxextend", "compare", *flags["source"]]
    if flags["to"] is not None:
        words += ["--to", flags["to"]]
    hint = f"Pass text: {shlex.join([*words, '--data', 'TEXT'])}"
    if len(flags["source"]) == 1 and not flags["tune"]:
        quick = shlex.join([*words, "--quick"])
        hint = f"Compare on Python's documentation: {quick}, or pass text: --data TEXT"
    return ResizeError("compare needs text, and --data is missing.", hint)


def _read_flags(flags: Mapping[str, Any]) -> Run:
    """Return the comparison that flags ask for; invalid values are usage errors."""
    from ctxextend.comparison.comparison_run import compare_model
    from ctxextend.comparison.comparison_settings import Compare, TextUse, search_time
    from ctxextend.comparison.quick import check_quick, compare_quickly
    from ctxextend.comparison.side_by_side import compare_checkpoints
    from ctxextend.plan.opened_model import open_model
    from ctxextend.recipe import CheckpointRef, Evaluate, Train

    sources = flags["source"]
    if len(sources) > 1:
        evaluate = options.from_flags(Evaluate, flags)
        return lambda progress: compare_checkpoints(sources, progress=progress, **vars(evaluate))
    ref = options.from_flags(CheckpointRef, flags, source=sources[0])
    given = options.given_flags(flags, Evaluate, Train)
    data = given.pop("data", ())
    steps = given.pop("steps")
    if flags["quick"]:
        with options.usage_errors():
            check_quick({**flags, "methods": flags["method"]})
        return lambda progress: compare_quickly(
            open_model(ref), flags["to"], data, progress, **given
        )
    search_seconds = search_time(tune=flags["tune"], budget=flags["budget"])
    with options.usage_errors():
        text_use = TextUse.from_values(data, steps, given, flags["method"] or ())
        settings = Compare.from_request(
            flags["to"],
            text_use,
            flags["method"] or (),
            search_seconds=search_seconds,
        )
    return lambda progress: compare_model(open_model(ref), settings, progress)


def _skipped(comparison: "Comparison") -> Iterator[str]:
    """Yield a note for each reason why methods were skipped."""
    for reason in dict.fromkeys(comparison.skipped.values()):
        names = [name for name, other in comparison.skipped.items() if other == reason]
        yield f"Skipped {', '.join(names)}: {reason}"


def _files(
    comparison: "Comparison", report: Path | None, plot: Path | None, next_command: str | None
) -> Files:
    """Return the files to write, and how; nothing if no row was measured."""
    from ctxextend.report.figures import write_figure
    from ctxextend.report.html import comparison_figure, write_report

    if not comparison.rows:
        return []
    return [
        (report, lambda path: write_report(comparison, path, options.command_line(), next_command)),
        (plot, lambda path: write_figure(path, lambda: comparison_figure(comparison))),
    ]


def _verdict(comparison: "Comparison", numbers: "NumberFormat") -> str:
    """Return the verdict as plain text; empty if no row was measured."""
    from ctxextend.report.verdicts import comparison_verdict

    if not comparison.rows:
        return ""
    return comparison_verdict(comparison, numbers).replace("`", "")


def add_comparison(page: Page, comparison: "Comparison") -> None:
    """Add the verdict, the settings, the ranking, and notes on its columns."""
    if comparison.rows:
        page.text(_verdict(comparison, page.numbers), "title")
    if not comparison.complete:
        page.text("Incomplete: interrupted before everything was measured.", "wrong")
    page.line()
    _add_heading(page, comparison)
    page.values(_settings(comparison))
    if comparison.rows:
        page.line()
        _add_ranking(page, comparison)
        page.line()
        _add_reading_modes(page, comparison)
        _add_column_notes(page, comparison)
        _add_effective(page, comparison)
    if comparison.skipped:
        page.text(f"Skipped: {', '.join(comparison.skipped)}.", "faint")


def _add_heading(page: Page, comparison: "Comparison") -> None:
    if comparison.row_type == "checkpoint":
        count = counted(len(comparison.rows), comparison.row_type)
        page.line((count, "title"), f" ({comparison.kind})")
    else:
        page.line((comparison.source, "title"), f" ({comparison.model_type}, {comparison.kind})")


def _settings(comparison: "Comparison") -> Iterator[tuple[str, str]]:
    """Yield what was compared, as label and text."""
    from ctxextend.evaluation.evaluation_result import text_summary
    from ctxextend.report.phrases import trained_part, tuned_steps

    yield "length", _length(comparison)
    if comparison.search:
        yield "search", comparison.search.summary
    if comparison.documents:
        yield (
            "text",
            text_summary(comparison.documents, comparison.tokens, comparison.limited_by),
        )
    if comparison.steps:
        steps = counted(comparison.steps, "step")
        sequences = f"sequence length {comparison.seq_len}"
        yield "training", f"{trained_part(comparison)}, {steps}, {sequences}"
    if comparison.tuned_rows:
        yield "tuned", tuned_steps(comparison)
    run = f"{comparison.precision}, seed {comparison.seed}, {comparison.seconds:,.1f} s"
    yield "run", run


def _length(comparison: "Comparison") -> str:
    if comparison.row_type == "checkpoint":
        parts = [f"{comparison.max_len_after:,} tokens"]
        if comparison.source:
            parts.append(f"base {comparison.source}: {comparison.max_len_before:,} tokens")
        return "; ".join(parts)
    parts = [f"{comparison.max_len_before} -> {comparison.max_len_after} positions"]
    parts.append(counted(len(comparison.rows), comparison.row_type))
    return ", ".join(parts)


def _add_column_notes(page: Page, comparison: "Comparison") -> None:
    from ctxextend.report.phrases import chunks_note, short_inputs_cost

    measured = comparison.rows[0].final.document_scores
    if measured is not None:
        page.text(chunks_note(measured))
    if any(row.final.is_tied for row in comparison.rows[1:]):
        page.text("Tied: the 95 % interval of the paired difference contains 0.")
    if _has_short_inputs(comparison):
        page.text(f"Cost on short inputs: {short_inputs_cost(comparison)}.")


def _add_effective(page: Page, comparison: "Comparison") -> None:
    """Add how far each row reads, where that was measured."""
    results = dict[str, "Effective"]()
    for row in comparison.rows:
        if row.final.evaluation.effective is not None:
            results[row.method] = row.final.evaluation.effective
    if results:
        add_effective_lengths(page, results, comparison.row_type)


def _has_short_inputs(comparison: "Comparison") -> bool:
    return any(row.final.short_inputs is not None for row in comparison.rows)


def _add_ranking(page: Page, comparison: "Comparison") -> None:
    """Add the rows as a table."""
    numbers = page.numbers
    ranked = [
        _ranked_cells(number, row, comparison, numbers)
        for number, row in enumerate(comparison.rows, 1)
    ]
    header = list(ranked[0])
    rows = [[*cells.values()] for cells in ranked]
    page.table(header, rows)


def _ranked_cells(
    number: int, row: "Row", comparison: "Comparison", numbers: "NumberFormat"
) -> dict[str, Cell]:
    """Return the cells of a row by column."""
    from ctxextend.report.phrases import metric_column

    unit = " (nats)" if comparison.is_loss else ""
    outcome = row.trained if comparison.steps else row.untrained
    score = None if outcome is None else outcome.score
    column = metric_column(comparison)
    cells: dict[str, Cell] = {f"   {comparison.row_type}": f"{number:>2} {row.method}"}
    cells[numbers.head(column)] = _score(comparison, score, numbers)
    cells[numbers.head(f"delta vs. best{unit}")] = _delta(outcome, numbers)
    cells |= _against_chunks(row, numbers)
    if comparison.steps:
        cells[numbers.head("untrained")] = _score(comparison, row.untrained.score, numbers)
    if _has_short_inputs(comparison):
        short = _short_inputs(row, numbers)
        cells[numbers.head(f"cost on short inputs{unit}")] = short
    return cells | _facts(row, numbers)


def _score(comparison: "Comparison", score: "Estimate | None", numbers: "NumberFormat") -> str:
    if comparison.is_loss:
        return numbers.perplexity(score)
    return numbers.estimate(score)


def _delta(outcome: "Outcome | None", numbers: "NumberFormat") -> Cell:
    """Return how much worse a row is than the best one."""
    if outcome is None:
        return "-"
    if outcome.delta is None:
        return "best", "right"
    delta = numbers.change(outcome.delta)
    if outcome.is_tied:
        return f"tied  {delta}", "right"
    return delta


def _short_inputs(row: "Row", numbers: "NumberFormat") -> str:
    cost = row.final.short_inputs
    if cost is not None and cost.mean == 0 and not cost.half_width:
        return "unchanged"
    return numbers.change(cost)


def _facts(row: "Row", numbers: "NumberFormat") -> dict[str, Cell]:
    """Return the facts of a checkpoint by column; without a base, also its shortest loss."""
    if row.checkpoint is None:
        return {}
    cells = dict[str, Cell]()
    evaluation = row.final.evaluation
    if evaluation.contexts is not None and not evaluation.base:
        first = evaluation.contexts.points[0]
        column = numbers.head(f"perplexity at {first.context}")
        cells[column] = numbers.perplexity(first.loss)
    for column, (text, _) in row.checkpoint.cells.items():
        cells[column] = text
    return cells


def _against_chunks(row: "Row", numbers: "NumberFormat") -> dict[str, Cell]:
    """Return how a row compares to the base in chunks, by column; empty without a base."""
    from ctxextend.report.phrases import chunk_columns

    measured = row.final.document_scores
    if measured is None:
        return {}
    cells = dict[str, Cell]()
    for mode, column in chunk_columns(measured).items():
        change = measured.differences[mode][measured.ranked_by]
        cells[numbers.head(column)] = numbers.change(change)
    return cells


def _add_reading_modes(page: Page, comparison: "Comparison") -> None:
    """Add how many tokens of each document the rows and the base read, and the base's scores."""
    from ctxextend.evaluation.evaluation_result import MODEL
    from ctxextend.report.phrases import (
        TOKENS_COLUMN,
        metric_column,
        short_reading_name,
        tokens_note,
    )

    measured = comparison.rows[0].final.document_scores
    if measured is None:
        return
    rows = list[list[Cell]]()
    for mode, score in measured.ranking_scores.items():
        read = measured.tokens_read[mode]
        shown = "above"
        if mode != MODEL:
            shown = page.numbers.estimate(score)
        rows.append([short_reading_name(mode, read), f"{read.median:,}", shown])
    page.text("How documents are read", "title")
    page.table(["documents as", TOKENS_COLUMN, page.numbers.head(metric_column(comparison))], rows)
    page.text(tokens_note(measured.tokens_read))
    page.line()
