"""Which context length runtimes derive from rotary settings, worked out by hand from their code."""

from typing import Any

import pytest

from ctxextend.families.runtimes import RUNTIMES, describe_runtimes, runtime_lengths

K = 1024
FIRST_32K: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32 * K,
}


@pytest.mark.parametrize(
    ("rope", "max_len", "expected"),
    [  # transformers, vLLM up to 0.29, vLLM after 0.29, SGLang, llama.cpp
        ({"rope_type": "default", "rope_theta": 1e6}, 16 * K, [16, 16, 16, 16, 16]),
        (FIRST_32K, 128 * K, [128, 128, 128, 128, 128]),
        # As the model card of Qwen2.5 says: only the rotary settings.
        (FIRST_32K, 32 * K, [128, 128, 32, 32, 32]),
        (
            {**FIRST_32K, "rope_type": "llama3", "original_max_position_embeddings": 8 * K},
            256 * K,
            [256] * 5,
        ),
        # The new length everywhere.
        ({"rope_type": "linear", "factor": 2.0}, 8 * K, [8, 16, 16, 16, 8]),
        # The old length stays.
        ({"rope_type": "dynamic", "factor": 4.0}, 4 * K, [16, None, None, 16, None]),
        ({"rope_type": "proportional", "factor": 2.0}, 256 * K, [256, None, None, None, None]),
        (
            {"rope_type": "longrope", "original_max_position_embeddings": 4 * K},
            128 * K,
            [128, 4, 4, 128, 128],
        ),
    ],
)
def test_runtime_lengths_follow_the_rules_of_each_runtime(
    rope: dict[str, Any], max_len: int, expected: list[int | None]
) -> None:
    served = expected[0]
    assert served is not None
    lengths = runtime_lengths(rope, max_len, served * K)
    names = [item.runtime for item in lengths]
    assert names == [*RUNTIMES]
    expected_lengths = [length and length * K for length in expected]
    found = [item.length for item in lengths]
    assert found == expected_lengths


def test_runtime_lengths_rounds_a_factor_that_is_not_exact() -> None:
    rope = {"rope_type": "yarn", "factor": 1001 / 1000, "original_max_position_embeddings": 1000}
    lengths = runtime_lengths(rope, 1001, 1001)
    found = {item.length for item in lengths}
    assert found == {1001}


def test_runtime_lengths_of_gemma3_are_never_multiplied() -> None:
    rope = {"rope_type": "linear", "factor": 16.0}
    lengths = runtime_lengths(rope, 256 * K, 256 * K, "gemma3_text")
    found = {item.length for item in lengths}
    assert found == {256 * K}


def test_all_runtimes_have_rules_for_the_same_rope_types() -> None:
    tables = {tuple(runtime.lengths) for runtime in RUNTIMES}
    assert len(tables) == 1


def test_runtime_lengths_says_that_it_has_no_rule_for_a_type() -> None:
    lengths = runtime_lengths({"rope_type": "spiral"}, 64, 64)
    found = {(item.rule, item.length) for item in lengths}
    assert found == {(None, None)}
    assert describe_runtimes(lengths, 64) == (
        "Context length 64 in no runtime; no rule for this rope type in transformers, vLLM, "
        "SGLang, llama.cpp."
    )


@pytest.mark.parametrize(
    ("rope", "max_len", "expected"),
    [
        ({"rope_type": "default"}, 64, "transformers, vLLM, SGLang, llama.cpp."),
        (
            {"rope_type": "dynamic", "factor": 4.0},
            16,
            "transformers, SGLang; not supported by vLLM, llama.cpp.",
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            16,
            "transformers, vLLM up to 0.29; other lengths: vLLM after 0.29 16, SGLang 16, "
            "llama.cpp 16 (set --max-model-len 64 or --context-length 64).",
        ),
    ],
)
def test_describe_runtimes_says_what_each_runtime_does(
    rope: dict[str, Any], max_len: int, expected: str
) -> None:
    lengths = runtime_lengths(rope, max_len, 64)
    described = describe_runtimes(lengths, 64)
    assert described == f"Context length 64 in {expected}"
