"""Rankings of made-up losses, and methods as they are typed."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ctxextend.comparison.compare import Candidate, Compare, Measurement, rank, read_methods
from ctxextend.comparison.comparison_result import LOSS
from ctxextend.errors import ResizeError
from ctxextend.evaluation.evaluation_result import estimate
from ctxextend.recipe import Evaluate, Train
from ctxextend.tables.methods import METHODS
from tests.evaluations import LONE

# What `auto` makes, one of the others makes too.
EVERY = [name for name in METHODS if name != "auto"]


def measured(*windows: list[float]) -> Measurement:
    return Measurement(LONE, tuple(np.array(values) for values in windows))


def candidate(name: str, untrained: Measurement | None, trained: Measurement | None = None) -> Candidate:
    plan: Any = SimpleNamespace(keeps_learned_rows=False)
    return Candidate(name, plan, "source: x\n", (), [found for found in (untrained, trained) if found])


def test_rank_pairs_by_window_so_that_small_differences_show() -> None:
    one, other = measured([1.0, 1.2], [5.0, 5.2], [9.0, 9.4]), measured([1.1, 1.3], [5.1, 5.3], [9.2, 9.4])
    best, second = rank([candidate("linear", other), candidate("copy", one)], LOSS)
    assert (best.method, second.method) == ("copy", "linear")
    assert best.untrained.behind is None
    assert second.untrained.behind == estimate([b - a for a, b in zip(one.scores, other.scores, strict=True)])
    assert second.untrained.behind.mean == pytest.approx(0.1)
    assert (second.untrained.score.error or 0) > 1 > 0.05 > (second.untrained.behind.error or 0)
    assert not second.untrained.is_level


def test_rank_goes_by_the_training_and_compares_within_a_stage() -> None:
    first = candidate("linear", measured([1.0, 1.0], [1.0, 1.0]), measured([0.9, 0.9], [0.9, 0.9]))
    second = candidate("copy", measured([2.0, 2.0], [2.0, 2.0]), measured([0.5, 0.5], [0.5, 0.5]))
    waiting, unread = candidate("last", measured([0.1], [0.1])), candidate("mean", None)
    rows = rank([first, waiting, second, unread], LOSS)
    assert [row.method for row in rows] == ["copy", "linear", "last"]
    assert rows[0].trained is not None
    assert rows[0].trained.behind is None
    assert rows[0].untrained.behind is not None
    assert rows[1].trained is not None
    assert rows[1].trained.behind is not None
    assert rows[1].trained.behind.mean == pytest.approx(0.4)
    assert rows[2].untrained.behind is None
    assert rows[2].trained is None


def test_rank_puts_last_what_is_no_number() -> None:
    rows = rank([candidate("linear", measured([math.nan], [1.0])), candidate("copy", measured([7.0], [7.0]))], LOSS)
    assert [row.method for row in rows] == ["copy", "linear"]
    assert rows[0].untrained.is_level
    assert not rows[1].untrained.is_level


@pytest.mark.parametrize(
    ("typed", "name", "flags"),
    [
        ("linear", "linear", {}),
        ("stretch:keep-first=5", "stretch --keep-first 5", {"keep_first": 5}),
        ("stretch --keep-first 5", "stretch --keep-first 5", {"keep_first": 5}),
        ("copy:keep-first=1:drop-last=2", "copy --keep-first 1 --drop-last 2", {"keep_first": 1, "drop_last": 2}),
        ("hierarchical --alpha=0.3", "hierarchical --alpha 0.3", {"alpha": 0.3}),
        ("bands:sigma=8:repeat=40:128", "bands --sigma 8 --repeat 40:128", {"sigma": 8.0, "repeat": (40, 128)}),
        ("bands --repeat 40:128", "bands --repeat 40:128", {"repeat": (40, 128)}),
    ],
)
def test_read_methods_takes_flags_in_either_spelling(typed: str, name: str, flags: dict[str, Any]) -> None:
    (asked,) = read_methods([typed], 64)
    assert (asked.name, asked.is_named, asked.resize.to, asked.resize.method) == (name, True, 64, name.split()[0])
    assert {flag: getattr(asked.resize, flag) for flag in flags} == flags
    assert read_methods([asked.name], 64) == (asked,)


@pytest.mark.parametrize("typed", [[], ["all"], ["all", "all"]])
def test_read_methods_of_nothing_and_of_all_are_every_method(typed: list[str]) -> None:
    found = read_methods(typed, 64)
    assert [asked.name for asked in found] == EVERY
    assert not any(asked.is_named for asked in found)


def test_read_methods_has_each_once_and_named_where_it_is_named_too() -> None:
    found = {asked.name: asked.is_named for asked in read_methods(["all", "last", "last", "copy:drop-last=1"], 64)}
    assert found == dict.fromkeys(EVERY, False) | {"last": True, "copy --drop-last 1": True}


@pytest.mark.parametrize(
    "typed", ["", "nearst", "linear:keep-first=-1", "linear:to=5", "mean:seed=1", "bands:repeat=4"]
)
def test_read_methods_refuses_what_resize_would(typed: str) -> None:
    with pytest.raises(ResizeError):
        read_methods([typed], 64)


def test_compare_of_flags_gives_measurement_and_training_what_is_theirs() -> None:
    flags: dict[str, Any] = {"seed": 3, "tokens": 99, "lr": 0.1, "trainable": "all", "eval_data": ("b",)}
    found = Compare.from_flags(64, ["a"], ["copy"], 5, **flags)
    assert found.evaluate == Evaluate(("b",), tokens=99, seed=3)
    assert found.train == Train(("a",), 5, lr=0.1, trainable="all", seed=3, eval_data=("b",))
    assert Compare.from_flags(64, ["a"], seed=3, trainable="positions", eval_data=()).train is None


def test_compare_measures_what_methods_are_ranked_by_whatever_is_asked_for() -> None:
    found = Compare.from_flags(64, ["a"], measure=("passkey",), length=(16,))
    assert found.evaluate_for("causal").measure == ("passkey", "position")
    assert found.evaluate_for("encoder").measure == ("passkey", "retrieval")
    assert found.evaluate_for("masked").length == (16, 64)
    assert Compare.from_flags(64, ["a"]).evaluate_for("causal") == Evaluate(("a",))
