"""How a text chooses: on losses that are known beforehand, without a model."""

from collections.abc import Callable
from dataclasses import replace
from math import log
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

from ctxextend.comparison.calibrate import GAINS, MAX_TRIALS, Search
from ctxextend.recipe import Resize
from tests.test_bands import TWO_BANDS

Values = NDArray[np.float64]

ASKED = Resize(256, method="bands")
WINDOWS = 16


def windows(mean: float, seed: int = 0, spread: float = 0.0) -> tuple[Values, ...]:
    """Losses of 16 windows of 8 tokens: windows differ much, and one setting from another by so much noise."""
    shared = np.random.default_rng(0).normal(size=WINDOWS)
    own = np.random.default_rng([seed, 1]).normal(size=WINDOWS)
    return tuple(np.full(8, mean + both) for both in shared + spread * (own - own.mean()))


def search(
    measure: Callable[[Resize], tuple[Values, ...]] = lambda settings: windows(1.0),
    typed: Resize = ASKED,
    table: Values = TWO_BANDS,
    sign: int = 1,
) -> tuple[Resize, Resize, Search]:
    """Return the table's own numbers, the best, and the search that found them."""
    made = Search(table, 256, typed, measure, sign)
    best = made.run()
    return next(iter(made.found)), best, made


def gain_of(settings: Resize) -> float:
    return float(settings.settings["gain"])


def number_of(settings: Resize) -> int:
    return crc32(str(settings.method).encode()) % 1000


def test_search_finds_the_numbers_whose_loss_is_least() -> None:
    first, _, tried = search(lambda settings: windows(abs(log((settings.settings["sigma"] or 0.1) / 16.0))))
    found = [one.settings for one in tried.found]
    others = [one["repeat"] for one in found if one["sigma"] == 16.0 and one["repeat"] != first.settings["repeat"]]
    wanted = first.with_settings(sigma=16.0, gain=1.45, repeat=others[0])

    def measure(settings: Resize) -> tuple[Values, ...]:
        sigma, repeat, gain, _ = settings.settings.values()
        far = abs(log((sigma or 0.1) / 16.0)) + abs(gain - 1.45)
        return windows(far + (repeat != others[0]), number_of(settings), spread=0.01)

    assert search(measure)[:2] == (first, wanted)
    assert first != wanted


@pytest.mark.parametrize(("lead", "is_taken"), [(0.0, False), (0.02, False), (0.2, True)])
def test_search_takes_nothing_within_a_standard_error(lead: float, is_taken: bool) -> None:
    """Differences of 0.4 from window to window leave an error of a tenth after 16 of them."""
    first, best, tried = search(
        lambda settings: windows(-lead * (gain_of(settings) == 1.3), int(gain_of(settings) == 1.3), spread=0.28),
        replace(ASKED, method="bands:sigma=8,repeat=20:80"),
    )
    other = first.with_settings(gain=1.3)
    assert tried.better_by(other, first).mean == pytest.approx(lead)
    assert tried.better_by(other, first).standard_error == pytest.approx(0.1, abs=0.03)
    assert best == (other if is_taken else first)


@pytest.mark.parametrize("sign", [1, -1])
def test_search_takes_the_best_of_those_that_are_surely_better(sign: int) -> None:
    leads = dict(zip(GAINS, (0.0, 0.2, 0.5, 0.4, float("nan"), 0.3, -0.1), strict=True))
    _, best, _ = search(lambda settings: windows(-sign * leads.get(gain_of(settings), 0.0)), sign=sign)
    assert gain_of(best) == 1.3


def test_search_stays_with_the_table_where_all_give_the_same() -> None:
    first, best, tried = search()
    assert best == first
    assert len(tried.found) <= MAX_TRIALS
    assert {settings.settings["sigma"] for settings in tried.found} > {0.0, 3.0, 24.0}
    assert {gain_of(settings) for settings in tried.found} > set(GAINS)


@pytest.mark.parametrize(
    ("typed", "dropped"), [("sigma=5", 0), ("repeat=20:80", 0), ("gain=1.07", 0), ("sigma=0", 0), ("gain=1.07", 20)]
)
def test_search_leaves_what_was_typed(typed: str, dropped: int) -> None:
    asked = replace(ASKED, method=f"bands:{typed}", drop_last=dropped)
    _, _, tried = search(lambda settings: windows(-float(number_of(settings))), asked, TWO_BANDS[: 128 - dropped])
    assert len(tried.found) > 4
    for settings in tried.found:
        assert typed in str(settings.method)
        assert settings.drop_last == dropped


def test_search_with_a_typed_stretch_parts_a_table_without_grain_too() -> None:
    grainless = np.random.default_rng(0).normal(size=(128, 16))
    first, _, _ = search(typed=replace(ASKED, method="bands:repeat=20:80"), table=grainless)
    assert first.settings["repeat"] == (20, 80)
    assert first.settings["sigma"]
