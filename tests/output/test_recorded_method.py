"""The method that the recipe of an output records, of tables that get different settings."""

from pathlib import Path

import numpy as np
import torch
import yaml
from transformers import BartConfig, BartForConditionalGeneration

from tests.helpers.trainings import succeed


def make_bart() -> None:
    """Save a model whose two tables differ so much that `bands` chooses other settings."""
    model = BartForConditionalGeneration(
        BartConfig(
            vocab_size=32,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            max_position_embeddings=256,
        )
    )
    parts = (model.model.encoder, model.model.decoder)
    for seed, part in enumerate(parts):
        table = part.embed_positions.weight
        rows, columns = table.shape
        walk = np.random.default_rng(seed).normal(size=(rows, columns)).cumsum(axis=0) / 20
        waves = np.sin(2.5 * np.arange(rows)[:, None] + np.arange(columns)) / 2
        with torch.no_grad():
            table.copy_(torch.from_numpy(walk + waves * (seed == 0)))
    model.save_pretrained("bart")


def test_recipe_keeps_first_rows_of_tables_with_other_settings() -> None:
    make_bart()
    succeed("resize", "bart", "--to", 512, "--method", "bands", "--keep-first", 10, "-o", "out")
    recipe = yaml.safe_load(Path("out", "ctxextend.yaml").read_text())
    first, second = recipe["provenance"]["tables"]
    assert first["method"] != second["method"]
    assert recipe["resize"]["keep_first"] == 10
    succeed("verify", "out")
    succeed("run", "out/ctxextend.yaml", "-o", "again")
    weights = [Path(name, "model.safetensors").read_bytes() for name in ("out", "again")]
    assert weights[0] == weights[1]
