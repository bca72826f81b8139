"""The panels of a figure of an evaluation, each of them drawn into axes that it is given."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    ContextLosses,
    Estimate,
    Passkey,
    PositionLosses,
    Recall,
    Retrieval,
)
from ctxextend.report.drawing import ABOVE, BELOW, COLOURS, MAP, MARKERS, add_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_contexts", "draw_passkey", "draw_positions", "draw_retrieval"]

Floats = NDArray[np.float64]

# Standard errors on either side that bands and bars show.
ERRORS = 2.0
# How each way of reading is drawn, so that it can be told in grey.
LOOKS: dict[str, dict[str, Any]] = {
    MODEL: {"color": COLOURS[0], "linestyle": "-", "linewidth": BELOW},
    SLIDING: {"color": COLOURS[1], "linestyle": "--", "linewidth": ABOVE},
    TRUNCATED: {"color": COLOURS[2], "linestyle": ":", "linewidth": ABOVE + 0.3},
}
NAMES = {MODEL: "model", SLIDING: "original, sliding windows", TRUNCATED: "original, windows back to back"}
# Of the height of axes, how far below them a legend leaves the name of the axis free.
BELOW_LABEL = 0.18
# Numbers along an axis of positions at most.
TICKS = 8
# Where a cell of the heat map is dark enough for white figures.
DARK = 0.55


def draw_positions(axes: "Axes", positions: PositionLosses, original: int | None, scored: str) -> None:
    """Draw the losses by position as steps with bands of two standard errors, and where the original's length ends."""
    axes.set(title=f"Loss of {scored} by position", xlabel="position (tokens)", ylabel="loss (nats per token)")
    for name in (name for name in LOOKS if name in positions.losses):
        found = [bucket for bucket in positions.buckets if name in bucket.losses]
        edges = [(bucket.start, bucket.stop) for bucket in found]
        _draw_steps(axes, edges, [bucket.losses[name] for bucket in found], name)
    step = 2 ** max(math.ceil(math.log2(max(positions.length, 1) / TICKS)), 0)
    axes.set_xticks(range(0, positions.length + 1, step))
    _mark_original(axes, original, positions.length)
    add_legend(axes, "bands: ± 2 standard errors", BELOW_LABEL)


def _draw_steps(axes: "Axes", edges: Sequence[tuple[int, int]], estimates: Sequence[Estimate], name: str) -> None:
    places = np.array(edges, np.float64).ravel()
    means, errors = (np.repeat(values, 2) for values in _values(estimates))
    axes.plot(places, means, label=NAMES[name], **LOOKS[name])
    band: dict[str, Any] = {"color": LOOKS[name]["color"], "alpha": 0.2, "linewidth": 0}
    axes.fill_between(places, means - ERRORS * errors, means + ERRORS * errors, **band)


def _mark_original(axes: "Axes", original: int | None, longest: int) -> None:
    if original is not None and original <= longest:
        look: dict[str, Any] = {"color": "black", "linestyle": (0, (6, 2, 1, 2)), "linewidth": 0.8}
        axes.axvline(original, label=f"the original's length, {original}", **look)


def draw_contexts(axes: "Axes", contexts: ContextLosses, original: int | None, scored: str) -> None:
    """Draw the losses by context with bars of two standard errors, those of the original beside them."""
    places = [point.context for point in contexts.points]
    axes.set(title=f"Loss of the same {scored} by context", xlabel="context (tokens)", ylabel="loss (nats per token)")
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()
    _draw_points(axes, places, [point.loss for point in contexts.points], MODEL)
    read = [(point.context, point.original) for point in contexts.points if point.original is not None]
    if read:
        _draw_points(axes, [place for place, _ in read], [estimate for _, estimate in read], SLIDING)
    _mark_original(axes, original, max(places, default=0))
    add_legend(axes, "bars: ± 2 standard errors", BELOW_LABEL)


def _draw_points(axes: "Axes", places: Sequence[int], estimates: Sequence[Estimate], name: str) -> None:
    means, errors = _values(estimates)
    label = "model" if name == MODEL else "original"
    look = LOOKS[name] | {"marker": MARKERS[name != MODEL], "markerfacecolor": "white", "markersize": 4, "capsize": 3}
    axes.errorbar(places, means, ERRORS * errors, label=label, **look)


def _values(estimates: Sequence[Estimate]) -> tuple[Floats, Floats]:
    """Return means, with NaN for what is no finite number, and errors, 0 where there are none."""
    means = np.array([estimate.mean for estimate in estimates], np.float64)
    errors = np.array([_known(estimate.error) for estimate in estimates])
    return np.where(np.isfinite(means), means, np.nan), errors


def _known(error: float | None) -> float:
    return error if error is not None and math.isfinite(error) else 0.0


def draw_passkey(axes: "Axes", passkey: Passkey) -> None:
    """Draw the shares of numbers that were found as a heat map, with the figures in its cells."""
    shares = np.array([[math.nan if share is None else 100 * share for share in row] for row in passkey.found])
    shares = shares.reshape(len(passkey.lengths), len(passkey.depths)).T
    if shares.size:
        axes.imshow(shares, cmap=MAP, vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    axes.set(title="Passkey: numbers found again (%)", ylabel="depth in the text (%)")
    axes.set_xlabel(
        f"text (tokens)\n{passkey.how}, {passkey.trials} trials a cell, chance {100 * passkey.chance:.3g} %"
    )
    axes.set_xticks(range(len(passkey.lengths)), [str(length) for length in passkey.lengths])
    axes.set_yticks(range(len(passkey.depths)), [f"{100 * depth:.3g}" for depth in passkey.depths])
    axes.grid(visible=False)
    axes.patch.set(facecolor="white", hatch="xxxx")
    for (row, column), share in np.ndenumerate(shares):
        if math.isfinite(share):
            colour = "white" if share < 100 * DARK else "black"
            axes.text(column, row, f"{share:.0f}", ha="center", va="center", color=colour)


def draw_retrieval(axes: "Axes", retrieval: Retrieval) -> None:
    """Draw recall and reciprocal rank of each way as bars, with bars of two standard errors on them."""
    axes.set(title="Retrieval: documents found by queries", ylabel="share, or mean of 1 / rank")
    asked = f"{retrieval.queries} queries of {retrieval.query_tokens} tokens, {retrieval.documents} documents"
    axes.set_xlabel(f"{asked}\nof {retrieval.length} tokens; {retrieval.pooling} pooling; lines: ± 2 standard errors")
    ways = list(retrieval.ways.values())
    ranks = [(way.reciprocal_rank, way.reciprocal_rank_error) for way in ways]
    _draw_bars(axes, -0.2, [(way.recall, way.recall_error) for way in ways], {"label": "recall@1", "color": COLOURS[0]})
    look = {"label": "mean reciprocal rank", "color": COLOURS[1], "hatch": "///", "edgecolor": "white"}
    _draw_bars(axes, 0.2, ranks, look)
    axes.set_xticks(range(len(ways)), list(retrieval.ways))
    axes.set_ylim(0, _highest(ways))
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper left")


def _draw_bars(axes: "Axes", beside: float, found: Sequence[tuple[float, float | None]], look: dict[str, Any]) -> None:
    places = [number + beside for number in range(len(found))]
    heights = [height for height, _ in found]
    errors = [ERRORS * _known(error) for _, error in found]
    axes.bar(places, heights, 0.4, yerr=errors, capsize=3, **look)
    for place, height, error in zip(places, heights, errors, strict=True):
        if math.isfinite(height):
            axes.annotate(f"{height:.2f}", (place, height + error), (0, 3), textcoords="offset points", ha="center")


def _highest(ways: Sequence[Recall]) -> float:
    """Return a height that leaves room for the legend."""
    tops = [
        height + ERRORS * _known(error)
        for way in ways
        for height, error in ((way.recall, way.recall_error), (way.reciprocal_rank, way.reciprocal_rank_error))
        if math.isfinite(height)
    ]
    return 1.35 * max([0.1, *tops])
