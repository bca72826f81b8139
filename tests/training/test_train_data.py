from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxextend.evaluation.eval_model import CAUSAL, MASKED
from ctxextend.held_out import HeldOut
from ctxextend.training.train_data import (
    IGNORE_INDEX,
    HeldOutSequences,
    Masking,
    NumberedItems,
    SequenceSettings,
    Text,
    TrainingSequences,
    open_tokens,
    write_tokens,
)


def test_write_tokens_writes_int32_and_renames_the_complete_file(tmp_path: Path) -> None:
    def chunks() -> Iterator[Any]:
        yield numbered_tokens(2).astype(np.int64)
        assert not (tmp_path / "tokens").exists()
        yield numbered_tokens(3, 7).astype(np.int64)

    write_tokens(chunks(), tmp_path / "tokens")
    tokens = open_tokens(tmp_path / "tokens")
    assert tokens.tolist() == [0, 1, 7, 8, 9]
    assert tokens.dtype == np.int32
    assert [file.name for file in tmp_path.iterdir()] == ["tokens"]


# ---- sequences


def numbered_tokens(tokens: int, first: int = 0) -> Any:
    """Return a text whose token ids are their indices, from `first`."""
    return np.arange(first, first + tokens, dtype=np.int32)


def one_part(tokens: int) -> Text:
    return Text.whole(numbered_tokens(tokens))


def sequences(
    text: Text, config: SequenceSettings, count: int, *, shuffled: bool
) -> TrainingSequences | HeldOutSequences:
    """Return sequences to train on, or those of the held-out loss."""
    return (TrainingSequences if shuffled else HeldOutSequences)(text, config, count)


def causal(length: int, span: int, **options: Any) -> SequenceSettings:
    return SequenceSettings((), (), length, span, CAUSAL, **options)


def items(dataset: NumberedItems) -> list[dict[str, torch.Tensor]]:
    return [dataset[number] for number in range(len(dataset))]


@st.composite
def causal_settings(draw: Any) -> SequenceSettings:
    """Draw settings of causal sequences."""
    before = draw(st.integers(0, 2))
    after = draw(st.integers(0, 2))
    text = draw(st.integers(1, 9))
    slack = draw(st.integers(0, 30))
    length = before + after + text
    return SequenceSettings(
        special_before=tuple(range(-before, 0)),
        special_after=(-9,) * after,
        length=length,
        span=length + slack,
        kind=CAUSAL,
        skip=draw(st.booleans()),
        seed=draw(st.integers(0, 2**40)),
    )


def test_evaluation_sequences_are_consecutive_with_special_tokens_that_are_not_predicted() -> None:
    dataset = sequences(
        one_part(8), SequenceSettings((101,), (102, 103), 6, 6, CAUSAL), 2, shuffled=False
    )
    assert dataset[0]["input_ids"].tolist() == [101, 0, 1, 2, 102, 103]
    assert dataset[1]["input_ids"].tolist() == [101, 3, 4, 5, 102, 103]
    assert set(dataset[0]) == {"input_ids", "labels"}
    assert dataset[0]["labels"].tolist() == [IGNORE_INDEX, 0, 1, 2, IGNORE_INDEX, IGNORE_INDEX]
    assert {values.dtype for values in dataset[0].values()} == {torch.int64}


@pytest.mark.parametrize("count", [2, 7, 20])
def test_evaluation_sequences_are_spread_over_all_parts_of_a_text(count: int) -> None:
    parts = Text(numbered_tokens(1000), np.array([[0, 200], [400, 600], [800, 1000]]))
    firsts = [
        int(item["input_ids"][0])
        for item in items(sequences(parts, causal(10, 40), count, shuffled=False))
    ]
    assert (len({*firsts}), firsts[0], firsts[-1]) == (count, 0, 990)
    per_part = np.bincount(np.array(firsts) // 400, minlength=3)
    assert per_part.max() - per_part.min() <= 2 if count > 2 else per_part.tolist() == [1, 0, 1]
    dataset = sequences(parts, causal(10, 40), 1000, shuffled=False)
    assert [int(item["input_ids"][0]) for item in items(dataset)] == [
        part + start for part in (0, 400, 800) for start in range(0, 200, 10)
    ]


@given(causal_settings(), st.integers(1, 120), st.booleans())
def test_a_sequence_depends_only_on_the_seed_and_its_index(
    config: SequenceSettings, more: int, shuffled: bool
) -> None:
    one, other = (
        sequences(one_part(config.text_length + more), config, 12, shuffled=shuffled)
        for _ in range(2)
    )
    reverse_order = [other[number] for number in reversed(range(len(other)))]
    for found, expected in zip(items(one), reversed(reverse_order), strict=True):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)


@given(causal_settings(), st.integers(0, 120))
def test_each_epoch_has_each_sequence_once_and_only_the_text(
    config: SequenceSettings, more: int
) -> None:
    tokens, config = (
        numbered_tokens(config.text_length + more, 1000),
        replace(config, span=config.length),
    )
    dataset = TrainingSequences(Text.whole(tokens), config, 1000)
    text = slice(len(config.special_before), len(config.special_before) + config.text_length)
    for epoch in range(3):
        numbers = range(epoch * dataset.epoch_size, (epoch + 1) * dataset.epoch_size)
        seen = np.sort(
            np.concatenate([dataset[number]["input_ids"][text].numpy() for number in numbers])
        )
        assert np.array_equal(
            seen, np.arange(seen[0], seen[0] + dataset.epoch_size * config.text_length)
        )
        assert seen[0] >= 1000
        assert seen[-1] < 1000 + len(tokens)


@settings(max_examples=50, deadline=None)
@given(causal_settings(), st.integers(2, 60), st.booleans())
def test_training_sequences_never_overlap_held_out_ones(
    config: SequenceSettings, more: int, shuffled: bool
) -> None:
    length = config.text_length
    held_out = HeldOut.for_text(length * more + more % length, length)
    tokens = numbered_tokens(held_out.tokens)
    trained, measured = (Text(tokens, spans) for spans in (held_out.trained_spans, held_out.spans))
    text = slice(len(config.special_before), len(config.special_before) + length)
    ids = [
        {
            *np.concatenate(
                [
                    item["input_ids"][text]
                    for item in items(sequences(spans, config, 80, shuffled=is_train))
                ]
            )
        }
        for spans, is_train in ((trained, True), (measured, False))
    ]
    assert not ids[0] & ids[1]
    assert len(ids[1]) == min(80, len(held_out.spans)) * length


def test_epochs_differ_in_order_and_offset() -> None:
    dataset, other = (
        TrainingSequences(one_part(100), causal(10, 10, seed=seed), 900) for seed in (1, 2)
    )
    assert dataset.epoch_size == 9
    firsts = np.array([item["input_ids"][0] for item in items(dataset)]).reshape(100, 9)
    assert {*firsts.min(axis=1).tolist()} == set(range(11))  # sequences start at each offset
    assert len(np.unique(firsts // 10, axis=0)) > 90
    assert [other[number]["input_ids"][0] for number in range(9)] != firsts[0].tolist()


@given(causal_settings(), st.integers(0, 120), st.booleans())
def test_positions_are_within_the_span_and_match_token_distances(
    config: SequenceSettings, more: int, shuffled: bool
) -> None:
    dataset = sequences(one_part(config.text_length + more), config, 20, shuffled=shuffled)
    prefix, text = (
        len(config.special_before),
        slice(len(config.special_before), len(config.special_before) + config.text_length),
    )
    for item in items(dataset):
        assert ("position_ids" in item) == (config.span > config.length)
        ids = item["input_ids"][text]
        assert 0 <= ids.min() <= ids.max() < len(dataset.tokens)
        if "position_ids" not in item:
            assert torch.equal(ids.diff(), torch.ones(config.text_length - 1, dtype=torch.int64))
            continue
        positions = item["position_ids"]
        assert positions[:prefix].tolist() == list(range(prefix))
        assert (positions.diff() >= 1).all()
        assert positions[-1] < config.span
        assert torch.equal(positions[text].diff(), ids.diff())
        assert int((ids.diff() != 1).sum()) <= (1 if config.skip and shuffled else 0)
        assert torch.equal(
            positions[prefix + config.text_length :].diff(),
            torch.ones(max(len(config.special_after) - 1, 0)),
        )


@pytest.mark.parametrize("skip", [False, True])
def test_each_position_of_the_span_is_about_equally_frequent(skip: bool) -> None:
    dataset = sequences(one_part(5000), causal(32, 256, skip=skip), 3000, shuffled=True)
    counts = np.bincount(
        np.concatenate([item["position_ids"] for item in items(dataset)]), minlength=256
    )
    assert counts.min() > 0.4 * counts.mean()
    assert counts.max() < 2.5 * counts.mean()


def test_skips_are_as_long_as_the_span_and_the_text_allow() -> None:
    def skips(tokens: int) -> Any:
        """Return the positions skipped after each token of 500 sequences, shape (500, 31)."""
        dataset = sequences(one_part(tokens), causal(32, 256, skip=True), 500, shuffled=True)
        return np.array([np.diff(item["position_ids"]) for item in items(dataset)]) - 1

    found = skips(5000)
    assert found.max() == 256 - 32
    assert 0 < (found == 0).all(axis=1).sum() < 50
    assert found.any(axis=0).all()  # some skip is after every token
    assert skips(40).max() == 8


def test_evaluation_sequences_are_spread_over_the_span() -> None:
    dataset = sequences(
        one_part(100), SequenceSettings((7,), (), 10, 40, CAUSAL, None, True), 4, shuffled=False
    )
    firsts = [item["position_ids"][:2].tolist() for item in items(dataset)]
    assert firsts == [[0, 1], [0, 11], [0, 21], [0, 31]]
    assert all((item["position_ids"][1:].diff() == 1).all() for item in items(dataset))


MASKING = Masking(4, 40, frozenset(range(5)))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 39), min_size=1, max_size=60), st.integers(0, 1000))
def test_masking_predicts_only_ordinary_tokens(text: list[int], seed: int) -> None:
    ids = np.array(text, np.int64)
    masked, labels = MASKING.apply(ids, np.random.default_rng(seed))
    chosen, ordinary = labels != IGNORE_INDEX, ids >= 5
    assert chosen.sum() == max(1, round(0.15 * (ordinary.sum() or len(ids))))
    assert np.array_equal(labels[chosen], ids[chosen])
    assert np.array_equal(masked[~chosen], ids[~chosen])
    assert ordinary[chosen].all() or not ordinary.any()
    assert ((masked[chosen] == 4) | (masked[chosen] >= 5) | ~ordinary[chosen]).all()


def test_masking_masks_80_percent_and_replaces_10_percent() -> None:
    text = np.full(100_000, 5, np.int64)
    masked, labels = MASKING.apply(text, np.random.default_rng(0))
    chosen = masked[labels != IGNORE_INDEX]
    assert len(chosen) == 15_000
    assert abs((chosen == 4).mean() - 0.8) < 0.01
    assert {*chosen.tolist()} == set(range(4, 40))
    assert abs((chosen > 5).mean() - 0.1 * 34 / 35) < 0.01


def test_sequences_of_a_masked_model_have_different_masks_but_never_at_special_tokens() -> None:
    config = SequenceSettings((2,), (3,), 22, 22, MASKED, MASKING)
    dataset = sequences(Text.whole(np.full(20, 7, np.int32)), config, 50, shuffled=True)
    masks = [tuple(item["labels"].tolist()) for item in items(dataset)]
    assert len(set(masks)) > 40
    assert all(labels.count(7) == 3 and labels.count(IGNORE_INDEX) == 19 for labels in masks)
    assert all(labels[0] == labels[-1] == IGNORE_INDEX for labels in masks)
    assert all(item["input_ids"][[0, -1]].tolist() == [2, 3] for item in items(dataset))
