import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ctxextend.errors import CtxextendError, MethodError, ResizeError
from ctxextend.tables.frequencies import FORMULAS, frequencies
from ctxextend.tables.method_facts import LIMITS
from ctxextend.tables.rotary_methods import (
    ROTARY_METHOD_NAMES,
    RopeLengths,
    resize_rope,
)

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
        LINEAR,
        LINEAR | {"partial_rotary_factor": 0.5},
        DYNAMIC,
        DYNAMIC | {"partial_rotary_factor": 0.75},
        YARN,
        YARN | {"factor": None},
        YARN | {"factor": 1.0, "partial_rotary_factor": 0.5},
        YARN | {"truncate": False, "beta_fast": 20.0, "beta_slow": 2.0},
        YARN | {"beta_fast": 4000.0, "beta_slow": 1e-9},  # both ends of the ramp are clipped
        YARN | {"beta_fast": 1e-9, "beta_slow": 1e-9},  # the ramp is a step
        YARN | {"attention_factor": 1.5, "mscale": 1.0},
        YARN | {"mscale": 0.707, "mscale_all_dim": 1.2},
        YARN | {"mscale": 0.707},
        LONGROPE,
        LONGROPE | {"factor": 8.0},
        LONGROPE | {"factor": 0.5},
        LONGROPE | {"attention_factor": 1.19},
        LLAMA3,
        LLAMA3
        | {
            "factor": 32.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 3.0,
            "partial_rotary_factor": 0.5,
        },
        PROPORTIONAL,
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


def test_frequencies_match_values_checked_by_eye() -> None:
    default = {"rope_type": "default", "rope_theta": 10_000}
    linear = default | {"rope_type": "linear", "factor": 4}
    dynamic = default | {"rope_type": "dynamic", "factor": 4}

    found = frequencies(default, 4, 16)
    np.testing.assert_allclose(found.inverse, [1, 0.01])

    found = frequencies(linear, 4, 16)
    np.testing.assert_allclose(found.inverse, [0.25, 0.0025])

    # The exponent d/(d-2) is 2, so the base becomes 10,000·(4·32/16 - 3)² = 250,000 and the lower
    # frequency 0.01 / 5.
    found = frequencies(dynamic, 4, 16, 32)
    np.testing.assert_allclose(found.inverse, [1, 0.002])

    unscaled = frequencies(default, 4, 16)
    within_max_len = frequencies(dynamic, 4, 16, 9)
    assert within_max_len.inverse.tolist() == unscaled.inverse.tolist()


@pytest.mark.parametrize(
    ("rope", "lengths", "method", "expected", "text"),
    [
        (
            DEFAULT,
            (2048, 5000),
            None,
            {"rope_type": "yarn", "factor": 2.44140625, TRAINED: 2048},
            "factor=2.44140625",
        ),
        (
            DEFAULT,
            (2048, 8192),
            "auto",
            {"rope_type": "yarn", "factor": 4.0, TRAINED: 2048},
            "factor=4",
        ),
        (
            DEFAULT,
            (2048, 8192),
            "yarn:factor=5",
            {"rope_type": "yarn", "factor": 5.0, TRAINED: 2048},
            "factor=5",
        ),
        (
            DEFAULT,
            (2048, 8192),
            "yarn:factor=4,beta-fast=16,beta-slow=2,attention-factor=1.5",
            {
                "rope_type": "yarn",
                "factor": 4.0,
                TRAINED: 2048,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": 1.5,
            },
            "factor=4,beta-fast=16,beta-slow=2,attention-factor=1.5",
        ),
        (DEFAULT, (2048, 8192), "linear", {"rope_type": "linear", "factor": 4.0}, "factor=4"),
        (DEFAULT, (2048, 8192), "dynamic", {"rope_type": "dynamic", "factor": 4.0}, "factor=4"),
        # 10,000·2^(64/62)
        (
            DEFAULT,
            (2048, 4096),
            "theta",
            {"rope_theta": pytest.approx(20452.3, abs=0.1)},
            "factor=2",
        ),
        (
            DEFAULT,
            (2048, 4097),
            "theta",
            {"rope_theta": pytest.approx(20457.4, abs=0.1)},
            "factor=2.00048828125",
        ),
        (YARN, (4096, 8192), None, {"factor": 8.0}, "factor=8"),
        (YARN, (4096, 8192), "yarn:factor=3", {"factor": 3.0}, "factor=3"),
        (
            YARN | {"mscale": 1.0, "attention_factor": 1.2, "beta_fast": 9},
            (4096, 6000),
            "yarn",
            {"factor": 5.859375},
            "",
        ),
        (YARN | {"factor": None}, (4096, 8192), None, {"factor": 8.0}, "factor=8"),
        (LLAMA3, (16_384, 32_768), None, {"factor": 16.0}, "factor=16"),
        (LINEAR, (4096, 8192), "linear", {"factor": 5.0}, "factor=5"),
        (DYNAMIC, (4096, 8192), None, {"factor": 4.0}, "factor=4"),
        (PROPORTIONAL, (4096, 8192), None, {"factor": 2.0}, "factor=2"),
        (PROPORTIONAL | {"factor": 8.0}, (4096, 8192), None, {"factor": 16.0}, "factor=16"),
        (LONGROPE | {"factor": 32.0}, (4096, 32_768), None, {}, ""),
        (
            DEFAULT | {"mrope_section": [8, 12, 12]},
            (10, 30),
            None,
            {"rope_type": "yarn", "factor": 3.0, TRAINED: 10},
            "",
        ),
    ],
)
def test_resize_rope_changes_only_what_the_method_needs(
    rope: dict[str, Any],
    lengths: tuple[int, int],
    method: str | None,
    expected: dict[str, Any],
    text: str,
) -> None:
    changed_lengths = change(rope, *lengths)

    parameters, choice = resize_rope(rope, changed_lengths, 64, *split(method))

    assert parameters == rope | expected
    if method in (None, "auto"):
        name = parameters["rope_type"]
        assert choice.reason
    else:
        name, _ = split(method)
        assert bool(choice.reason) == (method == "theta")
    assert choice.text.startswith(name)
    assert choice.text.endswith(text)
    assert choice.facts.keeps_max_len == (name == "dynamic")
    # The recorded text reproduces the settings exactly.
    again, same = resize_rope(rope, changed_lengths, 64, *split(choice.text))
    assert again == parameters
    assert replace(same, reason=choice.reason) == choice


def change(rope: dict[str, Any], served: int, after: int) -> RopeLengths:
    """Return the lengths of settings that state the first trained one, or serve no more."""
    return RopeLengths(first_trained=rope.get(TRAINED, served), served=served, after=after)


def split(method: str | None) -> tuple[str, dict[str, float]]:
    """Return the name and the settings of a method as text."""
    if method is None:
        return "auto", {}
    name, _, settings = method.partition(":")
    given: dict[str, float] = {}
    for setting in settings.split(",") if settings else ():
        key, _, value = setting.partition("=")
        given[key.replace("-", "_")] = float(value)
    return name, given


def test_resize_rope_writes_the_trained_length_of_types_that_read_it() -> None:
    # Without it, transformers takes the raised max_position_embeddings.
    lengths = RopeLengths(first_trained=1024, served=1024, after=8192)
    for rope in (YARN, LLAMA3, LONGROPE | {"factor": 9.0}):
        without_length = {key: value for key, value in rope.items() if key != TRAINED}
        parameters, _ = resize_rope(without_length, lengths, 64)
        assert parameters[TRAINED] == 1024


def test_resize_rope_scales_from_the_served_length_if_the_type_states_no_trained_one() -> None:
    lengths = RopeLengths(first_trained=4096, served=4096, after=8192)
    # transformers does not read the key in settings of this type.
    parameters, _ = resize_rope(PROPORTIONAL | {TRAINED: 1024}, lengths, 64)
    assert parameters["factor"] == 2.0


def test_switch_states_factors_of_1_for_short_inputs_and_those_of_yarn_for_long_ones() -> None:
    # Of 4 pairs with base 256, those of frequency 1, 1/4, 1/16 and 1/64 turn 256/(2π) = 41, 10, 2.5
    # and 0.6 times within 256 tokens; 32 turns and 1 turn are at the pairs 0.17 and 2.7, so rounded
    # outwards at 0 and 3, and a third of the way down the ramp the factor 4 divides by 4/3.
    rope = {"rope_type": "default", "rope_theta": 256.0, "mrope_section": [1, 1, 2]}

    parameters, choice = resize_rope(rope, change(rope, 256, 1024), 8, "switch")

    assert parameters == {
        **rope,
        "rope_type": "longrope",
        "factor": 4.0,
        TRAINED: 256,
        "attention_factor": 1.0,
        "short_factor": [1.0] * 4,
        "long_factor": pytest.approx([1, 4 / 3, 2, 4]),
    }
    assert choice.text == "switch:factor=4"
    yarn, _ = resize_rope(rope, change(rope, 256, 1024), 8, "yarn")
    expected = frequencies(yarn, 8, 1024).inverse
    np.testing.assert_allclose(frequencies(parameters, 8, 1024, 257).inverse, expected, rtol=1e-15)
    plain = frequencies(rope, 8, 256)
    assert frequencies(parameters, 8, 1024, 256).inverse.tolist() == plain.inverse.tolist()


@pytest.mark.parametrize(
    "rope", [LINEAR, LLAMA3, YARN | {"attention_factor": 1.25, "truncate": False}]
)
def test_switch_keeps_what_scaled_settings_give_short_inputs(rope: dict[str, Any]) -> None:
    lengths = RopeLengths(first_trained=1024, served=4096, after=16_384)

    parameters, _ = resize_rope(rope, lengths, 64, "switch")

    longer, _ = resize_rope(rope, lengths, 64)
    short = frequencies(rope, 64, 4096)
    for length, expected in ((4096, short), (4097, frequencies(longer, 64, 16_384))):
        found = frequencies(parameters, 64, 16_384, length)
        np.testing.assert_allclose(found.inverse, expected.inverse, rtol=1e-14)
        assert found.attention_factor == short.attention_factor
    leftover = {"low_freq_factor", "high_freq_factor", "truncate", "type"} & parameters.keys()
    assert not leftover


def test_theta_divides_the_lowest_frequency_by_the_factor() -> None:
    before = frequencies(DEFAULT, 64, 2048).inverse
    parameters, _ = resize_rope(DEFAULT, change(DEFAULT, 2048, 8192), 64, "theta")
    after = frequencies(parameters, 64, 8192).inverse
    divisors = before / after
    np.testing.assert_allclose(divisors[[0, -1]], [1, 4])
    assert (np.diff(divisors) > 0).all()


SERVING_METHODS = [name for name in ROTARY_METHOD_NAMES if name not in ("llama3", "proportional")]


@pytest.mark.parametrize("method", SERVING_METHODS)
def test_methods_serve_the_longer_input_with_the_slowest_pair(method: str) -> None:
    """The slowest pair turns no further at the new length than it did at the trained length."""
    rope = DEFAULT
    if method == "longrope":
        rope = LONGROPE | {"factor": 4.0}

    parameters, choice = resize_rope(rope, change(rope, 1024, 4096), 64, method)

    max_len = 4096
    if choice.facts.keeps_max_len:
        max_len = 1024
    before = frequencies(DEFAULT, 64, 1024)
    after = frequencies(parameters, 64, max_len, 4096)
    trained_angle = 1024 * before.inverse[-1]
    new_angle = 4096 * after.inverse[-1]
    assert new_angle <= trained_angle * (1 + 1e-12)


@pytest.mark.parametrize(
    ("rope", "lengths", "dim", "method", "error", "message"),
    [
        (
            LLAMA3,
            (9, 18),
            64,
            "linear",
            MethodError,
            "the model already has llama3 settings, which are kept. Remove",
        ),
        (DYNAMIC, (9, 18), 64, "switch", MethodError, "what dynamic settings give"),
        (
            LONGROPE | {"attention_factor": 1.0},
            (9, 18),
            64,
            "switch",
            MethodError,
            "its base instead",
        ),
        (
            YARN | {"mscale_all_dim": 1.0},
            (9, 18),
            64,
            "switch",
            MethodError,
            "scale their attention by mscale_all_dim and the factor. Use --method yarn.",
        ),
        (
            DEFAULT,
            (9, 18),
            64,
            "yarn:beta-fast=2,beta-slow=2",
            MethodError,
            "above beta-slow, got 2",
        ),
        (DEFAULT, (9, 18), 7, "switch", MethodError, "7 rotated values per head are no pairs"),
        (DEFAULT, (9, 18), 2, "theta", ResizeError, "2 rotated values per head"),
        (
            DEFAULT,
            (9, 18),
            64,
            "longrope",
            MethodError,
            "the model has no longrope settings. Use yarn, switch, linear, dynamic",
        ),
        (
            DEFAULT,
            (9, 18),
            64,
            "yarn:factor=0.5",
            ResizeError,
            "factor must be a number from 1 on, below 1e12, got 0.5.",
        ),
        (
            DEFAULT,
            (9, 18),
            64,
            "linear:factor=1e12",  # it would rotate nothing
            ResizeError,
            "factor must be a number from 1 on, below 1e12, got 1000000000000.0.",
        ),
        (LLAMA3 | {"factor": math.nan}, (9, 18), 64, None, ResizeError, "got nan"),
        (DEFAULT, (9, 18), 2, "theta", ResizeError, "2 rotated values per head"),
        (
            LONGROPE,
            (4096, 4097),
            64,
            None,
            ResizeError,
            "serve 4096 tokens, not 4097. A length above 4096 needs other lists",
        ),
    ],
)
def test_resize_rope_refuses_what_does_not_apply(
    rope: dict[str, Any],
    lengths: tuple[int, int],
    dim: int,
    method: str | None,
    error: type[Exception],
    message: str,
) -> None:
    name, given = split(method)
    changed_lengths = change(rope, *lengths)
    with pytest.raises(CtxextendError, match=message) as raised:
        resize_rope(rope, changed_lengths, dim, name, given)
    assert raised.type is error


def test_resize_rope_refuses_to_scale_if_the_model_type_applies_no_method() -> None:
    lengths = change(DEFAULT, 9, 18)
    message = r"applies no method that scales .* To raise only limits, use --method limits\."
    for method in ("auto", "yarn"):
        with pytest.raises(MethodError, match=message):
            resize_rope(DEFAULT, lengths, 64, method, methods=())
    parameters, choice = resize_rope(DEFAULT, lengths, 64, LIMITS, methods=())
    assert parameters == DEFAULT
    assert choice.name == LIMITS
