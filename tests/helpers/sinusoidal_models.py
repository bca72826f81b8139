"""Models with sinusoidal positions, stored or computed, and tokenizers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.helpers import pico
from tests.helpers.trainings import OLD
from tests.helpers.word_tokenizer import add_tokenizer

SIZES: dict[str, Any] = {"vocab_size": 32, "max_position_embeddings": OLD}
TOKENS: dict[str, Any] = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
XLM: dict[str, Any] = {
    "emb_dim": 8,
    "n_layers": 1,
    "n_heads": 2,
    "sinusoidal_embeddings": True,
    "pad_index": 0,
}
DISTILBERT: dict[str, Any] = {
    "dim": 8,
    "n_layers": 1,
    "n_heads": 2,
    "hidden_dim": 16,
    "sinusoidal_pos_embds": True,
}
PARTS: dict[str, Any] = {
    f"{part}_{name}": size
    for part in ("encoder", "decoder")
    for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
}
SEQ2SEQ: dict[str, Any] = SIZES | PARTS | TOKENS | {"d_model": 8, "init_std": 0.5}
FSMT: dict[str, Any] = {"langs": ["en", "de"], "src_vocab_size": 32, "tgt_vocab_size": 32}

# Model class, config values, and the position table if the file contains it.
MODELS: Mapping[str, tuple[str, dict[str, Any], str | None]] = {
    "xlm": ("XLMWithLMHeadModel", SIZES | XLM | TOKENS, "transformer.position_embeddings.weight"),
    "distilbert": (
        "DistilBertForMaskedLM",
        SIZES | DISTILBERT,
        "distilbert.embeddings.position_embeddings.weight",
    ),
    "roformer": (
        "RoFormerForMaskedLM",
        SIZES | pico.ENCODER | {"embedding_size": 8},
        "roformer.encoder.embed_positions.weight",
    ),
    "pegasus": ("PegasusForCausalLM", SEQ2SEQ, "model.decoder.embed_positions.weight"),
    "marian": ("MarianForCausalLM", SEQ2SEQ, "model.decoder.embed_positions.weight"),
    "ctrl": ("CTRLLMHeadModel", SIZES | {"n_embd": 8, "dff": 16, "n_layer": 1, "n_head": 2}, None),
    "xglm": (
        "XGLMForCausalLM",
        SIZES | TOKENS | {"d_model": 8, "ffn_dim": 16, "num_layers": 1, "attention_heads": 2},
        None,
    ),
}

CAUSAL = ("pegasus", "marian", "ctrl", "xglm")


def make(model_type: str, model_class: str = "") -> Path:
    """Save a model of 16 positions with a tokenizer, and return the folder."""
    torch.manual_seed(0)
    stated, values, _ = MODELS.get(model_type, ("", SEQ2SEQ | FSMT, None))
    model = getattr(transformers, model_class or stated)
    model(model.config_class(**values)).save_pretrained(model_type)
    return add_tokenizer(Path(model_type), special_tokens=model_type not in CAUSAL)
