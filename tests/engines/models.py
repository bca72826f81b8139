"""Small models with random weights, of any type that reads text, of 256 positions."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from ctxextend.families.registry import FAMILIES
from ctxextend.positions.rotary import Rotary

OLD = 256
NEW = 1024
WORDS = 256
# Base of rotary positions, which no engine has as a default: one that does not read it is found.
THETA = 50_000.0
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
# Multiples of 32, as some kernels need.
VOCABULARY = 288

# Sizes by config key. Heads have 32 values, so that types which rotate a quarter have 4 pairs.
SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("vocab_size",), VOCABULARY),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim"), 128),
    **dict.fromkeys(("embedding_size",), 128),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "hidden_dim", "d_ff", "n_inner"), 512),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 512),
    **dict.fromkeys(("ffn_hidden_size",), 512),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim"), 32),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 16),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 64),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "expert_ffn_hidden_size"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts"), 1),
    **dict.fromkeys(("hidden_dropout", "attention_dropout"), 0.0),
}
# Of types whose sizes must fit each other in another way.
FITTING: Mapping[str, Mapping[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    # llama.cpp takes the size of a head, as in all released sizes but the largest.
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3_text": {"query_pre_attn_scalar": 32},
    # Logits of 0.06 would hide differences.
    "cohere": {"logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0},
    "gpt_bigcode": {"n_inner": 512},
    "qwen3_moe": {"norm_topk_prob": True},  # as in released files; llama.cpp assumes it
    "deepseek_v3": {"head_dim": 16},  # of the rotated part
}
# Keys of released files that transformers 5 does not write, and that an engine needs.
RELEASED_KEYS: Mapping[str, Mapping[str, Any]] = {
    "modernbert": {"layer_norm_eps": 1e-5},
    "qwen3_moe": {"num_experts": 4, "head_dim": 32},
    "exaone4": {"head_dim": 32},
    "cohere2": {"rotary_pct": 1.0},
    "falcon": {"num_kv_heads": 1},
}
# Rotary settings that a base has before it is resized, by their name in a case.
KEPT: Mapping[str, Mapping[str, Any]] = {
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": NEW / OLD,
        "original_max_position_embeddings": OLD,
    },
    "yarn": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128},
    "dynamic": {
        "rope_type": "dynamic",
        "factor": 2.0,
        "original_max_position_embeddings": 128,
    },
    "linear": {"rope_type": "linear", "factor": 2.0},
}
QUERIES_AND_KEYS = re.compile(r"(^|[._])(q|k|qkv|query|key|wqkv|c_attn)([._]|$)", re.IGNORECASE)
FUSED = re.compile(r"query_key_value|qkv_proj|q_lin|k_lin")


def make_model(
    folder: Path, model_type: str, kept: str = "", *, length: int = OLD, without_head: bool = False
) -> None:
    """Save a model with random weights, and a tokenizer of bytes.

    Args:
        folder: Is created.
        model_type: As in config.json.
        kept: Key of `KEPT`: rotary settings of the base. Empty: the defaults of the type, unscaled.
        length: In positions.
        without_head: Save the base model, whose tensor names have no prefix.
    """
    model_class = auto_class(model_type)
    config = make_config(model_type, kept, length)
    torch.manual_seed(0)
    model = model_class.from_config(config).train(False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _set_random(name, parameter)
    if without_head:
        model = model.base_model
    model.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | RELEASED_KEYS.get(model_type, {})))
    save_tokenizer(folder)


def auto_class(model_type: str) -> Any:
    """Return the class that loads models of a type: with the head of a language model or none."""
    if model_type in ENCODERS:
        return transformers.AutoModel
    if model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return transformers.AutoModelForSeq2SeqLM
    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModel


# Types with a causal head that are read as encoders.
ENCODERS = (
    "bert",
    "big_bird",
    "camembert",
    "data2vec-text",
    "electra",
    "ernie",
    "megatron-bert",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roformer",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)


def make_config(model_type: str, kept: str = "", length: int = OLD) -> Any:
    """Return the config of a small model, with layers of every type that its default has."""
    values = _config_values(model_type, length)
    if has_one_theta(model_type):
        settings = KEPT.get(kept, {"rope_type": "default"})
        values["rope_parameters"] = {**settings, "rope_theta": THETA}
        if kept == "longrope":
            values["rope_parameters"] |= _lists(model_type)
        if kept == "longrope":  # the classes of Phi-3 read the key next to the settings
            trained = KEPT[kept]["original_max_position_embeddings"]
            values["original_max_position_embeddings"] = trained
    for layers in (2, 4, 6, 8, 12):
        config = CONFIG_MAPPING[model_type](**values)
        layer_types = getattr(config, "layer_types", None)
        if not layer_types or "full_attention" in layer_types:
            break
        values["num_hidden_layers"] = layers + 2
    return config


def _lists(model_type: str) -> dict[str, list[float]]:
    """Return factors for each pair of rotated values."""
    size = SIZES["head_dim"]
    for positions in FAMILIES[model_type].tables:
        if isinstance(positions, Rotary):
            if positions.rope.dim_key == "qk_rope_head_dim":
                size = SIZES["qk_rope_head_dim"]
            size = int(size * positions.rope.partial)
    short = [1 + pair / 16 for pair in range(size // 2)]
    return {"short_factor": short, "long_factor": [2 * factor for factor in short]}


def has_one_theta(model_type: str) -> bool:
    """Whether a type has rotary positions with the same settings in all layers."""
    for positions in FAMILIES[model_type].tables:
        if isinstance(positions, Rotary) and positions.methods:
            return list(positions.rope.theta) == [""]
    return False


def _config_values(model_type: str, length: int) -> dict[str, Any]:
    """Return the arguments of the config of a small model."""
    default = CONFIG_MAPPING[model_type]()
    stated = default.to_dict()
    values = {key: value for key, value in SIZES.items() if key in stated}
    if stated.get("n_inner", 0) is None:
        del values["n_inner"]
    if "num_key_value_heads" in stated:
        shared = stated["num_key_value_heads"] not in (None, stated.get("num_attention_heads"))
        values["num_key_value_heads"] = 2 if shared else 4
    values |= FITTING.get(model_type, {})
    for positions in FAMILIES[model_type].tables:
        reserved = positions.reserved
        extra = 0
        if reserved.inside_key:
            extra = reserved.rows
            if reserved.config_key:
                extra += 1
        values[positions.config_key] = length + extra
    values["pad_token_id"] = 1 if "roberta" in model_type or model_type == "camembert" else 0
    values["bos_token_id"] = 1
    values["eos_token_id"] = 2
    if values["pad_token_id"] == 1:
        values["bos_token_id"] = 0
    return values


def _set_random(name: str, parameter: torch.Tensor) -> None:
    """Fill a parameter, so that attention is far from even and depends on positions."""
    is_query_or_key = QUERIES_AND_KEYS.search(name) or FUSED.search(name)
    if parameter.dim() < 2:
        parameter.add_(0.1 * torch.randn_like(parameter))
        if is_query_or_key and "norm" in name:
            parameter.add_(0.5)
        return
    gain = 1.0
    if is_query_or_key:
        gain = 1.5
    parameter.copy_(gain * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)


def save_tokenizer(folder: Path) -> None:
    """Save a byte-level tokenizer without merges, whose vocabulary has the size of the model's."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL, *characters]
    words += [f"<unused{number}>" for number in range(VOCABULARY - len(words))]
    tokenizer = Tokenizer(BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        cls_token="<s>",
        sep_token="</s>",
        model_max_length=OLD,
    )
    fast.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    # Transformers 5 writes TokenizersBackend, which transformers 4 does not know.
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings))


def short_token_ids() -> NDArray[np.int64]:
    """Return the first `OLD` tokens of the input of all runs, shape (1, OLD)."""
    tokens: NDArray[np.int64] = token_ids().numpy()
    return tokens[:, :OLD]


def token_ids() -> torch.Tensor:
    """Return the input of all runs: `NEW` tokens without special ones, shape (1, NEW)."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(len(SPECIAL), WORDS, (1, NEW), generator=generator)
