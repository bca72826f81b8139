"""Every rotary model type is converted to one without positions, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ctxextend import MethodError, UnsupportedModelError, convert, inspect, list_families
from ctxextend.families.registry import FAMILIES
from tests.helpers import model_types, rules
from tests.helpers.rotary_configs import save_config

# With such positions in the model itself, not in a part.
ROTARY = {
    table.model_type for table in list_families() if table.scheme == "rotary" and not table.part
}
# Classes that cannot be set to no rotation, and why.
REFUSED = {
    **dict.fromkeys(
        ("beam", "codegen", "dbrx", "gptj", "moonshine", "recurrent_gemma"),
        "apply no rotary settings",
    ),
    **dict.fromkeys(
        ("cosmos3_edge_text", "ernie4_5_vl_moe_text", "phi3", "phi4_multimodal", "phimoe"),
        "apply only theta",
    ),
    **dict.fromkeys(("ministral3", "mistral4"), "scales the queries"),
    **{name: "no causal mask" for name, facts in FAMILIES.items() if not facts.has_causal_mask},
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
def test_convert_gives_what_the_classes_compute_without_rotation(
    model_type: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    output = tmp_path / "output"
    content = rules.save(rules.make_config(model_type), source)
    if model_type in REFUSED:
        with pytest.raises((MethodError, UnsupportedModelError), match=REFUSED[model_type]):
            convert(source, "none", output=output)
        return
    convert(source, "none", output=output)
    assert {scheme.scheme for scheme in inspect(output).schemes} == {"none"}
    converted = rules.build(model_type, rules.load_config(rules.read_content(output)))
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


STOPPED = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.0}
TURNING = {"rope_type": "default", "rope_theta": 1e4}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("model_type", "settings", "scheme"),
    [
        ("llama", STOPPED, "none"),
        ("llama", STOPPED | {"partial_rotary_factor": 0.5}, "rotary"),
        ("gemma3_text", {"full_attention": STOPPED, "sliding_attention": TURNING}, "rotary"),
    ],
)
def test_inspect_finds_settings_that_rotate_nothing(
    model_type: str, settings: dict[str, Any], scheme: str, tmp_path: Path
) -> None:
    config = {"model_type": model_type, "max_position_embeddings": 16, "rope_parameters": settings}
    save_config(tmp_path / "source", config)
    (report,) = inspect(tmp_path / "source").schemes
    assert report.scheme == scheme
