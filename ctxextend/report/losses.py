"""The panels of losses: by position, and by how much text there is around a token."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ctxextend.comparison.reports import Comparison
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, Bucket, ContextPoint, Estimate
from ctxextend.report.axes import Axis, Frame, doublings, positions, round_numbers, top
from ctxextend.report.charts import Said, band, curve, picture, points, rule, series
from ctxextend.report.markup import DASH, Markup, element, joined
from ctxextend.report.page_panels import CUT, Panel, leading, legend, number_table, written
from ctxextend.report.words import twice

__all__ = ["better_half", "context_panel", "position_panel"]

LOSS_AXIS = "loss (nats per token)"
ORIGINAL = "the original, in pieces"


@dataclass(frozen=True)
class Drawn:
    """The losses of one method, or of the original.

    Attributes:
        name: What it is called.
        number: The method's place in the ranking, from 0; None for the original.
        losses: By what stands along x: a context, or the first position and the one behind the last.
    """

    name: str
    number: int | None
    losses: Mapping[tuple[int, ...], Estimate]


def position_panel(comparison: Comparison) -> Panel | None:
    """Return losses by position as steps; None where none were measured."""
    found = [(number, row, row.final.evaluation.positions) for number, row in enumerate(comparison.rows)]
    drawn = [Drawn(row.method, number, _buckets(read.buckets, MODEL)) for number, row, read in found if read]
    if not any(one.losses for one in drawn):
        return None
    own = next((own for _, _, read in found if read and (own := _buckets(read.buckets, SLIDING))), {})
    drawn += [Drawn(ORIGINAL, None, own)] * bool(own)
    x = positions("position (tokens)", comparison.max_len_after)
    return _panel(comparison, drawn, x, "position")


def _buckets(buckets: Iterable[Bucket], way: str) -> dict[tuple[int, ...], Estimate]:
    return {(bucket.start, bucket.stop): bucket.losses[way] for bucket in buckets if way in bucket.losses}


def context_panel(comparison: Comparison) -> Panel | None:
    """Return losses of the same tokens by context as points on lines; None where none were measured."""
    found = [(number, row, row.final.evaluation.contexts) for number, row in enumerate(comparison.rows)]
    drawn = [
        Drawn(row.method, number, {(point.context,): point.loss for point in read.points})
        for number, row, read in found
        if read
    ]
    lengths = sorted({length for one in drawn for (length, *_) in one.losses})
    if not lengths:
        return None
    own = next((own for _, _, read in found if read and (own := _own(read.points))), {})
    drawn += [Drawn(ORIGINAL, None, own)] * bool(own)
    return _panel(comparison, drawn, doublings("context (tokens)", lengths), "context")


def _own(read: Iterable[ContextPoint]) -> dict[tuple[int, ...], Estimate]:
    return {(point.context,): point.original for point in read if point.original is not None}


def _panel(comparison: Comparison, drawn: Sequence[Drawn], x: Axis, what: str) -> Panel:
    low, high, is_cut = top(*_values(drawn, better_half(comparison)))
    frame = Frame(x, round_numbers(LOSS_AXIS, low, high))
    scored = "masked tokens" if comparison.kind == "masked" else "tokens"
    title = f"Loss of {scored} by position" if what == "position" else f"Loss of the same {scored} by context"
    many = leading(comparison)
    marks = [_marks(frame, one, many) for one in _in_order(drawn, many)]
    marks.append(rule(frame, comparison.max_len_before, f"learned: {comparison.max_len_before:,}"))
    said = Said(what, title, _told(drawn, many, what, comparison.max_len_before))
    pictures = joined(
        element("div", picture(frame, said, *marks), class_="plot"),
        legend(comparison, original=drawn[-1].number is None),
    )
    return Panel(what, title, CAPTIONS[what] + CUT * is_cut, pictures, _numbers(drawn, title), is_wide=False)


CAPTIONS = {
    "position": (
        "Mean loss at each stretch of positions; less is better. Positions right of the broken line are new. Band: ± 2 "
        "standard errors of the best method's. All methods read the same text, so that their differences are surer."
    ),
    "context": (
        "The same tokens, read with ever more text around them; less is better. Contexts right of the broken line are "
        "longer than the original reads. Bars: ± 2 standard errors of the best method's."
    ),
}


def _in_order(drawn: Sequence[Drawn], many: int) -> list[Drawn]:
    """Return what is drawn, the lowest layer first: of what leads the best, whose line is the widest."""
    return sorted(drawn, key=lambda one: (one.number is None or one.number < many, one.number or 0))


def better_half(comparison: Comparison) -> int:
    """Return how many methods pictures show whole, however far above them the others are."""
    return -(-len(comparison.rows) // 2)


def _values(drawn: Sequence[Drawn], count: int) -> tuple[list[float], list[float]]:
    """Return all losses, and those of so many methods and of the original; of the best with its errors."""
    ends = [
        (one, loss.mean + sign * _known(loss) * (one.number == 0))
        for one in drawn
        for loss in one.losses.values()
        for sign in (-1, 1)
    ]
    return [end for _, end in ends], [end for one, end in ends if one.number is None or one.number < count]


def _marks(frame: Frame, one: Drawn, many: int) -> Markup:
    ends = [(end, loss.mean, _known(loss)) for place, loss in one.losses.items() for end in place]
    line = [(end, mean) for end, mean, _ in ends]
    if frame.x.is_log:
        marks = [curve(frame, line), points(frame, line, [error for *_, error in ends])]
    else:
        marks = [band(frame, [(end, mean - error, mean + error) for end, mean, error in ends]), curve(frame, line)]
    if one.number is None:
        return element("g", *marks, class_="original")
    return series(one.number, *marks, leads=one.number < many)


def _known(estimate: Estimate) -> float:
    """Return two standard errors; 0 where there are none."""
    error = twice(estimate.error)
    return error if error is not None and math.isfinite(error) else 0.0


def _told(drawn: Sequence[Drawn], many: int, what: str, learned: int) -> str:
    """Say the losses of the leading methods and of the original, and within which those of all others lie."""
    parts = [_sentence(one, what, learned) for one in drawn if one.losses and (one.number is None or one.number < many)]
    lasts = [list(one.losses.values())[-1].mean for one in drawn if one.losses and (one.number or 0) >= many]
    known = [mean for mean in lasts if math.isfinite(mean)]
    if known:
        span = f"from {min(known):.2f} to {max(known):.2f}"
        parts.append(f"The {len(known)} methods behind them end at losses {span}.")
    return " ".join(parts)


def _sentence(one: Drawn, what: str, learned: int) -> str:
    """Say the first loss, the last one at learned positions, and the last one of all."""
    kept = list(one.losses)
    within = [place for place in kept if place[-1] <= learned]
    chosen = dict.fromkeys([kept[0], *within[-1:], kept[-1]])
    return f"{one.name}: {', '.join(f'{_mean(one.losses[place])} at {_place(place, what)}' for place in chosen)}."


def _mean(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f}" if math.isfinite(estimate.mean) else "no finite number"


def _place(place: tuple[int, ...], what: str) -> str:
    if what == "context":
        return f"{place[0]:,} tokens"
    return f"positions {place[0]:,} to {place[1] - 1:,}"


def _numbers(drawn: Sequence[Drawn], title: str) -> Markup:
    places = sorted({place for one in drawn for place in one.losses})
    heads = ["method", *(DASH.join(f"{end:,}" for end in (place[0], place[-1] - 1)[: len(place)]) for place in places)]
    rows = [[one.name, *(written(one.losses.get(place)) for place in places)] for one in drawn]
    return number_table(f"{title}, in nats per token, ± 2 standard errors", heads, rows)
