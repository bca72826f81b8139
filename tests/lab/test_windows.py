from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.errors import DataError
from ctxextend.lab.losses import causal_spans, centred_spans
from ctxextend.lab.texts import context_lengths, cut_windows


def texts(*lengths: int) -> list[Any]:
    """Documents of the given lengths with consecutive token ids."""
    tokens = np.arange(sum(lengths))
    ends = np.cumsum(lengths)
    return np.split(tokens, ends[:-1])


def test_cut_windows_stays_inside_documents() -> None:
    text = cut_windows(texts(5, 4), 2, 10, None)
    windows = [window.tolist() for window in text.windows]
    assert windows == [[0, 1], [2, 3], [5, 6], [7, 8]]  # the ends of documents are skipped
    assert not text.across_documents


def test_cut_windows_takes_one_of_each_document() -> None:
    text = cut_windows(texts(5, 4), 2, 10, None, one_each=True)
    windows = [window.tolist() for window in text.windows]
    assert windows == [[0, 1], [5, 6]]
    assert not text.across_documents


def test_cut_windows_joins_documents_if_too_few_are_long_enough() -> None:
    text = cut_windows(texts(3, 3, 4), 4, 10, 99)
    windows = [window.tolist() for window in text.windows]
    assert windows == [[0, 1, 2, 99], [3, 4, 5, 99], [6, 7, 8, 9]]
    assert text.across_documents


def test_cut_windows_stops_reading_when_it_has_enough() -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield np.arange(10)

    inside = cut_windows(endless(), 5, 3, None)
    assert len(inside.windows) == 3
    across = cut_windows(endless(), 16, 3, None)  # no document is that long
    assert len(across.windows) == 3


@pytest.mark.parametrize(
    ("tokens", "hint"), [(100, "--length 64"), (8, "--length 8"), (7, "Pass more text")]
)
def test_cut_windows_rejects_text_shorter_than_a_window(tokens: int, hint: str) -> None:
    with pytest.raises(DataError, match=f"{tokens} tokens; one window needs 128") as raised:
        cut_windows(texts(tokens), 128, 10, None)
    message = str(raised.value)
    assert hint in message
    assert ("--length " in message) == (tokens >= 8)


@pytest.mark.parametrize(
    ("longest", "base", "expected"),
    [
        (128, None, (16, 32, 64, 128)),
        (1000, 77, (77, 125, 250, 500, 1000)),
        (9, 9, (8, 9)),
    ],
)
def test_context_lengths_doubles_up_to_the_longest(
    longest: int, base: int | None, expected: tuple[int, ...]
) -> None:
    assert context_lengths(longest, base) == expected


@given(
    st.integers(1, 60), st.integers(1, 70), st.integers(1, 70), st.integers(0, 59), st.booleans()
)
def test_spans_score_each_token_once(
    tokens: int, size: int, stride: int, first: int, centred: bool
) -> None:
    first = min(first, tokens - 1)
    stride = min(stride, size)

    if centred:
        spans = centred_spans(range(first, tokens), tokens, size, stride)
    else:
        spans = causal_spans(range(first, tokens), size, stride)

    found = list(spans)
    scored: list[int] = []
    for span in found:
        scored += range(span.first_scored, span.scored_stop)
        assert 0 <= span.start <= span.first_scored < span.scored_stop <= span.stop <= tokens
        assert span.stop - span.start <= size
        if centred:
            assert span.stop - span.start == min(size, tokens)
        else:  # the first token has as much context as the others
            context = size - min(stride, tokens - first)
            assert span.stop == span.scored_stop
            assert span.start == max(span.first_scored - context, 0)
    assert scored == list(range(first, tokens))
