"""How a text chooses: on losses that are known beforehand, without a model."""

from dataclasses import replace
from math import log
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

from ctxextend.comparison.calibrate import GAINS, MOST_TRIALS, Choices, Trials, search
from ctxextend.recipe import Resize
from tests.test_bands import TWO_BANDS

Values = NDArray[np.float64]

ASKED = Resize(256, method="bands")
WINDOWS = 16


def choices(table: Values = TWO_BANDS, typed: Resize = ASKED) -> Choices:
    return Choices(table, 256, typed)


def windows(mean: float, seed: int = 0, spread: float = 0.0) -> tuple[Values, ...]:
    """Losses of 16 windows of 8 tokens: windows differ much, and one setting from another by so much noise."""
    shared = np.random.default_rng(0).normal(size=WINDOWS)
    own = np.random.default_rng([seed, 1]).normal(size=WINDOWS)
    return tuple(np.full(8, mean + both) for both in shared + spread * (own - own.mean()))


def number_of(settings: Resize) -> int:
    return crc32(repr((settings.sigma, settings.repeat, settings.gain)).encode()) % 1000


def test_search_finds_the_numbers_whose_loss_is_least() -> None:
    wanted = replace(ASKED, sigma=16.0, gain=1.45)
    stretches = [found.repeat for found in choices().repeats(replace(ASKED, sigma=16.0, gain=1.0))]
    start = choices().start()
    wanted = replace(wanted, repeat=next(stretch for stretch in stretches if stretch != start.repeat))

    def measure(settings: Resize) -> tuple[Values, ...]:
        far = abs(log((settings.sigma or 0.1) / 16.0)) + abs((settings.gain or 0.0) - 1.45)
        return windows(far + (settings.repeat != wanted.repeat), number_of(settings), spread=0.01)

    before, after = search(choices(), Trials(measure))
    assert before == start != wanted
    assert after == wanted


@pytest.mark.parametrize(("lead", "is_taken"), [(0.0, False), (0.02, False), (0.2, True)])
def test_trials_best_takes_nothing_within_a_standard_error(lead: float, is_taken: bool) -> None:
    """Differences of 0.4 from window to window leave an error of a tenth after 16 of them."""
    now, other = replace(ASKED, gain=1.0), replace(ASKED, gain=1.3)
    trials = Trials(lambda settings: windows(-lead * (settings == other), int(settings == other), spread=0.28))
    assert trials.better_by(other, now).mean == pytest.approx(lead)
    assert trials.better_by(other, now).error == pytest.approx(0.1, abs=0.03)
    assert trials.best(now, [other]) == (other if is_taken else now)


def test_trials_best_takes_the_best_of_those_that_are_surely_better() -> None:
    leads = dict(zip(GAINS, (0.0, 0.2, 0.5, 0.4, float("nan"), 0.3, -0.1), strict=True))
    now, *others = (replace(ASKED, gain=gain) for gain in GAINS)
    assert Trials(lambda settings: windows(-leads[settings.gain or 0.0])).best(now, others).gain == 1.3
    more = Trials(lambda settings: windows(leads[settings.gain or 0.0]), sign=-1)
    assert more.best(now, others).gain == 1.3


def test_search_stays_with_the_table_where_all_give_the_same() -> None:
    trials = Trials(lambda settings: windows(1.0))
    before, after = search(choices(), trials)
    assert after == before == choices().start()
    assert before == next(iter(trials.found))
    assert len(trials.found) <= MOST_TRIALS
    assert {settings.sigma for settings in trials.found} > {0.0, 3.0, 24.0}
    assert {settings.gain for settings in trials.found} > set(GAINS)


@pytest.mark.parametrize(
    "typed", [{"sigma": 5.0}, {"repeat": (20, 80)}, {"gain": 1.07}, {"sigma": 0.0}, {"drop_last": 20}], ids=str
)
def test_search_leaves_what_was_typed(typed: dict[str, object]) -> None:
    asked = replace(ASKED, **typed)  # type: ignore[arg-type]
    trials = Trials(lambda settings: windows(-float(number_of(settings))))
    search(choices(TWO_BANDS[: 128 - asked.drop_last], asked), trials)
    assert len(trials.found) > 4
    for settings in trials.found:
        assert {name: getattr(settings, name) for name in typed} == typed


def test_choices_of_a_table_too_short_to_part_are_gains_alone() -> None:
    trials = Trials(lambda settings: windows(1.0))
    short = Choices(TWO_BANDS[:16], 24, ASKED)
    search(short, trials)
    assert [(settings.sigma, settings.repeat) for settings in trials.found] == [(0.0, None)] * (1 + len(GAINS))
    assert {settings.gain for settings in trials.found} == {short.start().gain, *GAINS}


def test_choices_of_a_typed_stretch_part_a_table_without_grain_too() -> None:
    grainless = np.random.default_rng(0).normal(size=(128, 16))
    found = choices(grainless, replace(ASKED, repeat=(20, 80))).start()
    assert found.repeat == (20, 80)
    assert found.sigma
