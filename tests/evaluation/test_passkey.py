"""Passkey retrieval with mock models, and the texts that it builds."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from ctxextend.errors import DataError
from ctxextend.evaluation.embedding import open_embedder
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
    causal, masked = (
        open_eval_model(CheckpointRef(str(source)), "fp32") for source in ("tiny-gpt2", folder)
    )
    return {"causal": causal, "masked": masked, "encoder": minilm}


def plan(model: EvalModel, *lengths: int, **settings: Any) -> PasskeyTask:
    """Return a passkey task, without the checks of `open_scorer`, which a mock model fails."""
    evaluator = open_embedder(model) if model.kind == ENCODER else Scorer(model, None, False)
    return plan_passkey(evaluator, model.tokenizer.encode(TEXT * 9), lengths, **settings)


def report(task: PasskeyTask) -> Passkey:
    read: list[int] = []
    task.measure(read.append)
    assert sum(read) == task.tokens
    found: Passkey = task.report()["passkey"]
    return found


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_window_has_given_length_and_number_at_given_depth(
    name: str, models: dict[str, EvalModel]
) -> None:
    tokenizer = models[name].tokenizer
    task = plan(models[name], 100)
    numbers = [tokenizer.tokenizer.decode([token]).strip() for token in task.prompts.numbers]
    assert len({*numbers}) == PASSKEYS
    assert all(text.isdecimal() and (name == "causal" or len(text) == 3) for text in numbers)
    for trial, depth in enumerate(DEPTHS):
        window, answer = task.window(100, depth, trial), task.answer(100, depth, trial)
        ids = list(window.input_ids)
        hidden = task.prompts.numbers[answer]
        text = tokenizer.tokenizer.decode(ids)
        assert len(ids) == 100
        assert [ids.count(token) for token in task.prompts.numbers] == [
            int(token == hidden) for token in task.prompts.numbers
        ]
        assert f"pass key is {numbers[answer]}. remember it." in text.lower().replace(
            " .", "."
        ).replace('"', "")
        before, after = len(tokenizer.before), len(tokenizer.after)
        assert tuple(ids[:before]) == tokenizer.before
        end = (
            len(task.prompts.question) + after
            if name == "masked"
            else list(task.prompts.question).index(-1)
        )
        start = before + round(depth * (100 - before - len(task.prompts.sentence) - end))
        assert ids.index(hidden) == start + list(task.prompts.sentence).index(-1)
        output = int(window.outputs[0])
        assert window.outputs.tolist() == [output] * PASSKEYS
        assert window.labels.tolist() == task.prompts.numbers.tolist()
        if name == "masked":
            assert ids[output] == tokenizer.tokenizer.mask_token_id
            assert tuple(ids[-after:]) == tokenizer.after
        else:
            assert output == 99
            assert text.endswith('What is the pass key? The pass key is "')


class CharacterTokenizer:
    """A tokenizer with one token per character."""

    unk_token_id = None

    def __call__(self, text: str, **flags: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}


def test_plan_passkey_uses_digits_with_character_tokenizer(models: dict[str, EvalModel]) -> None:
    task = plan(replace(models["causal"], tokenizer=TextTokenizer(CharacterTokenizer())), 300)
    assert sorted(task.prompts.numbers) == [ord(digit) for digit in "0123456789"]


def counting_model(
    model: EvalModel, tokens: slice = slice(None), value: float | None = None
) -> EvalModel:
    """Return a mock model that scores tokens by their counts in a slice, or all with `value`."""
    vocab_size = len(model.tokenizer.tokenizer)

    def answer(ids: torch.Tensor) -> torch.Tensor:
        found = counts(ids[:, tokens], vocab_size)
        found = found if value is None else torch.full_like(found, value)
        return found if model.kind == ENCODER else found.expand(-1, ids.shape[1], -1)

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
    found = report(plan(counting_model(models[name], **visible), length))
    assert found.accuracy == (expected,)
    assert (found.scoring, found.chance) == ("retrieval" if name == "encoder" else "loss rank", 0.1)


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
    assert task.notes[0].startswith("Passkey retrieval was skipped at 10, 16 tokens")
    with pytest.raises(DataError, match="needs texts of"):
        plan(models["causal"], 10)


def test_numbers_and_windows_depend_on_seed(models: dict[str, EvalModel]) -> None:
    one, same, other = (plan(models["masked"], 100, seed=seed) for seed in (1, 1, 2))
    assert (
        one.prompts.numbers.tolist()
        == same.prompts.numbers.tolist()
        != other.prompts.numbers.tolist()
    )
    windows = [task.window(100, 0.5, 3).input_ids.tolist() for task in (one, same, other)]
    assert windows[0] == windows[1] != windows[2]
    for depth in DEPTHS:
        assert sorted(one.answer(100, depth, trial) for trial in range(PASSKEYS)) == list(
            range(PASSKEYS)
        )
    # Depths hide different numbers first, so that a favourite number does not fill a column.
    assert len({one.answer(100, depth, 0) for depth in DEPTHS}) == len(DEPTHS)
