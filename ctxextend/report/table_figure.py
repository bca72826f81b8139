"""The figure of `inspect`: norms, neighbours, spectrum and similarities of position tables."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.inspection.table_report import Inspection, Shown, TableReport, short_names, tables_by_part
from ctxextend.report.figures import (
    COLOURS,
    MARKERS,
    THIN,
    TITLE_CHARACTERS,
    TITLE_LINE,
    WIDE,
    Floats,
    add_legend,
    finite,
    printable,
    short_name,
    write_figure,
)
from ctxextend.tables.stats import needs_log_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The width and height of a panel, in inches.
PANEL = (3.7, 3.3)
# Positions of a heat map, and components of a spectrum, at most.
MAP_POSITIONS = 512
SPECTRUM = 32
# A share of the variance, in percent, below which there is nothing but rounding.
LEAST_SHARE = 1e-6
# The share of a component's variance that a sinusoid must explain for its period to be named.
FITTING = 0.5
PERIODS = (
    "behind each name: periods of components 1 to 4, in positions\n"
    "(-: no sinusoid explains half; *: longer than the table)"
)
# The share of a panel's height that the band of a table's new rows takes.
BAND = 0.045


@dataclass(frozen=True)
class TableCurves:
    """A table as it is drawn: its name in legends, and how its curves differ from the others'."""

    table: TableReport
    name: str
    number: int
    look: dict[str, Any]


def plot_tables(inspections: Sequence[Inspection], path: Path) -> None:
    """Write a figure of every table: norms, neighbour cosines, spectrum, and cosines between all positions.

    Tables of the same part of several models share their panels and have a heat map each; other parts stand below.

    Raises:
        OutputError: As `write_figure`.
    """
    write_figure(path, lambda: tables_figure(inspections))


def tables_figure(inspections: Sequence[Inspection]) -> "Figure":
    """Return the figure that `plot_tables` writes."""
    from matplotlib.figure import Figure

    names = short_names(inspections)
    groups = [_table_curves(group, names) for group in tables_by_part(inspections)]
    # The map of a single table stands behind the other panels; those of several below them.
    columns = 4 if all(len(tables) == 1 for tables in groups) else 3
    width = columns * PANEL[0]
    length = int(width * TITLE_CHARACTERS)
    titles = ["\n".join(dict.fromkeys(_table_title(one, length) for one in tables)) for tables in groups]
    rows = [-(-(3 + len(tables)) // columns) for tables in groups]
    heights = [
        count * PANEL[1] + (title.count("\n") + 3 + 2 * len(tables)) * TITLE_LINE
        for count, title, tables in zip(rows, titles, groups, strict=True)
    ]
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    blocks = figure.subfigures(len(groups), 1, height_ratios=heights, squeeze=False)[:, 0]
    for block, tables, title, count in zip(blocks, groups, titles, rows, strict=True):
        block.suptitle(title, fontsize=10)
        axes = block.subplots(count, columns, squeeze=False).ravel()
        for ax, draw in zip(axes, (draw_norms, draw_cosines, draw_spectra), strict=False):
            draw(ax, tables)
        maps = axes[3 : 3 + len(tables)]
        for ax, one in zip(maps, tables, strict=True):
            draw_map(ax, one.table, f": {one.name}" if columns == 3 else "")
        for ax in axes[3 + len(tables) :]:
            ax.remove()
        block.colorbar(maps[0].images[0], ax=maps, label="cosine similarity", shrink=0.7)
    return figure


def _table_curves(group: Sequence[Shown], names: dict[int, str]) -> list[TableCurves]:
    found = []
    for number, (inspection, table) in enumerate(group):
        # Wide below thin: curves that are equal over a stretch are both seen.
        look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
        look |= {"markerfacecolor": "white", "linewidth": WIDE if number == 0 and len(group) > 1 else THIN}
        found.append(TableCurves(table, short_name(names[id(inspection)]), number, look))
    return found


def _table_title(one: TableCurves, width: int) -> str:
    table = one.table
    part = f" ({table.part})" if table.part else ""
    front = f"{table.reserved_rows} offset rows + " if table.reserved_rows else ""
    size = f"{front}{table.positions} positions, {table.hidden_size} wide, {table.dtype}"
    return textwrap.fill(f"{one.name.strip()}{part}: {printable(table.name)}, {size}", width)


def draw_norms(axes: "Axes", tables: Sequence[TableCurves]) -> None:
    """Draw the norm of every row, those of offset rows in front of position 0."""
    axes.set(title="Norm of each row", xlabel="position", ylabel="Euclidean norm")
    _draw_by_position(axes, tables, [one.table.stats.norms for one in tables])
    for one in tables:
        if reserved := one.table.reserved_rows:
            look: dict[str, Any] = {"color": one.look["color"], "linestyle": "", "marker": "*"}
            axes.plot(range(-reserved, 0), finite(one.table.reserved_norms), label=f"offset rows of {one.name}", **look)
    reserved_norms = np.concatenate([one.table.reserved_norms for one in tables])
    if needs_log_scale(reserved_norms, np.concatenate([one.table.stats.norms for one in tables])):
        _scale_by_factors(axes)
    add_legend(axes)


def draw_cosines(axes: "Axes", tables: Sequence[TableCurves]) -> None:
    """Draw the cosine of every position to the next."""
    axes.set(title="Cosine of each position to the next", xlabel="position", ylabel="cosine similarity")
    _draw_by_position(axes, tables, [one.table.stats.cosines for one in tables])
    add_legend(axes)


def _draw_by_position(axes: "Axes", tables: Sequence[TableCurves], curves: Sequence[Floats]) -> None:
    """Draw curves over the positions, with rings around what stands out, and marks for new and for empty rows."""
    with_new = [one for one in tables if one.table.new_rows]
    axes.margins(y=0.05 + BAND * len(with_new))
    rings: list[tuple[int, float]] = []
    for one, values in zip(tables, map(finite, curves), strict=True):
        every = max(len(values) // 8, 1)
        axes.plot(values, label=one.name, markevery=(every * (one.number % 4) // 4, every), **one.look)
        rings += [(position, values[position]) for position in one.table.outliers if position < len(values)]
    if rings:
        ring: dict[str, Any] = {"markersize": 8, "markerfacecolor": "none", "markeredgewidth": 0.7}
        axes.plot(*zip(*rings, strict=True), "o", color="black", label="stands out", **ring)
    # Along the bottom a hatched band for each table, over the positions that a resize made.
    for place, one in enumerate(with_new):
        for start, stop in one.table.new_rows or ():
            band: dict[str, Any] = {"facecolor": "none", "edgecolor": one.look["color"], "hatch": "/////"}
            band |= {"ymin": BAND * place, "ymax": BAND * (place + 0.8), "label": f"new rows of {one.name}"}
            axes.axvspan(start - one.table.reserved_rows - 0.5, stop - one.table.reserved_rows - 0.5, **band)
    # Along the top crosses at positions whose rows are zero or hold no numbers.
    for one in tables:
        if empty := sorted({*one.table.stats.zeros, *one.table.stats.nonfinite}):
            cross: dict[str, Any] = {"color": one.look["color"], "linestyle": "", "marker": "x", "clip_on": False}
            cross |= {"transform": axes.get_xaxis_transform(), "label": f"zero or not finite in {one.name}"}
            axes.plot(empty, [1.0] * len(empty), **cross)


def _scale_by_factors(axes: "Axes") -> None:
    """Show equal factors as equal steps up, with plain numbers beside them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_spectra(axes: "Axes", tables: Sequence[TableCurves]) -> None:
    """Draw how much of the variance each of the leading components holds; legends name the components' periods."""
    axes.set(title="Spectrum", xlabel="principal component", ylabel="share of the variance (%)")
    lowest = 10.0
    for one in tables:
        stats = one.table.stats
        shares = 100 * stats.eigenvalues[:SPECTRUM] / (stats.eigenvalues.sum() or 1)
        shares = shares[shares > LEAST_SHARE]
        lowest = min([lowest, *(shares / 2)])
        periods = ", ".join(
            f"{found.period:.0f}{'*' * (found.period > len(stats.norms))}" if found.fit >= FITTING else "-"
            for found in stats.components
        )
        axes.plot(range(1, len(shares) + 1), shares, label=f"{one.name}: {periods}", **one.look)
    axes.set_ylim(lowest, 100)
    axes.locator_params(axis="x", integer=True)
    _scale_by_factors(axes)
    add_legend(axes, PERIODS)


def draw_map(axes: "Axes", table: TableReport, whose: str) -> None:
    """Draw the cosines between a table's positions, evenly spaced ones where there are many, as a heat map."""
    cosines, step = sampled_cosines(table.values[table.reserved_rows :])
    # The middle of a square is at the position that it stands for.
    low, high = -step / 2, len(cosines) * step - step / 2
    axes.imshow(cosines, cmap="cividis", vmin=-1, vmax=1, extent=(low, high, high, low), interpolation="nearest")
    label = "position" if step == 1 else f"position (1 in {step} drawn)"
    axes.set(title=f"Cosine between positions{whose}", xlabel=label, ylabel=label)
    axes.grid(visible=False)
    # What has no cosine is left out of the map, and shows what is behind it.
    axes.patch.set(facecolor="white", hatch="xxxx")


def sampled_cosines(table: NDArray[Any]) -> tuple[Floats, int]:
    """Return the cosines between evenly spaced rows, and the distance of these.

    The distance is a power of two, as lengths mostly are: so rows that are a whole table apart stay so.

    Args:
        table: Shape (n, d), any float dtype, offset rows removed.

    Returns:
        Shape (m, m), float64, m ≤ 512; NaN where a row is zero or holds no numbers. And the distance.
    """
    step = 1
    while len(table) > step * MAP_POSITIONS:
        step *= 2
    rows = table[::step].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.linalg.norm(rows, axis=1)
    empty = ~(np.isfinite(norms) & (norms > 0))
    rows[empty], norms[empty] = 0, 1
    unit = rows / norms[:, None]
    cosines = np.clip(unit @ unit.T, -1, 1)
    cosines[empty], cosines[:, empty] = np.nan, np.nan
    return cosines, step
