"""CTranslate2: its converter loads a folder in transformers 4."""

from ctxextend.runtimes.rule_schema import (
    ALIBI,
    COMMON_ROPE_TYPES,
    DYNAMIC,
    LEARNED,
    LINEAR,
    LLAMA3,
    LONGROPE,
    RAISED_THETA,
    REMOVED,
    SWITCHED,
    UNSCALED,
    YARN,
    Effect,
    Rule,
)

CTRANSLATE2 = "ctranslate2"

TABLES = (
    "bert",
    "camembert",
    "distilbert",
    "gpt2",
    "gpt_bigcode",
    "opt",
    "roberta",
    "xlm-roberta",
)
LLAMA_LIKE = ("llama", "mistral", "qwen2")
NOT_IMPLEMENTED = "RoPE scaling of this type is not yet implemented"

RULES = (
    Rule(CTRANSLATE2, (LEARNED,), TABLES),
    Rule(CTRANSLATE2, (ALIBI,), ("bloom",)),
    Rule(CTRANSLATE2, (UNSCALED,), (*LLAMA_LIKE, "codegen", "gemma", "gptj", "qwen3")),
    Rule(CTRANSLATE2, (RAISED_THETA,), (*LLAMA_LIKE, "gemma", "gemma3_text", "qwen3")),
    Rule(CTRANSLATE2, (LINEAR, REMOVED), (*LLAMA_LIKE, "qwen3")),
    Rule(CTRANSLATE2, (REMOVED,), ("gemma", "gemma3_text", "gpt_neox"), Effect.IGNORES),
    Rule(
        CTRANSLATE2,
        (YARN, DYNAMIC, LONGROPE, SWITCHED),
        (*LLAMA_LIKE, "qwen3"),
        Effect.REFUSES,
        reason=NOT_IMPLEMENTED,
    ),
    Rule(
        CTRANSLATE2,
        (LLAMA3,),
        ("mistral", "qwen2", "qwen3"),
        Effect.REFUSES,
        reason=NOT_IMPLEMENTED,
    ),
    Rule(CTRANSLATE2, (LLAMA3,), ("llama",), Effect.IGNORES),
    Rule(
        CTRANSLATE2,
        (RAISED_THETA, *COMMON_ROPE_TYPES, SWITCHED),
        ("falcon", "gpt_neox"),
        Effect.IGNORES,
    ),
    Rule(CTRANSLATE2, (*COMMON_ROPE_TYPES, SWITCHED), ("gemma",), Effect.IGNORES),
    Rule(CTRANSLATE2, (YARN, LINEAR, DYNAMIC, SWITCHED), ("gemma3_text",), Effect.IGNORES),
)
