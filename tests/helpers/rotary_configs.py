"""Folders with the config of a rotary model and one tensor, which plans do not read further."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ctxextend.positions import rotary, rotary_dialects

OLD = 256
NEW = 1024
SIZES: Mapping[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": OLD,
}
LLAMA_3: Mapping[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LISTS: Mapping[str, Any] = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
SECTIONS = [4, 6, 6]
# By name; the type is the one of the config.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "model_type": "llama",
        **SIZES,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    # As files before transformers 5.
    "llama-old": {
        "model_type": "llama",
        **SIZES,
        "rope_scaling": None,
        "rope_theta": 500_000.0,
    },
    "llama3": {"model_type": "llama", **SIZES, "rope_parameters": LLAMA_3},
    "qwen2": {"model_type": "qwen2", **SIZES, "rope_theta": 1_000_000.0},
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 32, "rope_theta": 1_000_000.0},
    "phi": {"model_type": "phi", **SIZES, "partial_rotary_factor": 0.5},
    "gpt_neox": {
        "model_type": "gpt_neox",
        **SIZES,
        "rotary_emb_base": 10_000,
        "rotary_pct": 0.25,
    },
    "modernbert": {"model_type": "modernbert", **SIZES},
    "gemma3": {
        "model_type": "gemma3_text",
        **SIZES,
        "head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
    # Whose lists serve twice the length that the config states.
    "phi3": {
        "model_type": "phi3",
        **SIZES,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": OLD,
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": OLD,
            **LISTS,
        },
    },
    "qwen2_vl-flat": {
        "model_type": "qwen2_vl",
        **SIZES,
        "rope_scaling": {"type": "mrope", "mrope_section": SECTIONS},
        "rope_theta": 1_000_000.0,
        "vision_config": {"depth": 1},
    },
    "qwen2_vl-nested": {
        "model_type": "qwen2_vl",
        "text_config": {
            "model_type": "qwen2_vl_text",
            **SIZES,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1_000_000.0,
                "mrope_section": SECTIONS,
            },
        },
        "vision_config": {"depth": 1},
    },
    "mixtral": {"model_type": "mixtral", **SIZES},
    "persimmon": {"model_type": "persimmon", **SIZES},
}


def save_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Save a config, and weights of no model."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": torch.ones(8)}, folder / "model.safetensors")


def save(name: str, **changes: Any) -> Path:
    """Save one of `CONFIGS`, with changed keys, to a folder of the same name."""
    folder = Path(name)
    save_config(folder, {**CONFIGS[name], **changes})
    return folder


def write_one_dialect(patch: pytest.MonkeyPatch) -> None:
    """Let resizes write rotary settings only in the dialect of the file."""
    state = rotary_dialects.state_settings

    def state_one_dialect(positions: Any, settings: Any, config: Any) -> dict[Any, Any]:
        changes = state(positions, settings, config)
        return {path: changes[path] for path in changes if not positions.reason_to_state(path)}

    patch.setattr(rotary, "state_settings", state_one_dialect)
