"""Replace the rotary frequencies of a loaded model."""

from typing import Any

from numpy.typing import NDArray


def replace_frequencies(model: Any, inverse: NDArray[Any], attention_factor: float) -> int:
    """Give all rotary modules of a model, which share their settings, other frequencies.

    Args:
        model: A model of transformers.
        inverse: The inverse frequencies, shape (pairs,). Modules with another number stay.
        attention_factor: By which cosines and sines are multiplied.

    Returns:
        The number of modules that have them now.
    """
    import torch

    values = torch.from_numpy(inverse).float()
    replaced = 0
    for module in model.modules():
        buffer = getattr(module, "inv_freq", None)
        if isinstance(buffer, torch.Tensor) and buffer.shape == values.shape:
            buffer.copy_(values)
            module.attention_scaling = attention_factor
            replaced += 1
    return replaced
