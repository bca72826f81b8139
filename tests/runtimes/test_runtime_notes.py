"""What `resize` says about runtimes."""

from typing import Any

import pytest

from ctxextend.runtimes.rule_schema import RuntimeOutcome, RuntimeStatement
from ctxextend.runtimes.runtime_notes import describe_ignored_factor, describe_statements
from ctxextend.runtimes.runtimes import find_runtime

FLAGS = "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 256"


def statement(
    key: str, outcome: RuntimeOutcome = RuntimeOutcome.SERVES, **values: Any
) -> RuntimeStatement:
    fields = {"length": 1024, "option": "", "reason": "", "evidence": "run", **values}
    return RuntimeStatement(runtime=find_runtime(key), outcome=outcome, **fields)


def test_describe_statements_lists_who_reads_the_length() -> None:
    statements = [statement("transformers"), statement("vllm"), statement("llama.cpp")]
    assert describe_statements(statements, 1024) == (
        "Context length 1024 in transformers, vLLM, llama.cpp.",
    )


def test_describe_statements_says_nothing_without_rules() -> None:
    assert describe_statements([], 1024) == ()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            statement("vllm", RuntimeOutcome.DERIVES, length=4096, option="--max-model-len 1024"),
            "vLLM takes 4096 for the context length: add --max-model-len 1024.",
        ),
        (
            statement("tei", RuntimeOutcome.DERIVES, length=1026),
            "TEI takes 1026 for the context length.",
        ),
        (
            statement("mlx", RuntimeOutcome.IGNORES),
            "Loads, but without the new settings, in mlx-lm.",
        ),
        (
            statement("mlx", RuntimeOutcome.IGNORES, reason="it reads a, not b"),
            "Loads, but without the new settings, in mlx-lm: it reads a, not b.",
        ),
        (
            statement("llama.cpp", RuntimeOutcome.IGNORES, option=FLAGS),
            f"Loads, but without the new settings, in llama.cpp: {FLAGS} makes it right.",
        ),
        (
            statement("llama.cpp", RuntimeOutcome.IGNORES, reason="it drops them", option=FLAGS),
            "Loads, but without the new settings, in llama.cpp: it drops them; "
            f"{FLAGS} makes it right.",
        ),
        (
            statement("sglang", RuntimeOutcome.DIFFERS, reason="it reads another base"),
            "Loads, but computes other positions, in SGLang: it reads another base.",
        ),
        (
            statement(
                "ctranslate2", RuntimeOutcome.REFUSES, length=None, reason="not yet implemented"
            ),
            "Does not load in CTranslate2: not yet implemented.",
        ),
    ],
)
def test_describe_statements_says_what_a_runtime_does(
    found: RuntimeStatement, expected: str
) -> None:
    assert describe_statements([found], 1024) == (expected,)


def test_describe_statements_joins_runtimes_with_the_same_reason() -> None:
    statements = [
        statement("transformers4", RuntimeOutcome.IGNORES, reason="a"),
        statement("mlx", RuntimeOutcome.IGNORES, reason="a"),
        statement("onnx", RuntimeOutcome.IGNORES, reason="b"),
        statement("openvino", RuntimeOutcome.REFUSES, reason="a"),
    ]
    assert describe_statements(statements, 1024) == (
        "Loads, but without the new settings, in transformers 4 and mlx-lm: a.",
        "Loads, but without the new settings, in ONNX: b.",
        "Does not load in OpenVINO: a.",
    )


def test_describe_ignored_factor_names_only_runtimes_that_read_the_rest() -> None:
    statements = [
        statement("transformers"),
        statement("sglang", ignores_attention_factor=True),
        statement("llama.cpp", RuntimeOutcome.IGNORES, option=FLAGS, ignores_attention_factor=True),
        statement("mlx", RuntimeOutcome.IGNORES, ignores_attention_factor=True),
    ]
    assert [*describe_ignored_factor(statements)] == [
        "The settings state an attention_factor, which SGLang and llama.cpp ignore: outputs differ "
        "from those of transformers."
    ]
    (one,) = describe_ignored_factor(statements[:2])
    assert "which SGLang ignores:" in one


def test_describe_ignored_factor_says_who_reads_it_of_lists_from_other_keys() -> None:
    statements = [
        statement("vllm", ignores_attention_factor=True),
        statement("mlx", ignores_attention_factor=True),
    ]
    (warning,) = describe_ignored_factor(statements, can_add_keys=True)
    assert warning.endswith(" --for vllm also states it as vLLM reads it.")
    (warning,) = describe_ignored_factor(statements)
    assert "--for" not in warning
    (warning,) = describe_ignored_factor(statements[1:], can_add_keys=True)
    assert "--for" not in warning


def test_describe_statements_says_who_gives_short_inputs_the_frequencies_of_long_ones() -> None:
    statements = [statement("vllm", ignores_short_list=True), statement("transformers")]
    _, short_inputs = describe_statements(statements, 1024)
    assert short_inputs == (
        "vLLM gives every input the frequencies of long ones, so the outputs for short inputs "
        "change there."
    )


def test_describe_statements_makes_no_promise_for_an_attention_factor_that_is_ignored() -> None:
    fields: dict[str, Any] = {"option": "--betas", "reason": "it takes other betas"}
    right = statement("llama.cpp", RuntimeOutcome.DIFFERS, **fields)
    wrong = statement("llama.cpp", RuntimeOutcome.DIFFERS, **fields, ignores_attention_factor=True)
    start = "Loads, but computes other positions, in llama.cpp: it takes other betas; --betas makes"
    assert describe_statements([right], 1024) == (f"{start} it right.",)
    assert describe_statements([wrong], 1024) == (f"{start} all right but the attention factor.",)


def test_describe_ignored_factor_says_nothing_if_no_runtime_ignores_it() -> None:
    assert [*describe_ignored_factor([statement("transformers")])] == []
