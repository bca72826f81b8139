"""Let all tokens of an input attend to each other in a model with attention windows."""

from typing import Any

WINDOW_ATTRIBUTE = "one_sided_attn_window_size"  # of self-attention in Longformer and LED


def widen_windows(model: Any, length: int) -> None:
    """Give a loaded model windows of twice a length, in tokens.

    The classes read their windows when they are created, and pad inputs to a multiple of that in
    the config.
    """
    for module in model.modules():
        if hasattr(module, WINDOW_ATTRIBUTE):
            setattr(module, WINDOW_ATTRIBUTE, length)
    model.config.attention_window = 2 * length
