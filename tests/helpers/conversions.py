"""Sources of conversions: small models of each type, with random weights and biases."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig

from tests.helpers import pico

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

OUTPUTS = (
    "logits",
    "prediction_logits",
    "last_hidden_state",
    "pooler_output",
    "start_logits",
    "end_logits",
)


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


def load(folder: Path) -> Any:
    """Load the class in config.json, and check that no key is missing, unexpected or mismatched."""
    name = read(folder)["architectures"][0]
    return pico.Pico(folder, getattr(transformers, name)).load()


def make_inputs(model: Any, tokens: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return two texts of some tokens, one of them padded on the right, and their mask."""
    numbers = torch.arange(2 * tokens).reshape(2, tokens)
    ids = 5 + numbers * 7 % 27
    mask = torch.ones_like(ids)
    mask[1, tokens - 2 :] = 0
    if model.config.pad_token_id is not None:
        ids[mask == 0] = model.config.pad_token_id
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = (ids > 16).long() * mask
    return inputs, mask


def outputs(model: Any, tokens: int) -> dict[str, torch.Tensor]:
    """Return what a model computes for two texts, by name, where these are not padded."""
    inputs, mask = make_inputs(model, tokens)
    if type(model).__name__.endswith("MultipleChoice"):
        inputs = {name: values[None] for name, values in inputs.items()}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"][:, :4]
        mask = mask[:, :4]
    with torch.no_grad():
        found = model(**inputs)
    values = dict[str, torch.Tensor]()
    for name in OUTPUTS:
        value = found.get(name)
        if value is not None and value.shape[:2] == mask.shape:
            value = value[mask.bool()]
        if value is not None:
            values[name.removeprefix("prediction_")] = value  # of `ForPreTraining`
    return values


def assert_equal_outputs(source: Any, twin: Any, tokens: int) -> None:
    """Check that two models compute the same for texts of some tokens, within rounding."""
    expected = outputs(source, tokens)
    actual = outputs(twin, tokens)
    assert expected
    for name, values in expected.items():
        if name == "pooler_output" and name not in actual:
            continue
        tolerance = 4e-6 * float(values.abs().max())
        torch.testing.assert_close(actual[name], values, rtol=0, atol=tolerance)


def differ(source: Any, twin: Any, tokens: int) -> bool:
    before = outputs(source, tokens)
    after = outputs(twin, tokens)
    shared = before.keys() & after.keys()
    return any(not torch.allclose(before[name], after[name]) for name in shared)
