"""Method `bands`: how a table is split, how its parts are extended, and which reasons are given."""

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.errors import ResizeError
from ctxextend.tables import methods
from ctxextend.tables.apply import choose_method, resize_table
from ctxextend.tables.bands import (
    MIN_ROWS,
    BandSplit,
    choose_bands,
    choose_split,
    default_gains,
    find_repeats,
    smoothed,
)
from ctxextend.tables.method_parser import read_choice
from ctxextend.tables.methods import auto, bands, choose_auto
from tests.helpers.position_tables import PERIOD, TWO_BANDS, Rows, high_rows, low_rows, noise


def test_smoothed_equals_weighted_polyfit_around_each_row() -> None:
    """Compares single rows, at both ends and across the block boundary."""
    rows = noise(300, 3)
    result = smoothed(rows, 4.0)
    for row in (0, 1, 150, 255, 256, 299):
        steps = np.arange(300) - row
        weights = np.exp(-0.25 * (steps / 4.0) ** 2)  # polyfit squares them
        fits = [np.polyfit(steps, rows[:, column], 1, w=weights)[1] for column in range(3)]
        np.testing.assert_allclose(result[row], fits, rtol=1e-5)


def test_choose_split_finds_both_parts() -> None:
    split = choose_split(TWO_BANDS)
    first, stop = split.repeat
    assert (split.head, split.stop) == (0, 128)
    assert split.sigma == 16
    assert split.noise_distance > 1
    assert (stop - first) % PERIOD == 0
    assert split.match > 0.99


@pytest.mark.parametrize(
    ("table", "share"),
    [(low_rows(128, 64) + noise(128), 0.3), (low_rows(128) + 0.05 * high_rows(128), 0.0)],
)
def test_choose_split_finds_no_high_frequency_part_in_noise_or_if_it_is_small(
    table: Rows, share: float
) -> None:
    split = choose_split(table)
    assert split.sigma == 0
    assert split.noise_distance < 0.05 if share else split.high_share < 0.1
    assert split.high_share > share
    assert (
        choose_split(table, repeat=(20, 90)).sigma > 0
    )  # a range that is passed is tiled nevertheless
    assert choose_split(table, repeat=(20, 90)).repeat == (20, 90)
    reason = choose_bands(table, 512, read_choice("bands")).reason
    assert re.fullmatch(
        r"bands, as interpolation with gain 1\.\d+: the table has no high-frequency part", reason
    )
    assert "gain 1.25:" in choose_bands(table, 512, read_choice("bands:gain=1.25")).reason


def test_choose_split_keeps_a_narrow_filter_if_no_range_matches() -> None:
    turns = 2 * np.pi * np.arange(128)[:, None] / np.random.default_rng(3).uniform(4, 20, 32)
    waves = np.concatenate([np.cos(turns), np.sin(turns)], axis=1)
    split = choose_split(3 * low_rows(128, 64) + waves)
    assert 0 < split.sigma < 16
    assert split.match < 0.5


@pytest.mark.parametrize(("dead", "size"), [(1, 0.0), (2, 0.01), (20, 0.0), (20, 0.01)])
def test_bands_excludes_an_attention_sink_and_untrained_last_rows(dead: int, size: float) -> None:
    table = TWO_BANDS.copy()
    sink = 30 * noise(1, 16)[0]
    table[0] = sink
    table[-dead:] = size * noise(dead, 16)
    split = choose_split(table)
    assert (split.head, split.stop) == (1, 128 - dead)
    assert 1 <= split.repeat[0] < split.repeat[1] <= 128 - dead
    result = bands(table, 512)
    np.testing.assert_array_equal(result[0], sink)
    assert np.linalg.norm(result[1:], axis=1).max() < 2 * np.linalg.norm(TWO_BANDS, axis=1).max()
    assert np.linalg.norm(result[-1]) > 0.5 * np.linalg.norm(TWO_BANDS[-dead - 1])


def test_choose_split_uses_the_settings_that_are_passed() -> None:
    split = choose_split(TWO_BANDS, sigma=5.0, repeat=(20, 80))
    assert (split.sigma, split.repeat) == (5.0, (20, 80))
    assert split.match == pytest.approx(1, abs=1e-3)  # five periods
    assert choose_split(TWO_BANDS, sigma=5.0, repeat=(20, 86)).match < -0.9  # half a period more
    assert choose_split(TWO_BANDS, keep=128).repeat[1] == 128
    assert choose_split(TWO_BANDS, keep=100).repeat[1] >= 100
    for repeat in ((0, 128), (0, 1000), (100, 101), (300, 400)):
        first, stop = choose_split(TWO_BANDS, sigma=8.0, repeat=repeat).repeat
        assert 0 <= first < stop <= 128
        assert np.isfinite(bands(TWO_BANDS, 300, sigma=8.0, repeat=repeat)).all()
    for learned in (MIN_ROWS, MIN_ROWS + 1, 47):
        assert 3 <= choose_split(high_rows(learned)).sigma <= learned / 8


@pytest.mark.parametrize("scale", [1e-80, 1e-8, 1e8])
def test_choose_split_does_not_depend_on_the_scale(scale: float) -> None:
    one, other = choose_split(TWO_BANDS), choose_split(TWO_BANDS * scale)
    assert (one.head, one.stop, one.sigma, one.repeat) == (
        other.head,
        other.stop,
        other.sigma,
        other.repeat,
    )


def test_bands_interpolates_low_frequencies_and_tiles_high_ones() -> None:
    """Phase-aligned tiles have no seam: the slow half period gets longer, the fast one stays."""
    result = bands(TWO_BANDS, 512, gain=1.0)
    expected = low_rows(512) + 0.5 * high_rows(512)
    inside = slice(16, -16)  # the filter is less accurate at the ends
    errors = np.linalg.norm((result - expected)[inside], axis=1)
    assert errors.max() < 0.15 * np.median(np.linalg.norm(expected, axis=1))
    others = (
        methods.linear(TWO_BANDS, 512),
        methods.copy(TWO_BANDS, 512),
        methods.mirror(TWO_BANDS, 512),
    )
    for other in others:
        assert np.linalg.norm((other - expected)[inside], axis=1).mean() > 5 * errors.mean()


def test_bands_without_high_frequencies_is_linear_scaled_around_the_mean() -> None:
    plain, wide = (bands(TWO_BANDS, 300, sigma=0.0, gain=gain) for gain in (1.0, 1.5))
    np.testing.assert_allclose(plain, methods.linear(TWO_BANDS, 300), rtol=0, atol=1e-12)
    mean = TWO_BANDS.mean(axis=0)
    np.testing.assert_allclose(wide - mean, 1.5 * (plain - mean), rtol=0, atol=1e-12)
    assert np.isfinite(bands(TWO_BANDS, 256, sigma=1e9)).all()  # a filter wider than the table


def test_default_gains_grow_per_doubling_up_to_a_maximum_without_a_high_frequency_part() -> None:
    local, far = BandSplit(0, 128, is_local=True), BandSplit(0, 128)
    assert [default_gains(local, 128, rows)[0] for rows in (128, 256, 512)] == pytest.approx(
        [1, 1.2, 1.4]
    )
    assert [default_gains(far, 128, rows)[0] for rows in (256, 512)] == pytest.approx([1.1, 1.2])
    assert default_gains(local, 128, 128 * 1024) == (1.6, 1.6)


def test_default_gains_restore_the_ratio_of_low_to_high_frequencies() -> None:
    def gains(high_share: float, rows: int, keep: int = 0) -> tuple[float, float]:
        return default_gains(
            BandSplit(0, 128, True, 16.0, 1.0, high_share, (32, 96), 0.9), 128, rows, keep
        )

    assert gains(0.5, 128) == (1, 1)
    assert gains(0.8, 128 * 8) == pytest.approx((8 / 3, 2**0.5))  # 2/3 · 2 · sqrt(0.8 / 0.2)
    assert gains(0.1, 512)[0] == pytest.approx(4**0.25)
    assert gains(0.99, 512)[0] == pytest.approx(4**0.75)
    assert gains(0.8, 128 * 64) == gains(0.8, 128 * 8)
    assert gains(0.8, 512, keep=127) == gains(0.8, 512)
    assert gains(0.8, 512, keep=128) == pytest.approx((2**0.25, 2**0.5))


def test_bands_scales_each_part_by_its_gain() -> None:
    fixed: dict[str, Any] = {"sigma": 8.0, "repeat": (20, 80), "within": (0, 128)}
    both, same, other = (
        bands(TWO_BANDS, 300, **fixed, gain=1.5, high_gain=high) for high in (None, 1.5, 3.0)
    )
    assert same.tobytes() == both.tobytes()
    low = bands(TWO_BANDS, 300, **fixed, gain=1.5, high_gain=1e-12)
    np.testing.assert_allclose(other - low, 2 * (both - low), rtol=0, atol=1e-9)
    mean = smoothed(TWO_BANDS, 8.0).mean(axis=0)
    np.testing.assert_allclose(
        low - mean, 1.5 * (methods.linear(smoothed(TWO_BANDS, 8.0), 300) - mean), atol=1e-9
    )


@pytest.mark.parametrize("kept", [1, 20, 100, 128])
def test_bands_keeps_first_rows_without_a_seam_after_them(kept: int) -> None:
    table = TWO_BANDS.astype(np.float32)
    result = resize_table(table, 300, read_choice("bands:gain=1", keep_first=kept))
    assert result[:kept].tobytes() == table[:kept].tobytes()
    steps = np.linalg.norm(np.diff(result, axis=0), axis=1)
    assert steps[kept - 1] < 2 * np.median(steps)


def test_bands_with_all_rows_kept_repeats_the_last_low_frequency_row() -> None:
    result = bands(TWO_BANDS, 512, keep=128, gain=1.0)
    expected = np.repeat(low_rows(128)[-1:], 384, axis=0) + 0.5 * high_rows(512)[128:]
    assert (
        np.linalg.norm(result[128:] - expected, axis=1).max()
        < 0.25 * np.linalg.norm(expected, axis=1).mean()
    )
    table = np.arange(128.0)[:, None] * np.ones((1, 4)) + 50
    table[-3:] = 1e-3  # untrained rows: the one before them is repeated
    assert bands(table, 200, keep=128, sigma=0.0, gain=1.0)[128:].max() <= table[124].max() + 1e-9


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("method", ["bands", "auto"])
def test_bands_spreads_nan_to_at_most_two_more_rows_than_linear(method: str, value: float) -> None:
    table = TWO_BANDS.copy()
    table[40, 3] = value
    bad = [
        int((~np.isfinite(resize_table(table, 512, read_choice(name))).all(axis=1)).sum())
        for name in (method, "linear")
    ]
    assert 1 <= bad[0] <= bad[1] + 2
    assert "no high-frequency part" in choose_method(table, 512, read_choice("bands")).reason
    assert np.isnan(bands(np.full((64, 4), np.nan), 100)).all()


@given(st.integers(1, 80), st.integers(0, 200), st.integers(0, 80), st.integers(0, 2**31))
def test_bands_returns_finite_rows_for_any_length(
    learned: int, more: int, keep: int, seed: int
) -> None:
    table = noise(learned, 5, seed)
    result = bands(table, learned + more, keep=min(keep, learned))
    assert result.shape == (learned + more, 5)
    assert np.isfinite(result).all()
    assert result[: min(keep, learned)].tobytes() == table[: min(keep, learned)].tobytes()


@pytest.mark.parametrize(
    ("learned", "typed", "dropped", "message"),
    [
        (
            128,
            "repeat=20:129",
            0,
            "repeat ends after the last of the 128 source rows. Use an end of at most 128",
        ),
        (128, "repeat=20:120", 10, "repeat ends after the last of the 118 source rows"),
        (128, "within=20:129", 0, "within ends after the last of the 128 source rows"),
        (
            20,
            "sigma=4",
            0,
            "bands:sigma=4: sigma requires at least 32 source rows, got 20. Remove sigma",
        ),
        (
            20,
            "repeat=2:9",
            0,
            "bands:repeat=2:9: repeat requires at least 32 source rows, got 20. Remove repeat",
        ),
    ],
)
def test_resize_table_rejects_ranges_beyond_the_source_rows(
    learned: int, typed: str, dropped: int, message: str
) -> None:
    with pytest.raises(ResizeError, match=message):
        resize_table(TWO_BANDS[:learned], 300, read_choice(f"bands:{typed}", drop_last=dropped))


def test_auto_uses_bands_or_copy_for_short_tables_and_reports_which() -> None:
    np.testing.assert_array_equal(auto(TWO_BANDS, 512), bands(TWO_BANDS, 512))
    split = choose_split(TWO_BANDS)
    reason = choose_auto(TWO_BANDS, 512, read_choice()).reason
    assert reason.startswith(f"auto chose bands with sigma {split.sigma:.3g}")
    assert "repeat {}:{}".format(*split.repeat) in reason
    assert "gain 1.4" in reason
    short = TWO_BANDS[: MIN_ROWS - 1]
    np.testing.assert_array_equal(auto(short, 100), methods.copy(short, 100))
    assert choose_auto(short, 512, read_choice()).reason.endswith(
        "auto chose copy, which keeps the learned rows: 31 rows are too few to judge"
    )


SINK = np.concatenate([30 * noise(1, 16), TWO_BANDS[1:120], np.zeros((8, 16))])
NOT_FINITE = np.where(np.arange(128)[:, None] == 40, np.nan, TWO_BANDS)


@pytest.mark.parametrize("keep", [0, 5])
@pytest.mark.parametrize("dropped", [0, 3])
@pytest.mark.parametrize(
    "typed", ["auto", "bands", "bands:sigma=5", "bands:gain=1.3,repeat=20:60", "bands:sigma=0"]
)
@pytest.mark.parametrize("table", [TWO_BANDS, noise(64, 8), SINK, NOT_FINITE, TWO_BANDS[:20]])
def test_choose_settings_returns_settings_that_create_identical_rows(
    table: Rows, typed: str, dropped: int, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = read_choice(typed, keep_first=keep, drop_last=dropped)
    try:
        expected = resize_table(table, 300, options)
    except ResizeError:  # a table of 20 rows cannot be split
        assert len(table) < MIN_ROWS
        return
    chosen = choose_method(table, 300, options)
    if chosen.text != "copy":  # which `auto` chooses for a table of 20 rows
        assert "gain=" in chosen.text
        assert "within=" in chosen.text
    for name in ("_typical_rows", "_valley_sigma", "_best_ranges", "default_gains"):
        monkeypatch.setattr(f"ctxextend.tables.bands.{name}", None)
    assert resize_table(
        table, 300, read_choice(chosen.text, keep_first=keep, drop_last=dropped)
    ).tobytes() == (expected.tobytes())


@pytest.mark.parametrize(
    ("typed", "reported"), [("sigma=0", False), ("sigma=5,repeat=20:60", False), ("sigma=5", True)]
)
def test_choose_settings_gives_no_reason_if_all_settings_are_passed(
    typed: str, reported: bool
) -> None:
    """`repeat` is chosen unless sigma is 0."""
    choice = choose_method(TWO_BANDS, 512, read_choice(f"bands:gain=1.2,{typed}"))
    assert "within=" in choice.text
    assert bool(choice.reason) is reported


def test_find_repeats_returns_ranges_of_distinct_lengths_best_first() -> None:
    found = find_repeats(TWO_BANDS, 8.0, 3)
    assert found[0] == choose_split(TWO_BANDS, sigma=8.0).repeat
    assert found[-1] == (0, 128)
    lengths = [stop - start for start, stop in found]
    assert [length % PERIOD for length in lengths[:3]] == [0, 0, 0]
    assert len(set(lengths)) == 4
    assert find_repeats(TWO_BANDS[:16], 8.0, 3) == []
    assert all(stop >= 128 for _, stop in find_repeats(TWO_BANDS, 8.0, 3, keep=128))


def test_choose_split_peak_memory_is_about_two_tables() -> None:
    table = np.random.default_rng(0).normal(size=(1024, 1600)).cumsum(axis=0)
    tracemalloc.start()
    choose_split(table, sigma=8.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.2 * table.nbytes
