"""The figure of a training run: its training loss and its held-out loss, each on its own axis."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Log = Sequence[Mapping[str, Any]]


def training_figure(log: Log, title: str, short: int | None = None) -> bytes:
    """Return a PNG image of the losses of a training log by ``step``.

    Args:
        log: Its lines.
        title: Of the figure.
        short: The number of positions that the base has.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    figure.suptitle(title, parse_math=False, fontsize=10)
    training, held_out = figure.subplots(1, 2)
    training.set(xlabel="step", ylabel="training loss")
    _plot(training, log, "loss", "", "")
    held_out.set(xlabel="step", ylabel="held-out loss")
    _plot(held_out, log, "eval_loss", "all positions", "o")
    if short is not None:
        _plot(held_out, log, "eval_loss_short", f"positions below {short}", "v")
        _plot(held_out, log, "eval_loss_long", f"positions from {short} on", "^")
    if len(held_out.lines) > 1:
        held_out.legend(frameon=False, fontsize=8)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    return image.getvalue()


def _plot(axes: "Axes", log: Log, key: str, label: str, marker: str) -> None:
    lines = [line for line in log if key in line]
    if lines:
        steps = [line["step"] for line in lines]
        losses = [line[key] for line in lines]
        axes.plot(steps, losses, label=label, marker=marker, markersize=4, linewidth=1.2)
