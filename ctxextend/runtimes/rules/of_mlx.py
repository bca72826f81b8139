"""mlx-lm: it reads ``rope_scaling`` and the keys next to it."""

from functools import partial

from ctxextend.runtimes.rule_schema import (
    COMMON_ROPE_TYPES,
    DYNAMIC,
    LEARNED,
    LINEAR,
    LLAMA3,
    LONGROPE,
    RAISED_THETA,
    REMOVED,
    ROPE_PARAMETERS,
    ROPE_SCALING,
    SWITCHED,
    UNSCALED,
    YARN,
    Effect,
    Rule,
)

MLX = "mlx"
rule = partial(Rule, MLX)

# Their modules call ``initialize_rope`` with the settings.
ALL_ROPE_TYPES = (
    "afmoe",
    "dots1",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "olmoe",
    "qwen2",
    "smollm3",
)
# Their modules use only ``rope_theta``.
ONLY_THETA = (
    "cohere",
    "cohere2",
    "ernie4_5",
    "gemma",
    "gemma2",
    "glm4",
    "gpt_neox",
    "helium",
    "mixtral",
    "phi",
    "qwen3_moe",
    "stablelm",
    "starcoder2",
)
# Run without positions: it removes them, or rotates.
WITHOUT_POSITIONS = ("granite", "llama", "mistral", "olmo2", "qwen2", "smollm3")
KEEPS_POSITIONS = ("cohere", "gemma", "gemma3_text", "gpt_neox", "mixtral", "phi")
# Of lists of factors.
OWN_FACTOR = "it gives every input the long list, and computes the attention factor itself"
ONLY_LINEAR = "rope_scaling 'type' currently only supports 'linear'"

RULES = (
    rule((RAISED_THETA, UNSCALED, *COMMON_ROPE_TYPES), ALL_ROPE_TYPES),
    rule(
        (RAISED_THETA, UNSCALED, *COMMON_ROPE_TYPES),
        ("qwen3",),
        dialects=(ROPE_PARAMETERS, ROPE_SCALING),
    ),
    rule((RAISED_THETA, UNSCALED), (*ONLY_THETA, "hunyuan_v1_dense", "phi3", "qwen2_moe")),
    rule((UNSCALED,), ("gptj",)),
    rule((RAISED_THETA, UNSCALED, YARN, LINEAR, DYNAMIC), ("gemma3_text",)),
    rule((*COMMON_ROPE_TYPES, SWITCHED), ONLY_THETA, Effect.IGNORES),
    rule(
        (SWITCHED,),
        (*ALL_ROPE_TYPES, "gemma3_text", "phi3"),
        Effect.DIFFERS,
        reason=OWN_FACTOR,
    ),
    rule(
        (SWITCHED,),
        ("qwen3",),
        Effect.DIFFERS,
        reason=OWN_FACTOR,
        dialects=(ROPE_PARAMETERS, ROPE_SCALING),
    ),
    rule((LONGROPE,), ("phi3",)),
    rule((RAISED_THETA, UNSCALED, LINEAR, DYNAMIC), ("internlm3",)),
    rule(
        (YARN, LLAMA3, LONGROPE, SWITCHED),
        ("internlm3",),
        Effect.REFUSES,
        reason="rope_scaling 'rope_type' currently only supports 'linear' or 'dynamic'",
    ),
    rule((RAISED_THETA, UNSCALED, LINEAR), ("nemotron",)),
    rule(
        (YARN, DYNAMIC, LLAMA3, SWITCHED),
        ("nemotron", "qwen2_moe"),
        Effect.REFUSES,
        reason=ONLY_LINEAR,
    ),
    rule((LINEAR,), ("qwen2_moe",), Effect.IGNORES),
    rule(
        (YARN, LINEAR, DYNAMIC, LLAMA3, SWITCHED),
        ("hunyuan_v1_dense",),
        Effect.REFUSES,
        reason="rope_scaling must contain keys {'factor', 'alpha', 'type'}",
    ),
    rule((REMOVED,), WITHOUT_POSITIONS),
    rule((REMOVED,), ("qwen3",), dialects=(ROPE_PARAMETERS, ROPE_SCALING)),
    rule((REMOVED,), KEEPS_POSITIONS, Effect.IGNORES),
    rule((LEARNED,), ("gpt_bigcode",)),
    rule((LEARNED,), ("gpt2",), without_prefix="transformer."),
)
