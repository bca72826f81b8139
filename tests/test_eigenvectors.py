import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxextend.tables import eigenvectors
from ctxextend.tables.eigenvectors import leading_eigenvectors


def matrix(values: list[float], seed: int = 0) -> np.ndarray:
    """A symmetric matrix of these eigenvalues."""
    turned, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))
    made: np.ndarray = (turned * values) @ turned.T
    return made


def descending(values: list[float]) -> np.ndarray:
    return np.sort(np.array(values))[::-1]


def check(given: np.ndarray, values: np.ndarray, count: int) -> None:
    found = leading_eigenvectors(given, values, count)
    assert found.shape == (len(given), count)
    np.testing.assert_allclose(found.T @ found, np.eye(count), atol=1e-8)
    np.testing.assert_allclose(given @ found, found * values[:count], atol=1e-8 * values[0])


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=40), st.integers(0, 5))
def test_leading_eigenvectors_of_any_spectrum(values: list[float], seed: int) -> None:
    check(matrix(values, seed), descending(values), 4)


@pytest.mark.parametrize("values", [[5.0] * 6, [3.0, 3.0, 1.0, 1.0, 0.0], [1.0, 1e-9, 1e-9, 1e-9, 0.0]])
def test_leading_eigenvectors_of_values_that_stand_twice(values: list[float]) -> None:
    check(matrix(values), descending(values), 4)


def test_leading_eigenvectors_of_noise_are_those_of_eigh() -> None:
    rows = np.random.default_rng(1).standard_normal((300, 500))
    values, vectors = np.linalg.eigh(rows @ rows.T)
    found = leading_eigenvectors(rows @ rows.T, values[::-1], 4)
    np.testing.assert_allclose(np.abs(found.T @ vectors[:, :-5:-1]), np.eye(4), atol=1e-9)


def test_leading_eigenvectors_need_no_equations_where_the_values_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigenvectors, "_by_inverse_iteration", None)
    values = [2.0**-place for place in range(50)]
    check(matrix(values), descending(values), 4)


def test_leading_eigenvectors_where_lanczos_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigenvectors, "STEPS", 8)
    values = [1 + place / 100 for place in range(50)]
    check(matrix(values), descending(values), 4)


def test_leading_eigenvectors_of_none() -> None:
    assert leading_eigenvectors(np.zeros((3, 3)), np.zeros(3), 0).shape == (3, 0)


def test_leading_eigenvectors_of_values_far_below_the_largest() -> None:
    values = np.array([1, 1e-3, 1e-6, 5e-11, 4e-11, *(3e-11 / 2.0**place for place in range(40))])
    found = leading_eigenvectors(np.diag(values), values, 4)
    np.testing.assert_allclose(np.abs(found), np.eye(len(values))[:, :4], atol=0.01)
