from collections.abc import Iterator

import pytest
import torch
from transformers.activations import ACT2FN, NewGELUActivation

from ctxextend.training import modes
from ctxextend.training.modes import spare_activations

# Those that transformers writes as several steps.
OF_STEPS = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_10", "quick_gelu", "relu2")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "PIECE", 64)


def spared(part: torch.nn.Module) -> torch.nn.Module:
    spare_activations(torch.nn.Sequential(part))
    return part


def answers(part: torch.nn.Module, values: torch.Tensor, dtype: torch.dtype | None) -> Iterator[torch.Tensor]:
    given = values.clone().requires_grad_()
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        found = part(given)
    yield found.detach()
    yield torch.autograd.grad(found, given, torch.linspace(-1, 1, found.numel()).view_as(found).to(found.dtype))[0]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("name", OF_STEPS)
def test_spare_activations_changes_no_value(name: str, dtype: torch.dtype | None) -> None:
    values = torch.randn(3, 5, 32, generator=torch.manual_seed(0))
    values = values.transpose(0, 1)  # whole pieces and a rest, and not in one row
    for mine, theirs in zip(
        answers(spared(ACT2FN[name]), values, dtype), answers(ACT2FN[name], values, dtype), strict=True
    ):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        # The rest of a row that is cut elsewhere may be rounded elsewhere.
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OF_STEPS)
def test_spare_activations_keeps_what_is_given_alone(name: str) -> None:
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    given = torch.ones(1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        spared(ACT2FN[name])(given)
    assert [tensor.data_ptr() for tensor in kept] == [given.data_ptr()]


@pytest.mark.parametrize("name", ["gelu", "gelu_pytorch_tanh", "relu", "silu", "xielu"])
def test_spare_activations_leaves_others_as_they_are(name: str) -> None:
    assert "forward" not in vars(spared(ACT2FN[name]))


def test_spare_activations_twice_is_as_once() -> None:
    part = spared(NewGELUActivation())
    once = part.forward
    assert spared(part).forward is once
