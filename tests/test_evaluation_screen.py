"""The screens of evaluations, line by line; `python -m tests.test_screens` writes all screens anew."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ctxextend.cli.evaluate import add_evaluation
from ctxextend.cli.output import STYLES, Pieces
from ctxextend.cli.tables import Page
from ctxextend.evaluation.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    Bucket,
    ContextLosses,
    ContextPoint,
    Estimate,
    Evaluation,
    LossEstimate,
    Passkey,
    PositionLosses,
    Recall,
    Retrieval,
)
from ctxextend.report.numbers import NumberFormat
from tests.evaluations import ENCODER, EVALUATIONS, EXTENDED, LONE, NAMES, screen_of, shown
from tests.test_screens import SCREENS

MEANS = st.one_of(st.floats(-5, 20), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e6, -1e9, 5e-324]))
ERRORS = st.one_of(st.none(), st.floats(0, 3), st.sampled_from([math.nan, math.inf, 1e9, 5e-324]))
ESTIMATES = st.builds(LossEstimate, MEANS, ERRORS, st.integers(0, 10**9))
SHARES = st.one_of(st.floats(0, 1), st.just(math.nan))


def lines_of(evaluation: Evaluation, chart_height: int = 8) -> list[Pieces]:
    add_evaluation(page := Page(80, chart_height), evaluation)
    return page.lines


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_screen_is_as_it_was(name: str) -> None:
    text, width = shown(name), int(name.rpartition("-")[2])
    assert text == (SCREENS / f"{name}.txt").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) in range(width - 8, width + 1)
    assert "-ascii-" not in name or text.isascii()


def test_evaluation_screen_has_known_styles_and_a_low_chart_on_a_low_screen() -> None:
    assert {style for one in EVALUATIONS.values() for line in lines_of(one) for _, style in line} <= set(STYLES)
    assert len(lines_of(LONE, 8)) - len(lines_of(LONE, 4)) == 4


def words(evaluation: Evaluation, width: int = 300) -> str:
    return " ".join(screen_of(evaluation, width).split())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Estimate(-0.1234, 0.0123, 9), "better than X by 0.123 ± 0.012 nats a token"),
        (Estimate(0.1234, 0.0123, 9), "worse than X by 0.123 ± 0.012 nats a token"),
        (Estimate(-0.02, 0.0123, 9), "no sure difference from X (-0.020 ± 0.012 nats a token)"),
        (Estimate(0.0, 0.0, 9), "no sure difference from X (+0.00 nats a token)"),
        (
            Estimate(-0.1234, None, 9),
            "a lower loss than X by 0.123 nats a token, of one window, so that it may be chance",
        ),
        (Estimate(math.nan, 0.1, 9), "not to be compared with X: a loss is no finite number"),
        (Estimate(math.inf, None, 9), "not to be compared with X: a loss is no finite number"),
    ],
)
def test_evaluation_screen_says_what_a_change_means(change: Estimate, said: str) -> None:
    assert NumberFormat(unicode=True).compared(change, "X") == said


def with_last_change(change: Estimate) -> Evaluation:
    assert EXTENDED.contexts is not None
    points = list(EXTENDED.contexts.points)
    points[-1] = replace(points[-1], change=change)
    return replace(EXTENDED, contexts=replace(EXTENDED.contexts, points=tuple(points)))


@pytest.mark.parametrize(
    ("mean", "error", "said"),
    [
        (-0.1, 0.01, "is used: 512 tokens, better than 128 tokens by"),
        (0.1, 0.01, "does harm: 512 tokens, worse than 128 tokens by"),
        (-0.01, 0.01, "is not seen to be used: 512 tokens, no sure difference from 128 tokens"),
        (-0.1, None, "is not seen to be used: 512 tokens, a lower loss than 128 tokens by"),
        (math.nan, 0.01, "is not seen to be used: 512 tokens, not to be compared with 128 tokens"),
    ],
)
def test_evaluation_screen_says_whether_the_longer_context_is_used(mean: float, error: float | None, said: str) -> None:
    assert f"The longer context {said}" in words(with_last_change(Estimate(mean, error, 9)))


def test_evaluation_screen_says_where_no_longer_context_was_measured() -> None:
    assert EXTENDED.contexts is not None
    contexts = replace(EXTENDED.contexts, points=EXTENDED.contexts.points[:3])
    assert "No context longer than 128 was measured." in words(replace(EXTENDED, contexts=contexts))


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
def test_evaluation_figures_have_two_digits_of_their_error(value: float | None, error: float | None, text: str) -> None:
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


@st.composite
def odd_evaluations(draw: st.DrawFn) -> Evaluation:
    names = draw(st.sampled_from([(MODEL,), (MODEL, SLIDING), (MODEL, SLIDING, TRUNCATED)]))
    edges = sorted(draw(st.sets(st.integers(0, 600), max_size=12)))
    losses = st.fixed_dictionaries(dict.fromkeys(names, ESTIMATES))
    buckets = tuple(Bucket(*span, draw(losses)) for span in pairwise(edges))
    changes = draw(st.fixed_dictionaries(dict.fromkeys(names[1:], ESTIMATES)))
    positions = PositionLosses(draw(st.integers(1, 600)), draw(st.integers(0, 3)), draw(losses), changes, buckets)
    maybe = st.none() | ESTIMATES
    point = st.builds(ContextPoint, st.integers(1, 10**5), ESTIMATES, ESTIMATES, maybe, maybe)
    contexts = ContextLosses(draw(st.integers(1, 900)), 3, tuple(draw(st.lists(point, max_size=5))))
    cells = tuple(tuple(draw(st.lists(st.none() | SHARES, min_size=2, max_size=2))) for _ in range(3))
    passkey = Passkey(draw(st.text(max_size=9)), (8, 16, 99999), (0.0, 1.0), cells, draw(st.integers(0, 9)), 0.1)
    recall = st.builds(Recall, SHARES, ERRORS, SHARES, ERRORS, st.none() | MEANS, ERRORS)
    ways = draw(st.dictionaries(st.sampled_from(["model", "truncated", "chunks", "other"]), recall))
    retrieval = Retrieval(512, 0, 0, 24, "mean", ways)
    original = draw(st.sampled_from([(None, None), ("before", 128)]))
    kind = draw(st.sampled_from(["causal", "masked", "encoder"]))
    named = ("odd", "odd", kind, 512, *original)
    return Evaluation(*named, positions=positions, contexts=contexts, passkey=passkey, retrieval=retrieval)


@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(odd_evaluations(), st.sampled_from([40, 80]), st.booleans())
def test_evaluation_screen_of_odd_figures_never_fails(evaluation: Evaluation, width: int, unicode: bool) -> None:
    text = screen_of(evaluation, width, unicode=unicode)
    assert text.startswith("odd (odd, ")
    assert "nan" not in text
