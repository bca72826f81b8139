"""The panels of a figure of position tables, each of them drawn into axes that it is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.inspection.reports import TableReport
from ctxextend.report.drawing import MAP, add_legend
from ctxextend.tables.stats import needs_log_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["Drawn", "draw_cosines", "draw_map", "draw_norms", "draw_spectra", "sampled_cosines"]

Floats = NDArray[np.float64]

# Positions of a heat map, and components of a spectrum.
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
class Drawn:
    """A table as it is drawn: its name in legends, and how its curves differ from the others'.

    Attributes:
        table: The table.
        name: What its model is called.
        colour: The colour of its curves.
        marker: The marker on its curves.
        width: The width of its curves, in points.
        number: Its place among those drawn together, from 0.
    """

    table: TableReport
    name: str
    colour: str
    marker: str
    width: float
    number: int

    @property
    def look(self) -> dict[str, Any]:
        """How its curves look, as matplotlib calls it."""
        look = {"color": self.colour, "marker": self.marker, "markersize": 4, "markerfacecolor": "white"}
        return look | {"linewidth": self.width}


def draw_norms(axes: "Axes", drawn: Sequence[Drawn]) -> None:
    """Draw the norm of every row, those of offset rows in front of position 0."""
    axes.set(title="Norm of each row", xlabel="position", ylabel="Euclidean norm")
    _draw_curves(axes, drawn, [one.table.stats.norms for one in drawn])
    for one in drawn:
        offset = one.table.offset
        if offset:
            look: dict[str, Any] = {"color": one.colour, "linestyle": "", "marker": "*"}
            axes.plot(range(-offset, 0), _finite(one.table.offset_norms), label=f"offset rows of {one.name}", **look)
    if needs_log_scale(*(np.concatenate(found) for found in zip(*map(_norms, drawn), strict=True))):
        _scale_by_factors(axes)
    add_legend(axes)


def draw_cosines(axes: "Axes", drawn: Sequence[Drawn]) -> None:
    """Draw the cosine of every position to the next."""
    axes.set(title="Cosine of each position to the next", xlabel="position", ylabel="cosine similarity")
    _draw_curves(axes, drawn, [one.table.stats.cosines for one in drawn])
    add_legend(axes)


def _draw_curves(axes: "Axes", drawn: Sequence[Drawn], curves: Sequence[Floats]) -> None:
    """Draw curves over the positions, with rings around what stands out, and marks for new and for empty rows."""
    axes.margins(y=0.05 + BAND * sum(bool(one.table.new_rows) for one in drawn))
    rings: list[tuple[int, float]] = []
    for one, values in zip(drawn, map(_finite, curves), strict=True):
        every = max(len(values) // 8, 1)
        axes.plot(values, label=one.name, markevery=(every * (one.number % 4) // 4, every), **one.look)
        rings += [(position, values[position]) for position in one.table.outliers if position < len(values)]
    if rings:
        look: dict[str, Any] = {"markersize": 8, "markerfacecolor": "none", "markeredgewidth": 0.7}
        axes.plot(*zip(*rings, strict=True), "o", color="black", label="stands out", **look)
    _mark_new(axes, drawn)
    _mark_empty(axes, drawn)


def _mark_new(axes: "Axes", drawn: Sequence[Drawn]) -> None:
    """Draw a hatched band along the bottom for each table, over the positions that a resize made."""
    for place, one in enumerate(one for one in drawn if one.table.new_rows):
        for start, stop in _new_positions(one.table):
            look: dict[str, Any] = {"facecolor": "none", "edgecolor": one.colour, "hatch": "/////"}
            height = {"ymin": BAND * place, "ymax": BAND * (place + 0.8)}
            axes.axvspan(start, stop, label=f"new rows of {one.name}", **height, **look)


def _mark_empty(axes: "Axes", drawn: Sequence[Drawn]) -> None:
    """Draw crosses along the top at positions whose rows are zero or hold no numbers."""
    for one in drawn:
        empty = sorted({*one.table.stats.zeros, *one.table.stats.nonfinite})
        if empty:
            look: dict[str, Any] = {"color": one.colour, "linestyle": "", "marker": "x", "clip_on": False}
            label = f"zero or not finite in {one.name}"
            axes.plot(empty, [1.0] * len(empty), transform=axes.get_xaxis_transform(), label=label, **look)


def _new_positions(table: TableReport) -> list[tuple[float, float]]:
    """Return where new positions begin and end on an axis on which each is one wide."""
    return [(start - table.offset - 0.5, stop - table.offset - 0.5) for start, stop in table.new_rows or ()]


def _scale_by_factors(axes: "Axes") -> None:
    """Show equal factors as equal steps up, with plain numbers beside them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_spectra(axes: "Axes", drawn: Sequence[Drawn]) -> None:
    """Draw how much of the variance each of the leading components holds."""
    axes.set(title="Spectrum", xlabel="principal component", ylabel="share of the variance (%)")
    lowest = 10.0
    for one in drawn:
        values = one.table.stats.eigenvalues
        shares = 100 * values[:SPECTRUM] / (values.sum() or 1)
        shares = shares[shares > LEAST_SHARE]
        lowest = min([lowest, *(shares / 2)])
        axes.plot(range(1, len(shares) + 1), shares, label=f"{one.name}: {_periods(one.table)}", **one.look)
    axes.set_ylim(lowest, 100)
    axes.locator_params(axis="x", integer=True)
    _scale_by_factors(axes)
    add_legend(axes, PERIODS)


def _periods(table: TableReport) -> str:
    """Return the periods of the leading components, as the legend's title explains them."""
    longest = len(table.stats.norms)
    return ", ".join(
        f"{found.period:.0f}{'*' * (found.period > longest)}" if found.fit >= FITTING else "-"
        for found in table.stats.components
    )


def draw_map(axes: "Axes", one: Drawn, whose: str) -> "AxesImage":
    """Draw the cosines between a table's positions, evenly spaced ones where there are many, as a heat map."""
    cosines, step = sampled_cosines(one.table.values[one.table.offset :])
    # The middle of a square is at the position that it stands for.
    low, high = -step / 2, len(cosines) * step - step / 2
    image = axes.imshow(cosines, cmap=MAP, vmin=-1, vmax=1, extent=(low, high, high, low), interpolation="nearest")
    label = "position" if step == 1 else f"position (1 in {step} drawn)"
    axes.set(title=f"Cosine between positions{whose}", xlabel=label, ylabel=label)
    axes.grid(visible=False)
    # What has no cosine is left out of the map, and shows what is behind it.
    axes.patch.set(facecolor="white", hatch="xxxx")
    return image


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


def _norms(one: Drawn) -> tuple[Floats, Floats]:
    return one.table.offset_norms, one.table.stats.norms


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)
