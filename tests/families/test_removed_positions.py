"""Every rotary model type is converted to one without positions, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ctxextend.errors import MethodError, UnsupportedModelError
from ctxextend.families.causal_masks import WITHOUT_CAUSAL_MASK
from ctxextend.families.known_types import FAMILIES
from ctxextend.families.lookup import find_architecture
from ctxextend.positions.rotary import with_removed_positions
from ctxextend.opening.opened_model import open_model
from ctxextend.plan.removal_plan import plan_removal
from ctxextend.positions.rotary import Rotary
from ctxextend.settings import CheckpointRef, Convert
from tests.helpers import model_types, rules

# With such positions in the model itself, not in a part.
ROTARY = {
    name
    for name, family in FAMILIES.items()
    if any(isinstance(table, Rotary) for table in family.tables)
}
# Classes that cannot be set to no rotation, and why.
REFUSED = {
    **dict.fromkeys(
        ("beam", "codegen", "dbrx", "gptj", "moonshine", "recurrent_gemma"),
        "transformers ignores the rotary settings",
    ),
    **dict.fromkeys(
        ("cosmos3_edge_text", "ernie4_5_vl_moe_text", "phi3", "phi4_multimodal", "phimoe"),
        "apply only theta",
    ),
    **dict.fromkeys(("ministral3", "mistral4"), "scales the queries"),
    **dict.fromkeys(WITHOUT_CAUSAL_MASK, "no causal mask"),
}
TYPES = sorted(ROTARY - {"esm"})  # whose default config has learned positions
LENGTH = 48  # tokens of an input
SCALE = 0.3  # of weights, with which outputs depend on positions
SMALLEST_TURN = 1e-12  # radians per position, of settings that rotate nothing


def at_start(module: Any, arguments: Any, output: Any) -> Any:
    """Return the cosines and sines of position 0, unscaled, in the form of a module's output."""
    if isinstance(output, tuple):
        cosines, sines = output
        return torch.ones_like(cosines), torch.zeros_like(sines)
    return torch.ones_like(output)  # complex numbers


def randomise(model: Any) -> None:
    """Give the matrices of a model large random values, the same in every model of a class."""
    generator = torch.Generator().manual_seed(0)
    for _, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        if parameter.dim() >= 2:
            parameter.data = torch.randn(parameter.shape, generator=generator) * SCALE


@pytest.mark.parametrize("model_type", model_types.parameters(TYPES))
def test_plan_removal_gives_what_the_classes_compute_without_rotation(
    model_type: str, tmp_path: Path
) -> None:
    config = rules.make_config(model_type)
    content = rules.save(config, tmp_path)
    model = open_model(CheckpointRef(str(tmp_path)))
    if model_type in REFUSED:
        with pytest.raises((MethodError, UnsupportedModelError), match=REFUSED[model_type]):
            plan_removal(model, Convert("none"))
        return
    edited = rules.edited(content, plan_removal(model, Convert("none")).edits)
    schemes = {item.scheme for item in with_removed_positions(find_architecture(edited)).locations}
    assert schemes == {"none"}
    converted = rules.build(model_type, rules.load_config(edited))
    if converted is None:
        return
    for _, module in rules.rotary_modules(converted, converted.config.model_type):
        for name, turns in type(module)(module.config).named_buffers():
            assert not name.endswith("inv_freq") or turns.abs().max() <= SMALLEST_TURN, name
    base = rules.build(model_type, rules.load_config(content))
    if base is not None and rules.is_real(base):
        check_outputs(base, converted)


def check_outputs(base: Any, converted: Any) -> None:
    """Check that a model gives what its base does without rotation."""
    randomise(base)
    randomise(converted)
    rotated = rules.run(base, LENGTH)
    for _, module in rules.rotary_modules(base, base.config.model_type):
        module.register_forward_hook(at_start)
    expected = rules.run(base, LENGTH)
    if expected is None or rotated is None:
        return  # it reads others than text
    assert not torch.allclose(rotated, expected, atol=1e-3)
    found = rules.run(converted, LENGTH)
    assert found is not None
    assert torch.equal(found, expected)
    start = rules.run(converted, LENGTH // 2)
    assert start is not None
    same = found[:, : LENGTH // 2]
    assert torch.allclose(start, same, rtol=1e-3, atol=1e-3), "it sees later tokens"


@pytest.mark.parametrize(
    ("settings", "scheme"),
    [
        ({"rope_type": "proportional", "partial_rotary_factor": 0.0}, "none"),
        ({"rope_type": "proportional", "partial_rotary_factor": 0}, "none"),
        ({"rope_type": "proportional", "partial_rotary_factor": 0.5}, "rotary"),
        ({"rope_type": "linear", "factor": 1e12}, "none"),
        ({"rope_type": "linear", "factor": 1e11}, "rotary"),
        ({"rope_type": "default", "partial_rotary_factor": 0.0}, "rotary"),  # malformed
        ({"rope_type": "unknown"}, "rotary"),  # malformed
    ],
)
def test_with_removed_positions_finds_settings_that_rotate_nothing(
    settings: dict[str, Any], scheme: str
) -> None:
    config = {
        "model_type": "llama",
        "max_position_embeddings": 16,
        "rope_parameters": {"rope_theta": 1e4, **settings},
    }
    location = with_removed_positions(find_architecture(config)).locations[0]
    assert location.scheme == scheme
    assert location.length_key == "max_position_embeddings"


def test_with_removed_positions_reads_all_types_of_layers() -> None:
    stopped = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.0}
    turning = {"rope_type": "default", "rope_theta": 1e4}
    layers = {"full_attention": stopped, "sliding_attention": turning}
    config = {"model_type": "gemma3_text", "rope_parameters": layers}
    assert scheme_of(config) == "rotary"
    config["rope_parameters"] = dict.fromkeys(layers, stopped)
    assert scheme_of(config) == "none"


def scheme_of(config: dict[str, Any]) -> str:
    return with_removed_positions(find_architecture(config)).locations[0].scheme
