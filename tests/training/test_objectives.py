import pytest
import torch
from torch.nn.functional import cross_entropy

from ctxextend.errors import UnsupportedModelError
from ctxextend.lab.eval_model import CAUSAL, MASKED
from ctxextend.lab.position_ids import position_base
from ctxextend.training.memory import checkpoint_layers, disable_dropout
from ctxextend.training.objectives import LanguageModeling
from ctxextend.training.train_data import IGNORE_INDEX
from tests.helpers.random_models import (
    BASE_2_TYPES,
    CAUSAL_TYPES,
    MASKED_TYPES,
    RESERVED_ROWS,
    make_model,
    text,
)


def loss(objective: LanguageModeling, *inputs: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = objective(*inputs)["loss"]
    return value


def training_mode(objective: LanguageModeling) -> LanguageModeling:
    """Switch to training mode without dropout, with gradient checkpointing if supported."""
    disable_dropout(objective.train())
    is_supported = objective.model.config.model_type != "xlm"
    assert checkpoint_layers(objective.model) == is_supported
    return objective


@pytest.mark.parametrize("model_type", [*CAUSAL_TYPES, *MASKED_TYPES])
def test_language_modeling_loss_equals_that_of_the_model(model_type: str) -> None:
    model = make_model(model_type)
    ids = text()
    labels = ids.clone()
    labels[:, ::3] = IGNORE_INDEX
    mask = torch.ones_like(ids)
    expected = model.model(input_ids=ids, attention_mask=mask, labels=labels).loss

    objective = LanguageModeling(model)
    assert objective.has_separate_head == (model_type not in ("mobilebert", "esm"))
    found = loss(objective, ids, labels)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    base = 2 if model_type in BASE_2_TYPES else 0
    assert position_base(model) == base


@pytest.mark.parametrize("model_type", ["gpt2", "bert", "esm"])
def test_language_modeling_gradients_equal_those_of_the_model_with_gradient_checkpointing(
    model_type: str,
) -> None:
    model = make_model(model_type)
    ids = text()
    labels = torch.where(ids % 3 > 0, ids, IGNORE_INDEX)
    mask = torch.ones_like(ids)
    parameters = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
    expected_loss = model.model(input_ids=ids, attention_mask=mask, labels=labels).loss
    expected = torch.autograd.grad(expected_loss, parameters, allow_unused=True)

    objective = training_mode(LanguageModeling(model))
    found_loss = loss(objective, ids, labels)
    found = torch.autograd.grad(found_loss, parameters, allow_unused=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_language_modeling_shifts_the_labels_of_a_decoder_that_does_not() -> None:
    model = make_model("blenderbot-small", CAUSAL)
    ids = text()
    with torch.no_grad():
        logits = model.model(input_ids=ids).logits
    predictions = logits[:, :-1].flatten(0, 1)
    labels = ids[:, 1:].flatten()
    expected = cross_entropy(predictions, labels)
    found = loss(LanguageModeling(model), ids, ids)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("model_type", ["blenderbot-small", "trocr", "mra"])
def test_position_base_rejects_models_that_compute_positions_themselves(model_type: str) -> None:
    kind = MASKED if model_type == "mra" else CAUSAL
    model = make_model(model_type, kind)
    message = f"{model_type} models compute positions themselves. Remove --window."
    with pytest.raises(UnsupportedModelError, match=message):
        LanguageModeling(model, position_ids=True)
    assert LanguageModeling(model).position_base == 0


@pytest.mark.parametrize("model_type", ["gpt2", "opt", "roberta"])
def test_language_modeling_trains_the_rows_of_its_position_ids(model_type: str) -> None:
    model = make_model(model_type)
    ids = text(8, 1)
    objective = LanguageModeling(model, position_ids=True)
    positions = [*range(3, 7), *range(40, 44)]
    loss(objective, ids, ids, torch.tensor([positions])).backward()  # type: ignore[no-untyped-call]

    parameters = model.model.named_parameters()
    (table,) = [value for name, value in parameters if "wpe" in name or "position" in name]
    rows = table.grad.any(1).nonzero().flatten()
    trained = rows - RESERVED_ROWS.get(model_type, 0)
    if model.kind == CAUSAL:  # the last token predicts nothing
        positions.remove(43)
    assert trained.tolist() == positions
