"""What is drawn of a comparison, and the same as numbers: for the figure of ``--plot``, and for the report."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.comparison.comparison_result import LOSS, Comparison
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, Estimate, Evaluation, Recall
from ctxextend.report.figures import (
    COLOURS,
    DASHES,
    ORIGINAL_LOOK,
    Bar,
    Draw,
    LossCurve,
    draw_bars,
    draw_losses,
    draw_passkey,
    draw_row_norms,
    losses_by_context,
    losses_by_position,
    panel_grid,
    upper_limit,
    write_figure,
)
from ctxextend.report.numbers import NumberFormat, twice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Every ± of a report is two standard errors.
NUMBERS = NumberFormat(unicode=True, errors=2.0)
ORIGINAL = "the original, in pieces"
TRAINABLE = {"new": "the new rows", "positions": "the position table", "all": "everything"}
CUT = " Values beyond the picture's edge are cut off; the table has them."
DASH = "\N{EN DASH}"
# At least and at most so many methods stand in front in panels of all of them.
LEAST, MOST = 3, 6
# The share of norms that are shown whole.
USUAL = 0.98

# Sizes in inches: of a panel that takes half the page, of a small one for one method, and of the room of a bar.
LARGE, SMALL, BAR = (4.8, 2.8), (2.0, 1.25), 0.23

# A method's place in the ranking from 0, or None for the original, its name, and what it was worth.
Named = tuple[int | None, str, Estimate]
Losses = dict[tuple[int, ...], Estimate]


@dataclass(frozen=True)
class Plot:
    """One picture of a panel: what it shows, what draws it, its size in inches, and of which method alone it is."""

    title: str
    draw: Draw
    size: tuple[float, float] = LARGE
    number: int | None = None


@dataclass(frozen=True)
class Panel:
    """Pictures of one kind, with the same as a table.

    Attributes:
        key: A name of its own on the page.
        title: Its heading.
        caption: How to read it.
        plots: One for each method, or one or two of all of them.
        heads: What stands over the table's columns.
        rows: The table's rows, each with its name in front.
        names_original: Whether the original has a curve; None where there are no curves that a legend must name.
    """

    key: str
    title: str
    caption: str
    plots: tuple[Plot, ...]
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names_original: bool | None = None

    @property
    def is_small(self) -> bool:
        """Whether each method has a small picture of its own."""
        return self.plots[0].number is not None


def plot_comparison(comparison: Comparison, path: Path) -> None:
    """Write a figure: what each method costs, and its losses by position and context, or what it finds.

    Raises:
        OutputError: As `write_figure`.
    """
    before, after = comparison.max_len_before, comparison.max_len_after
    what = f"{comparison.source} ({comparison.family}), {before} -> {after} tokens"
    trained = trained_words(comparison).rstrip(", ").lower()
    text = f"{comparison.documents:,} document{'s' * (comparison.documents != 1)}, {comparison.tokens:,} tokens"
    title = "; ".join(filter(None, (what, trained, text, "" if comparison.complete else "incomplete")))
    plots = [plot for panel in comparison_panels(comparison) if not panel.is_small for plot in panel.plots]

    def make() -> "Figure":
        figure = panel_grid(title, [plot.draw for plot in plots], (4.6, 4.2))
        # Bars name their methods themselves; one legend serves all curves.
        for axes in figure.axes[::-1]:
            lines, names = axes.get_legend_handles_labels()
            if names:
                figure.legend(lines[::-1], names[::-1], loc="outside lower center", ncols=min(len(names), 5))
                break
        return figure

    write_figure(path, make)


def trained_words(comparison: Comparison) -> str:
    """Return after what the ranking is, as the beginning of a sentence; nothing where nothing was trained."""
    if not comparison.steps:
        return ""
    what = TRAINABLE.get(comparison.trainable, comparison.trainable)
    return f"After {comparison.steps:,} step{'s' * (comparison.steps != 1)} of training {what}, "


def comparison_panels(comparison: Comparison) -> list[Panel]:
    """Return a panel for each part that was measured."""
    panels = [
        _costs(comparison),
        _losses(comparison, "position", losses_by_position),
        _losses(comparison, "context", losses_by_context),
        _retrieval(comparison),
        _norms(comparison),
        _passkeys(comparison),
    ]
    return [panel for panel in panels if panel is not None]


def signed_text(difference: Estimate | None) -> str:
    """Return a difference with its sign and two standard errors; 0 for none at all, and nothing where not measured."""
    if difference is None:
        return ""
    return NUMBERS.change(difference) if difference.mean or difference.error else "0"


def lead_count(comparison: Comparison) -> int:
    """Return how many methods stand in front: those level with the best, where these are neither few nor many."""
    return min(max(sum(row.final.is_level for row in comparison.rows), LEAST), MOST)


def _look(number: int | None) -> dict[str, Any]:
    """Return how the line of a method looks, by its place in the ranking from 0, or that of the original."""
    if number is None:
        return ORIGINAL_LOOK
    dash = DASHES[(number + number // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dash}


def _costs(comparison: Comparison) -> Panel | None:
    """How far each method is behind the best, and what short texts pay."""
    rows, before = comparison.rows, comparison.max_len_before
    if len(rows) < 2:
        return None
    unit, paired = ("nats per token", "window") if comparison.metric == LOSS else ("mean reciprocal rank", "query")
    behind = [(number, row.method, row.final.behind or Estimate(0.0, None, 0)) for number, row in enumerate(rows)]
    short = [(number, row.method, row.final.short) for number, row in enumerate(rows) if row.final.short]
    plots = [_bars("Behind the best", f"behind the best ({unit})", behind)]
    heads = ["method", "behind the best"]
    cells = [[row.method, signed_text(row.final.behind) or "best"] for row in rows]
    caption = (
        f"How much worse than {rows[0].method} each method is, in {unit}, paired by {paired}. Lines: ± 2 standard "
        "errors; where they reach 0, the two are not told apart."
    )
    if short:
        plots.append(_bars(f"Cost for texts of {before:,} tokens", "cost for short texts (nats per token)", short))
        heads.append("short texts")
        cells = [[*line, signed_text(row.final.short) or "-"] for line, row in zip(cells, rows, strict=True)]
        caption += (
            f" Cost for short texts: the loss minus the original's, of texts that it can read at once "
            f"({before:,} tokens); 0 where they give what they gave."
        )
    return _bar_panel("cost", "What each costs" if short else "Behind the best", caption, plots, heads, cells)


def _bars(title: str, label: str, found: Sequence[Named]) -> tuple[Plot, bool]:
    """Return bars, and whether any are cut off: those of the last fourth that are far longer than all others."""
    ends = [one.mean + sign * twice(one.error) for *_, one in found for sign in (-1, 1)]
    limit = upper_limit([0.0, *ends], [0.0, *ends[: 2 * (len(found) - len(found) // 4)]])
    bars = [
        Bar(name, one.mean, one.error, {"color": _look(number)["color"], "alpha": 0.25 if number is None else 0.55})
        for number, name, one in found
    ]
    draw = partial(draw_bars, bars=bars, title=title, label=label, limit=limit)
    return Plot(title, draw, (LARGE[0], len(bars) * BAR + 0.6)), limit is not None


def _bar_panel(
    key: str, title: str, caption: str, plots: Sequence[tuple[Plot, bool]], heads: list[str], cells: list[list[str]]
) -> Panel:
    caption += CUT * any(is_cut for _, is_cut in plots)
    return Panel(key, title, caption, tuple(plot for plot, _ in plots), heads, cells)


LOSS_CAPTIONS = {
    "position": (
        "Mean loss at each stretch of positions; less is better. Positions right of the broken line are new. Band: ± 2 "
        "standard errors of the best method's. All methods read the same text, so that their differences are surer."
    ),
    "context": (
        "The same tokens, read with ever more text around them; less is better. Contexts right of the broken line are "
        "longer than the original reads. Bars: ± 2 standard errors of the best method's."
    ),
}


def _losses(comparison: Comparison, by: str, read: Callable[[Evaluation, str], Losses]) -> Panel | None:
    """Losses by position or by context of each method, and of the original."""
    found = [(number, row.method, read(row.final.evaluation, MODEL)) for number, row in enumerate(comparison.rows)]
    if not any(losses for *_, losses in found):
        return None
    originals = (read(row.final.evaluation, SLIDING) for row in comparison.rows)
    original = next(filter(None, originals), {})
    # The better half of the methods is shown whole.
    better = [losses for *_, losses in found[: -(-len(found) // 2)]]
    limit = upper_limit(_means([*(losses for *_, losses in found), original]), _means([*better, original]))
    # What is drawn last is on top: the best, on those that lead, on the original, on the others.
    leads = lead_count(comparison)
    curves = [_curve(number, name, losses, leads) for number, name, losses in found[::-1]]
    if original:
        curves.insert(max(len(found) - leads, 0), LossCurve(ORIGINAL, original, ORIGINAL_LOOK, shows_errors=False))
    scored = "masked tokens" if comparison.kind == "masked" else "tokens"
    title = f"Loss of {scored} by position" if by == "position" else f"Loss of the same {scored} by context"
    draw = partial(draw_losses, curves=curves, title=title, by=by, learned=comparison.max_len_before, limit=limit)
    tables = [(name, losses) for _, name, losses in found] + [(ORIGINAL, original)] * bool(original)
    places = sorted({place for _, losses in tables for place in losses})
    heads = ["method", *(DASH.join(f"{end:,}" for end in (place[0], place[-1] - 1)[: len(place)]) for place in places)]
    cells = [
        [name, *(NUMBERS.estimate(losses[place]) if place in losses else "-" for place in places)]
        for name, losses in tables
    ]
    caption = LOSS_CAPTIONS[by] + CUT * (limit is not None)
    return Panel(by, title, caption, (Plot(title, draw),), heads, cells, bool(original))


def _means(found: Iterable[Losses]) -> list[float]:
    return [loss.mean for losses in found for loss in losses.values()]


def _curve(number: int, name: str, losses: Losses, leads: int) -> LossCurve:
    width = 2.4 if number == 0 else 1.4 if number < leads else 0.7
    look = _look(number) | {"linewidth": width, "alpha": 1.0 if number < leads else 0.5}
    return LossCurve(name, losses, look, shows_errors=number == 0)


def _retrieval(comparison: Comparison) -> Panel | None:
    """Recall and reciprocal rank of each method and of the original."""
    found = [(number, row.method, row.final.evaluation.retrieval) for number, row in enumerate(comparison.rows)]
    asked = [(number, method, retrieval) for number, method, retrieval in found if retrieval is not None]
    if not asked:
        return None
    first = asked[0][2]
    ways: list[tuple[int | None, str, Recall]] = []
    ways += [(number, method, read.ways[MODEL]) for number, method, read in asked if MODEL in read.ways]
    ways += [(None, f"original, {name}", way) for name, way in first.ways.items() if name != MODEL]
    ranks = [(number, name, Estimate(way.reciprocal_rank, way.reciprocal_rank_error, 0)) for number, name, way in ways]
    recalls = [(number, name, Estimate(way.recall, way.recall_error, 0)) for number, name, way in ways]
    caption = (
        f"Documents found by {first.queries:,} queries of {first.query_tokens} tokens, out of {first.documents:,} "
        f"documents of {first.length:,} tokens, {first.pooling} pooling; more is better. Lines: ± 2 standard errors. "
        "The original reads their starts alone (truncated), or all of them in pieces (chunks)."
    )
    plots = [
        _bars("Retrieval: mean reciprocal rank", "mean reciprocal rank", ranks),
        _bars("Retrieval: recall@1", "recall@1", recalls),
    ]
    cells = [
        [name, NUMBERS.estimate(rank), NUMBERS.estimate(recall)]
        for (_, name, rank), (*_, recall) in zip(ranks, recalls, strict=True)
    ]
    return _bar_panel("retrieval", "Retrieval", caption, plots, ["method", "reciprocal rank", "recall@1"], cells)


def _norms(comparison: Comparison) -> Panel | None:
    """The norms of each method's rows over those of the model's own."""
    drawn = [(number, row.method, row.norms) for number, row in enumerate(comparison.rows) if row.norms]
    if not drawn:
        return None
    tables = [("the model's own", comparison.norms), *((method, norms) for _, method, norms in drawn)]
    finite = sorted(norm for _, norms in tables for norm in norms if math.isfinite(norm)) or [1.0]
    limit = upper_limit([0.0, *finite], [0.0, finite[int(USUAL * (len(finite) - 1))]])
    top = limit or 1.1 * finite[-1] or 1.0
    plots = []
    for number, method, norms in drawn:
        colour = _look(number)["color"]
        draw = partial(draw_row_norms, before=comparison.norms, after=norms, colour=colour, top=top)
        plots.append(Plot(method, draw, SMALL, number))
    caption = (
        "Euclidean norm of each row of the position table, by position. Wide and grey: the model's own rows; coloured: "
        f"the method's. The broken line stands at {comparison.max_len_before:,}, where new positions begin."
    ) + CUT * (limit is not None)
    before = comparison.max_len_before
    heads = ["method", "lowest", "highest", f"mean of 0{DASH}{before - 1:,}", f"mean from {before:,} on"]
    cells = [[name, *_norm_texts(norms, before)] for name, norms in tables]
    return Panel("norms", "Norms of the table's rows, before and after", caption, tuple(plots), heads, cells)


def _norm_texts(norms: Sequence[float], before: int) -> list[str]:
    finite = [norm for norm in norms if math.isfinite(norm)] or [math.nan]
    parts = [norms[:before], norms[before:]]
    values = [min(finite), max(finite), *(math.fsum(part) / len(part) if part else math.nan for part in parts)]
    return ["-" if math.isnan(value) else f"{value:.4g}" for value in values]


def _passkeys(comparison: Comparison) -> Panel | None:
    """A heat map of what each method found."""
    found = [(number, row.method, row.final.evaluation.passkey) for number, row in enumerate(comparison.rows)]
    asked = [(number, method, passkey) for number, method, passkey in found if passkey is not None and passkey.lengths]
    if not asked:
        return None
    first = asked[0][2]
    plots = []
    for number, method, passkey in asked:
        draw = partial(draw_passkey, passkey=passkey, label="", learned=comparison.max_len_before)
        plots.append(Plot(method, draw, SMALL, number))
    caption = (
        "Share of numbers found again, in percent. Across: tokens of the text; down: how deep in it the number stands, "
        f"from its start (0) to its end (100). Asked by {first.how}, {first.trials} trials a cell; guessing finds "
        f"{100 * first.chance:.3g} %. Texts right of the broken line are longer than the original reads."
    )
    heads = ["method", "depth", *(f"{length:,}" for length in first.lengths)]
    cells = [
        [method, f"{100 * depth:.3g} %", *(_percent(shares[place]) for shares in passkey.found)]
        for _, method, passkey in asked
        for place, depth in enumerate(passkey.depths)
    ]
    return Panel("passkey", "Passkeys", caption, tuple(plots), heads, cells)


def _percent(share: float | None) -> str:
    return "-" if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"
