"""What decides the shape of the key-value cache of each model type."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple


class CacheFacts(NamedTuple):
    """The config keys of a language model that decide the shape of its key-value cache."""

    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"  # query heads
    kv_heads: str | None = "num_key_value_heads"  # None: as many as query heads
    width: str = "hidden_size"
    head_size: str | None = "head_dim"  # None: the width divided by the query heads
    # Whether a config without the key has as many key-value heads as query heads.
    kv_heads_may_lack: bool = False
    # Whether a config without the key has heads of the width divided by the query heads.
    head_size_may_lack: bool = False
    multi_query_key: str | None = None  # says whether all query heads share one key-value head
    # Whether keys and values are cached in compressed form (multi-head latent attention).
    is_latent: bool = False
    # Whether layers without a window have other heads (Gemma 4).
    has_global_heads: bool = False
    # Which layers have a sliding window, if ``layer_types`` does not list them:
    #
    # - ``none``: the model type has no such layers.
    # - ``all layers``, if ``sliding_window`` is a number.
    # - ``last layers``: those from ``max_window_layers`` on, if ``use_sliding_window`` is true.
    # - ``but every n-th layer``, see `period`.
    # - ``listed``: without the list, it is unknown.
    # - ``listed if used``: so it is, unless ``use_sliding_window`` is false.
    windows: Literal[
        "none", "all layers", "last layers", "but every n-th layer", "listed", "listed if used"
    ] = "none"
    period: int = 1  # every so many layers, one sees all tokens
    period_key: str | None = None  # states another period
    older_keys: Mapping[str, str] = {}  # other spellings of keys, which transformers reads too
    # transformers' defaults for missing keys.
    defaults: Mapping[str, Any] = {}


# By measurement: tests/families/test_kv_cache.py builds small models of each type.
CACHE_FACTS: Mapping[str, CacheFacts] = {
    **dict.fromkeys(
        (
            "cosmos3_edge_text",
            "ernie4_5",
            "glm",
            "glm4",
            "helium",
            "hy_v3",
            "internlm3",
            "iquestcoder",
            "minimax_m2",
            "paddleocr_vl_text",
            "qwen3_vl_text",
            "sarvam_moe",
            "seed_oss",
            "solar_open",
        ),
        CacheFacts(),
    ),
    **dict.fromkeys(
        (
            "axk1",
            "deepseek_v2",
            "deepseek_v3",
            "glm4_moe_lite",
            "minicpm3",
            "mistral4",
            "sarvam_mla",
            "youtu",
        ),
        CacheFacts(is_latent=True),
    ),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), CacheFacts(kv_heads_may_lack=True)),
    **dict.fromkeys(
        (
            "bitnet",
            "chameleon",
            "ernie4_5_moe",
            "evolla",
            "exaone",
            "glm4_moe",
            "glm4v_text",
            "glm_ocr_text",
            "granite_docling_text",
            "mllama_text_model",
            "nemotron",
            "qwen3_moe",
            "stablelm",
        ),
        CacheFacts(head_size_may_lack=True),
    ),
    "jetmoe": CacheFacts(head_size="kv_channels"),
    **dict.fromkeys(
        ("biogpt", "git", "gpt_neox", "opt"), CacheFacts(kv_heads=None, head_size=None)
    ),
    **dict.fromkeys(
        ("gpt_neox_japanese", "persimmon"), CacheFacts(kv_heads=None, head_size_may_lack=True)
    ),
    **dict.fromkeys(
        (
            "apertus",
            "apertus1p5_text",
            "arcee",
            "aria_text",
            "cohere",
            "diffllama",
            "flex_olmo",
            "granite",
            "granitemoe",
            "granitemoeshared",
            "hyperclovax",
            "jais2",
            "nanochat",
            "olmo",
            "olmo2",
            "olmoe",
            "phi",
        ),
        CacheFacts(kv_heads_may_lack=True, head_size_may_lack=True),
    ),
    "gpt_neo": CacheFacts(layers="num_layers", heads="num_heads", kv_heads=None, head_size=None),
    "falcon": CacheFacts(kv_heads="num_kv_heads", head_size=None, multi_query_key="multi_query"),
    **dict.fromkeys(
        ("codegen", "ctrl", "gpt2", "gptj"),
        CacheFacts(layers="n_layer", heads="n_head", kv_heads=None, width="n_embd", head_size=None),
    ),
    **dict.fromkeys(
        ("longt5", "mt5", "t5", "umt5"),
        CacheFacts(layers="num_decoder_layers", heads="num_heads", kv_heads=None, head_size="d_kv"),
    ),
    "mpt": CacheFacts(
        layers="n_layers", heads="n_heads", kv_heads=None, width="d_model", head_size=None
    ),
    **dict.fromkeys(
        ("seamless_m4t", "seamless_m4t_v2"),
        CacheFacts(
            layers="decoder_layers", heads="decoder_attention_heads", kv_heads=None, head_size=None
        ),
    ),
    "xglm": CacheFacts(
        layers="num_layers", heads="attention_heads", kv_heads=None, width="d_model", head_size=None
    ),
    "prophetnet": CacheFacts(
        layers="num_decoder_layers",
        heads="num_decoder_attention_heads",
        kv_heads=None,
        head_size=None,
    ),
    **dict.fromkeys(
        (
            "bart",
            "bigbird_pegasus",
            "blenderbot",
            "blenderbot-small",
            "fsmt",
            "led",
            "m2m_100",
            "marian",
            "mbart",
            "mvp",
            "nllb-moe",
            "pegasus",
            "pegasus_x",
            "plbart",
            "trocr",
            "whisper",
        ),
        CacheFacts(
            layers="decoder_layers",
            heads="decoder_attention_heads",
            kv_heads=None,
            width="d_model",
            head_size=None,
        ),
    ),
    "gpt_bigcode": CacheFacts(
        layers="n_layer",
        heads="n_head",
        kv_heads=None,
        width="n_embd",
        head_size=None,
        multi_query_key="multi_query",
    ),
    "gemma": CacheFacts(
        defaults={
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "hidden_size": 3072,
            "head_dim": 256,
        }
    ),
    "llama": CacheFacts(
        kv_heads_may_lack=True,
        head_size_may_lack=True,
        defaults={"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096},
    ),
    "bloom": CacheFacts(
        layers="n_layer",
        heads="n_head",
        kv_heads=None,
        head_size=None,
        older_keys={
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "hidden_size": "n_embed",
        },
    ),
    **dict.fromkeys(
        (
            "beam",
            "flint",
            "kolibri1",
            "laguna",
            "lara_mini",
            "lfm3",
            "llama4_text",
            "mellum",
            "minimax_m3_vl_text",
            "ministral",
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_next",
        ),
        CacheFacts(windows="listed"),
    ),
    "qwen3": CacheFacts(windows="last layers"),
    "bailing_hybrid": CacheFacts(is_latent=True, windows="listed"),
    **dict.fromkeys(
        ("gemma4_text", "gemma4_unified_text"), CacheFacts(has_global_heads=True, windows="listed")
    ),
    "gemma3n_text": CacheFacts(windows="but every n-th layer", period=6),
    **dict.fromkeys(
        ("gpt_oss", "t5_gemma_module", "vaultgemma"),
        CacheFacts(windows="but every n-th layer", period=2),
    ),
    **dict.fromkeys(("lfm2", "minimax"), CacheFacts(head_size_may_lack=True, windows="listed")),
    **dict.fromkeys(
        ("qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text"),
        CacheFacts(head_size_may_lack=True, windows="last layers"),
    ),
    **dict.fromkeys(
        ("qwen2_moe", "smollm3"), CacheFacts(head_size_may_lack=True, windows="listed if used")
    ),
    "ministral3": CacheFacts(windows="all layers", defaults={"sliding_window": None}),
    "modernbert-decoder": CacheFacts(kv_heads=None, head_size_may_lack=True, windows="listed"),
    "afmoe": CacheFacts(kv_heads_may_lack=True, windows="but every n-th layer", period=2),
    "olmo_hybrid": CacheFacts(kv_heads_may_lack=True, head_size_may_lack=True, windows="listed"),
    **dict.fromkeys(
        ("cwm", "muse_glimmer_text"),
        CacheFacts(windows="but every n-th layer", period=4, period_key="sliding_window_pattern"),
    ),
    "t5gemma2_decoder": CacheFacts(
        windows="but every n-th layer", period=6, period_key="sliding_window_pattern"
    ),
    **dict.fromkeys(
        (
            "mixtral",
            "phi4_multimodal",
            "phimoe",
            "qwen3_omni_moe_text",
            "qwen3_vl_moe_text",
            "starcoder2",
        ),
        CacheFacts(
            head_size_may_lack=True, windows="all layers", defaults={"sliding_window": None}
        ),
    ),
    "cohere2_moe": CacheFacts(
        kv_heads_may_lack=True,
        windows="but every n-th layer",
        period=2,
        period_key="sliding_window_pattern",
    ),
    **dict.fromkeys(
        ("dots1", "granite_swa"),
        CacheFacts(
            head_size_may_lack=True,
            windows="but every n-th layer",
            period=4,
            period_key="sliding_window_pattern",
        ),
    ),
    **dict.fromkeys(
        ("exaone4", "exaone_moe"),
        CacheFacts(
            head_size_may_lack=True,
            windows="but every n-th layer",
            period=2,
            period_key="sliding_window_pattern",
        ),
    ),
    **dict.fromkeys(
        ("doge", "phi3"),
        CacheFacts(
            kv_heads_may_lack=True,
            head_size_may_lack=True,
            windows="all layers",
            defaults={"sliding_window": None},
        ),
    ),
    **dict.fromkeys(
        ("cohere2", "granitemoe_swa", "olmo3"),
        CacheFacts(
            kv_heads_may_lack=True,
            head_size_may_lack=True,
            windows="but every n-th layer",
            period=4,
            period_key="sliding_window_pattern",
        ),
    ),
    "qwen2": CacheFacts(
        head_size_may_lack=True,
        windows="last layers",
        defaults={
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "hidden_size": 4096,
        },
    ),
    "mistral": CacheFacts(
        head_size_may_lack=True,
        windows="all layers",
        defaults={
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_size": 4096,
            "sliding_window": 4096,
        },
    ),
    "gemma2": CacheFacts(
        windows="but every n-th layer",
        period=2,
        defaults={
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "hidden_size": 2304,
            "head_dim": 256,
            "sliding_window": 4096,
        },
    ),
    "gemma3_text": CacheFacts(
        windows="but every n-th layer",
        period=6,
        period_key="sliding_window_pattern",
        defaults={
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "hidden_size": 2304,
            "head_dim": 256,
            "sliding_window": 4096,
        },
    ),
}
# Model types whose cache is that of the language model in them.
CONTAINERS = (
    "aria",
    "audioflamingo3",
    "aya_vision",
    "cohere2_vision",
    "cosmos3_edge",
    "cosmos3_omni",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "exaone4_5",
    "fuyu",
    "gemma3",
    "gemma4",
    "gemma4_unified",
    "glm46v",
    "glm4v",
    "glm_ocr",
    "glmga",
    "got_ocr2",
    "granite_docling",
    "granite_speech",
    "granite_speech_plus",
    "hyperclovax_vision_v2",
    "idefics2",
    "idefics3",
    "internvl",
    "kimi_k25",
    "lfm2_vl",
    "lfm3_vl",
    "lighton_ocr",
    "llava",
    "llava_next",
    "llava_next_video",
    "llava_onevision",
    "minicpm_ocr",
    "minicpmv4_6",
    "minicpmv4_7",
    "minimax_m3_vl",
    "mistral3",
    "mllama",
    "moss_transcribe_diarize",
    "muse_glimmer",
    "musicflamingo",
    "omniasr",
    "ovis2",
    "paddleocr_vl",
    "paligemma",
    "pp_chart2table",
    "qianfan_ocr",
    "qwen2_5_omni_thinker",
    "qwen2_5_vl",
    "qwen2_audio",
    "qwen2_vl",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_asr",
    "qwen3_omni_moe_thinker",
    "qwen3_vl",
    "qwen3_vl_moe",
    "shieldgemma2",
    "smolvlm",
    "t5gemma",
    "t5gemma2",
    "video_llama_3",
    "video_llava",
    "vipllava",
)
