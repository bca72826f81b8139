"""`switch` in every model type: short inputs stay, and long ones get what scaled settings give."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctxextend import inspect, list_families, plan_resize
from ctxextend.errors import MethodError
from ctxextend.tables.frequencies import frequencies
from tests.helpers import model_types, rules
from tests.helpers.notes import text_of

# The methods of each part of a type; those of another scheme have none.
METHODS: dict[str, list[tuple[str, ...]]] = {}
for table in list_families():
    if table.methods:
        METHODS.setdefault(table.model_type, []).append(table.methods)
TYPES = {
    name
    for name in model_types.RULES - model_types.NO_CONFIG
    if name in METHODS and all("switch" in methods for methods in METHODS[name])
}
# What differs in outputs by another order of float32 operations, relative to their size.
ROUNDING = 5e-5


@pytest.mark.parametrize("model_type", model_types.parameters(TYPES))
def test_switch_changes_only_long_inputs_of_every_type(model_type: str, tmp_path: Path) -> None:
    content = rules.save(rules.make_config(model_type), tmp_path)
    try:
        planned = plan_resize(tmp_path, to=rules.NEW, method="switch")
    except MethodError as error:
        assert "does not apply to rotary settings" in error.message
        return
    base = rules.build(model_type, rules.load_config(content))
    if base is None or not rules.is_real(base):
        return  # `test_conformance.py` compares the frequencies
    switched = with_config(model_type, rules.edited(content, planned.plan.edits), base)

    before = rules.run(base, rules.OLD)
    if before is None:
        return
    after = rules.run(switched, rules.OLD)
    long = rules.run(switched, rules.NEW)
    again = rules.run(switched, rules.OLD)

    assert after is not None
    assert again is not None
    assert torch.equal(after, again)
    if "identical outputs" in text_of(planned, "short-inputs"):
        assert torch.equal(after, before)
    else:
        assert largest(after - before) <= ROUNDING * largest(before)
    assert long is not None
    layers = inspect(tmp_path).schemes[0].layers[0]
    if not all(
        "yarn" in methods for methods in METHODS[model_type]
    ):  # the classes of Phi-3 turn yarn settings into lists
        check_long_frequencies(switched, layers.parameters)
        return
    method = None  # the rope type stays
    if layers.parameters["rope_type"] in ("default", "yarn"):
        method = f"yarn:attention-factor={layers.attention_factor}"
    edits = plan_resize(tmp_path, rules.NEW, method).plan.edits
    scaled = with_config(model_type, rules.edited(content, edits), base)
    expected = rules.run(scaled, rules.NEW)
    assert expected is not None
    assert largest(long - expected) <= ROUNDING * largest(expected)


def check_long_frequencies(model: Any, settings: Mapping[str, Any]) -> None:
    """Check the frequencies that a long input leaves in a model: those of yarn settings."""
    (module,) = [module for module in model.modules() if hasattr(module, "inv_freq")]
    rules.run(model, rules.NEW)
    scaling = {"factor": rules.NEW / rules.OLD, "original_max_position_embeddings": rules.OLD}
    yarn = {**settings, "rope_type": "yarn", **scaling}
    expected = frequencies(yarn, 2 * len(module.inv_freq), rules.NEW)
    found = module.inv_freq.double().numpy()
    np.testing.assert_allclose(found, expected.inverse, rtol=1e-6)
    assert module.attention_scaling == 1


def with_config(model_type: str, content: dict[str, Any], base: Any) -> Any:
    """Build a model with another config and the weights of a base."""
    model = rules.build(model_type, rules.load_config(content))
    model.load_state_dict(base.state_dict())
    return model


def largest(values: torch.Tensor) -> float:
    return float(values.abs().max())
