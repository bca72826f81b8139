"""What scores say: which model is best, beside its base, and which one to use."""

import math
import re

import pytest

from ctxextend.json_output import to_json
from ctxextend.lab.evaluation import Evaluation
from ctxextend.lab.scores import CHUNKS, SAME_TEXT, SEPARATE, SHARE, SLIDING, START, Score
from tests.helpers.scores import BASE, BASE_LEN, LENGTH, make_evaluation, make_score

SLIDING_BASE = make_score(BASE, 3.0, reading=SLIDING)
SEARCH = {"measure": "search", "name": "nDCG@10", "unit": SHARE}
METHODS = ("stretch", "bands", "linear", "copy", "random")


def methods(*losses: float, noise: float = 0.0, samples: int = 48, auto: str = "") -> Evaluation:
    """Return an evaluation of methods with these losses; the noise is of all but the first."""
    scores = list[Score]()
    for name, loss in zip(METHODS, losses, strict=False):
        own = noise if scores else 0.0
        scores.append(make_score(name, loss, noise=own, samples=samples))
    return make_evaluation(*scores, auto=auto)


def test_a_model_that_is_worse_than_its_base_is_called_worse() -> None:
    loss = 3.0 + math.log(1.37)
    contexts = [
        make_score("longer", loss, measure="context"),
        make_score("longer", loss, measure="context", length=BASE_LEN, noise=0.5),
    ]
    separate = make_score(BASE, 3.3, reading=SEPARATE)
    found = make_evaluation(
        SLIDING_BASE, separate, make_score("longer", loss, noise=0.5), *contexts
    )
    worse, context = re.split(r"(?<=\.) (?=A )", found.verdict)
    assert worse.startswith("longer is worse than base in sliding windows of 128 tokens: perp")
    assert "perplexity higher by 37" in worse
    assert context.startswith("A longer context changes nothing beyond chance: perplexity ")
    assert "better" not in found.verdict
    # In separate windows, nobody would use it.
    outcomes = {one["reading"]: one["outcome"] for one in to_json(found)["differences"]}
    assert outcomes == {SLIDING: "worse", SEPARATE: "worse", "one_pass": "tied"}


@pytest.mark.parametrize(
    ("loss", "effect"),
    [
        (2.9, "A longer context helps it: perplexity lower by 9.5"),
        (3.1, "A longer context hurts it: perplexity higher by 10.5"),
        (math.nan, "What a context of 512 tokens changes is unknown: a loss is not finite."),
    ],
)
def test_verdict_says_what_a_longer_context_is_worth(loss: float, effect: str) -> None:
    short = make_score("longer", 3.0, measure="context", length=BASE_LEN)
    shorter = make_score("longer", 3.3, measure="context", length=64)
    longest = make_score("longer", loss, measure="context")
    longer = make_score("longer", 2.8)
    found = make_evaluation(SLIDING_BASE, longer, longest, short, shorter)
    assert found.verdict.startswith("longer is better than base in sliding windows of 128 tokens")
    assert effect in found.verdict
    difference = found.of_context("longer")
    assert difference is not None
    assert difference.other is short  # of the length of the base


def test_verdict_names_methods_that_are_tied_and_those_that_are_worse() -> None:
    found = methods(2.0, 2.0001, 2.1, 2.2, noise=0.5)
    assert found.verdict.startswith("stretch is best at 512 tokens: perplexity 7.389 (")
    assert "; bands is as good within chance; worse: linear by 10" in found.verdict
    assert "and copy by 22" in found.verdict
    many = methods(2.0, 2.1, 2.2, 2.3, math.nan)
    assert "; the other 3 are worse, by 10" in many.verdict
    assert many.order == [*METHODS]
    assert "random" not in many.verdict  # which has no finite loss


def test_verdict_from_one_window_decides_nothing() -> None:
    found = methods(2.0, 2.5, samples=1, auto="bands")
    assert "bands is as good within chance" in found.verdict
    doubt = "1 sample of text is too little to choose by; auto takes bands."
    assert found.verdict.endswith(doubt)
    base = make_score(BASE, 3.0, samples=1, reading=SLIDING)
    beside = make_evaluation(base, make_score("longer", 2.8, samples=1)).verdict
    assert "longer beside base in sliding windows of 128 tokens: perplexity lower" in beside
    assert "from one text, so it may be chance" in beside


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_verdict_without_finite_losses_calls_nothing_better(loss: float) -> None:
    alone = make_evaluation(SLIDING_BASE, make_score("longer", loss))
    assert alone.verdict == "No model has a finite perplexity at 512 tokens."
    broken = make_score(BASE, loss, reading=SLIDING)
    beside = make_evaluation(broken, make_score("longer", 2.0)).verdict
    expected = "longer cannot be compared with base in sliding windows of 128 tokens: a loss is"
    assert beside.startswith(expected)
    ranked = methods(loss, 7.0)
    assert ranked.order == ["bands", "stretch"]
    assert ranked.recommended == "bands"
    assert "stretch" not in ranked.verdict


def test_encoders_are_compared_with_chunks_of_the_same_text_and_of_the_whole() -> None:
    readings = {START: 0.3, SAME_TEXT: 0.5, CHUNKS: 0.7}
    references = [make_score(BASE, mean, reading=name, **SEARCH) for name, mean in readings.items()]
    model = make_score("longer", 0.6, noise=0.1, **SEARCH)
    found = make_evaluation(*references, model, kind="encoder")
    better = "longer is better than base in chunks of the same text: nDCG@10 higher by 10"
    worse = "longer is worse than base in chunks of the whole text: nDCG@10 lower by 10"
    assert better in found.verdict
    assert worse in found.verdict
    assert "first tokens" not in found.verdict
    (as_json,) = [one for one in to_json(found)["differences"] if one["reading"] == CHUNKS]
    assert as_json["outcome"] == "worse"
    assert as_json["percent"] == pytest.approx(-10.0)
    lower, upper = as_json["percent_interval"]
    assert lower < -10 < upper < 0


def test_verdict_of_one_model_without_a_base_is_its_score() -> None:
    found = make_evaluation(make_score("model", 2.0))
    assert found.verdict.startswith("model: perplexity 7.389 (")
    assert found.verdict.endswith(" at 512 tokens.")
    assert make_evaluation(length=LENGTH).verdict == "Nothing was measured."


@pytest.mark.parametrize("samples", [1, 48])
@pytest.mark.parametrize("loss", [2.0, 3.0, 4.0, math.nan])
def test_verdict_never_advises_to_train_on_the_text(loss: float, samples: int) -> None:
    base = make_score(BASE, 3.0, reading=SLIDING, samples=samples)
    model = make_score("longer", loss, noise=0.5, samples=samples)
    for found in (make_evaluation(base, model), methods(loss, loss + 1, samples=samples)):
        assert not re.search("train|tune", found.verdict)


# ---- what to use


@pytest.mark.parametrize(
    ("found", "recommended"),
    [
        (methods(2.0, 2.0001, 2.0001, noise=0.5, auto="bands"), "bands"),  # tied
        (methods(2.0, 2.1, 2.0001, noise=0.5, auto="bands"), "stretch"),  # that of auto is worse
        (methods(2.0, 2.1, 2.1, samples=7, auto="bands"), "bands"),  # too little text
        (methods(2.0, 2.1, samples=8, auto="bands"), "stretch"),
        (methods(2.0, 2.1, samples=2, auto="copy"), "copy"),  # even if it was not measured
        (methods(2.0, 2.0001, noise=0.5, samples=2), "stretch"),  # checkpoints have no default
    ],
)
def test_recommended_is_what_auto_takes_on_ties_and_little_text(
    found: Evaluation, recommended: str
) -> None:
    assert found.recommended == recommended
    assert to_json(found)["recommended"] == recommended


@pytest.mark.parametrize(
    ("best", "recommended"),
    [("switch", "yarn"), ("switch:beta-slow=2", "yarn"), ("linear", "linear")],
)
def test_recommended_is_not_switch_where_yarn_was_measured(best: str, recommended: str) -> None:
    scores = [make_score(best, 2.0), make_score("yarn", 2.1)]
    found = make_evaluation(*scores, auto="yarn")
    assert found.recommended == recommended
    assert found.verdict.startswith(f"{best} is best at 512 tokens: ")
    assert (f"Use yarn: scores of long inputs do not say what {best} is" in found.verdict) == (
        recommended == "yarn"
    )
    assert make_evaluation(scores[0], auto="yarn").recommended == best
