import io
import json
import os
import re
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

from ctxextend import evaluate, text_data
from ctxextend.errors import DataError
from ctxextend.text_data import CHUNK_SIZE, check_paths, check_texts, cut, empty_files, read_chunks, read_documents
from tests.hub_server import serve


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def column(path: Path, texts: Any, name: str = "text") -> Path:
    parquet.write_table(pyarrow.table({name: texts, "n": list(range(len(texts)))}), path, row_group_size=2)
    return path


# ---- files and folders

WRONG_NAMES = ("hf:", "hf:name", "hf:a/b/c/d", "hf://datasets/a/b", "hf:a/b:", "hf:a/b@", "hf:a /b")


def test_check_paths_leaves_out_of_a_folder_what_no_user_wrote(tmp_path: Path) -> None:
    kept = ["a.MD", "b.txt", "deep/b.md", "deep/down/c.jsonl"]
    hidden = [".gitignore", ".venv/lib/d.txt"]
    of_others = ["weights.bin", "bert/vocab.txt", "bert/1_Pooling/e.txt", "out.training/train_log.jsonl"]
    for name in (*kept, *hidden, *of_others, "bert/config.json"):
        written(tmp_path / name, "a")
    assert check_paths([tmp_path]) == [tmp_path / name for name in kept]
    assert check_paths([tmp_path / "bert"]) == [tmp_path / "bert/1_Pooling/e.txt", tmp_path / "bert/vocab.txt"]


def test_check_paths_takes_each_text_once_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = (written(tmp_path / "texts" / name, name) for name in ("a.txt", "b.txt"))
    monkeypatch.chdir(tmp_path)
    assert check_paths(["texts/b.txt", tmp_path / "texts", "./texts/../texts/a.txt"]) == [Path("texts/b.txt"), one]
    assert check_paths(["hf:a.x/b-y", "hf:a.x/b-y:train"]) == ["hf:a.x/b-y:train"]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["missing.txt"], "no file or folder .*missing.txt"),
        (["a" * 300], "no file or folder"),
        ([os.devnull], "no file or folder"),
        (["folder"], r"folder folder holds no text.*\.txt"),
        (["empty.txt"], "empty.txt is empty"),
        ([], "No text was named"),
        *(([name], r"names no dataset of the Hub.*OWNER/NAME\[/CONFIG\]") for name in WRONG_NAMES),
    ],
)
def test_check_paths_names_what_is_not_there(paths: list[str], message: str) -> None:
    Path("folder").mkdir()
    written(Path("empty.txt"), "")
    with pytest.raises(DataError, match=message):
        check_paths(paths)


def test_check_texts_names_what_holds_no_text(tmp_path: Path) -> None:
    written(tmp_path / "a.txt", "fine")
    check_texts([tmp_path])
    written(tmp_path / "b.txt", " \n")
    check_texts([tmp_path])
    with pytest.raises(DataError, match="b.txt holds no text"):
        check_texts([tmp_path / "b.txt"])


def test_empty_files_of_a_folder_are_skipped_and_named(tmp_path: Path) -> None:
    written(tmp_path / "a.txt", "fine")
    for name in ("b.rst", "c.md", "d.txt", "e.txt"):
        written(tmp_path / name, "")
    assert check_paths([tmp_path]) == [tmp_path / "a.txt"]
    note = f"Skipped 4 empty files in {tmp_path}: b.rst, c.md, d.txt, ..."
    assert list(empty_files([tmp_path, tmp_path / "a.txt"])) == [note]
    written(tmp_path / "a.txt", "fine words " * 100)
    assert note in evaluate("tiny-gpt2", tmp_path, measure=["position"], length=[16], tokens=64).notes


# ---- documents and pieces


def test_read_documents_takes_a_file_for_one_document_and_a_line_of_jsonl_for_another(tmp_path: Path) -> None:
    plain = written(tmp_path / "a.txt", "\ufeffone\n\ntwo")
    lines = written(tmp_path / "b.jsonl", '\ufeff{"text": "three"}\n\n{"text": "fünf \\ud83d\\ude00 \\ud800"}\n')
    others = written(tmp_path / "c.ndjson", '{"body": "x", "text": 3}\n')
    # A byte order mark is no text, and neither is half a pair of surrogates.
    assert list(read_documents([lines, plain])) == ["three", "fünf \U0001f600 \ufffd", "one\n\ntwo"]
    assert list(read_documents([lines, plain], characters=2)) == ["th", "fü", "on"]
    assert list(read_documents([plain], characters=2**60)) == ["one\n\ntwo"]  # takes no memory for as many
    assert list(read_documents([others], "body")) == ["x"]


@pytest.mark.parametrize(("name", "separator"), [("a[1].csv", ","), ("a.TSV", "\t")])
def test_read_documents_reads_a_column_of_csv(name: str, separator: str, tmp_path: Path) -> None:
    rows = [
        ["n", "body"],
        ["1", '"two ""lines"",\nÄ"'],
        ["x", ""],
        ["3", "42"],
        *([str(n), f"row {n}"] for n in range(200)),
    ]
    file = tmp_path / name
    file.write_text("".join(f"{separator.join(row)}\n" for row in rows), encoding="utf-8-sig")
    assert list(read_documents([file], "body")) == ['two "lines",\nÄ', "42", *(f"row {n}" for n in range(200))]
    assert list(read_documents([tmp_path], "body")) == list(read_documents([file], "body"))
    with pytest.raises(DataError, match=rf"{re.escape(name)} has no field 'text'; it has n, body\..*--text-field"):
        list(read_documents([file]))
    file.write_text(f"n{separator}body\n")
    assert list(read_documents([file], "body")) == []
    with pytest.raises(DataError, match=r"has no field 'text'; it has n, body\."):
        list(read_documents([file]))
    file.write_bytes("n,body\n1,h\xe9\n".encode("latin-1"))
    with pytest.raises(DataError, match="cannot be read: 'utf-8' codec"):
        list(read_documents([file], "body"))


def test_read_documents_reads_a_column_of_parquet(tmp_path: Path) -> None:
    texts = pyarrow.array(["one", None, "", "fünf", "one"]).dictionary_encode()
    file = column(tmp_path / "a[1].PARQUET", texts, "body")
    assert list(read_documents([file], "body")) == ["one", "", "fünf", "one"]
    assert list(read_documents([tmp_path], "body", 2)) == ["on", "", "fü", "on"]
    with pytest.raises(DataError, match=r"a\[1\].PARQUET has no field 'text'; it has body, n\..*--text-field"):
        list(read_documents([file]))
    with pytest.raises(DataError, match=r"a\[1\].PARQUET has int in the field 'n', no text"):
        list(read_documents([file], "n"))
    (tmp_path / "b.parquet").write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="b.parquet cannot be read: "):
        list(read_documents([tmp_path / "b.parquet"]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "line 2, is no JSON"),
        (b"[" * 100_000, "line 2, is no JSON"),
        (b"[1, 2]", "line 2, has no field 'text'; it has a list"),
        (b'{"other": 1}', "it has other"),
        (b'{"text": 3}', "b.jsonl, line 2, has int in the field 'text', no text"),
        (b'{"text": "caf\xe9"}', r"b.jsonl cannot be read: .*byte 0xe9.*iconv"),
    ],
    ids=["cut", "deep", "list", "key", "number", "latin"],
)
def test_read_pieces_names_the_line_at_fault(line: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "fine"}\n' + line)
    with pytest.raises(DataError, match=message):
        list(read_chunks([tmp_path]))


@given(st.text(alphabet="ab \n", max_size=60), st.integers(1, 8))
def test_cut_parts_no_word_and_loses_nothing(text: str, size: int) -> None:
    pieces, ends = zip(*cut(io.StringIO(text), size), strict=True)
    assert "".join(pieces) == text
    assert ends == (*[False] * (len(pieces) - 1), True)
    assert max(map(len, pieces)) <= 2 * size
    if max(map(len, text.split()), default=0) < size:  # a word as long as a piece may have to be parted
        assert all(piece[0].isspace() for piece in pieces[1:])


def test_read_pieces_cuts_files_and_takes_documents_one_by_one(tmp_path: Path) -> None:
    long = "word " * (CHUNK_SIZE // 5 + 10)
    written(tmp_path / "a.txt", f"\ufeff{long}")
    written(tmp_path / "b.jsonl", '{"text": "one"}\n{"text": null}\n{"text": "two"}\n')
    column(tmp_path / "c.parquet", ["three", None, long])
    pieces = list(read_chunks([tmp_path]))
    assert [is_end for _, is_end in pieces] == [False, True, True, True, True, False, True]
    assert pieces[0][0] + pieces[1][0] == long
    assert [text for text, _ in pieces[2:5]] == ["one", "two", "three"]
    assert pieces[5][0] + pieces[6][0] == long


def test_read_pieces_never_holds_a_file_whole(tmp_path: Path) -> None:
    file = written(tmp_path / "a.txt", "words " * (4 * CHUNK_SIZE))
    tracemalloc.start()
    assert sum(len(text) for text, _ in read_chunks([file])) == file.stat().st_size
    maximum = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert maximum < 8 * CHUNK_SIZE


# ---- Hub datasets

# All are read by one process, since the library that reads them takes seconds to be imported.
READER = """
import json, sys
from ctxextend.errors import DataError
from ctxextend.text_data import check_texts, read_documents, read_chunks
said = []
for word, field in json.loads(sys.argv[1]):
    try:
        check_texts([word], field)
        said.append([list(read_documents([word], field, 4)), list(read_chunks([word], field))])
    except DataError as error:
        said.append([error.message, error.hint])
print(json.dumps(said))
"""
README = """---
configs:
- config_name: plain
  data_files: [{split: train, path: train.parquet}, {split: test, path: test.parquet}]
- config_name: other
  data_files: [{split: train, path: other.parquet}]
---
"""
HUB_NAMES = ("hf:own/set/plain", "hf:own/set/plain:test@main", "hf:own/set/other")
# What is asked for, in which field; what is said, and what to do.
HUB_FAULTS = [
    ("hf:own/set", "text", "pick one among the available configs: ['plain', 'other']", "hf:OWNER/NAME[/CONFIG]"),
    ("hf:own/set/none", "text", "'none' not found. Available: ['plain', 'other']", "hf:OWNER/NAME[/CONFIG]"),
    ("hf:own/set/plain:none", "text", "Bad split: none. Available splits: ['train', 'test']", "[:SPLIT]"),
    ("hf:own/set@v9", "text", "Revision 'v9' doesn't exist", "@REVISION"),
    ("hf:own/none", "text", "'own/none' doesn't exist on the Hub or cannot be accessed", "the network"),
    ("hf:own/gated", "text", "gated", "hf auth login"),
    ("hf:own/set/plain", "body", "has no field 'body'; it has text, n", "--text-field"),
]


def test_read_documents_streams_what_a_word_names_and_says_what_there_is_instead(tmp_path: Path) -> None:
    published = written(tmp_path / "published" / "README.md", README).parent
    column(published / "train.parquet", ["first one", None, "second"])
    column(published / "test.parquet", ["third"])
    column(published / "other.parquet", [""])
    (tmp_path / "own" / "set").mkdir(parents=True)  # a folder of that name is another thing
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(__file__).parents[1])}
    with serve() as hub:
        hub.add("datasets/own/set", published)
        hub.add("datasets/own/gated", published, gated=True)
        environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0"}
        words = [(word, "text") for word in HUB_NAMES] + [fault[:2] for fault in HUB_FAULTS]
        command = [sys.executable, "-c", READER, json.dumps(words)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, check=True)
    train, test, other, *faults = json.loads(done.stdout)
    assert train == [["firs", "seco"], [["first one", True], ["second", True]]]
    assert test == [["thir"], [["third", True]]]
    assert other[0] == "hf:own/set/other:train holds no text."
    for (message, hint), (_, _, part, advice) in zip(faults, HUB_FAULTS, strict=True):
        assert part in message
        assert advice in hint


def test_read_documents_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_data, "find_spec", lambda name: None)
    (tmp_path / "a.csv").write_text("text\none\n")
    for path in (column(tmp_path / "a.parquet", ["one"]), tmp_path / "a.csv", "hf:a/b"):
        with pytest.raises(DataError, match=r"needs datasets.*pip install 'ctxextend\[train\]'"):
            list(read_documents([path]))
