from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.recipe import CheckpointRef, Resize
from ctxextend.recipe_file import Provenance, learned_before
from ctxextend.tables.apply import MethodOptions, learned_rows, learned_rows_after, resize_table
from ctxextend.tables.methods import METHODS

A, B, C, D = np.eye(4, dtype=np.float32)


@pytest.mark.parametrize(
    ("after", "learned"),
    [
        ([A, B, C], [1, 1, 1]),
        ([A, B, C, A, B, C], [1, 1, 1, 0, 0, 0]),  # copies of rows that are still in their places
        ([A, A, B, B, C, C], [1, 0, 1, 0, 1, 0]),  # B and C are in other places, and were learned the first time
        ([A, D, B, D, C], [1, 0, 1, 0, 1]),
        ([D, B, C], [0, 1, 1]),
        ([A, B], [1, 1]),
        ([D, D, D], [0, 0, 0]),
    ],
)
def test_learned_rows_are_those_in_their_places_and_those_that_moved(after: list[object], learned: list[int]) -> None:
    assert learned_rows(np.array([A, B, C]), np.array(after)).tolist() == [bool(row) for row in learned]


def test_learned_rows_compares_bits() -> None:
    before, after = np.array([[[0.0], [np.nan]], [[-0.0], [np.nan]]], np.float32)
    assert learned_rows(before, after).tolist() == [False, True]


@given(st.sampled_from(sorted(METHODS)), st.integers(8, 12), st.integers(13, 36))
def test_still_learned_is_what_a_comparison_finds_in_any_table(method: str, before: int, after: int) -> None:
    options = MethodOptions(method=method, keep_first=None if METHODS[method].keep_first is None else 2)
    table = np.random.default_rng(1).normal(size=(before, 6)).astype(np.float32)
    expected = learned_rows(table, resize_table(table, after, options))
    assert learned_rows_after(before, [(after, options)]).tolist() == expected.tolist()


def test_still_learned_follows_rows_through_several_resizes() -> None:
    steps = [(6, MethodOptions(method="stretch", keep_first=0)), (8, MethodOptions(method="copy"))]
    assert learned_rows_after(3, steps).tolist() == [True, False, True, False, True, False, False, False]
    assert learned_rows_after(3, [*steps, (3, MethodOptions())]).tolist() == [True, False, True]


def written(before: int, after: int) -> Provenance:
    return Provenance(CheckpointRef("x"), Resize(after - 2, method="copy"), rows={"wpe": (before, after)})


@pytest.mark.parametrize(
    ("chain", "table", "maximum", "expected"),
    [
        ((written(8, 8), written(6, 8), written(4, 6)), "wpe", 8, [True] * 2 + [False] * 4),  # the newest first
        ((), "wpe", 8, None),
        ((written(4, 6),), "other", 8, None),
        ((written(4, 6),), "wpe", 5, None),  # more rows than there are
        ((written(2, 6),), "wpe", 8, None),  # nothing behind the rows in front of position 0
    ],
)
def test_learned_before_is_what_recipes_say(chain: Any, table: str, maximum: int, expected: list[bool] | None) -> None:
    learned = learned_before(chain, table, 2, maximum)
    assert (learned if learned is None else learned.tolist()) == expected
