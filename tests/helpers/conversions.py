"""Sources of conversions: small models of each type, with random weights and biases."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig

OLD = 16
NEW = 40
SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 32, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": OLD},
    "bert": {**SIZES, "max_position_embeddings": OLD},
    **{
        name: {**SIZES, "max_position_embeddings": OLD + 2, "pad_token_id": 1}
        for name in ("roberta", "camembert", "xlm-roberta")
    },
    "electra": {**SIZES, "max_position_embeddings": OLD, "embedding_size": 6},
    "bart": {
        "vocab_size": 32,
        "d_model": 8,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "max_position_embeddings": OLD,
    },
}
NAMES = {
    "gpt2": "GPT2",
    "bert": "Bert",
    "roberta": "Roberta",
    "camembert": "Camembert",
    "xlm-roberta": "XLMRoberta",
    "electra": "Electra",
    "bart": "Bart",
}


def make(folder: Path, model_type: str, head: str, *, seed: int = 0, **changes: Any) -> Any:
    """Save a model whose weights and biases are all random; return it."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **(CONFIGS[model_type] | changes))
    model = getattr(transformers, f"{NAMES[model_type]}{head}")(config).train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    model.save_pretrained(folder)
    return model


def read(folder: Path, name: str = "config.json") -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / name).read_text())
    return values
