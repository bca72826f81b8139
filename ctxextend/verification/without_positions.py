"""Make all positions of a model alike, so that a twin computes the same as its source."""

import inspect
from typing import Any

import numpy as np

from ctxextend.conversion.conversion import Conversion
from ctxextend.conversion.twins import ANGLES_TABLE
from ctxextend.models.extend import to_tensor


def remove_positions(model: Any, conversion: Conversion) -> None:
    """Make all positions alike in a loaded twin or its source.

    Frequencies are 0, so that no angle rotates; learned rows are the mean row; ALiBi biases are 0.
    """
    location = conversion.model.tables[0]
    is_source = model.config.model_type != conversion.twin.model_type
    for name, values in (*model.named_buffers(), *model.named_parameters()):
        if name.endswith("inv_freq"):
            values.data[:] = 0
        elif name.endswith(ANGLES_TABLE):
            size = values.shape[1]
            values.data[:] = to_tensor(np.arange(size) >= size // 2)  # sines 0, cosines 1
        elif is_source and name.endswith(location.tensor):
            values.data[location.reserved_rows :] = to_tensor(conversion.mean_row)
    for module in model.modules():
        if "alibi" in inspect.signature(module.forward).parameters:
            module.register_forward_pre_hook(_without_biases, with_kwargs=True)


def _without_biases(
    _: Any, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Remove ALiBi biases from an attention mask, which contains them as positive values."""
    return args, given | {"attention_mask": given["attention_mask"].clamp(max=0)}
