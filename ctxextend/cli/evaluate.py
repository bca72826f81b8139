"""`ctxextend evaluate`."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from ctxextend.cli import options
from ctxextend.cli.output import Output, Pieces
from ctxextend.cli.tables import Cell, Page
from ctxextend.errors import counted

if TYPE_CHECKING:
    from ctxextend.evaluation.evaluation_result import (
        ContextLosses,
        Estimate,
        Evaluation,
        Passkey,
        PositionLosses,
        Retrieval,
    )

# The original's ways of reading, in the words that tell them apart.
ORIGINALS = {"sliding": "the original in sliding windows", "truncated": "the original in windows back to back"}
CURVES = {"model": "learned", "sliding": "second", "truncated": "third"}
WAYS = {"truncated": "original, the start", "chunks": "original, in pieces", "model": "model, all at once"}
PASSKEY = {
    "loss rank": "the right number is the least surprising of all that were tried",
    "retrieval": "the query for a number is nearest to the text that holds it",
}
SHADES = {True: " \u2591\u2592\u2593\u2588", False: " .:+#"}  # from the emptiest cell of a heat map to the fullest
CELL = 3  # its characters

# Finds that guessing makes as rarely as it comes two standard errors above its mean are no luck.
UNLIKELY = 0.0228


def evaluate(
    source: options.Model,
    data: options.Data,
    text_field: options.TextField = "text",
    tokens: options.Tokens = 65_536,
    no_base: Annotated[bool, options.measures("--no-base", "Leave the original out.")] = False,
    length: options.Length = None,
    measure: options.Measure = None,
    batch_size: Annotated[
        int | None, options.running("--batch-size B", "Windows read at once.", "as hold 4,096 tokens", min=1)
    ] = None,
    precision: options.Precision = "auto",
    seed: options.Seed = 0,
    plot: options.Plot = None,
    model_type: options.ModelType = None,
    base: options.Base = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what a context length is worth, on a text of yours.

    Examples:
        ctxextend evaluate tiny-gpt2-512 --data book.txt
        ctxextend evaluate gpt2-4096 --data articles.jsonl --length 1024 --length 4096
        ctxextend evaluate path/to/minilm-2048 --base path/to/minilm --data texts/

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
        found = stop.evaluation
    from ctxextend.report.figures import evaluation_figure, write_figure

    add_evaluation(page := Page.of_stdout(), found)
    figure = (plot, lambda path: write_figure(path, lambda: evaluation_figure(found)))
    sink.measured("evaluate", found, page.lines, [figure])


def add_evaluation(page: Page, evaluation: "Evaluation") -> None:
    """Add what was read, then whatever was measured of losses, passkeys and retrieval."""
    page.line((evaluation.source, "title"), f" ({evaluation.family}, {evaluation.kind})")
    reads, text = f"{evaluation.max_len} tokens at once", counted(evaluation.documents, "document")
    if evaluation.original is not None:
        reads += f"; the original, {evaluation.original}, reads {evaluation.original_max_len}"
    text = f"{evaluation.tokens:,} tokens of {text}" + "; windows cross their ends" * evaluation.across_documents
    page.values([("reads", reads), ("text", text), ("run", f"in {evaluation.precision}, seed {evaluation.seed}")])
    if not evaluation.complete:
        page.text("Incomplete: it ended before all was measured.", "wrong")
    if evaluation.positions is not None:
        _add_positions(page, evaluation.positions, evaluation)
    if evaluation.contexts is not None and evaluation.contexts.points:
        _add_contexts(page, evaluation.contexts, evaluation)
    if evaluation.passkey is not None:
        _add_passkey(page, evaluation.passkey, evaluation.original_max_len)
    if evaluation.retrieval is not None:
        _add_retrieval(page, evaluation.retrieval)


def _add_positions(page: Page, positions: "PositionLosses", evaluation: "Evaluation") -> None:
    """Add the losses by position as a chart, as a table, and in words what they are against the original's."""
    from ctxextend.tables.stats import describe_range

    names = [name for name in CURVES if name in positions.losses]
    page.line()
    if positions.buckets and names:
        _add_curves(page, positions, names, evaluation)
        page.line()
    page.text(f"Perplexity by position, {counted(positions.windows, 'window')} of {positions.length} tokens", "title")
    spans = [(describe_range(bucket.start, bucket.stop), bucket.losses) for bucket in positions.buckets]
    rows = [
        [span, *(page.numbers.perplexity(losses.get(name)) for name in names)]
        for span, losses in [*spans, ("all", positions.losses)]
    ]
    page.table(["positions", *names], rows)
    for name in names:
        if change := positions.changes.get(name):
            page.text(f"Over all positions, {page.numbers.compared(change, ORIGINALS[name])}.", _style(change))


def _add_curves(page: Page, positions: "PositionLosses", names: Sequence[str], evaluation: "Evaluation") -> None:
    """Add the losses as curves of steps, with a key to what is what."""
    from ctxextend.cli.plots import Curve, add_chart

    original = evaluation.original_max_len or positions.length
    curves = []
    for name in names:
        values = [math.nan] * max(positions.length, *(bucket.stop for bucket in positions.buckets))
        for bucket in positions.buckets:
            if name in bucket.losses:
                values[bucket.start : bucket.stop] = [bucket.losses[name].mean] * (bucket.stop - bucket.start)
        styles, key = [CURVES[name]] * len(values), tuple[Pieces, ...]()
        if name == "model" and original < positions.length:
            styles[original:] = ["new"] * (len(values) - original)
            key = ([(f"  beyond the original: from {original} on", "new")],)
        curves.append(Curve(values, styles, name=name, key=key))
    title = "Loss of masked tokens by position" if evaluation.kind == "masked" else "Loss by position"
    add_chart(page, f"{title}, nats", curves, "several")


def _add_contexts(page: Page, contexts: "ContextLosses", evaluation: "Evaluation") -> None:
    """Add the losses by context as a table, and whether the longest context is used."""
    points, reference = contexts.points, contexts.reference
    of, where = ("masked tokens", "around") if evaluation.kind == "masked" else ("tokens", "before")
    page.line()
    windows = counted(contexts.windows, "window")
    page.text(f"Loss by context: the same {of} of {windows}, ever more text {where} them", "title")
    original = evaluation.original_max_len and min(evaluation.original_max_len, points[-1].context)
    header = ["context", "perplexity", f"nats, against {reference}", "original", f"nats, against its {original}"]
    if all(point.against_original is None for point in points):
        header = header[:3]
    rows = list[list[Cell]]()
    for point in points:
        change = "reference" if point.context == reference else page.numbers.change(point.change)
        row: list[Cell] = [f"{point.context:>7}", page.numbers.perplexity(point.loss), (change, _style(point.change))]
        row += [page.numbers.perplexity(point.original), page.numbers.change(point.against_original)]
        rows.append(row[: len(header)])
    page.table(header, rows)
    last = points[-1]
    style = _style(last.change)
    if last.context <= reference:
        page.text(f"No context longer than {reference} was measured.")
    else:
        verdict = {"right": "is used", "": "is not seen to be used", "wrong": "does harm"}[style]
        compared = page.numbers.compared(last.change, f"{reference} tokens")
        page.text(f"The longer context {verdict}: {last.context} tokens, {compared}.", style)
    if last.against_original is not None:
        compared = page.numbers.compared(last.against_original, f"the original with its own {original}")
        page.text(f"With {last.context} tokens, {compared}.", _style(last.against_original))


def _style(change: "Estimate") -> str:
    """Return the style of a difference of which less is better."""
    from ctxextend.report.numbers import significant_sign

    return {-1: "right", 0: "", 1: "wrong"}[significant_sign(change.mean, change.error)]


def _add_passkey(page: Page, passkey: "Passkey", original: int | None) -> None:
    """Add a heat map of what was found, by the text's length and by the depth of the number."""
    header = [f"{length}*" if original and length > original else str(length) for length in passkey.lengths]
    page.line()
    page.text("Passkey: numbers found again, in %, by tokens of the text and depth in it", "title")
    rows = [
        [f"{100 * depth:>3.0f} %", *(_share(page, found[place], passkey) for found in passkey.found)]
        for place, depth in enumerate(passkey.depths)
    ]
    page.table(["depth", *header], rows)
    page.text(f"Found by {passkey.how}: {PASSKEY[passkey.how]}.")
    page.text(f"{counted(passkey.trials, 'trial')} a cell; guessing finds {100 * passkey.chance:.3g} %.")
    if any(text.endswith("*") for text in header):
        page.text("* longer than the original reads.")


def _share(page: Page, share: float | None, passkey: "Passkey") -> Cell:
    """Return a cell of the heat map, pale where guessing might have found as many."""
    from ctxextend.evaluation.evaluation_result import binomial_tail

    if share is None or not math.isfinite(share):
        return "-", "faint"
    shades = SHADES[page.unicode]
    shade = shades[min(max(round(share * (len(shades) - 1)), 0), len(shades) - 1)]
    # Not by a standard error: of one trial in ten right by guessing, it makes a sure find.
    is_sure = binomial_tail(round(share * passkey.trials), passkey.trials, passkey.chance) < UNLIKELY
    return f"{shade * CELL} {100 * share:3.0f}", "right" if is_sure else "faint"


def _add_retrieval(page: Page, retrieval: "Retrieval") -> None:
    """Add how many documents were found by each way to read them, and in words what that means."""
    page.line()
    page.line(("Retrieval", "title"))
    page.text(
        f"{retrieval.queries:,} queries of {retrieval.query_tokens} tokens, from what the original could not read of "
        f"{retrieval.documents:,} documents of {retrieval.length} tokens; {retrieval.pooling} pooling"
    )
    rows = []
    for name, recall in retrieval.ways.items():
        found = page.numbers.percent(recall.recall, recall.recall_error)
        rank = page.numbers.number(recall.reciprocal_rank, recall.reciprocal_rank_error)
        change = page.numbers.percent(recall.change, recall.change_error, signed=True)
        rows.append([WAYS.get(name, name), found, rank, change])
    page.table(["read by the", "recall@1, %", "MRR", "change, points"], rows)
