import math

import numpy as np
import pytest

from ctxextend.evaluation.evaluation_result import (
    Estimate,
    Passkey,
    estimate,
    estimate_loss,
    t_quantile,
)
from ctxextend.json_output import to_json


def test_estimate_weighs_windows_by_their_tokens() -> None:
    found = estimate([np.array([1.0]), np.array([2.0, 2.0, 2.0]), np.array([])])
    assert (found.mean, found.tokens) == (1.75, 4)
    # s - r·c is -0.75 and 0.75 for two windows with four tokens.
    assert found.standard_error == pytest.approx(math.sqrt(2 * 2 * 0.75**2) / 4)
    assert estimate(
        [np.full(5, value) for value in (1.0, 2.0, 3.0)]
    ).standard_error == pytest.approx(1 / math.sqrt(3))


def test_estimate_returns_no_interval_for_fewer_than_two_windows() -> None:
    assert estimate([np.array([1.0, 2.0])]).ci95 is None
    empty = estimate([np.array([])])
    assert math.isnan(empty.mean)
    assert (empty.ci95, empty.tokens, empty.samples) == (None, 0, 0)
    assert to_json(estimate_loss([np.array([])])) == {
        "mean": None,
        "tokens": 0,
        "samples": 0,
        "ci95": None,
        "interval": None,
        "perplexity": None,
    }


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_estimate_of_nonfinite_losses_is_nonfinite(value: float) -> None:
    found = estimate([np.array([value]), np.array([1.0])])
    assert not math.isfinite(found.mean)
    assert to_json(found)["ci95"] is None


@pytest.mark.parametrize(
    ("shares", "trials", "probability"),
    [
        ([0.0], 10, 1.0),
        ([1.0], 1, 0.1),
        ([1.0], 10, 1e-10),
        ([0.9], 10, 9.1e-9),
        ([0.5, 0.4, None], 10, 5.9859e-5),
        ([math.nan], 10, 1.0),
        ([0.0], 0, 1.0),
    ],
)
def test_passkey_beats_chance_below_probability_of_guessing(
    shares: list[float | None], trials: int, probability: float
) -> None:
    passkey = Passkey("loss rank", (64,), (0.0,), ((),), trials, 0.1)
    assert passkey.beats_chance(shares, 1.001 * probability)
    assert not passkey.beats_chance(shares, 0.999 * probability)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (2, 12.706),
        (3, 4.303),
        (4, 3.182),
        (5, 2.776),
        (6, 2.571),
        (8, 2.365),
        (11, 2.228),
        (31, 2.042),
        (10**6, 1.960),
    ],
)
def test_t_quantile_equals_published_tables(samples: int, expected: float) -> None:
    assert t_quantile(samples) == pytest.approx(expected, rel=3e-3)


def test_ci95_covers_the_mean_in_95_percent_of_samples() -> None:
    generator = np.random.default_rng(0)
    found = [estimate(list(generator.normal(1.0, 1.0, (4, 1)))) for _ in range(4000)]
    covered = np.mean([abs(one.mean - 1.0) <= (one.ci95 or 0) for one in found])
    assert 0.94 < covered < 0.96


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
