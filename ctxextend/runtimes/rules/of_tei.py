"""TEI: its code was read, in version 1.9.3."""

from ctxextend.runtimes.rule_schema import (
    DYNAMIC,
    LEARNED,
    LINEAR,
    LLAMA3,
    LONGROPE,
    RAISED_THETA,
    ROPE_PARAMETERS,
    ROPE_SCALING,
    SINUSOIDAL,
    SWITCHED,
    UNSCALED,
    YARN,
    Effect,
    Length,
    Rule,
)

TEI = "tei"
SOURCE = "https://github.com/huggingface/text-embeddings-inference/blob/v1.9.3"
ROUTER = f"{SOURCE}/router/src/lib.rs#L180"
LAYERS = f"{SOURCE}/backends/candle/src/layers/rotary.rs"
LLAMA = f"{SOURCE}/backends/candle/src/models/flash_mistral.rs#L278"

# It subtracts pad_token_id + 1 of the RoBERTa types itself.
TABLES = ("bert", "camembert", "distilbert", "roberta", "xlm-roberta")

RULES = (
    Rule(TEI, (LEARNED, SINUSOIDAL), TABLES, evidence=ROUTER),
    Rule(
        TEI,
        (LEARNED,),
        ("mpnet",),
        length=Length.STATED,
        reads_sentence_length=True,
        evidence=ROUTER,
    ),
    Rule(TEI, (UNSCALED, RAISED_THETA), ("llama", "mistral", "qwen2", "qwen3"), evidence=LAYERS),
    Rule(
        TEI,
        (YARN, LINEAR, DYNAMIC, LONGROPE, SWITCHED, LLAMA3),
        ("qwen2", "qwen3"),
        Effect.IGNORES,
        dialects=(ROPE_PARAMETERS, ROPE_SCALING),
        evidence=LAYERS,
    ),
    Rule(
        TEI,
        (YARN, LINEAR, DYNAMIC, LONGROPE, SWITCHED, LLAMA3),
        ("llama", "mistral"),
        Effect.REFUSES,
        reason="it does not support rope_scaling as transformers writes it",
        evidence=LLAMA,
    ),
)
