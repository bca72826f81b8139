"""An evaluation as lines for a terminal."""

import math
from collections.abc import Iterator, Sequence

from ctxextend.cli.output import Pieces, Screen
from ctxextend.cli.plots import Curve, chart
from ctxextend.cli.tables import Cell, labelled, sentence, table
from ctxextend.evaluation.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    ContextLosses,
    Estimate,
    Evaluation,
    Passkey,
    PositionLosses,
    Retrieval,
    binomial_tail,
)
from ctxextend.report.numbers import NumberFormat, significant_sign
from ctxextend.tables.stats import describe_range

# Characters of a bar at most, and of what is beside one and its figure.
BAR = 32
BESIDE = 11

# The original's ways of reading, in the words that tell them apart.
ORIGINALS = {SLIDING: "the original in sliding windows", TRUNCATED: "the original in windows back to back"}
CURVES = {MODEL: "learned", SLIDING: "second", TRUNCATED: "third"}
WAYS = {
    "truncated": "the start of each document, read by the original",
    "chunks": "all of it in pieces, read by the original, and their vectors averaged",
    "model": "all of it at once",
}
PASSKEY = {
    "loss rank": "found where, of all numbers that were tried, the right one is the least surprising to the model",
    "retrieval": "found where the query for a number comes nearest to the text that holds it",
}

# From the emptiest cell of a heat map to the fullest, and characters of a cell.
SHADES = {True: " \u2591\u2592\u2593\u2588", False: " .:+#"}
CELL = 3

# Finds that guessing makes as rarely as it comes two standard errors above its mean are no luck.
UNLIKELY = 0.0228


def evaluation_lines(evaluation: Evaluation, screen: Screen) -> Iterator[Pieces]:
    """Yield what was read, then whatever was measured of losses, passkeys and retrieval."""
    yield [(evaluation.source, "title"), (f" ({evaluation.family}, {evaluation.kind})", "")]
    yield from labelled(_facts(evaluation), screen.width)
    if not evaluation.complete:
        text = "incomplete: it ended before all that was asked for was measured"
        yield from sentence(text, screen.width, "wrong")
    if evaluation.positions is not None:
        yield from _position_lines(evaluation.positions, evaluation, screen)
    if evaluation.contexts is not None:
        yield from _context_lines(evaluation.contexts, evaluation, screen)
    if evaluation.passkey is not None:
        yield from _passkey_lines(evaluation.passkey, evaluation.original_max_len, screen)
    if evaluation.retrieval is not None:
        yield from _retrieval_lines(evaluation.retrieval, screen)


def _facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return what was read and how, each with its label."""
    reads = f"{evaluation.max_len} tokens at once"
    if evaluation.original is not None:
        reads += f"; the original, {evaluation.original}, reads {evaluation.original_max_len}"
    documents = f"{evaluation.documents:,} document{'s' * (evaluation.documents != 1)}"
    text = f"{documents}, {evaluation.tokens:,} tokens of {'it' if evaluation.documents == 1 else 'them'} used"
    if evaluation.across_documents:
        text += "; windows run over the ends of documents"
    return [("reads", reads), ("text", text), ("run", f"in {evaluation.precision}, seed {evaluation.seed}")]


def _position_lines(positions: PositionLosses, evaluation: Evaluation, screen: Screen) -> Iterator[Pieces]:
    """Yield the losses by position as a chart, as a table, and in words what they are against the original's."""
    names = [name for name in CURVES if name in positions.losses]
    figures = NumberFormat(screen.unicode)
    yield []
    if positions.buckets and names:
        yield from _curves(positions, names, evaluation, screen)
        yield []
    windows = f"{positions.windows:,} window{'s' * (positions.windows != 1)} of {positions.length} tokens"
    yield from sentence(f"Perplexity by position, {windows}", screen.width, "title")
    spans = [(describe_range(bucket.start, bucket.stop), bucket.losses) for bucket in positions.buckets]
    rows = [
        [span, *(figures.perplexity(losses[name]) if name in losses else "-" for name in names)]
        for span, losses in [*spans, ("all", positions.losses)]
    ]
    yield from table(["positions", *names], rows, screen.width)
    for name in names:
        if change := positions.changes.get(name):
            text = f"over all positions, {figures.compared(change, ORIGINALS[name])}."
            yield from sentence(text, screen.width, _style(change))


def _curves(
    positions: PositionLosses, names: Sequence[str], evaluation: Evaluation, screen: Screen
) -> Iterator[Pieces]:
    """Yield the losses as curves of steps, with a key to what is what."""
    original = evaluation.original_max_len or positions.length
    is_longer, beyond = original < positions.length, f"  beyond the original: from {original} on"
    curves = []
    for name in names:
        values = [math.nan] * max(positions.length, *(bucket.stop for bucket in positions.buckets))
        for bucket in positions.buckets:
            if name in bucket.losses:
                values[bucket.start : bucket.stop] = [bucket.losses[name].mean] * (bucket.stop - bucket.start)
        styles = [CURVES[name]] * len(values)
        if name == MODEL and is_longer:
            styles[original:] = ["new"] * (len(values) - original)
        key: tuple[Pieces, ...] = ([(beyond, "new")],) if name == MODEL and is_longer else ()
        curves.append(Curve(values, styles, name=name, key=key))
    note = "  of masked tokens alone" * (evaluation.kind == "masked")
    return chart("Loss by position, in nats", note, curves, "several", screen)


def _context_lines(contexts: ContextLosses, evaluation: Evaluation, screen: Screen) -> Iterator[Pieces]:
    """Yield the losses by context as a table, their changes as bars, and whether the longest context is used."""
    figures, width, points = NumberFormat(screen.unicode), screen.width, contexts.points
    of, where = ("masked tokens", "around") if evaluation.kind == "masked" else ("tokens", "before")
    yield []
    yield from sentence(f"loss by context: the same {of}, ever more text {where} them", width, "title")
    if not points:
        return
    original = evaluation.original_max_len and min(evaluation.original_max_len, points[-1].context)
    header = ["context", "perplexity", "loss, nats", "original", f"against its {original}"]
    if all(point.against_original is None for point in points):
        header = header[:3]
    rows = []
    for point in points:
        loss, change = point.loss, point.against_original
        row = [f"{point.context:>7}", figures.perplexity(loss), figures.estimate(loss)]
        row.append("-" if point.original is None else figures.perplexity(point.original))
        row.append("-" if change is None else figures.change(change))
        rows.append(row[: len(header)])
    yield from table(header, rows, width)
    yield []
    windows = f"{contexts.windows:,} window{'s' * (contexts.windows != 1)}"
    title = f"Change of the loss against a context of {contexts.reference}, in nats, {windows}"
    yield from sentence(title, width, "title")
    yield from _bars(contexts, screen)
    last = points[-1]
    if last.context <= contexts.reference:
        used = f"No context longer than {contexts.reference} was measured."
    else:
        verdicts = {-1: "is used", 0: "is not seen to be used", 1: "does harm"}
        verdict = verdicts[significant_sign(last.change.mean, last.change.error)]
        compared = figures.compared(last.change, f"{contexts.reference} tokens")
        used = f"The longer context {verdict}: {last.context} tokens, {compared}."
    yield from sentence(used, width, _style(last.change))
    if last.against_original is not None:
        compared = figures.compared(last.against_original, f"the original with its own {original}")
        yield from sentence(f"with {last.context} tokens, {compared}.", width, _style(last.against_original))


def _bars(contexts: ContextLosses, screen: Screen) -> Iterator[Pieces]:
    """Yield a bar for each context: to the left where its loss is lower than the reference's, else to the right."""
    figures = NumberFormat(screen.unicode)
    changes = [point.change.mean if math.isfinite(point.change.mean) else 0.0 for point in contexts.points]
    texts = [
        "reference" if point.context == contexts.reference else figures.change(point.change)
        for point in contexts.points
    ]
    low, high = min(0.0, *changes), max(0.0, *changes)
    span = high - low if 0 < high - low < math.inf else math.inf
    room = min(max(screen.width - BESIDE - max(map(len, texts)), 1), BAR)
    for point, change, text in zip(contexts.points, changes, texts, strict=True):
        start, stop = (round((value - low) / span * room) for value in sorted((0.0, change)))
        bar = " " * start + ("\u2588" if screen.unicode else "=") * (stop - start)
        yield [(f"{point.context:>7}  ", ""), (f"{bar:<{room}}", _style(point.change)), (f"  {text}", "")]


def _style(change: Estimate) -> str:
    return {-1: "right", 0: "", 1: "wrong"}[significant_sign(change.mean, change.error)]


def _passkey_lines(passkey: Passkey, original: int | None, screen: Screen) -> Iterator[Pieces]:
    """Yield a heat map of what was found, by the text's length and by the depth of the number."""
    longer = [original is not None and length > original for length in passkey.lengths]
    header = [f"{length}{'*' * beyond}" for length, beyond in zip(passkey.lengths, longer, strict=True)]
    yield []
    title = "passkey: numbers found again, in %, by tokens of the text and depth in it"
    yield from sentence(title, screen.width, "title")
    rows = [
        [f"{100 * depth:>3.0f} %", *(_share(found[place], passkey, screen) for found in passkey.found)]
        for place, depth in enumerate(passkey.depths)
    ]
    yield from table(["depth", *header], rows, screen.width)
    yield from sentence(f"{passkey.how}: {PASSKEY.get(passkey.how, 'a number in a long text')}.", screen.width)
    trials = f"{passkey.trials} trial{'s' * (passkey.trials != 1)} a cell"
    yield from sentence(f"{trials}; guessing finds {100 * passkey.chance:.3g} %.", screen.width)
    if any(longer):
        yield from sentence("* longer than the original reads.", screen.width)


def _share(share: float | None, passkey: Passkey, screen: Screen) -> Cell:
    """Return a cell of the heat map, pale where guessing might have found as many."""
    if share is None or not math.isfinite(share):
        return "-", "faint"
    shades = SHADES[screen.unicode]
    shade = shades[min(max(round(share * (len(shades) - 1)), 0), len(shades) - 1)]
    # Not by a standard error: of one trial in ten right by guessing, it makes a sure find.
    is_sure = binomial_tail(round(share * passkey.trials), passkey.trials, passkey.chance) < UNLIKELY
    return f"{shade * CELL} {100 * share:3.0f}", "right" if is_sure else "faint"


def _retrieval_lines(retrieval: Retrieval, screen: Screen) -> Iterator[Pieces]:
    """Yield how many documents were found by each way to read them, and in words what that means."""
    figures = NumberFormat(screen.unicode)
    yield []
    yield [("Retrieval", "title")]
    text = (
        f"{retrieval.queries:,} queries of {retrieval.query_tokens} tokens, from what the original could not read of "
        f"{retrieval.documents:,} documents of {retrieval.length} tokens; {retrieval.pooling} pooling"
    )
    yield from sentence(text, screen.width)
    header = ["read as", "recall@1, %", "MRR", "change, points"]
    if all(recall.change is None for recall in retrieval.ways.values()):
        header.pop()
    rows = []
    for name, recall in retrieval.ways.items():
        found = figures.percent(recall.recall, recall.recall_error)
        rank = figures.number(recall.reciprocal_rank, recall.reciprocal_rank_error)
        change = figures.percent(recall.change, recall.change_error, signed=True)
        rows.append([name, found, rank, change][: len(header)])
    yield from table(header, rows, screen.width)
    yield from labelled([(name, WAYS.get(name, name)) for name in retrieval.ways], screen.width)
    for name, recall in retrieval.ways.items():
        if recall.change is not None:
            style = {-1: "wrong", 0: "", 1: "right"}[significant_sign(recall.change, recall.change_error)]
            yield from sentence(f"{name}: {figures.found_more(recall)}.", screen.width, style)
