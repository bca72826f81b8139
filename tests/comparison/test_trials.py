"""The search for settings of `bands`, on synthetic losses."""

from collections.abc import Callable
from dataclasses import replace
from math import log
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

from ctxextend.comparison.bands_search import GAINS, MOST_BANDS, BandsSearch
from ctxextend.recipe import Resize
from ctxextend.training.sequence_losses import SequenceLosses
from tests.helpers.position_tables import TWO_BANDS

Values = NDArray[np.float64]

REQUESTED = Resize(256, method="bands")
WINDOWS = 16


def windows(mean: float, seed: int = 0, spread: float = 0.0) -> SequenceLosses:
    """Losses of 16 windows of 8 tokens, with shared noise per window and `spread` per candidate."""
    shared = np.random.default_rng(0).normal(size=WINDOWS)
    own = np.random.default_rng([seed, 1]).normal(size=WINDOWS)
    noise = shared + spread * (own - own.mean())
    nats = np.zeros((WINDOWS, 2))
    nats[:, 1] = 8 * (mean + noise)
    return SequenceLosses(nats=nats, tokens=np.tile([0, 8], (WINDOWS, 1)))


def equal_losses(settings: Resize) -> SequenceLosses:
    return windows(1.0)


def search(
    measure: Callable[[Resize], SequenceLosses] = equal_losses,
    requested: Resize = REQUESTED,
    table: Values = TWO_BANDS,
) -> tuple[Resize, Resize, BandsSearch]:
    """Return the settings estimated from the table, the best settings, and the search."""
    found = BandsSearch(table, 256, requested, measure, has_time=lambda: True)
    best = found.run()
    estimated = next(iter(found.losses))
    return estimated, best, found


def gain_of(settings: Resize) -> float:
    return float(settings.choice.settings["gain"])


def seed_of(settings: Resize) -> int:
    return crc32(str(settings.method).encode()) % 1000


def sigma_error(sigma: float | None) -> float:
    """Return how far a sigma is from 16, as a ratio."""
    return abs(log((sigma or 0.1) / 16.0))


def test_search_returns_settings_with_lowest_loss() -> None:
    def measure_sigma(settings: Resize) -> SequenceLosses:
        return windows(sigma_error(settings.choice.settings["sigma"]))

    estimated, _, found = search(measure_sigma)
    repeats: list[object] = []
    for candidate in found.losses:
        tried = candidate.choice.settings
        if tried["sigma"] == 16.0 and tried["repeat"] != estimated.choice.settings["repeat"]:
            repeats.append(tried["repeat"])
    best_repeat = repeats[0]

    def measure(settings: Resize) -> SequenceLosses:
        sigma, repeat, gain, *_ = settings.choice.settings.values()
        loss = sigma_error(sigma) + abs(gain - 1.5)
        if repeat != best_repeat:
            loss += 1
        return windows(loss, seed_of(settings), spread=0.01)

    first, best, _ = search(measure)
    expected = estimated.with_settings(sigma=16.0, gain=1.5, repeat=best_repeat)
    assert first == estimated
    assert best == expected
    assert first != expected


@pytest.mark.parametrize(("lead", "is_better"), [(0.0, False), (0.02, False), (0.2, True)])
def test_search_ignores_leads_within_one_standard_error(lead: float, is_better: bool) -> None:
    # Differences between 16 windows with a standard deviation of 0.4 have a standard error of 0.1.
    def measure(settings: Resize) -> SequenceLosses:
        if gain_of(settings) == 1.3:
            return windows(-lead, 1, spread=0.28)
        return windows(0.0, 0, spread=0.28)

    requested = replace(REQUESTED, method="bands:sigma=8,repeat=20:80")
    first, best, found = search(measure, requested)
    other = first.with_settings(gain=1.3)
    improvement = found.losses[other].improvement(found.losses[first])
    assert improvement.mean == pytest.approx(lead)
    assert improvement.standard_error == pytest.approx(0.1, abs=0.03)
    assert best == (other if is_better else first)


def test_search_returns_best_candidate_beyond_one_standard_error() -> None:
    leads = dict(zip(GAINS, (0.0, 0.2, 0.5, 0.4, float("nan"), 0.3, -0.1), strict=True))

    def measure(settings: Resize) -> SequenceLosses:
        lead = leads.get(gain_of(settings), 0.0)
        return windows(-lead)

    _, best, _ = search(measure)
    assert gain_of(best) == 1.3


def test_search_returns_estimate_if_all_losses_are_equal() -> None:
    first, best, found = search()
    assert best == first
    assert len(found.losses) <= MOST_BANDS
    sigmas = {settings.choice.settings["sigma"] for settings in found.losses}
    gains = {gain_of(settings) for settings in found.losses}
    assert sigmas > {0.0, 3.0, 24.0}
    assert gains > set(GAINS)


@pytest.mark.parametrize("requested", ["sigma=5", "repeat=20:80", "gain=1.07", "sigma=0"])
def test_search_keeps_requested_settings(requested: str) -> None:
    def measure(settings: Resize) -> SequenceLosses:
        return windows(-float(seed_of(settings)))

    resize = replace(REQUESTED, method=f"bands:{requested}")
    _, _, found = search(measure, resize)
    assert len(found.losses) > 4
    for settings in found.losses:
        assert requested in str(settings.method)


def test_search_with_requested_range_splits_noise_table() -> None:
    noise = np.random.default_rng(0).normal(size=(128, 16))
    requested = replace(REQUESTED, method="bands:repeat=20:80")
    first, _, _ = search(requested=requested, table=noise)
    assert first.choice.settings["repeat"] == (20, 80)
    assert first.choice.settings["sigma"]


def test_search_returns_the_best_candidate_so_far_when_time_runs_out() -> None:
    calls = list[Resize]()

    def measure(settings: Resize) -> SequenceLosses:
        calls.append(settings)
        return windows(-float(len(calls)))

    found = BandsSearch(TWO_BANDS, 256, REQUESTED, measure, has_time=lambda: len(calls) < 3)
    assert found.run() == calls[-1]
    assert len(calls) == 3
