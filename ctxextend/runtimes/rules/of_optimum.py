"""ONNX and OpenVINO, as optimum exports a folder: an export has the frequencies of one length."""

from ctxextend.runtimes.rule_schema import (
    DYNAMIC,
    LEARNED,
    LINEAR,
    LLAMA3,
    LONGROPE,
    RAISED_THETA,
    SWITCHED,
    UNSCALED,
    YARN,
    Effect,
    Rule,
)

ONNX = "onnx"
OPENVINO = "openvino"

FROZEN = "the export has the frequencies of short inputs"
TABLES = ("bert", "gpt2")

RULES = (
    Rule(ONNX, (LEARNED,), TABLES),
    Rule(
        ONNX, (UNSCALED, RAISED_THETA, YARN, LINEAR), ("llama", "mistral", "phi", "qwen2", "qwen3")
    ),
    Rule(ONNX, (LLAMA3,), ("llama",)),
    Rule(ONNX, (DYNAMIC,), ("llama", "mistral", "qwen2", "qwen3"), Effect.IGNORES, reason=FROZEN),
    Rule(ONNX, (LONGROPE,), ("llama",), Effect.DIFFERS, reason=FROZEN),
    Rule(ONNX, (SWITCHED,), ("llama",), Effect.IGNORES, reason=FROZEN),
    Rule(OPENVINO, (LEARNED,), TABLES),
    Rule(OPENVINO, (UNSCALED, RAISED_THETA, YARN, LINEAR), ("llama", "mistral", "qwen2", "qwen3")),
    Rule(OPENVINO, (LLAMA3, LONGROPE, SWITCHED), ("llama",)),
    Rule(OPENVINO, (DYNAMIC,), ("llama", "mistral", "qwen2", "qwen3"), Effect.IGNORES),
)
