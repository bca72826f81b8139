import errno
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.errors import DataError, OutputError
from ctxextend.training.packing import check_enough, open_tokens, pack, split


def numbers(text: str) -> Any:
    """A token for each word: its number."""
    return np.array([int(word) for word in text.split()], np.int64)


PIECES = [("1 2", False), (" 3", True), ("4 5 6", True)]


@pytest.mark.parametrize(
    ("separator", "wanted", "expected"),
    [
        (None, 100, [1, 2, 3, 4, 5, 6]),
        (9, 100, [1, 2, 3, 9, 4, 5, 6, 9]),
        (9, 5, [1, 2, 3, 9, 4]),
        (9, 4, [1, 2, 3, 9]),
        (9, 1, [1]),
    ],
)
def test_pack_writes_tokens_with_a_separator_behind_documents(
    separator: int | None, wanted: int, expected: list[int], tmp_path: Path
) -> None:
    told: list[int] = []
    assert pack(PIECES, numbers, separator, wanted, tmp_path / "tokens", told.append) == len(expected)
    tokens = open_tokens(tmp_path / "tokens")
    assert tokens.tolist() == expected
    assert tokens.dtype == np.int32
    assert sum(told) == len(expected)
    assert [file.name for file in tmp_path.iterdir()] == ["tokens"]


def test_pack_reads_no_more_than_it_needs_and_holds_no_more_than_a_piece(tmp_path: Path) -> None:
    read = 0

    def pieces() -> Iterator[tuple[str, bool]]:
        nonlocal read
        while True:
            read += 1
            yield "text", False

    def peak(wanted: int) -> int:
        tracemalloc.start()
        pack(pieces(), lambda text: np.zeros(10_000, np.int64), 1, wanted, tmp_path / "tokens")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(4_000_000) < peak(400_000) + 100_000  # where all tokens were held, there would be 32 MB of them
    assert read == 440
    assert len(open_tokens(tmp_path / "tokens")) == 400_000


def test_pack_leaves_nothing_under_the_name_when_it_is_stopped(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[str, bool]]:
        yield "1 2", True
        raise DataError("no such column")

    with pytest.raises(DataError, match="no such column"):
        pack(broken(), numbers, None, 10, tmp_path / "tokens")
    assert not list(tmp_path.iterdir())


def test_pack_keeps_an_older_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    pack(PIECES, numbers, None, 10, path)

    def looked_at(text: str) -> Any:
        assert open_tokens(path).tolist() == [1, 2, 3, 4, 5, 6]
        return numbers(text)

    pack([("7", True)], looked_at, None, 10, path)
    assert open_tokens(path).tolist() == [7]


def test_pack_says_what_keeps_it_from_writing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="tokens could not be written: No such file or directory"):
        pack(PIECES, numbers, None, 10, tmp_path / "missing" / "tokens")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OutputError, match=r"No space left on device.*Free some space"):
        pack(PIECES, numbers, None, 10, tmp_path / "tokens", full)
    assert not list(tmp_path.iterdir())


def test_open_tokens_opens_a_text_without_any(tmp_path: Path) -> None:
    assert pack([("", True)], numbers, None, 10, tmp_path / "tokens") == 0
    assert open_tokens(tmp_path / "tokens").tolist() == []


@given(st.integers(1, 40), st.integers(0, 2000))
def test_split_holds_out_a_twentieth_and_at_least_a_window(window: int, more: int) -> None:
    tokens = np.arange(2 * window + more, dtype=np.int32)
    train, held_out = split(tokens, window)
    assert np.array_equal(np.concatenate([train, held_out]), tokens)
    assert len(held_out) == max(window, len(tokens) // 20)
    assert len(train) >= window
    assert np.shares_memory(train, tokens)
    assert np.shares_memory(held_out, tokens)


def test_split_says_how_many_tokens_it_takes() -> None:
    with pytest.raises(DataError, match=r"has 19 tokens, and 20 are needed.*--data.*--eval-data.*--seq-len"):
        split(np.arange(19, dtype=np.int32), 10)
    with pytest.raises(DataError, match=r"has 9 tokens, and a sequence takes 10"):
        check_enough(np.arange(9, dtype=np.int32), 10)
    check_enough(np.arange(10, dtype=np.int32), 10)
