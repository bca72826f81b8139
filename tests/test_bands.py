"""Bands: how a table is parted, what is made of its parts, and what is said of it."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ctxextend.errors import ResizeError
from ctxextend.tables import methods
from ctxextend.tables.apply import MethodOptions, choose_settings, resize_table
from ctxextend.tables.bands import (
    SHORTEST,
    BandSplit,
    auto,
    bands,
    choose_auto,
    choose_bands,
    choose_split,
    default_gain,
    find_repeats,
    smoothed,
)

Rows = NDArray[np.float64]

# Rows of a wave of the fast part: a whole number of them stands in what repeats.
PERIOD = 12


def wave(angles: Rows, seed: int, width: int) -> Rows:
    directions = np.random.default_rng(seed).normal(size=(2, width))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) @ directions


def slow_rows(rows: int, width: int = 16) -> Rows:
    """Half a wave over the whole table, in two directions."""
    return wave(np.linspace(0, np.pi, rows), 1, width)


def fast_rows(rows: int, width: int = 16) -> Rows:
    """A wave of 12 rows, in two directions."""
    return wave(2 * np.pi * np.arange(rows) / PERIOD, 2, width)


def noise(rows: int, width: int = 64, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).normal(size=(rows, width))


TWO_BANDS = slow_rows(128) + 0.5 * fast_rows(128)


def test_smoothed_is_the_fit_of_a_line_around_each_row() -> None:
    """Against numpy's own weighted fit, row by row, at both ends and beyond one block of rows."""
    rows = noise(300, 3)
    made = smoothed(rows, 4.0)
    for row in (0, 1, 150, 255, 256, 299):
        steps = np.arange(300) - row
        weights = np.exp(-0.25 * (steps / 4.0) ** 2)  # polyfit squares them
        fits = [np.polyfit(steps, rows[:, column], 1, w=weights)[1] for column in range(3)]
        np.testing.assert_allclose(made[row], fits, rtol=1e-5)


def test_choose_split_finds_both_bands() -> None:
    split = choose_split(TWO_BANDS)
    first, stop = split.repeat
    assert (split.head, split.stop) == (0, 128)
    assert split.sigma == 16
    assert split.noise_distance > 1
    assert (stop - first) % PERIOD == 0
    assert split.match > 0.99


@pytest.mark.parametrize(
    ("table", "share"), [(slow_rows(128, 64) + noise(128), 0.3), (slow_rows(128) + 0.05 * fast_rows(128), 0.0)]
)
def test_choose_split_finds_no_fast_band_in_noise_and_where_it_is_little(table: Rows, share: float) -> None:
    split = choose_split(table)
    assert split.sigma == 0
    assert split.noise_distance < 0.05 if share else split.fast_share < 0.1
    assert split.fast_share > share
    assert choose_split(table, repeat=(20, 90)).sigma > 0  # what is typed is repeated all the same
    assert choose_split(table, repeat=(20, 90)).repeat == (20, 90)
    _, said = choose_bands(table, 512)
    assert said.startswith("bands without a fast part (smoothing leaves ")
    assert "from noise): the rows are stretched, gain 1." in said
    assert "gain 1.25 (as given)" in choose_bands(table, 512, gain=1.25)[1]


def test_choose_split_repeats_less_than_all_but_the_trend_where_no_stretch_fits() -> None:
    turns = 2 * np.pi * np.arange(128)[:, None] / np.random.default_rng(3).uniform(4, 20, 32)
    waves = np.concatenate([np.cos(turns), np.sin(turns)], axis=1)
    split = choose_split(3 * slow_rows(128, 64) + waves)
    assert 0 < split.sigma < 16
    assert split.match < 0.5


@pytest.mark.parametrize(("dead", "size"), [(1, 0.0), (2, 0.01), (20, 0.0), (20, 0.01)])
def test_bands_leaves_out_a_first_row_that_is_a_sink_and_last_rows_that_were_never_trained(
    dead: int, size: float
) -> None:
    table, sink = TWO_BANDS.copy(), 30 * noise(1, 16)[0]
    table[0], table[-dead:] = sink, size * noise(dead, 16)
    split = choose_split(table)
    assert (split.head, split.stop) == (1, 128 - dead)
    assert 1 <= split.repeat[0] < split.repeat[1] <= 128 - dead
    made = bands(table, 512)
    np.testing.assert_array_equal(made[0], sink)
    assert np.linalg.norm(made[1:], axis=1).max() < 2 * np.linalg.norm(TWO_BANDS, axis=1).max()
    assert np.linalg.norm(made[-1]) > 0.5 * np.linalg.norm(TWO_BANDS[-dead - 1])


def test_choose_split_takes_what_is_given() -> None:
    split = choose_split(TWO_BANDS, sigma=5.0, repeat=(20, 80))
    assert (split.sigma, split.repeat) == (5.0, (20, 80))
    assert split.match == pytest.approx(1, abs=1e-3)  # five whole waves
    assert choose_split(TWO_BANDS, sigma=5.0, repeat=(20, 86)).match < -0.9  # half a wave more
    assert choose_split(TWO_BANDS, keep=128).repeat[1] == 128
    assert choose_split(TWO_BANDS, keep=100).repeat[1] >= 100
    for repeat in ((0, 128), (0, 1000), (100, 101), (300, 400)):
        first, stop = choose_split(TWO_BANDS, sigma=8.0, repeat=repeat).repeat
        assert 0 <= first < stop <= 128
        assert np.isfinite(bands(TWO_BANDS, 300, sigma=8.0, repeat=repeat)).all()
    for learned in (SHORTEST, SHORTEST + 1, 47):
        assert 3 <= choose_split(fast_rows(learned)).sigma <= learned / 8


@pytest.mark.parametrize("scale", [1e-80, 1e-8, 1e8])
def test_choose_split_is_the_same_in_other_units(scale: float) -> None:
    one, other = choose_split(TWO_BANDS), choose_split(TWO_BANDS * scale)
    assert (one.head, one.stop, one.sigma, one.repeat) == (other.head, other.stop, other.sigma, other.repeat)


def test_bands_stretches_the_slow_and_repeats_the_fast() -> None:
    """A seam in phase is none, so the longer table is the longer half wave with the same fast one on it."""
    made = bands(TWO_BANDS, 512, gain=1.0)
    wanted = slow_rows(512) + 0.5 * fast_rows(512)
    inside = slice(16, -16)  # a Gaussian does not see beyond the ends
    errors = np.linalg.norm((made - wanted)[inside], axis=1)
    assert errors.max() < 0.15 * np.median(np.linalg.norm(wanted, axis=1))
    others = (methods.linear(TWO_BANDS, 512), methods.copy(TWO_BANDS, 512), methods.mirror(TWO_BANDS, 512))
    for other in others:
        assert np.linalg.norm((other - wanted)[inside], axis=1).mean() > 5 * errors.mean()


def test_bands_of_one_slow_band_is_linear_moved_away_from_the_mean_by_the_gain() -> None:
    plain, wide = (bands(TWO_BANDS, 300, sigma=0.0, gain=gain) for gain in (1.0, 1.5))
    np.testing.assert_allclose(plain, methods.linear(TWO_BANDS, 300), rtol=0, atol=1e-12)
    mean = TWO_BANDS.mean(axis=0)
    np.testing.assert_allclose(wide - mean, 1.5 * (plain - mean), rtol=0, atol=1e-12)
    assert np.isfinite(bands(TWO_BANDS, 256, sigma=1e9)).all()  # a Gaussian wider than the table


def test_default_gain_grows_with_each_doubling_and_has_a_bound() -> None:
    local, far = BandSplit(0, 128, is_local=True), BandSplit(0, 128)
    assert [default_gain(local, 128, rows) for rows in (128, 256, 512)] == pytest.approx([1, 1.2, 1.4])
    assert [default_gain(far, 128, rows) for rows in (256, 512)] == pytest.approx([1.1, 1.2])
    assert default_gain(local, 128, 128 * 1024) == 1.6


@pytest.mark.parametrize("kept", [1, 20, 100, 128])
def test_bands_keeps_first_rows_and_goes_on_from_them(kept: int) -> None:
    table = TWO_BANDS.astype(np.float32)
    made = resize_table(table, 300, MethodOptions(method="bands:gain=1", keep_first=kept))
    assert made[:kept].tobytes() == table[:kept].tobytes()
    steps = np.linalg.norm(np.diff(made, axis=0), axis=1)
    assert steps[kept - 1] < 2 * np.median(steps)  # there is no seam


def test_bands_with_all_rows_kept_holds_the_slow_band() -> None:
    made = bands(TWO_BANDS, 512, keep=128, gain=1.0)
    wanted = np.repeat(slow_rows(128)[-1:], 384, axis=0) + 0.5 * fast_rows(512)[128:]
    assert np.linalg.norm(made[128:] - wanted, axis=1).max() < 0.25 * np.linalg.norm(wanted, axis=1).mean()
    table = np.arange(128.0)[:, None] * np.ones((1, 4)) + 50
    table[-3:] = 1e-3  # the last that is like the others is held
    assert bands(table, 200, keep=128, sigma=0.0, gain=1.0)[128:].max() <= table[124].max() + 1e-9


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("method", ["bands", "auto"])
def test_bands_spoils_no_more_rows_than_linear_where_one_is_no_number(method: str, value: float) -> None:
    table = TWO_BANDS.copy()
    table[40, 3] = value
    bad = [
        int((~np.isfinite(resize_table(table, 512, MethodOptions(method=name))).all(axis=1)).sum())
        for name in (method, "linear")
    ]
    assert 1 <= bad[0] <= bad[1] + 2
    assert "no numbers" in choose_settings(table, 512, MethodOptions(method="bands")).reason
    assert np.isnan(bands(np.full((64, 4), np.nan), 100)).all()


@given(st.integers(1, 80), st.integers(0, 200), st.integers(0, 80), st.integers(0, 2**31))
def test_bands_makes_finite_rows_of_any_length(learned: int, more: int, keep: int, seed: int) -> None:
    table = noise(learned, 5, seed)
    made = bands(table, learned + more, keep=min(keep, learned))
    assert made.shape == (learned + more, 5)
    assert np.isfinite(made).all()
    assert made[: min(keep, learned)].tobytes() == table[: min(keep, learned)].tobytes()


@pytest.mark.parametrize(
    ("learned", "typed", "dropped", "told"),
    [
        (128, "repeat=20:129", 0, "repeat goes beyond the 128 rows"),
        (128, "repeat=20:120", 10, "repeat goes beyond the 118 rows"),
        (128, "within=20:129", 0, "within goes beyond the 128 rows"),
        (20, "sigma=4", 0, "--method bands:sigma=4 splits a table of 32 rows or more, and 20 are read"),
        (20, "repeat=2:9", 0, "--method bands:repeat=2:9 splits a table of 32 rows or more, and 20 are read"),
    ],
)
def test_resize_table_refuses_to_part_rows_that_are_not_there(
    learned: int, typed: str, dropped: int, told: str
) -> None:
    with pytest.raises(ResizeError, match=told):
        resize_table(TWO_BANDS[:learned], 300, MethodOptions(method=f"bands:{typed}", drop_last=dropped))


def test_auto_is_bands_and_for_short_tables_linear_and_says_which() -> None:
    np.testing.assert_array_equal(auto(TWO_BANDS, 512), bands(TWO_BANDS, 512))
    split, (_, said) = choose_split(TWO_BANDS), choose_auto(TWO_BANDS, 512)
    assert said.startswith(f"auto took bands with sigma {split.sigma:.3g}")
    assert "repeat {}:{}".format(*split.repeat) in said
    assert "gain 1.4" in said
    short = TWO_BANDS[: SHORTEST - 1]
    np.testing.assert_allclose(auto(short, 100), methods.linear(short, 100), rtol=0, atol=1e-12)
    assert "31 rows tell too little" in choose_auto(short, 512)[1]


SINK = np.concatenate([30 * noise(1, 16), TWO_BANDS[1:120], np.zeros((8, 16))])
NOT_FINITE = np.where(np.arange(128)[:, None] == 40, np.nan, TWO_BANDS)


@pytest.mark.parametrize("keep", [0, 5])
@pytest.mark.parametrize("dropped", [0, 3])
@pytest.mark.parametrize("typed", ["auto", "bands", "bands:sigma=5", "bands:gain=1.3,repeat=20:60", "bands:sigma=0"])
@pytest.mark.parametrize("table", [TWO_BANDS, noise(64, 8), SINK, NOT_FINITE, TWO_BANDS[:20]])
def test_choose_settings_gives_numbers_that_make_the_same_rows_without_any_choice(
    table: Rows, typed: str, dropped: int, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = MethodOptions(method=typed, keep_first=keep, drop_last=dropped)
    try:
        expected = resize_table(table, 300, options)
    except ResizeError:  # a table of 20 rows cannot be split as was typed
        assert len(table) < SHORTEST
        return
    chosen = choose_settings(table, 300, options).options
    assert "gain=" in chosen.method
    assert "within=" in chosen.method
    for name in ("_typical_rows", "_valley_sigma", "_best_ranges", "default_gain"):
        monkeypatch.setattr(f"ctxextend.tables.bands.{name}", None)
    assert resize_table(
        table, 300, MethodOptions(method=chosen.method, keep_first=keep, drop_last=dropped)
    ).tobytes() == (expected.tobytes())


@pytest.mark.parametrize(("typed", "is_said"), [("sigma=0", False), ("sigma=5,repeat=20:60", False), ("sigma=5", True)])
def test_choose_settings_says_nothing_where_every_number_is_typed(typed: str, is_said: bool) -> None:
    """A range that repeats is chosen where there is a fast part, and none where sigma is 0."""
    choice = choose_settings(TWO_BANDS, 512, MethodOptions(method=f"bands:gain=1.2,{typed}"))
    assert "within=" in choice.options.method
    assert bool(choice.reason) is is_said


def test_find_repeats_gives_stretches_of_lengths_of_their_own_the_best_first() -> None:
    found = find_repeats(TWO_BANDS, 8.0, 3)
    assert found[0] == choose_split(TWO_BANDS, sigma=8.0).repeat
    assert found[-1] == (0, 128)
    lengths = [stop - start for start, stop in found]
    assert [length % PERIOD for length in lengths[:3]] == [0, 0, 0]
    assert len(set(lengths)) == 4
    assert find_repeats(TWO_BANDS[:16], 8.0, 3) == []
    assert all(stop >= 128 for _, stop in find_repeats(TWO_BANDS, 8.0, 3, keep=128))


def test_choose_split_holds_little_beside_the_table() -> None:
    """Of a table that grows by little, what is held to part it must not be several times its size."""
    table = np.random.default_rng(0).normal(size=(1024, 1600)).cumsum(axis=0)
    tracemalloc.start()
    choose_split(table, sigma=8.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.2 * table.nbytes
