"""Matplotlib panels of position tables, for `inspect`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.source import public_name
from ctxextend.inspection.inspection_result import (
    Inspection,
    ModelTable,
    short_names,
    tables_by_part,
)
from ctxextend.positions.table_report import TableReport
from ctxextend.report.figures import (
    COLOURS,
    INK,
    LEGEND_LINE,
    PANEL_SIZE,
    THIN,
    WIDE,
    Panel,
    Plot,
    Style,
    add_legend,
    panel_figure,
    short_name,
)
from ctxextend.tables.stats import needs_log_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SQUARE_SIZE = (4.8, 3.1)  # of a heat map, in inches
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MARKED = 8  # markers per curve
MARKER_SHIFTS = 4  # places of markers between two of a curve, so that curves differ in them
MAX_MAP_POSITIONS = 512  # of a heat map
MAX_COMPONENTS = 32  # of a spectrum
MIN_SHARE = 1e-6  # of the variance, in percent: anything below is rounding error
BAND = 0.045  # height of the band that marks new rows, as a share of the axes
RANGE_OF_ROUNDING = 1e-5  # a smaller relative range of values is rounding, which is not magnified


Values = NDArray[np.float64]  # of a table by position, shape (k,)


class TableCurve(NamedTuple):
    """A table in a plot of several tables."""

    table: TableReport
    name: str  # in the legend
    style: Style


def tables_figure(inspections: Sequence[Inspection]) -> "Figure":
    """Return a figure of all tables of `inspect`."""
    title = ", ".join(public_name(item.source) for item in inspections)
    return panel_figure(inspection_panels(inspections), title)


def inspection_panels(inspections: Sequence[Inspection]) -> list[Panel]:
    """Return the panels of every table.

    Tables of the same part share plots, except for pairwise cosines.
    """
    # By the `id` of an inspection, without folders.
    names = {key: public_name(name) for key, name in short_names(inspections).items()}
    if len(set(names.values())) < len(names):  # models of the same name in different folders
        names = {key: f"{name} ({number})" for number, (key, name) in enumerate(names.items(), 1)}
    groups = tables_by_part(inspections)
    panels: list[Panel] = []
    for group in groups:
        part = ""
        if len(groups) > 1:
            _, table = group[0]
            part = f" ({table.part})"
        curves = _curves(group, names)
        # Panels with all tables in one plot, then a heat map of each table.
        width, height = PANEL_SIZE
        size = (width, height + LEGEND_LINE * 3 * len(curves))
        shared = {
            "norms": (f"Row norm by position{part}", _draw_norms),
            "cosines": (f"Cosine similarity to the next position{part}", _draw_cosines),
            "spectrum": (f"Spectrum{part}", _draw_spectra),
        }
        for key, (title, draw) in shared.items():
            plot = Plot(title, partial(draw, curves=curves), size)
            panels.append(Panel(key=key, title=title, plots=[plot]))
        title = f"Cosine similarity between positions{part}"
        maps = []
        for curve in curves:
            own_title = f"{curve.name}{part}" if len(names) > 1 else title
            maps.append(Plot(own_title, partial(_draw_cosine_map, table=curve.table), SQUARE_SIZE))
        panels.append(Panel(key="map", title=title, plots=maps))
    return [replace(panel, key=f"{panel.key}-{number}") for number, panel in enumerate(panels)]


def _curves(group: Sequence[ModelTable], names: Mapping[int, str]) -> list[TableCurve]:
    curves = []
    for number, (inspection, table) in enumerate(group):
        is_first_of_many = number == 0 and len(group) > 1
        style = {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 4,
            "markerfacecolor": "white",
            "linewidth": WIDE if is_first_of_many else THIN,
        }
        curves.append(TableCurve(table, short_name(names[id(inspection)]), style))
    return curves


def _draw_norms(axes: "Axes", curves: Sequence[TableCurve]) -> None:
    """Draw norms by position, those of reserved rows at negative ones."""
    values = [curve.table.stats.norms for curve in curves]
    for number, curve in enumerate(curves):
        reserved = curve.table.reserved_rows
        if reserved:
            axes.plot(
                range(-reserved, 0),
                curve.table.norms[:reserved],
                label=f"reserved rows of {curve.name}",
                linestyle="",
                marker="*",
                color=curve.style["color"],
            )
        _draw_curve(axes, number, curves, values[number])
    _draw_outliers(axes, curves, values)
    _set_axes(axes, curves, "Euclidean norm")
    tables = [curve.table for curve in curves]
    of_reserved = np.concatenate([table.norms[: table.reserved_rows] for table in tables])
    if needs_log_scale(of_reserved, np.concatenate(values)):
        _set_log_scale(axes)
        axes.set_ylabel("Euclidean norm (logarithmic)")


def _draw_cosines(axes: "Axes", curves: Sequence[TableCurve]) -> None:
    values = [curve.table.stats.cosines for curve in curves]
    for number in range(len(curves)):
        _draw_curve(axes, number, curves, values[number])
    _draw_outliers(axes, curves, values)
    _set_axes(axes, curves, "cosine similarity")


def _draw_curve(axes: "Axes", number: int, curves: Sequence[TableCurve], values: Values) -> None:
    curve = curves[number]
    every = max(len(values) // MARKED, 1)
    first_marker = every * (number % MARKER_SHIFTS) // MARKER_SHIFTS
    axes.plot(values, label=curve.name, markevery=(first_marker, every), **curve.style)
    # A hatched band along the bottom, above those of other tables, with a piece for each range of
    # new rows; the legend names it once.
    bands_below = _count_bands(curves[:number])
    reserved = curve.table.reserved_rows
    label: str | None = f"new rows of {curve.name}"
    for start, stop in curve.table.new_rows or ():
        axes.axvspan(
            start - reserved - 0.5,
            stop - reserved - 0.5,
            ymin=BAND * bands_below,
            ymax=BAND * (bands_below + 0.8),
            facecolor="none",
            edgecolor=curve.style["color"],
            hatch="/////",
            label=label,
        )
        label = None
    # Crosses along the top.
    invalid = sorted({*curve.table.stats.zeros, *curve.table.stats.nonfinite})
    if invalid:
        axes.plot(
            invalid,
            [1.0] * len(invalid),
            label=f"zero or non-finite rows of {curve.name}",
            linestyle="",
            marker="x",
            color=curve.style["color"],
            clip_on=False,
            transform=axes.get_xaxis_transform(),
        )


def _set_axes(axes: "Axes", curves: Sequence[TableCurve], label: str) -> None:
    axes.set(xlabel="position", ylabel=label)
    axes.margins(y=0.05 + BAND * _count_bands(curves))
    # If all values are equal but for rounding, 5 % more of them is shown above and below.
    low, high = axes.get_ylim()
    if high - low < RANGE_OF_ROUNDING * max(abs(low), abs(high)):
        # If values are negative, their larger multiple is the lower one.
        axes.set_ylim(min(0.95 * low, 1.05 * low), max(0.95 * high, 1.05 * high))
    add_legend(axes)


def _count_bands(curves: Sequence[TableCurve]) -> int:
    return sum(1 for curve in curves if curve.table.new_rows)


def _draw_outliers(axes: "Axes", curves: Sequence[TableCurve], values: Sequence[Values]) -> None:
    outliers: list[tuple[int, float]] = []
    for curve, own in zip(curves, values, strict=True):
        for position in curve.table.outlier_reasons:
            if position < len(own):
                outliers.append((position, own[position]))
    if not outliers:
        return
    axes.plot(
        [position for position, _ in outliers],
        [value for _, value in outliers],
        "o",
        label="outliers",
        color=INK,
        markersize=8,
        markerfacecolor="none",
        markeredgewidth=0.7,
    )


def _set_log_scale(axes: "Axes") -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_spectra(axes: "Axes", curves: Sequence[TableCurve]) -> None:
    axes.set(xlabel="principal component", ylabel="explained variance (%)")
    lowest = 10.0
    for curve in curves:
        eigenvalues = curve.table.stats.eigenvalues
        total = eigenvalues.sum() or 1  # 0 if all rows are equal
        shares = 100 * eigenvalues[:MAX_COMPONENTS] / total
        shares = shares[shares > MIN_SHARE]
        lowest = min([lowest, *(shares / 2)])
        axes.plot(range(1, len(shares) + 1), shares, label=curve.name, **curve.style)
    axes.set_ylim(lowest, 100)
    axes.locator_params(axis="x", integer=True)
    _set_log_scale(axes)
    add_legend(axes)


def _draw_cosine_map(axes: "Axes", table: TableReport) -> None:
    """Draw pairwise cosines of a table's positions; long tables are sampled evenly."""
    values = table.values[table.reserved_rows :]
    # A power of two, so that it divides common table lengths and repeated tables stay visible.
    step = 2 ** max(math.ceil(math.log2(len(values) / MAX_MAP_POSITIONS)), 0)
    rows = values[::step].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.linalg.norm(rows, axis=1)
        has_direction = np.isfinite(norms) & (norms > 0)
        unit = rows / np.where(has_direction, norms, np.nan)[:, None]
        cosines = np.clip(unit @ unit.T, -1, 1)  # NaN for rows without a direction
    low = -step / 2  # centres each cell on its position
    high = len(cosines) * step - step / 2
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
    # Cells without a cosine are transparent and show the hatching.
    axes.patch.set(facecolor="white", hatch="xxxx")
