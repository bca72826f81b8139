"""Matplotlib panels and figures, shared by ``--plot`` and ``--report`` of all commands."""

import importlib.util
import io
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ctxextend.checkpoint.atomic_output import (
    atomic_file,
    check_disk_space,
    os_errors_as_output_error,
)
from ctxextend.checkpoint.source import public_name
from ctxextend.errors import OutputError, install_command, printable
from ctxextend.lab.effective_result import TaskResult
from ctxextend.lab.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    DocumentScores,
    Estimate,
    Evaluation,
    TokensRead,
)
from ctxextend.report.effective_text import EFFECTIVE_TITLE, SHORT_NAMES
from ctxextend.report.numbers import NUMBERS
from ctxextend.report.phrases import TOKENS_COLUMN, short_reading_name, tokens_of_document

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = Mapping[str, Any]  # matplotlib keyword arguments of a line or bar
LossesBySpan = Mapping[tuple[int, ...], Estimate]  # by (start, stop) in positions, or by (context,)

# In inches: report panels, the column width of a paper (8.4 cm), and the height of a bar and of a
# legend entry.
PANEL_SIZE = (4.8, 2.8)
COLUMN_WIDTH = 3.3
BAR_HEIGHT = 0.23
LEGEND_LINE = 0.16
# How many times as long as the next shorter bar a broken one is, at least; see `bar_plot`.
BREAK_FACTOR = 8
# In points: between a plot and its title, and the same where the base's length is written there.
TITLE_PAD = 6.0
TITLE_PAD_ABOVE_MARK = 17.0
DPI = 300
MAX_NAME = 32  # characters of a legend or axis label

# Distinguishable with any colour vision deficiency.
COLOURS = ("#2c4387", "#e45908", "#1c9789", "#8f39e2", "#82430a")
INK = "#1b1d21"
SOFT = "#5a6069"
OTHER = "#a9afb8"
HAIR = "#dfe2e6"
HEAT = "#74a9dc"
THEME = {"ink": INK, "soft": SOFT, "other": OTHER, "hair": HAIR, "heat": HEAT, "paper": "#ffffff"}
THEME |= {f"c{number}": colour for number, colour in enumerate(COLOURS)}
# One dash pattern per colour, so that curves also differ in grayscale print; the base is dotted.
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (2, 1)),
    (0, (6, 1.4, 1.2, 1.4)),
    (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2)),
)
# Line widths: the bottom curve is wide, so that identical curves are both visible.
WIDE = 2.4
THIN = 1.1
BASE_STYLE: Style = {
    "color": INK,
    "linestyle": (0, (0.1, 2)),
    "linewidth": 2,
    "dash_capstyle": "round",
}
BAR_STYLE: Style = {"color": COLOURS[0], "alpha": 0.55}
MODES: Mapping[str, tuple[str, Style]] = {  # labels as in the tables in the terminal
    MODEL: ("model", {"color": COLOURS[0], "linestyle": "-", "linewidth": WIDE}),
    SLIDING: ("base, sliding windows", {"color": COLOURS[1], "linestyle": "--", "linewidth": THIN}),
    TRUNCATED: (
        "base, separate windows",
        {"color": COLOURS[2], "linestyle": ":", "linewidth": THIN + 0.3},
    ),
}
LENGTH_LABELS = {"context": "context length (tokens)", "position": "position"}  # of an axis
PANEL_TITLES = {"retrieval": "Document retrieval", "search": "Search"}

RC_PARAMS: dict[str, Any] = {
    "svg.hashsalt": "ctxextend",
    "pdf.fonttype": 42,  # since journals reject Type 3 fonts
    "text.parse_math": False,
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.edgecolor": SOFT,
    "axes.grid": True,
    "grid.color": HAIR,
    "axes.axisbelow": True,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "axes.facecolor": "none",
    "axes.labelpad": 6,
    "legend.handlelength": 3,
    "axes.prop_cycle": f"cycler(color={list(COLOURS)})",
}
# No dates, so that figures are reproducible byte for byte.
FIGURE_METADATA: dict[str, dict[str, Any]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


# Kinds of output files, and the libraries that they need, which are in the extra `plot`.
FIGURE = "figure"
REPORT = "report"
LIBRARIES = {FIGURE: ("matplotlib",), REPORT: ("matplotlib", "jinja2")}


def check_file(path: Path, kind: str) -> None:
    """Check that a figure or report can be written, before any work is done.

    Raises:
        OutputError: A library, the folder or disk space is missing, or the path is not a file.
    """
    missing = [name for name in LIBRARIES[kind] if not importlib.util.find_spec(name)]
    if missing:
        message = f"Writing a {kind} requires {' and '.join(missing)} (not installed)."
        raise OutputError(message, install_command("matplotlib"))
    folder = path.absolute().parent
    hint = f"Choose another path for {path.name}."
    with os_errors_as_output_error(path, hint=hint):
        if path.is_dir():
            raise OutputError(f"{path} is a folder.", hint)
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is not a regular file.", hint)
        if not folder.is_dir():
            raise OutputError(f"Folder {folder} does not exist.", "Create it first.")
        check_disk_space(folder, {})


def save(path: Path, data: bytes) -> None:
    """Write a file atomically, replacing an existing one."""
    files = {path.name: len(data)}
    with (
        os_errors_as_output_error(path, files, f"Choose another path for {path.name}."),
        atomic_file(path) as staged,
    ):
        check_disk_space(staged.parent, files)
        staged.write_bytes(data)


def render(create: "Callable[[], Figure]", suffix: str, fonttype: str = "path") -> bytes:
    """Return a figure's bytes.

    Args:
        create: Creates the figure.
        suffix: The format: .png, .svg or .pdf.
        fonttype: Matplotlib's ``svg.fonttype``.
    """
    from matplotlib import style

    # Reset first, so that the user's matplotlibrc has no effect.
    with (
        style.context([RC_PARAMS | {"svg.fonttype": fonttype}], after_reset=True),
        warnings.catch_warnings(),
    ):
        # Missing characters are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = create()
        data = io.BytesIO()
        figure.savefig(
            data,
            format=suffix.removeprefix("."),
            dpi=DPI,
            metadata=FIGURE_METADATA[suffix] | {"Title": figure.get_label()},
        )
    return data.getvalue()


def write_figure(path: Path, create: "Callable[[], Figure]") -> None:
    """Write a figure in the format of the file extension, replacing an existing file."""
    check_file(path, FIGURE)
    save(path, render(create, path.suffix.lower()))


class Plot(NamedTuple):
    """One plot of a panel."""

    title: str
    draw: Callable[["Axes"], None]
    size: tuple[float, float] = PANEL_SIZE  # in inches, in reports
    number: int | None = None  # index of the method, for plots of a single method
    is_clipped: bool = False  # whether values exceed the axis limit
    title_pad: float = TITLE_PAD  # in points


@dataclass(frozen=True)
class Panel:
    """A section of a report, with its data as a table.

    It has one or two plots, or one small plot per method.
    """

    key: str  # unique id in the report: its kind, and a number after a hyphen
    title: str
    plots: Sequence[Plot]
    # The data, header first; empty if the plots or the ranking show all numbers.
    rows: Sequence[Sequence[str]] = ()

    @property
    def is_small(self) -> bool:
        """Whether it has one small plot per method."""
        return self.plots[0].number is not None


def panel_figure(panels: Iterable[Panel], title: str) -> "Figure":
    """Return a figure of all plots except small ones.

    Each is one column of a paper wide, with at most two per row. The title goes into the file's
    metadata, since papers have captions. A single plot has no title either.
    """
    from matplotlib.figure import Figure

    plots: list[Plot] = []
    for panel in panels:
        if not panel.is_small:
            plots += panel.plots
    rows = [plots[first : first + 2] for first in range(0, len(plots), 2)] or [[]]
    heights = [max((plot.size[1] for plot in row), default=1.0) for row in rows]
    width = len(rows[0]) or 1
    figure = Figure(
        figsize=(width * COLUMN_WIDTH, sum(heights)), layout="constrained", label=printable(title)
    )
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, row in zip(parts, rows, strict=True):
        axes = part.subplots(1, width, squeeze=False).ravel()
        for plot, ax in zip(row, axes, strict=False):
            plot.draw(ax)
            if len(plots) > 1:
                ax.set_title(plot.title, loc="left", pad=plot.title_pad)
        for ax in axes[len(row) :]:
            ax.remove()
    return figure


def short_name(text: str) -> str:
    """Return a label for a legend or an axis."""
    name = printable(text)
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 1]}…"
    if name.startswith("_"):  # matplotlib hides such labels
        name = f" {name}"
    return name


def add_legend(axes: "Axes", title: str = "") -> None:
    """Add a legend below the axes."""
    count = len(axes.get_legend_handles_labels()[0])
    if count > 1 or (count and title):
        axes.legend(
            title=title,
            alignment="left",
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            borderaxespad=5,
        )


def error_bar(estimate: Estimate) -> tuple[float, float]:
    """Return how far the 95 % confidence interval reaches below and above the mean.

    Both are 0 if the interval is unknown.
    """
    if estimate.interval is None:
        return 0.0, 0.0
    lower, upper = estimate.interval
    return estimate.mean - lower, upper - estimate.mean


class LossCurve(NamedTuple):
    """The losses of one model in one reading mode."""

    name: str
    losses: LossesBySpan
    style: Style
    is_labelled: bool = True  # else drawn in the background without a label
    sets_limit: bool = True  # whether the axis must show it completely


def losses_by(by: str, evaluation: Evaluation, mode: str) -> dict[tuple[int, ...], Estimate]:
    """Return the losses of a reading mode by ``position`` or ``context``.

    By context, the base is `SLIDING`.
    """
    losses: dict[tuple[int, ...], Estimate] = {}
    if by == "position" and evaluation.positions is not None:
        for bucket in evaluation.positions.buckets:
            if mode in bucket.losses:
                losses[bucket.start, bucket.stop] = bucket.losses[mode]
    elif by == "context" and evaluation.contexts is not None:
        for point in evaluation.contexts.points:
            loss = {MODEL: point.loss, SLIDING: point.base}.get(mode)
            if loss is not None:
                losses[point.context,] = loss
    return losses


def loss_panel(
    by: str,
    kind: str,
    curves: Sequence[LossCurve],
    mark: int | None,
    *,
    has_legend: bool = False,
) -> Panel:
    """Return a panel of losses by position or context length.

    Args:
        by: ``position`` (steps) or ``context`` (points).
        kind: Of the models: ``causal`` or ``masked``.
        curves: The losses.
        mark: The base's context length, marked by a line; None if there is none.
        has_legend: Whether the plot names all curves and shows all intervals.
    """
    spans = sorted({span for curve in curves for span in curve.losses})
    longest = max((span[-1] for span in spans), default=0)
    limit = _upper_limit(curves)
    title_pad = TITLE_PAD
    if mark is not None and mark <= longest:
        title_pad = TITLE_PAD_ABOVE_MARK
    else:
        mark = None
    draw = partial(
        _draw_losses,
        by=by,
        curves=curves,
        spans=spans,
        mark=mark,
        limit=limit,
        has_legend=has_legend,
    )
    tokens = "Loss"
    if kind == "masked":
        tokens = "Loss of masked tokens"
    if by == "context":
        title = f"{tokens} by context length"
        names = [f"{span[0]:,}" for span in spans]
    else:
        title = f"{tokens} by position"
        names = [f"{start:,}\N{EN DASH}{stop - 1:,}" for start, stop in spans]
    width, height = PANEL_SIZE
    if has_legend:
        height += LEGEND_LINE * (len(curves) + 1)
    plot = Plot(
        title=title,
        draw=draw,
        size=(width, height),
        is_clipped=limit is not None,
        title_pad=title_pad,
    )
    rows = [["", *names]]
    for curve in curves:
        cells = [NUMBERS.estimate(curve.losses.get(span)) for span in spans]
        rows.append([curve.name, *cells])
    return Panel(by, title, [plot], rows)


def _draw_losses(
    axes: "Axes",
    by: str,
    curves: Sequence[LossCurve],
    spans: Sequence[tuple[int, ...]],
    mark: int | None,
    limit: float | None,
    *,
    has_legend: bool,
) -> None:
    axes.set(xlabel=LENGTH_LABELS[by], ylabel="loss (nats/token)")
    axes.grid(visible=False, axis="x")
    for number, curve in enumerate(curves):
        _draw_curve(axes, by, curve, has_band=has_legend or number == 0)
    if by == "context":
        lengths = [span[0] for span in spans]
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.minorticks_off()
    else:
        longest = max((span[-1] for span in spans), default=0)
        last = max(longest, 1)
        step = 2 ** max(math.ceil(math.log2(last / 4)), 0)
        axes.set_xticks(range(0, longest + 1, step))
        axes.set_xlim(0, last)
    if limit is not None:
        axes.set_ylim(min(axes.get_ylim()[0], limit - 0.1), limit)
    if mark is not None:
        mark_base_length(axes, mark, f"base: {mark:,}")
    if has_legend:
        add_legend(axes, "shaded: 95 % CI")


def _draw_curve(axes: "Axes", by: str, curve: LossCurve, *, has_band: bool) -> None:
    ends = np.array([end for span in curve.losses for end in span], np.float64)
    # Each end of a span has the same loss, which makes a step.
    losses = [loss for span, loss in curve.losses.items() for _ in span]
    means = np.array([loss.mean for loss in losses])
    below, above = np.array([error_bar(loss) for loss in losses]).reshape(-1, 2).T
    style = dict(curve.style)
    if by == "context":
        style |= {"marker": "o", "markerfacecolor": "white", "markersize": 4}
    if curve.is_labelled:
        style |= {"label": short_name(curve.name), "zorder": 3}
    else:
        style |= {"label": "", "zorder": 2}
    (line,) = axes.plot(ends, means, **style)
    if has_band:
        axes.fill_between(
            ends,
            means - below,
            means + above,
            color=line.get_color(),
            alpha=0.15,
            linewidth=0,
        )


def mark_base_length(axes: "Axes", x: float, text: str = "") -> None:
    """Draw a dashed line at the base's context length; its label is above, clear of curves."""
    axes.axvline(x, color=SOFT, linestyle=(0, (3, 3)), linewidth=0.7)
    share, _ = (axes.transData - axes.transAxes).transform((x, axes.get_ylim()[0]))
    alignment = "left" if share <= 0.6 else "right"
    axes.annotate(
        text,
        xy=(x, 1),
        xytext=(0, 2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha=alignment,
        va="bottom",
        color=SOFT,
    )


def _upper_limit(curves: Sequence[LossCurve]) -> float | None:
    """Return an axis limit that clips extreme losses, or None if there are none.

    The curves that set the limit fill at least a third of the axis.
    """
    finite = list[float]()
    leading = list[float]()
    for curve in curves:
        own = [loss.mean for loss in curve.losses.values() if math.isfinite(loss.mean)]
        finite += own
        if curve.sets_limit:
            leading += own
    if not finite:
        return None
    visible = leading or finite
    spread = max(max(visible) - min(finite), 1e-9)
    maximum = max(visible) + 2 * spread
    if max(finite) <= maximum:
        return None
    return maximum


class Bar(NamedTuple):
    """A bar of a bar plot."""

    name: str
    value: Estimate
    style: Style
    instead: str = ""  # the text in place of a bar without length

    @property
    def reach(self) -> float:
        """How far the bar or its error bar ends from zero, on either side; NaN if unknown."""
        below, above = error_bar(self.value)
        return max(abs(self.value.mean - below), abs(self.value.mean + above))


def bar_plot(title: str, label: str, bars: Sequence[Bar]) -> Plot:
    """Return a horizontal bar plot with 95 % error bars, the first on top.

    Bars that would make the others too short to read have a break and their number, on either side
    of zero. The axis then ends there at twice the reach of those that are drawn whole.
    """
    # Of the bars with a length, the shorter half is drawn whole. In order of length, so is each
    # next one, up to the first that is more than `BREAK_FACTOR` times as long as the one before it.
    reaches = [bar.reach for bar in bars]
    lengths = sorted(reach for reach in reaches if reach > 0 and math.isfinite(reach))
    half = (len(lengths) + 1) // 2
    pairs = pairwise(lengths[half - 1 :])
    whole = next((shorter for shorter, longer in pairs if longer > BREAK_FACTOR * shorter), None)
    return Plot(
        title=title,
        draw=partial(_draw_bars, bars=bars, label=label, whole=whole),
        size=(PANEL_SIZE[0], len(bars) * BAR_HEIGHT + 0.6),
        is_clipped=whole is not None,
    )


def _draw_bars(axes: "Axes", bars: Sequence[Bar], label: str, whole: float | None) -> None:
    axes.set_xlabel(label, loc="right")
    axes.grid(visible=False, axis="y")
    broken = dict[int, Bar]()
    ends = set[float]()
    absent = {}
    for y, bar in enumerate(bars):
        mean = bar.value.mean
        if not math.isfinite(mean):
            absent[y] = NUMBERS.number(mean, None)
        elif whole is not None and bar.reach > whole:
            end = math.copysign(2 * whole, mean)
            axes.barh(y, end, 0.55, **bar.style)
            broken[y] = bar
            ends.add(end)
        else:
            axes.barh(y, mean, 0.55, **bar.style)
            below, above = error_bar(bar.value)
            if below or above:
                axes.errorbar(
                    mean,
                    y,
                    xerr=[[below], [above]],
                    fmt="none",
                    ecolor=INK,
                    elinewidth=1,
                    capsize=2,
                )
            if mean == 0 and not bar.value.half_width:
                absent[y] = bar.instead
    axes.set_yticks(range(len(bars)), [short_name(bar.name) for bar in bars])
    axes.set_ylim(max(len(bars), 1) - 0.5, -0.5)
    axes.axvline(0, color=SOFT, linewidth=0.7)
    # The axis ends where the broken bars end, on the sides of zero that have any.
    for end in ends:
        if end < 0:
            axes.set_xlim(left=end)
        else:
            axes.set_xlim(right=end)
    for y, bar in broken.items():
        _draw_break(axes, y, bar.value)
    # What a row without a bar means is written on the side of zero that has more space.
    left, right = axes.get_xlim()
    alignment = "left"
    offset = 3  # points
    if -left > right:
        alignment = "right"
        offset = -3
    for y, text in absent.items():
        axes.annotate(
            text,
            xy=(0, y),
            xytext=(offset, 0),
            textcoords="offset points",
            ha=alignment,
            va="center_baseline",
            color=SOFT,
        )


def _draw_break(axes: "Axes", y: float, value: Estimate) -> None:
    end = 1
    inwards = -1
    alignment = "right"
    if math.copysign(1, value.mean) < 0:
        end = 0
        inwards = 1
        alignment = "left"
    marks = ((4, "/", "center"), (7, "/", "center"), (11, NUMBERS.estimate(value), alignment))
    for offset, text, horizontal in marks:
        axes.annotate(
            text,
            xy=(end, y),
            xytext=(inwards * offset, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha=horizontal,
            va="center_baseline",
            color=INK,
        )


class DocumentBars(NamedTuple):
    """The scores of documents that were read in one way."""

    label: str
    read: TokensRead
    scores: Mapping[str, Estimate]  # by name
    style: Style


def retrieval_panel(by: str, modes: Sequence[DocumentBars]) -> Panel:
    """Return a panel of the scores of ``retrieval`` or ``search`` per reading mode.

    The first two scores are drawn.
    """
    title = PANEL_TITLES[by]
    names = [*modes[0].scores]
    plots = []
    for name in names[:2]:
        bars = [Bar(mode.label, mode.scores[name], mode.style) for mode in modes]
        plots.append(bar_plot(f"{by.title()}: {name}", f"{name} (± 95 %)", bars))
    rows = [["", TOKENS_COLUMN, *names]]
    for mode in modes:
        scores = map(NUMBERS.estimate, mode.scores.values())
        rows.append([mode.label, tokens_of_document(mode.read), *scores])
    return Panel(by, title, plots, rows)


def draw_effective(axes: "Axes", task: TaskResult, base_max_len: int | None) -> None:
    """Draw the answers found in percent over context length (x) and depth (y).

    A dashed line ends the base's lengths.
    """
    from matplotlib.patches import Rectangle

    axes.set(ylabel="depth (%)", xlabel="context length (tokens)")
    axes.grid(visible=False)
    for column, result in enumerate(task.lengths):
        for row, cell in enumerate(result.cells):
            share = cell.accuracy
            corner = (column - 0.48, row - 0.48)
            axes.add_patch(Rectangle(corner, 0.96, 0.96, facecolor=HEAT, alpha=share))
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center")
    lengths = [result.length for result in task.lengths]
    starts = [cell.start for cell in task.lengths[0].cells]
    edges = [*starts, 1.0]
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_yticks(
        [index - 0.5 for index in range(len(edges))], [f"{100 * edge:.0f}" for edge in edges]
    )
    axes.set_xlim(-0.5, len(lengths) - 0.5)
    axes.set_ylim(len(starts) - 0.5, -0.5)
    if base_max_len is not None:
        within = sum(length <= base_max_len for length in lengths)
        if 0 < within < len(lengths):
            mark_base_length(axes, within - 0.5)


def evaluation_panels(evaluation: Evaluation) -> list[Panel]:
    """Return a panel for each measurement."""
    panels = [
        _effective_panel(evaluation),
        _loss_panel_of(evaluation, "position"),
        _loss_panel_of(evaluation, "context"),
        _scores_panel(evaluation, "search"),
        _scores_panel(evaluation, "retrieval"),
    ]
    return [panel for panel in panels if panel is not None]


def _loss_panel_of(evaluation: Evaluation, by: str) -> Panel | None:
    curves = []
    for mode, (name, style) in MODES.items():
        losses = losses_by(by, evaluation, mode)
        if by == "context":  # the base has one mode only
            name = name.partition(",")[0]
        if losses:
            curves.append(LossCurve(name, losses, style))
    if not curves:
        return None
    return loss_panel(by, evaluation.kind, curves, evaluation.base_max_len, has_legend=True)


def _effective_panel(evaluation: Evaluation) -> Panel | None:
    """Return a map for each task that the model is above chance in; without any, of all tasks."""
    effective = evaluation.effective
    if effective is None:
        return None
    plots = []
    for name, task in effective.tasks.items():
        if task.is_above_chance or not effective.is_above_chance:
            draw = partial(draw_effective, task=task, base_max_len=evaluation.base_max_len)
            plots.append(Plot(f"{EFFECTIVE_TITLE}: {SHORT_NAMES[name]}", draw))
    if not plots:
        return None
    return Panel("effective", f"Effective context: {EFFECTIVE_TITLE.lower()}", plots)


def _scores_panel(evaluation: Evaluation, by: Literal["search", "retrieval"]) -> Panel | None:
    measured = scores_of(evaluation, by)
    if measured is None:
        return None
    modes = []
    for mode, scores in measured.scores.items():
        read = measured.tokens_read[mode]
        modes.append(DocumentBars(short_reading_name(mode, read), read, scores, BAR_STYLE))
    panel = retrieval_panel(by, modes)
    rows = [*panel.rows]
    for mode, differences in measured.differences.items():
        name = short_reading_name(mode, measured.tokens_read[mode])
        changes = [NUMBERS.change(differences[score]) for score in measured.scores[mode]]
        rows.append([f"model minus {name}", "", *changes])
    return replace(panel, rows=rows)


def scores_of(evaluation: Evaluation, by: Literal["search", "retrieval"]) -> DocumentScores | None:
    """Return the scores in a search set, or else of document retrieval; None if not measured."""
    if by == "search":
        return evaluation.search
    return evaluation.retrieval


def evaluation_figure(evaluation: Evaluation) -> "Figure":
    """Return a figure of all measurements of `evaluate`."""
    title = f"{public_name(evaluation.source)}, {evaluation.max_len} tokens"
    return panel_figure(evaluation_panels(evaluation), title)


def training_figure(
    log: Sequence[Mapping[str, Any]], title: str, short: int | None = None
) -> "Figure":
    """Return a figure of the losses of a training log by ``step``.

    Args:
        log: Its lines.
        title: Of the figure.
        short: The number of positions that the base has.
    """
    curves = (
        ("loss", "training", ""),
        ("eval_loss", "held-out", "o"),
        ("eval_loss_short", f"held-out, positions below {short}", "v"),
        ("eval_loss_long", f"held-out, positions from {short} on", "^"),
    )

    def draw(axes: "Axes") -> None:
        for (key, label, marker), colour in zip(curves, COLOURS, strict=False):
            lines = [line for line in log if key in line]
            if lines:
                axes.plot(
                    [line["step"] for line in lines],
                    [line[key] for line in lines],
                    label=label,
                    color=colour,
                    marker=marker,
                    markersize=4,
                    linewidth=1.2,
                )
        axes.set(xlabel="step", ylabel="loss")
        add_legend(axes)

    return panel_figure([Panel("loss", "Loss", [Plot("", draw)])], title)
