"""Losses by position and by context as lines for a terminal."""

import math
from collections.abc import Iterator, Sequence

from ctxextend.cli.chart import SHARED, Curve, Pieces, draw, is_logarithmic, key_marks
from ctxextend.cli.evaluationwording import Figures, scored, side
from ctxextend.cli.lines import Cell, Screen, flowed, table
from ctxextend.evaluation.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    Bucket,
    ContextLosses,
    ContextPoint,
    Estimate,
    Evaluation,
    PositionLosses,
)
from ctxextend.tables.stats import describe_range

__all__ = ["context_lines", "position_lines"]

# Characters of a bar at most, and of what stands beside one and its figure.
BAR = 32
BESIDE = 11

# The original's ways of reading, in the words that tell them apart.
ORIGINALS = {SLIDING: "the original in sliding windows", TRUNCATED: "the original in windows back to back"}
CURVES = {MODEL: "learned", SLIDING: "second", TRUNCATED: "third"}


def position_lines(positions: PositionLosses, evaluation: Evaluation, screen: Screen) -> Iterator[Pieces]:
    """Yield the losses by position as a chart, as a table, and in words what they are against the original's."""
    names = [name for name in CURVES if name in positions.losses]
    figures = Figures(screen.unicode)
    yield []
    if positions.buckets and names:
        yield from _chart(positions, names, evaluation, screen)
        yield []
    windows = f"{positions.windows:,} window{'s' * (positions.windows != 1)} of {positions.length} tokens"
    yield from screen.says(f"Perplexity by position, {windows}", "title")
    rows = [_bucket_row(bucket, names, figures) for bucket in positions.buckets]
    overall = [("all", ""), *((figures.perplexity(positions.losses[name]), "") for name in names)]
    yield from table(["positions", *names], [*rows, overall], screen.width)
    for name in names:
        if name in positions.changes:
            change = positions.changes[name]
            yield from screen.says(f"over all positions, {figures.compared(change, ORIGINALS[name])}.", _style(change))


def _bucket_row(bucket: Bucket, names: Sequence[str], figures: Figures) -> list[Cell]:
    cells = [figures.perplexity(bucket.losses[name]) if name in bucket.losses else "-" for name in names]
    return [(text, "") for text in (describe_range(bucket.start, bucket.stop), *cells)]


def _chart(positions: PositionLosses, names: Sequence[str], evaluation: Evaluation, screen: Screen) -> Iterator[Pieces]:
    """Yield the losses as curves of steps, with a key to what is what."""
    original = evaluation.original_max_len or positions.length
    curves = [_curve(positions, name, original) for name in names]
    parts: list[Pieces] = [[("Loss by position, in nats", "title"), (" (logarithmic)" * is_logarithmic(curves), "")]]
    parts += [[("  of masked tokens alone", "")]] * (evaluation.kind == "masked")
    marks = key_marks(unicode=screen.unicode)
    parts += [[(f"  {mark} {name}", CURVES[name])] for mark, name in zip(marks, names, strict=False)]
    parts += [[(f"  {SHARED[not screen.unicode]} several", "axis")]] * (len(names) > 1)
    parts += [[(f"  beyond the original: from {original} on", "new")]] * (original < positions.length)
    yield from flowed(parts, screen.width)
    yield from draw(curves, screen.width, screen.height, unicode=screen.unicode)


def _curve(positions: PositionLosses, name: str, original: int) -> Curve:
    """Return a curve with a value for every position: its bucket's."""
    values = [math.nan] * max(positions.length, *(bucket.stop for bucket in positions.buckets))
    for bucket in positions.buckets:
        if name in bucket.losses:
            values[bucket.start : bucket.stop] = [bucket.losses[name].mean] * (bucket.stop - bucket.start)
    return Curve(values, (), lambda position: "new" if name == MODEL and position >= original else CURVES[name])


def context_lines(contexts: ContextLosses, evaluation: Evaluation, screen: Screen) -> Iterator[Pieces]:
    """Yield the losses by context as a table, their changes as bars, and whether the longest context is used."""
    figures, original = Figures(screen.unicode), _own_context(contexts, evaluation)
    where = "around" if evaluation.kind == "masked" else "before"
    windows = f"{contexts.windows:,} window{'s' * (contexts.windows != 1)}"
    yield []
    yield from screen.says(f"loss by context: the same {scored(evaluation)}, ever more text {where} them", "title")
    if not contexts.points:
        return
    yield from table(*_context_table(contexts, original, figures), screen.width)
    yield []
    title = f"Change of the loss against a context of {contexts.reference}, in nats, {windows}"
    yield from screen.says(title, "title")
    yield from _bars(contexts, screen)
    last = contexts.points[-1]
    yield from screen.says(_use(contexts, figures), _style(last.change))
    if last.against_original is not None:
        compared = figures.compared(last.against_original, f"the original with its own {original}")
        yield from screen.says(f"with {last.context} tokens, {compared}.", _style(last.against_original))


def _own_context(contexts: ContextLosses, evaluation: Evaluation) -> int | None:
    """Return the original's own longest context, of which no more is read than a window has."""
    if evaluation.original_max_len is None or not contexts.points:
        return evaluation.original_max_len
    return min(evaluation.original_max_len, contexts.points[-1].context)


def _context_table(
    contexts: ContextLosses, original: int | None, figures: Figures
) -> tuple[list[str], list[list[Cell]]]:
    header = ["context", "perplexity", "loss, nats"]
    has_original = any(point.against_original is not None for point in contexts.points)
    header += ["original", f"against its {original}"] * has_original
    rows = [_context_row(point, figures)[: len(header)] for point in contexts.points]
    return header, [[(text, "") for text in row] for row in rows]


def _context_row(point: ContextPoint, figures: Figures) -> list[str]:
    return [
        f"{point.context:>7}",
        figures.perplexity(point.loss),
        figures.number(point.loss.mean, point.loss.error),
        "-" if point.original is None else figures.perplexity(point.original),
        "-" if point.against_original is None else figures.change(point.against_original),
    ]


def _bars(contexts: ContextLosses, screen: Screen) -> Iterator[Pieces]:
    """Yield a bar for each context: to the left where its loss is lower than the reference's, else to the right."""
    changes = [point.change.mean if math.isfinite(point.change.mean) else 0.0 for point in contexts.points]
    low, high = min(0.0, *changes), max(0.0, *changes)
    texts = [_change_text(point, contexts.reference, Figures(screen.unicode)) for point in contexts.points]
    room = min(max(screen.width - BESIDE - max(map(len, texts)), 1), BAR)
    span = high - low if 0 < high - low < math.inf else math.inf
    for point, change, text in zip(contexts.points, changes, texts, strict=True):
        start, stop = (round((value - low) / span * room) for value in sorted((0.0, change)))
        bar = " " * start + ("\u2588" if screen.unicode else "=") * (stop - start)
        yield [(f"{point.context:>7}  ", ""), (f"{bar:<{room}}", _style(point.change)), (f"  {text}", "")]


def _change_text(point: ContextPoint, reference: int, figures: Figures) -> str:
    return "reference" if point.context == reference else figures.change(point.change)


def _use(contexts: ContextLosses, figures: Figures) -> str:
    """Say whether the longest context is used."""
    last = contexts.points[-1]
    if last.context <= contexts.reference:
        return f"No context longer than {contexts.reference} was measured."
    verdicts = {-1: "is used", 0: "is not seen to be used", 1: "does harm"}
    compared = figures.compared(last.change, f"{contexts.reference} tokens")
    verdict = verdicts[side(last.change.mean, last.change.error)]
    return f"The longer context {verdict}: {last.context} tokens, {compared}."


def _style(change: Estimate) -> str:
    return {-1: "right", 0: "", 1: "wrong"}[side(change.mean, change.error)]
