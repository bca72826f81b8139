"""Model types with rotary, ALiBi or relative positions that have an entry.

`rotary_rule` finds most rotary types in transformers. These are the exceptions: classes that read
settings in a different way, and keys that only transformers 4 needs.
"""

from typing import Any

from ctxextend.families.rows import (
    STANDARD,
    THETA_METHOD,
    family,
    language_model,
    own_part,
    rotary,
    with_any_text,
    with_own_text,
)
from ctxextend.families.schema import (
    ALIBI,
    FULL_LAYERS,
    LENGTH,
    RELATIVE,
    SLIDING_LAYERS,
    ConfigCondition,
    Family,
    OldRotaryKeys,
    Requirement,
    RotaryFacts,
    RotaryPositions,
    UnlimitedPositions,
)
from ctxextend.families.unsupported import NO_POSITIONS
from ctxextend.tables.method_facts import SCALING_METHODS, SWITCH
from ctxextend.tables.rope_types import LISTS, LLAMA_4_BETA, YARN_BETAS

PARTIAL_FACTOR = "partial_rotary_factor"

TOKENIZER_LENGTH = "model_max_length"  # another name of the length in some configs

# Methods of types that do not apply all of them.

# Its config states no size for all heads, which transformers asks for to compute lists.
UNLISTED_METHODS = tuple(name for name in SCALING_METHODS if name != SWITCH)
# A list in the config overrides ``rope_theta``.
PER_LAYER_METHODS = ("yarn", SWITCH, "linear", "dynamic")
QUERY_METHODS = ("yarn", "theta")  # queries are scaled by a setting that only yarn has
SPACED_METHODS = ("proportional", "theta")  # rotated pairs are spaced over the whole head


def layered(
    theta: float = 10_000, local_theta: float = 10_000, full: str = FULL_LAYERS, **more: Any
) -> RotaryFacts:
    """Return facts of separate settings for layers with full attention and a sliding window."""
    return RotaryFacts({full: theta, SLIDING_LAYERS: local_theta}, local=(SLIDING_LAYERS,), **more)


def unstated(rope_type: str, factor: float, trained: int, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of a config without any, for all layers."""
    settings = {
        "rope_type": rope_type,
        "factor": factor,
        "original_max_position_embeddings": trained,
    }
    return {"": settings | more}


NO_OLD_SCALING = OldRotaryKeys(reads_scaling=False)
# Transformers 4.57 checks the keys of ``rope_scaling``, or reads it without a check.
OLMO = RotaryFacts(old=OldRotaryKeys(scaling_keys=("type", "factor")))
NEEDS_SCALING = RotaryFacts(old=OldRotaryKeys(needs_scaling=True))
PHI_OLD_KEYS = OldRotaryKeys(scaling_keys=("type", *LISTS))
LIMITS_ONLY = RotaryFacts(methods=())  # the classes ignore other rotary settings
# Latent attention rotates a part of each head, with its own size.
LATENT = RotaryFacts(dim_key="qk_rope_head_dim")
SARVAM_MLA = LATENT._replace(type_names={"deepseek_yarn": "yarn"})
MISTRAL_LARGE4 = LATENT._replace(
    defaults=unstated("yarn", 2048.0, 512, rope_theta=10_000.0, attention_factor=1.0, **YARN_BETAS),
)
ONLY_THETA = RotaryFacts(methods=THETA_METHOD)
PER_LAYER_THETA = RotaryFacts(methods=PER_LAYER_METHODS)
MROPE = RotaryFacts(type_names={"mrope": "default"})
PHI = RotaryFacts(
    type_names={"su": "longrope", "yarn": "longrope"},
    methods=(*THETA_METHOD, SWITCH),
    drops_cache=True,
    old=PHI_OLD_KEYS,
)
PHI_KEYS = {
    "original_max_position_embeddings": 4096,
    "hidden_size": 3072,
    "num_attention_heads": 32,
}
HUNYUAN = RotaryFacts(needs_dim=True, reads_alpha=True)
HUNYUAN_VL = HUNYUAN._replace(type_names={"xdrope": "dynamic"})
MUSE_SPARK = RotaryFacts(defaults={"": {"rope_theta": 500_000.0}}, methods=PER_LAYER_METHODS)
COSMOS3 = RotaryFacts(
    defaults={"": {"rope_theta": 100_000_000.0, "mrope_section": [24, 20, 20]}},
    methods=THETA_METHOD,
)

MISTRAL_SETTINGS = YARN_BETAS | {"mscale": 1.0, "mscale_all_dim": 1.0, LLAMA_4_BETA: 0.1}
MINISTRAL3 = RotaryFacts(
    defaults=unstated("yarn", 16.0, 16_384, rope_theta=1_000_000.0, **MISTRAL_SETTINGS),
    methods=QUERY_METHODS,
)
MISTRAL4 = RotaryFacts(
    partial=0.5,
    defaults=unstated("yarn", 128.0, 8192, rope_theta=10_000.0, **MISTRAL_SETTINGS),
    methods=QUERY_METHODS,
)

NEOX_JAPANESE = RotaryFacts(
    old=OldRotaryKeys(theta_keys={"": "rotary_emb_base"}, partial_key="rotary_pct"),
)
NEOX = NEOX_JAPANESE._replace(partial=0.25)

LAYERED = layered(old=NO_OLD_SCALING)
GEMMA3 = layered(
    1_000_000,
    old=OldRotaryKeys(theta_keys={SLIDING_LAYERS: "rope_local_base_freq"}),
    releases_are_scaled=True,
)
# Full attention has larger heads.
GEMMA4 = layered(
    old=NO_OLD_SCALING,
    defaults={FULL_LAYERS: {"rope_type": "proportional", PARTIAL_FACTOR: 0.25}},
    dim_key="global_head_dim",
    methods=SPACED_METHODS,
)
EMBEDDING_GEMMA2 = layered(old=NO_OLD_SCALING, dim_key="global_head_dim", methods=UNLISTED_METHODS)
LFM3 = layered(
    old=NO_OLD_SCALING,
    defaults={FULL_LAYERS: {"rope_type": "proportional", PARTIAL_FACTOR: 0.5}},
    methods=SPACED_METHODS,
)
MODERNBERT = layered(
    160_000,
    old=OldRotaryKeys(
        scales_local=True,
        theta_keys={FULL_LAYERS: "global_rope_theta", SLIDING_LAYERS: "local_rope_theta"},
    ),
)
OLMO3 = layered(500_000, 500_000, old=OldRotaryKeys(theta_keys={SLIDING_LAYERS: ""}))
DORY = layered(
    old=OldRotaryKeys(scales_local=True),
    defaults={
        FULL_LAYERS: {"rope_type": "default", "rope_theta": 10_000_000.0},
        SLIDING_LAYERS: {"rope_type": "default", "rope_theta": 10_000.0},
    },
)
NEOMME = layered(old=NO_OLD_SCALING, defaults={FULL_LAYERS: {PARTIAL_FACTOR: 0.25}})
MIMO = layered(
    old=NO_OLD_SCALING,
    defaults={FULL_LAYERS: {PARTIAL_FACTOR: 0.334}, SLIDING_LAYERS: {PARTIAL_FACTOR: 0.334}},
)
DOTS3 = layered(
    80_000_000,
    50_000,
    "indexed_attention",
    old=OldRotaryKeys(scales_local=True, theta_keys={SLIDING_LAYERS: "swa_rope_theta"}),
    partial=0.25,
    methods=UNLISTED_METHODS,
)
BEAM = RotaryFacts(
    {SLIDING_LAYERS: 10_000}, local=(SLIDING_LAYERS,), methods=(), old=NO_OLD_SCALING
)
DEEPSEEK_V4 = RotaryFacts(
    {"compress": 160_000, "main": 10_000},
    local=("main",),
    old=OldRotaryKeys(
        theta_keys={"compress": "compress_rope_theta"},
        added={"yarn": {"attention_factor": 1.0}},
    ),
    partial=0.125,
)
ZAYA = RotaryFacts(
    {"hybrid": 5_000_000, "hybrid_sliding": 10_000},
    defaults={"hybrid": {PARTIAL_FACTOR: 0.5}, "hybrid_sliding": {PARTIAL_FACTOR: 0.5}},
    local=("hybrid_sliding",),
    old=NO_OLD_SCALING,
)

GPTJ = RotaryPositions(
    rope=LIMITS_ONLY,
    config_key="n_positions",
    aliases=(LENGTH,),
    unused_keys=("n_ctx",),
    longer_inputs="fail",
)
INKLING = UnlimitedPositions(RELATIVE, aliases=(TOKENIZER_LENGTH,))
T5 = UnlimitedPositions(RELATIVE, config_key="n_positions")

ROTARY_FAMILIES: tuple[Family, ...] = (
    rotary("blt_global_transformer", length=4096, hidden=2048, heads=16, theta=500_000.0),
    rotary("chameleon", length=4096, hidden=4096, heads=32, facts=OLMO),
    rotary("minimax_m2", length=196_608, head_dim=128, theta=5_000_000.0),
    rotary("minimax_m3_vl_text", length=524_288, head_dim=128, theta=5_000_000.0),
    rotary(
        "mllama_text_model",
        length=131_072,
        hidden=4096,
        heads=32,
        theta=500_000.0,
        facts=NEEDS_SCALING,
    ),
    rotary("molmo2_text", length=36_864, head_dim=128),
    rotary("muse_glimmer_assistant", length=131_072, head_dim=128, theta=500_000.0),
    rotary("olmo2", length=2048, hidden=4096, heads=32, facts=OLMO),
    rotary("olmo", length=2048, hidden=4096, heads=32, facts=OLMO),
    rotary(
        "qwen3_omni_moe_text",
        length=32_768,
        hidden=2048,
        heads=28,
        theta=1_000_000.0,
        facts=NEEDS_SCALING,
    ),
    rotary(
        "qwen3_vl_moe_text",
        length=128_000,
        hidden=2048,
        heads=16,
        theta=500_000.0,
        facts=NEEDS_SCALING,
    ),
    rotary("qwen3_vl_text", length=128_000, head_dim=128, theta=500_000.0, facts=NEEDS_SCALING),
    # Other facts about the settings.
    rotary("cohere2_moe", length=8192, head_dim=128, facts=RotaryFacts(old=NO_OLD_SCALING)),
    rotary("qwen2_5_vl_text", length=32_768, hidden=8192, heads=64, theta=1_000_000.0, facts=MROPE),
    rotary("qwen2_vl_text", length=32_768, hidden=8192, heads=64, theta=1_000_000.0, facts=MROPE),
    rotary("hunyuan_vl_text", length=2048, hidden=4096, heads=32, facts=HUNYUAN_VL),
    rotary("hunyuan_v1_dense", length=2048, hidden=4096, heads=32, facts=HUNYUAN),
    rotary("hunyuan_v1_moe", length=2048, hidden=4096, heads=32, facts=HUNYUAN),
    rotary(
        "ernie4_5_vl_moe_text",
        length=131_072,
        hidden=2560,
        heads=20,
        theta=500_000.0,
        facts=ONLY_THETA,
    ),
    rotary("phimoe", length=131_072, hidden=4096, heads=32, theta=1_000_000.0, facts=ONLY_THETA),
    rotary("granite_swa", length=8192, hidden=2560, heads=20, facts=PER_LAYER_THETA),
    rotary("granitemoe_swa", length=2048, hidden=4096, heads=32, facts=PER_LAYER_THETA),
    rotary("muse_glimmer_text", length=131_072, head_dim=128, facts=PER_LAYER_THETA),
    rotary("muse_spark_text", length=1_048_576, head_dim=64, facts=MUSE_SPARK),
    rotary("cosmos3_edge_text", length=131_072, head_dim=128, theta=100_000_000.0, facts=COSMOS3),
    # Scaled by default.
    rotary("ministral3", length=262_144, head_dim=128, facts=MINISTRAL3),
    rotary("mistral4", length=1_048_576, head_dim=128, facts=MISTRAL4),
    # A learned factor multiplies the frequencies of each pair.
    rotary("mistral_large4_text", length=1_048_576, head_dim=64, facts=MISTRAL_LARGE4),
    # Latent attention, which rotates a part of each head.
    rotary("longcat_flash", length=131_072, head_dim=64, theta=10_000_000.0, facts=LATENT),
    rotary("hy_v4_vl_text", length=262_144, head_dim=64, facts=LATENT),
    rotary("sarvam_mla", length=4096, head_dim=64, facts=SARVAM_MLA),
    rotary("jetmoe", length=4096, head_dim=128, facts=RotaryFacts(dim_key="kv_channels")),
    # A share of each head is rotated.
    rotary("gpt_neox", length=2048, hidden=6144, heads=64, facts=NEOX),
    rotary("gpt_neox_japanese", length=2048, hidden=2560, heads=32, facts=NEOX_JAPANESE),
    # Settings by layer type.
    rotary("gemma3_text", length=131_072, head_dim=256, facts=GEMMA3),
    rotary("gemma3n_text", length=32_768, head_dim=256, facts=GEMMA3),
    rotary("t5gemma2_decoder", length=131_072, head_dim=256, facts=GEMMA3),
    rotary("t5gemma2_text", length=131_072, head_dim=256, facts=GEMMA3),
    rotary("modernbert", length=8192, hidden=768, heads=12, facts=MODERNBERT),
    rotary("modernbert-decoder", length=8192, hidden=768, heads=12, facts=MODERNBERT),
    rotary("cohere_compass_text", length=8192, hidden=8192, heads=64, facts=LAYERED),
    rotary("step3p5", length=128_000, head_dim=128, facts=LAYERED),
    rotary("ultrabert", length=32_768, hidden=4096, heads=32, theta=2_560_000.0, facts=LAYERED),
    rotary("olmo3", length=2048, hidden=4096, heads=32, facts=OLMO3),
    rotary("neomme", length=16_384, head_dim=64, theta=1_000_000.0, facts=NEOMME),
    rotary("dory", length=8192, head_dim=256, theta=10_000_000.0, facts=DORY),
    rotary("mimo_v2_flash", length=131_072, head_dim=192, theta=5_000_000.0, facts=MIMO),
    rotary(
        "embedding_gemma2_text",
        length=262_144,
        head_dim=512,
        theta=1_000_000.0,
        facts=EMBEDDING_GEMMA2,
    ),
    rotary("diffusion_gemma_text", length=131_072, head_dim=512, theta=1_000_000.0, facts=GEMMA4),
    rotary("gemma4_text", length=131_072, head_dim=512, theta=1_000_000.0, facts=GEMMA4),
    rotary("gemma4_unified_text", length=262_144, head_dim=512, theta=1_000_000.0, facts=GEMMA4),
    rotary("lfm3", length=128_000, head_dim=128, theta=1_000_000.0, facts=LFM3),
    rotary("dots3_note_text", length=524_288, head_dim=256, facts=DOTS3),
    # Its full attention has no positions.
    rotary("beam", length=8192, head_dim=128, facts=BEAM),
    rotary("deepseek_v4", length=1_048_576, head_dim=512, facts=DEEPSEEK_V4),
    rotary("zaya", length=131_072, head_dim=128, facts=ZAYA),
    # Multimodal models whose language model may be of any type.
    with_any_text("fuyu", default="persimmon", is_in_outer_config=True),
    with_any_text("musicflamingo", default="qwen2"),
    # Multimodal models whose text model is always of the same type.
    with_own_text("granite_docling", text="granite_docling_text"),
    with_own_text("hunyuan_vl", text="hunyuan_vl_text", is_in_outer_config=True),
    with_own_text("paddleocr_vl", text="paddleocr_vl_text", is_in_outer_config=True),
    with_own_text("qwen2_5_vl", text="qwen2_5_vl_text", is_in_outer_config=True),
    with_own_text("qwen2_vl", text="qwen2_vl_text", is_in_outer_config=True),
    # Models of several text models, or in another config.
    Family(
        "qwen2_5_omni",
        parts=(own_part("text", "thinker_config", "qwen2_5_omni_thinker"),),
    ),
    Family(
        "qwen3_omni_moe",
        parts=(own_part("text", "thinker_config", "qwen3_omni_moe_thinker"),),
    ),
    Family("colmodernvbert", parts=(language_model("modernvbert", config_key="vlm_config"),)),
    # Its tokens have the positions from 1 on.
    Family("paligemma", parts=(language_model("gemma", first_position=1),)),
    Family("colpali", parts=(language_model("paligemma", config_key="vlm_config"),)),
    Family("colqwen2", parts=(language_model("qwen2_vl", config_key="vlm_config"),)),
    Family(
        "pi0",
        parts=(
            language_model("paligemma", name="vlm", config_key="vlm_config"),
            language_model("gemma", name="dit", config_key="dit_config"),
        ),
    ),
    Family(
        "t5gemma",
        parts=(
            own_part("encoder", "encoder", "t5_gemma_module"),
            own_part("decoder", "decoder", "t5_gemma_module"),
        ),
    ),
    Family(
        "t5gemma2",
        parts=(
            own_part("encoder", "encoder", "t5gemma2_encoder"),
            own_part("decoder", "decoder", "t5gemma2_decoder"),
        ),
    ),
    Family(
        "dia",
        parts=(
            own_part("encoder", "encoder_config", "dia_encoder"),
            own_part("decoder", "decoder_config", "dia_decoder"),
        ),
    ),
    Family(
        "blt",
        parts=(
            own_part("encoder", "encoder_config", "blt_local_encoder"),
            own_part("decoder", "decoder_config", "blt_local_decoder"),
            own_part("global", "global_config", "blt_global_transformer"),
        ),
    ),
    # Other keys of the length, or positions that depend on a key.
    family("gptj", GPTJ, length=2048),
    family("codegen", GPTJ, length=2048),
    family("phi3", RotaryPositions(rope=PHI), length=4096, keys=PHI_KEYS),
    family("phi4_multimodal", RotaryPositions(rope=PHI), length=131_072, keys=PHI_KEYS),
    family(
        "bailing_hybrid",
        RotaryPositions(rope=LATENT._replace(theta={"": 6_000_000}), aliases=(TOKENIZER_LENGTH,)),
        length=262_144,
        keys={"qk_rope_head_dim": 64},
    ),
    family("dbrx", RotaryPositions(rope=LIMITS_ONLY, config_key="max_seq_len"), length=2048),
    # Its audio encoder has the same length.
    family("moonshine", RotaryPositions(rope=LIMITS_ONLY), length=512),
    family(
        "zamba2",
        RotaryPositions(
            rope=RotaryFacts(dim_key="attention_head_dim"),
            when=ConfigCondition("use_mem_rope", value=True),
        ),
        length=4096,
        requires=(Requirement("use_mem_rope", value=True, instead=NO_POSITIONS),),
    ),
    family(
        "granitemoehybrid",
        RotaryPositions(
            rope=STANDARD, when=ConfigCondition("position_embedding_type", value="rope")
        ),
        length=2048,
        keys={"hidden_size": 4096, "num_attention_heads": 32},
        requires=(Requirement("position_embedding_type", value="rope", instead=NO_POSITIONS),),
    ),
    family(
        "falcon",
        RotaryPositions(rope=STANDARD, when=ConfigCondition("alibi", value=False, or_missing=True)),
        UnlimitedPositions(ALIBI, when=ConfigCondition("alibi", value=True)),
        length=2048,
        keys={"hidden_size": 4544, "num_attention_heads": 71},
    ),
    family(
        "mpt",
        UnlimitedPositions(ALIBI, config_key="max_seq_len", longer_inputs="fail"),
        length=2048,
    ),
    # Transformers reads no length of these: published configs state one, or are of models trained
    # at this one.
    family("recurrent_gemma", RotaryPositions(rope=LIMITS_ONLY), length=8192),
    family("bloom", UnlimitedPositions(ALIBI, config_key="seq_length"), length=2048),
    family("longt5", T5, length=4096),
    family("t5", T5, length=512),
    family("mt5", T5, length=512),
    family("umt5", T5, length=512),
    family("switch_transformers", T5, length=512),
    family("udop", T5, length=512),
    family("inkling_text", INKLING, length=131_072),
    family("inkling2_text", INKLING, length=1_048_576),
    family("inkling2_loop_text", INKLING, length=1_048_576),
)
