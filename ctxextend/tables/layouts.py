"""Sinusoidal position embeddings, and how sinusoidal a table is."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Orders of sines and cosines in transformers.
LAYOUTS = ("interleaved", "halves", "halves-log", "halves-log-cos")
# Relative error of an angle in float32: mostly that of exp(x), |x| < log(10000).
ANGLE_ROUNDING = 2.0**-20
FIT_VALUES = 2**18  # maximum number of values, in evenly spaced rows, to which layouts are fitted
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


def _minimum_width(layout: str) -> int:
    return 4 if layout.startswith("halves-log") else 2


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
        if width < _minimum_width(candidate):
            continue
        sines, cosines = _columns(width, candidate)
        angle = float(np.arctan2(first[0, sines][slowest], first[0, cosines][slowest]))
        wavelength = _wavelengths(width, candidate)[slowest]
        formula = Formula(candidate, round(angle % (2 * np.pi) * wavelength))
        if first_deviation(table, formula) is None:
            return formula
    return None


def first_deviation(table: NDArray[Any], formula: Formula) -> int | None:
    """Return the index of the first row that differs from a formula by more than rounding."""
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
        deviates = ~(errors <= rounding + positions[:, None] * tolerance).all(axis=1)
        if deviates.any():
            return row + int(deviates.argmax())
    return None


@dataclass(frozen=True)
class LayoutFit:
    """How sinusoidal a table is; see `fit_layout`."""

    layout: str  # the one of `LAYOUTS` that explains most
    explained: float  # share of the table's variance that its sinusoids explain, 0 to 1
    is_formula: bool  # whether every row equals the formula
    first_deviating_row: int | None  # the first row that does not, if others do


def fit_layout(table: NDArray[Any], layout: str = "") -> LayoutFit | None:
    """Return how much of the variance of a table its best layout explains.

    The fit is m + r·PE(t): a mean row m, one radius r, and a phase for each pair of columns, so
    that rows can start at any position. With z_i(t) = cosine column + i·sine column of pair i, and
    w_i(t) = exp(iω_i·t), each minus its mean,

        explained = (Σ_i |⟨w_i, z_i⟩|)² / (Σ_i ‖w_i‖² · Σ_i ‖z_i‖²),

    about 1/n for random rows. Slow sinusoids with a radius each would fit the trends of any learned
    table. Large tables are sampled, and a last column without a partner is ignored.

    Args:
        table: Finite rows, shape (n, d), any float dtype.
        layout: The layout that the model computes, if any.

    Returns:
        The fit; None if the rows are equal, as a single row is.
    """
    width = table.shape[1]
    with np.errstate(all="ignore"):
        explained = {
            name: _explained(table, name) for name in LAYOUTS if width >= _minimum_width(name)
        }
    best = max(explained, key=lambda name: explained[name], default="")
    if not (best and explained[best] >= 0):
        return None
    expected = layout or best
    formula = find_formula(table, expected)
    if formula is not None:
        return LayoutFit(
            layout=formula.layout,
            explained=explained[formula.layout],
            is_formula=True,
            first_deviating_row=None,
        )
    deviating = None
    for row in (0, len(table) // 2):  # the sinusoids that the first or a middle row starts
        single = find_formula(table[row : row + 1], expected)
        if single is not None and single.layout == expected:
            deviating = first_deviation(table, Formula(expected, single.start - row))
            break
    if deviating is None and layout:
        deviating = 0
    return LayoutFit(
        layout=best,
        explained=explained[best],
        is_formula=False,
        first_deviating_row=deviating,
    )


def _explained(table: NDArray[Any], layout: str) -> float:
    """Return the share of a table's variance that a layout explains; NaN if there is none."""
    width = table.shape[1]
    pairs = width // 2
    rows = np.linspace(0, len(table) - 1, min(len(table), FIT_VALUES // width)).astype(np.intp)
    sampled = table[rows].astype(np.float64)
    sampled -= sampled[0]  # equal rows become exactly zero
    sines, cosines = _columns(width, layout)
    values = sampled[:, cosines][:, :pairs] + 1j * sampled[:, sines][:, :pairs]
    waves = np.exp(1j * rows[:, None] / _wavelengths(width, layout)[:pairs])
    values -= values.mean(axis=0)
    waves -= waves.mean(axis=0)
    products = np.abs(np.einsum("tp,tp->p", waves.conj(), values)).sum()
    variances = np.vdot(waves, waves).real * np.vdot(values, values).real
    return min(float(products**2 / variances), 1.0)
