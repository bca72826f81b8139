"""The pass key: planted models find it where they see it, and texts are what they say."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import open_embedder
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, TextTokenizer, open_eval_model
from ctxextend.evaluation.evaluation_result import Passkey
from ctxextend.evaluation.losses import Scorer
from ctxextend.evaluation.passkey import DEPTHS, NUMBERS, PasskeyTask, plan_passkey
from ctxextend.recipe import CheckpointRef
from tests import pico
from tests.planted import counts, plant

TEXT = "The lobster lives in the sea, and is seldom seen by day. It sleeps under stones. "


@pytest.fixture(scope="module")
def readers(minilm: EvalModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, EvalModel]:
    """A model of each kind."""
    folder, tokenizer = tmp_path_factory.mktemp("masked"), minilm.tokenizer.tokenizer
    pico.make(folder, "bert", max_position_embeddings=128, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(folder)
    causal, masked = (open_eval_model(CheckpointRef(str(source)), "fp32") for source in ("tiny-gpt2", folder))
    return {"causal": causal, "masked": masked, "encoder": minilm}


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


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_window_is_as_long_as_it_says_with_the_number_where_it_says(name: str, readers: dict[str, EvalModel]) -> None:
    tokenizer, task = readers[name].tokenizer, plan(readers[name], 100)
    numbers = [tokenizer.tokenizer.decode([token]).strip() for token in task.numbers]
    assert len({*numbers}) == NUMBERS
    assert all(text.isdecimal() and (name == "causal" or len(text) == 3) for text in numbers)
    for trial, depth in enumerate(DEPTHS):
        window, answer = task.window(100, depth, trial), task.answer(100, depth, trial)
        ids, hidden = list(window.input_ids), task.numbers[answer]
        text = tokenizer.tokenizer.decode(ids)
        assert len(ids) == 100
        assert [ids.count(token) for token in task.numbers] == [int(token == hidden) for token in task.numbers]
        assert f"pass key is {numbers[answer]}. remember it." in text.lower().replace(" .", ".").replace('"', "")
        before, after = len(tokenizer.before), len(tokenizer.after)
        assert tuple(ids[:before]) == tokenizer.before
        asked = len(task.question) + after if name == "masked" else list(task.question).index(-1)
        start = before + round(depth * (100 - before - len(task.sentence) - asked))
        assert ids.index(hidden) == start + list(task.sentence).index(-1)
        place = int(window.places[0])
        assert window.places.tolist() == [place] * NUMBERS
        assert window.labels.tolist() == task.numbers.tolist()
        if name == "masked":
            assert ids[place] == tokenizer.tokenizer.mask_token_id
            assert tuple(ids[-after:]) == tokenizer.after
        else:
            assert place == 99
            assert text.endswith('What is the pass key? The pass key is "')


class Letters:
    """A tokenizer that has a token for each character."""

    unk_token_id = None

    def __call__(self, text: str, **flags: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}


def test_numbers_of_a_tokenizer_of_characters_are_the_ten_digits(readers: dict[str, EvalModel]) -> None:
    task = plan(replace(readers["causal"], tokenizer=TextTokenizer(Letters())), 300)
    assert sorted(task.numbers) == [ord(digit) for digit in "0123456789"]


def sees(reader: EvalModel, tokens: slice = slice(None), value: float | None = None) -> EvalModel:
    """A model that finds those words most likely that it sees in its text, or gives all of them one value."""
    words = len(reader.tokenizer.tokenizer)

    def answer(ids: torch.Tensor) -> torch.Tensor:
        found = counts(ids[:, tokens], words)
        found = found if value is None else torch.full_like(found, value)
        return found if reader.kind == ENCODER else found.expand(-1, ids.shape[1], -1)

    return plant(reader, answer)


@pytest.mark.parametrize(
    ("name", "length", "seen", "expected"),
    [
        ("causal", 128, {}, (1, 1, 1, 1, 1)),
        ("masked", 80, {}, (1, 1, 1, 1, 1)),
        ("encoder", 600, {}, (1, 1, 1, 1, 1)),
        ("causal", 128, {"tokens": slice(-60, None)}, (0, 0, 0, 1, 1)),
        ("encoder", 512, {"tokens": slice(200)}, (1, 1, 0, 0, 0)),
        # Those to which all numbers are one find none.
        ("causal", 128, {"value": 0.0}, (0, 0, 0, 0, 0)),
        ("causal", 128, {"value": float("nan")}, (0, 0, 0, 0, 0)),
        ("encoder", 128, {"value": 1.0}, (0, 0, 0, 0, 0)),
    ],
)
def test_a_planted_model_finds_the_number_where_it_sees_it(
    name: str, length: int, seen: dict[str, Any], expected: tuple[float, ...], readers: dict[str, EvalModel]
) -> None:
    found = report(plan(sees(readers[name], **seen), length))
    assert found.found == (expected,)
    assert (found.how, found.chance) == ("retrieval" if name == "encoder" else "loss rank", 0.1)


def test_what_was_not_measured_is_none(readers: dict[str, EvalModel]) -> None:
    def stop(tokens: int) -> None:
        if len(task.cells) == 7:
            raise KeyboardInterrupt

    task = plan(sees(readers["causal"]), 128, 80)
    assert task.report() == {}
    with pytest.raises(KeyboardInterrupt):
        task.measure(stop)
    begun: Passkey = task.report()["passkey"]
    assert begun.lengths == (80, 128)
    assert begun.found == ((1.0,) * 5, (1.0, 1.0, None, None, None))


def test_lengths_without_room_are_left_out_and_named(readers: dict[str, EvalModel]) -> None:
    task = plan(readers["causal"], 10, 128, 16)
    assert task.lengths == (128,)
    assert task.notes[0].startswith("The passkey was not measured at 10, 16 tokens")
    with pytest.raises(DataError, match="needs texts of"):
        plan(readers["causal"], 10)


def test_a_seed_draws_the_same_again_and_another_draws_others(readers: dict[str, EvalModel]) -> None:
    one, same, other = (plan(readers["masked"], 100, seed=seed) for seed in (1, 1, 2))
    assert one.numbers.tolist() == same.numbers.tolist() != other.numbers.tolist()
    windows = [task.window(100, 0.5, 3).input_ids.tolist() for task in (one, same, other)]
    assert windows[0] == windows[1] != windows[2]
    for depth in DEPTHS:
        assert sorted(one.answer(100, depth, trial) for trial in range(NUMBERS)) == list(range(NUMBERS))
    # No column for one favourite.
    assert len({one.answer(100, depth, 0) for depth in DEPTHS}) == len(DEPTHS)
