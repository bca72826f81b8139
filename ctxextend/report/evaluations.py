"""Evaluations as figures."""

import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ctxextend.evaluation.evaluation_result import Evaluation
from ctxextend.report.drawing import CHARACTERS, LINE, printable, write
from ctxextend.report.evaluationpanels import draw_contexts, draw_passkey, draw_positions, draw_retrieval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_evaluation"]

# Each panel so wide and high, in inches, and so many of them side by side.
PANEL = (4.6, 3.6)
BESIDE = 2

Draw = Callable[["Axes"], None]


def plot_evaluation(evaluation: Evaluation, path: Path) -> None:
    """Write a figure with a panel for each part that was measured.

    These are: losses by position and by context, passkeys, retrieval. The same evaluation gives the same bytes with
    the same matplotlib.

    Args:
        evaluation: What was found.
        path: The file; its ending is the format: .png, .svg or .pdf. What stands there is replaced once it is drawn.

    Raises:
        OutputError: matplotlib is not installed, the ending is no format, or the file cannot be written.
    """
    write(path, lambda: _figure(evaluation))


def _figure(evaluation: Evaluation) -> "Figure":
    from matplotlib.figure import Figure

    draws = _panels(evaluation)
    columns = min(max(len(draws), 1), BESIDE)
    rows = -(-len(draws) // columns) or 1
    width = columns * PANEL[0]
    title = textwrap.fill(_title(evaluation), int(width * CHARACTERS))
    height = rows * PANEL[1] + (title.count("\n") + 1) * LINE
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for draw, ax in zip(draws, axes, strict=False):
        draw(ax)
    for ax in axes[len(draws) :]:
        ax.remove()
    return figure


def _panels(evaluation: Evaluation) -> list[Draw]:
    """Return what draws each part that was measured."""
    original = evaluation.original_max_len
    scored = "masked tokens" if evaluation.kind == "masked" else "tokens"
    draws: list[Draw] = []
    if evaluation.positions is not None:
        draws.append(partial(draw_positions, positions=evaluation.positions, original=original, scored=scored))
    if evaluation.contexts is not None:
        draws.append(partial(draw_contexts, contexts=evaluation.contexts, original=original, scored=scored))
    if evaluation.passkey is not None:
        draws.append(partial(draw_passkey, passkey=evaluation.passkey))
    if evaluation.retrieval is not None:
        draws.append(partial(draw_retrieval, retrieval=evaluation.retrieval))
    return draws


def _title(evaluation: Evaluation) -> str:
    made = ""
    if evaluation.original is not None:
        made = f", made of {evaluation.original} ({evaluation.original_max_len})"
    text = f"{evaluation.documents:,} document{'s' * (evaluation.documents != 1)}, {evaluation.tokens:,} tokens"
    unfinished = "" if evaluation.complete else "; incomplete"
    what = f"{evaluation.source} ({evaluation.family}, {evaluation.kind}, {evaluation.max_len} tokens)"
    return printable(f"{what}{made}; on {text}{unfinished}")
