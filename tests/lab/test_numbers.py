"""Numbers with intervals, as the terminal and the page show them."""

import math

import pytest

from ctxextend.lab.numbers import difference_text, number, score_text
from ctxextend.lab.scores import Score
from tests.helpers.evaluations import score

NAN = math.nan
INF = math.inf


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (44.9, 36.8, 54.8, "44.9 (36.8 to 54.8)"),
        (0.904, 0.62, 1.0, "0.90 (0.62 to 1.00)"),
        (-0.00001, -0.2, 0.2, "0.00 (-0.20 to 0.20)"),
        (41.234, None, None, "41.2"),
        (118_234.0, 97_123.0, 140_321.0, "118,000 (97,100 to 140,000)"),
        (9876.5, 9000.0, INF, "9,876"),
        (NAN, 1.0, 2.0, "-"),
    ],
)
def test_number_has_digits_by_the_width_of_its_interval(
    value: float | None, low: float | None, high: float | None, text: str
) -> None:
    assert number(value, low, high) == text


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (score("a", 3.5), "33.1 (32.3 to 33.9)"),  # exp(3.5)
        (score("a", 0.425, unit="share"), "43 (40 to 45)"),
        (score("a", 0.999, unit="share", samples=2), "100 (93 to 100)"),  # at most 1
        (score("a", math.nan), "-"),
        (score("a", 1e4), "1.0e+304"),  # the largest perplexity that is shown
    ],
)
def test_score_text_is_a_perplexity_or_a_share_in_per_cent(one: Score, text: str) -> None:
    assert score_text(one) == text


def test_score_text_without_interval_has_three_digits() -> None:
    assert score_text(score("a", 3.5), with_interval=False) == "33.1"


def test_difference_text_is_per_cent_of_perplexity_or_points() -> None:
    worse = score("worse", 3.7)
    better = score("better", 3.47)
    assert difference_text(worse.minus(better)) == "+26 % (25 to 27)"
    assert difference_text(better.minus(worse)) == "-20.5 % (-21.2 to -19.8)"
    one = score("worse", 0.6, unit="share")
    other = score("better", 0.57, unit="share")
    assert difference_text(one.minus(other)) == "+3.0 points (2.1 to 3.9)"
    assert difference_text(one.minus(other), with_interval=False) == "+3.0 points"
