import math

import numpy as np
import pytest

from ctxextend.json_output import to_json
from ctxextend.lab.statistics import (
    LOSS_BOUNDS,
    SHARE_BOUNDS,
    Bounds,
    Estimate,
    binomial_tail,
    estimate,
    t_quantile,
    wilson_interval,
)
from tests.helpers.evaluations import evaluation, score


def test_estimate_weighs_windows_by_their_tokens() -> None:
    found = estimate([np.array([1.0]), np.array([2.0, 2.0, 2.0]), np.array([])])
    assert found.mean == 1.75
    assert found.tokens == 4
    # s - r·c is -0.75 and 0.75 for two windows with four tokens.
    expected = math.sqrt(2 * 2 * 0.75**2) / 4
    assert found.standard_error == pytest.approx(expected)


def test_estimate_returns_no_mean_without_losses() -> None:
    found = estimate([np.array([])])
    assert math.isnan(found.mean)
    assert found.interval is None
    assert found.tokens == 0
    assert found.samples == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_estimate_of_nonfinite_losses_is_nonfinite(value: float) -> None:
    found = estimate([np.array([value]), np.array([1.0])])
    assert not math.isfinite(found.mean)
    assert found.interval is None
    (as_json,) = to_json(evaluation([score("model", value)]))["scores"]
    assert as_json["mean"] is None
    assert as_json["interval"] is None


def test_differences_are_paired_by_window() -> None:
    own = score("model", 2.0)
    difference = own.minus(score("other model", 1.0))
    windows = np.concatenate(own.values) - np.concatenate(difference.other.values)
    assert difference.change.mean == pytest.approx(np.mean(windows))
    error = np.std(windows, ddof=1) / math.sqrt(len(windows))
    assert difference.change.standard_error == pytest.approx(error)
    assert own.estimate.standard_error is not None
    assert error < own.estimate.standard_error / 2


def test_perplexities_and_their_intervals_are_finite_numbers() -> None:
    found = score("model", 900.0)
    assert found.perplexity == math.exp(700)
    difference = found.minus(score("other", 0.0))
    assert all(map(math.isfinite, difference.percent))


@pytest.mark.parametrize(
    ("values", "bounds", "interval"),
    [
        ([0.9, 0.8, 1.0, 0.9], SHARE_BOUNDS, (0.77, 1.0)),
        ([0.1, 0.5], LOSS_BOUNDS, (0.0, 2.84)),
        ([1.0, 1.0], SHARE_BOUNDS, (1.0, 1.0)),
    ],
)
def test_interval_stays_within_the_range_of_the_measure(
    values: list[float], bounds: Bounds, interval: tuple[float, float]
) -> None:
    found = estimate([np.array([value]) for value in values], bounds)
    assert found.interval == pytest.approx(interval, abs=0.006)


def test_a_cut_interval_still_says_whether_a_difference_is_significant() -> None:
    change = Estimate(0.9, 0.05, 8, 8, (-1.0, 1.0))
    assert change.interval == pytest.approx((0.78, 1.0), abs=0.005)
    assert change.sign == 1
    assert Estimate(0.9, 0.5, 8, 8, (-1.0, 1.0)).sign == 0


@pytest.mark.parametrize(
    ("found", "trials", "probability"),
    [
        (0, 10, 1.0),
        (9, 20, 5.9859e-5),
    ],
)
def test_binomial_tail_is_the_probability_of_guessing(
    found: int, trials: int, probability: float
) -> None:
    assert binomial_tail(found, trials, 0.1) == pytest.approx(probability, rel=1e-3)


@pytest.mark.parametrize(
    ("found", "trials", "interval"),
    [(0, 10, (0.0, 0.2775)), (10, 10, (0.7225, 1.0)), (5, 10, (0.2366, 0.7634))],
)
def test_wilson_interval_equals_published_values(
    found: int, trials: int, interval: tuple[float, float]
) -> None:
    assert wilson_interval(found, trials) == pytest.approx(interval, abs=1e-4)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [(2, 12.706), (3, 4.303), (8, 2.365), (10**6, 1.960)],
)
def test_t_quantile_equals_published_tables(samples: int, expected: float) -> None:
    assert t_quantile(samples) == pytest.approx(expected, rel=3e-3)


def test_interval_covers_the_mean_in_95_percent_of_samples() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(4000):
        found = estimate(list(generator.normal(1.0, 1.0, (4, 1))))
        assert found.interval is not None
        lower, upper = found.interval
        covered += lower <= 1.0 <= upper
    assert 0.94 < covered / 4000 < 0.96


@pytest.mark.parametrize(
    ("mean", "standard_error", "sign"),
    [
        (0.5, 0.2, 1),
        (-0.5, 0.2, -1),
        (0.4, 0.2, 0),  # the interval is 2.26 standard errors for ten samples
        (0.0, 0.0, 0),
        (0.5, None, None),
        (math.nan, 0.2, None),
    ],
)
def test_estimate_sign_is_zero_if_interval_contains_zero(
    mean: float, standard_error: float | None, sign: int | None
) -> None:
    assert Estimate(mean, standard_error, 9, 10).sign == sign
