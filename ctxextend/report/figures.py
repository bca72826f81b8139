"""Matplotlib panels and figures, shared by ``--plot`` and ``--report`` of all commands."""

import importlib.util
import io
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ctxextend.checkpoints.atomic_output import (
    atomic_file,
    check_disk_space,
    os_errors_as_output_error,
)
from ctxextend.errors import OutputError, install_command, printable
from ctxextend.evaluation.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    Estimate,
    Evaluation,
    Passkey,
)
from ctxextend.inspection.inspection_result import Inspection, short_names, tables_by_part
from ctxextend.inspection.table_report import TableReport
from ctxextend.report.numbers import NumberFormat
from ctxextend.tables.stats import describe_range, needs_log_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = Mapping[str, Any]  # matplotlib keyword arguments of a line or bar
Losses = Mapping[tuple[int, ...], Estimate]  # by (start, stop) in positions, or by (context,)
TableCurves = tuple[TableReport, str, Style]  # a table, its legend label and line style

# In inches: report panels, the column width of a paper (8.4 cm), and the height of a bar and of a
# legend entry.
PANEL_SIZE = (4.8, 2.8)
SQUARE_SIZE = (4.8, 3.1)
COLUMN_WIDTH = 3.3
BAR_HEIGHT = 0.23
LEGEND_LINE = 0.16
DPI = 300
NUMBERS = NumberFormat()
MAX_NAME = 32  # characters of a legend or axis label

COLOURS = (
    "#2c4387",
    "#e45908",
    "#1c9789",
    "#8f39e2",
    "#82430a",
)  # distinguishable with any colour vision deficiency
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
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
WIDE, THIN = (
    2.4,
    1.1,
)  # line widths: the bottom curve is wide, so that identical curves are both visible
BASE_STYLE: Style = {
    "color": INK,
    "linestyle": (0, (0.1, 2)),
    "linewidth": 2,
    "dash_capstyle": "round",
}
MODES: Mapping[str, tuple[str, Style]] = {  # labels as in the tables in the terminal
    MODEL: ("model", {"color": COLOURS[0], "linestyle": "-", "linewidth": WIDE}),
    SLIDING: ("base, sliding windows", {"color": COLOURS[1], "linestyle": "--", "linewidth": THIN}),
    TRUNCATED: (
        "base, separate windows",
        {"color": COLOURS[2], "linestyle": ":", "linewidth": THIN + 0.3},
    ),
}
SHIFT_TITLE, PASSKEY_TITLE = "The same text at growing positions", "Passkey retrieval accuracy (%)"
PANEL_TITLES = {"retrieval": "Document retrieval", "search": "Search"}
RETRIEVAL_LABELS = {
    "truncated": "base, truncated",
    "chunks": "base, in chunks",
    MODEL: "resized model",
}

MAX_MAP_POSITIONS, MAX_COMPONENTS = 512, 32  # of a heat map and a spectrum
MIN_SHARE = 1e-6  # of the variance, in percent: anything below is rounding error
MIN_FIT = 0.5  # minimum variance of a component explained by a sinusoid for its period to be shown
PERIODS = "periods of components 1 to 4\n(-: no sinusoidal fit; *: longer than the table)"
BAND = 0.045  # height of the band that marks new rows, as a share of the axes

RC_PARAMS: dict[str, Any] = {
    **{
        "svg.hashsalt": "ctxextend",
        "pdf.fonttype": 42,
        "text.parse_math": False,
        "font.size": 8,
        "axes.titlesize": 8,
    },
    **{
        "legend.fontsize": 7,
        "legend.title_fontsize": 7,
        "legend.frameon": False,
        "hatch.linewidth": 0.6,
    },
    **{
        "text.color": INK,
        "axes.labelcolor": SOFT,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "axes.edgecolor": SOFT,
    },
    **{"axes.grid": True, "grid.color": HAIR, "axes.axisbelow": True, "axes.titlecolor": INK},
    **{
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "ytick.major.size": 0,
    },
    **{"ytick.minor.size": 0, "axes.facecolor": "none", "axes.labelpad": 6},
    **{"legend.handlelength": 3, "axes.prop_cycle": f"cycler(color={list(COLOURS)})"},
}
# pdf.fonttype 42, since journals reject Type 3 fonts. No dates, so that figures are reproducible
# byte for byte.
METADATA: dict[str, dict[str, Any]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


@dataclass(frozen=True)
class FileKind:
    """A kind of output file, with its file extensions and required libraries."""

    name: str
    formats: tuple[str, ...]
    libraries: tuple[str, ...]  # in the extra `plot`

    def missing(self) -> list[str]:
        """Return the required libraries that are not installed."""
        return [name for name in self.libraries if not importlib.util.find_spec(name)]


FIGURE = FileKind("figure", (".png", ".svg", ".pdf"), ("matplotlib",))
REPORT = FileKind("report", (".html", ".htm"), ("matplotlib", "jinja2"))


def check_file(path: Path, kind: FileKind) -> None:
    """Raise OutputError if a figure or report cannot be written, before any work is done."""
    if missing := kind.missing():
        message = f"Writing a {kind.name} requires {' and '.join(missing)} (not installed)."
        raise OutputError(message, install_command("matplotlib"))
    folder = path.absolute().parent
    hint = f"Choose another path for {path.name}."
    with os_errors_as_output_error(path, hint=hint):
        if path.exists() and not path.is_file():
            raise OutputError(
                f"{path} is {'a folder' if path.is_dir() else 'not a regular file'}.", hint
            )
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


def public_name(reference: str) -> str:
    """Return a Hub id, or the last component of a path, so that reports and metadata contain no
    folders.
    """
    path = Path(reference.replace("\\", "/"))
    is_id = (
        reference.startswith("hf:")
        or "://" in reference
        or (len(path.parts) == 2 and not path.parent.exists())
    )
    return reference if is_id or not reference else path.absolute().name or reference


def render(create: "Callable[[], Figure]", suffix: str, fonttype: str = "path") -> bytes:
    """Return a figure's bytes in a format (.png, .svg or .pdf); `fonttype` is matplotlib's
    ``svg.fonttype``.
    """
    from matplotlib import style

    # Reset first, so that the user's matplotlibrc has no effect.
    with (
        style.context([RC_PARAMS | {"svg.fonttype": fonttype}], after_reset=True),
        warnings.catch_warnings(),
    ):
        # Missing characters are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        data, figure = io.BytesIO(), create()
        figure.savefig(
            data,
            format=suffix[1:],
            dpi=DPI,
            metadata=METADATA[suffix] | {"Title": figure.get_label()},
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


@dataclass(frozen=True)
class Panel:
    """A section of a report: one or two plots, or one small plot per method, and their data as a
    table.
    """

    key: str  # unique id in the report: its kind, and a number after a hyphen
    title: str
    plots: Sequence[Plot]
    rows: Sequence[
        Sequence[str]
    ] = ()  # the data, header first; empty if the plots or the ranking show all numbers

    @property
    def is_small(self) -> bool:
        """Whether it has one small plot per method."""
        return self.plots[0].number is not None


def panel_figure(panels: Iterable[Panel], title: str) -> "Figure":
    """Return a figure of all plots except small ones, each one column of a paper wide, at most two
    per row.
    """
    # The title goes into the file's metadata, since papers have captions. A single plot has no
    # title either.
    from matplotlib.figure import Figure

    plots = [plot for panel in panels if not panel.is_small for plot in panel.plots]
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
                ax.set_title(plot.title, loc="left")
        for ax in axes[len(row) :]:
            ax.remove()
    return figure


def short_name(text: str) -> str:
    """Return a label for a legend or an axis; the space before ``_`` keeps matplotlib from hiding
    the label.
    """
    name = printable(text)
    name = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
    return f" {name}" if name.startswith("_") else name


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
    """Return how far the 95 % confidence interval reaches below and above the mean; 0 and 0 if
    unknown.
    """
    if estimate.interval is None:
        return 0.0, 0.0
    lower, upper = estimate.interval
    return estimate.mean - lower, upper - estimate.mean


class LossCurve(NamedTuple):
    """Losses of one model in one reading mode."""

    name: str
    losses: Losses
    style: Style
    is_labelled: bool = True  # else drawn in the background without a label
    sets_limit: bool = True  # whether the axis must show it completely


def losses_by(by: str, evaluation: Evaluation, mode: str) -> dict[tuple[int, ...], Estimate]:
    """Return the losses of a reading mode by ``position`` or ``context``; by context, the base is
    `SLIDING`.
    """
    if by == "position":
        measured = evaluation.positions or evaluation.held_out_rows
        buckets = measured.buckets if measured else ()
        return {
            (bucket.start, bucket.stop): bucket.losses[mode]
            for bucket in buckets
            if mode in bucket.losses
        }
    points = evaluation.contexts.points if evaluation.contexts else ()
    losses = [
        (point.context, {MODEL: point.loss, SLIDING: point.base}.get(mode)) for point in points
    ]
    return {(context,): loss for context, loss in losses if loss is not None}


def loss_panel(
    by: str,
    kind: str,
    curves: Sequence[LossCurve],
    mark: int | None,
    name: str = "base",
    *,
    has_legend: bool = False,
) -> Panel:
    """Return a panel of losses by ``position`` (steps) or by ``context`` length (points), for a
    `kind` of models.
    """
    all_means = [
        (loss.mean, curve.sets_limit) for curve in curves for loss in curve.losses.values()
    ]
    limit = upper_limit(
        [mean for mean, _ in all_means], [mean for mean, sets_limit in all_means if sets_limit]
    )
    spans = sorted({span for curve in curves for span in curve.losses})
    longest = max((span[-1] for span in spans), default=0)

    def draw(axes: "Axes") -> None:
        axes.set(
            xlabel="context length (tokens)" if by == "context" else "position",
            ylabel="loss (nats/token)",
        )
        axes.grid(visible=False, axis="x")
        markers: Style = (
            {"marker": "o", "markerfacecolor": "white", "markersize": 4} if by == "context" else {}
        )
        for number, (label, losses, style, is_labelled, _) in enumerate(curves):
            ends = np.array([end for span in losses for end in span], np.float64)
            values = [loss for span, loss in losses.items() for _ in span]
            means = np.array([loss.mean for loss in values])
            below, above = np.array([error_bar(loss) for loss in values]).reshape(-1, 2).T
            text = short_name(label) * is_labelled
            (line,) = axes.plot(ends, means, label=text, zorder=2 + is_labelled, **markers, **style)
            if has_legend or number == 0:
                band: dict[str, Any] = {"color": line.get_color(), "alpha": 0.15, "linewidth": 0}
                axes.fill_between(ends, means - below, means + above, **band)
        if by == "context":
            axes.set_xscale("log", base=2)
            axes.set_xticks([span[0] for span in spans], [str(span[0]) for span in spans])
            axes.minorticks_off()
        else:
            axes.set_xticks(
                range(0, longest + 1, 2 ** max(math.ceil(math.log2(max(longest, 1) / 4)), 0))
            )
            axes.set_xlim(0, max(longest, 1))
        if limit is not None:
            axes.set_ylim(min(axes.get_ylim()[0], limit - 0.1), limit)
        if mark is not None and mark <= longest:
            _mark_base_length(axes, mark, f"{name}: {mark:,}")
        if has_legend:
            add_legend(axes, "shaded: 95 % CI")

    title = f"Loss{' of masked tokens' * (kind == 'masked')} by {by}{' length' * (by == 'context')}"
    height = PANEL_SIZE[1] + has_legend * LEGEND_LINE * (len(curves) + 1)
    plot = Plot(title, draw, (PANEL_SIZE[0], height), is_clipped=limit is not None)
    labels = [(span[0], span[-1] - 1) if by == "position" else span for span in spans]
    head = ["", *("\N{EN DASH}".join(f"{end:,}" for end in label) for label in labels)]
    cells = [
        [curve.name, *(NUMBERS.estimate(curve.losses.get(span)) for span in spans)]
        for curve in curves
    ]
    return Panel(by, title, [plot], [head, *cells])


def _mark_base_length(axes: "Axes", x: float, text: str = "") -> None:
    """Draw a dashed line at the base's context length, its label on the side with more space."""
    axes.axvline(x, color=SOFT, linestyle=(0, (3, 3)), linewidth=0.7)
    share, _ = (axes.transData - axes.transAxes).transform((x, axes.get_ylim()[0]))
    side, offset = ("right", -4) if share > 0.6 else ("left", 4)
    coordinates: dict[str, Any] = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
    }
    axes.annotate(text, (x, 1), (offset, -2), **coordinates, ha=side, va="top", color=SOFT)


def upper_limit(values: Iterable[float], leading: Iterable[float]) -> float | None:
    """Return an axis limit that clips extreme values, or None; leading values fill at least a third
    of the axis.
    """
    finite = [value for value in values if math.isfinite(value)]
    visible = [value for value in leading if math.isfinite(value)] or finite
    if not finite:
        return None
    maximum = max(visible) + 2 * max(max(visible) - min(finite), 1e-9)
    return maximum if max(finite) > maximum else None


def bar_plot(title: str, label: str, bars: Sequence[tuple[str, Estimate, Style]]) -> Plot:
    """Return a horizontal bar plot with 95 % error bars, the first on top; extreme bars in the last
    quarter are cut.
    """
    ends = list[float]()
    for _, value, _ in bars:
        below, above = error_bar(value)
        ends += (value.mean - below, value.mean + above)
    limit = upper_limit([0.0, *ends], [0.0, *ends[: 2 * (len(bars) - len(bars) // 4)]])

    def draw(axes: "Axes") -> None:
        axes.set_xlabel(label, loc="right")
        axes.grid(visible=False, axis="y")
        for y, (_, value, style) in enumerate(bars):
            if math.isfinite(value.mean):
                axes.barh(y, value.mean, 0.55, **style)
                below, above = error_bar(value)
                if below or above:
                    error = [[below], [above]]
                    axes.errorbar(
                        value.mean, y, xerr=error, fmt="none", ecolor=INK, elinewidth=1, capsize=2
                    )
        axes.set_yticks(range(len(bars)), [short_name(name) for name, _, _ in bars])
        axes.set_ylim(max(len(bars), 1) - 0.5, -0.5)
        axes.axvline(0, color=SOFT, linewidth=0.7)
        if limit is not None:
            axes.set_xlim(right=limit)

    return Plot(
        title, draw, (PANEL_SIZE[0], len(bars) * BAR_HEIGHT + 0.6), is_clipped=limit is not None
    )


def retrieval_panel(by: str, modes: Sequence[tuple[str, Mapping[str, Estimate], Style]]) -> Panel:
    """Return a panel of the scores of ``retrieval`` or ``search`` per reading mode; the first two
    are drawn.
    """
    title = PANEL_TITLES[by]
    names = [*modes[0][1]]
    plots = []
    for name in names[:2]:
        bars = [(label, scores[name], style) for label, scores, style in modes]
        plots.append(bar_plot(f"{by.title()}: {name}", f"{name} (± 95 %)", bars))
    rows = [[label, *map(NUMBERS.estimate, scores.values())] for label, scores, _ in modes]
    return Panel(by, title, plots, [["", *names], *rows])


def draw_passkey(axes: "Axes", passkey: Passkey, base_max_len: int | None) -> None:
    """Draw passkey accuracy in percent over context length (x) and depth (y); a dashed line ends
    the base's lengths.
    """
    from matplotlib.patches import Rectangle

    axes.set(ylabel="depth (%)", xlabel="context length (tokens)")
    axes.grid(visible=False)
    for column, shares in enumerate(passkey.accuracy):
        for row, share in enumerate(shares):
            text = "-"
            colours = dict[str, Any](facecolor="none", edgecolor=HAIR)
            if share is not None and math.isfinite(share):
                text = f"{100 * share:.0f}"
                colours = {"facecolor": HEAT, "alpha": share}
            axes.add_patch(Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, **colours))
            axes.text(column, row, text, ha="center", va="center")
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks(range(len(passkey.lengths)), [str(length) for length in passkey.lengths])
    axes.set_yticks(range(len(passkey.depths)), [f"{100 * depth:.3g}" for depth in passkey.depths])
    axes.set_xlim(-0.5, max(len(passkey.lengths), 1) - 0.5)
    axes.set_ylim(max(len(passkey.depths), 1) - 0.5, -0.5)
    within = (
        sum(length <= base_max_len for length in passkey.lengths) if base_max_len is not None else 0
    )
    if 0 < within < len(passkey.lengths):
        _mark_base_length(axes, within - 0.5)


def evaluation_panels(evaluation: Evaluation) -> list[Panel]:
    """Return panels of the measured losses by position and context length, passkey accuracy and
    retrieval.
    """
    base_max_len = evaluation.base_max_len
    panels = list[Panel]()
    for by in ("position", "context"):
        candidates = [
            LossCurve(name, losses_by(by, evaluation, mode), style)
            for mode, (name, style) in MODES.items()
        ]
        if by == "context":
            candidates = [curve._replace(name=curve.name.partition(",")[0]) for curve in candidates]
        if curves := [curve for curve in candidates if curve.losses]:
            panels.append(loss_panel(by, evaluation.kind, curves, base_max_len, has_legend=True))
    if (passkey := evaluation.passkey) is not None and passkey.is_above_chance:
        plot = Plot(
            PASSKEY_TITLE, partial(draw_passkey, passkey=passkey, base_max_len=base_max_len)
        )
        panels.append(Panel("passkey", PASSKEY_TITLE, [plot]))
    style: Style = {"color": COLOURS[0], "alpha": 0.55}
    for by, found in (("search", evaluation.search), ("retrieval", evaluation.retrieval)):
        if found is not None:
            modes = [
                (RETRIEVAL_LABELS[mode], scores, style) for mode, scores in found.scores.items()
            ]
            panels.append(retrieval_panel(by, modes))
    if (shift := evaluation.shift) is not None:
        bars = [
            (describe_range(one.start, one.start + shift.size), one.effect, style)
            for one in shift.points
        ]
        label = "cosine" if shift.points[0].loss is None else "nats/token"
        panels.append(
            Panel(
                "shift",
                SHIFT_TITLE,
                [bar_plot(SHIFT_TITLE, f"{label} vs. position 0 (± 95 %)", bars)],
            )
        )
    return panels


def evaluation_figure(evaluation: Evaluation) -> "Figure":
    """Return a figure of all measurements of `evaluate`."""
    title = (
        f"{public_name(evaluation.source)}, {evaluation.max_len} "
        f"tokens{'; incomplete' * (not evaluation.complete)}"
    )
    return panel_figure(evaluation_panels(evaluation), title)


def training_figure(
    log: Sequence[Mapping[str, Any]], title: str, short: int | None = None
) -> "Figure":
    """Return a figure of the losses of a training log by ``step``; `short`: the positions that the
    base has.
    """
    curves = [("loss", "training", 0, ""), ("eval_loss", "held-out", 1, "o")]
    curves += [("eval_loss_short", f"held-out, positions below {short}", 2, "v")]
    curves += [("eval_loss_long", f"held-out, positions from {short} on", 3, "^")]

    def draw(axes: "Axes") -> None:
        for key, label, colour, marker in curves:
            points = [(line["step"], line[key]) for line in log if key in line]
            if points:
                style: dict[str, Any] = {
                    "color": COLOURS[colour],
                    "marker": marker,
                    "markersize": 4,
                    "linewidth": 1.2,
                }
                axes.plot(*zip(*points, strict=True), label=label, **style)
        axes.set(xlabel="step", ylabel="loss")
        add_legend(axes)

    return panel_figure([Panel("loss", "Loss", [Plot("", draw)])], title)


def inspection_panels(inspections: Sequence[Inspection]) -> list[Panel]:
    """Return the panels of every table; tables of the same part share plots, except for pairwise
    cosines.
    """
    groups, panels = tables_by_part(inspections), list[Panel]()
    names = {key: public_name(name) for key, name in short_names(inspections).items()}
    if len(set(names.values())) < len(names):  # models of the same name in different folders
        names = {key: f"{name} ({number})" for number, (key, name) in enumerate(names.items(), 1)}
    for group in groups:
        tables = list[TableCurves]()
        part = f" ({group[0][1].part})" * (len(groups) > 1)
        for number, (inspection, table) in enumerate(group):
            style = {
                "color": COLOURS[number % len(COLOURS)],
                "marker": MARKERS[number % len(MARKERS)],
                "markersize": 4,
            }
            style |= {
                "markerfacecolor": "white",
                "linewidth": WIDE if number == 0 and len(group) > 1 else THIN,
            }
            tables.append((table, short_name(names[id(inspection)]), style))
        height = PANEL_SIZE[1] + LEGEND_LINE * 3 * len(tables)
        for key, title, draw in (
            ("norms", "Row norm by position", partial(_draw_by_position, statistic="norms")),
            (
                "cosines",
                "Cosine similarity to the next position",
                partial(_draw_by_position, statistic="cosines"),
            ),
            ("spectrum", "Spectrum", _draw_spectra),
        ):
            plot = Plot(f"{title}{part}", partial(draw, tables=tables), (PANEL_SIZE[0], height))
            panels.append(Panel(f"{key}-{len(panels)}", plot.title, [plot]))
        title = f"Cosine similarity between positions{part}"
        titles = [f"{name}{part}" if len(names) > 1 else title for _, name, _ in tables]
        draws = [partial(_draw_cosine_map, table=table) for table, *_ in tables]
        maps = [Plot(title, draw, SQUARE_SIZE) for title, draw in zip(titles, draws, strict=True)]
        panels.append(Panel(f"map-{len(panels)}", title, maps))
    return panels


def tables_figure(inspections: Sequence[Inspection]) -> "Figure":
    """Return a figure of all tables of `inspect`."""
    return panel_figure(
        inspection_panels(inspections), ", ".join(public_name(item.source) for item in inspections)
    )


def _draw_by_position(
    axes: "Axes", tables: Sequence[TableCurves], statistic: Literal["norms", "cosines"]
) -> None:
    """Draw values by position, reserved rows at negative ones; mark outliers, new, zero and
    non-finite rows.
    """
    outliers = list[tuple[int, float]]()
    bands = 0
    for number, (table, name, style) in enumerate(tables):
        first = table.reserved_rows
        values = getattr(table.stats, statistic)
        colour = {"color": style["color"]}
        if statistic == "norms" and first:
            stars: dict[str, Any] = {
                "label": f"reserved rows of {name}",
                "linestyle": "",
                "marker": "*",
                **colour,
            }
            axes.plot(range(-first, 0), table.norms[:first], **stars)
        every = max(len(values) // 8, 1)
        axes.plot(values, label=name, markevery=(every * (number % 4) // 4, every), **style)
        outliers += [
            (position, values[position]) for position in table.outliers if position < len(values)
        ]
        for start, stop in table.new_rows or ():  # a hatched band along the bottom
            band: dict[str, Any] = {
                "facecolor": "none",
                "edgecolor": style["color"],
                "hatch": "/////",
            }
            band |= {
                "ymin": BAND * bands,
                "ymax": BAND * (bands + 0.8),
                "label": f"new rows of {name}",
            }
            axes.axvspan(start - first - 0.5, stop - first - 0.5, **band)
        bands += bool(table.new_rows)
        if invalid := sorted({*table.stats.zeros, *table.stats.nonfinite}):  # crosses along the top
            cross: dict[str, Any] = {"linestyle": "", "marker": "x", "clip_on": False, **colour}
            cross |= {
                "transform": axes.get_xaxis_transform(),
                "label": f"zero or non-finite rows of {name}",
            }
            axes.plot(invalid, [1.0] * len(invalid), **cross)
    if outliers:
        ring: dict[str, Any] = {"markersize": 8, "markerfacecolor": "none", "markeredgewidth": 0.7}
        axes.plot(*zip(*outliers, strict=True), "o", color=INK, label="outliers", **ring)
    axes.set(
        xlabel="position", ylabel="Euclidean norm" if statistic == "norms" else "cosine similarity"
    )
    axes.margins(y=0.05 + BAND * bands)
    if (ends := axes.get_ylim())[1] - ends[0] < 1e-5 * ends[1]:  # do not magnify rounding
        axes.set_ylim(0.95 * ends[0], 1.05 * ends[1])
    add_legend(axes)
    if statistic == "norms":
        reserved_norms = np.concatenate(
            [table.norms[: table.reserved_rows] for table, _, _ in tables]
        )
        if needs_log_scale(
            reserved_norms, np.concatenate([table.stats.norms for table, _, _ in tables])
        ):
            _set_log_scale(axes)
            axes.set_ylabel("Euclidean norm (logarithmic)")


def _set_log_scale(axes: "Axes") -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_spectra(axes: "Axes", tables: Sequence[TableCurves]) -> None:
    """Draw the variance explained by the leading principal components; the legend lists their
    periods.
    """
    axes.set(xlabel="principal component", ylabel="explained variance (%)")
    lowest = 10.0
    for table, name, style in tables:
        stats = table.stats
        shares = 100 * stats.eigenvalues[:MAX_COMPONENTS] / (stats.eigenvalues.sum() or 1)
        shares = shares[shares > MIN_SHARE]
        lowest = min([lowest, *(shares / 2)])
        periods = ", ".join(
            f"{component.period:.0f}{'*' * (component.period > len(stats.norms))}"
            if component.fit >= MIN_FIT
            else "-"
            for component in stats.components
        )
        axes.plot(range(1, len(shares) + 1), shares, label=f"{name}: {periods}", **style)
    axes.set_ylim(lowest, 100)
    axes.locator_params(axis="x", integer=True)
    _set_log_scale(axes)
    add_legend(axes, PERIODS)


def _draw_cosine_map(axes: "Axes", table: TableReport) -> None:
    """Draw pairwise cosines of a table's positions as a heat map; long tables are sampled
    evenly.
    """
    values = table.values[table.reserved_rows :]
    # A power of two, so that it divides common table lengths and repeated tables stay visible.
    step = 2 ** max(math.ceil(math.log2(len(values) / MAX_MAP_POSITIONS)), 0)
    rows = values[::step].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.linalg.norm(rows, axis=1)
        unit = rows / np.where(np.isfinite(norms) & (norms > 0), norms, np.nan)[:, None]
        cosines = np.clip(unit @ unit.T, -1, 1)
    low, high = -step / 2, len(cosines) * step - step / 2  # centres each cell on its position
    axes.imshow(
        cosines,
        cmap="cividis",
        vmin=-1,
        vmax=1,
        extent=(low, high, high, low),
        interpolation="nearest",
    )
    label = "position" if step == 1 else f"position (1 in {step} shown)"
    axes.set(xlabel=label, ylabel=label)
    axes.grid(visible=False)
    axes.figure.colorbar(
        axes.images[0], cax=axes.inset_axes((1.04, 0, 0.04, 1)), label="cosine similarity"
    )
    axes.patch.set(
        facecolor="white", hatch="xxxx"
    )  # cells without a cosine are transparent and show the hatching
