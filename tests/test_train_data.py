import errno
import pickle
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxextend.errors import OutputError
from ctxextend.evaluation.eval_model import CAUSAL, MASKED
from ctxextend.training.train_data import (
    IGNORE_INDEX,
    Masking,
    SequenceDataset,
    SequenceSettings,
    hold_out,
    open_tokens,
    write_tokens,
)


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
def test_write_tokens_writes_tokens_with_a_separator_behind_documents(
    separator: int | None, wanted: int, expected: list[int], tmp_path: Path
) -> None:
    write_tokens(PIECES, numbers, separator, wanted, tmp_path / "tokens")
    tokens = open_tokens(tmp_path / "tokens")
    assert tokens.tolist() == expected
    assert tokens.dtype == np.int32
    assert [file.name for file in tmp_path.iterdir()] == ["tokens"]


def test_write_tokens_reads_no_more_than_it_needs(tmp_path: Path) -> None:
    read: list[str] = []

    def encode(text: str) -> Any:
        read.append(text)
        return np.zeros(10, np.int64)

    write_tokens((("text", False) for _ in count()), encode, 1, 95, tmp_path / "tokens")
    assert (len(read), len(open_tokens(tmp_path / "tokens"))) == (10, 95)


def test_write_tokens_that_cannot_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    def full(_: str) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OutputError, match=r"No space left on device.*Free some space"):
        write_tokens(PIECES, full, None, 10, tmp_path / "tokens")
    assert not list(tmp_path.iterdir())


@given(st.integers(1, 40), st.integers(0, 2000))
def test_hold_out_holds_out_a_twentieth_and_at_least_a_window(window: int, more: int) -> None:
    tokens = np.arange(2 * window + more, dtype=np.int32)
    train, held_out = hold_out(tokens, window)
    assert np.array_equal(np.concatenate([train, held_out]), tokens)
    assert len(held_out) == max(window, len(tokens) // 20)
    assert len(train) >= window
    assert np.shares_memory(train, tokens)
    assert np.shares_memory(held_out, tokens)


# ---- sequences


def counted(tokens: int, first: int = 0) -> Any:
    """A text in which every token is its place."""
    return np.arange(first, first + tokens, dtype=np.int32)


def plain(length: int, **options: Any) -> SequenceSettings:
    return SequenceSettings((), (), **{"length": length, "span": length, "kind": CAUSAL, **options})


def texts(windows: SequenceDataset, start: int = 0, stop: int | None = None) -> list[list[int]]:
    return [windows[number]["input_ids"].tolist() for number in range(start, len(windows) if stop is None else stop)]


@st.composite
def cuts(draw: Any) -> SequenceSettings:
    """Any settings of causal sequences."""
    before, after, text, slack = (draw(st.integers(*limits)) for limits in ((0, 2), (0, 2), (1, 9), (0, 30)))
    length, special = before + after + text, (tuple(range(-before, 0)), (-9,) * after)
    return SequenceSettings(
        *special, length, length + slack, CAUSAL, skip=draw(st.booleans()), seed=draw(st.integers(0, 2**40))
    )


def test_windows_to_measure_on_follow_each_other_between_special_tokens_that_are_not_predicted() -> None:
    windows = SequenceDataset(counted(8), SequenceSettings((101,), (102, 103), 6, 6, CAUSAL), 2, shuffled=False)
    assert texts(windows) == [[101, 0, 1, 2, 102, 103], [101, 3, 4, 5, 102, 103]]
    assert set(windows[0]) == {"input_ids", "labels"}
    assert windows[0]["labels"].tolist() == [IGNORE_INDEX, 0, 1, 2, IGNORE_INDEX, IGNORE_INDEX]
    assert {values.dtype for values in windows[0].values()} == {torch.int64}


@given(cuts(), st.integers(1, 120), st.booleans(), st.randoms(use_true_random=False))
def test_a_window_depends_on_the_seed_and_its_number_alone(
    cut: SequenceSettings, more: int, shuffled: bool, mix: Any
) -> None:
    tokens = counted(cut.text_length + more)
    first = SequenceDataset(tokens, cut, 12, shuffled=shuffled)
    second = SequenceDataset(tokens.copy(), pickle.loads(pickle.dumps(cut)), 12, shuffled=shuffled)
    expected = [first[number] for number in range(12)]
    for number in mix.sample(range(12), 12):
        found = second[number]
        assert found.keys() == expected[number].keys()
        assert all(torch.equal(found[name], expected[number][name]) for name in found)


@given(cuts(), st.integers(0, 120))
def test_each_epoch_visits_each_window_once_and_nothing_but_the_text(cut: SequenceSettings, more: int) -> None:
    tokens, cut = counted(cut.text_length + more, 1000), replace(cut, span=cut.length)
    windows = SequenceDataset(tokens, cut, 1000, shuffled=True)
    text = slice(len(cut.special_before), len(cut.special_before) + cut.text_length)
    for epoch in range(3):
        numbers = range(epoch * windows.epoch, (epoch + 1) * windows.epoch)
        seen = np.sort(np.concatenate([windows[number]["input_ids"][text].numpy() for number in numbers]))
        assert np.array_equal(seen, np.arange(seen[0], seen[0] + windows.epoch * cut.text_length))
        assert seen[0] >= 1000
        assert seen[-1] < 1000 + len(tokens)


def test_epochs_differ_in_order_and_in_where_they_cut() -> None:
    windows = SequenceDataset(counted(100), plain(10, seed=1), 900, shuffled=True)
    assert windows.epoch == 9
    epochs = [texts(windows, 9 * number, 9 * number + 9) for number in range(100)]
    assert {min(text[0] for text in texts) for texts in epochs} == set(range(11))  # each token in turn begins a window
    assert len({tuple(text[0] // 10 for text in texts) for texts in epochs}) > 90
    other = SequenceDataset(counted(100), plain(10, seed=2), 900, shuffled=True)
    assert texts(other, 0, 9) != epochs[0]


@given(cuts(), st.integers(0, 120), st.booleans())
def test_positions_reach_over_the_span_and_say_how_far_tokens_are_apart(
    cut: SequenceSettings, more: int, shuffled: bool
) -> None:
    windows = SequenceDataset(counted(cut.text_length + more), cut, 20, shuffled=shuffled)
    prefix, text = len(cut.special_before), slice(len(cut.special_before), len(cut.special_before) + cut.text_length)
    for number in range(20):
        item = windows[number]
        assert ("position_ids" in item) == (cut.span > cut.length)
        ids = item["input_ids"][text]
        assert 0 <= ids.min() <= ids.max() < len(windows.tokens)
        if "position_ids" not in item:
            assert torch.equal(ids.diff(), torch.ones(cut.text_length - 1, dtype=torch.int64))
            continue
        positions = item["position_ids"]
        assert positions[:prefix].tolist() == list(range(prefix))
        assert (positions.diff() >= 1).all()
        assert positions[-1] < cut.span
        assert torch.equal(positions[text].diff(), ids.diff())
        assert int((ids.diff() != 1).sum()) <= (1 if cut.skip and shuffled else 0)
        assert torch.equal(positions[prefix + cut.text_length :].diff(), torch.ones(max(len(cut.special_after) - 1, 0)))


@pytest.mark.parametrize("skip", [False, True])
def test_each_position_of_the_span_is_seen_about_as_often(skip: bool) -> None:
    cut = plain(32, span=256, skip=skip)
    windows = SequenceDataset(counted(5000), cut, 3000, shuffled=True)
    seen = np.bincount(np.concatenate([windows[number]["position_ids"] for number in range(3000)]), minlength=256)
    assert seen.min() > 0.4 * seen.mean()
    assert seen.max() < 2.5 * seen.mean()


def test_windows_that_skip_jump_as_far_as_the_span_and_the_text_allow() -> None:
    long = SequenceDataset(counted(5000), plain(32, span=256, skip=True), 500, shuffled=True)
    jumps = [int(long[number]["position_ids"].diff().max()) - 1 for number in range(500)]
    assert max(jumps) == 256 - 32
    assert 0 < jumps.count(0) < 50
    where = Counter(int(long[number]["position_ids"].diff().argmax()) for number in range(500) if jumps[number])
    assert set(where) == set(range(31))  # behind every token
    short = SequenceDataset(counted(40), plain(32, span=256, skip=True), 500, shuffled=True)
    assert max(int(short[number]["position_ids"].diff().max()) - 1 for number in range(500)) == 8


def test_windows_to_measure_on_stand_all_over_the_span() -> None:
    windows = SequenceDataset(counted(100), SequenceSettings((7,), (), 10, 40, CAUSAL, None, True), 4, shuffled=False)
    firsts = [windows[number]["position_ids"][:2].tolist() for number in range(4)]
    assert firsts == [[0, 1], [0, 11], [0, 21], [0, 31]]
    assert all((windows[number]["position_ids"][1:].diff() == 1).all() for number in range(4))


MASKING = Masking(4, 40, frozenset(range(5)))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 39), min_size=1, max_size=60), st.integers(0, 1000))
def test_masking_chooses_ordinary_tokens_alone(text: list[int], seed: int) -> None:
    ids = np.array(text, np.int64)
    given, labels = MASKING.apply(ids, np.random.default_rng(seed))
    chosen, ordinary = labels != IGNORE_INDEX, ids >= 5
    assert chosen.sum() == max(1, round(0.15 * (ordinary.sum() or len(ids))))
    assert np.array_equal(labels[chosen], ids[chosen])
    assert np.array_equal(given[~chosen], ids[~chosen])
    assert ordinary[chosen].all() or not ordinary.any()
    assert ((given[chosen] == 4) | (given[chosen] >= 5) | ~ordinary[chosen]).all()


def test_masking_hides_eight_of_ten_and_replaces_one() -> None:
    text = np.full(100_000, 5, np.int64)
    given, labels = MASKING.apply(text, np.random.default_rng(0))
    chosen = given[labels != IGNORE_INDEX]
    assert len(chosen) == 15_000
    assert abs((chosen == 4).mean() - 0.8) < 0.01
    others = Counter(chosen[chosen != 4].tolist())
    assert set(others) == set(range(5, 40))
    assert abs(sum(others[token] for token in range(6, 40)) / 15_000 - 0.1 * 34 / 35) < 0.01


def test_windows_of_a_masked_model_are_masked_anew_each_time_but_never_at_special_tokens() -> None:
    cut = SequenceSettings((2,), (3,), 22, 22, MASKED, MASKING)
    windows = SequenceDataset(np.full(20, 7, np.int32), cut, 50, shuffled=True)
    masks = [tuple(windows[number]["labels"].tolist()) for number in range(50)]
    assert len(set(masks)) > 40
    assert all(labels.count(7) == 3 and labels.count(IGNORE_INDEX) == 19 for labels in masks)
    assert all(labels[0] == labels[-1] == IGNORE_INDEX for labels in masks)
    assert all(windows[number]["input_ids"][[0, -1]].tolist() == [2, 3] for number in range(50))
