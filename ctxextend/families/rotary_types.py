"""The registry of model types whose positions are a rule, not a table of rows."""

from typing import Any

from ctxextend.families.rows import (
    STANDARD,
    family,
    language_model,
    own_part,
    rotary,
    with_any_text,
    with_own_text,
)
from ctxextend.families.schema import (
    ALIBI,
    LENGTH,
    RELATIVE,
    ConfigCondition,
    Family,
    OldRotaryKeys,
    Requirement,
    RotaryFacts,
    RotaryPositions,
    UnlimitedPositions,
)
from ctxextend.families.unsupported import NO_POSITIONS
from ctxextend.tables.rope_types import LISTS

PARTIAL_FACTOR = "partial_rotary_factor"
FULL = "full_attention"
SLIDING_LAYERS = "sliding_attention"

# Methods of types that do not apply all of them.
PER_LAYER_METHODS = ("yarn", "linear", "dynamic")  # a list in the config overrides ``rope_theta``
THETA_METHOD = ("theta",)  # other rope types are not accepted, or have settings of the model's own
QUERY_METHODS = ("yarn", "theta")  # queries are scaled by a setting that only yarn has
SPACED_METHODS = ("proportional", "theta")  # rotated pairs are spaced over the whole head


def layered(
    theta: float = 10_000, local_theta: float = 10_000, full: str = FULL, **more: Any
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
ONLY_THETA = RotaryFacts(methods=THETA_METHOD)
PER_LAYER_THETA = RotaryFacts(methods=PER_LAYER_METHODS)
NEEDS_DIM = RotaryFacts(needs_dim=True)
MROPE = RotaryFacts(type_names={"mrope": "default"})
PHI = RotaryFacts(
    type_names={"su": "longrope", "yarn": "longrope"}, methods=THETA_METHOD, old=PHI_OLD_KEYS
)
PHI_KEYS = {
    "original_max_position_embeddings": 4096,
    "hidden_size": 3072,
    "num_attention_heads": 32,
}
HUNYUAN = RotaryFacts(needs_dim=True, reads_alpha=True)
HUNYUAN_VL = HUNYUAN._replace(type_names={"xdrope": "dynamic"})
MUSE_SPARK = RotaryFacts(defaults={"": {"rope_theta": 500_000.0}}, methods=PER_LAYER_METHODS)
COSMOS3 = RotaryFacts(defaults={"": {"mrope_section": [24, 20, 20]}}, methods=THETA_METHOD)

LLAMA3_FACTORS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
APERTUS = RotaryFacts(defaults=unstated("llama3", 8.0, 8192, **LLAMA3_FACTORS))
CWM = RotaryFacts(defaults=unstated("llama3", 16.0, 8192, **LLAMA3_FACTORS))
HIGGS_FACTORS = {"low_freq_factor": 0.125, "high_freq_factor": 0.5}
HIGGS = RotaryFacts(
    defaults=unstated("llama3", 32.0, 1024, rope_theta=500_000.0, **HIGGS_FACTORS),
)
BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}
GPT_OSS = RotaryFacts(defaults=unstated("yarn", 32.0, 4096, truncate=False, **BETAS))
MISTRAL_SETTINGS = BETAS | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
MINISTRAL3 = RotaryFacts(
    defaults=unstated("yarn", 16.0, 16_384, rope_theta=1_000_000.0, **MISTRAL_SETTINGS),
    methods=QUERY_METHODS,
)
MISTRAL4 = RotaryFacts(
    partial=0.5,
    defaults=unstated("yarn", 128.0, 8192, **MISTRAL_SETTINGS),
    methods=QUERY_METHODS,
)
MISTRAL_LARGE4 = LATENT._replace(
    defaults=unstated("yarn", 2048.0, 512, attention_factor=1.0, **BETAS),
)

HALF = RotaryFacts(partial=0.5)
QUARTER = RotaryFacts(partial=0.25)
MOONSHINE = RotaryFacts(defaults={"": {PARTIAL_FACTOR: 0.8}})
NEOX_JAPANESE = RotaryFacts(
    old=OldRotaryKeys(theta_keys={"": "rotary_emb_base"}, partial_key="rotary_pct")
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
    defaults={FULL: {"rope_type": "proportional", PARTIAL_FACTOR: 0.25}},
    dim_key="global_head_dim",
    methods=SPACED_METHODS,
)
EMBEDDING_GEMMA2 = layered(old=NO_OLD_SCALING, dim_key="global_head_dim")
LFM3 = layered(
    old=NO_OLD_SCALING,
    defaults={FULL: {"rope_type": "proportional", PARTIAL_FACTOR: 0.5}},
    methods=SPACED_METHODS,
)
MODERNBERT = layered(
    160_000,
    old=OldRotaryKeys(
        scales_local=True,
        theta_keys={FULL: "global_rope_theta", SLIDING_LAYERS: "local_rope_theta"},
    ),
)
OLMO3 = layered(500_000, 500_000, old=OldRotaryKeys(theta_keys={SLIDING_LAYERS: ""}))
LAGUNA = layered(old=NO_OLD_SCALING, defaults={FULL: {PARTIAL_FACTOR: 0.5}})
NEOMME = layered(old=NO_OLD_SCALING, defaults={FULL: {PARTIAL_FACTOR: 0.25}})
MIMO = layered(
    old=NO_OLD_SCALING,
    defaults={FULL: {PARTIAL_FACTOR: 0.334}, SLIDING_LAYERS: {PARTIAL_FACTOR: 0.334}},
)
DOTS3 = layered(
    80_000_000,
    50_000,
    "indexed_attention",
    old=OldRotaryKeys(scales_local=True, theta_keys={SLIDING_LAYERS: "swa_rope_theta"}),
    partial=0.25,
)
BEAM = RotaryFacts(
    {SLIDING_LAYERS: 10_000}, local=(SLIDING_LAYERS,), methods=(), old=NO_OLD_SCALING
)
DEEPSEEK_V4 = RotaryFacts(
    {"compress": 160_000, "main": 10_000},
    local=("main",),
    old=OldRotaryKeys(theta_keys={"compress": "compress_rope_theta"}),
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
T5 = UnlimitedPositions(RELATIVE, config_key="n_positions")

RULE_FAMILIES: tuple[Family, ...] = (
    rotary("EvollaModel", length=8192, hidden=4096, heads=32, theta=500_000.0),
    rotary("afmoe", length=16_384, head_dim=128),
    rotary("arcee", length=4096, hidden=2560, heads=32),
    rotary("aria_text", length=2048, hidden=4096, heads=32),
    rotary("bitnet", length=2048, hidden=2560, heads=20, theta=500_000.0),
    rotary("blt_global_transformer", length=4096, hidden=2048, heads=16, theta=500_000.0),
    rotary("blt_local_decoder", length=24_576, hidden=1024, heads=16, theta=500_000.0),
    rotary("blt_local_encoder", length=24_576, hidden=1024, heads=16, theta=500_000.0),
    rotary("blt_patcher", length=8192, hidden=768, heads=12),
    rotary("chameleon", length=4096, hidden=4096, heads=32, facts=OLMO),
    rotary("cohere2", length=8192, hidden=8192, heads=64),
    rotary("cohere", length=8192, hidden=8192, heads=64, theta=500_000.0),
    rotary("csm", length=2048, hidden=2048, heads=32, theta=500_000.0),
    rotary("deepseek_ocr2_text", length=2048, hidden=4096, heads=32),
    rotary("dia_decoder", length=3072, head_dim=128),
    rotary("dia_encoder", length=1024, head_dim=128),
    rotary("diffllama", length=2048, hidden=2048, heads=32),
    rotary("doge", length=2048, hidden=1024, heads=8),
    rotary("dots1", length=2048, hidden=4608, heads=32),
    rotary("emu3_text_model", length=9216, hidden=4096, heads=32, theta=1_000_000.0),
    rotary("ernie4_5", length=131_072, head_dim=128, theta=500_000.0),
    rotary("ernie4_5_moe", length=131_072, hidden=2560, heads=20, theta=500_000.0),
    rotary("esmc", length=2048, hidden=2560, heads=40),
    rotary("eurobert", length=8192, hidden=768, heads=12),
    rotary("evolla", length=8192, hidden=4096, heads=32, theta=500_000.0),
    rotary("exaone4", length=2048, hidden=4096, heads=32),
    rotary("exaone_moe", length=2048, hidden=4096, heads=32),
    rotary("falcon_h1", length=8192, hidden=4096, heads=32),
    rotary("flex_olmo", length=4096, hidden=4096, heads=32, theta=500_000.0),
    rotary("flint", length=262_144, head_dim=128),
    rotary("gemma2", length=8192, head_dim=256),
    rotary("gemma", length=8192, head_dim=256),
    rotary("glm4v_text", length=32_768, hidden=4096, heads=32),
    rotary("glm_image_text", length=131_072, hidden=4096, heads=32),
    rotary("glm_ocr_text", length=131_072, hidden=1024, heads=16),
    rotary("gradium_phonon_tts", length=8192, hidden=768, heads=12),
    rotary("granite4_vision_text", length=2048, hidden=4096, heads=32),
    rotary("granite", length=2048, hidden=4096, heads=32),
    rotary("granite_docling_text", length=32_768, hidden=1024, heads=16),
    rotary("granitemoe", length=2048, hidden=4096, heads=32),
    rotary("granitemoeshared", length=2048, hidden=4096, heads=32),
    rotary("gte", length=8192, hidden=768, heads=12, theta=160_000.0),
    rotary("helium", length=4096, head_dim=128, theta=100_000.0),
    rotary("hrm_text", length=2048, head_dim=128),
    rotary("hy_v3", length=131_072, head_dim=128, theta=11_158_840.0),
    rotary("hyperclovax", length=2048, hidden=4096, heads=32),
    rotary("idefics", length=2048, hidden=4096, heads=32),
    rotary("internlm3", length=32_768, head_dim=128),
    rotary("iquestcoder", length=131_072, head_dim=128),
    rotary("jais2", length=8192, hidden=3328, heads=26),
    rotary("jina_embeddings_v3", length=8194, hidden=1024, heads=16, theta=20_000.0),
    rotary("kolibri1", length=262_144, head_dim=128),
    rotary("kyutai_speech_to_text", length=750, hidden=2048, heads=32),
    rotary("lfm2", length=128_000, hidden=2560, heads=32, theta=1_000_000.0),
    rotary("lfm2_moe", length=128_000, hidden=2048, heads=32, theta=1_000_000.0),
    rotary("llama4_text", length=131_072, head_dim=128, theta=500_000.0),
    rotary("llama", length=2048, hidden=4096, heads=32),
    rotary("minimax_m2", length=196_608, head_dim=128, theta=5_000_000.0),
    rotary("minimax_m3_vl_text", length=524_288, head_dim=128, theta=5_000_000.0),
    rotary("mistral", length=131_072, hidden=4096, heads=32),
    rotary(
        "mllama_text_model",
        length=131_072,
        hidden=4096,
        heads=32,
        theta=500_000.0,
        facts=NEEDS_SCALING,
    ),
    rotary("molmo2_text", length=36_864, head_dim=128),
    rotary("moshi", length=3000, hidden=4096, heads=32),
    rotary("muse_glimmer_assistant", length=131_072, head_dim=128, theta=500_000.0),
    rotary("nanochat", length=2048, hidden=768, heads=6),
    rotary("nomic_bert", length=2048, hidden=768, heads=12, theta=1_000.0),
    rotary("olmo2", length=2048, hidden=4096, heads=32, facts=OLMO),
    rotary("olmo", length=2048, hidden=4096, heads=32, facts=OLMO),
    rotary("olmo_hybrid", length=65_536, hidden=3840, heads=30),
    rotary("olmoe", length=4096, hidden=2048, heads=16),
    rotary("paddleocr_vl_text", length=131_072, head_dim=128, theta=500_000.0),
    rotary("pocket_tts", length=8192, hidden=1024, heads=16),
    rotary("qwen2", length=32_768, hidden=4096, heads=32),
    rotary("qwen2_5_omni_talker", length=32_768, head_dim=128, theta=1_000_000.0),
    rotary("qwen2_5_omni_text", length=32_768, hidden=3584, heads=28, theta=1_000_000.0),
    rotary("qwen2_moe", length=32_768, hidden=2048, heads=16),
    rotary("qwen3", length=32_768, head_dim=128),
    rotary("qwen3_moe", length=32_768, hidden=2048, heads=32),
    rotary("qwen3_omni_moe_talker_text", length=32_768, hidden=1024, heads=16),
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
    rotary("qwen4_exp_text", length=32_768, head_dim=256),
    rotary("seed_oss", length=524_288, head_dim=128),
    rotary("smollm3", length=32_768, hidden=2048, heads=16, theta=2_000_000.0),
    rotary("solar_open", length=131_072, head_dim=128, theta=1_000_000.0),
    rotary("starcoder2", length=4096, hidden=3072, heads=24),
    rotary("t5_gemma_module", length=8192, head_dim=256),
    rotary("unlimited_ocr_text", length=32_768, hidden=1280, heads=10),
    rotary("vaultgemma", length=8192, head_dim=256),
    rotary("voxtral_realtime_text", length=131_072, hidden=4096, heads=32),
    # Other facts about the settings.
    rotary("cohere2_moe", length=8192, head_dim=128, facts=RotaryFacts(old=NO_OLD_SCALING)),
    rotary("qwen2_5_vl_text", length=32_768, hidden=8192, heads=64, theta=1_000_000.0, facts=MROPE),
    rotary("qwen2_vl_text", length=32_768, hidden=8192, heads=64, theta=1_000_000.0, facts=MROPE),
    rotary("hunyuan_vl_text", length=2048, hidden=4096, heads=32, facts=HUNYUAN_VL),
    rotary("hunyuan_v1_dense", length=2048, hidden=4096, heads=32, facts=HUNYUAN),
    rotary("hunyuan_v1_moe", length=2048, hidden=4096, heads=32, facts=HUNYUAN),
    rotary("ministral", length=131_072, hidden=4096, heads=32, facts=NEEDS_DIM),
    rotary("minimax", length=131_072, hidden=4096, heads=32, theta=1_000_000.0, facts=NEEDS_DIM),
    rotary("mixtral", length=131_072, hidden=4096, heads=32, theta=1_000_000.0, facts=NEEDS_DIM),
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
    rotary("apertus", length=65_536, hidden=4096, heads=32, theta=12_000_000.0, facts=APERTUS),
    rotary("cwm", length=131_072, head_dim=128, theta=1_000_000.0, facts=CWM),
    rotary("higgs_audio_v2", length=2048, head_dim=128, facts=HIGGS),
    rotary("gpt_oss", length=131_072, head_dim=64, theta=150_000.0, facts=GPT_OSS),
    rotary("openai_privacy_filter", length=131_072, head_dim=64, theta=150_000.0, facts=GPT_OSS),
    rotary("ministral3", length=262_144, head_dim=128, facts=MINISTRAL3),
    rotary("mistral4", length=1_048_576, head_dim=128, facts=MISTRAL4),
    rotary("mistral_large4_text", length=1_048_576, head_dim=64, facts=MISTRAL_LARGE4),
    # Latent attention, which rotates a part of each head.
    rotary("axk1", length=32_768, head_dim=64, facts=LATENT),
    rotary("axk2", length=131_072, head_dim=32, facts=LATENT),
    rotary("deepseek_v2", length=2048, head_dim=64, facts=LATENT),
    rotary("deepseek_v3", length=4096, head_dim=64, facts=LATENT),
    rotary("deepseek_v32", length=163_840, head_dim=64, facts=LATENT),
    rotary("glm4_moe_lite", length=202_752, head_dim=64, facts=LATENT),
    rotary("glm_moe_dsa", length=202_752, head_dim=64, facts=LATENT),
    rotary("hy_v4", length=262_144, head_dim=64, facts=LATENT),
    rotary("minicpm3", length=32_768, head_dim=32, facts=LATENT),
    rotary("youtu", length=131_072, head_dim=64, facts=LATENT),
    rotary("longcat_flash", length=131_072, head_dim=64, theta=10_000_000.0, facts=LATENT),
    rotary("jetmoe", length=4096, head_dim=128, facts=RotaryFacts(dim_key="kv_channels")),
    # A share of each head is rotated.
    rotary("bamba", length=262_144, hidden=4096, heads=32, facts=HALF),
    rotary("glm", length=131_072, head_dim=128, facts=HALF),
    rotary("glm4", length=131_072, head_dim=128, facts=HALF),
    rotary("glm4_moe", length=131_072, hidden=4096, heads=96, facts=HALF),
    rotary("glm4v_moe_text", length=65_536, hidden=4096, heads=96, facts=HALF),
    rotary("nemotron", length=4096, hidden=6144, heads=48, facts=HALF),
    rotary("persimmon", length=16_384, hidden=4096, heads=64, facts=HALF),
    rotary("phi", length=2048, hidden=2048, heads=32, facts=HALF),
    rotary("qwen3_5_moe_text", length=32_768, head_dim=256, facts=QUARTER),
    rotary("qwen3_5_text", length=32_768, head_dim=256, facts=QUARTER),
    rotary("qwen3_next", length=32_768, head_dim=256, facts=QUARTER),
    rotary("stablelm", length=4096, hidden=2560, heads=32, facts=QUARTER),
    rotary("moonshine_streaming", length=4096, hidden=320, heads=8, facts=MOONSHINE),
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
    rotary("mellum", length=131_072, head_dim=128, theta=500_000.0, facts=LAYERED),
    rotary("step3p5", length=128_000, head_dim=128, facts=LAYERED),
    rotary("ultrabert", length=32_768, hidden=4096, heads=32, theta=2_560_000.0, facts=LAYERED),
    rotary("olmo3", length=2048, hidden=4096, heads=32, facts=OLMO3),
    rotary("laguna", length=131_072, head_dim=128, theta=500_000.0, facts=LAGUNA),
    rotary("neomme", length=16_384, head_dim=64, theta=1_000_000.0, facts=NEOMME),
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
    with_any_text("audioflamingo3", default="qwen2"),
    with_any_text("aya_vision", default="cohere2"),
    with_any_text("cohere2_vision", default="cohere2"),
    with_any_text("cosmos3_omni", default="qwen3_vl_text"),
    with_any_text("deepseek_vl", default="llama"),
    with_any_text("deepseek_vl_hybrid", default="llama"),
    with_any_text("exaone4_5", default="exaone4"),
    with_any_text("fast_vlm", default="qwen2"),
    with_any_text("fun_asr_nano", default="qwen3"),
    with_any_text("fuyu", default="persimmon", is_in_outer_config=True),
    with_any_text("gemma4_assistant", default="gemma4_text"),
    with_any_text("gemma4_unified_assistant", default="gemma4_unified_text"),
    with_any_text("glm46v", default="glm4v_text"),
    with_any_text("glmasr", default="llama"),
    with_any_text("glmga", default="glm4v_text"),
    with_any_text("got_ocr2", default="qwen2"),
    with_any_text("granite_speech", default="granite"),
    with_any_text("granite_speech_plus", default="granite"),
    with_any_text("hyperclovax_vision_v2", default="hyperclovax"),
    with_any_text("idefics2", default="mistral"),
    with_any_text("idefics3", default="llama"),
    with_any_text("internvl", default="qwen2"),
    with_any_text("janus", default="llama"),
    with_any_text("jev", default="qwen3_5_text"),
    with_any_text("kimi_k25", default="deepseek_v3"),
    with_any_text("lfm2_vl", default="lfm2"),
    with_any_text("lfm3_vl", default="lfm3"),
    with_any_text("lighton_ocr", default="qwen3"),
    with_any_text("llava", default="llama"),
    with_any_text("llava_next", default="llama"),
    with_any_text("llava_next_video", default="llama"),
    with_any_text("llava_onevision", default="qwen2"),
    with_any_text("minicpm_ocr", default="qwen3_5_text"),
    with_any_text("minicpmv4_6", default="qwen3_5_text"),
    with_any_text("minicpmv4_7", default="qwen3_5_text"),
    with_any_text("mistral3", default="mistral"),
    with_any_text("modernvbert", default="modernbert"),
    with_any_text("moss_transcribe_diarize", default="qwen3"),
    with_any_text("musicflamingo", default="qwen2"),
    with_any_text("ovis2", default="qwen2"),
    with_any_text("paligemma", default="gemma"),
    with_any_text("pe_audio", default="modernbert"),
    with_any_text("pe_audio_video", default="modernbert"),
    with_any_text("pe_video", default="modernbert"),
    with_any_text("perception_lm", default="llama"),
    with_any_text("pp_chart2table", default="qwen2"),
    with_any_text("qianfan_ocr", default="qwen3"),
    with_any_text("qwen2_audio", default="qwen2"),
    with_any_text("qwen3_asr", default="qwen3"),
    with_any_text("shieldgemma2", default="gemma3_text"),
    with_any_text("smolvlm", default="llama"),
    with_any_text("ultravbert", default="ultrabert"),
    with_any_text("vibevoice", default="qwen2"),
    with_any_text("vibevoice_asr", default="qwen2"),
    with_any_text("video_llama_3", default="qwen2"),
    with_any_text("video_llava", default="llama"),
    with_any_text("vipllava", default="llama"),
    with_any_text("voxtral", default="llama"),
    with_any_text("voxtral_realtime", default="voxtral_realtime_text"),
    # Multimodal models whose text model is always of the same type.
    with_own_text("aria", text="aria_text"),
    with_own_text("cohere_compass", text="cohere_compass_text"),
    with_own_text("cosmos3_edge", text="cosmos3_edge_text"),
    with_own_text("deepseek_ocr2", text="deepseek_ocr2_text"),
    with_own_text("diffusion_gemma", text="diffusion_gemma_text"),
    with_own_text("dots3_note", text="dots3_note_text"),
    with_own_text("embedding_gemma2", text="embedding_gemma2_text"),
    with_own_text("emu3", text="emu3_text_model"),
    with_own_text("ernie4_5_vl_moe", text="ernie4_5_vl_moe_text"),
    with_own_text("gemma3", text="gemma3_text"),
    with_own_text("gemma3n", text="gemma3n_text"),
    with_own_text("gemma4", text="gemma4_text"),
    with_own_text("gemma4_unified", text="gemma4_unified_text"),
    with_own_text("glm4v", text="glm4v_text"),
    with_own_text("glm4v_moe", text="glm4v_moe_text"),
    with_own_text("glm_image", text="glm_image_text"),
    with_own_text("glm_ocr", text="glm_ocr_text"),
    with_own_text("granite4_vision", text="granite4_vision_text"),
    with_own_text("granite_docling", text="granite_docling_text"),
    with_own_text("hunyuan_vl", text="hunyuan_vl_text", is_in_outer_config=True),
    with_own_text("inkling2", text="inkling2_text"),
    with_own_text("inkling_mm_model", text="inkling_text"),
    with_own_text("llama4", text="llama4_text"),
    with_own_text("minimax_m3_vl", text="minimax_m3_vl_text"),
    with_own_text("mistral_large4", text="mistral_large4_text"),
    with_own_text("mllama", text="mllama_text_model"),
    with_own_text("molmo2", text="molmo2_text"),
    with_own_text("muse_glimmer", text="muse_glimmer_text"),
    with_own_text("muse_spark", text="muse_spark_text"),
    with_own_text("paddleocr_vl", text="paddleocr_vl_text", is_in_outer_config=True),
    with_own_text("qwen2_5_omni_thinker", text="qwen2_5_omni_text"),
    with_own_text("qwen2_5_vl", text="qwen2_5_vl_text", is_in_outer_config=True),
    with_own_text("qwen2_vl", text="qwen2_vl_text", is_in_outer_config=True),
    with_own_text("qwen3_5", text="qwen3_5_text"),
    with_own_text("qwen3_5_moe", text="qwen3_5_moe_text"),
    with_own_text("qwen3_omni_moe_thinker", text="qwen3_omni_moe_text"),
    with_own_text("qwen3_vl", text="qwen3_vl_text"),
    with_own_text("qwen3_vl_moe", text="qwen3_vl_moe_text"),
    with_own_text("qwen4_exp", text="qwen4_exp_text"),
    with_own_text("step3p7", text="step3p5"),
    with_own_text("t5gemma2_encoder", text="t5gemma2_text"),
    with_own_text("unlimited_ocr", text="unlimited_ocr_text"),
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
        RotaryPositions(rope=LATENT._replace(theta={"": 6_000_000}), aliases=("model_max_length",)),
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
    family("inkling_text", UnlimitedPositions(RELATIVE), length=131_072),
    family("inkling2_text", UnlimitedPositions(RELATIVE), length=1_048_576),
)
