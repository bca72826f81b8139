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


def opened(make_pico: Make, name: str) -> tuple[EvalModel, EvalModel]:
    """A base that reads 16 tokens, and what was made of it, which reads 32."""
    folder = add_tokenizer(make_pico(name).folder, is_framed=name == "bert")
    longer = resize(folder, to=32, method="linear", output=folder.parent / "longer").output
    model, base = (open_eval_model(CheckpointRef(str(path))) for path in (longer, folder))
    return model, base


def measured(
    model: EvalModel, base: EvalModel | None, lengths: tuple[int, ...], *texts: Any, seed: int = 0
) -> LossTask:
    task = plan_losses(open_scorer(model), open_scorer(base) if base else None, texts, lengths, seed)
    told: list[int] = []
    task.measure(told.append)
    assert sum(told) == task.tokens + task.base_tokens
    return task


def losses_of(task: LossTask, measure: str, window: int = 0) -> dict[tuple[str, int], Any]:
    """The losses of a window's tokens, by how it was read and with which context."""
    return {way: losses[window] for way, losses in task.losses(measure).items()}


def loss(reader: EvalModel, ids: list[int], place: int, label: int) -> float:
    with torch.no_grad():
        logits = reader.model(input_ids=torch.tensor([ids])).logits[0, place]
    return float(-logits.log_softmax(-1)[label])


def test_losses_of_a_causal_model_are_those_of_each_token_after_what_its_piece_has_read(make_pico: Make) -> None:
    model, base = opened(make_pico, "gpt2")
    task, tokens = measured(model, base, (8, 16, 32), TEXT), range(1, 32)
    assert task.targets(0)["position"].tolist() == list(tokens)
    # Which token each piece starts at, of the pieces that score tokens 1 to 31.
    by_position = {
        (MODEL, 32): [0] * 31,
        (TRUNCATED, 16): [(token - 1) // 15 * 15 for token in tokens],  # they score 15: the first is only read
        (SLIDING, 16): [max((token - 1) // 7 * 7 + 8 - 16, 0) for token in tokens],  # they score 7, up to their end
    }
    # And of those that score the last four tokens: pieces of 8 score one each, pieces of 16 three.
    starts = {8: [21, 22, 23, 24], 16: [15, 15, 15, 18], 32: [0] * 4}
    ways = ((MODEL, 8), (MODEL, 16), (MODEL, 32), (SLIDING, 8), (SLIDING, 16))
    by_context = {way: starts[way[1]] for way in ways}
    for measure, first, expected in (("position", 1, by_position), ("context", 28, by_context)):
        found = losses_of(task, measure)
        assert set(found) == set(expected)
        for way, begin in expected.items():
            reader = model if way[0] == MODEL else base
            pairs = zip(begin, range(first, 32), strict=True)
            alone = [loss(reader, TEXT[start:token].tolist(), -1, int(TEXT[token])) for start, token in pairs]
            np.testing.assert_allclose(found[way], alone, rtol=0, atol=1e-5, err_msg=f"{measure} {way}")


def test_losses_of_a_masked_model_are_of_the_same_tokens_however_the_text_is_read(make_pico: Make) -> None:
    model, base = opened(make_pico, "bert")
    text = TEXT[:30]
    task = measured(model, base, (16, 32), text)
    # What the piece around a target begins with; the last one begins where a whole piece still fits.
    pieces = {14: 0, 28: 14, 30: 16}
    by_position: dict[tuple[str, int], Callable[[int], int]] = {
        (MODEL, 32): lambda target: 0,
        (TRUNCATED, 16): lambda target: next(start for end, start in pieces.items() if target < end),
    }
    # The one target that all contexts share stands in the middle.
    by_context: dict[tuple[str, int], Callable[[int], int]] = {
        (MODEL, 32): lambda target: 0,
        (MODEL, 16): lambda target: 8,
        (SLIDING, 16): lambda target: 8,
    }
    for measure, count, ways in (("position", round(0.15 * 30), by_position), ("context", 1, by_context)):
        targets = task.targets(0)[measure]
        assert len(targets) == count
        inputs = text.copy()
        inputs[targets] = MASK
        for way, start_of in ways.items():
            reader, size = model if way[0] == MODEL else base, way[1] - 2
            for target, value in zip(targets, losses_of(task, measure)[way], strict=True):
                start = start_of(target)
                ids = [CLS, *inputs[start : start + size].tolist(), SEP]
                assert value == pytest.approx(loss(reader, ids, target - start + 1, int(text[target])), abs=1e-5)


def test_masks_are_drawn_by_seed_and_window(make_pico: Make) -> None:
    model, _ = opened(make_pico, "bert")
    one, same, other = (measured(model, None, (32,), *[TEXT[:30]] * 2, seed=seed) for seed in (0, 0, 1))
    drawn = [task.targets(i)["position"].tolist() for task, i in ((one, 0), (same, 0), (one, 1), (other, 0))]
    assert drawn[0] == drawn[1]
    assert drawn[0] not in drawn[2:]


def test_loss_task_report_pairs_losses_by_token(make_pico: Make) -> None:
    model, base = opened(make_pico, "gpt2")
    task = measured(model, base, (8, 16, 32), *(np.roll(TEXT, number) for number in range(3)))
    positions, contexts = task.report().values()
    windows = [losses_of(task, "position", i) for i in range(3)]
    for way in (TRUNCATED, SLIDING):
        differences = np.array([window[MODEL, 32].mean() - window[way, 16].mean() for window in windows])
        assert positions.changes[way].mean == pytest.approx(differences.mean())
        assert positions.changes[way].error == pytest.approx(differences.std(ddof=1) / np.sqrt(3))
    assert sum(bucket.losses[MODEL].tokens for bucket in positions.buckets) == 3 * 31
    assert [(bucket.start, bucket.stop) for bucket in positions.buckets] == [(i, i + 2) for i in range(0, 32, 2)]
    windows = [losses_of(task, "context", i) for i in range(3)]
    assert contexts.reference == 16
    assert [point.context for point in contexts.points] == [8, 16, 32]
    assert contexts.points[1].change.mean == 0
    last = contexts.points[-1]
    expected = np.mean([window[MODEL, 32].mean() - window[SLIDING, 16].mean() for window in windows])
    assert last.original is None
    assert last.against_original.mean == pytest.approx(expected)
