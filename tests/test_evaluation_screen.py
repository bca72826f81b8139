"""The screens of evaluations, line by line; `python -m tests.test_screens` writes all screens anew."""

import math
from dataclasses import replace

import pytest

from ctxextend.cli.evaluate import add_evaluation
from ctxextend.cli.output import STYLES, Pieces
from ctxextend.cli.tables import Page
from ctxextend.evaluation.evaluation_result import Estimate, Evaluation, Passkey
from ctxextend.report.numbers import NumberFormat
from tests.evaluations import ENCODER, EVALUATIONS, EXTENDED, NAMES, ODD, odd_evaluation, screen_of, shown
from tests.test_screens import SCREENS


def lines_of(evaluation: Evaluation) -> list[Pieces]:
    add_evaluation(page := Page(80), evaluation)
    return page.lines


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_screen_is_as_it_was(name: str) -> None:
    text, width = shown(name), int(name.rpartition("-")[2])
    assert text == (SCREENS / f"{name}.txt").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) in range(width - 8, width + 1)
    assert "-ascii-" not in name or text.isascii()


def test_evaluation_screen_has_known_styles() -> None:
    assert {style for one in EVALUATIONS.values() for line in lines_of(one) for _, style in line} <= set(STYLES)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Estimate(-0.1234, 0.0123, 9), "better than X by 0.123 ± 0.012 nats a token"),
        (Estimate(0.1234, 0.0123, 9), "worse than X by 0.123 ± 0.012 nats a token"),
        (Estimate(-0.02, 0.0123, 9), "no sure difference from X (-0.020 ± 0.012 nats a token)"),
        (Estimate(0.0, 0.0, 9), "no sure difference from X (+0.00 nats a token)"),
        (Estimate(-0.1, None, 9), "a lower loss than X by 0.100 nats a token, of one window, so that it may be chance"),
        (Estimate(math.nan, 0.1, 9), "not to be compared with X: a loss is no finite number"),
    ],
)
def test_compared_says_what_a_difference_of_losses_means(change: Estimate, said: str) -> None:
    assert NumberFormat(unicode=True).compared(change, "X") == said


@pytest.mark.parametrize(
    ("mean", "error", "said"),
    [
        (-0.1, 0.01, "is used: 512 tokens, better than 128 tokens by"),
        (0.1, 0.01, "does harm: 512 tokens, worse than 128 tokens by"),
        (-0.01, 0.01, "is not seen to be used: 512 tokens, no sure difference from 128 tokens"),
        (-0.1, None, "is not seen to be used: 512 tokens, a lower loss than 128 tokens by"),
    ],
)
def test_evaluation_screen_says_whether_the_longer_context_is_used(mean: float, error: float | None, said: str) -> None:
    assert EXTENDED.contexts is not None
    *points, last = EXTENDED.contexts.points
    contexts = replace(EXTENDED.contexts, points=(*points, replace(last, change=Estimate(mean, error, 9))))
    assert f"The longer context {said}" in screen_of(replace(EXTENDED, contexts=contexts), 300)
    contexts = replace(contexts, points=tuple(points[:3]))
    assert "No context longer than 128 was measured." in screen_of(replace(EXTENDED, contexts=contexts), 300)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (23.4567, 0.213, "23.46 ± 0.21"),
        (12345.6, 123.4, "12,346 ± 123"),
        (4.85e8, 9.7e6, "4.85e+08 ± 9.7e+06"),
        (-0.00001, 0.01, "0.000 ± 0.010"),
        (0.1, 1e-9, "0.1000 ± 1e-09"),
        (3.14159, None, "3.14"),
        (3.14159, math.nan, "3.14"),
        (math.nan, 0.1, "-"),
        (math.inf, 0.1, "inf ± 0.10"),
        (None, None, "-"),
    ],
)
def test_number_has_two_digits_of_its_error(value: float | None, error: float | None, text: str) -> None:
    assert NumberFormat(unicode=True).number(value, error) == text


@pytest.mark.parametrize(
    ("share", "trials", "style"),
    [(1.0, 1, "faint"), (1.0, 2, "right"), (0.3, 10, "faint"), (0.4, 10, "right"), (0.0, 0, "faint")],
)
def test_evaluation_screen_takes_no_find_for_sure_that_guessing_makes(share: float, trials: int, style: str) -> None:
    passkey = Passkey("loss rank", (64,), (0.0,), ((share,),), trials, 0.1)
    lines = lines_of(replace(ENCODER, passkey=passkey, retrieval=None))
    (cell,) = (line[1] for line in lines if line and line[0][0] == "  0 %")
    assert cell[1] == style


@pytest.mark.parametrize(("mean", "error"), ODD)
def test_evaluation_screen_of_odd_numbers(mean: float, error: float | None) -> None:
    assert "nan" not in screen_of(odd_evaluation(mean, error), 40)
