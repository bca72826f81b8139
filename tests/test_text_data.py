import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ctxextend import text_data
from ctxextend.errors import DataError
from ctxextend.text_data import PIECE, check_paths, check_texts, cut, read_documents, read_pieces, shared
from tests.hub_server import serve


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_read_documents_takes_a_file_for_one_document_and_a_line_of_jsonl_for_another(tmp_path: Path) -> None:
    plain = written(tmp_path / "a.txt", "one\n\ntwo")
    lines = written(tmp_path / "b.jsonl", '{"text": "three", "n": 1}\n\n{"text": "fünf"}\n')
    assert list(read_documents([lines, plain])) == ["three", "fünf", "one\n\ntwo"]


def test_check_paths_leaves_out_of_a_folder_what_no_user_wrote(tmp_path: Path) -> None:
    kept = ["a.MD", "b.txt", "deep/b.md", "deep/down/c.jsonl"]
    left = [
        "weights.bin",
        ".gitignore",
        ".venv/lib/d.txt",
        "bert/vocab.txt",
        "bert/1_Pooling/e.txt",
        "out.training/train_log.jsonl",
    ]
    for name in (*kept, *left, "bert/config.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a")
    assert check_paths([tmp_path]) == [tmp_path / name for name in kept]
    assert check_paths([tmp_path / "bert"]) == [tmp_path / "bert/1_Pooling/e.txt", tmp_path / "bert/vocab.txt"]


def test_check_paths_takes_each_text_once_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (written(tmp_path / "texts" / name, name) for name in ("a.txt", "b.txt"))
    monkeypatch.chdir(tmp_path)
    assert check_paths(["texts/b.txt", tmp_path / "texts", "./texts/../texts/a.txt"]) == [Path("texts/b.txt"), one]
    assert shared(["texts"], [two]) == [Path("texts/b.txt")]
    assert shared([one], [two]) == []


def test_read_documents_reads_another_field(tmp_path: Path) -> None:
    lines = written(tmp_path / "b.jsonl", '{"body": "x", "text": 3}\n')
    assert list(read_documents([lines], "body")) == ["x"]
    with pytest.raises(DataError, match=r"b.jsonl, line 1, has int in the field 'text', no text"):
        list(read_documents([lines]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "line 2, is no JSON"),
        ("[1, 2]", "line 2, has no field 'text'; it has a list"),
        ('{"other": 1}', "it has other"),
        ("[" * 100_000, "line 2, is no JSON"),
    ],
)
def test_read_documents_names_the_line_at_fault(line: str, message: str, tmp_path: Path) -> None:
    file = written(tmp_path / "b.jsonl", '{"text": "fine"}\n' + line)
    with pytest.raises(DataError, match=message):
        list(read_documents([file]))


def test_check_paths_names_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    empty = written(tmp_path / "empty.txt", "")
    for path, message in (
        (tmp_path / "missing.txt", "no file or folder .*missing.txt"),
        (Path("a" * 300), "no file or folder"),
        (Path(os.devnull), "no file or folder"),
        (tmp_path / "folder", r"folder .*folder holds no text.*\.txt"),
        (empty, "empty.txt is empty"),
    ):
        with pytest.raises(DataError, match=message):
            check_paths([path])
    with pytest.raises(DataError, match="No text was named"):
        check_paths([])


def test_read_documents_takes_a_byte_order_mark_and_half_a_pair_for_no_text(tmp_path: Path) -> None:
    plain = written(tmp_path / "a.txt", "\ufeffone")
    lines = written(tmp_path / "b.jsonl", '\ufeff{"text": "\\ud83d\\ude00 \\ud800"}')
    assert list(read_documents([plain, lines], characters=10**9)) == ["one", "\U0001f600 \ufffd"]
    assert list(read_documents([lines], characters=1)) == ["\U0001f600"]


# ---- pieces, and other formats


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


def test_read_documents_reads_a_column_of_parquet(tmp_path: Path) -> None:
    file = column(tmp_path / "a.PARQUET", pyarrow.array(["one", None, "", "fünf", "one"]).dictionary_encode(), "body")
    assert list(read_documents([file], "body")) == ["one", "", "fünf", "one"]
    assert list(read_documents([tmp_path], "body", 2)) == ["on", "", "fü", "on"]
    with pytest.raises(DataError, match=r"a.PARQUET has no field 'text'; it has body, n\..*--text-field"):
        list(read_documents([file]))
    with pytest.raises(DataError, match=r"a.PARQUET has int in the field 'n', no text"):
        list(read_documents([file], "n"))
    for broken in (b"some text", file.read_bytes()[:-20]):
        (tmp_path / "b.parquet").write_bytes(broken)
        with pytest.raises(DataError, match="b.parquet cannot be read: "):
            list(read_documents([tmp_path / "b.parquet"]))


def test_read_pieces_names_a_file_that_is_no_text_wherever_that_shows(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"word " * PIECE + b"caf\xe9 au lait")
    with pytest.raises(DataError, match=r"a.txt cannot be read: .*byte 0xe9.*iconv"):
        list(read_pieces([file]))


def test_check_texts_names_what_holds_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("fine")
    check_texts([tmp_path])
    (tmp_path / "b.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"b.txt holds no text"):
        check_texts([tmp_path])
    (tmp_path / "b.txt").unlink()
    column(tmp_path / "c.parquet", pyarrow.array([], pyarrow.string()))
    with pytest.raises(DataError, match=r"c.parquet holds no text"):
        check_texts([tmp_path])


# ---- Hub datasets

# Several words are read by one process, since the library that reads them takes seconds to be imported.
READER = """
import json, sys
from ctxextend.errors import DataError
from ctxextend.text_data import check_texts, read_documents, read_pieces
said = []
for word, field in json.loads(sys.argv[1]):
    try:
        check_texts([word], field)
        said.append([list(read_documents([word], field, 4)), list(read_pieces([word], field))])
    except DataError as error:
        said.append([error.message, error.hint])
print(json.dumps(said))
"""
README = """---
configs:
- config_name: plain
  data_files: [{split: train, path: data/train.parquet}, {split: test, path: data/test.parquet}]
- config_name: other
  data_files: [{split: train, path: data/other.parquet}]
---
"""


def published(folder: Path) -> Path:
    """A folder of two configurations, one of them with two splits."""
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text(README)
    rows: dict[str, list[str | None]] = {"train": ["first one", None, "second"], "test": ["third"], "other": [""]}
    for name, texts in rows.items():
        table = pyarrow.table({"text": texts, "number": list(range(len(texts)))})
        parquet.write_table(table, folder / "data" / f"{name}.parquet")
    return folder


def read(words: list[tuple[str, str]], cwd: Path, **variables: str) -> list[Any]:
    """Let a fresh process read data sets: of each its documents and pieces, or what was said."""
    environment = {**os.environ, "HF_HOME": str(cwd / "home"), "HF_HUB_DISABLE_XET": "1", **variables}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", READER, json.dumps(words)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def test_read_data_set_streams_what_a_word_names_and_says_what_there_is_instead(tmp_path: Path) -> None:
    (tmp_path / "own" / "set").mkdir(parents=True)  # a folder of that name is another thing
    with serve() as hub:
        hub.add("datasets/own/set", published(tmp_path / "published"))
        hub.add("datasets/own/gated", tmp_path / "published", gated=True)
        words = [
            *[("hf:own/set/plain", "text"), ("hf:own/set/plain:test@main", "text"), ("hf:own/set/other", "text")],
            *[("hf:own/set", "text"), ("hf:own/set/none", "text"), ("hf:own/set/plain:none", "text")],
            *[("hf:own/set/plain", "body"), ("hf:own/set/plain", "number"), ("hf:own/set@v9", "text")],
            *[("hf:own/none", "text"), ("hf:own/gated", "text")],
        ]
        train, test, other, *faults = read(words, tmp_path, HF_ENDPOINT=hub.endpoint, HF_HUB_OFFLINE="0")
    assert train == [["firs", "seco"], [["first one", True], ["second", True]]]
    assert test == [["thir"], [["third", True]]]
    assert other[0] == "hf:own/set/other:train holds no text."
    expected = [
        ("pick one among the available configs: ['plain', 'other']", "hf:OWNER/NAME[/CONFIG]"),
        ("'none' not found. Available: ['plain', 'other']", "hf:OWNER/NAME[/CONFIG]"),
        ("Bad split: none. Available splits: ['train', 'test']", "[:SPLIT]"),
        ("has no field 'body'; it has text, number", "--text-field"),
        ("hf:own/set/plain:train has int in the field 'number', no text", "--text-field"),
        ("Revision 'v9' doesn't exist", "@REVISION"),
        ("'own/none' doesn't exist on the Hub or cannot be accessed", "hf auth login"),
        ("gated", "hf auth login"),
    ]
    for (message, hint), (part, advice) in zip(faults, expected, strict=True):
        assert part in message
        assert advice in hint


def test_read_data_set_says_that_the_hub_cannot_be_reached(tmp_path: Path) -> None:
    [[message, hint]] = read([("hf:own/set", "text")], tmp_path, HF_HUB_OFFLINE="1")
    assert "hf:own/set:train cannot be read: Couldn't reach" in message
    assert "network" in hint


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("hf:a/b", "hf:a/b:train"),
        ("hf:a.x/b-y/c.d-e:test", "hf:a.x/b-y/c.d-e:test"),
        ("hf:a/b/c@refs/pr/1", "hf:a/b/c:train@refs/pr/1"),
        ("hf:a/b@v1:0", "hf:a/b:train@v1:0"),
    ],
)
def test_check_paths_names_the_split_of_a_hub_dataset(word: str, expected: str) -> None:
    assert check_paths([word, expected]) == [expected]
    assert shared([word], [expected]) == [expected]


def test_check_paths_says_how_a_hub_dataset_is_spelled() -> None:
    for word in ("hf:", "hf:name", "hf:a/b/c/d", "hf://datasets/a/b", "hf:a/b:", "hf:a/b@", "hf:a /b"):
        with pytest.raises(DataError, match=r"names no dataset of the Hub.*OWNER/NAME\[/CONFIG\]"):
            check_paths([word])


def test_read_documents_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_data, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"a.parquet needs datasets.*pip install 'ctxextend\[train\]'"):
        list(read_documents([column(tmp_path / "a.parquet", ["one"])]))
    with pytest.raises(DataError, match=r"needs datasets.*pip install 'ctxextend\[train\]'"):
        list(read_documents(["hf:a/b"]))
