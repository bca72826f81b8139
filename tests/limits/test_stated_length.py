"""The context length that files state, whatever the model type is."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxextend.checkpoints.folder import open_checkpoint
from ctxextend.checkpoints.source import resolve_source
from ctxextend.limits.statements import stated_length
from tests.helpers import pico


def read(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> Any:
    """Return the length that a folder with this config and this tokenizer config states."""
    pico.make(folder, "gpt2")
    (folder / "config.json").write_text(json.dumps({"model_type": "new"} | config))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return stated_length(open_checkpoint(resolve_source(folder)))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"n_positions": 512}, ("config.json", "n_positions", 512)),
        ({"seq_length": 512}, ("config.json", "seq_length", 512)),
        ({"max_sequence_length": 512}, ("config.json", "max_sequence_length", 512)),
        ({"context_length": 512}, ("config.json", "context_length", 512)),
        (
            {"seq_length": 64, "max_position_embeddings": 512},
            ("config.json", "max_position_embeddings", 512),
        ),
        (
            {"text_config": {"max_position_embeddings": 512}, "vision_config": {"seq_length": 9}},
            ("config.json", "text_config.max_position_embeddings", 512),
        ),
        ({"vision_config": {"seq_length": 9}}, ("tokenizer_config.json", "model_max_length", 256)),
        (
            {"max_position_embeddings": 10**30},
            ("tokenizer_config.json", "model_max_length", 256),
        ),
        (
            {"max_position_embeddings": -1, "n_positions": "many"},
            ("tokenizer_config.json", "model_max_length", 256),
        ),
    ],
)
def test_stated_length_is_that_of_the_config_before_that_of_the_tokenizer(
    config: dict[str, Any], expected: tuple[str, str, int], tmp_path: Path
) -> None:
    assert read(tmp_path / "model", config, {"model_max_length": 256}) == expected


@pytest.mark.parametrize("tokenizer", [{}, {"model_max_length": 10**30}])
def test_stated_length_is_none_if_no_file_states_one(
    tokenizer: dict[str, Any], tmp_path: Path
) -> None:
    assert read(tmp_path / "model", {}, tokenizer) is None
