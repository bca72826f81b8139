import io
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ctxextend.errors import DataError
from ctxextend.textfiles import PIECE, cut
from ctxextend.texts import check_texts, read_documents, read_pieces


def column(path: Path, texts: Any, name: str = "text") -> Path:
    parquet.write_table(pyarrow.table({name: texts, "n": list(range(len(texts)))}), path, row_group_size=2)
    return path


@given(st.text(alphabet="ab \n", max_size=60), st.integers(1, 8))
def test_cut_parts_no_word_and_loses_nothing(text: str, size: int) -> None:
    pieces = [piece for piece, _ in cut(io.StringIO(text), size)]
    ends = [is_end for _, is_end in cut(io.StringIO(text), size)]
    assert "".join(pieces) == text
    assert ends == [False] * (len(pieces) - 1) + [True]
    assert max(map(len, pieces)) <= 2 * size
    if max(map(len, text.split()), default=0) < size:  # a word as long as a piece may have to be parted
        assert all(piece[0].isspace() for piece in pieces[1:])


def test_cut_ends_in_front_of_white_space_or_else_anywhere() -> None:
    assert list(cut(io.StringIO("one two three"), 5)) == [("one", False), (" two", False), (" three", True)]
    assert list(cut(io.StringIO("abcdefg"), 3)) == [("abc", False), ("def", False), ("g", True)]


def test_read_pieces_cuts_files_and_takes_documents_one_by_one(tmp_path: Path) -> None:
    long = "word " * (PIECE // 5 + 10)
    (tmp_path / "a.txt").write_text(f"\ufeff{long}", "utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"text": null}\n{"text": "two"}\n')
    column(tmp_path / "c.parquet", ["three", None, long])
    pieces = list(read_pieces([tmp_path]))
    assert [is_end for _, is_end in pieces] == [False, True, True, True, True, False, True]
    assert pieces[0][0] + pieces[1][0] == long
    assert [text for text, _ in pieces[2:5]] == ["one", "two", "three"]
    assert pieces[5][0] + pieces[6][0] == long


def test_read_pieces_holds_no_more_of_a_larger_file(tmp_path: Path) -> None:
    def peak(millions: int) -> int:
        file = tmp_path / f"{millions}.txt"
        with file.open("w") as stream:
            for _ in range(millions):
                stream.write("words " * 170_000)
        tracemalloc.start()
        total = sum(len(text) for text, _ in read_pieces([file]))
        assert total == millions * 1_020_000
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(12) < 1.2 * peak(4)


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_read_documents_reads_a_column_of_parquet(kind: str, tmp_path: Path) -> None:
    texts = pyarrow.array(["one", None, "", "fünf", "one"])
    array = texts.dictionary_encode() if kind == "dictionary" else texts.cast(getattr(pyarrow, kind)())
    file = column(tmp_path / "a.PARQUET", array, "body")
    assert list(read_documents([file], "body")) == ["one", "", "fünf", "one"]
    assert list(read_documents([tmp_path], "body", 2)) == ["on", "", "fü", "on"]


def test_read_documents_says_what_columns_a_parquet_file_has(tmp_path: Path) -> None:
    file = column(tmp_path / "a.parquet", ["one"], "body")
    with pytest.raises(DataError, match=r"a.parquet has no column 'text'; it has body, n\..*--text-field"):
        list(read_documents([file]))
    with pytest.raises(DataError, match=r"column 'n' of .*a.parquet holds int64, no text"):
        list(read_documents([file], "n"))


def test_read_documents_holds_no_more_than_some_rows_of_parquet(tmp_path: Path) -> None:
    table = pyarrow.table({"text": [f"{number:04}" * 2500 for number in range(6000)]})  # 60 MB, written together
    parquet.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False)
    del table
    pool = pyarrow.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    for text in read_documents([tmp_path / "a.parquet"]):
        assert len(text) == 10_000
        most = max(most, pool.bytes_allocated() - before)
    assert most < 20_000_000


@pytest.mark.parametrize("damage", ["text", "end", "middle"])
def test_read_documents_names_what_is_no_parquet(damage: str, tmp_path: Path) -> None:
    file = column(tmp_path / "a.parquet", [f"{number} some text" for number in range(2000)])
    whole = file.read_bytes()
    broken = {"text": b"some text", "end": whole[:-20], "middle": whole[:50] + b"\xff" * 900 + whole[950:]}
    file.write_bytes(broken[damage])
    with pytest.raises(DataError, match="a.parquet cannot be read as parquet: "):
        list(read_documents([file]))


def test_read_documents_says_what_parquet_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = column(tmp_path / "a.parquet", ["one"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow.*pip install 'ctxextend\[train\]'"):
        list(read_documents([file]))


def test_check_texts_looks_at_the_beginning_of_everything(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("fine")
    check_texts([tmp_path])
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"b.txt is not UTF-8: byte 0xe9"):
        check_texts([tmp_path])
    (tmp_path / "b.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"b.txt holds no text"):
        check_texts([tmp_path])
    (tmp_path / "b.txt").unlink()
    column(tmp_path / "c.parquet", pyarrow.array([], pyarrow.string()))
    with pytest.raises(DataError, match=r"c.parquet holds no text"):
        check_texts([tmp_path])


def test_read_pieces_names_a_file_that_is_no_text_wherever_that_shows(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"word " * PIECE + b"caf\xe9 au lait")
    with pytest.raises(DataError, match=r"a.txt is not UTF-8.*iconv"):
        list(read_pieces([file]))
