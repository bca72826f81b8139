"""The search for settings of yarn, with losses that a formula gives and a clock that it moves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from ctxextend.comparison.yarn_search import (
    MIN_PASSES,
    Losses,
    OpenValues,
    SearchSize,
    WindowReader,
    YarnSearch,
    plan_search,
)
from ctxextend.recipe import Resize
from ctxextend.tables.open_settings import OPEN_SETTINGS

TOKENS = 64  # scored of each window
DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.1386}


@dataclass
class FakeModel:
    """A model whose loss is a formula of the settings; reading a window takes some seconds."""

    effect: Callable[[dict[str, float]], float]  # on the loss, in nats
    seed: int = 0
    noise: float = 0.02  # of a candidate on a window, besides what all candidates share
    seconds_per_window: float = 1.0
    now: float = 0.0
    read: list[tuple[str, int]] = field(default_factory=list)  # candidates and windows, in order

    def clock(self) -> float:
        return self.now

    def measure(self, candidate: Resize, windows: Sequence[int]) -> list[Losses]:
        found = list[Losses]()
        for window in windows:
            self.now += self.seconds_per_window
            self.read.append((str(candidate.method), window))
            shared = np.random.default_rng([self.seed, window]).normal(3, 0.5, TOKENS)
            own = np.random.default_rng([self.seed, window, *str(candidate.method).encode()])
            shift = self.effect(values_of(candidate)) + own.normal(0, self.noise)
            found.append(shared + shift)
        return found


def values_of(candidate: Resize) -> dict[str, float]:
    given = {key: value for key, value in candidate.choice.settings.items() if value is not None}
    return {**DEFAULTS, **given}


def nothing_helps(values: dict[str, float]) -> float:
    return 0.0


def early_slowing_helps(values: dict[str, float]) -> float:
    return -0.1 * float(values["beta_slow"] > 1) - 0.05 * float(values["attention_factor"] < 1.1)


def make_search(
    model: FakeModel, *, method: str = "yarn", budget: float = 1e6, windows: int = 100
) -> YarnSearch:
    requested = Resize(1024, method=method)
    given = requested.choice.settings
    return YarnSearch(
        requested=requested,
        opened=OpenValues(
            values=DEFAULTS,
            free=tuple(name for name in OPEN_SETTINGS if given[name] is None),
            factor=4.0,
        ),
        reader=WindowReader(measure=model.measure, clock=model.clock),
        positions=lambda candidate: str(candidate.method),
        cut=lambda count, passes: min(count, windows),
        budget=budget,
    )


def lead_of(search: YarnSearch, best: Resize) -> int | None:
    return search.reader.lead(best, search.requested, search.confirmed).sign


def test_search_finds_values_that_are_better_on_windows_that_did_not_choose_them() -> None:
    search = make_search(FakeModel(early_slowing_helps))
    best = search.run()
    assert best is not None
    values = values_of(best)
    assert values["beta_slow"] > 1
    assert values["attention_factor"] < 1.1
    assert lead_of(search, best) == 1
    assert set(search.choosing).isdisjoint(search.confirmed)
    assert (len(search.choosing), len(search.confirmed)) == (16, 32)


def test_search_without_a_better_value_keeps_those_of_yarn() -> None:
    wrong = 0
    for seed in range(60):
        search = make_search(FakeModel(nothing_helps, seed=seed))
        best = search.run()
        if best is not None and lead_of(search, best) == 1:
            wrong += 1
    assert wrong <= 4  # about 1.5 of 60 are expected: an interval of 95 % on both sides


def test_search_tries_no_value_of_a_setting_that_is_given() -> None:
    model = FakeModel(early_slowing_helps)
    search = make_search(model, method="yarn:beta-slow=2")
    search.run()
    tried = {name for name, _ in model.read}
    assert len(tried) > 1
    for name in tried:
        assert "beta-slow=2" in name


def test_search_reads_candidates_with_the_same_positions_once() -> None:
    model = FakeModel(nothing_helps)
    search = make_search(model)
    search.positions = lambda candidate: values_of(candidate)["attention_factor"]
    search.run()
    for name, _ in model.read:
        assert "beta" not in name


def test_search_tries_no_value_that_cannot_be_written() -> None:
    model = FakeModel(early_slowing_helps)
    search = make_search(model)
    search.positions = lambda candidate: (
        None if "attention-factor" in str(candidate.method) else str(candidate.method)
    )
    best = search.run()
    assert best is not None
    for name, _ in model.read:
        assert "attention-factor" not in name


def test_search_starts_from_the_values_that_the_settings_state() -> None:
    opened = OpenValues(
        values={"beta_fast": 4.0, "beta_slow": 1.0, "attention_factor": 1.0},
        free=OPEN_SETTINGS,
        factor=4.0,
    )
    # A beta_slow of 4 would not be below beta_fast.
    assert list(opened.others("beta_slow", opened.values)) == [2.0, 0.5]
    assert list(opened.others("beta_fast", opened.values)) == [2.0, 8.0]
    factors = [round(1 + weight * np.log(4), 4) for weight in (0.05, 0.15, 0.1)]
    assert list(opened.others("attention_factor", opened.values)) == factors


@pytest.mark.parametrize(
    ("passes", "candidates", "windows", "size"),
    [
        (7.9, 8, 48, None),
        (8, 8, 48, SearchSize(candidates=1, choosing=0, confirming=4)),
        (19, 8, 48, SearchSize(candidates=1, choosing=0, confirming=9)),
        (20, 8, 48, SearchSize(candidates=2, choosing=4, confirming=4)),
        (44, 8, 48, SearchSize(candidates=8, choosing=4, confirming=4)),
        (130, 8, 48, SearchSize(candidates=8, choosing=10, confirming=20)),
        (1e9, 8, 48, SearchSize(candidates=8, choosing=16, confirming=32)),
        (1e9, 1, 48, SearchSize(candidates=1, choosing=0, confirming=32)),
        (1e9, 8, 7, SearchSize(candidates=1, choosing=0, confirming=7)),
        (1e9, 8, 12, SearchSize(candidates=8, choosing=4, confirming=8)),
    ],
)
def test_plan_search_fits_the_time_and_the_text(
    passes: float, candidates: int, windows: int, size: SearchSize | None
) -> None:
    found = plan_search(passes, candidates, windows)
    assert found == size
    if found is not None:
        assert found.passes <= passes
        assert found.windows <= windows


def test_search_with_too_small_a_budget_reads_one_window_and_states_the_time() -> None:
    model = FakeModel(early_slowing_helps, seconds_per_window=10.0)
    search = make_search(model, budget=89.0)
    assert search.run() is None
    assert search.size is None
    assert model.read == [("yarn", 0)]
    assert search.seconds_needed == 10.0 * (1 + MIN_PASSES)

    again = make_search(
        FakeModel(early_slowing_helps, seconds_per_window=10.0), budget=search.seconds_needed
    )
    best = again.run()
    assert best is not None
    assert len(again.confirmed) == 4


@pytest.mark.parametrize("budget", [9, 15, 25, 50, 80, 120, 400])
def test_search_takes_no_longer_than_its_budget(budget: float) -> None:
    model = FakeModel(early_slowing_helps)
    search = make_search(model, budget=budget)
    search.run()
    assert model.now <= budget


def test_search_tries_fewer_candidates_if_reading_becomes_slower() -> None:
    model = FakeModel(early_slowing_helps)
    search = make_search(model, budget=130.0)

    def measure(candidate: Resize, windows: Sequence[int]) -> list[Losses]:
        if len(model.read) > 20:
            model.seconds_per_window = 3.0
        return model.measure(candidate, windows)

    search.reader.measure = measure
    best = search.run()
    assert best is not None
    assert search.size is not None
    tried = len({name for name, _ in model.read}) - 1
    assert tried < search.size.candidates
    assert len(search.confirmed) >= 4
