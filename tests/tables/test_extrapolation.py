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
    """Return sinusoids around a mean, with `cycles` per `learned` rows, in random or orthogonal
    directions.
    """
    generator = np.random.default_rng(0)
    angles = 2 * np.pi * np.outer(np.arange(rows), cycles) / learned
    directions = generator.normal(size=(2 * len(cycles), width))
    if orthogonal:
        directions = np.linalg.qr(directions.T)[0].T
    return np.hstack([np.cos(angles), np.sin(angles)]) @ directions + generator.normal(size=width)


@pytest.mark.parametrize(
    ("width", "cycles"),
    [(1, [1.7]), (3, [2.14, 8.5, 18.7]), (40, [1, 2, 3, 4, 5, 6.5, 20, 31.5])],
    ids=str,
)
def test_spectral_extrapolates_sinusoids_exactly(width: int, cycles: list[float]) -> None:
    table = waves(cycles, 600, width)
    np.testing.assert_allclose(spectral(table[:64], 600), table, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cycles", [[3], [1, 4, 9, 30]], ids=str)
@pytest.mark.parametrize("width", [8, 100])
def test_rotation_extrapolates_rotations_exactly(cycles: list[int], width: int) -> None:
    table = waves(cycles, 600, width, orthogonal=True)
    np.testing.assert_allclose(rotation(table[:64], 600), table, rtol=0, atol=1e-9)


@given(
    table=arrays(
        np.float64, st.tuples(st.integers(1, 12), st.integers(1, 5)), elements=st.floats(-8, 8)
    ),
    extra=st.integers(1, 40),
)
def test_rotation_new_rows_are_at_the_median_distance_from_the_mean(table: Any, extra: int) -> None:
    result = rotation(table, len(table) + extra)
    mean = table.mean(axis=0)
    distances = np.linalg.norm(table - mean, axis=1)
    if distances[-1] > 1e-3 * distances.max():  # otherwise the last row has no direction
        expected = np.full(extra, np.median(distances))
        np.testing.assert_allclose(
            np.linalg.norm(result[len(table) :] - mean, axis=1), expected, rtol=1e-4, atol=1e-9
        )


@given(
    table=arrays(
        np.float64, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.floats(-8, 8)
    ),
    extra=st.integers(1, 400),
)
def test_spectral_clips_the_distance_of_new_rows_from_the_mean(table: Any, extra: int) -> None:
    result = spectral(table, len(table) + extra)
    mean = table.mean(axis=0)
    largest = np.linalg.norm(table - mean, axis=1).max()
    assert (
        np.linalg.norm(result - mean, axis=1).max()
        <= methods.MAX_DISTANCE * largest * (1 + 1e-9) + 1e-12
    )


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
    for unit in (1e300, 1e-300):
        np.testing.assert_allclose(
            method(unit * table, 90) / unit, method(table, 90), rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("method", METHODS)
def test_extrapolation_is_equivariant_to_rotations_of_the_table(method: Any) -> None:
    """Results must not depend on the signs of principal components, which differ between
    machines.
    """
    table = waves([1.3, 4, 9], 64, 6) + np.random.default_rng(2).normal(0, 0.05, size=(64, 6))
    axes = np.linalg.qr(np.random.default_rng(3).normal(size=(6, 6)))[0]
    np.testing.assert_allclose(
        method(table @ axes, 200), method(table, 200) @ axes, rtol=0, atol=1e-7
    )
