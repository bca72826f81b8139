"""CTranslate2: its converter loads a folder in transformers 4."""

from functools import partial

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
rule = partial(Rule, CTRANSLATE2)

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
    rule((LEARNED,), TABLES),
    rule((ALIBI,), ("bloom",)),
    rule((UNSCALED,), (*LLAMA_LIKE, "codegen", "gemma", "gptj", "qwen3")),
    rule((RAISED_THETA,), (*LLAMA_LIKE, "gemma", "gemma3_text", "qwen3")),
    rule((LINEAR, REMOVED), (*LLAMA_LIKE, "qwen3")),
    rule((REMOVED,), ("gemma", "gemma3_text", "gpt_neox"), Effect.IGNORES),
    rule(
        (YARN, DYNAMIC, LONGROPE, SWITCHED),
        (*LLAMA_LIKE, "qwen3"),
        Effect.REFUSES,
        reason=NOT_IMPLEMENTED,
    ),
    rule(
        (LLAMA3,),
        ("mistral", "qwen2", "qwen3"),
        Effect.REFUSES,
        reason=NOT_IMPLEMENTED,
    ),
    rule((LLAMA3,), ("llama",), Effect.IGNORES),
    rule(
        (RAISED_THETA, *COMMON_ROPE_TYPES, SWITCHED),
        ("falcon", "gpt_neox"),
        Effect.IGNORES,
    ),
    rule((*COMMON_ROPE_TYPES, SWITCHED), ("gemma",), Effect.IGNORES),
    rule((YARN, LINEAR, DYNAMIC, SWITCHED), ("gemma3_text",), Effect.IGNORES),
)
