"""Which windows of a text are held out of training, and how recipes identify them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ctxextend.held_out import HeldOut, fingerprint, held_out_windows, read_ids
from ctxextend.lab.text_tokenizer import TextTokenizer
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
    ids = np.concatenate(chunks)
    return ids.tolist(), files


def write_numbers(file: str, numbers: range) -> None:
    Path(file).write_text(" ".join(map(str, numbers)))


def trained_provenance(folder: str) -> dict[str, Any]:
    """Return what the recipe of a trained checkpoint records about its training."""
    recipe = yaml.safe_load(Path(folder, "ctxextend.yaml").read_text())
    trained: dict[str, Any] = recipe["provenance"]["trained"]
    return trained


@given(st.integers(1, 40), st.integers(2, 300), st.integers(0, 39))
def test_held_out_is_one_window_in_20_spread_over_the_text(
    window: int, windows: int, more: int
) -> None:
    tokens = windows * window + min(more, window - 1)
    held_out = HeldOut.for_text(tokens, window)
    starts, ends = held_out.spans.T
    count = len(starts)
    distances = np.diff(starts).tolist()
    assert (ends - starts == window).all()
    assert not (starts % window).any()
    assert len(set(distances)) <= 1
    assert max(windows // 20, 1) <= count <= max(windows / 4, 1)
    if windows >= 20:
        assert count >= 4
    if windows >= 100:
        assert count <= math.ceil(windows / 20)


@given(st.integers(1, 40), st.integers(2, 300), st.integers(0, 39))
def test_held_out_windows_and_training_parts_make_up_the_text_without_overlap(
    window: int, windows: int, more: int
) -> None:
    tokens = windows * window + min(more, window - 1)
    held_out = HeldOut.for_text(tokens, window)
    spans = [*held_out.spans.tolist(), *held_out.trained_spans.tolist()]
    parts = sorted(spans)
    starts = [start for start, _ in parts]
    ends = [end for _, end in parts]
    assert starts[0] == 0
    assert starts[1:] == ends[:-1]
    assert ends[-1] == tokens


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
    paths = ["a.txt", "b.jsonl"]
    if maximum < 6:
        paths.append("c.txt")  # not needed, so not read
    ids, files = read(*paths, separator=separator, maximum=maximum)
    assert ids == expected

    names = ["a.txt"]
    if 4 in expected:
        names.append("b.jsonl")
    assert [file["name"] for file in files] == names
    assert files[0] == {**fingerprint(Path("a.txt")), "first_token": 0}


def test_fingerprint_identifies_files_and_hub_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("a.txt")
    file.write_text("1 2 3")
    (dataset,) = check_paths(["hf:o/d"])
    assert fingerprint(file)["bytes"] == 5
    assert "hf:o/d:train" in str(fingerprint(dataset))


def test_held_out_windows_are_found_in_one_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_numbers("a.txt", range(100))
    write_numbers("b.txt", range(100, 407))
    ids, files = read("a.txt", "b.txt", maximum=1000)
    held_out = HeldOut.for_text(len(ids), 10)
    whole = [window.tolist() for window in held_out_windows(np.array(ids), held_out)]
    assert whole == [
        [*range(50, 60)],
        [*range(150, 160)],
        [*range(250, 260)],
        [*range(350, 360)],
    ]

    only_file, _ = read("b.txt", maximum=1000)
    found = held_out_windows(np.array(only_file), held_out, files[1]["first_token"])
    assert [window.tolist() for window in found] == whole[1:]

    # A window that is partly before the file is skipped.
    rest = np.array(ids[155:])
    assert len(held_out_windows(rest, held_out, 155)) == 2


@pytest.mark.usefixtures("book")
def test_train_records_its_text_and_held_out_windows_in_the_recipe(gpt2: Path) -> None:
    Path("texts").mkdir()
    numbers = [number % 27 for number in range(300)]
    Path("texts/other.txt").write_text(text_of(numbers))
    train(gpt2, "out", "--data", "texts", "--eval-every", 4)

    trained = trained_provenance("out")
    book, other = trained["data"]
    assert book["name"] == "book.txt"
    assert book["first_token"] == 0
    assert book["sha256"] == fingerprint(Path("book.txt"))["sha256"]
    assert other["name"] == "other.txt"
    assert other["first_token"] == 1200

    tokenizer = TextTokenizer.open(gpt2)
    chunks = read_ids(["book.txt", "texts"], "text", tokenizer.encode, tokenizer.separator, 10_000)
    ids = np.concatenate(list(chunks))
    held_out = HeldOut(**trained["held_out"])
    windows = held_out_windows(ids, held_out)
    assert held_out == HeldOut.for_text(len(ids), 32)
    assert [len(window) for window in windows] == [32, 32, 32, 32]
