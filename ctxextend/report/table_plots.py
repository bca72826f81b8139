"""Plots of position tables, for `inspect`."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.source import public_name
from ctxextend.inspection.inspection_result import Inspection, short_names, tables_by_part
from ctxextend.positions.table_report import TableReport
from ctxextend.report.figures import (
    COLOURS,
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
    plots = list[Plot]()
    for group in tables_by_part(inspections):
        tables = [(short_name(names[id(inspection)]), table) for inspection, table in group]
        _, first = tables[0]
        part = f" ({first.part})" if first.part else ""
        plots += [
            Plot(f"Row norm by position{part}", partial(_draw_norms, tables=tables)),
            Plot(f"Cosine to the next position{part}", partial(_draw_cosines, tables=tables)),
        ]
        for name, table in tables:
            title = f"Cosines of positions, {name}{part}"
            plots.append(Plot(title, partial(_draw_map, table=table), 0.8 * WIDTH))
    return plots


def _draw_norms(axes: "Axes", tables: Tables) -> None:
    """Draw norms by position, those of reserved rows at negative ones."""
    norms = [table.stats.norms for _, table in tables]
    reserved_norms = [table.norms[: table.reserved_rows] for _, table in tables]
    for number, (name, table) in enumerate(tables):
        if table.reserved_rows:
            axes.plot(
                range(-table.reserved_rows, 0),
                reserved_norms[number],
                "*",
                color=COLOURS[number % len(COLOURS)],
                label=f"reserved rows of {name}",
            )
    _draw_rows(axes, tables, norms)
    axes.set_ylabel("Euclidean norm")
    if needs_log_scale(np.concatenate(reserved_norms), np.concatenate(norms)):
        set_log_scale(axes.yaxis)


def _draw_cosines(axes: "Axes", tables: Tables) -> None:
    _draw_rows(axes, tables, [table.stats.cosines for _, table in tables])
    axes.set_ylabel("cosine similarity")


def _draw_rows(axes: "Axes", tables: Tables, values: Sequence[NDArray[np.float64]]) -> None:
    """Draw a value per position of each table; mark new rows, broken rows and outliers."""
    for number, (name, table) in enumerate(tables):
        own = values[number]
        style = curve_style(number)
        axes.plot(own, label=name, **style)
        # Bands along the bottom, of which the legend names one.
        label = f"new rows of {name}"
        for row_range in table.new_rows or ():
            start, stop = np.array(row_range) - table.reserved_rows - 0.5
            bottom = BAND * number
            top = bottom + 0.8 * BAND
            axes.axvspan(start, stop, bottom, top, color=style["color"], alpha=0.4, label=label)
            label = ""
        broken = sorted({*table.stats.zeros, *table.stats.nonfinite})
        if broken:
            axes.plot(
                broken,
                np.ones(len(broken)),  # along the top
                "x",
                label=f"zero or non-finite rows of {name}",
                color=style["color"],
                clip_on=False,
                transform=axes.get_xaxis_transform(),
            )
        outliers = [position for position in table.outlier_reasons if position < len(own)]
        if outliers:
            axes.plot(
                outliers,
                own[outliers],
                "o",
                label=f"outliers of {name}",
                color=style["color"],
                markersize=8,
                markerfacecolor="none",
            )
    axes.set_xlabel("position")
    axes.margins(y=0.05 + BAND * len(tables))
    low, high = axes.get_ylim()
    largest = max(abs(low), abs(high))
    if high - low < RANGE_OF_ROUNDING * largest:
        axes.set_ylim(low - 0.05 * largest, high + 0.05 * largest)


def _draw_map(axes: "Axes", table: TableReport) -> None:
    """Draw the cosines of all pairs of positions; long tables are sampled evenly."""
    values = table.values[table.reserved_rows :]
    # A power of two, so that it divides common table lengths and repeated tables stay visible.
    step = 2 ** max(math.ceil(math.log2(len(values) / MAX_MAP_POSITIONS)), 0)
    rows = values[::step].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        norms[~np.isfinite(norms) | (norms == 0)] = np.nan  # rows without a direction
        unit = rows / norms
        cosines = np.clip(unit @ unit.T, -1, 1)
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
    axes.figure.colorbar(image, ax=axes, label="cosine similarity")
    # Cells without a cosine are transparent and show the hatching.
    axes.patch.set(facecolor="white", hatch="xxxx")
