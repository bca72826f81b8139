"""Held-out losses at the positions that the base checkpoint has, and at the others."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ctxextend import resize
from ctxextend.training.objectives import LanguageModeling
from ctxextend.training.train_data import IGNORE_INDEX
from tests.helpers.random_models import make_model, text
from tests.helpers.trainings import NEW, OLD, log_of, make_resized
from tests.helpers.trainings import train as train_cli

pytestmark = pytest.mark.usefixtures("book")


def train(source: object, output: str, *flags: object) -> Any:
    """Train for two steps, and return the JSON with stderr."""
    done = train_cli(source, output, "--json", *flags, steps=2)
    return json.loads(done.stdout) | {"stderr": done.stderr}


def test_train_logs_prints_and_returns_losses_at_short_and_long_positions(gpt2: Path) -> None:
    result = train(gpt2, "out", "--eval-every", 1)
    lines = [line for line in log_of(Path("out")) if "eval_loss" in line]
    steps = [line["step"] for line in lines]
    assert steps == [0, 1, 2]
    for line in lines:  # of 31 predicted tokens, those at positions 1 to 15 are short
        mean = (15 * line["eval_loss_short"] + 16 * line["eval_loss_long"]) / 31
        assert line["eval_loss"] == pytest.approx(mean, rel=1e-6)

    assert result["short_positions"] == OLD
    first = lines[0]
    last = lines[-1]
    short = [first["eval_loss_short"], last["eval_loss_short"]]
    long = [first["eval_loss_long"], last["eval_loss_long"]]
    assert result["loss_short"] == short
    assert result["loss_long"] == long
    shown = (
        f"positions below 16: {short[0]:.4f} -> {short[1]:.4f}, from 16 on: {long[0]:.4f} -> "
        f"{long[1]:.4f}\n"
    )
    assert shown in result["stderr"]


@pytest.mark.parametrize("flags", [(), ("--seq-len", OLD, "--base", "good-old")])
def test_train_without_longer_positions_than_the_base_splits_nothing(
    flags: tuple[str, ...],
) -> None:
    resized = make_resized(Path("good"), "gpt2")
    source = resized if flags else "good-old"
    result = train(source, "out", *flags)
    assert result["short_positions"] is None
    assert result["loss_short"] is None
    assert result["loss_long"] is None
    assert "positions below" not in result["stderr"]
    for line in log_of(Path("out")):
        assert "eval_loss_short" not in line


def test_train_splits_at_the_length_of_the_base_in_its_recipe_or_of_the_named_one() -> None:
    first = make_resized(Path("first"), "gpt2", n_layer=1)
    train(first, "second")
    result = train("second", "out")
    assert result["short_positions"] == OLD

    resize(first, to=2 * NEW, output="longer")
    result = train("longer", "named", "--base", "first-old")
    assert result["short_positions"] == OLD


@pytest.mark.parametrize("model_type", ["gpt2", "bert", "esm"])
def test_language_modeling_counts_a_token_at_its_own_position(model_type: str) -> None:
    model = make_model(model_type)
    ids = text(12)
    labels = ids.clone()
    labels[:, ::5] = IGNORE_INDEX
    position_ids = torch.arange(12).repeat(2, 1)
    position_ids[1, 4:] += 7
    objective = LanguageModeling(model, position_ids=True).eval()
    with torch.no_grad():
        whole = objective(ids, labels, position_ids)
        objective.short_positions = 8
        losses, counts = objective(ids, labels, position_ids)["sums"]
        logits = model.model(ids, position_ids=position_ids + objective.position_base).logits

    if model_type == "gpt2":
        logits = logits[:, :-1]
        labels = labels[:, 1:]
        position_ids = position_ids[:, 1:]
    token_losses = cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    is_predicted = labels != IGNORE_INDEX
    is_short = is_predicted & (position_ids < 8)
    is_long = is_predicted & (position_ids >= 8)
    expected_losses = torch.stack([token_losses[is_short].sum(), token_losses[is_long].sum()])
    expected_counts = torch.tensor([float(is_short.sum()), float(is_long.sum())])
    torch.testing.assert_close(losses, expected_losses)
    torch.testing.assert_close(counts, expected_counts)
    torch.testing.assert_close(losses.sum() / counts.sum(), whole["loss"])
