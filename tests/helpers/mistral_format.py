"""Small Mistral models whose folders have files in Mistral's own format."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.helpers import pico
from tests.helpers.word_tokenizer import add_tokenizer

OLD = 256
NEW = 1024
THETA = 1_000_000.0
HEAD_DIM = 8
HIDDEN = 16
# Sizes in params.json, and in the config of transformers.
PARAMS: Mapping[str, Any] = {
    "dim": HIDDEN,
    "n_layers": 2,
    "head_dim": HEAD_DIM,
    "hidden_dim": 32,
    "n_heads": 2,
    "n_kv_heads": 1,
    "norm_eps": 1e-06,
    "vocab_size": 64,
    "rope_theta": THETA,
    "max_seq_len": OLD,
}
CONFIG: Mapping[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "head_dim": HEAD_DIM,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "max_position_embeddings": OLD,
    "sliding_window": None,
}
# Settings of Ministral 3, in both spellings: the magnitude of queries and keys stays.
YARN = {
    "original_max_position_embeddings": 64,
    "factor": 4,
    "apply_scale": False,
    "beta": 32,
    "alpha": 1,
}
NAMES = (
    (r"^model\.", ""),
    ("lm_head", "output"),
    ("embed_tokens", "tok_embeddings"),
    ("self_attn", "attention"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    (r"mlp\.gate_proj", "feed_forward.w1"),
    (r"mlp\.down_proj", "feed_forward.w2"),
    (r"mlp\.up_proj", "feed_forward.w3"),
    (r"\.([qkvo])_proj", r".w\1"),
)


def make(
    name: str = "mistral",
    *,
    params: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    model_type: str = "mistral",
) -> Path:
    """Save a model in both formats, with other values in params.json and config.json.

    A value of None removes the key of params.json.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    folder = Path(name)
    rope = {"rope_type": "default", "rope_theta": THETA}
    sizes = AutoConfig.for_model(model_type, **{**CONFIG, "rope_parameters": rope})
    model = AutoModelForCausalLM.from_config(sizes)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    path = folder / "config.json"
    pico.write_json(path, pico.read_json(path) | {"rope_parameters": rope} | dict(config or {}))
    add_tokenizer(folder, special_tokens=False, max_len=OLD)
    write_params(folder, params or {})
    save_file(consolidated(load_file(folder / "model.safetensors")), weights_of(folder))
    return folder


def make_only_params(name: str = "only", *, params: Mapping[str, Any] | None = None) -> Path:
    """Save a model in Mistral's own format only."""
    folder = make(name, params=params)
    for path in folder.iterdir():
        if path.name not in ("params.json", "consolidated.safetensors"):
            path.unlink()
    return folder


def write_params(folder: Path, values: Mapping[str, Any]) -> None:
    """Write params.json with other values, in the form of Mistral's files."""
    stated = {key: value for key, value in {**PARAMS, **values}.items() if value is not None}
    (folder / "params.json").write_text(json.dumps(stated, indent=4))


def weights_of(folder: Path) -> Path:
    """Return the path of the weights in Mistral's own format."""
    return folder / "consolidated.safetensors"


def consolidated(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors with Mistral's names, and pairs of queries and keys in Mistral's order."""
    renamed = dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        short = name
        for pattern, text in NAMES:
            short = re.sub(pattern, text, short)
        if short.endswith(("wq.weight", "wk.weight")):
            halves = tensor.view(-1, 2, HEAD_DIM // 2, tensor.shape[1])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        renamed[short] = tensor.contiguous()
    return renamed
