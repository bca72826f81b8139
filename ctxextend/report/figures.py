"""Figures, drawn by matplotlib: each panel once, for ``--plot`` of every command and for the report of `compare`.

A panel is a function that draws into axes it is given; a figure is panels side by side.
"""

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, TRUNCATED, Estimate, Evaluation, Passkey
from ctxextend.report.numbers import twice
from ctxextend.report.saving import FIGURE, check_file, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Draw = Callable[["Axes"], None]

DOTS_PER_INCH = 144
# The height of a line of a title or a legend, in inches, and the characters that an inch of a title holds.
TITLE_LINE = 0.2
TITLE_CHARACTERS = 11
# Characters of a name in a legend or beside a bar.
NAME = 32

# Dark, bright, dark, bright: neighbours differ in grey too. The report swaps all of these for its own in dark mode.
COLOURS = ("#1f2fc8", "#f0690f", "#13a581", "#ba7cda", "#6a3a0c", "#3a3a5c")
INK, SOFT, HAIR, HEAT = "#1b1d21", "#5a6069", "#dfe2e6", "#74a9dc"
THEME = {"ink": INK, "soft": SOFT, "hair": HAIR, "heat": HEAT, "paper": "#ffffff"} | {
    f"c{number}": colour for number, colour in enumerate(COLOURS)
}
# With six colours, three dashes and seven markers (no common factor), many curves differ before one looks like another.
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.8)), (0, (1.2, 1.4)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Lines: those below are wide, so that curves that are equal over a stretch are both seen.
WIDE, THIN = 2.4, 1.1
# Where methods are compared, the original has dots, and no method's colour.
ORIGINAL_LOOK: dict[str, Any] = {"color": INK, "linestyle": (0, (0.1, 2)), "linewidth": 2, "dash_capstyle": "round"}

STYLE: dict[str, Any] = {
    **{"svg.hashsalt": "ctxextend", "text.parse_math": False, "font.size": 8, "axes.titlesize": 9},
    **{"legend.fontsize": 7, "legend.title_fontsize": 7, "legend.frameon": False, "hatch.linewidth": 0.6},
    **{"text.color": INK, "axes.labelcolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "axes.edgecolor": SOFT},
    **{"axes.grid": True, "grid.color": HAIR, "axes.axisbelow": True, "axes.titlecolor": INK},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "ytick.major.size": 0},
    **{"ytick.minor.size": 0, "axes.facecolor": "none", "axes.labelpad": 6},
    **{"axes.prop_cycle": f"cycler(color={list(COLOURS)})"},
}
# No dates, so that the same figure has the same bytes.
METADATA: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def render(make: "Callable[[], Figure]", suffix: str, **settings: Any) -> bytes:
    """Draw a figure; the same one gives the same bytes with the same matplotlib.

    Args:
        make: Gives the figure, once matplotlib's settings are those of all figures.
        suffix: The format: ``.png``, ``.svg`` or ``.pdf``.
        settings: More of matplotlib's settings, with ``_`` for the dot.
    """
    from matplotlib import style

    rc = STYLE | {name.replace("_", ".", 1): value for name, value in settings.items()}
    # Reset first, so that a user's own matplotlibrc changes nothing.
    with style.context([rc], after_reset=True), warnings.catch_warnings():
        # A character that the font does not have is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        data = io.BytesIO()
        make().savefig(data, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=METADATA[suffix])
    return data.getvalue()


def write_figure(path: Path, make: "Callable[[], Figure]") -> None:
    """Write a figure as `render` draws it.

    Args:
        path: The file; its ending is the format: .png, .svg or .pdf. What is there is replaced once all is drawn.
        make: As in `render`.

    Raises:
        OutputError: matplotlib is not installed, the ending is no format, or the file cannot be written.
    """
    check_file(path, FIGURE)
    save(path, render(make, path.suffix.lower()))


def panel_grid(title: str, draws: Sequence[Draw], panel: tuple[float, float], columns: int = 2) -> "Figure":
    """Return a figure of panels in rows.

    Args:
        title: What it is of, for above all of them.
        draws: What draws each panel.
        panel: The width and height of each, in inches.
        columns: Panels side by side, at most.
    """
    from matplotlib.figure import Figure

    columns = min(max(len(draws), 1), columns)
    rows = -(-len(draws) // columns) or 1
    width = columns * panel[0]
    title = textwrap.fill(printable(title), int(width * TITLE_CHARACTERS))
    figure = Figure(figsize=(width, rows * panel[1] + (title.count("\n") + 1) * TITLE_LINE), layout="constrained")
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for draw, ax in zip(draws, axes, strict=False):
        draw(ax)
    for ax in axes[len(draws) :]:
        ax.remove()
    return figure


def printable(text: str) -> str:
    """Return a text with question marks for what cannot be shown, such as control characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


def short_name(text: str) -> str:
    """Return a name for a legend or an axis; matplotlib leaves labels out of legends that begin with ``_``."""
    name = printable(text)
    name = name if len(name) <= NAME else f"{name[: NAME - 1]}…"
    return f" {name}" if name.startswith("_") else name


def add_legend(axes: "Axes", title: str = "") -> None:
    """Add the legend below the axes, where it covers nothing."""
    count = len(axes.get_legend_handles_labels()[0])
    if count > 1 or (count and title):
        axes.legend(title=title, alignment="left", loc="upper center", bbox_to_anchor=(0.5, -0.18))


def finite(values: Any) -> Floats:
    """Return values with NaN for those that are not finite."""
    values = np.asarray(values, np.float64)
    return np.where(np.isfinite(values), values, np.nan)


# Losses, of evaluate and compare


@dataclass(frozen=True)
class LossCurve:
    """Losses of one model, or of one way to read.

    Attributes:
        name: What it is called.
        losses: By position, keyed by the first one and the one behind the last; or by context, keyed by that alone.
        look: How matplotlib draws its line.
        shows_errors: Whether two standard errors are drawn on either side.
    """

    name: str
    losses: Mapping[tuple[int, ...], Estimate]
    look: Mapping[str, Any]
    shows_errors: bool = True


def losses_by_position(evaluation: Evaluation, way: str) -> dict[tuple[int, ...], Estimate]:
    """Return the losses of one way to read, keyed by the first position and the one behind the last."""
    buckets = evaluation.positions.buckets if evaluation.positions else ()
    return {(bucket.start, bucket.stop): bucket.losses[way] for bucket in buckets if way in bucket.losses}


def losses_by_context(evaluation: Evaluation, way: str) -> dict[tuple[int, ...], Estimate]:
    """Return the losses of `MODEL`, or of the original for any other way, keyed by context."""
    points = evaluation.contexts.points if evaluation.contexts else ()
    found = [(point.context, point.loss if way == MODEL else point.original) for point in points]
    return {(context,): loss for context, loss in found if loss is not None}


def draw_losses(
    axes: "Axes", curves: Sequence[LossCurve], title: str, by: str, learned: int | None, limit: float | None = None
) -> None:
    """Draw losses by position as steps, or by context as points, and where the learned length ends.

    Args:
        axes: Where.
        curves: The losses, the lowest layer first.
        title: What they show.
        by: ``position`` or ``context``.
        learned: The length that the original reads; None where it is not known.
        limit: Losses above are cut off.
    """
    is_context = by == "context"
    axes.set(title=title, xlabel=f"{by} (tokens)", ylabel="loss (nats per token)")
    axes.grid(visible=False, axis="x")
    for curve in curves:
        places = np.array([place for places in curve.losses for place in places], np.float64)
        losses = [loss for places, loss in curve.losses.items() for _ in places]
        means, errors = finite([loss.mean for loss in losses]), np.array([twice(loss.error) for loss in losses])
        look = dict(curve.look)
        if is_context:
            look = {"marker": "o", "markerfacecolor": "white", "markersize": 4} | look
        (line,) = axes.plot(places, means, label=short_name(curve.name), **look)
        if curve.shows_errors and is_context:
            axes.errorbar(places, means, errors, fmt="none", ecolor=line.get_color(), elinewidth=1, capsize=3)
        elif curve.shows_errors:
            band: dict[str, Any] = {"color": line.get_color(), "alpha": 0.15, "linewidth": 0}
            axes.fill_between(places, means - errors, means + errors, **band)
    ends = sorted({place for curve in curves for places in curve.losses for place in places})
    longest = ends[-1] if ends else 0
    if is_context:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ends, [str(place) for place in ends])
        axes.minorticks_off()
    else:
        step = 2 ** max(math.ceil(math.log2(max(longest, 1) / 8)), 0)
        axes.set_xticks(range(0, longest + 1, step))
        axes.set_xlim(0, max(longest, 1))
    if limit is not None:
        lowest = axes.get_ylim()[0]
        axes.set_ylim(min(lowest, limit - 0.1), limit)
    if learned is not None and learned <= longest:
        _mark_learned(axes, learned, f"learned: {learned:,}")


def _mark_learned(axes: "Axes", place: float, text: str = "") -> None:
    """Draw a broken line where the learned length ends, its text on the side that has room."""
    axes.axvline(place, color=SOFT, linestyle=(0, (3, 3)), linewidth=0.7)
    share, _ = (axes.transData - axes.transAxes).transform((place, axes.get_ylim()[0]))
    is_right = share > 0.6
    axes.annotate(
        text,
        (place, 1),
        (-4 if is_right else 4, -2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if is_right else "left",
        va="top",
        color=SOFT,
    )


def upper_limit(values: Iterable[float], leading: Iterable[float]) -> float | None:
    """Return where an axis ends so that hopeless values do not press all others together; None if none are cut off.

    Args:
        values: All values; those that are not finite do not count.
        leading: Those that matter: they take a third of the axis at least.
    """
    found = [value for value in values if math.isfinite(value)]
    if not found:
        return None
    chosen = [value for value in leading if math.isfinite(value)] or found
    most = max(chosen) + 2 * max(max(chosen) - min(found), 1e-9)
    return most if max(found) > most else None


# Bars, passkeys and norms, of evaluate and compare


@dataclass(frozen=True)
class Bar:
    """A bar: its name, its value with one standard error, and its look."""

    name: str
    value: float
    error: float | None
    look: Mapping[str, Any] = field(default_factory=lambda: {"color": COLOURS[0]})


def draw_bars(axes: "Axes", bars: Sequence[Bar], title: str, label: str, limit: float | None = None) -> None:
    """Draw bars from left to right, the first on top, with lines of two standard errors.

    Args:
        axes: Where.
        bars: What is drawn.
        title: What they show.
        label: What their length is, with its unit.
        limit: Values above are cut off.
    """
    axes.set(title=title, xlabel=label)
    axes.grid(visible=False, axis="y")
    for place, bar in enumerate(bars):
        if math.isfinite(bar.value):
            axes.barh(place, bar.value, 0.55, **{"alpha": 0.55} | dict(bar.look))
            if error := twice(bar.error):
                axes.errorbar(bar.value, place, xerr=error, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    axes.set_yticks(range(len(bars)), [short_name(bar.name) for bar in bars])
    axes.set_ylim(max(len(bars), 1) - 0.5, -0.5)
    axes.axvline(0, color=SOFT, linewidth=0.7)
    if limit is not None:
        axes.set_xlim(right=limit)


def draw_passkey(axes: "Axes", passkey: Passkey, label: str, learned: int | None) -> None:
    """Draw the share of numbers that were found as a heat map, in percent: lengths across, depths down.

    Args:
        axes: Where.
        passkey: What was found.
        label: What the lengths are of.
        learned: The length that the original reads; longer texts stand right of a broken line.
    """
    from matplotlib.patches import Rectangle

    axes.set(title="Passkey: numbers found again (%)", ylabel="depth in the text (%)", xlabel=label)
    axes.grid(visible=False)
    for column, shares in enumerate(passkey.found):
        for row, share in enumerate(shares):
            known = share is not None and math.isfinite(share)
            colours = {"facecolor": HEAT, "alpha": share} if known else {"facecolor": "none", "edgecolor": HAIR}
            axes.add_patch(Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, **colours))
            text = f"{100 * share:.0f}" if known and share is not None else "-"
            axes.text(column, row, text, ha="center", va="center")
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks(range(len(passkey.lengths)), [str(length) for length in passkey.lengths])
    axes.set_yticks(range(len(passkey.depths)), [f"{100 * depth:.3g}" for depth in passkey.depths])
    axes.set_xlim(-0.5, max(len(passkey.lengths), 1) - 0.5)
    axes.set_ylim(max(len(passkey.depths), 1) - 0.5, -0.5)
    within = sum(length <= learned for length in passkey.lengths) if learned is not None else 0
    if 0 < within < len(passkey.lengths):
        _mark_learned(axes, within - 0.5)


def draw_row_norms(axes: "Axes", before: Sequence[float], after: Sequence[float], colour: str, top: float) -> None:
    """Draw the norm of each row after a resize over those of the model's own rows.

    Args:
        axes: Where.
        before: Norms of the model's own rows, shape (n,).
        after: Norms of the rows of the resized table, shape (m,).
        colour: Of the rows after.
        top: Where the axis of norms ends.
    """
    axes.grid(visible=False, axis="x")
    axes.plot(np.arange(len(before)) + 0.5, finite(before), color=HAIR, linewidth=4)
    axes.plot(np.arange(len(after)) + 0.5, finite(after), color=colour, linewidth=1)
    axes.set(xlim=(0, max(len(after), 1)), ylim=(0, top))
    axes.set_xticks(list(dict.fromkeys((0, min(len(before), len(after)), len(after)))))
    axes.locator_params(axis="y", nbins=4)
    _mark_learned(axes, len(before))


# The figure of evaluate

LOOKS: dict[str, dict[str, Any]] = {
    MODEL: {"color": COLOURS[0], "linestyle": "-", "linewidth": WIDE},
    SLIDING: {"color": COLOURS[1], "linestyle": "--", "linewidth": THIN},
    TRUNCATED: {"color": COLOURS[2], "linestyle": ":", "linewidth": THIN + 0.3},
}
WAYS = {MODEL: "model", SLIDING: "original, sliding windows", TRUNCATED: "original, windows back to back"}


def plot_evaluation(evaluation: Evaluation, path: Path) -> None:
    """Write a figure of losses by position and by context, passkeys and retrieval, as far as they were measured.

    Raises:
        OutputError: As `write_figure`.
    """
    write_figure(path, lambda: evaluation_figure(evaluation))


def evaluation_figure(evaluation: Evaluation) -> "Figure":
    """Return the figure that `plot_evaluation` writes."""
    made = ""
    if evaluation.original is not None:
        made = f", made of {evaluation.original} ({evaluation.original_max_len})"
    text = f"{evaluation.documents:,} document{'s' * (evaluation.documents != 1)}, {evaluation.tokens:,} tokens"
    unfinished = "" if evaluation.complete else "; incomplete"
    what = f"{evaluation.source} ({evaluation.family}, {evaluation.kind}, {evaluation.max_len} tokens)"
    return panel_grid(f"{what}{made}; on {text}{unfinished}", list(_evaluation_panels(evaluation)), (4.6, 3.6))


def _evaluation_panels(evaluation: Evaluation) -> Iterator[Draw]:
    scored, learned = "masked tokens" if evaluation.kind == "masked" else "tokens", evaluation.original_max_len
    if evaluation.positions is not None:
        curves = [LossCurve(name, losses_by_position(evaluation, way), LOOKS[way]) for way, name in WAYS.items()]
        yield partial(
            _draw_with_legend, curves=curves, title=f"Loss of {scored} by position", by="position", learned=learned
        )
    if evaluation.contexts is not None:
        names = {MODEL: "model", SLIDING: "original"}
        curves = [LossCurve(name, losses_by_context(evaluation, way), LOOKS[way]) for way, name in names.items()]
        title = f"Loss of the same {scored} by context"
        yield partial(_draw_with_legend, curves=curves, title=title, by="context", learned=learned)
    if (passkey := evaluation.passkey) is not None:
        label = f"text (tokens)\n{passkey.how}, {passkey.trials} trials a cell, chance {100 * passkey.chance:.3g} %"
        yield partial(draw_passkey, passkey=passkey, label=label, learned=learned)
    if (found := evaluation.retrieval) is not None:
        asked = f"{found.queries} queries of {found.query_tokens} tokens, {found.documents} documents\n"
        asked += f"of {found.length} tokens; {found.pooling} pooling; lines: ± 2 standard errors"
        recalls = [Bar(name, way.recall, way.recall_error) for name, way in found.ways.items()]
        ranks = [Bar(name, way.reciprocal_rank, way.reciprocal_rank_error) for name, way in found.ways.items()]
        yield partial(draw_bars, bars=recalls, title="Retrieval: recall@1", label=asked)
        yield partial(draw_bars, bars=ranks, title="Retrieval: mean reciprocal rank", label=asked)


def _draw_with_legend(axes: "Axes", curves: Sequence[LossCurve], title: str, by: str, learned: int | None) -> None:
    draw_losses(axes, [curve for curve in curves if curve.losses], title, by, learned)
    add_legend(axes, f"{'bands' if by == 'position' else 'bars'}: ± 2 standard errors")


# The figure of train


def plot_training(log: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw the loss of each step, and the held-out loss wherever it was measured.

    Args:
        log: Of each step ``step`` and ``loss``, of each measurement ``step`` and ``eval_loss``.
        title: What was trained.
        path: The file.

    Raises:
        OutputError: As `write_figure`.
    """

    def draw(axes: "Axes") -> None:
        for key, label, colour, marker in (("loss", "trained on", 0, ""), ("eval_loss", "held out", 1, "o")):
            points = [(line["step"], line[key]) for line in log if key in line]
            if points:
                look: dict[str, Any] = {"color": COLOURS[colour], "marker": marker, "markersize": 4, "linewidth": 1.2}
                axes.plot(*zip(*points, strict=True), label=label, **look)
        axes.set(xlabel="step", ylabel="loss")
        add_legend(axes)

    write_figure(path, lambda: panel_grid(title, [draw], (6.4, 3.6)))
