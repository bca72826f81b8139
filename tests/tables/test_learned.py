from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.provenance import Provenance, learned_before
from ctxextend.recipe import CheckpointRef, Resize
from ctxextend.tables.apply import learned_rows, learned_rows_after, resize_table
from ctxextend.tables.method_parser import read_choice
from ctxextend.tables.methods import METHODS
from tests.helpers import pico

A, B, C, D = np.eye(4, dtype=np.float32)


@pytest.mark.parametrize(
    ("after", "learned"),
    [
        ([A, B, C], [1, 1, 1]),
        ([A, B, C, A, B, C], [1, 1, 1, 0, 0, 0]),  # copies of rows that are still at their indices
        ([A, A, B, B, C, C], [1, 0, 1, 0, 1, 0]),  # B and C moved: their first copies are learned
        ([A, D, B, D, C], [1, 0, 1, 0, 1]),
        ([D, B, C], [0, 1, 1]),
        ([A, B], [1, 1]),
        ([D, D, D], [0, 0, 0]),
    ],
)
def test_learned_rows_finds_unchanged_rows_and_first_copies(
    after: list[object], learned: list[int]
) -> None:
    assert learned_rows(np.array([A, B, C]), np.array(after)).tolist() == [
        bool(row) for row in learned
    ]


def test_learned_rows_compares_bytes() -> None:
    before, after = np.array([[[0.0], [np.nan]], [[-0.0], [np.nan]]], np.float32)
    assert learned_rows(before, after).tolist() == [False, True]


@given(st.sampled_from(sorted(pico.LEARNED_METHODS)), st.integers(8, 12), st.integers(13, 36))
def test_learned_rows_after_equals_learned_rows_of_a_real_table(
    method: str, before: int, after: int
) -> None:
    options = read_choice(
        method=method, keep_first=None if METHODS[method].keep_first is None else 2
    )
    table = np.random.default_rng(1).normal(size=(before, 6)).astype(np.float32)
    expected = learned_rows(table, resize_table(table, after, options))
    assert learned_rows_after(before, [(after, options)]).tolist() == expected.tolist()


def test_learned_rows_after_tracks_rows_through_several_resizes() -> None:
    steps = [(6, read_choice("stretch", keep_first=0)), (8, read_choice("copy"))]
    assert learned_rows_after(3, steps).tolist() == [
        True,
        False,
        True,
        False,
        True,
        False,
        False,
        False,
    ]
    assert learned_rows_after(3, [*steps, (3, read_choice())]).tolist() == [True, False, True]


def provenance(before: int, after: int) -> Provenance:
    return Provenance(
        CheckpointRef("x"), Resize(after - 2, method="copy"), rows={"wpe": (before, after)}
    )


@pytest.mark.parametrize(
    ("chain", "table", "maximum", "expected"),
    [
        (
            (provenance(8, 8), provenance(6, 8), provenance(4, 6)),
            "wpe",
            8,
            [True] * 2 + [False] * 4,
        ),  # newest first
        ((), "wpe", 8, None),
        ((provenance(4, 6),), "other", 8, None),
        ((provenance(4, 6),), "wpe", 5, None),  # more rows than the table has
        ((provenance(2, 6),), "wpe", 8, None),  # only reserved rows
    ],
)
def test_learned_before_follows_the_recipes(
    chain: Any, table: str, maximum: int, expected: list[bool] | None
) -> None:
    learned = learned_before(chain, table, 2, maximum)
    assert (learned if learned is None else learned.tolist()) == expected
