"""A comparison of methods as a figure."""

import math
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.comparison.reports import LOSS, Comparison, Row
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, Bucket, Estimate
from ctxextend.report.axes import positions, top
from ctxextend.report.drawing import ABOVE, BELOW, CHARACTERS, COLOURS, LINE, printable, write
from ctxextend.report.losses import better_half
from ctxextend.report.words import trained_words, twice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_comparison"]

# Each panel so wide and high, in inches.
PANEL = (4.6, 4.2)
# Characters of a method's name.
NAME = 28
# Together with the colours, one for each method.
STYLES = ("-", "--", ":", "-.")
PLAIN: dict[str, Any] = {"color": "black", "linewidth": 0.8}

Draw = Callable[["Axes"], None]


def plot_comparison(comparison: Comparison, path: Path) -> None:
    """Write a figure: how far each method is behind the best, and its losses by position and context, or what it finds.

    The same comparison gives the same bytes with the same matplotlib.

    Args:
        comparison: What was found.
        path: The file; its ending is the format: .png, .svg or .pdf. What stands there is replaced once it is drawn.

    Raises:
        OutputError: matplotlib is not installed, the ending is no format, or the file cannot be written.
    """
    write(path, lambda: _figure(comparison))


def _figure(comparison: Comparison) -> "Figure":
    from matplotlib.figure import Figure

    draws = _panels(comparison)
    width = len(draws) * PANEL[0]
    title = textwrap.fill(_title(comparison), int(width * CHARACTERS))
    figure = Figure(figsize=(width, PANEL[1] + (title.count("\n") + 4) * LINE), layout="constrained")
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(1, len(draws), squeeze=False)[0]
    for draw, axes in zip(draws, panels, strict=True):
        draw(axes)
    # Bars name their methods themselves; one legend serves all curves.
    lines, names = panels[-1].get_legend_handles_labels()
    if names:
        figure.legend(lines, names, loc="outside lower center", ncols=min(len(names), 2 * len(draws)))
    return figure


def _title(comparison: Comparison) -> str:
    what = (
        f"{comparison.source} ({comparison.family}), {comparison.max_len_before} -> {comparison.max_len_after} tokens"
    )
    text = f"{comparison.documents:,} document{'s' * (comparison.documents != 1)}, {comparison.tokens:,} tokens"
    after = trained_words(comparison).rstrip(", ").lower()
    return printable("; ".join(filter(None, (what, after, text, "incomplete" * (not comparison.complete)))))


def _panels(comparison: Comparison) -> list[Draw]:
    """Return what draws each part that was measured, the ranking first."""
    draws: list[Draw] = [partial(_draw_ranking, comparison=comparison)]
    if comparison.metric != LOSS:
        draws.append(partial(_draw_scores, comparison=comparison))
    if any(row.final.evaluation.positions for row in comparison.rows):
        draws.append(partial(_draw_positions, comparison=comparison))
    if any(row.final.evaluation.contexts for row in comparison.rows):
        draws.append(partial(_draw_contexts, comparison=comparison))
    return draws


def _draw_ranking(axes: "Axes", comparison: Comparison) -> None:
    """Draw bars of how much worse than the best each method is, the best on top, with two standard errors."""
    unit = "nats per token" if comparison.metric == LOSS else "mean reciprocal rank"
    axes.set(title="Behind the best", xlabel=f"{unit}; bars: ± 2 standard errors")
    _draw_bars(axes, comparison, [row.final.behind or Estimate(0.0, None, 0) for row in comparison.rows])


def _draw_scores(axes: "Axes", comparison: Comparison) -> None:
    """Draw bars of what each method finds, and a line where the original in pieces stands."""
    axes.set(title="Documents found by queries", xlabel="mean reciprocal rank; bars: ± 2 standard errors")
    _draw_bars(axes, comparison, [row.final.score for row in comparison.rows])
    if comparison.original is not None and math.isfinite(comparison.original.mean):
        axes.axvline(comparison.original.mean, label="the original, in pieces", **PLAIN | {"linestyle": (0, (1, 2))})


def _draw_bars(axes: "Axes", comparison: Comparison, values: Sequence[Estimate]) -> None:
    widths = [one.mean if math.isfinite(one.mean) else math.nan for one in values]
    places = list(range(len(widths)))
    colours = [_look(number)["color"] for number in places]
    axes.barh(places, widths, 0.6, xerr=list(map(_error, values)), color=colours, alpha=0.7, capsize=2)
    axes.set_yticks(places, [_name(row) for row in comparison.rows])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.axvline(0, **PLAIN)


def _error(estimate: Estimate) -> float:
    """Return two standard errors; 0 where there are none."""
    error = twice(estimate.error)
    return error if error is not None and math.isfinite(error) else 0.0


def _name(row: Row) -> str:
    name = printable(row.method)
    name = name if len(name) <= NAME else f"{name[: NAME - 1]}…"
    return f" {name}" if name.startswith("_") else name  # matplotlib leaves such labels out of legends


def _look(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)]}


def _draw_positions(axes: "Axes", comparison: Comparison) -> None:
    """Draw losses by position as steps, and those of the original in pieces, where they are known."""
    scored = "masked tokens" if comparison.kind == "masked" else "tokens"
    axes.set(title=f"Loss of {scored} by position", xlabel="position (tokens)", ylabel="loss (nats per token)")
    axes.set_xticks(positions("", comparison.max_len_after).ticks)
    read = [row.final.evaluation.positions for row in comparison.rows]
    curves = [_steps(found.buckets if found else (), MODEL) for found in read]
    own = next((steps for found in read if found and (steps := _steps(found.buckets, SLIDING))), [])
    _draw_curves(axes, comparison, curves, own)


def _steps(buckets: Sequence[Bucket], way: str) -> list[tuple[float, float]]:
    known = [bucket for bucket in buckets if way in bucket.losses]
    return [(place, bucket.losses[way].mean) for bucket in known for place in (bucket.start, bucket.stop)]


def _draw_contexts(axes: "Axes", comparison: Comparison) -> None:
    """Draw losses of the same tokens by context, and those of the original as far as it can read."""
    scored = "masked tokens" if comparison.kind == "masked" else "tokens"
    axes.set(title=f"Loss of the same {scored} by context", xlabel="context (tokens)", ylabel="loss (nats per token)")
    read = [found.points if found else () for found in (row.final.evaluation.contexts for row in comparison.rows)]
    places = sorted({point.context for points in read for point in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()
    curves = [[(float(point.context), point.loss.mean) for point in points] for points in read]
    own = [[(float(point.context), point.original.mean) for point in points if point.original] for points in read]
    _draw_curves(axes, comparison, curves, next(filter(None, own), []))


Curve = Sequence[tuple[float, float]]


def _draw_curves(axes: "Axes", comparison: Comparison, curves: Sequence[Curve], own: Curve) -> None:
    """Draw a curve for each method, that of the best wide and below, and cut off what is far above the better half."""
    for number, (row, curve) in enumerate(zip(comparison.rows, curves, strict=True)):
        width = BELOW if number == 0 else ABOVE
        axes.plot(*_finite(curve), label=_name(row), linewidth=width, **_look(number))
    if own:
        axes.plot(*_finite(own), label="the original, in pieces", **PLAIN | {"linestyle": (0, (1, 2)), "linewidth": 2})
    axes.axvline(comparison.max_len_before, **PLAIN, linestyle=(0, (6, 2, 1, 2)))
    chosen = [*curves[: better_half(comparison)], own]
    low, high, is_cut = top(*([loss for curve in some for _, loss in curve] for some in ([*curves, own], chosen)))
    if is_cut:
        axes.set_ylim(low - 0.03 * (high - low), high)


def _finite(curve: Curve) -> tuple[list[float], list[float]]:
    return [place for place, _ in curve], [loss if math.isfinite(loss) else math.nan for _, loss in curve]
