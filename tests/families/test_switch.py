"""`switch` in every model type: short inputs stay, and long ones get what scaled settings give."""

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctxextend import plan_resize
from ctxextend.errors import MethodError
from ctxextend.families.known_types import FAMILIES
from ctxextend.families.lookup import find_architecture
from ctxextend.plan import Plan
from ctxextend.positions.change import ShortInputs
from ctxextend.tables.frequencies import frequencies
from ctxextend.tables.method_facts import SWITCH
from tests.helpers import model_types, rules

ROTARY = {
    name
    for name in model_types.RULES - model_types.NO_CONFIG
    if any(table.rope is not None for table in FAMILIES[name].tables) or FAMILIES[name].parts
}
# What differs in outputs by another order of float32 operations, relative to their size.
ROUNDING = 5e-5


@pytest.mark.parametrize("model_type", model_types.parameters(ROTARY))
def test_switch_changes_only_long_inputs_of_every_type(model_type: str, tmp_path: Path) -> None:
    config = rules.make_config(model_type)
    content = rules.save(config, tmp_path)
    ropes = [location.rope for location in find_architecture(content).locations]
    if not all(rope is not None and SWITCH in rope.methods for rope in ropes):
        return
    try:
        plan = plan_resize(tmp_path, to=rules.NEW, method=SWITCH).plan
    except MethodError as error:
        assert "settings give inputs of each length" in error.message
        return
    base = rules.build(model_type, rules.load_config(content))
    if base is None or not rules.is_real(base):
        return  # `test_conformance.py` compares the frequencies
    switched = with_config(model_type, rules.edited(content, plan.edits), base)

    before = rules.run(base, rules.OLD)
    if before is None:
        return
    after = rules.run(switched, rules.OLD)
    long = rules.run(switched, rules.NEW)
    again = rules.run(switched, rules.OLD)

    assert after is not None
    assert again is not None
    assert torch.equal(after, again)
    if short_inputs(plan) == {ShortInputs.IDENTICAL}:
        assert torch.equal(after, before)
    else:
        assert largest(after - before) <= ROUNDING * largest(before)
    assert long is not None
    if all(rope is not None and "yarn" in rope.methods for rope in ropes):
        scaled = with_config(model_type, scaled_config(content, plan), base)
        expected = rules.run(scaled, rules.NEW)
        assert expected is not None
        assert largest(long - expected) <= ROUNDING * largest(expected)
    else:  # the classes of Phi-3 turn yarn settings into lists
        check_long_frequencies(switched, plan)


def check_long_frequencies(model: Any, plan: Plan) -> None:
    """Check the frequencies that the last input, a long one, left in a model."""
    (table,) = plan.changes
    (rope,) = table.rope
    assert rope.long_inputs_as is not None
    (module,) = [module for module in model.modules() if hasattr(module, "inv_freq")]
    rules.run(model, rules.NEW)
    dim = 2 * len(module.inv_freq)
    expected = frequencies(rope.long_inputs_as, dim, rules.NEW)
    found = module.inv_freq.double().numpy()
    np.testing.assert_allclose(found, expected.inverse, rtol=1e-6)
    assert module.attention_scaling == expected.attention_factor


def with_config(model_type: str, content: dict[str, Any], base: Any) -> Any:
    """Build a model with another config and the weights of a base."""
    model = rules.build(model_type, rules.load_config(content))
    model.load_state_dict(base.state_dict())
    return model


def scaled_config(content: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the config with the settings that long inputs correspond to, for all inputs."""
    scaled = rules.edited(content, plan.edits)
    for table in plan.changes:
        part = reduce(dict.__getitem__, table.location.path, scaled)
        for key in ("rope_scaling", "rope_theta", "original_max_position_embeddings"):
            part.pop(key, None)
        for rope in table.rope:
            assert rope.long_inputs_as is not None
            settings = dict(rope.long_inputs_as)
            if rope.before.layer_type:
                part["rope_parameters"][rope.before.layer_type] = settings
            else:
                part["rope_parameters"] = settings
    return scaled


def short_inputs(plan: Plan) -> set[ShortInputs]:
    return {rope.short_inputs for table in plan.changes for rope in table.rope}


def largest(values: torch.Tensor) -> float:
    return float(values.abs().max())
