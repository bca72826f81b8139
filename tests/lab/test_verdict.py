"""What scores say: which model is best, next to its base, and which one to use."""

import math
import re
from dataclasses import replace

import pytest

from ctxextend.json_output import to_json
from ctxextend.lab.evaluation import Evaluation
from ctxextend.lab.scores import CHUNKS, ONE_PASS, SAME_TEXT, SEPARATE, SLIDING, START
from tests.helpers.evaluations import BASE_LEN, evaluation, score

SLIDING_BASE = score("short", 3.0, reading=SLIDING, length=BASE_LEN)
SAME = "long is worse than short in sliding windows of 128 tokens: perplexity +37 %"
METHODS = ("stretch", "bands", "linear", "copy", "random")


def methods(*losses: float, samples: int = 48, spread: float = 0.05, auto: str = "") -> Evaluation:
    """Return the result of methods with these losses."""
    pairs = zip(METHODS, losses, strict=False)
    scores = [score(name, loss, samples=samples, spread=spread) for name, loss in pairs]
    return replace(evaluation(scores, METHODS[: len(losses)]), auto=auto)


def test_a_model_that_is_worse_than_its_base_is_called_worse() -> None:
    loss = 3.0 + math.log(1.37)
    found = evaluation(
        [
            SLIDING_BASE,
            score("short", 3.3, reading=SEPARATE, length=BASE_LEN),
            score("long", loss),
            score("long", loss, measure="context"),
            score("long", loss, measure="context", length=BASE_LEN),
        ]
    )
    worse, context = re.split(r"(?<=\.) (?=A )", found.verdict)
    assert worse.startswith(SAME)
    assert context.startswith("A longer context changes nothing beyond chance: perplexity ")
    assert "better" not in found.verdict
    outcomes = {one.other.reading: one.outcome for one in found.differences}
    assert outcomes == {SLIDING: -1, SEPARATE: -1, ONE_PASS: 0}


@pytest.mark.parametrize(
    ("loss", "effect"),
    [
        (2.8, "A longer context helps it: perplexity -18"),
        (3.2, "A longer context hurts it: perplexity +22"),
        (math.nan, "What a context of 512 tokens changes is unknown: a loss is not finite."),
    ],
)
def test_verdict_says_what_a_longer_context_is_worth(loss: float, effect: str) -> None:
    lengths = {512: loss, BASE_LEN: 3.0, 64: 3.3}
    scores = [score("long", lengths[one], measure="context", length=one) for one in lengths]
    found = evaluation([SLIDING_BASE, score("long", 2.8), *scores])
    assert found.verdict.startswith("long is better than short in sliding windows of 128 tokens")
    assert effect in found.verdict
    difference = found.of_context("long")
    assert difference is not None
    assert difference.other.length == BASE_LEN


def test_verdict_names_methods_that_are_tied_and_those_that_are_worse() -> None:
    found = methods(2.0, 2.0, 3.0, 3.5, spread=0.5)
    assert found.verdict.startswith("stretch is best at 512 tokens: perplexity ")
    assert "; bands is tied with it; better than linear by 6" in found.verdict
    many = methods(2.0, 2.1, 2.2, 2.3, math.nan)
    assert "; better than the other 3 by 9" in many.verdict
    assert many.order == [*METHODS]
    assert "random" not in many.verdict  # which has no finite loss


def test_verdict_from_one_window_decides_nothing() -> None:
    found = methods(2.0, 2.5, samples=1, auto="bands")
    assert "bands is tied with it" in found.verdict
    assert found.verdict.endswith("1 sample of text is too little to choose by; auto takes bands.")
    base = score("short", 3.0, samples=1, reading=SLIDING, length=BASE_LEN)
    both = evaluation([base, score("long", 2.8, samples=1)]).verdict
    assert both.startswith("long against short in sliding windows of 128 tokens: perplexity -")
    assert "from one text, so it may be chance" in both


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_verdict_without_finite_losses_calls_nothing_better(loss: float) -> None:
    single = evaluation([SLIDING_BASE, score("long", loss)])
    assert single.verdict == "No model has a finite perplexity at 512 tokens."
    broken = score("short", loss, reading=SLIDING, length=BASE_LEN)
    both = evaluation([broken, score("long", 2.0)]).verdict
    assert both.startswith("long cannot be compared with short in sliding windows of 128 tokens")
    ranked = methods(loss, 7.0)
    assert ranked.order == ["bands", "stretch"]
    assert ranked.recommended == "bands"
    assert "stretch" not in ranked.verdict


def test_encoders_are_compared_with_chunks_of_the_same_text_and_of_the_whole() -> None:
    readings = {START: 0.3, SAME_TEXT: 0.5, CHUNKS: 0.7, ONE_PASS: 0.6}
    scores = []
    for reading, mean in readings.items():
        name = "long" if reading == ONE_PASS else "short"
        scores.append(score(name, mean, reading=reading, measure="search", unit="share"))
    found = evaluation(scores, kind="encoder")
    assert "long is better than short in chunks of the same text: loss +" in found.verdict
    assert "long is worse than short in chunks of the whole text: loss -" in found.verdict
    assert "first tokens" not in found.verdict
    *_, difference = found.differences
    assert difference.other.reading == CHUNKS
    middle, lower, upper = difference.percent
    assert lower < middle < upper < 0
    assert middle == pytest.approx(-10, abs=1)  # points


def test_verdict_of_one_model_without_a_base_is_its_score() -> None:
    found = evaluation([score("long", 2.0)])
    assert found.verdict.startswith("long: perplexity 7.")
    assert found.verdict.endswith(" at 512 tokens.")
    assert evaluation([]).verdict == "Nothing was measured."


@pytest.mark.parametrize("samples", [1, 48])
@pytest.mark.parametrize("loss", [2.0, 3.0, 4.0, math.nan])
def test_verdict_never_advises_to_train_on_the_text(loss: float, samples: int) -> None:
    base = score("short", 3.0, reading=SLIDING, samples=samples)
    both = evaluation([base, score("long", loss, samples=samples)])
    for found in (both, methods(loss, loss + 1, samples=samples)):
        assert not re.search("train|tune", found.verdict)


# ---- what to use


@pytest.mark.parametrize(
    ("found", "recommended"),
    [
        (methods(2.0, 2.0, 2.5, spread=0.5, auto="bands"), "bands"),  # tied
        (methods(2.0, 2.1, 2.0, auto="bands"), "stretch linear"),  # that of auto is worse
        (methods(2.0, 2.1, 2.1, samples=7, auto="bands"), "bands"),  # too little text
        (methods(2.0, 2.1, samples=8, auto="bands"), "stretch"),
        (methods(2.0, 2.1, samples=2), "stretch"),  # checkpoints have no default
    ],
)
def test_recommended_is_what_auto_takes_on_ties_and_little_text(
    found: Evaluation, recommended: str
) -> None:
    assert found.recommended in recommended.split()
    assert to_json(found)["recommended"] == found.recommended


@pytest.mark.parametrize(
    ("best", "recommended"),
    [("switch", "yarn"), ("switch:beta-slow=2", "yarn"), ("linear", "linear")],
)
def test_recommended_is_not_switch_where_yarn_was_measured(best: str, recommended: str) -> None:
    found = evaluation([score(best, 2.0), score("yarn", 2.1)], [best, "yarn"])
    found = replace(found, auto="yarn")
    assert found.recommended == recommended
    assert found.verdict.startswith(f"{best} is best at 512 tokens: ")
    reason = f"Use yarn: scores of long inputs do not say what {best} is for."
    assert found.verdict.endswith(reason) == (recommended == "yarn")
    single = replace(found, models=found.models[:1])
    assert single.recommended == best
