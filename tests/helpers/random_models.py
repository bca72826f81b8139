"""Models of any type with random weights, as `evaluate` and `train` open them."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from ctxextend.lab.eval_model import CAUSAL, ENCODER, MASKED, EvalModel
from ctxextend.lab.text_tokenizer import TextTokenizer
from tests.helpers.tiny import make_config, shrink

CAUSAL_TYPES = ("gpt2", "gpt_neo", "opt", "biogpt", "bert-generation", "gpt_bigcode", "openai-gpt")
MASKED_TYPES = (
    "bert",
    "roberta",
    "distilbert",
    "electra",
    "albert",
    "big_bird",
    "mobilebert",
    "esm",
    "convbert",
    "deberta-v2",
    "mpnet",
    "xlm",
    "ibert",
    "nystromformer",
    "layoutlm",
    "longformer",
)
BASE_2_TYPES = ("roberta", "esm", "mpnet", "ibert", "nystromformer", "longformer")
RESERVED_ROWS = {**dict.fromkeys(BASE_2_TYPES, 2), "opt": 2, "biogpt": 2}


def make_model(model_type: str, kind: str | None = None) -> EvalModel:
    """Return a model with random weights, as if it had been loaded."""
    kind = kind or (CAUSAL if model_type in CAUSAL_TYPES else MASKED)
    auto_class: Any = {
        CAUSAL: AutoModelForCausalLM,
        MASKED: AutoModelForMaskedLM,
        ENCODER: AutoModel,
    }[kind]
    torch.manual_seed(0)
    model = auto_class.from_config(shrink(make_config(model_type))).train(False)
    reserved = RESERVED_ROWS.get(model_type, 0)
    return EvalModel(
        f"my-{model_type}",
        Path(),
        model_type,
        kind,
        model,
        TextTokenizer(None),
        64,
        unusable_rows=reserved,
    )


def text(length: int = 16, texts: int = 2) -> torch.Tensor:
    return torch.randint(10, 40, (texts, length), generator=torch.Generator().manual_seed(1))
