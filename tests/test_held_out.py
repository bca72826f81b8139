"""Which windows of a text are held out of training, and how the recipe of the output identifies
them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.evaluation.eval_model import TextTokenizer
from ctxextend.held_out import HeldOut, fingerprint, held_out_windows, read_ids
from ctxextend.text_data import check_paths
from tests.helpers.trainings import train
from tests.helpers.word_tokenizer import text_of


def encode(text: str) -> Any:
    """Return a token per word: its number."""
    return np.array([int(word) for word in text.split()], np.int64)


def read(
    *paths: str, separator: int | None = None, maximum: int = 100
) -> tuple[list[int], list[dict[str, Any]]]:
    files: list[dict[str, Any]] = []
    chunks = list(read_ids(paths, "text", encode, separator, maximum, files))
    return np.concatenate(chunks).tolist(), files


@given(st.integers(1, 40), st.integers(2, 300), st.integers(0, 39))
def test_held_out_is_one_window_in_20_spread_over_the_text(
    window: int, windows: int, more: int
) -> None:
    tokens = windows * window + min(more, window - 1)
    held_out = HeldOut.for_text(tokens, window)
    starts, ends = held_out.spans.T
    assert (ends - starts == window).all()
    assert not (starts % window).any()
    assert len({*np.diff(starts).tolist()}) <= 1
    assert max(windows // 20, 1) <= len(starts) <= max(windows / 4, 1)
    assert windows < 20 or len(starts) >= 4
    assert windows < 100 or len(starts) <= -(-windows // 20)
    # Training parts and held-out windows make up the text, and do not overlap.
    parts = sorted(map(tuple, np.concatenate([held_out.spans, held_out.trained_spans]).tolist()))
    assert [start for start, _ in parts[1:]] == [end for _, end in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (0, tokens)


@pytest.mark.parametrize(
    ("separator", "maximum", "expected"),
    [
        (None, 100, [1, 2, 3, 4, 5, 6]),
        (9, 100, [1, 2, 3, 9, 4, 5, 6, 9]),
        (9, 5, [1, 2, 3, 9, 4]),
        (9, 4, [1, 2, 3, 9]),
        (9, 1, [1]),
    ],
)
def test_read_ids_puts_a_separator_after_documents_and_reads_no_more_than_it_needs(
    separator: int | None,
    maximum: int,
    expected: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("1 2 3")
    Path("b.jsonl").write_text('{"text": "4 5 6"}\n')
    Path("c.txt").write_text("not a number")
    ids, files = read(
        "a.txt",
        "b.jsonl",
        *(["c.txt"] if maximum < 6 else []),
        separator=separator,
        maximum=maximum,
    )
    assert ids == expected
    assert [file["name"] for file in files] == ["a.txt", "b.jsonl"][: 1 + (4 in expected)]
    assert files[0] == {**fingerprint(Path("a.txt")), "first_token": 0}
    assert fingerprint(Path("a.txt"))["bytes"] == 5
    assert "hf:o/d:train" in str(fingerprint(check_paths(["hf:o/d"])[0]))


def test_held_out_windows_are_found_in_one_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(" ".join(map(str, range(100))))
    Path("b.txt").write_text(" ".join(map(str, range(100, 407))))
    ids, files = read("a.txt", "b.txt", maximum=1000)
    held_out = HeldOut.for_text(len(ids), 10)
    whole = [window.tolist() for window in held_out_windows(np.array(ids), held_out)]
    assert whole == [[*range(start, start + 10)] for start in (50, 150, 250, 350)]
    only_file, _ = read("b.txt", maximum=1000)
    found = held_out_windows(np.array(only_file), held_out, files[1]["first_token"])
    assert [window.tolist() for window in found] == whole[1:]
    # A window that is partly before the file is skipped.
    assert len(held_out_windows(np.array(ids[155:]), held_out, 155)) == 2


@pytest.mark.usefixtures("book")
def test_train_records_its_text_and_held_out_windows_in_the_recipe(gpt2: Path) -> None:
    Path("texts").mkdir()
    Path("texts/other.txt").write_text(text_of([number % 27 for number in range(300)]))
    train(gpt2, "out", "--data", "texts", "--eval-every", 4)
    trained = yaml.safe_load(Path("out/ctxextend.yaml").read_text())["provenance"]["trained"]
    assert [(file["name"], file["first_token"]) for file in trained["data"]] == [
        ("book.txt", 0),
        ("other.txt", 1200),
    ]
    assert trained["data"][0]["sha256"] == fingerprint(Path("book.txt"))["sha256"]
    tokenizer = TextTokenizer.open(gpt2)
    chunks = read_ids(["book.txt", "texts"], "text", tokenizer.encode, tokenizer.separator, 10_000)
    ids, held_out = np.concatenate([*chunks]), HeldOut(**trained["held_out"])
    assert held_out == HeldOut.for_text(len(ids), 32)
    assert [len(window) for window in held_out_windows(ids, held_out)] == [32] * 4
    Path("held-out.txt").write_text(Path("book.txt").read_text())
    train(gpt2, "with", "--eval-data", "held-out.txt")
    trained = yaml.safe_load(Path("with/ctxextend.yaml").read_text())["provenance"]["trained"]
    assert ([file["name"] for file in trained["eval_data"]], "held_out" in trained) == (
        ["held-out.txt"],
        False,
    )
