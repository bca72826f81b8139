"""Models whose attention logits are multiplied, independently of the weights."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

PRODUCTS = (torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__)


class FirstProduct(TorchFunctionMode):
    """Multiplies the first product of two tensors: in eager attention, queries and keys."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.count = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in PRODUCTS:
            self.count += 1
            if self.count == 1:
                return result * self.factor
        return result


def multiply_logits(model: Any, modules: Iterable[str], factor: float) -> None:
    """Multiply the attention logits of attention modules, given by name, by a factor."""
    for name in modules:
        module = model.get_submodule(name)
        module.forward = _with_factor(module.forward, factor)


def _with_factor(forward: Callable[..., Any], factor: float) -> Callable[..., Any]:
    @wraps(forward)
    def multiplied(*args: Any, **kwargs: Any) -> Any:
        with FirstProduct(factor) as mode:
            output = forward(*args, **kwargs)
        assert mode.count == 2, f"{mode.count} products instead of logits and values"
        return output

    return multiplied
