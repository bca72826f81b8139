import json
import os
from pathlib import Path

import pytest

from ctxextend.errors import DataError
from ctxextend.texts import check_paths, read_documents, shared


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_read_documents_takes_a_file_for_one_document_and_a_line_of_jsonl_for_another(tmp_path: Path) -> None:
    plain = written(tmp_path / "a.txt", "one\n\ntwo")
    lines = written(tmp_path / "b.jsonl", '{"text": "three", "n": 1}\n\n{"text": "fünf"}\n')
    assert list(read_documents([lines, plain])) == ["three", "fünf", "one\n\ntwo"]


def test_check_paths_leaves_out_of_a_folder_what_no_user_wrote(tmp_path: Path) -> None:
    kept = ["a.txt", "deep/b.md", "deep/down/c.jsonl"]
    left = [".venv/lib/d.txt", "bert/vocab.txt", "bert/1_Pooling/e.txt", "out.training/train_log.jsonl"]
    for name in (*kept, *left, "bert/config.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a")
    assert check_paths([tmp_path]) == [tmp_path / name for name in kept]
    assert check_paths([tmp_path / "bert"]) == [tmp_path / "bert/1_Pooling/e.txt", tmp_path / "bert/vocab.txt"]


def test_read_documents_reads_the_text_files_of_a_folder_by_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a.MD", "sub/c.jsonl", "weights.bin", ".gitignore"):
        written(tmp_path / name, json.dumps({"text": name}))
    assert [json.loads(text)["text"] if "{" in text else text for text in read_documents([tmp_path])] == [
        "a.MD",
        "b.txt",
        "sub/c.jsonl",
    ]


def test_check_paths_takes_each_text_once_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (written(tmp_path / "texts" / name, name) for name in ("a.txt", "b.txt"))
    monkeypatch.chdir(tmp_path)
    assert check_paths(["texts/b.txt", tmp_path / "texts", "./texts/../texts/a.txt"]) == [Path("texts/b.txt"), one]
    assert shared(["texts"], [two]) == [Path("texts/b.txt")]
    assert shared([one], [two]) == []


def test_read_documents_reads_another_field(tmp_path: Path) -> None:
    lines = written(tmp_path / "b.jsonl", '{"body": "x", "text": 3}\n')
    assert list(read_documents([lines], "body")) == ["x"]
    with pytest.raises(DataError, match=r"b.jsonl, line 1, has no text in a field 'text'; it has body, text"):
        list(read_documents([lines]))


def test_read_documents_stops_at_so_many_characters_of_a_file(tmp_path: Path) -> None:
    assert list(read_documents([written(tmp_path / "a.txt", "üöä" * 50)], characters=4)) == ["üöäü"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "line 2, is no JSON"),
        ("[1, 2]", "line 2, has no text in a field 'text'; it has a list"),
        ('{"other": 1}', "it has other"),
        ("[" * 100_000, "line 2, is no JSON"),
    ],
)
def test_read_documents_names_the_line_at_fault(line: str, message: str, tmp_path: Path) -> None:
    file = written(tmp_path / "b.jsonl", '{"text": "fine"}\n' + line)
    with pytest.raises(DataError, match=message):
        list(read_documents([file]))


def test_read_documents_names_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"caf\xe9 au lait")
    with pytest.raises(DataError, match=r"a.txt is not UTF-8.*iconv"):
        list(read_documents([file]))


def test_check_paths_names_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    empty = written(tmp_path / "empty.txt", "")
    for path, message in (
        (tmp_path / "missing.txt", "no file or folder .*missing.txt"),
        (tmp_path / "folder", r"folder .*folder holds no text.*\.txt"),
        (empty, "empty.txt is empty"),
    ):
        with pytest.raises(DataError, match=message):
            check_paths([path])
    with pytest.raises(DataError, match="No text was named"):
        check_paths([])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_read_documents_says_what_may_not_be_read(tmp_path: Path) -> None:
    file = written(tmp_path / "a.txt", "x")
    file.chmod(0)
    with pytest.raises(DataError, match="Permission denied"):
        list(read_documents([file]))


def test_read_documents_takes_a_byte_order_mark_and_half_a_pair_for_no_text(tmp_path: Path) -> None:
    plain = written(tmp_path / "a.txt", "\ufeffone")
    lines = written(tmp_path / "b.jsonl", '\ufeff{"text": "\\ud83d\\ude00 \\ud800"}')
    assert list(read_documents([plain, lines], characters=10**30)) == ["one", "\U0001f600 \ufffd"]
    assert list(read_documents([lines], characters=1)) == ["\U0001f600"]


@pytest.mark.parametrize(("name", "message"), [("a" * 300, "cannot be read"), (os.devnull, "neither a file nor")])
def test_check_paths_says_what_can_be_no_text(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_paths([name])
