"""CTranslate2: its converter loads a folder in transformers 4."""

from ctxextend.runtimes.schema import (
    ALIBI,
    DYNAMIC,
    LEARNED,
    LINEAR,
    LLAMA3,
    LONGROPE,
    ROPE_TYPES,
    THETA,
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
    Rule(CTRANSLATE2, (THETA,), (*LLAMA_LIKE, "gemma", "gemma3_text", "qwen3")),
    Rule(CTRANSLATE2, (LINEAR,), (*LLAMA_LIKE, "qwen3")),
    Rule(
        CTRANSLATE2,
        (YARN, DYNAMIC, LONGROPE),
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
    Rule(CTRANSLATE2, (THETA, *ROPE_TYPES), ("falcon", "gpt_neox"), Effect.IGNORES),
    Rule(CTRANSLATE2, ROPE_TYPES, ("gemma",), Effect.IGNORES),
    Rule(CTRANSLATE2, (YARN, LINEAR, DYNAMIC), ("gemma3_text",), Effect.IGNORES),
)
