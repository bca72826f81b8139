"""`ctxextend compare`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ctxextend.cli import options
from ctxextend.cli.console import Cell, Console, Page
from ctxextend.cli.effective import add_effective_lengths
from ctxextend.errors import counted
from ctxextend.settings import CheckpointRef, Compare, Figures

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Comparison, Row
    from ctxextend.lab.effective_result import Effective
    from ctxextend.report.numbers import NumberFormat


@options.command(
    CheckpointRef, Compare, Figures, without=("source", "table", "base", "no_base", "batch_size")
)
def compare(ref: CheckpointRef, settings: Compare, figures: Figures, console: Console) -> None:
    """Benchmark resize methods on your model and text, or several models.

    Examples:
        ctxextend compare gpt2 --to 4x
        ctxextend compare gpt2-bands gpt2-rotary --data a.jsonl --length 4096

    Ranks language models by loss on windows of N tokens, and encoders by document retrieval, or by
    nDCG@10 in a search set (--search).
    """
    from ctxextend.comparison.compare import compare_models
    from ctxextend.report.next_steps import after_comparison

    options.check_figures(figures)
    with console.progress("Comparing", unit="tokens") as progress:
        result = compare_models(ref, settings, progress)

    from ctxextend.report.html import comparison_figure

    page = Page.for_stdout()
    add_comparison(page, result)
    for reason in dict.fromkeys(result.skipped.values()):
        names = [name for name, other in result.skipped.items() if other == reason]
        console.note(f"Skipped {', '.join(names)}: {reason}")
    next_command = after_comparison(result)
    files = options.figure_files(figures, result, next_command, comparison_figure)
    console.measurement("compare", result, page.lines, files)
    console.next_steps(next_command)


def add_comparison(page: Page, comparison: "Comparison") -> None:
    """Add the verdict, the settings, the ranking, and notes on its columns."""
    from ctxextend.report.phrases import chunks_note, short_inputs_cost
    from ctxextend.report.verdicts import comparison_verdict

    verdict = comparison_verdict(comparison, page.numbers).replace("`", "")
    page.text(verdict, "title")
    page.line()
    if comparison.row_type == "checkpoint":
        count = counted(len(comparison.rows), comparison.row_type)
        page.line((count, "title"), f" ({comparison.kind})")
    else:
        page.line((comparison.source, "title"), f" ({comparison.model_type}, {comparison.kind})")
    page.values(_settings(comparison))
    page.line()
    ranked = list[dict[str, Cell]]()
    for number, row in enumerate(comparison.rows, 1):
        ranked.append(_ranked_cells(number, row, comparison, page.numbers))
    page.table(list(ranked[0]), [[*cells.values()] for cells in ranked])
    page.line()
    _add_reading_modes(page, comparison)

    measured = comparison.rows[0].document_scores
    if measured is not None:
        page.text(chunks_note(measured))
    if any(row.is_tied for row in comparison.rows[1:]):
        page.text("Tied: the 95 % interval of the paired difference contains 0.")
    if _has_short_inputs(comparison):
        page.text(f"Cost on short inputs: {short_inputs_cost(comparison)}.")
    results = dict[str, "Effective"]()
    for row in comparison.rows:
        if row.evaluation.effective is not None:
            results[row.method] = row.evaluation.effective
    if results:
        add_effective_lengths(page, results, comparison.row_type)
    if comparison.skipped:
        page.text(f"Skipped: {', '.join(comparison.skipped)}.", "faint")


def _settings(comparison: "Comparison") -> Iterator[tuple[str, str]]:
    from ctxextend.lab.evaluation_result import text_summary

    if comparison.row_type == "checkpoint":
        length = f"{comparison.max_len_after:,} tokens"
        if comparison.source:
            length += f"; base {comparison.source}: {comparison.max_len_before:,} tokens"
    else:
        rows = counted(len(comparison.rows), comparison.row_type)
        length = f"{comparison.max_len_before} -> {comparison.max_len_after} positions, {rows}"
    yield "length", length
    if comparison.search:
        yield "search", comparison.search.summary
    if comparison.documents:
        yield (
            "text",
            text_summary(comparison.documents, comparison.tokens, comparison.limited_by),
        )
    yield "run", f"{comparison.precision}, seed {comparison.seed}, {comparison.seconds:,.1f} s"


def _has_short_inputs(comparison: "Comparison") -> bool:
    return any(row.short_inputs is not None for row in comparison.rows)


def _ranked_cells(
    number: int, row: "Row", comparison: "Comparison", numbers: "NumberFormat"
) -> dict[str, Cell]:
    from ctxextend.report.phrases import chunk_columns, metric_column

    unit = " (nats)" if comparison.is_loss else ""
    column = metric_column(comparison)
    delta: Cell = ("best", "right")
    if row.delta is not None:
        delta = numbers.change(row.delta)
        if row.is_tied:
            delta = (f"tied  {delta}", "right")
    cells: dict[str, Cell] = {f"   {comparison.row_type}": f"{number:>2} {row.method}"}
    cells[numbers.head(column)] = numbers.estimate(row.score)
    if comparison.is_loss:
        cells[numbers.head(column)] = numbers.perplexity(row.score)
    cells[numbers.head(f"delta vs. best{unit}")] = delta
    measured = row.document_scores
    if measured is not None:
        for mode, name in chunk_columns(measured).items():
            change = measured.differences[mode][measured.ranked_by]
            cells[numbers.head(name)] = numbers.change(change)
    if _has_short_inputs(comparison):
        cost = row.short_inputs
        short = numbers.change(cost)
        if cost is not None and cost.mean == 0 and not cost.half_width:
            short = "unchanged"
        cells[numbers.head(f"cost on short inputs{unit}")] = short
    if row.checkpoint is None:
        return cells
    evaluation = row.evaluation
    if evaluation.contexts is not None and not evaluation.base:
        first = evaluation.contexts.points[0]
        cells[numbers.head(f"perplexity at {first.context}")] = numbers.perplexity(first.loss)
    return cells | {name: text for name, (text, _) in row.checkpoint.cells.items()}


def _add_reading_modes(page: Page, comparison: "Comparison") -> None:
    from ctxextend.lab.evaluation_result import MODEL
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
