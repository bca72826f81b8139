import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.tables.apply import learned_rows, learned_rows_after, resize_table
from ctxextend.tables.methods import METHODS
from tests.helpers import pico
from tests.helpers.method_choices import read_choice

A, B, C, D = np.eye(4, dtype=np.float32)


@given(st.sampled_from(sorted(pico.LEARNED_METHODS)), st.integers(8, 12), st.integers(13, 36))
def test_learned_rows_after_equals_learned_rows_of_a_real_table(
    method: str, before: int, after: int
) -> None:
    keep_first: int | None = 2
    if METHODS[method].keep_first is None:
        keep_first = None
    choice = read_choice(method=method, keep_first=keep_first)
    table = np.random.default_rng(1).normal(size=(before, 6)).astype(np.float32)
    resized = resize_table(table, after, choice)

    learned = learned_rows_after(before, after, choice)

    assert learned.tolist() == learned_rows(table, resized).tolist()
