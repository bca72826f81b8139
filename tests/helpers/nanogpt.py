"""Checkpoints in nanoGPT's format."""

from typing import Any

import torch

from ctxextend.checkpoint.nanogpt import LAYER_SHAPES

OLD = 16
ARGUMENTS: dict[str, Any] = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 8,
    "block_size": OLD,
    "bias": True,
    "vocab_size": 32,
    "dropout": 0.1,
}


def make(**changes: Any) -> dict[str, Any]:
    """Return a nanoGPT checkpoint: a tied head, and masks as buffers as without flash attention."""
    torch.manual_seed(0)
    sizes = ARGUMENTS | changes
    width, length = sizes["n_embd"], sizes["block_size"]
    shapes = {"wte": (sizes["vocab_size"], width), "wpe": (length, width)}
    for layer in range(sizes["n_layer"]):
        shapes |= {
            f"h.{layer}.{part}": tuple(width * count for count in counts)
            for part, counts in LAYER_SHAPES.items()
        }
    state: dict[str, torch.Tensor] = {}
    for name, shape in {**shapes, "ln_f": (width,)}.items():
        state[f"transformer.{name}.weight"] = torch.randn(shape) / 4 + (len(shape) == 1)
        if sizes["bias"] and not name.startswith("w"):
            state[f"transformer.{name}.bias"] = torch.randn(shape[0]) / 5
        if name.endswith("c_attn"):
            mask = torch.ones(length, length).tril().view(1, 1, length, length)
            state[f"transformer.{name.removesuffix('.c_attn')}.bias"] = mask
    state["lm_head.weight"] = state["transformer.wte.weight"]
    config = {"out_dir": "out", "learning_rate": 6e-4, "compile": True, **sizes}
    return {
        "model": state,
        "optimizer": {"state": {}},
        "model_args": sizes,
        "iter_num": 2000,
        "config": config,
    }
