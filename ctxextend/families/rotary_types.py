"""The registry of model types whose positions are a rule, not a table of rows: rotary, ALiBi or relative. Data only."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ctxextend.families.schema import ALIBI, RELATIVE, ROTARY, Family, Part, PositionTable, Requirement, RotaryFacts
from ctxextend.families.unsupported import NO_POSITIONS

LENGTH = "max_position_embeddings"
SLIDING = "sliding_attention"

LATENT = RotaryFacts(dim_key="qk_rope_head_dim")  # latent attention rotates a part of each head, with its own size
LIMITS_ONLY = RotaryFacts(methods=())  # the classes ignore other rotary settings
PER_LAYER_THETA = ("yarn", "linear", "dynamic")  # a list in the config overrides ``rope_theta``
ONLY_LONGROPE = ("theta",)  # transformers accepts no other rope type, and reads yarn as longrope
SCALED_QUERIES = ("yarn", "theta")  # queries are scaled by a setting that only yarn has
WIDE: dict[str, Any] = {"dim_key": "global_head_dim", "methods": ("proportional",)}  # full attention has larger heads


def flat(theta: float, **more: Any) -> RotaryFacts:
    """Return the facts of a type whose layers share their settings."""
    return RotaryFacts({"": theta}, **more)


def layered(theta: float, local_theta: float = 10_000, full: str = "full_attention", **more: Any) -> RotaryFacts:
    """Return the facts of a type with separate settings for layers with full attention and a sliding window."""
    defaults: dict[str, Any] = {"local": (SLIDING,), "reads_old": "theta_keys" in more}
    return RotaryFacts({full: theta, SLIDING: local_theta}, **defaults | more)


def unstated(rope_type: str, factor: float, trained: int, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of a config without any."""
    return {"": {"rope_type": rope_type, "factor": factor, "original_max_position_embeddings": trained, **more}}


def llama3(factor: float, trained: int, low: float = 1.0, high: float = 4.0, **more: Any) -> dict[str, dict[str, Any]]:
    """Return Llama 3's settings for a config without any."""
    return unstated("llama3", factor, trained, low_freq_factor=low, high_freq_factor=high, **more)


def yarn(factor: float, trained: int, **more: Any) -> dict[str, dict[str, Any]]:
    """Return YaRN's settings for a config without any."""
    return unstated("yarn", factor, trained, beta_fast=32.0, beta_slow=1.0, **more)


def shares(**partial: float) -> dict[str, dict[str, Any]]:
    """Return the share of each head that is rotated, by layer type, for a config without rotary settings."""
    return {layers: {"partial_rotary_factor": share} for layers, share in partial.items()}


MROPE = {"": {"mrope_section": [24, 20, 20]}}
PROPORTIONAL = {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25}}
HALF_PROPORTIONAL = {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5}}
MISTRAL_YARN = {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
BERT_THETAS = {"full_attention": "global_rope_theta", SLIDING: "local_rope_theta"}

# Model types by their facts: type:length, or type:length:head_dim if that is not hidden_size / num_attention_heads.
_ROTARY: tuple[tuple[RotaryFacts, str], ...] = (
    (
        RotaryFacts(),
        """
        afmoe:16384:128 arcee:4096 aria_text:2048 blt_patcher:8192 chameleon:4096 cohere2:8192
        deepseek_ocr2_text:2048 dia_decoder:3072:128 dia_encoder:1024:128 diffllama:2048 doge:2048 dots1:2048 esmc:2048
        eurobert:8192 exaone4:2048 exaone_moe:2048 falcon_h1:8192 flint:262144:128 gemma:8192:256 gemma2:8192:256
        glm4v_text:32768 glm_image_text:131072 glm_ocr_text:131072 gradium_phonon_tts:8192 granite:2048
        granite4_vision_text:2048 granite_docling_text:32768 granitemoe:2048 granitemoeshared:2048 hrm_text:2048:128
        hunyuan_v1_dense:2048 hunyuan_v1_moe:2048 hyperclovax:2048 idefics:2048 internlm3:32768:128
        iquestcoder:131072:128 jais2:8192 kolibri1:262144:128 kyutai_speech_to_text:750 llama:2048 ministral:131072
        mistral:131072 molmo2_text:36864:128 moshi:3000 nanochat:2048 olmo:2048 olmo2:2048 olmo_hybrid:65536 olmoe:4096
        pocket_tts:8192 qwen2:32768 qwen2_moe:32768 qwen3:32768:128 qwen3_moe:32768 qwen3_omni_moe_talker_text:32768
        qwen4_exp_text:32768:256 seed_oss:524288:128 starcoder2:4096 t5_gemma_module:8192:256 unlimited_ocr_text:32768
        vaultgemma:8192:256 voxtral_realtime_text:131072
        """,
    ),
    (
        flat(500_000),
        """
        EvollaModel:8192 bitnet:2048 blt_global_transformer:4096 blt_local_decoder:24576 blt_local_encoder:24576
        cohere:8192 csm:2048 ernie4_5:131072:128 ernie4_5_moe:131072 evolla:8192 flex_olmo:4096 llama4_text:131072:128
        mllama_text_model:131072 muse_glimmer_assistant:131072:128 paddleocr_vl_text:131072:128
        qwen3_vl_moe_text:128000 qwen3_vl_text:128000:128
        """,
    ),
    (
        flat(1_000_000),
        """
        emu3_text_model:9216 lfm2:128000 lfm2_moe:128000 minimax:131072 mixtral:131072
        qwen2_5_omni_talker:32768:128 qwen2_5_omni_text:32768 qwen3_omni_moe_text:32768 solar_open:131072:128
        """,
    ),
    (flat(10_000, reads_old=False), "cohere2_moe:8192:128"),
    (flat(1_000_000, type_names={"mrope": "default"}), "qwen2_5_vl_text:32768 qwen2_vl_text:32768"),
    (flat(10_000, type_names={"xdrope": "dynamic"}), "hunyuan_vl_text:2048"),
    (flat(1_000), "nomic_bert:2048"),
    (flat(20_000), "jina_embeddings_v3:8194"),
    (flat(100_000), "helium:4096:128"),
    (flat(160_000), "gte:8192"),
    (flat(2_000_000), "smollm3:32768"),
    (flat(5_000_000), "minimax_m2:196608:128 minimax_m3_vl_text:524288:128"),
    (flat(11_158_840), "hy_v3:131072:128"),
    (flat(500_000, methods=()), "ernie4_5_vl_moe_text:131072"),
    (flat(10_000, defaults={"": {"rope_theta": 500_000.0}}, methods=PER_LAYER_THETA), "muse_spark_text:1048576:64"),
    (flat(10_000, methods=PER_LAYER_THETA), "granite_swa:8192 granitemoe_swa:2048 muse_glimmer_text:131072:128"),
    (flat(1_000_000, methods=ONLY_LONGROPE), "phimoe:131072"),
    (flat(100_000_000, defaults=MROPE, methods=("theta",)), "cosmos3_edge_text:131072:128"),
    (flat(12_000_000, defaults=llama3(8.0, 8192)), "apertus:65536"),
    (flat(1_000_000, defaults=llama3(16.0, 8192)), "cwm:131072:128"),
    (flat(10_000, defaults=llama3(32.0, 1024, 0.125, 0.5, rope_theta=500_000.0)), "higgs_audio_v2:2048:128"),
    (flat(150_000, defaults=yarn(32.0, 4096, truncate=False)), "gpt_oss:131072:64 openai_privacy_filter:131072:64"),
    (
        flat(10_000, defaults=yarn(16.0, 16384, rope_theta=1e6, **MISTRAL_YARN), methods=SCALED_QUERIES),
        "ministral3:262144:128",
    ),
    (
        flat(10_000, partial=0.5, defaults=yarn(128.0, 8192, **MISTRAL_YARN), methods=SCALED_QUERIES),
        "mistral4:1048576:128",
    ),
    (replace(LATENT, defaults=yarn(2048.0, 512, attention_factor=1.0)), "mistral_large4_text:1048576:64"),
    (
        LATENT,
        """
        axk1:32768:64 axk2:131072:32 deepseek_v2:2048:64 deepseek_v3:4096:64 deepseek_v32:163840:64
        glm4_moe_lite:202752:64 glm_moe_dsa:202752:64 hy_v4:262144:64 minicpm3:32768:32 youtu:131072:64
        """,
    ),
    (replace(LATENT, theta={"": 10_000_000}), "longcat_flash:131072:64"),
    (flat(10_000, dim_key="kv_channels"), "jetmoe:4096:128"),
    (
        flat(10_000, partial=0.5),
        """
        bamba:262144 glm:131072:128 glm4:131072:128 glm4_moe:131072 glm4v_moe_text:65536 nemotron:4096 persimmon:16384
        phi:2048
        """,
    ),
    (
        flat(10_000, partial=0.25),
        "qwen3_5_moe_text:32768:256 qwen3_5_text:32768:256 qwen3_next:32768:256 stablelm:4096",
    ),
    (flat(10_000, defaults={"": {"partial_rotary_factor": 0.8}}), "moonshine_streaming:4096"),
    (flat(10_000, partial=0.25, theta_keys={"": "rotary_emb_base"}, partial_key="rotary_pct"), "gpt_neox:2048"),
    (flat(10_000, theta_keys={"": "rotary_emb_base"}, partial_key="rotary_pct"), "gpt_neox_japanese:2048"),
    (
        layered(1_000_000, theta_keys={SLIDING: "rope_local_base_freq"}),
        "gemma3_text:131072:256 gemma3n_text:32768:256 t5gemma2_decoder:131072:256 t5gemma2_text:131072:256",
    ),
    (layered(160_000, theta_keys=BERT_THETAS, scales_local=True), "modernbert:8192 modernbert-decoder:8192"),
    (layered(10_000), "cohere_compass_text:8192 step3p5:128000:128"),
    (layered(500_000), "mellum:131072:128"),
    (layered(500_000, 500_000, theta_keys={SLIDING: ""}), "olmo3:2048"),
    (layered(2_560_000), "ultrabert:32768"),
    (layered(500_000, defaults=shares(full_attention=0.5)), "laguna:131072:128"),
    (layered(1_000_000, defaults=shares(full_attention=0.25)), "neomme:16384:64"),
    (layered(5_000_000, defaults=shares(full_attention=0.334, sliding_attention=0.334)), "mimo_v2_flash:131072:192"),
    (layered(1_000_000, dim_key="global_head_dim"), "embedding_gemma2_text:262144:512"),
    (
        layered(1_000_000, defaults=PROPORTIONAL, **WIDE),
        "diffusion_gemma_text:131072:512 gemma4_text:131072:512 gemma4_unified_text:262144:512",
    ),
    (layered(1_000_000, defaults=HALF_PROPORTIONAL, methods=("proportional",)), "lfm3:128000:128"),
    (
        layered(
            80_000_000,
            50_000,
            "indexed_attention",
            theta_keys={SLIDING: "swa_rope_theta"},
            partial=0.25,
            scales_local=True,
        ),
        "dots3_note_text:524288:256",
    ),
    # Its full attention has no positions.
    (RotaryFacts({SLIDING: 10_000}, local=(SLIDING,), methods=(), reads_old=False), "beam:8192:128"),
    (
        RotaryFacts(
            {"compress": 160_000, "main": 10_000},
            local=("main",),
            theta_keys={"compress": "compress_rope_theta"},
            partial=0.125,
        ),
        "deepseek_v4:1048576:512",
    ),
    (
        RotaryFacts(
            {"hybrid": 5_000_000, "hybrid_sliding": 10_000},
            shares(hybrid=0.5, hybrid_sliding=0.5),
            local=("hybrid_sliding",),
            reads_old=False,
        ),
        "zaya:131072:128",
    ),
)

# Multimodal models whose text model has a fixed type, by that type: those of NAME_text first.
_NAMED_TEXT = """
    aria cohere_compass cosmos3_edge deepseek_ocr2 diffusion_gemma dots3_note embedding_gemma2 ernie4_5_vl_moe gemma3
    gemma3n gemma4 gemma4_unified glm4v glm4v_moe glm_image glm_ocr granite4_vision granite_docling hunyuan_vl llama4
    minimax_m3_vl mistral_large4 molmo2 muse_glimmer muse_spark qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe qwen4_exp
    unlimited_ocr
"""
_FLAT_TEXT = "paddleocr_vl qwen2_5_vl qwen2_vl"  # old configs have the keys of their NAME_text outside text_config
_FIXED_TEXT = {
    "emu3": "emu3_text_model",
    "mllama": "mllama_text_model",
    "step3p7": "step3p5",
    "t5gemma2_encoder": "t5gemma2_text",
    "inkling2": "inkling2_text",
    "inkling_mm_model": "inkling_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
}
# Multimodal models whose text model may have any type, by its default type.
_ANY_TEXT = {
    "llama": """
        deepseek_vl deepseek_vl_hybrid glmasr idefics3 janus llava llava_next llava_next_video perception_lm smolvlm
        video_llava vipllava voxtral
    """,
    "qwen2": """
        audioflamingo3 fast_vlm got_ocr2 internvl llava_onevision musicflamingo ovis2 pp_chart2table qwen2_audio
        vibevoice vibevoice_asr video_llama_3
    """,
    "qwen3": "fun_asr_nano lighton_ocr moss_transcribe_diarize qianfan_ocr qwen3_asr",
    "qwen3_5_text": "jev minicpm_ocr minicpmv4_6 minicpmv4_7",
    "modernbert": "modernvbert pe_audio pe_audio_video pe_video",
    "cohere2": "aya_vision cohere2_vision",
    "mistral": "idefics2 mistral3",
    "gemma3_text": "shieldgemma2",
    "gemma4_text": "gemma4_assistant",
    "gemma4_unified_text": "gemma4_unified_assistant",
    "glm4v_text": "glm46v glmga",
    "granite": "granite_speech granite_speech_plus",
    "qwen3_vl_text": "cosmos3_omni",
    "exaone4": "exaone4_5",
    "persimmon": "fuyu",
    "gemma": "paligemma",
    "hyperclovax": "hyperclovax_vision_v2",
    "deepseek_v3": "kimi_k25",
    "lfm2": "lfm2_vl",
    "lfm3": "lfm3_vl",
    "ultrabert": "ultravbert",
    "voxtral_realtime_text": "voxtral_realtime",
}
_IN_VLM = {"colmodernvbert": "modernvbert", "colpali": "paligemma", "colqwen2": "qwen2_vl"}
_BLT = {"encoder": "local_encoder", "decoder": "local_decoder", "global": "global_transformer"}
_T5 = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "udop")

LANGUAGE_PREFIXES = "language_model.", "model.language_model."  # of a text model with a table of rows


def rule(scheme: str, key: str = LENGTH, rope: RotaryFacts | None = None, **more: Any) -> PositionTable:
    """Return positions without a table of rows, whose length is in a config key."""
    return PositionTable("rope_parameters" if scheme == ROTARY else key, key, scheme=scheme, rope=rope, **more)


def _rotary(facts: RotaryFacts, entry: str) -> Family:
    """Return the entry of a model with rotary positions, packed as in `_ROTARY`."""
    model_type, length, *dim = entry.split(":")
    defaults = dict(zip((LENGTH, facts.dim_key), map(int, (length, *dim)), strict=False))
    return Family(model_type, tables=(rule(ROTARY, rope=facts),), defaults=defaults)


def _inner(key: str, model_type: str, name: str = "text", **more: Any) -> Part:
    """Return the part for a model in a config inside another."""
    return Part(name, key, LANGUAGE_PREFIXES if more.get("is_any") else ("",), model_type, **more)


def _texts() -> Iterable[Family]:
    """Yield the entries of multimodal models with one text model."""
    fixed = {name: f"{name}_text" for name in f"{_NAMED_TEXT} {_FLAT_TEXT}".split()} | _FIXED_TEXT
    for model_type, text in fixed.items():
        yield Family(model_type, parts=(_inner("text_config", text, is_flat=model_type in _FLAT_TEXT.split()),))
    for text, model_types in _ANY_TEXT.items():
        part = _inner("text_config", text, is_any=True, is_head=True)
        yield from (Family(name, parts=(replace(part, is_flat=name == "fuyu"),)) for name in model_types.split())


def _other(model_type: str, *tables: PositionTable, needs: Requirement | None = None, **defaults: int) -> Family:
    """Return the entry of a model with other length keys, or with these positions only for some configs."""
    return Family(model_type, tables=tables, defaults=defaults, requires=(needs,) if needs else ())


def _pair(model_type: str, key: str, **parts: str) -> Family:
    """Return the entry of a model of several text models, by part name; their configs are in keys such as `key`."""
    return Family(model_type, parts=tuple(_inner(key.format(name), text, name) for name, text in parts.items()))


PHI3 = rule(ROTARY, rope=flat(10_000, methods=ONLY_LONGROPE, type_names={"su": "longrope", "yarn": "longrope"}))
HALF_LATENT = replace(LATENT, theta={"": 6_000_000})
GPTJ = rule(ROTARY, "n_positions", LIMITS_ONLY, aliases=(LENGTH,), unused_keys=("n_ctx",))
IS_ROPE = Requirement("position_embedding_type", "rope", NO_POSITIONS)
HAS_ROPE = Requirement("use_mem_rope", True, NO_POSITIONS)

RULE_FAMILIES = (
    *(_rotary(facts, entry) for facts, entries in _ROTARY for entry in entries.split()),
    *_texts(),
    *(Family(name, parts=(_inner("vlm_config", vlm, is_any=True),)) for name, vlm in _IN_VLM.items()),
    *(
        Family(name, parts=(_inner("thinker_config", f"{name}_thinker"),))
        for name in ("qwen2_5_omni", "qwen3_omni_moe")
    ),
    _pair("pi0", "{}_config", vlm="paligemma", dit="gemma"),
    _pair("t5gemma", "{}", encoder="t5_gemma_module", decoder="t5_gemma_module"),
    _pair("t5gemma2", "{}", encoder="t5gemma2_encoder", decoder="t5gemma2_decoder"),
    _pair("dia", "{}_config", encoder="dia_encoder", decoder="dia_decoder"),
    Family("blt", parts=tuple(_inner(f"{name}_config", f"blt_{kind}", name) for name, kind in _BLT.items())),
    *(_other(name, GPTJ, n_positions=2048) for name in ("gptj", "codegen")),
    _other("dbrx", rule(ROTARY, "max_seq_len", LIMITS_ONLY), max_seq_len=2048),
    _other("phi3", PHI3, max_position_embeddings=4096, original_max_position_embeddings=4096),
    _other("phi4_multimodal", PHI3, max_position_embeddings=131072, original_max_position_embeddings=4096),
    _other("moonshine", rule(ROTARY, rope=LIMITS_ONLY), max_position_embeddings=512),  # its audio encoder shares them
    _other("recurrent_gemma", rule(ROTARY, rope=LIMITS_ONLY)),
    _other(
        "bailing_hybrid",
        rule(ROTARY, rope=HALF_LATENT, aliases=("model_max_length",)),
        max_position_embeddings=262144,
        qk_rope_head_dim=64,
    ),
    _other(
        "zamba2",
        rule(ROTARY, rope=RotaryFacts(dim_key="attention_head_dim"), when=("use_mem_rope", (True,))),
        needs=HAS_ROPE,
        max_position_embeddings=4096,
    ),
    _other(
        "granitemoehybrid",
        rule(ROTARY, rope=RotaryFacts(), when=("position_embedding_type", ("rope",))),
        needs=IS_ROPE,
        max_position_embeddings=2048,
    ),
    _other(
        "falcon",
        rule(ROTARY, rope=RotaryFacts(), when=("alibi", (None, False))),
        rule(ALIBI, when=("alibi", (True,))),
        max_position_embeddings=2048,
    ),
    _other("mpt", rule(ALIBI, "max_seq_len"), max_seq_len=2048),
    _other("bloom", rule(ALIBI, "seq_length")),
    *(_other(name, rule(RELATIVE, "n_positions")) for name in _T5),
    _other("inkling_text", rule(RELATIVE), max_position_embeddings=131072),
    _other("inkling2_text", rule(RELATIVE), max_position_embeddings=1048576),
)
