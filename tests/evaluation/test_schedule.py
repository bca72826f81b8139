"""How many texts a budget suffices for."""

import pytest
import torch
from ctxextend.lab.schedule import forward_operations, predict_seconds, schedule_texts
from transformers import GPT2Config, GPT2LMHeadModel

SECONDS = {64: 1.0, 128: 2.0, 256: 4.0, 512: 10.0}


def test_schedule_texts_reads_all_lengths_if_they_fit() -> None:
    found = schedule_texts(SECONDS, minimum=1, maximum=1, budget=17.0)
    assert found == {64: 1, 128: 1, 256: 1, 512: 1}


def test_schedule_texts_keeps_the_ends_and_then_longer_lengths() -> None:
    found = schedule_texts(SECONDS, minimum=1, maximum=1, budget=14.0)
    assert found == {64: 1, 128: 1, 512: 1}


def test_schedule_texts_leaves_out_the_longest_if_it_does_not_fit() -> None:
    found = schedule_texts(SECONDS, minimum=2, maximum=9, budget=20.0)
    assert found.keys() == {64, 128, 256}
    assert sum(found[length] * SECONDS[length] for length in found) <= 20.0
    assert min(found.values()) >= 2


def test_schedule_texts_always_reads_the_shortest() -> None:
    found = schedule_texts(SECONDS, minimum=3, maximum=9, budget=0.5)
    assert found == {64: 3}


def test_schedule_texts_adds_rounds_up_to_the_maximum() -> None:
    found = schedule_texts(SECONDS, minimum=1, maximum=3, budget=999.0)
    assert found == dict.fromkeys(SECONDS, 3)
    # 17 s for one text each; of the next round the longest does not fit, the others do.
    found = schedule_texts(SECONDS, minimum=1, maximum=2, budget=24.0)
    assert found == {64: 2, 128: 2, 256: 2, 512: 1}


def test_predict_seconds_adds_a_constant_to_what_grows() -> None:
    operations = {1: 10.0, 2: 20.0, 4: 40.0}
    assert predict_seconds(operations, {1: 1.5, 2: 2.5}) == {1: 1.5, 2: 2.5, 4: 4.5}
    assert predict_seconds(operations, {1: 1.0}) == {1: 1.0, 2: 2.0, 4: 4.0}
    # A second text that is faster tells nothing about what grows.
    assert predict_seconds(operations, {1: 3.0, 2: 2.0})[4] == pytest.approx(4.0)


def test_forward_operations_counts_parameters_and_pairs() -> None:
    config = GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=32, n_positions=16)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    parameters = model.num_parameters(exclude_embeddings=True)
    assert forward_operations(model, 4) == 4 * parameters + 2 * 8 * 16
