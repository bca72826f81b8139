import math

import numpy as np
import pytest
from ctxextend.lab.effective_result import tail
from ctxextend.lab.evaluation_result import (
    Estimate,
    estimate,
    estimate_loss,
    t_quantile,
)

from ctxextend.json_output import to_json


def test_estimate_weighs_windows_by_their_tokens() -> None:
    found = estimate([np.array([1.0]), np.array([2.0, 2.0, 2.0]), np.array([])])
    assert found.mean == 1.75
    assert found.tokens == 4
    # s - r·c is -0.75 and 0.75 for two windows with four tokens.
    expected = math.sqrt(2 * 2 * 0.75**2) / 4
    assert found.standard_error == pytest.approx(expected)


def test_estimate_returns_no_interval_for_one_window() -> None:
    found = estimate([np.array([1.0, 2.0])])
    assert found.ci95 is None


def test_estimate_returns_no_mean_without_losses() -> None:
    empty = np.array([])
    found = estimate([empty])
    assert math.isnan(found.mean)
    assert found.ci95 is None
    assert found.tokens == 0
    assert found.samples == 0
    assert to_json(estimate_loss([empty])) == {
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
    ("found", "trials", "probability"),
    [
        (0, 10, 1.0),
        (1, 1, 0.1),
        (10, 10, 1e-10),
        (9, 10, 9.1e-9),
        (9, 20, 5.9859e-5),
        (0, 0, 1.0),
    ],
)
def test_tail_is_the_probability_of_guessing(found: int, trials: int, probability: float) -> None:
    assert tail(found, trials, 0.1) == pytest.approx(probability, rel=1e-3)


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
    covered = 0
    for _ in range(4000):
        found = estimate(list(generator.normal(1.0, 1.0, (4, 1))))
        assert found.ci95 is not None
        covered += abs(found.mean - 1.0) <= found.ci95
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
