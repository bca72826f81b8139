"""llama.cpp: its converter writes the settings of a folder into a GGUF file.

Flags of ``llama-server`` replace what a file states.
"""

from functools import partial

from ctxextend.runtimes.rule_schema import (
    ALIBI,
    DYNAMIC,
    LEARNED,
    LINEAR,
    LLAMA3,
    LONGROPE,
    RAISED_THETA,
    REMOVED,
    SINUSOIDAL,
    SWITCHED,
    UNSCALED,
    YARN,
    Effect,
    Rule,
)

LLAMA_CPP = "llama.cpp"
rule = partial(Rule, LLAMA_CPP)
YARN_FLAGS = "--rope-scaling yarn --rope-scale {factor} --yarn-orig-ctx {first_trained}"
LINEAR_FLAGS = "--rope-scaling linear --rope-scale {factor}"
THETA_FLAGS = "--rope-freq-base {theta}"
# An encoder reads its input in one batch.
ENCODER_FLAGS = "--embeddings -b {max_len} -ub {max_len}"
CONVERTER = "https://github.com/ggml-org/llama.cpp/blob/master/conversion"

LLAMA_LIKE = ("arcee", "internlm3", "llama", "mistral", "mixtral")
SCALED = (
    "ernie4_5",
    "gemma3_text",
    "glm4",
    "glm4_moe",
    "granite",
    "granitemoe",
    "olmo",
    "olmo2",
    "olmoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "starcoder2",
)
# The converter writes neither the settings nor the base of these types.
UNWRITTEN = ("falcon", "gemma", "glm", "gpt_neox", "minicpm3", "phi", "stablelm")
UNWRITTEN_LISTS = ("falcon", "gemma", "glm", "gpt_neox", "phi", "stablelm")
# Run without positions.
WITHOUT_POSITIONS = (
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "qwen2",
    "qwen3",
    "smollm3",
)
# It writes the base of these types, and no settings.
ONLY_THETA = ("cohere", "cohere2")
DROPS_DYNAMIC = (*LLAMA_LIKE, *SCALED, *UNWRITTEN, *ONLY_THETA, "deepseek_v2")
OTHERS = ("apertus", "gemma2", "hunyuan_v1_dense", "modernbert", "nemotron", "phi3")
DROPS_LLAMA3 = (
    *UNWRITTEN,
    *ONLY_THETA,
    "deepseek_v2",
    "ernie4_5",
    "glm4",
    "glm4_moe",
    "hunyuan_v1_dense",
    "olmo",
    "olmo2",
    "olmoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "starcoder2",
)
NO_FACTORS = "its converter fails: Missing <MODEL_TENSOR.ROPE_FREQS: 18>"

RULES = (
    rule(
        (UNSCALED,),
        (*DROPS_DYNAMIC, *OTHERS),
    ),
    rule((RAISED_THETA, YARN, LINEAR), (*LLAMA_LIKE, *SCALED, "hunyuan_v1_dense")),
    rule(
        (DYNAMIC,),
        ("hunyuan_v1_dense",),
        Effect.REFUSES,
        reason="its converter expects alpha",
    ),
    rule((LONGROPE, SWITCHED), ("hunyuan_v1_dense",), Effect.IGNORES),
    rule((RAISED_THETA,), (*ONLY_THETA, "deepseek_v2", "nemotron", "phi3", "modernbert")),
    rule((LINEAR,), ("nemotron",)),
    rule((LLAMA3,), (*LLAMA_LIKE, "apertus")),
    rule((LONGROPE,), ("phi3",)),
    rule((LEARNED,), ("gpt2", "gpt_bigcode")),
    rule(
        (LEARNED,),
        ("bert", "distilbert", "roberta", "xlm-roberta"),
        option=ENCODER_FLAGS,
    ),
    rule((ALIBI,), ("bloom",)),
    rule((REMOVED,), WITHOUT_POSITIONS),
    rule((REMOVED,), ("cohere", "falcon", "gemma", "gpt_neox", "phi"), Effect.IGNORES),
    rule((REMOVED,), ("gemma3_text",), Effect.DIFFERS),
    # Right with flags.
    rule(
        (YARN,),
        UNWRITTEN,
        Effect.IGNORES,
        option=f"{YARN_FLAGS} {THETA_FLAGS}",
    ),
    rule(
        (LINEAR,),
        UNWRITTEN,
        Effect.IGNORES,
        option=f"{LINEAR_FLAGS} {THETA_FLAGS}",
    ),
    rule((RAISED_THETA,), UNWRITTEN, Effect.IGNORES, option=THETA_FLAGS),
    rule(
        (YARN,),
        (*ONLY_THETA, "modernbert"),
        Effect.IGNORES,
        option=YARN_FLAGS,
    ),
    rule(
        (LINEAR,),
        (*ONLY_THETA, "modernbert"),
        Effect.IGNORES,
        option=LINEAR_FLAGS,
    ),
    # Wrong.
    rule(
        (LEARNED, SINUSOIDAL),
        ("opt", "roformer"),
        Effect.REFUSES,
        reason="its converter does not have the type",
    ),
    rule(
        (ALIBI,),
        ("falcon",),
        Effect.REFUSES,
        reason="its converter does not have these positions",
    ),
    rule(
        (YARN, LINEAR, RAISED_THETA, DYNAMIC, LLAMA3, LONGROPE, SWITCHED),
        ("gemma2",),
        Effect.IGNORES,
    ),
    rule(
        (LEARNED,),
        ("camembert",),
        Effect.DIFFERS,
        reason="its converter keeps the reserved rows",
    ),
    rule((DYNAMIC,), (*DROPS_DYNAMIC, "modernbert", "olmo3"), Effect.IGNORES),
    rule((LLAMA3,), DROPS_LLAMA3, Effect.IGNORES),
    rule(
        (LLAMA3,),
        ("granite", "granitemoe", "smollm3"),
        Effect.REFUSES,
        reason=NO_FACTORS,
    ),
    rule((YARN, LINEAR), ("deepseek_v2",), Effect.DIFFERS),
    rule((YARN,), ("nemotron",), Effect.DIFFERS, option=YARN_FLAGS),
    rule((DYNAMIC,), ("nemotron",), Effect.DIFFERS),
    rule((YARN, LINEAR), ("olmo3",)),
    rule((RAISED_THETA,), ("olmo3",), Effect.DIFFERS),
    rule(
        (LONGROPE, SWITCHED),
        (*LLAMA_LIKE, *SCALED, "apertus", *UNWRITTEN_LISTS, *ONLY_THETA),
        Effect.IGNORES,
    ),
    rule(
        (SWITCHED,),
        ("deepseek_v2", "minicpm3", "modernbert", "olmo3"),
        Effect.IGNORES,
    ),
    rule((LONGROPE,), ("minicpm3", "nemotron"), Effect.DIFFERS),
    rule((SWITCHED,), ("nemotron",), Effect.DIFFERS),
    rule(
        (SWITCHED,),
        ("phi3",),
        Effect.DIFFERS,
        reason="its converter computes the attention factor itself",
    ),
)
