from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ctxextend import CtxextendError, inspect, resize, run
from ctxextend.tables.frequencies import FORMULAS, frequencies
from tests.helpers.pico import config_of
from tests.helpers.rotary_configs import save_config

TRAINED = "original_max_position_embeddings"
DEFAULT = {"rope_type": "default", "rope_theta": 10_000.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, TRAINED: 1024}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, TRAINED: 1024}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
DYNAMIC = DEFAULT | {"rope_type": "dynamic", "factor": 2.0}
LINEAR = DEFAULT | {"rope_type": "linear", "factor": 2.5}
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
LISTS = {"short_factor": [1.0, 1.1, 1.2, 1.5] * 8, "long_factor": [1.0, 2.0, 4.0, 9.5] * 8}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, TRAINED: 1024, **LISTS}


@pytest.mark.parametrize(
    "rope",
    [
        LINEAR | {"partial_rotary_factor": 0.5},
        DYNAMIC | {"partial_rotary_factor": 0.75},
        YARN | {"factor": None},
        YARN | {"truncate": False, "beta_fast": 20.0, "beta_slow": 2.0},
        YARN | {"beta_fast": 4000.0, "beta_slow": 1e-9},
        YARN | {"beta_fast": 1e-9, "beta_slow": 1e-9},
        YARN | {"mscale": 0.707, "mscale_all_dim": 1.2},
        YARN | {"mscale": 0.707},
        LONGROPE | {"factor": 8.0},
        LONGROPE | {"attention_factor": 1.19},
        LLAMA3
        | {
            "factor": 32.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 3.0,
            "partial_rotary_factor": 0.5,
        },
        PROPORTIONAL | {"factor": 8.0, "partial_rotary_factor": 1.0},
    ],
)
def test_frequencies_equal_those_of_transformers(rope: dict[str, Any]) -> None:
    max_len = 4096
    rope_type = rope["rope_type"]
    config = LlamaConfig(head_dim=64, max_position_embeddings=max_len, rope_parameters=dict(rope))
    compute = ROPE_INIT_FUNCTIONS[rope_type]
    dim = 64
    if rope_type != "proportional":
        dim = int(64 * rope.get("partial_rotary_factor", 1.0))

    for length in (1, 1024, 1025, 4096, 10_000):
        inverse, attention_factor = compute(config, "cpu", seq_len=length)
        found = frequencies(rope, dim, max_len, length)
        np.testing.assert_allclose(found.inverse, inverse.numpy(), rtol=2e-6)
        assert found.attention_factor == pytest.approx(attention_factor, rel=1e-12)

    by_default = frequencies(rope, dim, max_len)
    at_max_len = frequencies(rope, dim, max_len, max_len)
    assert np.array_equal(by_default.inverse, at_max_len.inverse)


def test_frequencies_cover_all_rope_types_of_transformers() -> None:
    assert {*FORMULAS} == {"default", *ROPE_INIT_FUNCTIONS}
    config = LlamaConfig(head_dim=64, rope_parameters=dict(DEFAULT))
    expected, _ = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    assert isinstance(expected, torch.Tensor)
    found = frequencies(DEFAULT, 64, 2048)
    np.testing.assert_allclose(found.inverse, expected.numpy(), rtol=1e-6)


Lengths = tuple[int, int]  # that the settings serve, before and after


def resized(
    rope: dict[str, Any], lengths: Lengths, method: str | None = None, head_dim: int = 64
) -> dict[str, Any]:
    """Return the settings of a resized model, whose output is a folder named after the method."""
    before, after = lengths
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "head_dim": head_dim}
    config = {"model_type": "llama", **sizes, "max_position_embeddings": before}
    name = str(method).partition(":")[0]
    save_config(Path(f"{name}-base"), {**config, "rope_parameters": rope})
    output = resize(f"{name}-base", after, method, output=name).output
    return dict(inspect(output).schemes[0].layers[0].parameters)


@pytest.mark.parametrize(
    ("rope", "lengths", "method", "expected", "text"),
    [
        (
            DEFAULT,
            (2048, 5000),
            None,
            {"rope_type": "yarn", "factor": 2.44140625, TRAINED: 2048},
            "yarn:factor=2.44140625",
        ),
        (
            DEFAULT,
            (2048, 8192),
            "yarn:factor=5,beta-fast=16,beta-slow=2,attention-factor=1.5",
            {
                "rope_type": "yarn",
                "factor": 5.0,
                TRAINED: 2048,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": 1.5,
            },
            "yarn:factor=5,beta-fast=16,beta-slow=2,attention-factor=1.5",
        ),
        (
            DEFAULT,
            (2048, 4096),
            "theta",
            {"rope_theta": pytest.approx(20452.3, abs=0.1)},
            "theta:factor=2",
        ),
        (LONGROPE | {"factor": 32.0}, (4096, 32_768), None, {}, "limits"),
    ],
)
def test_resize_changes_only_what_the_method_needs(
    rope: dict[str, Any],
    lengths: Lengths,
    method: str | None,
    expected: dict[str, Any],
    text: str,
) -> None:
    assert resized(rope, lengths, method) == rope | expected
    output = Path(str(method).partition(":")[0])
    recipe = (output / "ctxextend.yaml").read_text()
    assert f"method: {text}\n" in recipe
    run(output / "ctxextend.yaml", "again")
    assert config_of("again") == config_of(output)


def test_switch_states_factors_of_1_for_short_inputs_and_those_of_yarn_for_long_ones() -> None:
    # Of 4 pairs with base 256, those of frequency 1, 1/4, 1/16 and 1/64 turn 256/(2π) = 41, 10, 2.5
    # and 0.6 times within 256 tokens; 32 turns and 1 turn are at the pairs 0.17 and 2.7, so rounded
    # outwards at 0 and 3, and a third of the way down the ramp the factor 4 divides by 4/3.
    rope = {"rope_type": "default", "rope_theta": 256.0, "mrope_section": [1, 1, 2]}

    parameters = resized(rope, (256, 1024), "switch", 8)

    assert parameters == {
        **rope,
        "rope_type": "longrope",
        "factor": 4.0,
        TRAINED: 256,
        "attention_factor": 1.0,
        "short_factor": [1.0] * 4,
        "long_factor": pytest.approx([1, 4 / 3, 2, 4]),
    }
    yarn = resized(rope, (256, 1024), "yarn", 8)
    expected = frequencies(yarn, 8, 1024).inverse
    np.testing.assert_allclose(frequencies(parameters, 8, 1024, 257).inverse, expected, rtol=1e-15)
    plain = frequencies(rope, 8, 256)
    assert frequencies(parameters, 8, 1024, 256).inverse.tolist() == plain.inverse.tolist()


@pytest.mark.parametrize(
    "rope",
    [
        LLAMA3,
        YARN | {"attention_factor": 1.25, "truncate": False},
    ],
)
def test_switch_keeps_what_scaled_settings_give_short_inputs(rope: dict[str, Any]) -> None:
    served = int(1024 * rope["factor"])
    parameters = resized(rope, (served, 4 * served), "switch")

    longer = resized(rope, (served, 4 * served))
    short = frequencies(rope, 64, served)
    long = frequencies(longer, 64, 4 * served)
    for length, expected in ((served, short), (served + 1, long)):
        found = frequencies(parameters, 64, 4 * served, length)
        np.testing.assert_allclose(found.inverse, expected.inverse, rtol=1e-14)
        assert found.attention_factor == short.attention_factor
    leftover = {"low_freq_factor", "high_freq_factor", "truncate"} & parameters.keys()
    assert not leftover


@pytest.mark.parametrize("method", ["yarn", "switch", "linear", "dynamic", "theta", "longrope"])
def test_methods_serve_the_longer_input_with_the_slowest_pair(method: str) -> None:
    """The slowest pair turns no further at the new length than it did at the trained length."""
    rope = DEFAULT
    if method == "longrope":
        rope = LONGROPE | {"factor": 4.0}

    parameters = resized(rope, (1024, 4096), method)

    max_len = 4096
    if method == "dynamic":
        max_len = 1024
    before = frequencies(DEFAULT, 64, 1024)
    after = frequencies(parameters, 64, max_len, 4096)
    trained_angle = 1024 * before.inverse[-1]
    new_angle = 4096 * after.inverse[-1]
    assert new_angle <= trained_angle * (1 + 1e-12)


@pytest.mark.parametrize(
    ("rope", "method", "message"),
    [
        (
            LLAMA3,
            "linear",
            "rotary settings of type llama3 in this model. Use llama3",
        ),
        (DYNAMIC | {TRAINED: 1024}, "switch", "rotary settings of type dynamic"),
        (
            YARN | {"mscale_all_dim": 1.0},
            "switch",
            "rotary settings of type yarn in this model. Use yarn.",
        ),
        (DEFAULT, "yarn:beta-fast=2,beta-slow=2", "above beta-slow, got 2"),
        (LONGROPE, None, "serve 4096 tokens, not 16384. A length above 4096 needs other lists"),
    ],
)
def test_resize_refuses_what_does_not_apply(
    rope: dict[str, Any], method: str | None, message: str
) -> None:
    with pytest.raises(CtxextendError) as caught:
        resized(rope, (4096, 16_384), method)
    assert message in str(caught.value)


@pytest.mark.parametrize(("head_dim", "method"), [(7, "switch"), (2, "theta")])
def test_resize_refuses_heads_without_enough_pairs(head_dim: int, method: str) -> None:
    with pytest.raises(CtxextendError, match=f"{head_dim} rotated values per head"):
        resized(DEFAULT, (256, 1024), method, head_dim)
