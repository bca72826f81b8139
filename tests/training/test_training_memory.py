from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ctxextend.training import memory
from ctxextend.training.memory import chunked_loss
from ctxextend.training.train_data import IGNORE_INDEX

VOCAB_SIZE, WIDTH = 7, 3
BFLOAT = torch.bfloat16


@pytest.fixture(autouse=True)
def _two_states_per_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CHUNK_LOGITS", 2 * VOCAB_SIZE)


def make_inputs(
    dtype: torch.dtype = torch.float32, *, bias: bool = True, frozen: bool = False
) -> tuple[Any, Any, Any]:
    """Return an LM head, states of two texts of five tokens, and labels, three of them ignored."""
    torch.manual_seed(0)
    head = torch.nn.Linear(WIDTH, VOCAB_SIZE, bias=bias, dtype=dtype)
    head.requires_grad_(not frozen)
    states = torch.randn(2, 5, WIDTH).to(dtype)
    states.requires_grad_()
    labels = torch.tensor([[6, 0, IGNORE_INDEX, 3, 3], [IGNORE_INDEX, 2, 1, IGNORE_INDEX, 5]])
    return head, states, labels


def plain_loss(head: Any, states: Any, labels: Any) -> torch.Tensor:
    logits = head(states).float().flatten(0, 1)
    return cross_entropy(logits, labels.flatten())


def gradients(loss: torch.Tensor, *inputs: Any) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss * 3, inputs))


@pytest.mark.parametrize(
    ("is_fused", "bias", "frozen"),
    [(True, True, False), (True, False, True), (False, True, False), (False, False, True)],
)
def test_chunked_loss_and_its_gradients_equal_plain_cross_entropy(
    is_fused: bool, bias: bool, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_fused:
        monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions", raising=False)
    head, states, labels = make_inputs(bias=bias, frozen=frozen)
    inputs = [states]
    if not frozen:
        inputs += head.parameters()

    found = chunked_loss(head, states, labels)
    expected = plain_loss(head, states, labels)
    torch.testing.assert_close(found, expected)
    found_gradients = gradients(found, *inputs)
    expected_gradients = gradients(expected, *inputs)
    torch.testing.assert_close(found_gradients, expected_gradients)


@pytest.mark.parametrize("autocast", [True, False])
def test_chunked_loss_in_half_precision_is_as_exact_as_plain_cross_entropy(autocast: bool) -> None:
    dtype = torch.float32 if autocast else BFLOAT
    head, states, labels = make_inputs(dtype)
    inputs = [states, *head.parameters()]
    with torch.autocast("cpu", BFLOAT, enabled=autocast):
        found = chunked_loss(head, states, labels)
        expected = plain_loss(head, states, labels)

    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    found_gradients = gradients(found, *inputs)
    expected_gradients = gradients(expected, *inputs)
    for value, gradient, exact in zip(inputs, found_gradients, expected_gradients, strict=True):
        assert gradient.dtype == value.dtype
        error = gradient - exact
        assert error.norm() < 0.01 * exact.norm()


def test_chunked_loss_computes_logits_in_chunks() -> None:
    head, states, labels = make_inputs(BFLOAT)
    sizes: list[int] = []
    head.register_forward_hook(lambda module, inputs, logits: sizes.append(len(logits)))
    chunked_loss(head, states, labels)
    assert sizes == [2, 2, 2, 1]  # ignored labels need none
