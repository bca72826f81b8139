"""How a model behaves in training: whether it drops values at random, and what it keeps for the backward pass."""

from typing import Any

import torch

__all__ = ["switch_checkpointing", "switch_dropout_off"]


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
