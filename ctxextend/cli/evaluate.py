"""`ctxextend evaluate`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ctxextend.cli import options
from ctxextend.cli.console import Cell, Console, Page
from ctxextend.cli.effective import add_effective
from ctxextend.errors import counted
from ctxextend.settings import CheckpointRef, Evaluate, Figures

if TYPE_CHECKING:
    from ctxextend.lab import evaluation_result as results


# The reading modes, in the order in which they are shown.
MODES_IN_TABLES = {"model": "model", "sliding": "base, sliding", "truncated": "base, separate"}
MODES_IN_SENTENCES = {
    "model": "the model",
    "sliding": "the base in sliding windows",
    "truncated": "the base in separate windows",
}
SIGN_STYLES = {-1: "right", 0: "", 1: "wrong", None: ""}  # style of a loss difference by its sign


@options.command(CheckpointRef, Evaluate, Figures, without=("table", "trained_length"))
def evaluate(ref: CheckpointRef, settings: Evaluate, figures: Figures, console: Console) -> None:
    """Measure how much a longer context helps on your text.

    Examples:
        ctxextend evaluate gpt2-4096 --data articles.jsonl --length 1024 --length 4096
        ctxextend evaluate path/to/minilm-2048 --base path/to/minilm --data texts/

    Language models: loss by position and by context length. Encoders: document retrieval. Both:
    up to which length they find what a text hides. The base reads the same text in short windows.
    """
    from ctxextend.lab.evaluate import evaluate_checkpoint

    options.check_figures(figures)
    with console.progress("Reading", unit="tokens") as progress:
        evaluation = evaluate_checkpoint(ref, settings, progress)

    from ctxextend.report.figures import evaluation_figure
    from ctxextend.report.next_steps import after_evaluation

    next_command = after_evaluation(evaluation, settings.data)

    page = Page.for_stdout()
    add_evaluation(page, evaluation)
    files = options.figure_files(figures, evaluation, next_command, evaluation_figure)
    console.measurement("evaluate", evaluation, page.lines, files)
    console.next_steps(next_command)


def add_evaluation(page: Page, evaluation: "results.Evaluation") -> None:
    """Add the verdict and the settings, then every measure that was taken."""
    from ctxextend.report.verdicts import evaluation_verdict

    page.text(evaluation_verdict(evaluation, page.numbers), "title")
    page.line()
    page.line((evaluation.source, "title"), f" ({evaluation.model_type}, {evaluation.kind})")
    page.values(_settings(evaluation))
    if evaluation.positions is not None:
        _add_positions(page, evaluation.positions)
    if evaluation.contexts is not None:
        _add_contexts(page, evaluation.contexts, evaluation)
    if evaluation.effective is not None:
        add_effective(
            page,
            evaluation.effective,
            evaluation.base_max_len,
            has_headline=evaluation.has_other_measures,
        )
    if evaluation.retrieval is not None:
        _add_retrieval(page, evaluation.retrieval)
    if evaluation.search is not None:
        _add_search(page, evaluation.search, evaluation)


def _settings(evaluation: "results.Evaluation") -> Iterator[tuple[str, str]]:
    from ctxextend.lab.evaluation_result import text_summary

    length = f"{evaluation.max_len:,} tokens"
    if evaluation.base is not None:
        length += f"; base {evaluation.base}: {evaluation.base_max_len:,} tokens"
    yield "length", length
    if evaluation.documents:
        text = text_summary(evaluation.documents, evaluation.tokens, evaluation.limited_by)
        if evaluation.across_documents:
            text += "; windows cross document boundaries"
        yield "text", text
    yield "run", f"{evaluation.precision}, seed {evaluation.seed}, {evaluation.seconds:,.1f} s"


def _add_positions(page: Page, positions: "results.PositionLosses") -> None:
    from ctxextend.tables.stats import describe_range

    page.line()
    numbers = page.numbers
    modes = [mode for mode in MODES_IN_TABLES if mode in positions.losses]
    windows = counted(positions.windows, "window")
    page.text(
        f"Perplexity by position, {windows} of {positions.length:,} tokens",
        "title",
    )
    header = ["positions", *(numbers.head(MODES_IN_TABLES[mode]) for mode in modes)]
    rows = list[list[str]]()
    spans = [(describe_range(item.start, item.stop), item.losses) for item in positions.buckets]
    for span, losses in (*spans, ("all", positions.losses)):
        rows.append([span, *(numbers.perplexity(losses.get(mode)) for mode in modes)])
    page.table(header, rows)
    for mode, name in MODES_IN_SENTENCES.items():
        change = positions.changes.get(mode)
        if change is not None:
            compared = numbers.compared(change, name)
            page.text(f"All positions: {compared}.", SIGN_STYLES[change.sign])


def _add_contexts(
    page: Page, contexts: "results.ContextLosses", evaluation: "results.Evaluation"
) -> None:
    page.line()
    numbers = page.numbers
    reference = contexts.reference
    targets = "masked target tokens" if evaluation.kind == "masked" else "target tokens"
    windows = counted(contexts.windows, "window")
    page.text(f"Loss by context length (same {targets}, {windows})", "title")
    has_base = any(point.against_base is not None for point in contexts.points)
    header = ["context", numbers.head("perplexity"), numbers.head(f"nats vs. {reference}")]
    if has_base:
        header += [numbers.head("base"), numbers.head("vs. base")]
    rows = list[list[Cell]]()
    for point in contexts.points:
        change = numbers.change(point.change)
        if point.context == reference:
            change = "reference"
        cells: list[Cell] = [f"{point.context:>7}", numbers.perplexity(point.loss)]
        cells.append((change, SIGN_STYLES[point.change.sign]))
        if has_base:
            cells += [numbers.perplexity(point.base), numbers.change(point.against_base)]
        rows.append(cells)
    page.table(header, rows)
    last = contexts.points[-1]
    if last.context <= reference:
        page.text(f"No context longer than {reference:,} tokens was measured.")
    if last.against_base is not None:
        base = min(evaluation.base_max_len or last.context, last.context)
        compared = numbers.compared(last.against_base, f"the base at {base:,} tokens")
        page.text(f"At {last.context:,} tokens: {compared}.", SIGN_STYLES[last.against_base.sign])


def _add_retrieval(page: Page, retrieval: "results.Retrieval") -> None:
    from ctxextend.report.phrases import TOKENS_COLUMN, short_reading_name, tokens_note
    from ctxextend.report.verdicts import against_chunks

    page.line()
    numbers = page.numbers
    page.line(("Document retrieval", "title"))
    queries = (
        f"{retrieval.queries:,} queries of {retrieval.query_tokens} tokens, taken from beyond "
        "the base's context"
    )
    documents = f"{retrieval.documents:,} documents of {retrieval.length} tokens"
    page.text(f"{queries}; {documents}; {retrieval.pooling} pooling")
    header = [
        "documents as",
        TOKENS_COLUMN,
        numbers.head("recall@1 (%)"),
        numbers.head("MRR"),
        numbers.head("recall@1 vs. row 1"),
    ]
    rows = list[list[Cell]]()
    for mode, scores in retrieval.modes.items():
        read = retrieval.tokens_read[mode]
        rows.append(
            [
                short_reading_name(mode, read),
                f"{read.median:,}",
                numbers.percent(scores.recall),
                numbers.estimate(scores.reciprocal_rank),
                numbers.percent(scores.change, signed=True),
            ]
        )
    page.table(header, rows)
    clauses = [*against_chunks(retrieval, numbers)]
    if clauses:
        page.text(f"The model: {'; '.join(clauses)}.")
    page.text(tokens_note(retrieval.tokens_read))


def _add_search(
    page: Page, search: "results.SearchResult", evaluation: "results.Evaluation"
) -> None:
    from ctxextend.report.phrases import TOKENS_COLUMN, short_reading_name, tokens_note

    page.line()
    numbers = page.numbers
    base = evaluation.base_max_len
    page.line(("Search", "title"))
    parts = [f"{search.summary} to {search.length:,} tokens"]
    if base:
        parts.append(f"{search.longer_than_base:,} longer than the base's {base:,} tokens")
    parts.append(f"{search.pooling} pooling")
    page.text("; ".join(parts))
    columns = [*search.scores["model"]]
    if search.changes:
        columns.append("nDCG@10 vs. row 1")
    rows = list[list[Cell]]()
    for mode, scores in search.scores.items():
        read = search.tokens_read[mode]
        cells: list[Cell] = [short_reading_name(mode, read), f"{read.median:,}"]
        cells += [numbers.estimate(score) for score in scores.values()]
        if search.changes:
            cells.append(numbers.change(search.changes.get(mode)))
        rows.append(cells)
    page.table(["documents as", TOKENS_COLUMN, *map(numbers.head, columns)], rows)
    page.text(tokens_note(search.tokens_read))
