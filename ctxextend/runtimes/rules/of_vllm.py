"""vLLM: its own code for lengths and frequencies was run without a GPU, and no other code.

Model types that it has no code for run in its Transformers backend.
"""

from functools import partial

from ctxextend.runtimes.rule_schema import (
    ALIBI,
    CODE_RUN,
    DYNAMIC,
    LEARNED,
    LINEAR,
    LLAMA3,
    LONGROPE,
    PROPORTIONAL,
    RAISED_THETA,
    RELATIVE,
    REMOVED,
    SINUSOIDAL,
    SWITCHED,
    TABLE_IS_TOO_LARGE,
    UNSCALED,
    YARN,
    Effect,
    Length,
    Rule,
)

VLLM = "vllm"
rule = partial(Rule, VLLM, evidence=CODE_RUN)
SOURCE = "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm"

# Types that vLLM has code for.
NATIVE = (
    "afmoe",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaone_moe",
    "falcon",
    "flint",
    "gemma",
    "gemma2",
    "glm4",
    "glmasr",
    "granite",
    "granite_speech",
    "granite_speech_plus",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoeshared",
    "hrm_text",
    "hy_v3",
    "hyperclovax",
    "idefics3",
    "lfm2",
    "llama",
    "llama4_text",
    "minicpm3",
    "mistral",
    "mistral3",
    "mixtral",
    "modernbert",
    "modernvbert",
    "nemotron",
    "olmoe",
    "paligemma",
    "qwen2",
    "qwen3",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
    "smolvlm",
    "stablelm",
)

# Types that run in its Transformers backend.
BACKEND = (
    "arcee",
    "aria",
    "axk2",
    "bitnet",
    "chameleon",
    "doge",
    "eurobert",
    "flex_olmo",
    "fuyu",
    "glm",
    "gpt_neox",
    "helium",
    "hunyuan_v1_dense",
    "jais2",
    "jetmoe",
    "kyutai_speech_to_text",
    "mellum",
    "ministral",
    "modernbert-decoder",
    "moshi",
    "nanochat",
    "olmo",
    "olmo2",
    "olmo3",
    "persimmon",
    "phi",
    "seed_oss",
    "smollm3",
    "starcoder2",
    "ultrabert",
    "vaultgemma",
    "zaya",
)

# All settings but unscaled ones are taken for those of DeepSeek's yarn.
LATENT = (
    "axk1",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "longcat_flash",
)

# The ramp of their yarn starts from 4 times the first trained length.
SECTIONED = ("paddleocr_vl", "qwen2_5_vl", "qwen2_vl")
# Types whose lists of factors it applies: rotations of halves, and one position a token.
SWITCHING = (
    "afmoe",
    "ernie4_5",
    "exaone4",
    "exaone_moe",
    "falcon",
    "gemma",
    "gemma2",
    "granite",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoeshared",
    "hrm_text",
    "hy_v3",
    "hyperclovax",
    "lfm2",
    "llama",
    "llama4_text",
    "minicpm3",
    "mistral",
    "mixtral",
    "nemotron",
    "olmoe",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "stablelm",
)
# Types that rotate neighbouring values.
INTERLEAVED = ("cohere", "cohere2", "ernie4_5_moe", "glm4")
# Every factor is the one of the served length.
GEMMA3 = ("gemma3_text",)

TABLES = (
    "bert",
    "bert-generation",
    "biogpt",
    "clip",
    "ctrl",
    "dpr",
    "electra",
    "ernie",
    "gpt-sw3",
    "gpt2",
    "gpt_bigcode",
    "opt",
    "roc_bert",
    "siglip",
)

UNSUPPORTED = (
    "big_bird",
    "codegen",
    "convbert",
    "deberta",
    "deberta-v2",
    "flaubert",
    "fsmt",
    "gpt_neo",
    "ibert",
    "layoutlmv3",
    "led",
    "lilt",
    "longformer",
    "luke",
    "megatron-bert",
    "mpnet",
    "mpt",
    "mra",
    "mvp",
    "nystromformer",
    "openai-gpt",
    "prophetnet",
    "rembert",
    "roformer",
    "squeezebert",
    "tapas",
    "trocr",
    "xglm",
    "xlm",
    "yoso",
)

# The length is derived, and then the Transformers backend fails.
FAILING = (
    "albert",
    "bart",
    "bigbird_pegasus",
    "blenderbot",
    "blenderbot-small",
    "distilbert",
    "esm",
    "fnet",
    "layoutlm",
    "longt5",
    "m2m_100",
    "marian",
    "markuplm",
    "mbart",
    "mobilebert",
    "mt5",
    "nllb-moe",
    "pegasus",
    "pegasus_x",
    "plbart",
    "seamless_m4t",
    "seamless_m4t_v2",
    "speech_to_text",
    "splinter",
    "switch_transformers",
    "t5",
    "udop",
    "umt5",
)

# With ``position_embedding_type`` "absolute", at most the length of the tokenizer.
ROBERTA = ("roberta", "xlm-roberta")
# Their Transformers backend reads rows from 0, not from pad_token_id + 1.
WITHOUT_OFFSET = ("camembert", "data2vec-text", "xmod")

# Run without positions.
REFUSED_REMOVED = ("gemma3_text", "granite", "llama", "qwen3")
# Encoders keep their positions.
ENCODERS = ("modernbert", "modernvbert")

# Of all settings with lists of factors, it takes the key next to them for the length:
# https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/config/model.py#L2643
RULES = (
    rule(
        (UNSCALED, RAISED_THETA, YARN),
        (*NATIVE, *BACKEND, *LATENT, *GEMMA3),
        length=Length.STATED,
        reads_sentence_length=True,
    ),
    rule(
        (LINEAR,),
        (*NATIVE, *BACKEND, *SECTIONED),
        length=Length.STATED_SCALED,
        reads_sentence_length=True,
    ),
    rule((REMOVED,), REFUSED_REMOVED, Effect.REFUSES, reason=TABLE_IS_TOO_LARGE),
    rule(
        (REMOVED,),
        tuple(name for name in NATIVE if name not in (*REFUSED_REMOVED, *ENCODERS)),
        Effect.REFUSES,
        reason=TABLE_IS_TOO_LARGE,
        evidence=f"{SOURCE}/model_executor/layers/rotary_embedding/linear_scaling_rope.py",
    ),
    rule((REMOVED,), ("gpt_neox", "phi"), length=Length.STATED_SCALED),
    rule((LINEAR,), GEMMA3, length=Length.STATED),
    rule((UNSCALED, RAISED_THETA), SECTIONED, length=Length.STATED),
    rule(
        (YARN,),
        SECTIONED,
        Effect.DIFFERS,
        length=Length.STATED,
        reason="it computes yarn for 4 times the first trained length",
    ),
    rule(
        (UNSCALED, RAISED_THETA), ("cosmos3_edge", "phi3", "phi4_multimodal"), length=Length.STATED
    ),
    rule((LLAMA3,), ("llama",), length=Length.STATED),
    rule(
        (LONGROPE,),
        ("llama", "phi3", "phimoe", "qwen3"),
        length=Length.TRAINED_KEY,
        evidence=CODE_RUN,
        ignores_attention_factor=True,
    ),
    rule(
        (SWITCHED,),
        SWITCHING,
        length=Length.TRAINED_KEY,
        evidence=CODE_RUN,
        ignores_attention_factor=True,
        ignores_short_list=True,
    ),
    rule(
        (SWITCHED,),
        (*GEMMA3, "modernbert"),
        length=Length.STATED,
        evidence=CODE_RUN,
        ignores_attention_factor=True,
        ignores_short_list=True,
    ),
    rule(
        (SWITCHED,),
        LATENT,
        Effect.DIFFERS,
        length=Length.TRAINED_KEY,
        reason="it takes the settings for yarn",
    ),
    rule(
        (SWITCHED,),
        INTERLEAVED,
        Effect.REFUSES,
        reason="its lists of factors apply only to types that rotate halves of a head",
    ),
    rule(
        (SWITCHED,),
        (*SECTIONED, "qwen3_vl", "qwen3_vl_moe"),
        Effect.REFUSES,
        reason="its lists of factors take one position a token, not three",
        evidence=f"{SOURCE}/model_executor/layers/rotary_embedding/phi3_long_rope_scaled_rope.py",
    ),
    rule(
        (DYNAMIC,),
        (*NATIVE, *GEMMA3),
        Effect.REFUSES,
        reason="its table of angles ends at the old length",
    ),
    rule(
        (LINEAR, DYNAMIC),
        LATENT,
        Effect.REFUSES,
        reason="KeyError: 'original_max_position_embeddings'",
    ),
    rule(
        (PROPORTIONAL,),
        ("gemma4_text", "gemma4"),
        Effect.IGNORES,
        evidence=f"{SOURCE}/model_executor/layers/rotary_embedding/gemma4_rope.py",
    ),
    rule((LEARNED,), TABLES, length=Length.STATED, reads_sentence_length=True),
    rule((ALIBI,), ("bloom", "falcon"), length=Length.STATED),
    rule((LEARNED,), ROBERTA, length=Length.TOKENIZER, reads_sentence_length=True),
    rule(
        (LEARNED,),
        ("roberta-prelayernorm", "xlm-roberta-xl"),
        length=Length.STATED,
        reads_sentence_length=True,
    ),
    rule(
        (LEARNED,),
        WITHOUT_OFFSET,
        Effect.DIFFERS,
        length=Length.STATED,
        reason="it reads rows from 0, not from pad_token_id + 1",
        evidence=f"{SOURCE}/model_executor/models/transformers/legacy.py#L58",
    ),
    rule(
        (LEARNED, SINUSOIDAL, ALIBI, RELATIVE, UNSCALED),
        UNSUPPORTED,
        Effect.REFUSES,
        reason="it does not support the type",
    ),
    rule(
        (LEARNED, SINUSOIDAL, RELATIVE),
        FAILING,
        Effect.REFUSES,
        reason="its Transformers backend does not support the type",
    ),
)
