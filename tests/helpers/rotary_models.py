"""Rotary, ALiBi and relative models with a tokenizer."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.helpers import pico
from tests.helpers.word_tokenizer import add_tokenizer

OLD = 16
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 16,
    "vocab_size": 32,
}


def make(model_type: str = "llama", name: str = "", **changes: Any) -> pico.Pico:
    """Save a small model with a tokenizer."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        model_type, **SIZES, initializer_range=0.4, **changes
    )
    model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    folder = Path(name or model_type)
    model.save_pretrained(folder)
    add_tokenizer(folder, special_tokens=False, max_len=OLD)
    return pico.Pico(folder, type(model))
