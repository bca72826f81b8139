"""The method that the recipe of an output records, of tables that get different settings."""

from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import load_file, save_file

from tests.helpers import pico
from tests.helpers.trainings import succeed


def make_bart() -> None:
    """Save a model whose two tables differ so much that `bands` chooses other settings."""
    pico.make_bart(Path("bart"), length=256)
    weights = Path("bart", "model.safetensors")
    tensors = load_file(weights)
    for seed, part in enumerate(("encoder", "decoder")):
        name = f"{part}.embed_positions.weight"
        rows, columns = tensors[name].shape
        walk = np.random.default_rng(seed).normal(size=(rows, columns)).cumsum(axis=0) / 20
        waves = np.sin(2.5 * np.arange(rows)[:, None] + np.arange(columns)) / 2
        tensors[name] = (walk + waves * (seed == 0)).astype(np.float32)
    save_file(tensors, weights, {"format": "pt"})


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
