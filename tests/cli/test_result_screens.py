"""Golden screens of evaluations and comparisons.

`python -m tests.cli.test_screens` rewrites all screens.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ctxextend.cli.console import STYLES
from ctxextend.lab.effective_result import LengthResult, TaskResult
from ctxextend.lab.evaluation_result import ContextPoint, Estimate, Evaluation
from ctxextend.report.numbers import NumberFormat
from tests.helpers.evaluations import (
    EFFECTIVE,
    ENCODER,
    EXTENDED,
    EXTREMES,
    WITHOUT_BASE,
    cell,
    extreme_evaluation,
)
from tests.helpers.result_screens import NAMES, RESULTS, SCREENS, page_of, screen, screen_of


@pytest.mark.parametrize("name", NAMES)
def test_result_screen_matches_the_golden_file(name: str) -> None:
    text = screen(name)
    assert text == (SCREENS / f"{name}.txt").read_text(encoding="utf-8")
    if name.endswith("-ascii"):
        assert text.isascii()


def test_result_screens_use_known_styles() -> None:
    for result in RESULTS.values():
        for line in page_of(result).lines:
            styles = {style for _, style in line}
            assert styles <= set(STYLES)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Estimate(-0.1234, 0.0123, 9, 61), "better than X by 0.123 ± 0.025 nats/token"),
        (Estimate(0.1234, 0.0123, 9, 61), "worse than X by 0.123 ± 0.025 nats/token"),
        (
            Estimate(0.1234, 0.05, 9, 3),
            "tied with X (+0.12 ± 0.22 nats/token)",
        ),  # 4.3 standard errors, of three windows
        (Estimate(-0.02, 0.0123, 9, 61), "tied with X (-0.020 ± 0.025 nats/token)"),
        (Estimate(0.0, 0.0, 9, 61), "tied with X (+0.00 nats/token)"),
        (
            Estimate(-0.1, None, 9, 1),
            "0.100 nats/token lower than X, based on a single window (no confidence interval)",
        ),
        (Estimate(math.nan, 0.1, 9, 61), "not comparable with X: a loss is not finite"),
    ],
)
def test_compared_describes_a_difference_of_losses(change: Estimate, text: str) -> None:
    assert NumberFormat().compared(change, "X") == text


def with_points(points: Sequence[ContextPoint]) -> Evaluation:
    assert EXTENDED.contexts is not None
    contexts = replace(EXTENDED.contexts, points=tuple(points))
    return replace(EXTENDED, contexts=contexts)


@pytest.mark.parametrize(
    ("mean", "error", "verdict"),
    [
        (-0.1, 0.01, "Longer context helps: -0.100 ± 0.020 nats/token at 512 vs. 128; better"),
        (
            0.683,
            0.0685,
            "Longer context hurts: +0.68 ± 0.14 nats/token at 512 vs. 128. All the same, the model "
            "is better than the base in sliding windows by",
        ),
        (
            -0.01,
            0.01,
            "No significant effect of the longer context: -0.010 ± 0.020 nats/token at 512 vs. "
            "128; better",
        ),
        (
            -0.1,
            None,
            "Longer context: -0.100 nats/token at 512 vs. 128, based on a single window (no "
            "confidence interval).",
        ),
        (
            math.nan,
            None,
            "Perplexity 35.11 ± 0.78 at 512 tokens, better than the base in sliding windows by",
        ),
    ],
)
def test_evaluation_screen_starts_with_whether_the_longer_context_helps(
    mean: float, error: float | None, verdict: str
) -> None:
    assert EXTENDED.contexts is not None
    *points, last = EXTENDED.contexts.points
    last = replace(last, change=Estimate(mean, error, 9, 61))
    text = screen_of(with_points([*points, last]), 300)
    assert text.startswith(verdict)


def test_evaluation_screen_says_that_no_longer_context_was_measured() -> None:
    assert EXTENDED.contexts is not None
    points = EXTENDED.contexts.points[:3]
    text = screen_of(with_points(points), 300)
    assert "No context longer than 128 tokens was measured." in text


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (ENCODER, "Longer context helps: recall@1 +30.5 ± 7.7 points at 512 vs. 128."),
        (
            replace(ENCODER, retrieval=None),
            "Reads 128 of 512 tokens. The difference at 256 tokens is within chance: "
            "raise --budget to measure more.",
        ),
        (replace(WITHOUT_BASE, contexts=None), "Perplexity 49.8 ± 1.1 at 128 tokens."),
    ],
)
def test_evaluation_screen_starts_with_the_verdict(result: Evaluation, verdict: str) -> None:
    text = screen_of(result, 300)
    assert text.startswith(f"{verdict}\n")


@pytest.mark.parametrize(
    ("value", "ci95", "text"),
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
def test_number_shows_two_digits_of_its_interval(
    value: float | None, ci95: float | None, text: str
) -> None:
    assert NumberFormat().number(value, ci95) == text


def with_shares(*found: int) -> Evaluation:
    """Return an evaluation with so many of 24 answers found at each length, from 32 tokens on."""
    assert ENCODER.effective is not None
    lengths = tuple(
        LengthResult(32 * 2**index, texts=3, cells=(cell(0.0, 1.0, share),), chance=0.1)
        for index, share in enumerate(found)
    )
    tasks = {"passage": TaskResult(chance=0.1, lengths=lengths)}
    return replace(ENCODER, retrieval=None, effective=replace(ENCODER.effective, tasks=tasks))


@pytest.mark.parametrize(("found", "is_drawn"), [((2, 5, 2), False), ((2, 2, 12), True)])
def test_evaluation_screen_draws_a_map_only_above_chance(
    found: Sequence[int], is_drawn: bool
) -> None:
    text = screen_of(with_shares(*found), 80)
    assert ("depth " in text) == is_drawn
    assert ("At chance in texts of every length" in text) != is_drawn


def test_evaluation_screen_says_what_stays_open() -> None:
    """A shorter length may be read by chance, and a longer one not measured."""
    uncertain = with_shares(24, 19, 17)
    text = screen_of(uncertain, 300)
    assert "at 128 tokens is within chance" in text
    assert "within chance" not in screen_of(with_shares(24, 24, 2), 300)

    assert EFFECTIVE.effective is not None
    left_out = replace(EFFECTIVE.effective, left_out=(2048,), left_out_seconds=1234.0, budget=60)
    text = screen_of(replace(EFFECTIVE, effective=left_out), 300)
    assert "Not measured: 2,048 tokens, for which --budget 60 is about 1,200 s too short." in text


@pytest.mark.parametrize(("mean", "error"), EXTREMES)
def test_evaluation_screen_prints_no_nan(mean: float, error: float | None) -> None:
    text = screen_of(extreme_evaluation(mean, error), 40)
    assert "nan" not in text
