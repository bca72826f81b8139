"""transformers: the reference of all rules, and its last version before 5.

Transformers 5 is run on every model type by the tests of this package.
"""

from ctxextend.runtimes.schema import (
    ALIBI,
    DYNAMIC,
    LEARNED,
    LINEAR,
    LLAMA3,
    LONGROPE,
    NTK_ALPHA,
    PROPORTIONAL,
    RELATIVE,
    ROPE_TYPES,
    SINUSOIDAL,
    THETA,
    UNSCALED,
    YARN,
    Effect,
    Rule,
)

TRANSFORMERS = "transformers"
TRANSFORMERS_4 = "transformers4"
WITHOUT_SETTINGS = (LEARNED, SINUSOIDAL, ALIBI, RELATIVE)

TABLES = (
    "albert",
    "bart",
    "bert",
    "bert-generation",
    "big_bird",
    "bigbird_pegasus",
    "biogpt",
    "blenderbot",
    "blenderbot-small",
    "camembert",
    "convbert",
    "data2vec-text",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "ernie",
    "esm",
    "gpt2",
    "gpt_bigcode",
)
ALL_ROPE_TYPES = (
    "arcee",
    "aria_text",
    "bitnet",
    "cohere",
    "cohere2",
    "deepseek_v2",
    "diffllama",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "falcon",
    "gemma",
    "glm4",
    "gpt_neox",
    "granite",
    "helium",
    "llama",
    "mistral",
    "mixtral",
    "olmoe",
    "phi",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "stablelm",
    "starcoder2",
)
# Their classes of transformers 4 check that ``rope_scaling`` has two keys.
TWO_KEYS = ("olmo", "olmo2")

RULES = (
    Rule(TRANSFORMERS, (*WITHOUT_SETTINGS, UNSCALED, THETA)),
    Rule(TRANSFORMERS, (*ROPE_TYPES, PROPORTIONAL, NTK_ALPHA)),
    Rule(TRANSFORMERS_4, WITHOUT_SETTINGS, (*TABLES, "bloom")),
    Rule(TRANSFORMERS_4, (UNSCALED,), (*ALL_ROPE_TYPES, *TWO_KEYS, "codegen", "gptj")),
    Rule(TRANSFORMERS_4, (THETA, *ROPE_TYPES), ALL_ROPE_TYPES),
    Rule(TRANSFORMERS_4, (THETA,), (*TWO_KEYS, "hunyuan_v1_dense", "nemotron", "phi3")),
    Rule(TRANSFORMERS_4, (LINEAR, LLAMA3, LONGROPE, YARN), ("hunyuan_v1_dense",)),
    Rule(TRANSFORMERS_4, ROPE_TYPES, ("nemotron",), Effect.IGNORES),
    Rule(TRANSFORMERS_4, (YARN, LINEAR, DYNAMIC, THETA), ("gemma3_text",)),
)
