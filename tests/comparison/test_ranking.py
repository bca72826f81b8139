"""Ranking of synthetic losses, and parsing of methods."""

import math

import numpy as np
import pytest

from ctxextend.comparison.candidates import Candidate
from ctxextend.comparison.comparison_settings import evaluate_for, read_methods
from ctxextend.comparison.metrics import FOUND, LOSS, choose_metric
from ctxextend.comparison.ranking import rank
from ctxextend.settings import Compare
from ctxextend.tables.method_parser import parse_method
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rotary_methods import ROTARY_METHOD_NAMES
from tests.helpers.evaluations import WITHOUT_BASE

# `auto` chooses one of the others.
EVERY = [name for name in METHODS if name != "auto"]


def candidate(name: str, *losses: float) -> Candidate:
    """A method with the losses of its windows."""
    windows = tuple(np.array([loss]) for loss in losses)
    return Candidate(name, WITHOUT_BASE, windows, 1.0, recipe="source: x\n")


def test_rank_puts_the_best_first_and_pairs_the_others_with_it() -> None:
    best, other = rank([candidate("linear", 1.0, 1.0), candidate("copy", 0.5, 0.7)], LOSS)
    assert best.method == "copy"
    assert best.delta is None
    assert best.recipe == "source: x\n"
    assert other.method == "linear"
    assert other.delta is not None
    assert other.delta.mean == pytest.approx(0.4)


def test_rank_puts_nan_last() -> None:
    linear = candidate("linear", math.nan, 1.0)
    copy = candidate("copy", 7.0, 7.0)
    first, second = rank([linear, copy], LOSS)
    assert first.method == "copy"
    assert second.method == "linear"
    assert first.is_tied
    assert not second.is_tied


@pytest.mark.parametrize(
    ("specs", "named"),
    [
        ([], []),
        (["all", "all"], []),
        (["all", "last", "last", "copy:keep_first=1"], ["last", "copy:keep-first=1"]),
    ],
)
def test_read_methods_expands_all_and_removes_duplicates(
    specs: list[str], named: list[str]
) -> None:
    requests = read_methods([spec if spec == "all" else parse_method(spec) for spec in specs])
    names = [request.name for request in requests]
    names_given = [request.name for request in requests if not request.can_be_skipped]
    without_duplicates = dict.fromkeys([*EVERY, *ROTARY_METHOD_NAMES, *named])
    assert names == list(without_duplicates)
    assert names_given == named


def test_evaluate_for_adds_the_measure_that_ranks_methods() -> None:
    settings = Compare(models=("m",), to=64, data=("a",), measure=("context",))
    assert evaluate_for(settings, "causal", 64).measure == ("context", "position")
    assert evaluate_for(settings, "encoder", 64).measure == ("context", "retrieval")


def test_methods_are_ranked_by_the_effective_length_if_nothing_else_is_measured() -> None:
    effective = Compare(models=("m",), to=64, data=("a",), measure=("effective",))
    for kind in ("causal", "masked", "encoder"):
        settings = evaluate_for(effective, kind, 64)
        assert settings.measure == ("effective",)
        assert choose_metric(kind, settings) == FOUND
