"""How every figure looks, and how it becomes a file with the same bytes each time."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoints.redaction import hidden
from ctxextend.report.saving import check_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ABOVE", "BELOW", "CHARACTERS", "COLOURS", "LINE", "MAP", "MARKERS", "add_legend", "printable", "write"]

DOTS_PER_INCH = 144
# A line of a title or a legend is so high, in inches, and an inch of it holds so many characters.
LINE = 0.2
CHARACTERS = 11

# Dark and wide below, light and thin above: curves that are equal over a stretch are both seen, in grey too.
COLOURS = ("#0b3c7d", "#f28e2b", "#7a1f5c", "#59a14f", "#9c9c9c")
# One more than colours, so that the two together differ for longer.
MARKERS = ("o", "s", "^", "D", "v", "P")
BELOW, ABOVE = 2.4, 1.1
# Of one order of lightness, so that it can be read in grey.
MAP = "cividis"

STYLE: dict[str, Any] = {
    **{"svg.hashsalt": "ctxextend", "text.parse_math": False, "font.size": 8, "axes.titlesize": 9},
    **{"legend.fontsize": 7, "axes.grid": True, "grid.alpha": 0.3, "hatch.linewidth": 0.6},
}
# No dates, so that the same figure has the same bytes.
METADATA: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def write(path: Path, make: "Callable[[], Figure]") -> None:
    """Write a figure; the same one gives the same bytes with the same matplotlib.

    Args:
        path: The file; its ending is the format: .png, .svg or .pdf. What stands there is replaced once it is drawn.
        make: Gives the figure, once matplotlib's settings are those of all figures.

    Raises:
        OutputError: matplotlib is not installed, the ending is no format, or the file cannot be written.
    """
    check_figure(path)
    from matplotlib import style

    # Reset, so that nothing of a user's own matplotlibrc is in it.
    with style.context([STYLE], after_reset=True), warnings.catch_warnings():
        # A name in a script that the font has not is drawn as boxes; the figure is none the worse for it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        data = io.BytesIO()
        kind = path.suffix.lower()
        make().savefig(data, format=kind[1:], dpi=DOTS_PER_INCH, metadata=METADATA[kind])
    save(path, data.getvalue())


def printable(text: str) -> str:
    """Return a text without secrets, and with what cannot be drawn, such as a line's end, as question marks."""
    return "".join(character if character.isprintable() else "?" for character in hidden(text))


def add_legend(axes: "Axes", title: str = "", below: float = 0.13) -> None:
    """Add the legend below the axes, by a share of their height, where it covers nothing."""
    if title or len(axes.get_legend_handles_labels()[0]) > 1:
        place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -below)}
        axes.legend(title=title, title_fontsize=7, alignment="left", **place)
