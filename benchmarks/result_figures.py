"""The figures of docs/results.md, drawn from what the benchmarks wrote to `results`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.figure import Figure

from benchmarks.shown import Point
from ctxextend.report.figures import COLOURS, DASHES, INK, SOFT

__all__ = ["BASE_STYLE", "OTHER", "draw_results"]

RESULTS = Path(__file__).with_name("results")

# Readers in `window_search`, and what the figure calls them.
SHIPPED = 256  # tokens that the folder of the base reads
WHOLE = "chunks of the whole document"
TRAINED = "windows, 20 steps"
READERS = {
    TRAINED: "8,192 positions, after 20 training steps",
    "windows, not trained": "8,192 positions, not trained",
    "chunks of the same text": "as it is, in chunks of 512 tokens",
}
LENGTHS = (512, 2048, 4096, 8192)

ROTARY_METHODS = ("limits", "linear", "dynamic", "yarn", "tuned")
RATIO_TICKS = (0.5, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)
FIRST_METHODS = ("bands", "linear", "stretch", "last", "copy", "random")
ROW = 0.24  # inches
OTHER = "#a9afb8"
BASE_STYLE: Mapping[str, Any] = {
    "color": INK,
    "linestyle": (0, (0.1, 2)),
    "linewidth": 2,
    "dash_capstyle": "round",
}
ERROR_BAR: Mapping[str, Any] = {"capsize": 2, "elinewidth": 0.9, "linestyle": "none"}


def draw_results() -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each section that has one."""
    yield "search", draw_search(_read("window-search")["judging"])
    real = _read("real")
    yield "after-a-minute", draw_minutes(real["minutes"])
    yield "held-out-rows", draw_held_out_rows(real["held_out"])
    yield "rotary-positions", draw_rotary_positions(_read("smollm2"))


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def draw_search(readers: Mapping[str, Mapping[str, Point]]) -> Figure:
    """Draw what a search finds by the tokens of each document that are read."""
    figure, axes = pyplot.subplots(figsize=(6, 3), layout="constrained")
    for number, (reader, label) in enumerate(READERS.items()):
        points = [readers[f"{reader}, {length}"]["nDCG@10"] for length in LENGTHS]
        means = [mean for mean, _ in points]
        colour = COLOURS[number]
        axes.plot(
            LENGTHS, means, label=label, color=colour, linestyle=DASHES[number], marker="o", ms=4
        )
        if reader == TRAINED:
            lower = [mean - half_width for mean, half_width in points]
            upper = [mean + half_width for mean, half_width in points]
            axes.fill_between(LENGTHS, lower, upper, color=colour, alpha=0.1, linewidth=0)
    whole, _ = readers[WHOLE]["nDCG@10"]
    axes.axhline(whole, label="as it is, in chunks, whole documents", **BASE_STYLE)
    before, _ = readers["as shipped"]["nDCG@10"]
    axes.plot([SHIPPED], [before], color=INK, marker="s", ms=5, linestyle="none")
    after, _ = readers[f"{TRAINED}, {LENGTHS[-1]}"]["nDCG@10"]
    _annotate(axes, f"as shipped, cut at {SHIPPED} tokens: {before:.3f}", (SHIPPED, before))
    _annotate(axes, f"{LENGTHS[-1]:,} tokens in one pass: {after:.3f}", (LENGTHS[-1], after))
    axes.set(
        title="all-MiniLM-L6-v2 searches transcripts of 18 meetings (QMSum)",
        xscale="log",
        xlabel="tokens of each document that are read",
        ylabel="nDCG@10",
        ylim=(0.45, 0.9),
    )
    lengths = (SHIPPED, *LENGTHS)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.legend(loc="upper left")
    return figure


def draw_minutes(minutes: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the perplexity of each model before and after a minute on a text."""
    references: dict[str, list[Mapping[str, Any]]] = {}
    for minute in minutes:
        references.setdefault(minute["reference"], []).append(minute)
    sizes = [len(rows) for rows in references.values()]
    figure, panels = pyplot.subplots(
        len(sizes),
        1,
        figsize=(6, 1.4 + ROW * sum(sizes)),
        height_ratios=sizes,
        sharex=True,
        layout="constrained",
    )
    for axes, (reference, rows) in zip(panels, references.items(), strict=True):
        _draw_changes(axes, rows)
        axes.set_title(f"perplexity beyond the old length / that of {reference}", loc="left")
        _set_ratio_axis(axes)
    panels[-1].legend(loc="lower right")
    return figure


def _draw_changes(axes: Any, minutes: Sequence[Mapping[str, Any]]) -> None:
    """Draw both scores of each part in its row."""
    untrained = [minute["untrained"] for minute in minutes]
    tuned = [minute["after a minute"] for minute in minutes]
    _draw_points(axes, untrained, COLOURS[1], "o", "untrained")
    _draw_points(axes, tuned, COLOURS[0], "D", "after a minute")
    for row, ((before, _), (after, _)) in enumerate(zip(untrained, tuned, strict=True)):
        axes.plot([before, after], [row, row], color=OTHER, linewidth=1, zorder=0)
    axes.set_yticks(range(len(minutes)), [minute["label"] for minute in minutes])
    axes.invert_yaxis()


def draw_held_out_rows(parts: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw how much worse each method is than the rows that it replaces, by model."""
    figure, axes = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    for number, name in enumerate(FIRST_METHODS):
        ratios = [part["ratios"][name] for part in parts]
        colour = (*COLOURS, SOFT)[number]
        _draw_points(axes, ratios, colour, "oDs^vP"[number], name)
    labels = [f"{part['model']} {part['before']} → {part['to']}" for part in parts]
    axes.set_yticks(range(len(parts)), labels)
    axes.invert_yaxis()
    axes.set_title("perplexity / that of the rows that were cut off", loc="left")
    _set_ratio_axis(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def draw_rotary_positions(methods: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw perplexity by position at twice the trained length."""
    figure, axes = pyplot.subplots(figsize=(6, 3), layout="constrained")
    for number, name in enumerate(ROTARY_METHODS):
        method = methods[name]
        middles = [(start + stop) / 2 for start, stop, *_ in method["by_position"]]
        axes.errorbar(
            middles,
            [mean for *_, mean, _ in method["by_position"]],
            [half_width for *_, half_width in method["by_position"]],
            label=method["name"].strip("`"),
            color=COLOURS[number],
            linestyle=DASHES[number],
            marker=".",
            capsize=2,
        )
    axes.axhline(1, label="as it is, in sliding windows", **BASE_STYLE)
    axes.axvline(8192, color=OTHER, linewidth=0.8)
    axes.annotate(
        "trained length",
        (8192, 90),
        (4, 0),
        textcoords="offset points",
        color=SOFT,
        fontsize=7,
    )
    axes.set(yscale="log", xlabel="position", ylabel="perplexity / base's", xlim=(0, 16_384))
    ticks = [tick for tick in RATIO_TICKS if tick >= 1]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([0, 4096, 8192, 12_288, 16_384], ["0", "4,096", "8,192", "12,288", "16,384"])
    axes.minorticks_off()
    axes.legend(loc="center left", bbox_to_anchor=(0, 0.66))
    return figure


def _annotate(axes: Any, text: str, place: tuple[float, float]) -> None:
    """Write a text near a point: below the first one, above the last."""
    offset, alignment = (4, 12), "right"
    if place[0] == SHIPPED:
        offset, alignment = (14, -18), "left"
    axes.annotate(
        text,
        place,
        offset,
        textcoords="offset points",
        horizontalalignment=alignment,
        fontsize=8,
        arrowprops={"arrowstyle": "-", "color": SOFT, "linewidth": 0.7, "shrinkB": 4},
    )


def _draw_points(axes: Any, points: Sequence[Point], colour: str, marker: str, label: str) -> None:
    """Draw scores with their intervals, each in its row."""
    axes.errorbar(
        [mean for mean, _ in points],
        range(len(points)),
        xerr=[half_width for _, half_width in points],
        label=label,
        color=colour,
        marker=marker,
        markersize=4,
        **ERROR_BAR,
    )


def _set_ratio_axis(axes: Any) -> None:
    """Make the horizontal axis one of ratios, on which 1 is the reference."""
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log")
    smallest, largest = axes.get_xlim()
    ticks = [tick for tick in RATIO_TICKS if smallest <= tick <= largest]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
