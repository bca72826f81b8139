"""Sinusoidal position embeddings, and whether a table has them."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Orders of sines and cosines in transformers.
LAYOUTS = ("interleaved", "halves", "halves-log", "halves-log-cos")
# Relative error of an angle in float32: mostly that of exp(x), |x| < log(10000).
ANGLE_ROUNDING = 2.0**-20
BLOCK_ROWS = 256  # rows processed at once, to avoid a second table of the new length in memory


def sinusoidal_rows(
    positions: NDArray[np.int64],
    width: int,
    layout: str = "interleaved",
    *,
    in_float32: bool = False,
) -> Floats:
    """Return sinusoidal embeddings PE(t), shape (m, d), of absolute positions t, shape (m,).

    ``interleaved``: PE(t)[2i] = sin(t / 10000^(2i/d)), PE(t)[2i+1] = cos(t / 10000^(2i/d)).
    ``halves``: all sines, then all cosines. ``halves-log``: as halves, of t / 10000^(i/(d/2 - 1)),
    for d ≥ 4. ``halves-log-cos``: cosines first. If d is odd, one more column is a sine, or zero
    for ``halves-log``. Cast to float32, they equal those of transformers bit for bit; `in_float32`
    is for models that compute with torch in float32.

    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762; ``halves-log`` as in tensor2tensor
    and fairseq.
    """
    sines, cosines = _columns(width, layout)
    result = np.zeros((len(positions), width))
    if in_float32:
        import torch

        if layout.startswith("halves-log"):
            step = math.log(10000) / (width // 2 - 1)
            frequencies = torch.exp(torch.arange(width // 2).float() * -step)
        else:
            frequencies = 1.0 / 10000 ** (torch.arange(0, width, 2) / width)
        phases = torch.from_numpy(positions).float()[:, None] * frequencies
        result[:, sines] = torch.sin(phases)
        result[:, cosines] = torch.cos(phases[:, : width // 2])
        return result
    angles = positions[:, None] / _wavelengths(width, layout)
    np.sin(angles, out=result[:, sines])
    np.cos(angles[:, : width // 2], out=result[:, cosines])
    return result


def _wavelengths(width: int, layout: str) -> Floats:
    """Return the positions per radian of each pair of columns.

    The shape is (ceil(d/2),), or (d//2,) for ``halves-log``.
    """
    if layout.startswith("halves-log"):
        step = math.log(10000) / max(width // 2 - 1, 1)
        return np.asarray(np.exp(np.arange(width // 2) * step))
    return np.asarray(10000.0 ** (np.arange(0, width, 2) / width))


def _columns(width: int, layout: str) -> tuple[slice, slice]:
    if layout == "interleaved":
        return slice(0, None, 2), slice(1, None, 2)
    pairs = width // 2
    if layout == "halves-log-cos":
        return slice(pairs, 2 * pairs), slice(pairs)
    sines = pairs
    if layout == "halves":
        sines += width % 2
    return slice(sines), slice(sines, sines + pairs)


class Formula(NamedTuple):
    """The sinusoidal formula of a table: row i is PE(start + i)."""

    layout: str  # one of `LAYOUTS`
    start: int


def find_formula(table: NDArray[Any], layout: str | None = None) -> Formula | None:
    """Return the formula that every row of a table equals within rounding, if there is one.

    Args:
        table: Shape (n, d), any float dtype. Angles may be rounded to float32.
        layout: The layout to return if several fit, as for one row; by default the first.
    """
    width = table.shape[1]
    first = table[:1].astype(np.float64)
    if not abs(float(np.vdot(first, first)) - width / 2) < 0.6:  # radius 1 each; NaN fails too
        return None
    slowest = width // 2 - 1  # the pair of columns that tells the position
    for candidate in sorted(LAYOUTS, key=lambda name: name != layout):
        least = 2
        if candidate.startswith("halves-log"):
            least = 4
        if width < least:
            continue
        sines, cosines = _columns(width, candidate)
        angle = float(np.arctan2(first[0, sines][slowest], first[0, cosines][slowest]))
        wavelength = _wavelengths(width, candidate)[slowest]
        formula = Formula(candidate, round(angle % (2 * np.pi) * wavelength))
        if _equals(table, formula):
            return formula
    return None


def _equals(table: NDArray[Any], formula: Formula) -> bool:
    """Whether all rows equal a formula within rounding."""
    import ml_dtypes  # knows all float dtypes

    eps = ml_dtypes.finfo(table.dtype).eps  # type: ignore[no-untyped-call]
    # A table in float64 may have been converted.
    rounding = 2 * float(max(eps, np.finfo(np.float32).eps))
    width = table.shape[1]
    layout, start = formula
    tolerance = np.zeros(width)
    slopes = ANGLE_ROUNDING / _wavelengths(width, layout)
    for columns in _columns(width, layout):
        tolerance[columns] = slopes[: len(tolerance[columns])]
    for row in range(0, len(table), BLOCK_ROWS):
        block = table[row : row + BLOCK_ROWS].astype(np.float64)
        positions = start + row + np.arange(len(block))
        errors = np.abs(block - sinusoidal_rows(positions, width, layout))
        if not (errors <= rounding + positions[:, None] * tolerance).all():
            return False
    return True
