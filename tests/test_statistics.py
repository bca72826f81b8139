import math

import numpy as np
import pytest

from ctxextend.evaluation.evaluation_result import binomial_tail, estimate, estimate_loss
from ctxextend.json_output import to_json


def test_estimate_weighs_windows_by_their_tokens() -> None:
    found = estimate([np.array([1.0]), np.array([2.0, 2.0, 2.0]), np.array([])])
    assert (found.mean, found.tokens) == (1.75, 4)
    # s - r·c is -0.75 and 0.75, of two windows, over four tokens
    assert found.error == pytest.approx(math.sqrt(2 * 2 * 0.75**2) / 4)
    assert estimate([np.full(5, value) for value in (1.0, 2.0, 3.0)]).error == pytest.approx(1 / math.sqrt(3))


def test_estimate_knows_no_error_of_one_window_and_nothing_of_none() -> None:
    assert estimate([np.array([1.0, 2.0])]).error is None
    nothing = estimate([np.array([])])
    assert math.isnan(nothing.mean)
    assert (nothing.error, nothing.tokens) == (None, 0)
    assert to_json(estimate_loss([np.array([])])) == {"mean": None, "error": None, "perplexity": None, "tokens": 0}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_estimate_of_losses_that_are_not_finite_is_not_finite(bad: float) -> None:
    found = estimate([np.array([bad]), np.array([1.0])])
    assert not math.isfinite(found.mean)
    assert to_json(found)["error"] is None


@pytest.mark.parametrize(
    ("found", "trials", "expected"), [(0, 10, 1), (1, 1, 0.1), (10, 10, 1e-10), (9, 10, 9.1e-9), (0, 0, 1)]
)
def test_binomial_tail_by_hand(found: int, trials: int, expected: float) -> None:
    assert binomial_tail(found, trials, 0.1) == pytest.approx(expected)
