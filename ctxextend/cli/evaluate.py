"""`ctxextend evaluate`."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from ctxextend.cli import options
from ctxextend.cli.console import Console, Pieces
from ctxextend.cli.tables import Cell, Page
from ctxextend.errors import counted

if TYPE_CHECKING:
    from ctxextend.evaluation import evaluation_result as results

# Loss curves by reading mode: label and style.
CURVES = {"model": ("model", "learned"), "sliding": ("base, sliding windows", "second")}
CURVES["truncated"] = ("base, separate windows", "third")
RETRIEVAL_MODES = {
    "truncated": "base, truncated",
    "chunks": "base, in chunks",
    "model": "resized model",
}
SHADES = {True: " \u2591\u2592\u2593\u2588", False: " .:+#"}  # heat map characters from 0 to 100 %
CELL = 3  # width of a heat map cell in characters
SIGN_STYLES = {-1: "right", 0: "", 1: "wrong", None: ""}  # style of a loss difference by its sign


def evaluate(
    source: options.Model,
    data: options.OptionalData = None,
    corpus: options.Corpus = None,
    queries: options.Queries = None,
    qrels: options.Qrels = None,
    text_field: options.TextField = "text",
    tokens: options.Tokens = None,
    no_base: Annotated[bool, options.measures("--no-base", "Skip the base checkpoint.")] = False,
    length: options.Length = None,
    measure: options.Measure = None,
    batch_size: Annotated[
        int | None, options.advanced("--batch-size B", "Windows per batch.", "up to 4,096 tokens")
    ] = None,
    precision: options.Precision = "auto",
    seed: options.Seed = 0,
    device: options.Device = None,
    threads: options.Threads = None,
    report: options.Report = None,
    plot: options.Plot = None,
    model_type: options.ModelType = None,
    tokenizer: options.Tokenizer = None,
    base: options.Base = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure how much a longer context helps on your text.

    Examples:
        ctxextend evaluate gpt2-4096 --data articles.jsonl --length 1024 --length 4096
        ctxextend evaluate path/to/minilm-2048 --base path/to/minilm --data texts/

    Language models: loss by position and by context length, passkey retrieval. Encoders: passkey and document
    retrieval. The base checkpoint reads the same text in shorter windows.
    """
    flags = locals()
    from ctxextend.evaluation.evaluate import EvaluationInterrupted, evaluate_checkpoint
    from ctxextend.recipe import CheckpointRef, Evaluate

    sink = Console(as_json, quiet)
    options.check_files(plot, report)
    ref, settings = options.from_flags(CheckpointRef, flags), options.from_flags(Evaluate, flags)
    try:
        with sink.progress("Reading", unit="tokens") as progress:
            evaluation = evaluate_checkpoint(ref, settings, progress)
    except EvaluationInterrupted as stop:
        evaluation = stop.evaluation
    from ctxextend.report.figures import evaluation_figure, write_figure
    from ctxextend.report.html import write_report

    add_evaluation(page := Page.for_stdout(), evaluation)
    figure = (plot, lambda path: write_figure(path, lambda: evaluation_figure(evaluation)))
    files = [(report, lambda path: write_report(evaluation, path, options.command_line())), figure]
    sink.measurement("evaluate", evaluation, page.lines, files)


def add_evaluation(page: Page, evaluation: "results.Evaluation") -> None:
    """Add the verdict and the settings, then every measure that was taken."""
    from ctxextend.evaluation.evaluation_result import text_summary
    from ctxextend.report.verdicts import evaluation_verdict

    page.text(evaluation_verdict(evaluation, page.numbers), "title")
    if not evaluation.complete:
        page.text("Incomplete: interrupted before everything was measured.", "wrong")
    page.line()
    page.line((evaluation.source, "title"), f" ({evaluation.model_type}, {evaluation.kind})")
    length = f"{evaluation.max_len:,} tokens"
    if evaluation.base is not None:
        length += f"; base {evaluation.base}: {evaluation.base_max_len:,} tokens"
    text = text_summary(evaluation.documents, evaluation.tokens, evaluation.limited_by)
    if evaluation.across_documents:
        text += "; windows cross document boundaries"
    run = f"{evaluation.precision}, seed {evaluation.seed}, {evaluation.seconds:,.1f} s"
    page.values(
        [("length", length), *([("text", text)] if evaluation.documents else []), ("run", run)]
    )
    sections: dict[str, Callable[..., None]] = {
        "positions": _add_positions,
        "contexts": _add_contexts,
    }
    sections |= {
        "passkey": _add_passkey,
        "retrieval": _add_retrieval,
        "shift": _add_shift,
        "search": _add_search,
    }
    for name, add in sections.items():
        if (measured := getattr(evaluation, name)) is not None:
            page.line()
            add(page, measured, evaluation)


def _add_positions(
    page: Page, positions: "results.PositionLosses", evaluation: "results.Evaluation"
) -> None:
    from ctxextend.cli.plots import Curve, add_chart
    from ctxextend.tables.stats import describe_range

    names = [name for name in CURVES if name in positions.losses]
    base = evaluation.base_max_len or positions.length
    curves = []
    for name in names:
        values = [math.nan] * positions.length
        for bucket in positions.buckets:
            if name in bucket.losses:
                values[bucket.start : bucket.stop] = [bucket.losses[name].mean] * (
                    bucket.stop - bucket.start
                )
        label, style = CURVES[name]
        styles = [style] * len(values)
        key = tuple[Pieces, ...]()
        if name == "model" and base < positions.length:
            styles[base:] = ["new"] * (len(values) - base)
            key = ([(f"  beyond the base's {base:,} tokens", "new")],)
        curves.append(Curve(values, styles, name=label, key=key))
    title = (
        "Loss of masked tokens by position" if evaluation.kind == "masked" else "Loss by position"
    )
    add_chart(page, f"{title} (nats)", curves, "overlap")
    page.line()
    page.text(
        f"Perplexity by position, {counted(positions.windows, 'window')} of {positions.length:,} "
        "tokens",
        "title",
    )
    spans = [
        (describe_range(bucket.start, bucket.stop), bucket.losses) for bucket in positions.buckets
    ]
    rows = [
        [span, *(page.numbers.perplexity(losses.get(name)) for name in names)]
        for span, losses in [*spans, ("all", positions.losses)]
    ]
    page.table(
        [
            "positions",
            *(page.numbers.head(CURVES[name][0].removesuffix(" windows")) for name in names),
        ],
        rows,
    )
    for name in names:
        if change := positions.changes.get(name):
            compared = page.numbers.compared(
                change, CURVES[name][0].replace("base,", "the base in")
            )
            page.text(f"All positions: {compared}.", SIGN_STYLES[change.sign])


def _add_contexts(
    page: Page, contexts: "results.ContextLosses", evaluation: "results.Evaluation"
) -> None:
    points, reference, numbers = contexts.points, contexts.reference, page.numbers
    targets = "masked target tokens" if evaluation.kind == "masked" else "target tokens"
    windows = counted(contexts.windows, "window")
    last = points[-1]
    page.text(f"Loss by context length (same {targets}, {windows})", "title")
    base = evaluation.base_max_len and min(evaluation.base_max_len, last.context)
    header = [
        "context",
        *map(numbers.head, ("perplexity", f"nats vs. {reference}", "base", "vs. base")),
    ]
    if all(point.against_base is None for point in points):
        header = header[:3]
    rows = list[tuple[Cell, ...]]()
    for point in points:
        change = "reference" if point.context == reference else numbers.change(point.change)
        cells = (
            f"{point.context:>7}",
            numbers.perplexity(point.loss),
            (change, SIGN_STYLES[point.change.sign]),
        )
        rows.append(
            (*cells, numbers.perplexity(point.base), numbers.change(point.against_base))[
                : len(header)
            ]
        )
    page.table(header, rows)
    if last.context <= reference:
        page.text(f"No context longer than {reference:,} tokens was measured.")
    if last.against_base is not None:
        compared = numbers.compared(last.against_base, f"the base at {base:,} tokens")
        page.text(f"At {last.context:,} tokens: {compared}.", SIGN_STYLES[last.against_base.sign])


def _add_passkey(page: Page, passkey: "results.Passkey", evaluation: "results.Evaluation") -> None:
    if not passkey.is_above_chance:
        lengths = " to ".join(map(str, sorted({passkey.lengths[0], passkey.lengths[-1]})))
        page.text(f"Passkey retrieval: not above chance in texts of {lengths} tokens.")
        return
    base = evaluation.base_max_len
    header = [f"{length}*" if base and length > base else str(length) for length in passkey.lengths]
    page.text("Passkey retrieval accuracy (%) by context length and depth", "title")
    rows = [
        [
            f"{100 * depth:>3.0f} %",
            *(_share(page, shares[index], passkey) for shares in passkey.accuracy),
        ]
        for index, depth in enumerate(passkey.depths)
    ]
    page.table(["depth", *header], rows)
    longer = " * longer than the base's context." * any(text.endswith("*") for text in header)
    page.text(
        f"{counted(passkey.trials, 'trial')} per cell; chance level {100 * passkey.chance:.3g} "
        f"%.{longer}"
    )


def _share(page: Page, share: float | None, passkey: "results.Passkey") -> Cell:
    """Return a cell of the heat map, faint if it is not above chance."""
    if share is None or not math.isfinite(share):
        return "-", "faint"
    shade = SHADES[page.unicode][round(share * (len(SHADES[True]) - 1))]
    return f"{shade * CELL} {100 * share:3.0f}", "right" if passkey.beats_chance(
        [share]
    ) else "faint"


def _add_retrieval(page: Page, retrieval: "results.Retrieval", _: object) -> None:
    numbers = page.numbers
    rows = []
    page.line(("Document retrieval", "title"))
    queries = (
        f"{retrieval.queries:,} queries of {retrieval.query_tokens} tokens, taken from beyond "
        "the base's context"
    )
    documents = f"{retrieval.documents:,} documents of {retrieval.length} tokens"
    page.text(f"{queries}; {documents}; {retrieval.pooling} pooling")
    for name, recall in retrieval.modes.items():
        rank, change = (
            numbers.estimate(recall.reciprocal_rank),
            numbers.percent(recall.change, signed=True),
        )
        rows.append([RETRIEVAL_MODES.get(name, name), numbers.percent(recall.recall), rank, change])
    page.table(["model", *map(numbers.head, ("recall@1 (%)", "MRR", "vs. truncated"))], rows)


def _add_shift(page: Page, shift: "results.Shift", _: object) -> None:
    from ctxextend.report.verdicts import shift_verdict
    from ctxextend.tables.stats import describe_range

    numbers = page.numbers
    is_loss = shift.points[0].loss is not None
    effect, shown = (
        ("nats vs. position 0", 1) if is_loss else ("cosine", 2)
    )  # encoders: without the second column
    rows = [["positions", numbers.head("perplexity"), numbers.head(effect)][::shown]]
    for point in shift.points:
        cells = numbers.perplexity(point.loss), numbers.estimate(point.effect, signed=is_loss)
        rows.append([describe_range(point.start, point.start + shift.size), *cells][::shown])
    page.text(
        f"{counted(shift.passages, 'passage')} of {shift.size} tokens at growing positions", "title"
    )
    page.table(rows[0], rows[1:])
    page.text(shift_verdict(shift, numbers), SIGN_STYLES[shift.effect.sign] if is_loss else "")


def _add_search(
    page: Page, search: "results.SearchResult", evaluation: "results.Evaluation"
) -> None:
    numbers = page.numbers
    base = evaluation.base_max_len
    rows = []
    page.line(("Search", "title"))
    longer = f"; {search.longer_than_base:,} longer than the base's {base:,} tokens" if base else ""
    page.text(f"{search.summary} to {search.length:,} tokens{longer}; {search.pooling} pooling")
    for mode, scores in search.scores.items():
        cells = [*map(numbers.estimate, scores.values()), numbers.change(search.changes.get(mode))]
        rows.append([RETRIEVAL_MODES[mode] if base else mode, *cells])
    page.table(
        ["model", *map(numbers.head, (*search.scores["model"], "nDCG@10 vs. truncated"))], rows
    )
