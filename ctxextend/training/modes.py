"""How a model behaves in training: whether it drops values at random, and what it keeps for the backward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

__all__ = ["spare_activations", "switch_checkpointing", "switch_dropout_off"]

# Where transformers has the functions that stand between the linear layers of a block.
ACTIVATIONS = "transformers.activations"

# Values that such a function is given at once on a CPU: 512 KiB of float32, which stay in the cache from step to step,
# and are below what the C library maps anew each time.
PIECE = 2**17

OfValues = Callable[[torch.Tensor], torch.Tensor]


def switch_dropout_off(model: torch.nn.Module) -> None:
    """Let a model in training give what it gives elsewhere, so that the same steps give the same losses everywhere.

    Leaving it out of training would do that too, and would switch gradient checkpointing off without a word.

    Args:
        model: The model; changed in place, its config is not.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        # Functional dropout, and layers that are left out at random, take their rate from the module around them.
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def switch_checkpointing(model: Any, *, on: bool) -> bool:
    """Switch gradient checkpointing on or off: the layers' inputs alone are kept, and all else is made again.

    Args:
        model: A model of transformers; in training it is obeyed, elsewhere nothing is kept anyway.
        on: Whether to.

    Returns:
        Whether the model has it.
    """
    if not model.supports_gradient_checkpointing:
        return False
    named = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # its older name
    if on:
        getattr(model, f"{named}_checkpointing_enable")({"use_reentrant": False})
    else:
        getattr(model, f"{named}_checkpointing_disable")()
    return True


def spare_activations(model: torch.nn.Module) -> None:
    """Let activation functions that are written as several steps keep what they are given, and nothing of the steps.

    GELU as GPT-2 has it keeps four values of each, half of all that a model with frozen layers keeps, and goes through
    memory for each step. Here it is computed piece by piece, and again in the backward pass; of tensors in one
    piece, as models give them, no value changes.

    Args:
        model: The model; changed in place, and a second time is as once.
    """
    for part in model.modules():
        if "forward" not in vars(part) and _keeps_steps(part):
            part.forward = _spared(part.forward)


def _keeps_steps(part: torch.nn.Module) -> bool:
    """Whether a module is a function of single values that keeps more of each for the backward pass than itself."""
    if type(part).__module__ != ACTIVATIONS or any(True for _ in part.parameters()):
        return False
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        part(torch.ones(1, requires_grad=True))
    return len(kept) > 1


def _spared(function: OfValues) -> OfValues:
    """Return a function of single values as one that keeps its input alone."""
    return lambda values: Spared.apply(values, function)  # type: ignore[no-untyped-call]


class Spared(torch.autograd.Function):
    """A function of single values that is computed piece by piece, and again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, function: OfValues) -> torch.Tensor:
        """Return the function's values, of the shape of those that it is given."""
        kind = values.device.type
        ctx.save_for_backward(values)
        ctx.function, ctx.cast = function, (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        return _by_pieces(function, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of the values; the function has none."""

        def again(values: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad(), torch.autocast(*ctx.cast):
                leaf = values.detach().requires_grad_()
                found = ctx.function(leaf)
            return torch.autograd.grad(found, leaf, given)[0]

        return _by_pieces(again, *ctx.saved_tensors, gradient), None


def _by_pieces(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
    """Return what a function gives of tensors of one shape, in that shape; on a CPU it is given a piece at a time."""
    if given[0].device.type != "cpu":
        return function(*given)
    flat = [tensor.reshape(-1) for tensor in given]
    first = function(*(tensor[:PIECE] for tensor in flat))
    found = first.new_empty(len(flat[0]))
    found[:PIECE] = first
    for start in range(PIECE, len(found), PIECE):
        found[start : start + PIECE] = function(*(tensor[start : start + PIECE] for tensor in flat))
    return found.view(given[0].shape)
