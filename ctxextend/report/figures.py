"""Figures, drawn by matplotlib: each panel once, for ``--plot`` and ``--report`` of every command."""

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
from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_file, check_disk_space, os_errors_as_output_error
from ctxextend.errors import OutputError, printable
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, TRUNCATED, Estimate, Evaluation, Passkey, Recall
from ctxextend.inspection.table_report import Inspection, TableReport, short_names, tables_by_part
from ctxextend.report.numbers import NumberFormat
from ctxextend.tables.stats import needs_log_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Look = Mapping[str, Any]  # of a line or a bar, in matplotlib's terms
Losses = Mapping[tuple[int, ...], Estimate]  # by first position and the one behind the last, or by (context,)
Bar = tuple[str, Estimate, Look]
TableCurves = tuple[TableReport, str, Look]  # a table, its name in legends, and how its curves look

# In inches: a panel of a page, the width of a column of a paper (8.4 cm), and the room of a bar and of a legend's line.
LARGE, SQUARE, COLUMN, BAR, LEGEND_LINE = (4.8, 2.8), (4.8, 3.1), 3.3, 0.23, 0.16
DOTS_PER_INCH = 300
NUMBERS = NumberFormat()
NAME = 32  # characters of a name in a legend or beside a bar

# Told apart by every kind of colour vision, as are those of the page in dark mode.
COLOURS = ("#2c4387", "#e45908", "#1c9789", "#8f39e2", "#82430a")
INK, SOFT, OTHER, HAIR, HEAT = "#1b1d21", "#5a6069", "#a9afb8", "#dfe2e6", "#74a9dc"
THEME = {"ink": INK, "soft": SOFT, "other": OTHER, "hair": HAIR, "heat": HEAT, "paper": "#ffffff"} | {
    f"c{number}": colour for number, colour in enumerate(COLOURS)
}
# A dash for each colour, so that curves differ in print too; the base has dots.
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (2, 1)), (0, (6, 1.4, 1.2, 1.4)), (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
WIDE, THIN = 2.4, 1.1  # lines: those below are wide, so that curves that are equal over a stretch are both seen
# Where methods are compared, the base has dots, and no method's colour.
BASE_LOOK: Look = {"color": INK, "linestyle": (0, (0.1, 2)), "linewidth": 2, "dash_capstyle": "round"}
MODES: Mapping[str, tuple[str, Look]] = {
    MODEL: ("model", {"color": COLOURS[0], "linestyle": "-", "linewidth": WIDE}),
    SLIDING: ("base, sliding windows", {"color": COLOURS[1], "linestyle": "--", "linewidth": THIN}),
    TRUNCATED: ("base, separate windows", {"color": COLOURS[2], "linestyle": ":", "linewidth": THIN + 0.3}),
}

MAP_POSITIONS, SPECTRUM = 512, 32  # positions of a heat map, and components of a spectrum, at most
MIN_SHARE = 1e-6  # of the variance, in percent: below it there is nothing but rounding
FITTING = 0.5  # the share of a component's variance that a sinusoid must explain for its period to be named
PERIODS = "after names: periods of components 1 to 4\n(-: no sinusoid fits; *: longer than the table)"
BAND = 0.045  # of a panel's height: what the band of a table's new rows takes

STYLE: dict[str, Any] = {
    **{"svg.hashsalt": "ctxextend", "pdf.fonttype": 42, "text.parse_math": False, "font.size": 8, "axes.titlesize": 8},
    **{"legend.fontsize": 7, "legend.title_fontsize": 7, "legend.frameon": False, "hatch.linewidth": 0.6},
    **{"text.color": INK, "axes.labelcolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "axes.edgecolor": SOFT},
    **{"axes.grid": True, "grid.color": HAIR, "axes.axisbelow": True, "axes.titlecolor": INK},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "ytick.major.size": 0},
    **{"ytick.minor.size": 0, "axes.facecolor": "none", "axes.labelpad": 6},
    **{"legend.handlelength": 3, "axes.prop_cycle": f"cycler(color={list(COLOURS)})"},
}
# Papers take no fonts of type 3. No dates, so that the same figure has the same bytes.
METADATA: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@dataclass(frozen=True)
class FileKind:
    """A kind of file: what such files are called, their endings, and the libraries that make them."""

    plural: str
    formats: tuple[str, ...]
    libraries: tuple[str, ...]  # of the extra `plot`

    def missing(self) -> list[str]:
        """Return the libraries that are not installed here."""
        return [name for name in self.libraries if not importlib.util.find_spec(name)]


FIGURE = FileKind("figures", (".png", ".svg", ".pdf"), ("matplotlib",))
REPORT = FileKind("pages", (".html", ".htm"), ("matplotlib", "jinja2"))


def check_format(path: Path, kind: FileKind) -> None:
    """Refuse a name whose ending is no format of a kind of file."""
    if path.suffix.lower() not in kind.formats:
        message = f"{path} does not end in a format that {kind.plural} have."
        raise OutputError(message, f"Let it end in {', '.join(kind.formats)}.")


def check_file(path: Path, kind: FileKind) -> None:
    """Refuse a file that cannot be made or has no place to go, before there is any work in it."""
    check_format(path, kind)
    if missing := kind.missing():
        message = f"{kind.plural.capitalize()} need {' and '.join(missing)}, not installed here."
        raise OutputError(message, "pip install 'ctxextend[plot]'")
    folder, hint = path.absolute().parent, f"Choose another place for {path.name}."
    with os_errors_as_output_error(path, hint=hint):
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}.", hint)
        if not folder.is_dir():
            raise OutputError(f"There is no folder {folder}.", "Make it first.")
        check_disk_space(folder, {})


def save(path: Path, data: bytes) -> None:
    """Write a file whole, replacing what is there, or leave what is there as it is."""
    files = {path.name: len(data)}
    with os_errors_as_output_error(path, files, f"Choose another place for {path.name}."), atomic_file(path) as staged:
        check_disk_space(staged.parent, files)
        staged.write_bytes(data)


def public_name(reference: str) -> str:
    """Return what a checkpoint, a file or a flag's value is called where others read it: an id, or a path's end."""
    path = Path(reference.replace("\\", "/"))
    is_id = reference.startswith("hf:") or "://" in reference or (len(path.parts) == 2 and not path.parent.exists())
    return reference if is_id or not reference else path.absolute().name or reference


def render(make: "Callable[[], Figure]", suffix: str, fonttype: str = "path") -> bytes:
    """Return what `make` draws in a format (.png, .svg or .pdf); `fonttype` is how an SVG holds text."""
    from matplotlib import style

    # Reset first, so that a user's own matplotlibrc changes nothing.
    with style.context([STYLE | {"svg.fonttype": fonttype}], after_reset=True), warnings.catch_warnings():
        # A character that the font does not have is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        data, figure = io.BytesIO(), make()
        metadata = METADATA[suffix] | {"Title": figure.get_label()}
        figure.savefig(data, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=metadata)
    return data.getvalue()


def write_figure(path: Path, make: "Callable[[], Figure]") -> None:
    """Write a figure in the format that its ending names; what is there is replaced once all is drawn."""
    check_file(path, FIGURE)
    save(path, render(make, path.suffix.lower()))


class Plot(NamedTuple):
    """One picture."""

    title: str
    draw: Callable[["Axes"], None]
    size: tuple[float, float] = LARGE  # in inches, on a page
    number: int | None = None  # of the method that it is of alone
    is_cut: bool = False  # whether values reach beyond its edge


@dataclass(frozen=True)
class Panel:
    """Pictures of one kind: one for each method, or one or two of all of them, with the same as a table."""

    key: str  # a name of its own on the page; up to a hyphen, its kind
    title: str
    plots: Sequence[Plot]
    # The same as a table, its head first; none where the pictures or the ranking hold all numbers.
    rows: Sequence[Sequence[str]] = ()

    @property
    def is_small(self) -> bool:
        """Whether each method has a small picture of its own."""
        return self.plots[0].number is not None


def panel_figure(panels: Iterable[Panel], title: str) -> "Figure":
    """Return a figure of all pictures but small ones, each as wide as a column of a paper, at most two in a row.

    What a caption says is not drawn: `title` goes into the file's metadata, and a picture alone has no title.
    """
    from matplotlib.figure import Figure

    plots = [plot for panel in panels if not panel.is_small for plot in panel.plots]
    rows = [plots[first : first + 2] for first in range(0, len(plots), 2)] or [[]]
    heights = [max((plot.size[1] for plot in row), default=1.0) for row in rows]
    width = len(rows[0]) or 1
    figure = Figure(figsize=(width * COLUMN, sum(heights)), layout="constrained", label=printable(title))
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
    """Return a name for a legend or an axis; matplotlib leaves labels out of legends that begin with ``_``."""
    name = printable(text)
    name = name if len(name) <= NAME else f"{name[: NAME - 1]}…"
    return f" {name}" if name.startswith("_") else name


def add_legend(axes: "Axes", title: str = "") -> None:
    """Add the legend below the axes, where it covers nothing."""
    count = len(axes.get_legend_handles_labels()[0])
    if count > 1 or (count and title):
        axes.legend(title=title, alignment="left", loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=5)


def half_interval(one: Estimate) -> float:
    """Return half the width of a 95 % interval, as figures draw it; 0 where it is not known."""
    return one.ci95 if one.ci95 is not None and math.isfinite(one.ci95) else 0.0


# Losses, bars, passkeys and norms, of evaluate and compare


class LossCurve(NamedTuple):
    """Losses of one model, or of one way to read."""

    name: str
    losses: Losses
    look: Look
    is_strong: bool = True  # named, not one of the many behind
    is_whole: bool = True  # not cut off by the panel's edge


def losses_by(by: str, evaluation: Evaluation, way: str) -> dict[tuple[int, ...], Estimate]:
    """Return the losses of one way to read by ``position`` or ``context``, where the base has only `SLIDING`."""
    if by == "position":
        buckets = evaluation.positions.buckets if evaluation.positions else ()
        return {(bucket.start, bucket.stop): bucket.losses[way] for bucket in buckets if way in bucket.losses}
    points = evaluation.contexts.points if evaluation.contexts else ()
    found = [(point.context, {MODEL: point.loss, SLIDING: point.base}.get(way)) for point in points]
    return {(context,): loss for context, loss in found if loss is not None}


def loss_panel(
    by: str, kind: str, curves: Sequence[LossCurve], learned: int | None, *, has_legend: bool = False
) -> Panel:
    """Return losses of models of a kind by ``position`` as steps, or by ``context`` as points.

    Intervals are drawn of the first curve, and of all where they have a legend; a dashed line is at `learned`.
    """
    all_means = [(loss.mean, curve.is_whole) for curve in curves for loss in curve.losses.values()]
    limit = upper_limit([mean for mean, _ in all_means], [mean for mean, is_whole in all_means if is_whole])
    places = sorted({place for curve in curves for place in curve.losses})
    longest = max((place[-1] for place in places), default=0)

    def draw(axes: "Axes") -> None:
        axes.set(xlabel=f"{by} (tokens)", ylabel="loss (nats per token)")
        axes.grid(visible=False, axis="x")
        points: Look = {"marker": "o", "markerfacecolor": "white", "markersize": 4} if by == "context" else {}
        for number, (name, losses, look, is_strong, _) in enumerate(curves):
            ends = np.array([end for place in losses for end in place], np.float64)
            values = [loss for place, loss in losses.items() for _ in place]
            means, errors = np.array([loss.mean for loss in values]), np.array([half_interval(loss) for loss in values])
            label = short_name(name) * is_strong
            (line,) = axes.plot(ends, means, label=label, zorder=2 + is_strong, **points, **look)
            if has_legend or number == 0:
                band: dict[str, Any] = {"color": line.get_color(), "alpha": 0.15, "linewidth": 0}
                axes.fill_between(ends, means - errors, means + errors, **band)
        if by == "context":
            axes.set_xscale("log", base=2)
            axes.set_xticks([place[0] for place in places], [str(place[0]) for place in places])
            axes.minorticks_off()
        else:
            axes.set_xticks(range(0, longest + 1, 2 ** max(math.ceil(math.log2(max(longest, 1) / 4)), 0)))
            axes.set_xlim(0, max(longest, 1))
        if limit is not None:
            axes.set_ylim(min(axes.get_ylim()[0], limit - 0.1), limit)
        if learned is not None and learned <= longest:
            _mark_learned(axes, learned, f"learned: {learned:,}")
        if has_legend:
            add_legend(axes, "shaded: ± 95 %")

    title = f"Loss{' of masked tokens' * (kind == 'masked')} by {by}{' length' * (by == 'context')}"
    height = LARGE[1] + has_legend * LEGEND_LINE * (len(curves) + 1)
    plot = Plot(title, draw, (LARGE[0], height), is_cut=limit is not None)
    spans = [(place[0], place[-1] - 1) if by == "position" else place for place in places]
    head = ["", *("\N{EN DASH}".join(f"{end:,}" for end in span) for span in spans)]
    cells = [[one.name, *(NUMBERS.estimate(one.losses.get(place)) for place in places)] for one in curves]
    return Panel(by, title, [plot], [head, *cells])


def _mark_learned(axes: "Axes", place: float, text: str = "") -> None:
    """Draw a dashed line where the learned length ends, its text on the side that has room."""
    axes.axvline(place, color=SOFT, linestyle=(0, (3, 3)), linewidth=0.7)
    share, _ = (axes.transData - axes.transAxes).transform((place, axes.get_ylim()[0]))
    side, offset = ("right", -4) if share > 0.6 else ("left", 4)
    where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, (place, 1), (offset, -2), **where, ha=side, va="top", color=SOFT)


def upper_limit(values: Iterable[float], leading: Iterable[float]) -> float | None:
    """Return where an axis ends so that hopeless values do not press all others together; None if none are cut off.

    Of all values, the leading ones take a third of the axis at least.
    """
    found = [value for value in values if math.isfinite(value)]
    chosen = [value for value in leading if math.isfinite(value)] or found
    if not found:
        return None
    maximum = max(chosen) + 2 * max(max(chosen) - min(found), 1e-9)
    return maximum if max(found) > maximum else None


def bar_plot(title: str, label: str, bars: Sequence[Bar]) -> Plot:
    """Return bars from left to right, the first on top, with lines of 95 % intervals.

    Those of the last fourth that are far longer than all others are cut off.
    """
    ends = [one.mean + sign * half_interval(one) for _, one, _ in bars for sign in (-1, 1)]
    limit = upper_limit([0.0, *ends], [0.0, *ends[: 2 * (len(bars) - len(bars) // 4)]])

    def draw(axes: "Axes") -> None:
        axes.set_xlabel(label, loc="right")
        axes.grid(visible=False, axis="y")
        for place, (_, one, look) in enumerate(bars):
            if math.isfinite(one.mean):
                axes.barh(place, one.mean, 0.55, **look)
                if error := half_interval(one):
                    axes.errorbar(one.mean, place, xerr=error, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
        axes.set_yticks(range(len(bars)), [short_name(name) for name, _, _ in bars])
        axes.set_ylim(max(len(bars), 1) - 0.5, -0.5)
        axes.axvline(0, color=SOFT, linewidth=0.7)
        if limit is not None:
            axes.set_xlim(right=limit)

    return Plot(title, draw, (LARGE[0], len(bars) * BAR + 0.6), is_cut=limit is not None)


def retrieval_panel(modes: Sequence[tuple[str, Recall, Look]]) -> Panel:
    """Return the reciprocal ranks and the recalls of ways to read."""
    ranks = [(name, way.reciprocal_rank, look) for name, way, look in modes]
    found = {"mean reciprocal rank": ranks, "recall@1": [(name, way.recall, look) for name, way, look in modes]}
    plots = [bar_plot(f"Retrieval: {measure}", f"{measure} (± 95 %)", bars) for measure, bars in found.items()]
    cells = zip(*([NUMBERS.estimate(one) for _, one, _ in bars] for bars in found.values()), strict=True)
    rows = [[name, *numbers] for (name, *_), numbers in zip(modes, cells, strict=True)]
    return Panel("retrieval", "Retrieval", plots, [["", *found], *rows])


def draw_passkey(axes: "Axes", passkey: Passkey, learned: int | None) -> None:
    """Draw the share of numbers that were found as a heat map, in percent: lengths across, depths down.

    Texts longer than the base reads are right of a dashed line.
    """
    from matplotlib.patches import Rectangle

    axes.set(ylabel="depth in the text (%)", xlabel="text (tokens)")
    axes.grid(visible=False)
    for column, shares in enumerate(passkey.found):
        for row, share in enumerate(shares):
            text, colours = "-", dict[str, Any](facecolor="none", edgecolor=HAIR)
            if share is not None and math.isfinite(share):
                text, colours = f"{100 * share:.0f}", {"facecolor": HEAT, "alpha": share}
            axes.add_patch(Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, **colours))
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
    """Draw the norms of a resized table's rows, shape (m,), over the model's own, (n,), on an axis to `top`."""
    axes.grid(visible=False, axis="x")
    axes.plot(np.arange(len(before)) + 0.5, before, color=HAIR, linewidth=4)
    axes.plot(np.arange(len(after)) + 0.5, after, color=colour, linewidth=1)
    axes.set(xlim=(0, max(len(after), 1)), ylim=(0, top))
    axes.set_xticks(list(dict.fromkeys((0, min(len(before), len(after)), len(after)))))
    axes.locator_params(axis="y", nbins=4)
    _mark_learned(axes, len(before))


def evaluation_panels(evaluation: Evaluation) -> list[Panel]:
    """Return losses by position and by context, passkeys and retrieval, as far as they were measured."""
    learned, panels = evaluation.base_max_len, list[Panel]()
    for by in ("position", "context"):
        found = [LossCurve(name, losses_by(by, evaluation, way), look) for way, (name, look) in MODES.items()]
        if by == "context":
            found = [one._replace(name=one.name.partition(",")[0]) for one in found]
        if curves := [curve for curve in found if curve.losses]:
            panels.append(loss_panel(by, evaluation.kind, curves, learned, has_legend=True))
    if (passkey := evaluation.passkey) is not None and passkey.is_above_chance:
        draw = partial(draw_passkey, passkey=passkey, learned=learned)
        panels.append(Panel("passkey", "Passkey", [Plot("Passkey: numbers found again (%)", draw)]))
    if (asked := evaluation.retrieval) is not None:
        look = {"color": COLOURS[0], "alpha": 0.55}
        panels.append(retrieval_panel([(name, way, look) for name, way in asked.modes.items()]))
    return panels


def evaluation_figure(evaluation: Evaluation) -> "Figure":
    """Return a figure of what was measured."""
    title = f"{public_name(evaluation.source)}, {evaluation.max_len} tokens{'; incomplete' * (not evaluation.complete)}"
    return panel_figure(evaluation_panels(evaluation), title)


def training_figure(log: Sequence[Mapping[str, Any]], title: str) -> "Figure":
    """Return a figure of the ``loss`` of each ``step`` of a log, and the ``eval_loss`` wherever it was measured."""

    def draw(axes: "Axes") -> None:
        for key, label, colour, marker in (("loss", "trained on", 0, ""), ("eval_loss", "held out", 1, "o")):
            points = [(line["step"], line[key]) for line in log if key in line]
            if points:
                look: dict[str, Any] = {"color": COLOURS[colour], "marker": marker, "markersize": 4, "linewidth": 1.2}
                axes.plot(*zip(*points, strict=True), label=label, **look)
        axes.set(xlabel="step", ylabel="loss")
        add_legend(axes)

    return panel_figure([Panel("loss", "Loss", [Plot("", draw)])], title)


def inspection_panels(inspections: Sequence[Inspection]) -> list[Panel]:
    """Return the norms, the neighbour cosines, the spectrum, and the cosines between all positions, of every table.

    Tables of the same part of several models share their pictures but for the last.
    """
    groups, panels = tables_by_part(inspections), list[Panel]()
    names = {key: public_name(name) for key, name in short_names(inspections).items()}
    if len(set(names.values())) < len(names):  # of models in several folders
        names = {key: f"{name} ({number})" for number, (key, name) in enumerate(names.items(), 1)}
    for group in groups:
        tables, part = list[TableCurves](), f" ({group[0][1].part})" * (len(groups) > 1)
        for number, (inspection, table) in enumerate(group):
            look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
            look |= {"markerfacecolor": "white", "linewidth": WIDE if number == 0 and len(group) > 1 else THIN}
            tables.append((table, short_name(names[id(inspection)]), look))
        height = LARGE[1] + LEGEND_LINE * 3 * len(tables)
        for key, title, draw in (
            ("norms", "Norm of each row", partial(_draw_by_position, what="norms")),
            ("cosines", "Cosine of each position to the next", partial(_draw_by_position, what="cosines")),
            ("spectrum", "Spectrum", partial(_draw_spectra)),
        ):
            plot = Plot(f"{title}{part}", partial(draw, tables=tables), (LARGE[0], height))
            panels.append(Panel(f"{key}-{len(panels)}", plot.title, [plot]))
        title = f"Cosine between positions{part}"
        titles = [f"{name}{part}" if len(names) > 1 else title for _, name, _ in tables]
        draws = [partial(_draw_map, table=table) for table, *_ in tables]
        maps = [Plot(title, draw, SQUARE) for title, draw in zip(titles, draws, strict=True)]
        panels.append(Panel(f"map-{len(panels)}", title, maps))
    return panels


def tables_figure(inspections: Sequence[Inspection]) -> "Figure":
    """Return a figure of every table."""
    return panel_figure(inspection_panels(inspections), ", ".join(public_name(one.source) for one in inspections))


def _draw_by_position(axes: "Axes", tables: Sequence[TableCurves], what: Literal["norms", "cosines"]) -> None:
    """Draw curves over the positions, with rings around what stands out, and marks for new and for empty rows.

    Norms of reserved rows stand before position 0.
    """
    rings, bands = list[tuple[int, float]](), 0
    for number, (table, name, look) in enumerate(tables):
        first, values, colour = table.reserved_rows, getattr(table.stats, what), {"color": look["color"]}
        if what == "norms" and first:
            stars: dict[str, Any] = {"label": f"reserved rows of {name}", "linestyle": "", "marker": "*", **colour}
            axes.plot(range(-first, 0), table.norms[:first], **stars)
        every = max(len(values) // 8, 1)
        axes.plot(values, label=name, markevery=(every * (number % 4) // 4, every), **look)
        rings += [(position, values[position]) for position in table.outliers if position < len(values)]
        # Along the bottom a hatched band over the positions that a resize made.
        for start, stop in table.new_rows or ():
            band: dict[str, Any] = {"facecolor": "none", "edgecolor": look["color"], "hatch": "/////"}
            band |= {"ymin": BAND * bands, "ymax": BAND * (bands + 0.8), "label": f"new rows of {name}"}
            axes.axvspan(start - first - 0.5, stop - first - 0.5, **band)
        bands += bool(table.new_rows)
        # Along the top crosses at positions whose rows are zero or hold no numbers.
        if empty := sorted({*table.stats.zeros, *table.stats.nonfinite}):
            cross: dict[str, Any] = {"linestyle": "", "marker": "x", "clip_on": False, **colour}
            cross |= {"transform": axes.get_xaxis_transform(), "label": f"zero or not finite in {name}"}
            axes.plot(empty, [1.0] * len(empty), **cross)
    if rings:
        ring: dict[str, Any] = {"markersize": 8, "markerfacecolor": "none", "markeredgewidth": 0.7}
        axes.plot(*zip(*rings, strict=True), "o", color=INK, label="stands out", **ring)
    axes.set(xlabel="position", ylabel="Euclidean norm" if what == "norms" else "cosine similarity")
    axes.margins(y=0.05 + BAND * bands)
    add_legend(axes)
    if what == "norms":
        reserved_norms = np.concatenate([table.norms[: table.reserved_rows] for table, _, _ in tables])
        if needs_log_scale(reserved_norms, np.concatenate([table.stats.norms for table, _, _ in tables])):
            _scale_by_factors(axes)


def _scale_by_factors(axes: "Axes") -> None:
    """Show equal factors as equal steps up, with plain numbers beside them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_spectra(axes: "Axes", tables: Sequence[TableCurves]) -> None:
    """Draw how much of the variance each of the leading components holds; legends name the components' periods."""
    axes.set(xlabel="principal component", ylabel="share of the variance (%)")
    lowest = 10.0
    for table, name, look in tables:
        stats = table.stats
        shares = 100 * stats.eigenvalues[:SPECTRUM] / (stats.eigenvalues.sum() or 1)
        shares = shares[shares > MIN_SHARE]
        lowest = min([lowest, *(shares / 2)])
        periods = ", ".join(
            f"{found.period:.0f}{'*' * (found.period > len(stats.norms))}" if found.fit >= FITTING else "-"
            for found in stats.components
        )
        axes.plot(range(1, len(shares) + 1), shares, label=f"{name}: {periods}", **look)
    axes.set_ylim(lowest, 100)
    axes.locator_params(axis="x", integer=True)
    _scale_by_factors(axes)
    add_legend(axes, PERIODS)


def _draw_map(axes: "Axes", table: TableReport) -> None:
    """Draw the cosines between a table's positions, evenly spaced ones where there are many, as a heat map."""
    cosines, step = sampled_cosines(table.values[table.reserved_rows :])
    # The middle of a square is at the position that it stands for.
    low, high = -step / 2, len(cosines) * step - step / 2
    axes.imshow(cosines, cmap="cividis", vmin=-1, vmax=1, extent=(low, high, high, low), interpolation="nearest")
    label = "position" if step == 1 else f"position (1 in {step} drawn)"
    axes.set(xlabel=label, ylabel=label)
    axes.grid(visible=False)
    axes.figure.colorbar(axes.images[0], cax=axes.inset_axes((1.04, 0, 0.04, 1)), label="cosine similarity")
    # What has no cosine is left out of the map, and shows what is behind it.
    axes.patch.set(facecolor="white", hatch="xxxx")


def sampled_cosines(table: NDArray[Any]) -> tuple[NDArray[np.float64], int]:
    """Return the cosines between evenly spaced rows, shape (m, m), m ≤ 512, and their distance.

    A cosine is NaN where a row has none. The distance is a power of two, as lengths mostly are: so rows that are a
    whole table apart stay so.
    """
    step = 2 ** max(math.ceil(math.log2(len(table) / MAP_POSITIONS)), 0)
    rows = table[::step].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.linalg.norm(rows, axis=1)
        unit = rows / np.where(np.isfinite(norms) & (norms > 0), norms, np.nan)[:, None]
        return np.clip(unit @ unit.T, -1, 1), step
