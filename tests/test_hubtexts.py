import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ctxextend import hubtexts
from ctxextend.errors import DataError
from ctxextend.hubtexts import HubText, named
from ctxextend.texts import check_paths, read_documents
from tests.hub_server import serve

# Several words are read by one process, since the library that reads them takes seconds to be imported.
READER = """
import json, sys
from ctxextend.errors import DataError
from ctxextend.texts import check_texts, read_documents, read_pieces
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
    import pyarrow
    from pyarrow import parquet

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
        ("has no column 'body'; it has text, number", "--text-field"),
        ("The column 'number' of hf:own/set/plain:train holds int, no text", "--text-field"),
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
        ("hf:a/b", HubText("a/b", None, "train", None)),
        ("hf:a.x/b-y/c.d-e", HubText("a.x/b-y", "c.d-e", "train", None)),
        ("hf:a/b:test", HubText("a/b", None, "test", None)),
        ("hf:a/b/c:test@refs/pr/1", HubText("a/b", "c", "test", "refs/pr/1")),
        ("hf:a/b@v1.0", HubText("a/b", None, "train", "v1.0")),
    ],
)
def test_named_takes_a_word_apart(word: str, expected: HubText) -> None:
    assert named(word) == expected
    assert named(str(expected)) == expected


@pytest.mark.parametrize("word", ["hf:", "hf:name", "hf:a/b/c/d", "hf://datasets/a/b", "hf:a/b:", "hf:a/b@", "hf:a /b"])
def test_named_says_how_a_data_set_is_spelled(word: str) -> None:
    with pytest.raises(DataError, match=r"names no data set of the Hub.*OWNER/NAME\[/CONFIG\]"):
        named(word)


def test_check_paths_takes_a_word_for_a_data_set_whatever_files_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hf:a").mkdir()
    (tmp_path / "hf:a" / "b").write_text("a file")
    monkeypatch.chdir(tmp_path)
    assert check_paths(["hf:a/b"]) == [HubText("a/b", None, "train", None)]


def test_named_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubtexts, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"needs datasets.*pip install 'ctxextend\[train\]'"):
        list(read_documents(["hf:a/b"]))
