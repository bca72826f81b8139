"""Ranking of synthetic losses."""

import math

import numpy as np
from ctxextend.comparison.candidates import Candidate
from ctxextend.comparison.comparison_settings import evaluate_for
from ctxextend.comparison.metrics import FOUND, LOSS, choose_metric
from ctxextend.comparison.ranking import rank

from ctxextend.settings import Compare
from tests.helpers.evaluations import WITHOUT_BASE


def candidate(name: str, *losses: float) -> Candidate:
    """A method with the losses of its windows."""
    windows = tuple(np.array([loss]) for loss in losses)
    return Candidate(name, WITHOUT_BASE, windows, 1.0, recipe="source: x\n")


def test_rank_puts_nan_last() -> None:
    linear = candidate("linear", math.nan, 1.0)
    copy = candidate("copy", 7.0, 7.0)
    first, second = rank([linear, copy], LOSS)
    assert first.method == "copy"
    assert second.method == "linear"
    assert first.is_tied
    assert not second.is_tied


def test_methods_are_ranked_by_the_effective_length_if_nothing_else_is_measured() -> None:
    effective = Compare(models=("m",), to=64, data=("a",), measure=("effective",))
    for kind in ("causal", "masked", "encoder"):
        settings = evaluate_for(effective, kind, 64)
        assert settings.measure == ("effective",)
        assert choose_metric(kind, settings) == FOUND
