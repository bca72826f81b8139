from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.errors import DataError
from ctxextend.evaluation.losses import causal_spans, centred_spans
from ctxextend.evaluation.windows import context_lengths, cut_windows


def texts(*lengths: int) -> list[Any]:
    """Documents of the given lengths with consecutive token ids."""
    return np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])


@pytest.mark.parametrize(
    ("lengths", "size", "separator", "one_each", "expected", "across"),
    [
        (
            (5, 4),
            2,
            None,
            False,
            [[0, 1], [2, 3], [5, 6], [7, 8]],
            False,
        ),  # inside documents, whose ends are skipped
        ((5, 4), 2, None, True, [[0, 1], [5, 6]], False),
        (
            (3, 3, 4),
            4,
            99,
            False,
            [[0, 1, 2, 99], [3, 4, 5, 99], [6, 7, 8, 9]],
            True,
        ),  # too few are long enough
    ],
)
def test_cut_windows_stays_inside_documents_or_joins_them(
    lengths: tuple[int, ...],
    size: int,
    separator: int | None,
    one_each: bool,
    expected: list[list[int]],
    across: bool,
) -> None:
    text = cut_windows(texts(*lengths), size, 10, separator, one_each=one_each)
    assert [window.tolist() for window in text.windows] == expected
    assert text.across_documents == across


def test_cut_windows_stops_reading_when_it_has_enough() -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield np.arange(10)

    assert len(cut_windows(endless(), 5, 3, None).windows) == 3
    assert len(cut_windows(endless(), 16, 3, None).windows) == 3  # no document is that long


def test_cut_windows_joins_documents_that_give_too_few_windows() -> None:
    found = cut_windows(texts(15, 15, 15, 15), 10, 8, None, minimum=5)
    assert (len(found.windows), found.across_documents) == (6, True)
    assert not cut_windows(texts(15, 15, 15, 15), 10, 8, None, minimum=4).across_documents


@pytest.mark.parametrize(
    ("tokens", "hint"), [(100, "--length 64"), (8, "--length 8"), (7, "Pass more text")]
)
def test_cut_windows_rejects_text_shorter_than_a_window(tokens: int, hint: str) -> None:
    with pytest.raises(DataError, match=f"{tokens} tokens; one window needs 128") as raised:
        cut_windows(texts(tokens), 128, 10, None)
    assert hint in str(raised.value)
    assert ("--length" in str(raised.value)) == (tokens >= 8)


@pytest.mark.parametrize(
    ("longest", "base", "expected"),
    [
        (2048, 1024, (128, 256, 512, 1024, 2048)),
        (128, None, (16, 32, 64, 128)),
        (1000, 77, (77, 125, 250, 500, 1000)),
        (9, 9, (8, 9)),
    ],
)
def test_context_lengths_doubles_up_to_the_longest(
    longest: int, base: int | None, expected: tuple[int, ...]
) -> None:
    assert context_lengths(longest, base) == expected


def test_spans_are_back_to_back_or_overlap() -> None:
    for found, expected in (
        (causal_spans(range(8), 4, 4), [(0, 4, 0, 4), (4, 8, 4, 8)]),
        (causal_spans(range(8), 4, 3), [(0, 3, 0, 3), (2, 6, 3, 6), (5, 8, 6, 8)]),
        (
            centred_spans(range(8), 8, 4, 2),
            [(0, 4, 0, 2), (1, 5, 2, 4), (3, 7, 4, 6), (4, 8, 6, 8)],
        ),
    ):
        assert [astuple(span) for span in found] == expected


@given(
    st.integers(1, 60), st.integers(1, 70), st.integers(1, 70), st.integers(0, 59), st.booleans()
)
def test_spans_score_each_token_once(
    tokens: int, size: int, stride: int, first: int, centred: bool
) -> None:
    first, stride = min(first, tokens - 1), min(stride, size)
    scored = range(first, tokens)
    found = list(causal_spans(scored, size, stride))
    if centred:
        found = list(centred_spans(scored, tokens, size, stride))
    assert [token for span in found for token in range(span.first, span.last)] == list(
        range(first, tokens)
    )
    for span in found:
        assert 0 <= span.start <= span.first < span.last <= span.stop <= tokens
        assert span.stop - span.start <= size
        if not centred:  # the first token has as much context as the others
            assert span.stop == span.last
            assert span.start == max(span.first - (size - min(stride, tokens - first)), 0)
        else:
            assert span.stop - span.start == min(size, tokens)
