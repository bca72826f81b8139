"""Extrapolation with `spectral` and `rotation`: exact on tables that match their model."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ctxextend.tables import methods
from ctxextend.tables.methods import rotation, spectral

METHODS = [spectral, rotation]


def waves(
    cycles: Any, rows: int, width: int, learned: int = 64, *, orthogonal: bool = False
) -> Any:
    """Return sinusoids around a mean in random or orthogonal directions.

    There are `cycles` per `learned` rows.
    """
    generator = np.random.default_rng(0)
    angles = 2 * np.pi * np.outer(np.arange(rows), cycles) / learned
    sinusoids = np.hstack([np.cos(angles), np.sin(angles)])
    directions = generator.normal(size=(2 * len(cycles), width))
    if orthogonal:
        axes, _ = np.linalg.qr(directions.T)
        directions = axes.T
    mean = generator.normal(size=width)
    return sinusoids @ directions + mean


def distances_from_mean(rows: Any, table: Any) -> Any:
    """Return the distance of each of these rows from the mean row of the table."""
    return np.linalg.norm(rows - table.mean(axis=0), axis=1)


@pytest.mark.parametrize(
    ("width", "cycles"),
    [(1, [1.7]), (3, [2.14, 8.5, 18.7]), (40, [1, 2, 3, 4, 5, 6.5, 20, 31.5])],
    ids=str,
)
def test_spectral_extrapolates_sinusoids_exactly(width: int, cycles: list[float]) -> None:
    table = waves(cycles, 600, width)
    result = spectral(table[:64], 600)
    np.testing.assert_allclose(result, table, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cycles", [[3], [1, 4, 9, 30]], ids=str)
@pytest.mark.parametrize("width", [8, 100])
def test_rotation_extrapolates_rotations_exactly(cycles: list[int], width: int) -> None:
    table = waves(cycles, 600, width, orthogonal=True)
    result = rotation(table[:64], 600)
    np.testing.assert_allclose(result, table, rtol=0, atol=1e-9)


@given(
    table=arrays(
        np.float64, st.tuples(st.integers(1, 12), st.integers(1, 5)), elements=st.floats(-8, 8)
    ),
    extra=st.integers(1, 40),
)
def test_rotation_new_rows_are_at_the_median_distance_from_the_mean(table: Any, extra: int) -> None:
    learned = len(table)
    result = rotation(table, learned + extra)
    distances = distances_from_mean(table, table)
    if distances[-1] > 1e-3 * distances.max():  # otherwise the last row has no direction
        new_distances = distances_from_mean(result[learned:], table)
        expected = np.full(extra, np.median(distances))
        np.testing.assert_allclose(new_distances, expected, rtol=1e-4, atol=1e-9)


@given(
    table=arrays(
        np.float64, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.floats(-8, 8)
    ),
    extra=st.integers(1, 400),
)
def test_spectral_clips_the_distance_of_new_rows_from_the_mean(table: Any, extra: int) -> None:
    result = spectral(table, len(table) + extra)
    farthest = distances_from_mean(table, table).max()
    limit = methods.MAX_DISTANCE * farthest * (1 + 1e-9) + 1e-12
    assert distances_from_mean(result, table).max() <= limit


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_extrapolation_of_non_finite_rows_returns_nan(method: Any, value: float) -> None:
    table = np.random.default_rng(0).normal(size=(20, 4))
    table[3, 1] = value
    result = method(table, 25)
    assert result[:20].tobytes() == table.tobytes()
    assert np.isnan(result[20:]).all()


@pytest.mark.parametrize("method", METHODS)
def test_extrapolation_does_not_depend_on_the_scale(method: Any) -> None:
    table = waves([1.3, 4], 40, 5, 40)
    expected = method(table, 90)
    for unit in (1e300, 1e-300):
        result = method(unit * table, 90) / unit
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_extrapolation_is_equivariant_to_rotations_of_the_table(method: Any) -> None:
    """The signs of principal components, which differ between machines, do not matter."""
    noise = np.random.default_rng(2).normal(0, 0.05, size=(64, 6))
    table = waves([1.3, 4, 9], 64, 6) + noise
    axes, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(6, 6)))
    rotated_before = method(table @ axes, 200)
    rotated_after = method(table, 200) @ axes
    np.testing.assert_allclose(rotated_before, rotated_after, rtol=0, atol=1e-7)
