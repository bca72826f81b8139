"""The method that a table's own figures speak for, and what a method chose by them, in words."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.bands import bands
from ctxextend.tables.bandsplit import SHORTEST, choose_split, default_gain

__all__ = ["auto", "explain_auto", "explain_bands"]

Rows = NDArray[np.float64]


def auto(table: Rows, rows: int, *, keep: int = 0) -> Rows:
    """Make the new rows by `bands`, or of a table of fewer than 32 rows, which tell too little, by `linear`.

    Args:
        table: Learned rows, shape (n, d), float64.
        rows: Rows wanted, m ≥ n.
        keep: Rows at the start that stay as they are.

    Returns:
        Shape (m, d), float64.

    Source: our own.
    """
    return bands(table, rows, keep=keep, **_flags(table))


def _flags(table: Rows) -> dict[str, Any]:
    # bands without a fast part that widens nothing is linear interpolation
    return {"sigma": 0.0, "gain": 1.0} if len(table) < SHORTEST else {}


def explain_auto(table: Rows, rows: int, *, keep: int = 0) -> str:
    """Say which method `auto` takes, and why; arguments as there."""
    if _flags(table):
        return f"auto took linear: {len(table)} rows tell too little of themselves to part them"
    return f"auto took {explain_bands(table, rows, keep=keep)}"


def explain_bands(
    table: Rows,
    rows: int,
    *,
    keep: int = 0,
    sigma: float | None = None,
    repeat: tuple[int, int] | None = None,
    gain: float | None = None,
) -> str:
    """Say what `bands` does with a table, and by which of its figures; arguments as there."""
    split = choose_split(table, keep=keep, sigma=sigma, repeat=repeat)
    widened = default_gain(split, len(table), rows) if gain is None else gain
    if split.stop - split.head < SHORTEST or not np.isfinite(table[split.head : split.stop]).all():
        return f"bands without a fast part: the rows are too few to part, or no numbers; gain {widened:.3g}"
    near = "rows grow apart within an eighth of the table" if split.is_local else "far rows are much like near ones"
    why = f"gain {widened:.3g} ({'as given' if gain is not None else near})"
    if not split.sigma:
        left = f" (smoothing leaves {split.share:.0%} of the variance, {split.grain:.2g} from noise)"
        return f"bands without a fast part{left if sigma is None else ''}: the rows are stretched, {why}"
    first, stop = split.repeat
    left = f"it leaves {split.share:.0%} of the variance, {split.grain:.2g} from noise"
    what = f"bands with sigma {split.sigma:.3g} ({left}), --repeat {first}:{stop} (its ends match by {split.match:.2f})"
    return f"{what}, {why}"
