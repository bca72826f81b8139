"""The losses of a training as a curve."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.report.drawing import COLOURS, add_legend, printable, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_losses"]

# The key of a loss in the log, what it is of, and how it is drawn.
CURVES = (("loss", "trained on", COLOURS[0], ""), ("eval_loss", "held out", COLOURS[1], "o"))

# In inches.
SIZE = (6.4, 3.6)


def plot_losses(log: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw the loss of each step, and the held-out loss wherever it was measured.

    Args:
        log: Of each step ``step`` and ``loss``, of each measurement ``step`` and ``eval_loss``.
        title: What was trained.
        path: The file; its ending is the format: .png, .svg or .pdf.

    Raises:
        OutputError: matplotlib is not installed, or the file cannot be written.
    """
    write(path, lambda: _figure(log, title))


def _figure(log: Sequence[Mapping[str, Any]], title: str) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    ax = figure.subplots()
    for key, label, colour, marker in (
        ("loss", "trained on", COLOURS[0], ""),
        ("eval_loss", "held out", COLOURS[1], "o"),
    ):
        points = [(line["step"], line[key]) for line in log if key in line]
        if points:
            ax.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4, label=label, linewidth=1.2)
    ax.set(title=printable(title), xlabel="step", ylabel="loss")
    add_legend(ax)
    return figure
