"""Passkey retrieval with mock models, and the texts that it builds."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import Embedder, open_embedder
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, open_eval_model
from ctxextend.evaluation.evaluation_result import Passkey
from ctxextend.evaluation.passkey import DEPTHS, PASSKEYS, PasskeyTask, plan_passkey
from ctxextend.evaluation.scorer import Scorer
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.recipe import CheckpointRef
from tests.helpers import pico
from tests.helpers.mock_models import counts, mock_model

TEXT = "The lobster lives in the sea, and is seldom seen by day. It sleeps under stones. "


@pytest.fixture(scope="module")
def models(minilm: EvalModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, EvalModel]:
    """Return a model of each kind."""
    folder = tmp_path_factory.mktemp("masked")
    tokenizer = minilm.tokenizer.tokenizer
    pico.make(folder, "bert", max_position_embeddings=128, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(folder)
    causal = open_eval_model(CheckpointRef("tiny-gpt2"), "fp32")
    masked = open_eval_model(CheckpointRef(str(folder)), "fp32")
    return {"causal": causal, "masked": masked, "encoder": minilm}


def plan(model: EvalModel, *lengths: int, **settings: Any) -> PasskeyTask:
    """Return a passkey task, without the checks of `open_scorer`, which a mock model fails."""
    evaluator: Embedder | Scorer = Scorer(model, None, False)
    if model.kind == ENCODER:
        evaluator = open_embedder(model)
    text = model.tokenizer.encode(TEXT * 9)
    return plan_passkey(evaluator, text, lengths, **settings)


def read_numbers(model: EvalModel, task: PasskeyTask) -> list[str]:
    decode = model.tokenizer.tokenizer.decode
    return [decode([token]).strip() for token in task.prompts.numbers]


EACH_LANGUAGE_MODEL = pytest.mark.parametrize("name", ["causal", "masked"])
EACH_DEPTH = pytest.mark.parametrize(("trial", "depth"), [*enumerate(DEPTHS)])


@EACH_LANGUAGE_MODEL
def test_numbers_are_distinct_decimals_of_one_token(
    name: str, models: dict[str, EvalModel]
) -> None:
    model = models[name]
    numbers = read_numbers(model, plan(model, 100))
    assert len(set(numbers)) == PASSKEYS
    for number in numbers:
        assert number.isdecimal()
        if name == "masked":
            assert len(number) == 3


@EACH_LANGUAGE_MODEL
@EACH_DEPTH
def test_window_has_given_length_and_hides_one_number(
    name: str, trial: int, depth: float, models: dict[str, EvalModel]
) -> None:
    model = models[name]
    task = plan(model, 100)
    window = task.window(100, depth, trial)
    answer = task.answer(100, depth, trial)

    ids = list(window.input_ids)
    assert len(ids) == 100
    hidden = task.prompts.numbers[answer]
    for token in task.prompts.numbers:
        assert ids.count(token) == int(token == hidden)
    text = model.tokenizer.tokenizer.decode(ids).lower()
    sentence = text.replace(" .", ".").replace('"', "")
    assert f"pass key is {read_numbers(model, task)[answer]}. remember it." in sentence


@EACH_LANGUAGE_MODEL
@EACH_DEPTH
def test_window_hides_the_number_at_the_given_depth(
    name: str, trial: int, depth: float, models: dict[str, EvalModel]
) -> None:
    tokenizer = models[name].tokenizer
    task = plan(models[name], 100)
    ids = list(task.window(100, depth, trial).input_ids)
    hidden = task.prompts.numbers[task.answer(100, depth, trial)]
    sentence = list(task.prompts.sentence)
    question = list(task.prompts.question)

    before = len(tokenizer.before)
    assert tuple(ids[:before]) == tokenizer.before
    end = question.index(-1)
    if name == "masked":
        end = len(question) + len(tokenizer.after)
    start = before + round(depth * (100 - before - len(sentence) - end))
    assert ids.index(hidden) == start + sentence.index(-1)


@EACH_LANGUAGE_MODEL
@EACH_DEPTH
def test_window_scores_all_numbers_at_its_end(
    name: str, trial: int, depth: float, models: dict[str, EvalModel]
) -> None:
    tokenizer = models[name].tokenizer
    task = plan(models[name], 100)
    window = task.window(100, depth, trial)

    ids = list(window.input_ids)
    output = int(window.outputs[0])
    assert window.outputs.tolist() == [output] * PASSKEYS
    assert window.labels.tolist() == task.prompts.numbers.tolist()
    if name == "masked":
        after = len(tokenizer.after)
        assert ids[output] == tokenizer.tokenizer.mask_token_id
        assert tuple(ids[-after:]) == tokenizer.after
    else:
        assert output == 99
        text = tokenizer.tokenizer.decode(ids)
        assert text.endswith('What is the pass key? The pass key is "')


def report(task: PasskeyTask) -> Passkey:
    read: list[int] = []
    task.measure(read.append)
    assert sum(read) == task.tokens
    found: Passkey = task.report()["passkey"]
    return found


class CharacterTokenizer:
    """A tokenizer with one token per character."""

    unk_token_id = None

    def __call__(self, text: str, **flags: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}


def test_plan_passkey_uses_digits_with_character_tokenizer(models: dict[str, EvalModel]) -> None:
    tokenizer = TextTokenizer(CharacterTokenizer())
    task = plan(replace(models["causal"], tokenizer=tokenizer), 300)
    digits = [ord(digit) for digit in "0123456789"]
    assert sorted(task.prompts.numbers) == digits


def counting_model(
    model: EvalModel, tokens: slice = slice(None), value: float | None = None
) -> EvalModel:
    """Return a mock model that scores tokens by their counts in a slice, or all with `value`."""
    vocab_size = len(model.tokenizer.tokenizer)

    def answer(ids: torch.Tensor) -> torch.Tensor:
        scores = counts(ids[:, tokens], vocab_size)
        if value is not None:
            scores = torch.full_like(scores, value)
        if model.kind == ENCODER:
            return scores
        return scores.expand(-1, ids.shape[1], -1)

    return mock_model(model, answer)


@pytest.mark.parametrize(
    ("name", "length", "visible", "expected"),
    [
        ("causal", 128, {}, (1, 1, 1, 1, 1)),
        ("masked", 80, {}, (1, 1, 1, 1, 1)),
        ("encoder", 600, {}, (1, 1, 1, 1, 1)),
        ("causal", 128, {"tokens": slice(-60, None)}, (0, 0, 0, 1, 1)),
        ("encoder", 512, {"tokens": slice(200)}, (1, 1, 0, 0, 0)),
        # A model that scores all numbers alike retrieves none.
        ("causal", 128, {"value": 0.0}, (0, 0, 0, 0, 0)),
        ("causal", 128, {"value": float("nan")}, (0, 0, 0, 0, 0)),
        ("encoder", 128, {"value": 1.0}, (0, 0, 0, 0, 0)),
    ],
)
def test_mock_model_retrieves_number_inside_its_slice(
    name: str,
    length: int,
    visible: dict[str, Any],
    expected: tuple[float, ...],
    models: dict[str, EvalModel],
) -> None:
    model = counting_model(models[name], **visible)
    found = report(plan(model, length))
    assert found.accuracy == (expected,)
    assert found.chance == 0.1
    if name == "encoder":
        assert found.scoring == "retrieval"
    else:
        assert found.scoring == "loss rank"


def test_report_has_none_for_cells_not_measured(models: dict[str, EvalModel]) -> None:
    def stop(tokens: int) -> None:
        if len(task.cells) == 7:
            raise KeyboardInterrupt

    task = plan(counting_model(models["causal"]), 128, 80)
    assert task.report() == {}
    with pytest.raises(KeyboardInterrupt):
        task.measure(stop)
    partial: Passkey = task.report()["passkey"]
    assert partial.lengths == (80, 128)
    assert partial.accuracy == ((1.0,) * 5, (1.0, 1.0, None, None, None))


def test_plan_passkey_skips_short_lengths_with_a_note(models: dict[str, EvalModel]) -> None:
    task = plan(models["causal"], 10, 128, 16)
    assert task.lengths == (128,)
    note = task.notes[0]
    assert note.startswith("Passkey retrieval was skipped at 10, 16 tokens")
    with pytest.raises(DataError, match="needs texts of"):
        plan(models["causal"], 10)


def test_numbers_and_windows_depend_on_seed(models: dict[str, EvalModel]) -> None:
    task = plan(models["masked"], 100, seed=1)
    same = plan(models["masked"], 100, seed=1)
    other = plan(models["masked"], 100, seed=2)

    numbers = task.prompts.numbers.tolist()
    assert same.prompts.numbers.tolist() == numbers
    assert other.prompts.numbers.tolist() != numbers
    window = task.window(100, 0.5, 3).input_ids.tolist()
    assert same.window(100, 0.5, 3).input_ids.tolist() == window
    assert other.window(100, 0.5, 3).input_ids.tolist() != window


def test_each_depth_hides_every_number_once(models: dict[str, EvalModel]) -> None:
    task = plan(models["masked"], 100, seed=1)
    for depth in DEPTHS:
        answers = [task.answer(100, depth, trial) for trial in range(PASSKEYS)]
        assert sorted(answers) == list(range(PASSKEYS))


def test_depths_hide_different_numbers_first(models: dict[str, EvalModel]) -> None:
    """A favourite number of a model does not fill a column."""
    task = plan(models["masked"], 100, seed=1)
    first = {task.answer(100, depth, 0) for depth in DEPTHS}
    assert len(first) == len(DEPTHS)
