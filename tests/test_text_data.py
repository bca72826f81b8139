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

from ctxextend import text_data
from ctxextend.errors import DataError
from ctxextend.text_data import (
    CHUNK_SIZE,
    check_paths,
    check_texts,
    read_chunks,
    read_documents,
    split_chunks,
)
from tests.helpers.hub_server import serve
from tests.helpers.repository import ROOT


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def write_column(path: Path, texts: Any, name: str = "text") -> Path:
    numbers = list(range(len(texts)))
    table = pyarrow.table({name: texts, "n": numbers})
    parquet.write_table(table, path, row_group_size=2)
    return path


# ---- files and folders

WRONG_NAMES = ("hf:name", "hf:a/b/c/d", "hf:a/b:")


def test_check_paths_skips_checkpoints_runs_and_hidden_files_in_a_folder(tmp_path: Path) -> None:
    kept = ["a.MD", "b.txt", "deep/b.md", "deep/down/c.jsonl"]
    hidden = [".gitignore", ".venv/lib/d.txt"]
    generated = [
        "weights.bin",
        "bert/vocab.txt",
        "bert/1_Pooling/e.txt",
        "out.training/train_log.jsonl",
    ]
    for name in (*kept, *hidden, *generated, "bert/config.json"):
        write(tmp_path / name, "a")
    assert check_paths([str(tmp_path)]) == [tmp_path / name for name in kept]
    assert check_paths([str(tmp_path / "bert")]) == [
        tmp_path / "bert/1_Pooling/e.txt",
        tmp_path / "bert/vocab.txt",
    ]


def test_check_paths_returns_each_text_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "texts"
    one = write(folder / "a.txt", "a.txt")
    write(folder / "b.txt", "b.txt")
    monkeypatch.chdir(tmp_path)
    found = check_paths(["texts/b.txt", str(folder), "./texts/../texts/a.txt"])
    assert found == [Path("texts/b.txt"), one]
    assert check_paths(["hf:a.x/b-y", "hf:a.x/b-y:train"]) == ["hf:a.x/b-y:train"]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["a" * 300], "a does not exist"),
        ([os.devnull], f"{os.devnull} is not a regular file or folder"),
        (["folder"], r"Folder folder contains no text files\. Supported extensions: \.txt"),
        (["empty.txt"], "empty.txt is empty"),
        ([], "No text given"),
        *(([name], r"is not a valid Hub dataset.*OWNER/NAME\[/CONFIG\]") for name in WRONG_NAMES),
    ],
)
def test_check_paths_rejects_missing_and_empty_paths(paths: list[str], message: str) -> None:
    Path("folder").mkdir()
    write(Path("empty.txt"), "")
    with pytest.raises(DataError, match=message):
        check_paths(paths)


def test_check_texts_rejects_a_blank_file_only_if_it_was_given(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "fine")
    check_texts([str(tmp_path)])
    write(tmp_path / "b.txt", " \n")
    check_texts([str(tmp_path)])
    with pytest.raises(DataError, match="b.txt contains no text"):
        check_texts([str(tmp_path / "b.txt")])


# ---- documents and chunks


def test_read_documents_yields_text_files_and_lines_of_jsonl(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.txt", "\ufeffone\n\ntwo")
    text_lines = '\ufeff{"text": "three"}\n\n{"text": "fünf \\ud83d\\ude00 \\ud800"}\n'
    lines = write(tmp_path / "b.jsonl", text_lines)
    others = write(tmp_path / "c.ndjson", '{"body": "x", "text": 3}\n')
    # Byte order marks are removed, unpaired surrogates replaced.
    whole = list(read_documents([str(lines), str(plain)]))
    assert whole == ["three", "fünf \U0001f600 \ufffd", "one\n\ntwo"]
    cut = list(read_documents([str(lines), str(plain)], characters=2))
    assert cut == ["th", "fü", "on"]
    # Reading does not allocate as many characters as are allowed.
    allowed = list(read_documents([str(plain)], characters=2**60))
    assert allowed == ["one\n\ntwo"]
    assert list(read_documents([str(others)], "body")) == ["x"]


@pytest.mark.parametrize(("name", "separator"), [("a[1].csv", ","), ("a.TSV", "\t")])
def test_read_documents_reads_a_column_of_csv(name: str, separator: str, tmp_path: Path) -> None:
    long = "word " * 30_000  # more than the csv module allows by default
    file = tmp_path / name
    lines = list[str]()
    for text in ("body", '"two ""lines"",\nÄ"', "", "42", long):
        lines.append(f"n{separator}{text}\n")
    file.write_bytes("".join([*lines, "n\n\n"]).encode("utf-8-sig"))

    texts = list(read_documents([str(file)], "body"))
    assert texts == ['two "lines",\nÄ', "42", long]
    assert list(read_documents([str(tmp_path)], "body")) == texts

    # A file without rows must have the field too.
    file.write_text(f"n{separator}body\n")
    assert list(read_documents([str(file)], "body")) == []
    message = rf"{re.escape(name)} has no field 'text'; found n, body\. Set .* with --text-field"
    with pytest.raises(DataError, match=message):
        list(read_documents([str(file)]))

    file.write_bytes(b"body\nh\xe9\n")
    with pytest.raises(DataError, match="cannot be read: 'utf-8' codec"):
        list(read_documents([str(file)], "body"))


def test_read_documents_reads_a_column_of_parquet(tmp_path: Path) -> None:
    texts = pyarrow.array(["one", None, "", "fünf", "one"]).dictionary_encode()
    file = write_column(tmp_path / "a[1].PARQUET", texts, "body")
    assert list(read_documents([str(file)], "body")) == ["one", "", "fünf", "one"]
    assert list(read_documents([str(tmp_path)], "body", 2)) == ["on", "", "fü", "on"]
    no_field = r"a\[1\].PARQUET has no field 'text'; found body, n\. Set .* with --text-field"
    with pytest.raises(DataError, match=no_field):
        list(read_documents([str(file)]))
    with pytest.raises(DataError, match=r"a\[1\].PARQUET has int instead of text in field 'n'"):
        list(read_documents([str(file)], "n"))


def test_read_documents_reports_truncated_parquet(tmp_path: Path) -> None:
    file = write_column(tmp_path / "a.parquet", ["one", "two"], "body")
    truncated = tmp_path / "b.parquet"
    truncated.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="b.parquet cannot be read: "):
        list(read_documents([str(truncated)]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            b'{"text": "a"',
            r"Line 2 of .*b\.jsonl is not valid JSON: .*Each line must be a JSON object",
        ),
        (b"[" * 100_000, r"Line 2 of .*b\.jsonl is not valid JSON"),
        (b"[1, 2]", r"Line 2 of .*b\.jsonl has no field 'text'; found a list"),
        (b'{"text": 3}', r"Line 2 of .*b\.jsonl has int instead of text in field 'text'"),
        (b'{"text": "caf\xe9"}', r"b.jsonl cannot be read: .*byte 0xe9.*iconv"),
    ],
    ids=["cut", "deep", "list", "number", "latin"],
)
def test_read_chunks_reports_the_invalid_line(line: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "fine"}\n' + line)
    with pytest.raises(DataError, match=message):
        list(read_chunks([str(tmp_path)]))


@given(st.text(alphabet="ab \n", max_size=60), st.integers(1, 8))
def test_split_chunks_keeps_words_and_all_text(text: str, size: int) -> None:
    chunks, ends = zip(*split_chunks(io.StringIO(text), size), strict=True)
    *earlier, last = ends
    assert "".join(chunks) == text
    assert last is True
    assert not any(earlier)
    for chunk in chunks:
        assert len(chunk) <= 2 * size
    longest_word = max(map(len, text.split()), default=0)
    if longest_word < size:  # longer words may be split
        for chunk in chunks[1:]:
            assert chunk[0].isspace()


def test_read_chunks_splits_long_documents(tmp_path: Path) -> None:
    long = "word " * (CHUNK_SIZE // 5 + 10)
    write(tmp_path / "a.txt", f"\ufeff{long}")
    write(tmp_path / "b.jsonl", '{"text": "one"}\n{"text": null}\n{"text": "two"}\n')
    write_column(tmp_path / "c.parquet", ["three", None, long])
    chunks = list(read_chunks([str(tmp_path)]))
    texts = [text for text, _ in chunks]
    ends = [is_end for _, is_end in chunks]
    assert ends == [False, True, True, True, True, False, True]
    assert "".join(texts[:2]) == long
    assert texts[2:5] == ["one", "two", "three"]
    assert "".join(texts[5:]) == long


def test_read_chunks_does_not_load_a_whole_file(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "words " * (4 * CHUNK_SIZE))
    tracemalloc.start()
    length = sum(len(text) for text, _ in read_chunks([str(file)]))
    _, maximum = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert length == file.stat().st_size
    assert maximum < 8 * CHUNK_SIZE


# ---- Hub datasets

# One process reads all, since importing `datasets` takes seconds.
READER = """
import json, sys
from ctxextend.errors import DataError
from ctxextend.text_data import check_texts, read_documents, read_chunks
results = []
for name, field in json.loads(sys.argv[1]):
    try:
        check_texts([name], field, imports_datasets=True)
        results.append([list(read_documents([name], field, 4)), list(read_chunks([name], field))])
    except DataError as error:
        results.append([error.message, error.hint])
print(json.dumps(results))
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
# Dataset, text field, part of the message, part of the hint.
HUB_FAULTS = [
    (
        "hf:own/set",
        "text",
        "pick one among the available configs: ['plain', 'other']",
        "hf:OWNER/NAME[/CONFIG]",
    ),
    (
        "hf:own/set/plain:none",
        "text",
        "Bad split: none. Available splits: ['train', 'test']",
        "[:SPLIT]",
    ),
    ("hf:own/gated", "text", "gated", "hf auth login"),
    ("hf:own/set/plain", "body", "has no field 'body'; found text, n", "with --text-field"),
]


def publish_dataset(published: Path) -> None:
    """Write a dataset of two configs, the first with two splits."""
    write(published / "README.md", README)
    write_column(published / "train.parquet", ["first one", None, "second"])
    write_column(published / "test.parquet", ["third"])
    write_column(published / "other.parquet", [""])


@pytest.mark.slow
def test_read_documents_streams_hub_datasets_and_reports_what_is_available(tmp_path: Path) -> None:
    published = tmp_path / "published"
    publish_dataset(published)
    (tmp_path / "own" / "set").mkdir(parents=True)  # a local folder of that name is ignored
    names = [(name, "text") for name in HUB_NAMES]
    names += [(name, field) for name, field, _, _ in HUB_FAULTS]
    command = [sys.executable, "-c", READER, json.dumps(names)]

    with serve() as hub:
        hub.add("datasets/own/set", published)
        hub.add("datasets/own/gated", published, gated=True)
        environment = {
            **os.environ,
            "HF_HOME": str(tmp_path / "home"),
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_OFFLINE": "0",
        }
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, check=True
        )

    train, test, other, *faults = json.loads(done.stdout)
    assert train == [["firs", "seco"], [["first one", True], ["second", True]]]
    assert test == [["thir"], [["third", True]]]
    assert other[0] == "hf:own/set/other:train contains no text."
    for (message, hint), (_, _, message_part, hint_part) in zip(faults, HUB_FAULTS, strict=True):
        assert message_part in message
        assert hint_part in hint


def test_read_documents_reports_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_data, "find_spec", lambda name: None)
    columns = write_column(tmp_path / "a.parquet", ["one"])
    message = r"requires datasets, which is not installed.*pip install 'ctxextend\[train\]'"
    for path in (str(columns), "hf:a/b"):
        with pytest.raises(DataError, match=message):
            list(read_documents([path]))
