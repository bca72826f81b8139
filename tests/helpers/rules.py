"""Small models of types whose positions are a rule: rotary, ALiBi or relative."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend.checkpoint.json_edit import Edit
from ctxextend.families.registry import find_architecture
from tests.helpers import tiny, zoo

OLD, NEW = 64, 256
MAX_PARAMETERS = 2_000_000  # of models that are run

# Values without which a type has no such positions, or rotates fewer than four values per head, by
# model type.
NEEDED: Mapping[str, dict[str, Any]] = {
    **{
        name: {"hidden_size": 64}
        for name in ("gpt_neox", "stablelm", "glm4_moe", "glm4v_moe_text", "persimmon", "phi")
    },
    **{
        name: {"hidden_size": 256}
        for name in ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text")
    },
    **{name: {"hidden_size": 128} for name in ("glm4v_text", "glm_image_text", "glm_ocr_text")},
    **{
        name: {"head_dim": 8}
        for name in ("helium", "esmc", "deepseek_ocr2_text", "unlimited_ocr_text")
    },
    **{
        name: {"position_biased_input": False, "relative_attention": True}
        for name in ("deberta", "deberta-v2")
    },
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4, "n_head": 4},
    "zamba2": {"use_mem_rope": True},
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 3},
}

# Few layers of types that state more than their number.
FEW_LAYERS: Mapping[str, dict[str, Any]] = {
    # Attention and MLP are separate blocks in files.
    "dory": {
        "num_hidden_layers": 6,
        "layer_types": [*2 * ["sliding_attention", "mlp"], "full_attention", "mlp"],
        "n_input_layers": 2,
        "n_recurrent_layers": 2,
        "n_output_layers": 2,
    },
}


def make_config(model_type: str) -> Any:
    """Create a config with a context length of `OLD`, few layers and, if valid, small sizes."""
    content = tiny.make_config(model_type).to_dict()
    few = _cut_layers(content)
    if model_type in FEW_LAYERS:
        few = content | FEW_LAYERS[model_type]
    for only_depth in (False, True):
        with suppress(Exception):
            config = _fit(model_type, few, only_depth=only_depth)
            return load_config(_set_length(config).to_dict())
    return _set_length(_fit(model_type, content, only_depth=True))


def _fit(model_type: str, content: dict[str, Any], *, only_depth: bool) -> Any:
    config = load_config(content | {"model_type": model_type})
    counts = [getattr(part, "num_hidden_layers", None) for _, part in tiny.parts(config)]
    tiny.shrink(config, only_depth=only_depth)
    for (_, part), count in zip(tiny.parts(config), counts, strict=True):
        if count and len(getattr(part, "layer_types", None) or ()) == count:
            part.num_hidden_layers = count
        for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
            if isinstance(getattr(part, key, None), int):
                setattr(part, key, min(getattr(part, key), 3))
        for key, value in NEEDED.get(part.model_type, {}).items():
            setattr(part, key, value)
    return config


def _set_length(config: Any) -> Any:
    for location in find_architecture(config.to_dict()).locations:
        part = reduce(getattr, location.path, config)
        setattr(part, location.effective_key, location.key_value(OLD))
        trained = "original_max_position_embeddings"
        if trained in location.family.defaults:
            setattr(part, trained, OLD)
        settings = getattr(part, "rope_parameters", None) or {}
        if "factor" in settings:
            settings |= {"factor": 4.0, trained: OLD // 4}
    return config


def _cut_layers(content: dict[str, Any]) -> dict[str, Any]:
    """Keep one layer of each type, at least two, in all lists with a value per layer."""
    content = {
        key: _cut_layers(value) if isinstance(value, dict) else value
        for key, value in content.items()
    }
    count = content.get("num_hidden_layers")
    if not isinstance(count, int) or count <= 2:
        return content
    kept = _kept_layers(count, content.get("layer_types") or [])
    per_layer = content.get("per_layer_config")
    if per_layer:
        stated = {int(index): values for index, values in per_layer.items()}
        content["per_layer_config"] = {
            number: stated[index] for number, index in enumerate(kept) if index in stated
        }
    for key, value in content.items():
        if isinstance(value, list) and len(value) == count:
            content[key] = [value[index] for index in kept]
    return content | {"num_hidden_layers": len(kept)}


def _kept_layers(count: int, types: list[str]) -> list[int]:
    if len(types) == count and len(set(types)) > 1:
        return sorted({types.index(name) for name in types})
    return [0, 1]


def save(config: Any, folder: Path) -> dict[str, Any]:
    """Save a config with weights of no model; return its content."""
    config.save_pretrained(folder)
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
    return read_content(folder)


def read_content(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's config.json."""
    text = (folder / "config.json").read_text()
    content: dict[str, Any] = json.loads(text, object_hook=read_infinity)
    return content


def read_infinity(content: dict[str, Any]) -> Any:
    return float(content["__float__"]) if content.keys() == {"__float__"} else content


def edited(content: dict[str, Any], edits: Sequence[Edit]) -> dict[str, Any]:
    """Return the content of config.json with the edits of a plan."""
    content = copy.deepcopy(content)
    for edit in edits:
        parent = reduce(dict.__getitem__, edit.path[:-1], content)
        parent[edit.path[-1]] = edit.after
        if edit.after is None:
            del parent[edit.path[-1]]
    return content


def load_config(content: dict[str, Any]) -> Any:
    """Return the config that transformers makes of a file."""
    return CONFIG_MAPPING[content["model_type"]].from_dict(copy.deepcopy(content))


def build(model_type: str, config: Any) -> Any:
    """Build the first class of a type that can be built, with weights if it is small."""
    for model_class in tiny.model_classes(model_type):
        with suppress(Exception):
            model = tiny.meta_model(model_class, config)
            if sum(parameter.numel() for parameter in model.parameters()) <= MAX_PARAMETERS:
                torch.manual_seed(0)
                model = model_class(copy.deepcopy(config))
            return model.train(False)
    return None


def rotary_modules(model: Any, model_type: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and modules that compute the angles of a part of this type."""
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        has_angles = any(
            buffer.endswith("inv_freq") for buffer, _ in module.named_buffers(recurse=False)
        )
        if has_angles and config is not None and config.model_type == model_type:
            yield name, module


def is_real(model: Any) -> bool:
    """Return whether a model has weights, so that it can be run."""
    return not any(parameter.is_meta for parameter in model.parameters())


def run(model: Any, length: int) -> torch.Tensor | None:
    """Return the output of a model for a text input; None if it reads others too."""
    for path, names in zoo.text_readers(model):
        with suppress(Exception):
            return zoo.Reader(path, names).run(model, length)
    return None
