"""Any model type of transformers, made small: by the names of its config's keys, and by exceptions where that fails."""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig

WIDTH = 16

# What a key whose name matches is set to; the first that matches wins.
SMALL: Mapping[str, int] = {
    r"(^|_)vocab_size$|^n_words$|input_vocab_size|output_vocab_size": 48,
    r"num_.*key_value_heads$|num_.*heads?$|_heads$|^n_head$|^n_heads$|num_attention_heads$": 2,
    r"layers$|^n_layer$|_layer$|num_blocks$|depth$": 2,
    r"^(intermediate_size|ffn_dim|hidden_dim|d_ff|n_inner|encoder_ffn_dim|decoder_ffn_dim|d_inner)$": 32,
    r"(hidden_size|d_model|n_embd|emb_dim|^dim|embedding_size|embed_dim|projection_dim|bottleneck_size|emb_size"
    r"|input_dim|d_latents|word_embed_proj_dim|projection_hidden_size|encoder_width|cross_hidden_size"
    r"|_hidden_dim|shape_embed_dim|coordinate_size|shape_size)$": WIDTH,
    r"image_size$": 32,
    r"patch_size$": 16,
}


def shrink(config: PreTrainedConfig) -> PreTrainedConfig:
    """Set every size in a config, and in those inside it, to a small one; in place."""
    for key, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            shrink(value)
        elif type(value) is int:
            found = next((small for pattern, small in SMALL.items() if re.search(pattern, key)), None)
            if found is not None and value > found:
                setattr(config, key, found)
    return config
