"""Figures of all commands, drawn by matplotlib, and the files that they are written to."""

import importlib.util
import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.atomic_output import (
    atomic_file,
    check_disk_space,
    os_errors_as_output_error,
)
from ctxextend.errors import OutputError, install_command, printable
from ctxextend.lab.effective_length import FOUND, THRESHOLD
from ctxextend.lab.numbers import score_text, shown_values
from ctxextend.lab.scores import NATS, Score, curves, select
from ctxextend.lab.verdict import quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

    from ctxextend.lab.evaluation import Evaluation, ModelFacts

# In inches: the column of a paper, a plot without its legend, and a line of a legend.
WIDTH = 3.4
HEIGHT = 2.3
BAR_HEIGHT = 0.36
LEGEND_LINE = 0.16
MAX_NAME = 48  # characters of a legend or axis label
MAX_PARTS = 8  # of a curve over positions
MAX_BANDS = 2  # more bands of intervals would hide each other
WIDE_RANGE = 8  # ratio of perplexities from which on an axis is logarithmic
LARGEST = 1e100  # perplexity that is drawn; on a logarithmic axis, more would leave floats
EFFECTIVE = "effective"  # a measure, by task

# Distinguishable with any colour vision deficiency, and by dashes in grayscale print.
COLOURS = ("#2c4387", "#e45908", "#1c9789", "#8f39e2", "#82430a")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (2, 1)),
    (0, (6, 1.4, 1.2, 1.4)),
    (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2)),
)
INK = "#1b1d21"
SOFT = "#5a6069"
RC_PARAMS: dict[str, Any] = {
    "svg.hashsalt": "ctxextend",
    "pdf.fonttype": 42,  # since journals reject Type 3 fonts
    "text.parse_math": False,
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 3,
    "hatch.linewidth": 0.6,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.edgecolor": SOFT,
    "axes.grid": True,
    "grid.color": "#dfe2e6",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}
# No dates, so that figures are reproducible byte for byte.
FIGURE_METADATA: dict[str, dict[str, Any]] = {
    ".png": {},
    ".svg": {"Date": None, "Type": None, "Creator": None},
    ".pdf": {"CreationDate": None},
}

# Kinds of output files, and the libraries that they need, which are in the extra `plot`.
FIGURE = "figure"
REPORT = "report"
LIBRARIES = {FIGURE: ("matplotlib",), REPORT: ("matplotlib", "jinja2")}


# Files


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
            dpi=300,
            metadata=FIGURE_METADATA[suffix] | {"Title": figure.get_label()},
        )
    return data.getvalue()


def write_figure(path: Path, create: "Callable[[], Figure]") -> None:
    """Write a figure in the format of the file extension, replacing an existing file."""
    check_file(path, FIGURE)
    save(path, render(create, path.suffix.lower()))


# Plots


@dataclass(frozen=True)
class Plot:
    """One plot of a figure or page."""

    title: str
    draw: "Callable[[Axes], None]"
    height: float = HEIGHT  # in inches, without a legend


def plots_figure(plots: Sequence[Plot], title: str) -> "Figure":
    """Return a figure of plots, at most two per row, each with its legend below.

    Each is one column of a paper wide. The title goes into the file's metadata, since papers have
    captions. A single plot has no title either.
    """
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

    columns = min(len(plots), 2)
    heights = [0.0] * math.ceil(len(plots) / columns)
    figure = Figure(layout="constrained", label=printable(title))
    grid = GridSpec(len(heights), columns, figure)
    for number, plot in enumerate(plots):
        row, column = divmod(number, columns)
        part = figure.add_subfigure(grid[row, column])
        axes = part.subplots()
        plot.draw(axes)
        if len(plots) > 1:
            axes.set_title(plot.title, loc="left")
        height = plot.height
        _, labels = axes.get_legend_handles_labels()
        if len(labels) > 1:
            part.legend(loc="outside lower center")
            height += LEGEND_LINE * len(labels) + 0.1
        heights[row] = max(heights[row], height)
    grid.set_height_ratios(heights)
    figure.set_size_inches(columns * WIDTH, sum(heights))
    return figure


def curve_style(number: int) -> dict[str, Any]:
    """Return the colour and the dashes of a curve by its number from 0."""
    colour = number % len(COLOURS)
    return {
        "color": COLOURS[colour],
        "linestyle": DASHES[(number + number // len(COLOURS)) % len(DASHES)],
        "linewidth": 1.3,
    }


def short_name(text: str) -> str:
    """Return a label for a legend or an axis."""
    name = printable(text)
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 1]}…"
    if name.startswith("_"):  # matplotlib hides such labels
        name = f" {name}"
    return name


def set_log_scale(axis: "XAxis | YAxis") -> None:
    """Make an axis logarithmic; a vertical one also has numbers between powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    if axis.axis_name == "y":
        axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())


# Scores


def evaluation_figure(evaluation: "Evaluation") -> "Figure":
    """Return a figure of all measures of `evaluate`."""
    title = f"{', '.join(evaluation.names)}, {evaluation.length} tokens"
    return plots_figure(evaluation_plots(evaluation), title)


def evaluation_plots(evaluation: "Evaluation") -> list[Plot]:
    """Return the plots of all measures."""
    plots = list[Plot]()
    for scores in by_measure(evaluation).values():
        plots += measure_plots(scores, evaluation.base)
    return plots


def by_measure(evaluation: "Evaluation") -> dict[str, list[Score]]:
    """Return the scores of each measure: those of the best model first, of the base last."""
    measures = dict[str, list[Score]]()
    for score in evaluation.ranked_scores:
        measures.setdefault(score.measure, []).append(score)
    return measures


def measure_title(measure: str) -> str:
    """Return the title of a measure."""
    module = import_module(f"ctxextend.lab.measures.{measure}")
    return str(getattr(module, measure).title)


def score_curves(scores: Sequence[Score]) -> dict[str, list[Score]]:
    """Return the curves of a measure by their label: over parts of texts, or over lengths.

    They are of its first score; of the effective context, of each task. Empty if all curves would
    be points.
    """
    by_label = dict[str, list[Score]]()
    if scores[0].measure == EFFECTIVE:
        for score in select(scores, part=None):
            if score.name != FOUND:
                by_label.setdefault(f"{score.label}, {score.name}", []).append(score)
        return by_label
    by_label = curves(select(scores, name=scores[0].name), MAX_PARTS)
    if all(len(own) == 1 for own in by_label.values()):
        return {}
    return by_label


def measure_plots(scores: Sequence[Score], base: "ModelFacts | None") -> list[Plot]:
    """Return bars of the first score of a measure, and its curves.

    Args:
        scores: All of a measure.
        base: The base, whose context length is marked.
    """
    title = measure_title(scores[0].measure)
    by_label = score_curves(scores)
    bars = [*select(scores, name=scores[0].name, part=None)]
    plots = []
    if not by_label or any(own[0].part is not None for own in by_label.values()):
        height = BAR_HEIGHT * len(bars) + 0.6
        plots.append(
            Plot(f"{title}: {quantity(bars[0])}", partial(_draw_bars, scores=bars), height)
        )
    if by_label:
        mark = base.max_len if base is not None else None
        plots.append(Plot(title, partial(_draw_curves, by_label=by_label, mark=mark)))
    return plots


def _draw_bars(axes: "Axes", scores: Sequence[Score]) -> None:
    """Draw a bar per score, the first on top, with its name above and its number at the side."""
    side = axes.get_yaxis_transform()  # shares of the width, and the data's heights
    for number, score in enumerate(scores):
        mean, low, high = _drawn_values(score)
        axes.barh(number, mean, 0.3, color=COLOURS[number % len(COLOURS)], alpha=0.6)
        axes.hlines(number, low, high, color=INK, linewidth=1)
        name = short_name(score.label)
        axes.text(0, number - 0.2, name, transform=side, va="bottom", in_layout=False)
        axes.text(1.02, number, score_text(score), transform=side, va="center_baseline")
    axes.set(ylim=(len(scores) - 0.6, -0.8), yticks=[])
    axes.grid(visible=False, axis="y")
    _set_quantity(axes.xaxis, scores)


def _draw_curves(axes: "Axes", by_label: Mapping[str, Sequence[Score]], mark: int | None) -> None:
    """Draw curves: steps over parts, or points over lengths."""
    scores = [score for own in by_label.values() for score in own]
    has_parts = scores[0].part is not None
    last = max((score.part or (0, score.length))[1] for score in scores)
    for number, (label, own) in enumerate(by_label.items()):
        places = []
        values = []
        for score in own:
            for place in score.part or (score.length,):
                places.append(place)
                values.append(_drawn_values(score))
        means, lows, highs = np.array(values).T
        style = curve_style(number)
        axes.plot(places, means, marker="" if has_parts else ".", label=short_name(label), **style)
        if len(by_label) <= MAX_BANDS:
            name = "95 % interval" if number == 0 else ""
            colour = style["color"]
            axes.fill_between(places, lows, highs, color=colour, alpha=0.15, lw=0, label=name)
    _set_quantity(axes.yaxis, scores)
    if has_parts:
        axes.set(xlabel="position", xlim=(0, last))
        axes.set_xticks(np.arange(0, last + 1, 2 ** max(math.ceil(math.log2(last / 4)), 0)))
    else:
        axes.set_xscale("log", base=2)
        axes.set_xlabel("context length (tokens)")
        axes.xaxis.set_major_formatter("{x:,.0f}")
    if mark is not None and mark < last:
        name = f"length of the base: {mark:,}"
        axes.axvline(mark, color=SOFT, linestyle=":", linewidth=1, label=name)
    if scores[0].measure == EFFECTIVE:
        name = f"threshold: {100 * THRESHOLD:.0f} %"
        axes.axhline(100 * THRESHOLD, color=INK, linewidth=0.7, label=name)
        axes.set_ylim(-5, 105)


def _drawn_values(score: Score) -> NDArray[np.float64]:
    return np.minimum(shown_values(score), LARGEST)


def _set_quantity(axis: "XAxis | YAxis", scores: Sequence[Score]) -> None:
    """Name the quantity of an axis; perplexities that differ much make it logarithmic."""
    if scores[0].unit != NATS:
        axis.set_label_text(f"{quantity(scores[0])} (%)")
        return
    axis.set_label_text(quantity(scores[0]))
    means = np.array([_drawn_values(score)[0] for score in scores])
    if np.nanmax(means, initial=0) > WIDE_RANGE * np.nanmin(means, initial=LARGEST):
        set_log_scale(axis)
