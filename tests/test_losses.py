"""Losses of windows against losses computed token by token, each from a forward pass of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ctxextend.evaluation.eval_model import EvalModel, open_eval_model
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, TRUNCATED
from ctxextend.evaluation.losses import LossTask, plan_losses
from ctxextend.evaluation.scoring import open_scorer
from ctxextend.plan.plan import resize
from ctxextend.recipe import CheckpointRef
from tests.pico import Pico
from tests.words import add_tokenizer

Make = Callable[..., Pico]
TEXT = np.random.default_rng(3).integers(5, 32, 32)
CLS, SEP, MASK = 2, 3, 4


def opened(make_pico: Make, name: str, is_framed: bool) -> tuple[EvalModel, EvalModel]:
    """An original that reads 16 tokens, and what was made of it, which reads 32."""
    folder = add_tokenizer(make_pico(name).folder, is_framed=is_framed)
    longer = resize(folder, to=32, method="linear", output=folder.parent / "longer").output
    model, original = (open_eval_model(CheckpointRef(str(path))) for path in (longer, folder))
    return model, original


def measured(
    model: EvalModel, original: EvalModel | None, lengths: tuple[int, ...], *texts: Any, seed: int = 0
) -> LossTask:
    task = plan_losses(open_scorer(model), open_scorer(original) if original else None, texts, lengths, seed)
    told: list[int] = []
    task.measure(told.append)
    assert sum(told) == task.tokens + task.base_tokens
    return task


def by_position(task: LossTask, number: int = 0) -> dict[str, Any]:
    return {name: losses[number] for (name, _), losses in task.losses("position").items()}


def by_context(task: LossTask, number: int = 0) -> dict[tuple[str, int], Any]:
    return {key: losses[number] for key, losses in task.losses("context").items()}


def loss(reader: EvalModel, ids: list[int], place: int, label: int) -> float:
    with torch.no_grad():
        logits = reader.model(input_ids=torch.tensor([ids])).logits[0, place]
    return float(-logits.log_softmax(-1)[label])


def causal(reader: EvalModel, start: int, token: int) -> float:
    """The loss of a token by the tokens from `start` up to it."""
    return loss(reader, TEXT[start:token].tolist(), -1, int(TEXT[token]))


def test_loss_measure_reads_a_causal_text_whole_in_pieces_and_in_overlapping_pieces(make_pico: Make) -> None:
    model, original = opened(make_pico, "gpt2", is_framed=False)
    task, tokens = measured(model, original, (8, 16, 32), TEXT), range(1, 32)
    assert task.targets(0)["position"].tolist() == list(tokens)
    starts = {
        MODEL: [0] * 31,
        # Pieces of 16 that score 15: the first of a piece is only read.
        TRUNCATED: [(token - 1) // 15 * 15 for token in tokens],
        # Pieces of 16 that score 7: they end behind the seventh.
        SLIDING: [max((token - 1) // 7 * 7 + 8 - 16, 0) for token in tokens],
    }
    for name, begin in starts.items():
        reader = model if name == MODEL else original
        expected = [causal(reader, start, token) for start, token in zip(begin, tokens, strict=True)]
        np.testing.assert_allclose(by_position(task)[name], expected, rtol=0, atol=1e-5, err_msg=name)


def test_loss_measure_reads_the_same_causal_tokens_with_every_context(make_pico: Make) -> None:
    model, original = opened(make_pico, "gpt2", is_framed=False)
    found = by_context(measured(model, original, (8, 16, 32), TEXT))
    # Of the last four tokens: pieces of 8 score one each, pieces of 16 three, and the whole all four.
    starts = {8: [21, 22, 23, 24], 16: [15, 15, 15, 18], 32: [0] * 4}
    assert set(found) == {(MODEL, 8), (MODEL, 16), (MODEL, 32), (SLIDING, 8), (SLIDING, 16)}
    for (name, context), losses in found.items():
        reader = model if name == MODEL else original
        begin = starts[context]
        expected = [causal(reader, start, token) for start, token in zip(begin, range(28, 32), strict=True)]
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5, err_msg=f"{name} {context}")


def test_loss_measure_masks_the_same_tokens_however_the_text_is_read(make_pico: Make) -> None:
    model, original = opened(make_pico, "bert", is_framed=True)
    text = TEXT[:30]
    task = measured(model, original, (16, 32), text)
    found, targets = by_position(task), task.targets(0)["position"]
    assert len(targets) == round(0.15 * 30)
    inputs = text.copy()
    inputs[targets] = MASK
    whole = [CLS, *inputs.tolist(), SEP]
    expected = [loss(model, whole, target + 1, int(text[target])) for target in targets]
    np.testing.assert_allclose(found[MODEL], expected, rtol=0, atol=1e-5)
    pieces = [(0, 14), (14, 28), (16, 30)]  # the last begins where a whole piece still fits
    bounds = [(0, 14), (14, 28), (28, 30)]
    for target, value in zip(targets, found[TRUNCATED], strict=True):
        start, stop = pieces[next(i for i, (first, last) in enumerate(bounds) if first <= target < last)]
        ids = [CLS, *inputs[start:stop].tolist(), SEP]
        assert value == pytest.approx(loss(original, ids, target - start + 1, int(text[target])), abs=1e-5)


def test_loss_measure_centres_masked_tokens_in_every_context(make_pico: Make) -> None:
    model, original = opened(make_pico, "bert", is_framed=True)
    text = TEXT[:30]
    task = measured(model, original, (16, 32), text)
    (token,) = task.targets(0)["context"]
    inputs = text.copy()
    inputs[token] = MASK
    read = {(MODEL, 32): (model, 0, 30), (MODEL, 16): (model, 8, 22), (SLIDING, 16): (original, 8, 22)}
    for key, (reader, start, stop) in read.items():
        ids = [CLS, *inputs[start:stop].tolist(), SEP]
        expected = loss(reader, ids, token - start + 1, int(text[token]))
        assert by_context(task)[key] == pytest.approx([expected], abs=1e-5)


def test_loss_measure_draws_masks_by_seed_and_window(make_pico: Make) -> None:
    model, _ = opened(make_pico, "bert", is_framed=True)
    one, same, other = (measured(model, None, (32,), *[TEXT[:30]] * 2, seed=seed) for seed in (0, 0, 1))
    drawn = [task.targets(i)["position"].tolist() for task, i in ((one, 0), (same, 0), (one, 1), (other, 0))]
    assert drawn[0] == drawn[1]
    assert drawn[0] not in drawn[2:]


def test_loss_measure_states_the_tokens_that_models_read_and_reads_the_base_once(make_pico: Make) -> None:
    model, original = opened(make_pico, "gpt2", is_framed=False)
    task = plan_losses(open_scorer(model), open_scorer(original), [TEXT, TEXT[::-1]], (8, 16, 32), 0)
    read: list[int] = []
    for reader in (model, original):
        reader.model.transformer.wte.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0].numel()))
    task.read_base(lambda tokens: None)
    assert sum(read) == task.base_tokens
    for again in (1, 2):
        task.measure(lambda tokens: None)
        assert sum(read) == task.base_tokens + again * task.tokens
    assert task.report() == measured(model, original, (8, 16, 32), TEXT, TEXT[::-1]).report()


def test_sum_up_pairs_losses_by_token(make_pico: Make) -> None:
    model, original = opened(make_pico, "gpt2", is_framed=False)
    task = measured(model, original, (8, 16, 32), *(np.roll(TEXT, number) for number in range(3)))
    positions, contexts = task.report().values()
    for name in (TRUNCATED, SLIDING):
        differences = np.array([w[MODEL].mean() - w[name].mean() for w in (by_position(task, i) for i in range(3))])
        assert positions.changes[name].mean == pytest.approx(differences.mean())
        assert positions.changes[name].error == pytest.approx(differences.std(ddof=1) / np.sqrt(3))
    assert sum(bucket.losses[MODEL].tokens for bucket in positions.buckets) == 3 * 31
    assert [(bucket.start, bucket.stop) for bucket in positions.buckets] == [(i, i + 2) for i in range(0, 32, 2)]
    assert contexts.reference == 16
    assert [point.context for point in contexts.points] == [8, 16, 32]
    assert contexts.points[1].change.mean == 0
    expected = np.mean([w[MODEL, 32].mean() - w[SLIDING, 16].mean() for w in (by_context(task, i) for i in range(3))])
    last = contexts.points[-1]
    assert last.original is None
    assert last.against_original is not None
    assert last.against_original.mean == pytest.approx(expected)
