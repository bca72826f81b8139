from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxextend.held_out import HeldOut
from ctxextend.lab.eval_model import CAUSAL
from ctxextend.lab.text_tokenizer import TextTokenizer
from ctxextend.training.train_data import (
    IGNORE_INDEX,
    HeldOutSequences,
    Masking,
    MovedWindows,
    NumberedItems,
    SequenceSettings,
    Text,
    TrainingSequences,
    plan_windows,
)

# ---- sequences


def numbered_tokens(tokens: int, first: int = 0) -> Any:
    """Return a text whose token ids are their indices, from `first`."""
    return np.arange(first, first + tokens, dtype=np.int32)


def whole(tokens: Any) -> Text:
    """Return a text that is a single part."""
    return Text(tokens, np.array([[0, len(tokens)]]))


def one_part(tokens: int) -> Text:
    return whole(numbered_tokens(tokens))


def sequences(
    text: Text, config: SequenceSettings, count: int, *, shuffled: bool
) -> TrainingSequences | HeldOutSequences:
    """Return sequences to train on, or those of the held-out loss."""
    if shuffled:
        return TrainingSequences(text, config, count)
    return HeldOutSequences(text, config, count)


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
        usable_positions=length + slack,
        kind=CAUSAL,
        skips_once=draw(st.booleans()),
        seed=draw(st.integers(0, 2**40)),
    )


def first_tokens(dataset: NumberedItems) -> list[int]:
    """Return the first token id of each sequence."""
    return [int(item["input_ids"][0]) for item in items(dataset)]


def text_slice(config: SequenceSettings) -> slice:
    """Return where a sequence has its text, between special tokens."""
    start = len(config.special_before)
    return slice(start, start + config.text_length)


def test_evaluation_sequences_are_consecutive_with_special_tokens_that_are_not_predicted() -> None:
    config = SequenceSettings((101,), (102, 103), 6, 6, CAUSAL)
    dataset = sequences(one_part(8), config, 2, shuffled=False)
    first = dataset[0]
    second = dataset[1]

    assert first["input_ids"].tolist() == [101, 0, 1, 2, 102, 103]
    assert second["input_ids"].tolist() == [101, 3, 4, 5, 102, 103]
    assert set(first) == {"input_ids", "labels"}
    labels = first["labels"].tolist()
    assert labels == [IGNORE_INDEX, 0, 1, 2, IGNORE_INDEX, IGNORE_INDEX]
    for values in first.values():
        assert values.dtype == torch.int64


@settings(max_examples=50, deadline=None)
@given(causal_settings(), st.integers(0, 120))
def test_each_epoch_has_each_sequence_once_and_only_the_text(
    config: SequenceSettings, more: int
) -> None:
    tokens = numbered_tokens(config.text_length + more, 1000)
    config = replace(config, usable_positions=config.length)
    dataset = TrainingSequences(whole(tokens), config, 1000)
    text = text_slice(config)

    for epoch in range(3):
        start = epoch * dataset.epoch_size
        numbers = range(start, start + dataset.epoch_size)
        texts = [dataset[number]["input_ids"][text].numpy() for number in numbers]
        seen = np.sort(np.concatenate(texts))
        first = seen[0]
        consecutive = np.arange(first, first + dataset.epoch_size * config.text_length)

        assert np.array_equal(seen, consecutive)
        assert first >= 1000
        assert seen[-1] < 1000 + len(tokens)


def tokens_seen(dataset: NumberedItems, text: slice) -> set[int]:
    """Return the token ids of the texts of all sequences."""
    texts = [item["input_ids"][text].numpy() for item in items(dataset)]
    seen = np.concatenate(texts)
    return set(seen.tolist())


@settings(max_examples=50, deadline=None)
@given(causal_settings(), st.integers(2, 60), st.booleans())
def test_training_sequences_never_overlap_held_out_ones(
    config: SequenceSettings, more: int, shuffled: bool
) -> None:
    length = config.text_length
    held_out = HeldOut.for_text(length * more + more % length, length)
    tokens = numbered_tokens(held_out.tokens)
    trained = Text(tokens, held_out.trained_spans)
    measured = Text(tokens, held_out.spans)
    training = sequences(trained, config, 80, shuffled=True)
    evaluation = sequences(measured, config, 80, shuffled=False)

    text = text_slice(config)
    trained_ids = tokens_seen(training, text)
    held_out_ids = tokens_seen(evaluation, text)
    assert not trained_ids & held_out_ids
    assert len(held_out_ids) == min(80, len(held_out.spans)) * length


@given(causal_settings(), st.integers(0, 120), st.booleans())
def test_positions_are_within_the_span_and_match_token_distances(
    config: SequenceSettings, more: int, shuffled: bool
) -> None:
    dataset = sequences(one_part(config.text_length + more), config, 20, shuffled=shuffled)
    text = text_slice(config)
    after = max(len(config.special_after) - 1, 0)
    is_skipping = config.skips_once and shuffled

    for item in items(dataset):
        assert ("position_ids" in item) == (config.usable_positions > config.length)
        ids = item["input_ids"][text]
        steps = ids.diff()
        assert ids.min() >= 0
        assert ids.min() <= ids.max()
        assert ids.max() < len(dataset.tokens)
        if "position_ids" not in item:
            assert torch.equal(steps, torch.ones(config.text_length - 1, dtype=torch.int64))
            continue

        positions = item["position_ids"]
        assert positions[: text.start].tolist() == list(range(text.start))
        assert (positions.diff() >= 1).all()
        assert positions[-1] < config.usable_positions
        assert torch.equal(positions[text].diff(), steps)
        skips = int((steps != 1).sum())
        assert skips <= int(is_skipping)
        steps_after = positions[text.stop :].diff()
        assert torch.equal(steps_after, torch.ones(after))


def test_skips_are_as_long_as_the_span_and_the_text_allow() -> None:
    def skips(tokens: int) -> Any:
        """Return the positions skipped after each token of 500 sequences, shape (500, 31)."""
        dataset = sequences(one_part(tokens), causal(32, 256, skips_once=True), 500, shuffled=True)
        steps = [np.diff(item["position_ids"]) for item in items(dataset)]
        return np.array(steps) - 1

    found = skips(5000)
    assert found.max() == 256 - 32
    without = (found == 0).all(axis=1)
    assert 0 < without.sum() < 50
    assert found.any(axis=0).all()  # some skip is after every token
    assert skips(40).max() == 8


def test_windows_of_every_other_batch_are_at_random_positions() -> None:
    config = SequenceSettings((101,), (102,), 10, 10, CAUSAL)
    plain = TrainingSequences(one_part(90), config, 12)
    tokenizer = TextTokenizer(None, before=(101,), after=(102,))
    windows = plan_windows(8, 4, 2)
    dataset = MovedWindows(one_part(90), config, 12, windows=windows, tokenizer=tokenizer, batch=3)
    assert len(dataset) == 12
    for number, item in enumerate(items(dataset)):
        whole = plain[number]["input_ids"]
        if number not in {3, 4, 5, 9, 10, 11}:
            assert torch.equal(item["input_ids"], whole)
            assert "position_ids" not in item
            continue
        for row, start in enumerate((0, 4)):
            ids = item["input_ids"][row].tolist()
            assert ids == [101, *whole[1 + start : 5 + start].tolist(), 102]
            first, *positions = item["position_ids"][row].tolist()
            assert first == 0
            assert positions == list(range(positions[0], positions[0] + 5))
            assert 1 <= positions[0] <= 5
        assert torch.equal(item["position_ids"], dataset[number]["position_ids"])


def test_masking_masks_80_percent_and_replaces_10_percent_of_ordinary_tokens() -> None:
    masking = Masking(mask_token=4, vocab_size=40, special=frozenset(range(5)))
    text = np.tile(np.array([5, 2], np.int64), 100_000)
    masked, labels = masking.apply(text, np.random.default_rng(0))
    is_predicted = labels != IGNORE_INDEX
    assert (labels[is_predicted] == 5).all()
    assert (masked[~is_predicted] == text[~is_predicted]).all()
    chosen = masked[is_predicted]
    assert len(chosen) == 15_000
    share_masked = (chosen == 4).mean()
    assert abs(share_masked - 0.8) < 0.01
    assert set(chosen.tolist()) == set(range(4, 40))
    share_replaced = (chosen > 5).mean()
    assert abs(share_replaced - 0.1 * 34 / 35) < 0.01

    # A text of special tokens only has a predicted one too.
    _, labels = masking.apply(text[1:2], np.random.default_rng(0))
    assert labels.tolist() == [2]
