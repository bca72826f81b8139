"""Numbers with intervals, as the terminal and the page show them."""

import math

import pytest

from ctxextend.lab.scores import Score
from ctxextend.report.numbers import difference_text, number, score_text
from tests.helpers.scores import make_score

NAN = math.nan
INF = math.inf


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (44.9, 36.8, 54.8, "44.9 (36.8 to 54.8)"),
        (0.904, 0.62, 1.0, "0.90 (0.62 to 1.00)"),
        (2.98312, 2.98311, 2.98313, "2.9831 (2.9831 to 2.9831)"),
        (-0.00001, -0.2, 0.2, "0.00 (-0.20 to 0.20)"),
        (41.234, None, None, "41.2"),
        (41.234, 41.234, 41.234, "41.2"),
        (41.234, NAN, NAN, "41.2"),
        (41.234, -INF, INF, "41.2"),
        (0, None, None, "0.00"),
        (118_234.0, 97_123.0, 140_321.0, "118,000 (97,100 to 140,000)"),
        (9876.5, 9000.0, INF, "9,876"),
        (1.23e8, 1.04e8, 1.4e8, "1.2e+08 (1.0e+08 to 1.4e+08)"),
        (INF, None, None, "inf"),
        (NAN, 1.0, 2.0, "-"),
        (None, None, None, "-"),
    ],
)
def test_number_has_digits_by_the_width_of_its_interval(
    value: float | None, low: float | None, high: float | None, text: str
) -> None:
    assert number(value, low, high) == text


def test_number_has_a_sign_and_a_suffix_before_its_interval() -> None:
    assert number(3.14, 1.2, 5.0, signed=True, suffix=" points") == "+3.1 points (1.2 to 5.0)"
    assert number(-3.14, -5.0, 1.2, signed=True) == "-3.1 (-5.0 to 1.2)"


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (make_score("a", 3.5), "33.1 (33.0 to 33.3)"),  # exp(3.5)
        (make_score("a", 0.425, unit="share"), "42.5 (42.1 to 42.9)"),
        (make_score("a", 0.999, unit="share", samples=2), "100 (89 to 100)"),  # at most 1
        (make_score("a", math.nan), "-"),
        (make_score("a", 1e4), "1.0e+304"),  # the largest perplexity that is shown
    ],
)
def test_score_text_is_a_perplexity_or_a_share_in_per_cent(score: Score, text: str) -> None:
    assert score_text(score) == text


def test_score_text_without_interval_has_three_digits() -> None:
    assert score_text(make_score("a", 3.5), with_interval=False) == "33.1"


def test_difference_text_is_per_cent_of_perplexity_or_points() -> None:
    worse = make_score("worse", 3.7, noise=5)
    better = make_score("better", 3.47)
    assert difference_text(worse.minus(better)) == "+26 % (23 to 29)"
    assert difference_text(better.minus(worse)) == "-21 % (-22 to -19)"
    one = make_score("worse", 0.6, noise=5, unit="share")
    other = make_score("better", 0.57, unit="share")
    assert difference_text(one.minus(other)) == "+3 points (1 to 5)"
    assert difference_text(one.minus(other), with_interval=False) == "+3.0 points"
