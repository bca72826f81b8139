"""All commands count positions alike, on every model type."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend import Inspection, inspect, plan_resize, resize, verify
from ctxextend.families.known_types import FAMILIES
from ctxextend.families.lookup import find_architecture
from ctxextend.json_output import to_json
from ctxextend.positions.rows import stated_width
from ctxextend.positions.sinusoids import Sinusoids
from tests.helpers import model_types, rules, tiny
from tests.helpers.pico import write_json

NOT_BUILT = ("gemma4_assistant", "nougat")  # transformers cannot build their default configs
TYPES = (FAMILIES.keys() & CONFIG_MAPPING.keys()) - {*NOT_BUILT}
BLOCK = 2048  # tokens; types whose inputs fill blocks refuse other lengths than multiples


def small_config(model_type: str) -> dict[str, Any]:
    """Return a config with small sizes and the type's own length, that has positions to extend."""
    config = tiny.make_config(model_type)
    tiny.shrink(config)
    for key, value in rules.NEEDED.get(model_type, {}).items():
        if key not in ("hidden_size", "head_dim"):
            setattr(config, key, value)
    text = json.dumps(config.to_dict(), default=str)
    values: dict[str, Any] = json.loads(text)
    return values


def write(folder: Path, model_type: str) -> None:
    """Write a small config, the tables that it states, and tensors next to computed tables."""
    config = small_config(model_type)
    tensors: dict[str, Any] = {"other.weight": np.zeros((2, 2), np.float32)}
    for location in find_architecture(config).locations:
        table = location
        if isinstance(table, Sinusoids) and table.is_computed:
            neighbor = f"{location.usual_prefix}{table.neighbor_prefix}.weight"
            zeros = np.zeros((2, 2), np.float32)
            tensors[neighbor] = zeros
        elif table.has_rows:
            rows = location.rows_for(location.value(location.effective_key))
            stated = stated_width(location, tiny.WIDTH)
            width = stated[1] if stated else tiny.WIDTH
            generator = np.random.default_rng(0)
            values = generator.normal(size=(rows, width))
            tensors[location.usual_name] = values.astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config)


def positions_of(found: Inspection) -> dict[str, int]:
    reports = (*found.tables, *found.schemes)
    return {report.part: report.positions for report in reports}


@pytest.mark.parametrize("model_type", model_types.parameters(TYPES))
def test_all_commands_agree_on_the_number_of_positions(model_type: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(source, model_type)
    before = positions_of(inspect(source))
    longest = max(before.values())
    to = (longest // BLOCK + 2) * BLOCK
    plan = plan_resize(source, to)
    planned = {table.part: table.max_len_before for table in plan.plan.changes}
    assert planned == before
    result = resize(source, to, output=tmp_path / "out")
    found = inspect(result.output)
    planned = {table.part: table.max_len_after for table in plan.plan.changes}
    assert positions_of(found) == planned
    assert found.agrees, found.verdict
    values = to_json(found)
    reports = (*values["tables"], *values["schemes"])
    printed = {report["part"]: report["positions"] for report in reports}
    assert printed == positions_of(found)
    assert verify(result.output).passed
