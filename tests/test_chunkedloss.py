from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from ctxextend.training import chunkedloss
from ctxextend.training.chunkedloss import IGNORED, ChunkedLoss, chunked_loss

WORDS, WIDTH = 7, 3
BFLOAT = torch.bfloat16


@pytest.fixture(autouse=True)
def _two_states_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunkedloss, "LOGITS_AT_ONCE", 2 * WORDS)


@pytest.fixture(params=["torch's", "ours"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test with the installed torch, and as if it had no such loss."""
    if request.param == "ours":
        monkeypatch.setattr(chunkedloss, "_torch_has_one", lambda: False)
    elif not chunkedloss._torch_has_one():
        pytest.skip("this torch has no such loss")
    yield request.param


def made(dtype: torch.dtype = torch.float32, *, bias: bool = True, frozen: bool = False) -> tuple[Any, Any, Any]:
    """A head, states of two texts of five tokens, and labels of which three are nothing to tell."""
    torch.manual_seed(0)
    head = torch.nn.Linear(WIDTH, WORDS, bias=bias, dtype=dtype).requires_grad_(not frozen)
    states = torch.randn(2, 5, WIDTH).to(dtype).requires_grad_()
    labels = torch.tensor([[6, 0, IGNORED, 3, 3], [IGNORED, 2, 1, IGNORED, 5]])
    return head, states, labels


def plain(head: Any, states: Any, labels: Any) -> torch.Tensor:
    return cross_entropy(head(states).float().flatten(0, 1), labels.flatten())


def gradients(loss: torch.Tensor, *of: Any) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss * 3, of))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_chunked_loss_and_its_gradients_equal_plain_cross_entropy(either: str, bias: bool, frozen: bool) -> None:
    head, states, labels = made(bias=bias, frozen=frozen)
    of = [states, *([] if frozen else head.parameters())]
    found, expected = (loss(head, states, labels) for loss in (chunked_loss, plain))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, *of), gradients(expected, *of))


def test_chunked_loss_of_one_certain_word_is_what_can_be_seen() -> None:
    head = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.zeros_(head.weight)
    found = chunked_loss(head, torch.ones(3, 1), torch.tensor([0, 1, IGNORED]))
    assert found.item() == pytest.approx(0.6931472)  # two words, equally likely


@pytest.mark.parametrize("autocast", [True, False])
def test_chunked_loss_in_half_precision_is_as_exact_as_plain_cross_entropy(autocast: bool) -> None:
    head, states, labels = made(torch.float32 if autocast else BFLOAT)
    with torch.autocast("cpu", BFLOAT, enabled=autocast):
        found, expected = (loss(head, states, labels) for loss in (chunked_loss, plain))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    of = [states, *head.parameters()]
    for one, other, parameter in zip(gradients(found, *of), gradients(expected, *of), of, strict=True):
        assert one.dtype == parameter.dtype
        assert (one - other).norm() < 0.01 * other.norm()


def test_chunked_loss_scales_gradients_before_it_rounds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    head, states, labels = made(torch.float16)
    with torch.no_grad():
        head.weight *= 2.0**-12
    many, words = states.detach().repeat(1000, 1, 1).requires_grad_(), labels.repeat(1000, 1)
    wide = many.detach().float().requires_grad_()
    (exact,) = torch.autograd.grad(plain(head.float(), wide, words), wide)
    assert not exact.half().any()  # smaller than any number of half precision
    (found,) = torch.autograd.grad(chunked_loss(head.half(), many, words) * 2.0**15, many)
    assert (found - 2.0**15 * exact).norm() < 0.01 * (2.0**15 * exact).norm()


def test_chunked_loss_holds_few_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    whole = chunkedloss._errors

    def watched(logits: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(tuple(logits.shape))
        return whole(logits, words)

    monkeypatch.setattr(chunkedloss, "_errors", watched)
    head, states, labels = made(BFLOAT)
    chunked_loss(head, states, labels)
    assert seen == [(2, WORDS)] * 3 + [(1, WORDS)]  # the seven labels alone


def test_chunked_loss_makes_no_gradients_where_none_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    head, states, labels = made(BFLOAT)
    expected = plain(head, states, labels)
    wanted: list[list[bool]] = []
    monkeypatch.setattr(chunkedloss, "_add_gradients", lambda *given: wanted.append([x is not None for x in given[3]]))
    chunked_loss(head.requires_grad_(False), states, labels)
    assert wanted == [[True, False, False]] * 4
    with torch.no_grad():
        torch.testing.assert_close(chunked_loss(head, states, labels), expected)
    assert wanted[4:] == [[False] * 3] * 4


def test_chunked_loss_without_labels_is_nothing_and_has_gradients() -> None:
    head, states, labels = made()
    found = chunked_loss(head, states, torch.full_like(labels, IGNORED))
    found.backward()  # type: ignore[no-untyped-call]
    assert found.item() == 0
    assert all(not x.grad.any() for x in (states, *head.parameters()))  # zeros, where several devices wait for some


def test_chunked_loss_goes_back_once_alone() -> None:
    head, states, labels = made(BFLOAT)
    found = chunked_loss(head, states, labels)
    found.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.backward()  # type: ignore[no-untyped-call]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(2, 9), st.integers(0, 99))
def test_chunked_loss_of_ours_is_exact_for_any_shape(tokens: int, words: int, seed: int) -> None:
    torch.manual_seed(seed)
    states, weight, bias = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((tokens, 2), (words, 2), (words,))
    )
    labels = torch.randint(words, (tokens,))
    found = ChunkedLoss.apply(states, weight, bias, labels)  # type: ignore[no-untyped-call]
    expected = cross_entropy(states @ weight.T + bias, labels)
    torch.testing.assert_close(found, expected)
    of = states, weight, bias
    torch.testing.assert_close(gradients(found, *of), gradients(expected, *of))
