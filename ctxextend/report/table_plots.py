"""Plots of position tables, for `inspect`."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ctxextend.checkpoint.source import public_name
from ctxextend.inspection.inspection_result import Inspection, short_names, tables_by_part
from ctxextend.positions.table_report import TableReport
from ctxextend.report.figures import (
    COLOURS,
    INK,
    WIDTH,
    Plot,
    curve_style,
    plots_figure,
    set_log_scale,
    short_name,
)
from ctxextend.tables.stats import needs_log_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_MAP_POSITIONS = 512
MAX_COMPONENTS = 32  # of a spectrum
MIN_SHARE = 1e-6  # of the variance, in percent: anything below is rounding error
BAND = 0.05  # height of the band that marks new rows of a table, as a share of the axes
RANGE_OF_ROUNDING = 1e-5  # a smaller relative range of values is rounding, which is not magnified

Tables = Sequence[tuple[str, TableReport]]  # by the name of the model


def tables_figure(inspections: Sequence[Inspection]) -> "Figure":
    """Return a figure of all tables of `inspect`."""
    title = ", ".join(public_name(item.source) for item in inspections)
    return plots_figure(table_plots(inspections), title)


def table_plots(inspections: Sequence[Inspection]) -> list[Plot]:
    """Return the plots of every table; those of the same part share plots, but for the maps."""
    # By the `id` of an inspection, without folders.
    names = {key: public_name(name) for key, name in short_names(inspections).items()}
    if len(set(names.values())) < len(names):  # models of the same name in different folders
        names = {key: f"{name} ({number})" for number, (key, name) in enumerate(names.items(), 1)}
    groups = tables_by_part(inspections)
    shared = {
        "Row norm by position": _draw_norms,
        "Cosine similarity to the next position": _draw_cosines,
        "Spectrum": _draw_spectra,
    }
    plots = list[Plot]()
    for group in groups:
        tables = []
        for inspection, table in group:
            tables.append((short_name(names[id(inspection)]), table))
        part = ""
        if len(groups) > 1:
            part = f" ({tables[0][1].part})"
        for title, draw in shared.items():
            plots.append(Plot(f"{title}{part}", partial(draw, tables=tables)))
        for name, table in tables:
            title = "Cosine similarity of positions"
            if len(tables) > 1:
                title += f", {name}"
            plots.append(Plot(f"{title}{part}", partial(_draw_map, table=table), 0.8 * WIDTH))
    return plots


def _draw_norms(axes: "Axes", tables: Tables) -> None:
    """Draw norms by position, those of reserved rows at negative ones."""
    reserved_norms = []
    for number, (name, table) in enumerate(tables):
        count = table.reserved_rows
        reserved = table.norms[:count]
        reserved_norms.append(reserved)
        if count:
            label = f"reserved rows of {name}"
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(range(-count, 0), reserved, "*", color=colour, label=label)
    _draw_rows(axes, tables, "norms")
    axes.set_ylabel("Euclidean norm")
    norms = [table.stats.norms for _, table in tables]
    if needs_log_scale(np.concatenate(reserved_norms), np.concatenate(norms)):
        set_log_scale(axes, "y")


def _draw_cosines(axes: "Axes", tables: Tables) -> None:
    _draw_rows(axes, tables, "cosines")
    axes.set_ylabel("cosine similarity")


def _draw_rows(axes: "Axes", tables: Tables, field: str) -> None:
    """Draw a statistic of each position, and mark new rows, broken rows and outliers."""
    outliers = list[tuple[int, float]]()
    for number, (name, table) in enumerate(tables):
        values = getattr(table.stats, field)
        style = curve_style(number)
        axes.plot(values, label=name, **style)
        # A hatched piece along the bottom for each range of new rows; the legend names one.
        label = f"new rows of {name}"
        for start, stop in table.new_rows or ():
            axes.axvspan(
                start - table.reserved_rows - 0.5,
                stop - table.reserved_rows - 0.5,
                ymin=BAND * number,
                ymax=BAND * (number + 0.8),
                facecolor="none",
                edgecolor=style["color"],
                hatch="/////",
                label=label,
            )
            label = ""
        # Crosses along the top.
        broken = sorted({*table.stats.zeros, *table.stats.nonfinite})
        if broken:
            axes.plot(
                broken,
                [1.0] * len(broken),
                "x",
                label=f"zero or non-finite rows of {name}",
                color=style["color"],
                clip_on=False,
                transform=axes.get_xaxis_transform(),
            )
        for position in table.outlier_reasons:
            if position < len(values):
                outliers.append((position, values[position]))
    if outliers:
        places, heights = zip(*outliers, strict=True)
        axes.plot(
            places,
            heights,
            "o",
            label="outliers",
            color=INK,
            markersize=7,
            markerfacecolor="none",
            markeredgewidth=0.7,
        )
    axes.set_xlabel("position")
    axes.margins(y=0.05 + BAND * len(tables))
    low, high = axes.get_ylim()
    largest = max(abs(low), abs(high))
    if high - low < RANGE_OF_ROUNDING * largest:
        axes.set_ylim(low - 0.05 * largest, high + 0.05 * largest)


def _draw_spectra(axes: "Axes", tables: Tables) -> None:
    lowest = 10.0
    for number, (name, table) in enumerate(tables):
        eigenvalues = table.stats.eigenvalues
        total = eigenvalues.sum() or 1  # 0 if all rows are equal
        shares = 100 * eigenvalues[:MAX_COMPONENTS] / total
        shares = shares[shares > MIN_SHARE]
        lowest = min([lowest, *(shares / 2)])
        axes.plot(range(1, len(shares) + 1), shares, label=name, **curve_style(number))
    axes.set(xlabel="principal component", ylabel="explained variance (%)", ylim=(lowest, 100))
    axes.locator_params(axis="x", integer=True)
    set_log_scale(axes, "y")


def _draw_map(axes: "Axes", table: TableReport) -> None:
    """Draw the cosines of all pairs of positions; long tables are sampled evenly."""
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
    image = axes.imshow(
        cosines,
        cmap="cividis",
        vmin=-1,
        vmax=1,
        extent=(low, high, high, low),
        interpolation="nearest",
    )
    label = "position"
    if step > 1:
        label += f" (1 in {step} shown)"
    axes.set(xlabel=label, ylabel=label)
    axes.grid(visible=False)
    axes.figure.colorbar(image, cax=axes.inset_axes((1.04, 0, 0.04, 1)), label="cosine similarity")
    # Cells without a cosine are transparent and show the hatching.
    axes.patch.set(facecolor="white", hatch="xxxx")
