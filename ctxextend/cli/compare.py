"""`ctxextend compare`."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console, Files
from ctxextend.cli.effective import add_effective_lengths
from ctxextend.cli.options import complete_method, measures
from ctxextend.cli.tables import Cell, Page
from ctxextend.errors import counted, flag_name

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Comparison, Row
    from ctxextend.evaluation.effective_result import Effective
    from ctxextend.evaluation.evaluation_result import Estimate
    from ctxextend.report.numbers import NumberFormat


# Flags for one model: the settings of methods, and those of its reference.
OF_ONE_MODEL = (
    "to",
    "method",
    "model_type",
    "tokenizer",
    "revision",
    "subfolder",
    "variant",
)


def compare(
    context: typer.Context,
    source: Annotated[
        list[str], options.model("Model as in evaluate, or several, to compare side by side.")
    ],
    data: Annotated[
        list[str] | None,
        options.text("--data PATH", "As in evaluate.", "Python's documentation"),
    ] = None,
    to: Annotated[
        str | None, options.basic("--to N", "New context length, e.g. 4096, 4k, 1m or 4x.", False)
    ] = None,
    method: Annotated[
        list[str] | None,
        measures("--method NAME", "Method, e.g. stretch:keep-first=5.", "all", complete_method),
    ] = None,
    length: options.Length = None,
    measure: options.Measure = None,
    budget: options.Budget = None,
    search: Annotated[str | None, options.rarely(options.Search)] = None,
    text_field: options.TextField = "text",
    tokens: options.Tokens = None,
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
        ctxextend compare gpt2 --to 4x
        ctxextend compare gpt2-bands gpt2-rotary --data a.jsonl --length 4096

    Ranks language models by loss on windows of N tokens, and encoders by document retrieval, or by
    nDCG@10 in a search set (--search).
    """
    flags = options.given(context)
    console = Console(as_json, quiet)
    options.check_files(plot, report)
    for name in OF_ONE_MODEL:
        if len(source) > 1 and flags[name]:
            found = f"{flag_name(name)} is for one MODEL, got {len(source)}: {', '.join(source)}."
            raise options.WrongFlags(found, "Remove it to compare them as they are.")
    if len(source) > 1 and not data and search is None:
        words = shlex.join(["ctxextend", "compare", *source, "--data", "TEXT"])
        raise options.WrongFlags(
            "compare needs text for several models, and --data is missing.", f"Pass text: {words}"
        )

    from ctxextend.comparison.comparison_run import compare_model
    from ctxextend.comparison.comparison_settings import Compare, EvaluateMethods
    from ctxextend.comparison.side_by_side import compare_checkpoints
    from ctxextend.plan.opened_model import open_model
    from ctxextend.recipe import CheckpointRef, Evaluate
    from ctxextend.report.next_steps import after_comparison

    if len(source) > 1:
        evaluate = options.from_flags(Evaluate, flags)
        with console.progress("Comparing", unit="tokens") as progress:
            result = compare_checkpoints(source, progress=progress, **vars(evaluate))
    else:
        ref = options.from_flags(CheckpointRef, flags, source=source[0])
        evaluated = options.from_flags(EvaluateMethods, flags)
        with options.usage_errors():
            settings = Compare.from_request(to, evaluated, method or ())
        with console.progress("Comparing", unit="tokens") as progress:
            result = compare_model(open_model(ref), settings, progress)

    page = Page.for_stdout()
    add_comparison(page, result)
    console.note(*_skipped(result))
    next_command = after_comparison(result)
    console.measurement("compare", result, page.lines, _files(result, report, plot, next_command))
    console.next_steps(next_command)


def _skipped(comparison: "Comparison") -> Iterator[str]:
    """Yield a note for each reason why methods were skipped."""
    for reason in dict.fromkeys(comparison.skipped.values()):
        names = [name for name, other in comparison.skipped.items() if other == reason]
        yield f"Skipped {', '.join(names)}: {reason}"


def _files(
    comparison: "Comparison", report: Path | None, plot: Path | None, next_command: str
) -> Files:
    """Return the files to write, and how."""
    from ctxextend.report.figures import write_figure
    from ctxextend.report.html import comparison_figure, write_report

    return [
        (report, lambda path: write_report(comparison, path, options.command_line(), next_command)),
        (plot, lambda path: write_figure(path, lambda: comparison_figure(comparison))),
    ]


def add_comparison(page: Page, comparison: "Comparison") -> None:
    """Add the verdict, the settings, the ranking, and notes on its columns."""
    from ctxextend.report.verdicts import comparison_verdict

    verdict = comparison_verdict(comparison, page.numbers).replace("`", "")
    page.text(verdict, "title")
    page.line()
    _add_heading(page, comparison)
    page.values(_settings(comparison))
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

    yield "length", _length(comparison)
    if comparison.search:
        yield "search", comparison.search.summary
    if comparison.documents:
        yield (
            "text",
            text_summary(comparison.documents, comparison.tokens, comparison.limited_by),
        )
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

    measured = comparison.rows[0].document_scores
    if measured is not None:
        page.text(chunks_note(measured))
    if any(row.is_tied for row in comparison.rows[1:]):
        page.text("Tied: the 95 % interval of the paired difference contains 0.")
    if _has_short_inputs(comparison):
        page.text(f"Cost on short inputs: {short_inputs_cost(comparison)}.")


def _add_effective(page: Page, comparison: "Comparison") -> None:
    """Add how far each row reads, where that was measured."""
    results = dict[str, "Effective"]()
    for row in comparison.rows:
        if row.evaluation.effective is not None:
            results[row.method] = row.evaluation.effective
    if results:
        add_effective_lengths(page, results, comparison.row_type)


def _has_short_inputs(comparison: "Comparison") -> bool:
    return any(row.short_inputs is not None for row in comparison.rows)


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
    column = metric_column(comparison)
    cells: dict[str, Cell] = {f"   {comparison.row_type}": f"{number:>2} {row.method}"}
    cells[numbers.head(column)] = _score(comparison, row.score, numbers)
    cells[numbers.head(f"delta vs. best{unit}")] = _delta(row, numbers)
    cells |= _against_chunks(row, numbers)
    if _has_short_inputs(comparison):
        short = _short_inputs(row, numbers)
        cells[numbers.head(f"cost on short inputs{unit}")] = short
    return cells | _facts(row, numbers)


def _score(comparison: "Comparison", score: "Estimate | None", numbers: "NumberFormat") -> str:
    if comparison.is_loss:
        return numbers.perplexity(score)
    return numbers.estimate(score)


def _delta(row: "Row", numbers: "NumberFormat") -> Cell:
    """Return how much worse a row is than the best one."""
    if row.delta is None:
        return "best", "right"
    delta = numbers.change(row.delta)
    if row.is_tied:
        return f"tied  {delta}", "right"
    return delta


def _short_inputs(row: "Row", numbers: "NumberFormat") -> str:
    cost = row.short_inputs
    if cost is not None and cost.mean == 0 and not cost.half_width:
        return "unchanged"
    return numbers.change(cost)


def _facts(row: "Row", numbers: "NumberFormat") -> dict[str, Cell]:
    """Return the facts of a checkpoint by column; without a base, also its shortest loss."""
    if row.checkpoint is None:
        return {}
    cells = dict[str, Cell]()
    evaluation = row.evaluation
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

    measured = row.document_scores
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

    measured = comparison.rows[0].document_scores
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
