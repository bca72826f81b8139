"""Tests of all model types: `make test` runs a few of each kind, `make test-slow` all of them."""

from collections.abc import Iterable
from typing import Any

import pytest

LEARNED = ("bert", "clip", "encoder-decoder", "gpt2", "perceiver", "whisper")
RESERVED = ("bart", "biogpt", "blip-2", "esm", "led", "lilt", "mpnet", "prophetnet", "roberta")
SINUSOIDAL = ("ctrl", "distilbert", "fsmt", "m2m_100", "speecht5", "xglm")
ROTARY = ("dbrx", "gemma3", "gpt_oss", "gptj", "llama", "modernbert", "phi3", "qwen2_vl", "t5gemma")
BIASED = ("bloom", "deberta-v2", "falcon", "mpt", "t5")
# Without positions to extend: those of images, audio or time series, none, and other kinds.
UNLIMITED = ("canine", "clvp_encoder", "dac", "mamba", "patchtst", "reformer", "vits", "xlnet")
# Of which no model can be built.
NOT_BUILT = ("dinat", "layoutlmv2", "nougat")
REPRESENTATIVE = {
    *LEARNED,
    *RESERVED,
    *SINUSOIDAL,
    *ROTARY,
    *BIASED,
    *UNLIMITED,
    *NOT_BUILT,
}


def parameters(model_types: Iterable[str]) -> list[Any]:
    """Return model types as parameters of a test; all but a few are slow."""
    return [
        pytest.param(name, marks=() if name in REPRESENTATIVE else pytest.mark.slow)
        for name in sorted(model_types)
    ]
