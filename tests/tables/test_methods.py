from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.interpolate import make_interp_spline

from ctxextend.errors import ResizeError
from ctxextend.settings import Resize
from ctxextend.tables import methods
from ctxextend.tables.apply import resize_table
from ctxextend.tables.layouts import LAYOUTS, sinusoidal_rows
from ctxextend.tables.methods import METHODS
from tests.helpers import pico
from tests.helpers.method_choices import read_choice

TABLES = arrays(
    np.float64, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=st.floats(-8, 8)
)


def normal(rows: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, width))


def supported_rows(name: str, learned: int, rows: int) -> int:
    """Return `rows`, or the maximum of the method if that is lower."""
    maximum = METHODS[name].max_rows
    if maximum is None:
        return rows
    return min(rows, maximum(learned))


@pytest.mark.parametrize(
    ("method", "learned", "expected"),
    [
        (
            "spline",
            [0, 1, 8, 27, 64, 125],
            [0, 0.125, 1, 3.375, 8, 15.625, 27, 42.875, 64, 91.125, 125],
        ),
        ("spline", [4, 1, 0], [4, 2.25, 1, 0.25, 0]),
        ("spline", [5], [5, 5, 5]),
        ("hierarchical", [1, 1.3], [1, 1.3, 1.2, 1.5]),
        ("last", [0, 1, 5], [0, 1, 5, 5, 5]),
        ("mean", [0, 1, 5], [0, 1, 5, 2, 2]),
    ],
)
def test_methods_return_the_expected_rows(
    method: str, learned: list[float], expected: list[float]
) -> None:
    table = np.array(learned, np.float64)[:, None]
    result = METHODS[method].function(table, len(expected))
    np.testing.assert_allclose(result[:, 0], expected, rtol=0, atol=1e-15)


# Equality with reference implementations


@pytest.mark.parametrize(("learned", "rows"), [(3, 10), (300, 701), (1, 4)])
def test_linear_equals_torch_with_align_corners(learned: int, rows: int) -> None:
    table = normal(learned, 3)
    image = torch.from_numpy(table)[None, None]
    interpolated = torch.nn.functional.interpolate(
        image, size=(rows, 3), mode="bilinear", align_corners=True
    )
    expected = interpolated[0, 0].numpy()

    result = methods.linear(table, rows)

    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)


def test_copy_equals_the_longformer_notebook() -> None:
    learned = normal(6, 4)
    rows = 24
    expected = np.empty((rows, 4))
    position = 0
    while position < rows - 1:
        expected[position : position + len(learned)] = learned
        position += len(learned)

    result = methods.copy(learned, rows)

    assert np.array_equal(result, expected)


def test_stretch_equals_long_clip() -> None:
    learned = normal(77, 5)
    kept = 20
    steps = 4
    differences = np.diff(learned, axis=0)
    expected = [*learned[:kept]]
    for row in range(kept, len(learned)):
        # The last row is extrapolated with the step before it.
        difference = differences[min(row, len(differences) - 1)]
        for k in range(steps):
            expected.append(learned[row] + k / steps * difference)
    assert len(expected) == 248

    stretched = methods.stretch(learned[kept:], 248 - kept)

    result = np.vstack([learned[:kept], stretched])
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("alpha", [0.4, 0.9])
def test_hierarchical_equals_bert4keras(alpha: float) -> None:
    table = normal(24, 3)
    rows = 24**2
    block, offset = np.divmod(np.arange(rows), 24)
    base = (table - alpha * table[:1]) / (1 - alpha)
    expected = alpha * base[block] + (1 - alpha) * base[offset]

    result = methods.hierarchical(table, rows, alpha=alpha)

    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)
    distinct = np.unique(result.round(9), axis=0)
    assert len(distinct) == rows


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize(("learned", "rows"), [(3, 10), (5, 5), (128, 513)])
def test_spline_equals_scipy(learned: int, rows: int, degree: int) -> None:
    table = normal(learned, 3)
    positions = np.arange(rows) * (learned - 1) / (rows - 1)
    reference = make_interp_spline(np.arange(learned), table, k=min(degree, learned - 1))
    expected = reference(positions)

    result = methods.spline(table, rows, degree=degree)

    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-13)


# Properties of new rows


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scope", ["new", "all"])
@pytest.mark.parametrize("width", [2, 4, 5])
def test_sinusoidal_rows_are_at_the_median_distance_from_the_mean(
    width: int, scope: str, layout: str
) -> None:
    table = np.random.default_rng(2).normal(3, 0.1, size=(6, width))
    mean = table.mean(axis=0)
    radius = np.median(np.linalg.norm(table - mean, axis=1))
    first = 0
    if scope == "new":
        first = 6

    result = methods.sinusoidal(table, 11, scope=scope, layout=layout, start=2)

    kept = result[:first]
    assert np.array_equal(kept, table[:first])
    new = result[first:]
    distances = np.linalg.norm(new - mean, axis=1)
    np.testing.assert_allclose(distances, radius, rtol=1e-12)
    waves = sinusoidal_rows(np.arange(2 + first, 13), width, layout)
    directions = waves / np.linalg.norm(waves, axis=1, keepdims=True)
    np.testing.assert_allclose(new, mean + radius * directions, rtol=1e-12)


def test_sinusoidal_radius_replaces_the_median_distance() -> None:
    table = normal(6, 8)
    waves = sinusoidal_rows(np.arange(9), 8)  # of radius √(8/2)

    rows = methods.sinusoidal(table, 9, scope="all", radius=2.0)

    centred = rows - table.mean(axis=0)
    np.testing.assert_allclose(centred, waves, rtol=0, atol=1e-15)


@pytest.mark.parametrize("method", [methods.linear, methods.spline])
def test_interpolation_keeps_coinciding_rows_bit_identical(method: Any) -> None:
    table = np.array([[np.inf, -0.0], [-0.0, 2.0], [np.nan, -0.0]])
    for rows in (3, 5, 7):
        step = (rows - 1) // 2
        coinciding = method(table, rows)[::step]
        assert coinciding.tobytes() == table.tobytes()


LEARNED_METHODS = sorted(pico.LEARNED_METHODS)


@given(table=TABLES, extra=st.integers(0, 20), name=st.sampled_from(LEARNED_METHODS))
def test_methods_are_pure_and_keep_learned_rows_if_stated(
    table: Any, extra: int, name: str
) -> None:
    method = METHODS[name]
    learned = len(table)
    rows = supported_rows(name, learned, learned + extra)
    before = table.copy()

    result = method.function(table, rows)
    again = method.function(table, rows)

    assert result.shape == (rows, table.shape[1])
    assert result.dtype == np.float64
    assert np.array_equal(result, again)
    assert np.array_equal(table, before)
    if method.keeps_learned_rows or rows == learned:
        assert np.array_equal(result[:learned], table)


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "magic"},
            "Unknown method 'magic'. Methods: auto, copy, linear.*add one with "
            "ctxextend.register_method",
        ),
        ({"method": "bnads"}, "Unknown method 'bnads'. Did you mean bands?"),
        (
            {"method": "bands:sgima=3"},
            "has no setting 'sgima'. Did you mean sigma.* sigma, repeat, gain, high-gain, within,",
        ),
        (
            {"method": "linear:keep-first=2", "keep_first": 3},
            "--keep-first 3 contradicts --method linear:keep-first=2",
        ),
        ({"method": "hierarchical:alpha=0"}, "alpha must be between 0 and 1.*, got '0'"),
        ({"method": "bands:repeat=3:9,sigma=0"}, "repeat has no effect with sigma=0. Remove one"),
    ],
)
def test_read_choice_rejects_invalid_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ResizeError, match=message):
        read_choice(**options)


# A value of each setting, as it is typed and as it is read.


def test_read_choice_normalizes_the_spelling_of_settings() -> None:
    spelled = " bands: repeat=020:90, sigma=4.0,keep_first=3 "
    normalized = "bands:sigma=4,repeat=20:90"

    resize = Resize(99, method=spelled)

    assert resize == Resize(99, method=normalized, keep_first=3)
    assert resize.choice.text == normalized
    assert resize.choice == read_choice(spelled)


@given(
    st.floats(0.5, allow_infinity=False),
    st.floats(0, allow_infinity=False, exclude_min=True),
    st.integers(0, 99),
)
def test_choice_text_round_trips_floats(sigma: float, gain: float, first: int) -> None:
    settings = {"sigma": sigma, "gain": gain, "repeat": (first, first + 9)}
    bands = read_choice("bands")
    choice = replace(bands, settings={**bands.settings, **settings})

    assert read_choice(choice.text) == choice


@pytest.mark.parametrize("method", ["auto", "bands"])
def test_keep_first_above_the_learned_rows_keeps_all_of_them(method: str) -> None:
    table = normal(40, 4).astype(np.float32)
    all_rows = read_choice(method, keep_first=40)
    more_rows = read_choice(method, keep_first=200)

    all_kept = resize_table(table, 80, all_rows)
    more_kept = resize_table(table, 80, more_rows)

    assert np.array_equal(all_kept, more_kept)
    assert np.array_equal(more_kept[:40], table)
