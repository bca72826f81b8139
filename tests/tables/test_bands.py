"""Method `bands`: how a table is split, how its parts are extended, and which reasons are given."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.errors import ResizeError
from ctxextend.tables import methods
from ctxextend.tables.apply import choose_method, resize_table
from ctxextend.tables.bands import (
    MIN_ROWS,
    Rows,
    bands,
    choose_split,
    smoothed,
    typical_rows,
)
from tests.helpers.method_choices import read_choice
from tests.helpers.position_tables import PERIOD, TWO_BANDS, high_rows, low_rows, noise


def distances(rows: Rows, others: Rows) -> Rows:
    """Return the distance of each row from the same row of the other table."""
    norms: Rows = np.linalg.norm(rows - others, axis=1)
    return norms


def test_smoothed_equals_weighted_polyfit_around_each_row() -> None:
    """Compares single rows, at both ends and across the block boundary."""
    rows = noise(300, 3)
    result = smoothed(rows, 4.0)
    for row in (0, 1, 150, 255, 256, 299):
        steps = np.arange(300) - row
        weights = np.exp(-0.25 * (steps / 4.0) ** 2)  # polyfit squares them
        for column in range(3):
            _, constant = np.polyfit(steps, rows[:, column], 1, w=weights)
            np.testing.assert_allclose(result[row, column], constant, rtol=1e-5)


def test_choose_split_finds_both_parts() -> None:
    split = choose_split(TWO_BANDS, typical_rows(TWO_BANDS))
    first, stop = split.repeat
    assert split.head == 0
    assert split.stop == 128
    assert split.sigma == 16
    assert split.noise_distance > 1
    assert (stop - first) % PERIOD == 0
    assert split.match > 0.99


@pytest.mark.parametrize(("dead", "size"), [(1, 0.0), (20, 0.01)])
def test_bands_excludes_an_attention_sink_and_untrained_last_rows(dead: int, size: float) -> None:
    table = TWO_BANDS.copy()
    sink = 30 * noise(1, 16)[0]
    table[0] = sink
    table[-dead:] = size * noise(dead, 16)
    last_trained = TWO_BANDS[-dead - 1]

    split = choose_split(table, typical_rows(table))

    assert split.head == 1
    assert split.stop == 128 - dead
    first, stop = split.repeat
    assert 1 <= first < stop <= 128 - dead

    result = bands(table, 512)

    np.testing.assert_array_equal(result[0], sink)
    norms = np.linalg.norm(result, axis=1)
    trained_norms = np.linalg.norm(TWO_BANDS, axis=1)
    assert norms[1:].max() < 2 * trained_norms.max()
    assert norms[-1] > 0.5 * np.linalg.norm(last_trained)


def test_bands_interpolates_low_frequencies_and_tiles_high_ones() -> None:
    """Phase-aligned tiles have no seam: the slow half period gets longer, the fast one stays."""
    expected = low_rows(512) + 0.5 * high_rows(512)
    inside = slice(16, -16)  # the filter is less accurate at the ends

    result = bands(TWO_BANDS, 512, gain=1.0)

    errors = distances(result, expected)[inside]
    norms = np.linalg.norm(expected, axis=1)
    assert errors.max() < 0.15 * np.median(norms)
    for method in (methods.linear, methods.copy):
        other = method(TWO_BANDS, 512)
        other_errors = distances(other, expected)[inside]
        assert other_errors.mean() > 5 * errors.mean()


def test_bands_without_high_frequencies_is_linear_scaled_around_the_mean() -> None:
    mean = TWO_BANDS.mean(axis=0)
    plain = bands(TWO_BANDS, 300, sigma=0.0, gain=1.0)
    wide = bands(TWO_BANDS, 300, sigma=0.0, gain=1.5)
    np.testing.assert_allclose(plain, methods.linear(TWO_BANDS, 300), rtol=0, atol=1e-12)
    np.testing.assert_allclose(wide - mean, 1.5 * (plain - mean), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kept", [20, 128])
def test_bands_keeps_first_rows_without_a_seam_after_them(kept: int) -> None:
    table = TWO_BANDS.astype(np.float32)
    choice = read_choice("bands:gain=1", keep_first=kept)
    result = resize_table(table, 300, choice)
    assert result[:kept].tobytes() == table[:kept].tobytes()
    steps = np.linalg.norm(np.diff(result, axis=0), axis=1)
    assert steps[kept - 1] < 2 * np.median(steps)


def test_bands_with_all_rows_kept_repeats_the_last_low_frequency_row() -> None:
    last_low = low_rows(128)[-1:]
    expected = np.repeat(last_low, 384, axis=0) + 0.5 * high_rows(512)[128:]

    result = bands(TWO_BANDS, 512, keep=128, gain=1.0)

    errors = distances(result[128:], expected)
    norms = np.linalg.norm(expected, axis=1)
    assert errors.max() < 0.25 * norms.mean()


@given(st.integers(1, 80), st.integers(0, 200), st.integers(0, 80), st.integers(0, 2**31))
def test_bands_returns_finite_rows_for_any_length(
    learned: int, more: int, keep: int, seed: int
) -> None:
    table = noise(learned, 5, seed)
    kept = min(keep, learned)
    result = bands(table, learned + more, keep=kept)
    assert result.shape == (learned + more, 5)
    assert np.isfinite(result).all()
    assert result[:kept].tobytes() == table[:kept].tobytes()


@pytest.mark.parametrize(
    ("learned", "typed", "message"),
    [
        (
            128,
            "repeat=20:129",
            "bands:repeat=20:129 needs 129 source rows, got 128",
        ),
        (
            20,
            "sigma=4",
            "bands:sigma=4 needs 32 source rows, got 20",
        ),
    ],
)
def test_resize_table_rejects_ranges_beyond_the_source_rows(
    learned: int, typed: str, message: str
) -> None:
    choice = read_choice(f"bands:{typed}")
    with pytest.raises(ResizeError, match=message):
        resize_table(TWO_BANDS[:learned], 300, choice)


SINK = np.concatenate([30 * noise(1, 16), TWO_BANDS[1:120], np.zeros((8, 16))])
NOT_FINITE = np.where(np.arange(128)[:, None] == 40, np.nan, TWO_BANDS)


@pytest.mark.parametrize("keep", [0, 5])
@pytest.mark.parametrize(
    "typed", ["auto", "bands", "bands:sigma=5", "bands:gain=1.3,repeat=20:60", "bands:sigma=0"]
)
@pytest.mark.parametrize("table", [TWO_BANDS, noise(64, 8), SINK, NOT_FINITE, TWO_BANDS[:20]])
def test_choose_settings_returns_settings_that_create_identical_rows(
    table: Rows, typed: str, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = read_choice(typed, keep_first=keep)
    try:
        expected = resize_table(table, 300, choice)
    except ResizeError:  # a table of 20 rows cannot be split
        assert len(table) < MIN_ROWS
        return

    chosen = choose_method(table, 300, choice)

    if chosen.text != "copy":  # which `auto` chooses for a table of 20 rows
        assert "gain=" in chosen.text
        assert "within=" in chosen.text
    for name in ("typical_rows", "_valley_sigma", "default_gains"):
        monkeypatch.setattr(f"ctxextend.tables.bands.{name}", None)
    recorded = read_choice(chosen.text, keep_first=keep)
    again = resize_table(table, 300, recorded)
    assert again.tobytes() == expected.tobytes()


def test_choose_split_peak_memory_is_about_two_tables() -> None:
    table = np.random.default_rng(0).normal(size=(1024, 1600)).cumsum(axis=0)
    tracemalloc.start()
    choose_split(table, typical_rows(table), sigma=8.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.2 * table.nbytes
