"""What a text may decide.

Ties and little text choose no method, and intervals stay within the range of the measure.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from ctxextend.comparison.comparison_result import Comparison, Row
from ctxextend.lab.evaluation_result import (
    LOSS_BOUNDS,
    SHARE_BOUNDS,
    Bounds,
    Estimate,
    LossEstimate,
    difference_bounds,
    estimate,
)
from ctxextend.report.verdicts import comparison_verdict

from ctxextend.json_output import to_json
from ctxextend.report.figures import error_bar
from ctxextend.report.numbers import NumberFormat
from tests.helpers.comparisons import COMPARISONS
from tests.helpers.trainings import invoke, make_encoder
from tests.helpers.word_tokenizer import write_texts


def with_results(auto: str, *leads: tuple[float, float], samples: int = 48) -> Comparison:
    """Return a comparison of three methods, with how much worse each is and its standard error."""
    found = COMPARISONS["compare-methods"]
    first = found.rows[0]
    score = replace(first.score, samples=samples)
    rows: list[Row] = []
    for method, (lead, error) in zip(("stretch", "bands", "linear"), leads, strict=False):
        delta = None
        if rows:  # the first is the best, which the others are compared with
            delta = Estimate(lead, error, 24_576, samples)
        rows.append(replace(first, method=method, score=score, delta=delta))
    return replace(found, rows=tuple(rows), auto=auto, skipped={})


@pytest.mark.parametrize(
    ("comparison", "recommended"),
    [
        (
            with_results("bands", (0, 0), (0.01, 0.02), (0.01, 0.02)),
            "bands",
        ),  # tied: what auto takes
        (
            with_results("bands", (0, 0), (0.1, 0.01), (0.01, 0.02)),
            "stretch",
        ),  # what auto takes is worse
        (
            with_results("bands", (0, 0), (0.1, 0.01), (0.1, 0.01), samples=7),
            "bands",
        ),  # too little text
        (
            with_results("copy", (0, 0), (0.1, 0.01), samples=2),
            "copy",
        ),  # even if it was not compared
        (with_results("bands", (0, 0), (0.1, 0.01), samples=8), "stretch"),
        (
            with_results("", (0, 0), (0.01, 0.02), samples=2),
            "stretch",
        ),  # checkpoints have no default
    ],
)
def test_recommended_is_what_auto_takes_on_ties_and_little_text(
    comparison: Comparison, recommended: str
) -> None:
    assert comparison.recommended == recommended
    assert to_json(comparison)["recommended"] == recommended


@pytest.mark.parametrize(
    ("best", "recommended"),
    [("switch", "yarn"), ("switch:beta-slow=2", "yarn"), ("linear", "linear")],
)
def test_recommended_is_not_switch_where_yarn_was_measured(best: str, recommended: str) -> None:
    found = with_results("yarn", (0, 0), (0.1, 0.01))
    first, second = found.rows
    rows = (replace(first, method=best), replace(second, method="yarn"))
    compared = replace(found, rows=rows)
    assert compared.recommended == recommended
    verdict = comparison_verdict(compared, NumberFormat())
    assert verdict.startswith(f"`{best}` is best at 512 tokens: ")
    reason = "`yarn` is recommended: scores of long inputs do not say what"
    assert (reason in verdict) == (recommended == "yarn")
    assert replace(compared, rows=rows[:1]).recommended == best


# ---- intervals


@pytest.mark.parametrize(
    ("values", "bounds", "interval"),
    [
        ([1.0, 0.8], SHARE_BOUNDS, (0.0, 1.0)),
        ([0.9, 0.8, 1.0, 0.9], SHARE_BOUNDS, (0.77, 1.0)),
        ([0.5, 0.6, 0.5, 0.4], SHARE_BOUNDS, (0.37, 0.63)),
        ([-0.9, 0.9], (-1.0, 1.0), (-1.0, 1.0)),
        ([1.0, 0.0], difference_bounds(SHARE_BOUNDS), (-1.0, 1.0)),
        ([0.1, 0.5], LOSS_BOUNDS, (0.0, 2.84)),
        ([1.0, 1.0], SHARE_BOUNDS, (1.0, 1.0)),
    ],
)
def test_interval_stays_within_the_range_of_the_measure(
    values: list[float], bounds: Bounds, interval: tuple[float, float]
) -> None:
    samples = [np.array([value]) for value in values]
    found = estimate(samples, bounds)
    assert found.interval is not None
    assert found.interval == pytest.approx(interval, abs=0.006)
    below, above = error_bar(found)
    assert found.mean - below == pytest.approx(found.interval[0])
    assert found.mean + above == pytest.approx(found.interval[1])

    as_json = to_json(found)
    assert as_json["interval"] == list(found.interval)
    ci95 = as_json["ci95"]
    if ci95 is not None:
        assert ci95 >= 0
        assert as_json["mean"] - ci95 >= bounds[0]
        assert as_json["mean"] + ci95 <= bounds[1]


def test_a_cut_interval_still_says_whether_a_difference_is_significant() -> None:
    change = Estimate(0.9, 0.05, 8, 8, difference_bounds(SHARE_BOUNDS))
    assert change.ci95 is None
    assert change.sign == 1
    shown = NumberFormat().compared(change, "X", "MRR")
    assert shown == "better than X by 0.90 (0.78 to 1.00) MRR"
    uncertain = replace(change, standard_error=0.5)
    assert uncertain.sign == 0


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Estimate(0.9, 0.1, 2, 3, SHARE_BOUNDS), "0.90 (0.47 to 1.00)"),
        (Estimate(0.5, 0.01, 2, 3, SHARE_BOUNDS), "0.500 ± 0.043"),
        (Estimate(0.5, None, 2, 1, SHARE_BOUNDS), "0.500 (one sample)"),
        (Estimate(math.nan, None, 0, 0, SHARE_BOUNDS), "-"),
        (Estimate(1.0, 0.0, 9, 9, SHARE_BOUNDS), "1.00"),
    ],
)
def test_estimate_shows_an_interval_or_why_there_is_none(found: Estimate, text: str) -> None:
    assert NumberFormat().estimate(found) == text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (LossEstimate(3.0, 0.01, 99, 9), "20.09 ± 0.46"),
        (LossEstimate(3.0, 0.5, 99, 3), "20 (2 to 173)"),
        (LossEstimate(0.1, 0.1, 99, 9), "1.11 (1.00 to 1.39)"),
        (LossEstimate(3.0, None, 99, 1), "20.1 (one sample)"),
        (LossEstimate(3.0, 900.0, 99, 9), "20 (1 to 1.01e+304)"),
    ],
)
def test_perplexity_has_an_interval_above_0(found: LossEstimate, text: str) -> None:
    assert NumberFormat().perplexity(found) == text


def test_percent_stays_between_0_and_100() -> None:
    share = Estimate(0.97, 0.03, 9, 9, SHARE_BOUNDS)
    assert NumberFormat().percent(share) == "97.0 (90.1 to 100.0)"
    change = Estimate(-0.97, 0.03, 9, 9, difference_bounds(SHARE_BOUNDS))
    assert NumberFormat().percent(change, signed=True) == "-97.0 (-100.0 to -90.1)"


# ---- how much text was used


def test_evaluate_states_one_number_of_tokens(tmp_path: Path) -> None:
    source = make_encoder(tmp_path / "one")
    data = write_texts(100, 10)
    longer = invoke("resize", source, "--to", 64, "-o", "longer", "--method", "copy")
    assert longer.exit_code == 0, longer.stderr

    flags = ("--data", data, "--tokens", 300, "--measure", "retrieval")
    values = json.loads(invoke("evaluate", "longer", *flags, "--json").stdout)
    documents = values["retrieval"]["documents"]
    assert values["retrieval"]["length"] == 64
    assert values["tokens"] == 64 * documents
    assert values["tokens"] <= 300
    assert values["limited_by"] == "tokens"

    screen = invoke("evaluate", "longer", *flags).stdout
    assert f"text        {64 * documents} tokens, " in screen
    assert "; limited by --tokens" in screen


# ---- --keep-first


def test_resize_takes_keep_first_above_the_learned_rows_as_all_of_them() -> None:
    done = invoke("resize", "tiny-gpt2", "--to", 256, "--keep-first", 200, "-o", "kept", "--json")
    note = "--keep-first 200 is taken as 128: the table has 128 learned rows."
    assert note in done.stderr.splitlines()
    assert json.loads(done.stdout)["keep_first"] == 128
    recipe = yaml.safe_load(Path("kept/ctxextend.yaml").read_text())
    assert recipe["resize"]["keep_first"] == 128
    verified = invoke("verify", "kept")
    assert verified.exit_code == 0

    exact = invoke("resize", "tiny-gpt2", "--to", 256, "--keep-first", 128, "-o", "exact")
    assert "taken as" not in exact.stderr
    weights = Path("exact/model.safetensors").read_bytes()
    assert weights == Path("kept/model.safetensors").read_bytes()
