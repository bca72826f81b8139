"""The registry of model types whose positions are a rule, not a table of rows: rotary, ALiBi or relative. Data only."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ctxextend.families.schema import ALIBI, RELATIVE, ROTARY, Family, Part, PositionTable, Requirement, RotaryFacts
from ctxextend.families.unsupported import NO_POSITIONS

LENGTH = "max_position_embeddings"
SLIDING = "sliding_attention"

LATENT = RotaryFacts(dim_key="qk_rope_head_dim")  # latent attention rotates a part of each head, with its own size
LIMITS_ONLY = RotaryFacts(methods=())  # the classes ignore other rotary settings
PER_LAYER_THETA = ("yarn", "linear", "dynamic")  # a list in the config overrides ``rope_theta``
ONLY_THETA = ("theta",)  # the classes accept no other rope type, or only one with settings of the model's own
PHI = RotaryFacts(type_names={"su": "longrope", "yarn": "longrope"}, methods=ONLY_THETA)
PHI_TRAINED: dict[str, Any] = {"original_max_position_embeddings": 4096}
SCALED_QUERIES = ("yarn", "theta")  # queries are scaled by a setting that only yarn has
SPACED = ("proportional", "theta")  # rotated pairs are spaced over the whole head
WIDE: dict[str, Any] = {"dim_key": "global_head_dim", "methods": SPACED}  # full attention has larger heads


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
        hyperclovax:2048 idefics:2048 internlm3:32768:128
        iquestcoder:131072:128 jais2:8192 kolibri1:262144:128 kyutai_speech_to_text:750 llama:2048
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
        emu3_text_model:9216 lfm2:128000 lfm2_moe:128000
        qwen2_5_omni_talker:32768:128 qwen2_5_omni_text:32768 qwen3_omni_moe_text:32768 solar_open:131072:128
        """,
    ),
    (flat(10_000, reads_old=False), "cohere2_moe:8192:128"),
    (flat(1_000_000, type_names={"mrope": "default"}), "qwen2_5_vl_text:32768 qwen2_vl_text:32768"),
    (flat(10_000, type_names={"xdrope": "dynamic"}, needs_dim=True), "hunyuan_vl_text:2048"),
    (flat(1_000_000, needs_dim=True), "minimax:131072 mixtral:131072"),
    (flat(10_000, needs_dim=True), "hunyuan_v1_dense:2048 hunyuan_v1_moe:2048 ministral:131072"),
    (flat(1_000), "nomic_bert:2048"),
    (flat(20_000), "jina_embeddings_v3:8194"),
    (flat(100_000), "helium:4096:128"),
    (flat(160_000), "gte:8192"),
    (flat(2_000_000), "smollm3:32768"),
    (flat(5_000_000), "minimax_m2:196608:128 minimax_m3_vl_text:524288:128"),
    (flat(11_158_840), "hy_v3:131072:128"),
    (flat(500_000, methods=ONLY_THETA), "ernie4_5_vl_moe_text:131072"),
    (flat(10_000, defaults={"": {"rope_theta": 500_000.0}}, methods=PER_LAYER_THETA), "muse_spark_text:1048576:64"),
    (flat(10_000, methods=PER_LAYER_THETA), "granite_swa:8192 granitemoe_swa:2048 muse_glimmer_text:131072:128"),
    (flat(1_000_000, methods=ONLY_THETA), "phimoe:131072"),
    (flat(100_000_000, defaults=MROPE, methods=ONLY_THETA), "cosmos3_edge_text:131072:128"),
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
    (layered(1_000_000, defaults=HALF_PROPORTIONAL, methods=SPACED), "lfm3:128000:128"),
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

# Multimodal models, and the type of their text model after a colon if it is not NAME_text: the default, or a fixed one.
_ANY_TEXT = """
    audioflamingo3:qwen2 aya_vision:cohere2 cohere2_vision:cohere2 cosmos3_omni:qwen3_vl_text deepseek_vl:llama
    deepseek_vl_hybrid:llama exaone4_5:exaone4 fast_vlm:qwen2 fun_asr_nano:qwen3 fuyu:persimmon
    gemma4_assistant:gemma4_text gemma4_unified_assistant:gemma4_unified_text glm46v:glm4v_text glmasr:llama
    glmga:glm4v_text got_ocr2:qwen2 granite_speech:granite granite_speech_plus:granite hyperclovax_vision_v2:hyperclovax
    idefics2:mistral idefics3:llama internvl:qwen2 janus:llama jev:qwen3_5_text kimi_k25:deepseek_v3 lfm2_vl:lfm2
    lfm3_vl:lfm3 lighton_ocr:qwen3 llava:llama llava_next:llama llava_next_video:llama llava_onevision:qwen2
    minicpm_ocr:qwen3_5_text minicpmv4_6:qwen3_5_text minicpmv4_7:qwen3_5_text mistral3:mistral modernvbert:modernbert
    moss_transcribe_diarize:qwen3 musicflamingo:qwen2 ovis2:qwen2 paligemma:gemma pe_audio:modernbert
    pe_audio_video:modernbert pe_video:modernbert perception_lm:llama pp_chart2table:qwen2 qianfan_ocr:qwen3
    qwen2_audio:qwen2 qwen3_asr:qwen3 shieldgemma2:gemma3_text smolvlm:llama ultravbert:ultrabert vibevoice:qwen2
    vibevoice_asr:qwen2 video_llama_3:qwen2 video_llava:llama vipllava:llama voxtral:llama voxtral_realtime
"""
_FIXED_TEXT = """
    aria cohere_compass cosmos3_edge deepseek_ocr2 diffusion_gemma dots3_note embedding_gemma2 emu3:emu3_text_model
    ernie4_5_vl_moe gemma3 gemma3n gemma4 gemma4_unified glm4v glm4v_moe glm_image glm_ocr granite4_vision
    granite_docling hunyuan_vl inkling2 inkling_mm_model:inkling_text llama4 minimax_m3_vl mistral_large4
    mllama:mllama_text_model molmo2 muse_glimmer muse_spark paddleocr_vl qwen2_5_omni_thinker:qwen2_5_omni_text
    qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe qwen3_omni_moe_thinker:qwen3_omni_moe_text qwen3_vl qwen3_vl_moe qwen4_exp
    step3p7:step3p5 t5gemma2_encoder:t5gemma2_text unlimited_ocr
"""
FLAT = ("fuyu", "paddleocr_vl", "qwen2_5_vl", "qwen2_vl")  # whose old configs have no ``text_config``
LANGUAGE_PREFIXES = ("language_model.", "model.language_model.")  # of a text model with a table of rows


def rule(scheme: str, key: str = LENGTH, rope: RotaryFacts | None = None, **more: Any) -> PositionTable:
    """Return positions without a table of rows, whose length is in a config key."""
    return PositionTable("rope_parameters" if scheme == ROTARY else key, key, scheme=scheme, rope=rope, **more)


def composite(model_type: str, is_any: bool = False, **texts: str) -> Family:
    """Return the entry of a model of text models, by the key of their config."""
    parts = (
        Part(
            key.removesuffix("_config") if len(texts) > 1 else "text",
            key,
            LANGUAGE_PREFIXES if is_any else ("",),
            text,
            is_any=is_any,
            is_head=is_any,
            is_flat=model_type in FLAT,
        )
        for key, text in texts.items()
    )
    return Family(model_type, parts=tuple(parts))


def other(model_type: str, *tables: PositionTable, needs: tuple[str, Any] | None = None, **defaults: int) -> Family:
    """Return the entry of a model with other length keys, or with a rule only for a config value that it `needs`."""
    requires = (Requirement(*needs, NO_POSITIONS),) if needs else ()
    tables = tuple(replace(table, when=(needs[0], needs[1:])) for table in tables) if needs else tables
    return Family(model_type, tables=tables, defaults=defaults, requires=requires)


def words(block: str) -> Iterator[list[str]]:
    """Yield the words of a block, each split at colons."""
    return (word.split(":") for word in block.split())


GPTJ = rule(ROTARY, "n_positions", LIMITS_ONLY, aliases=(LENGTH,), unused_keys=("n_ctx",), fails=True)
T5 = rule(RELATIVE, "n_positions")
BAILING = rule(ROTARY, rope=replace(LATENT, theta={"": 6_000_000}), aliases=("model_max_length",))

RULE_FAMILIES = (
    *(
        Family(
            name,
            tables=(rule(ROTARY, rope=facts),),
            defaults=dict(zip((LENGTH, facts.dim_key), map(int, sizes), strict=False)),
        )
        for facts, block in _ROTARY
        for name, *sizes in words(block)
    ),
    *(composite(name, True, text_config="".join(text) or f"{name}_text") for name, *text in words(_ANY_TEXT)),
    *(composite(name, text_config="".join(text) or f"{name}_text") for name, *text in words(_FIXED_TEXT)),
    *(composite(name, thinker_config=f"{name}_thinker") for name in ("qwen2_5_omni", "qwen3_omni_moe")),
    composite("colmodernvbert", True, vlm_config="modernvbert"),
    composite("colpali", True, vlm_config="paligemma"),
    composite("colqwen2", True, vlm_config="qwen2_vl"),
    composite("pi0", True, vlm_config="paligemma", dit_config="gemma"),
    composite("t5gemma", encoder="t5_gemma_module", decoder="t5_gemma_module"),
    composite("t5gemma2", encoder="t5gemma2_encoder", decoder="t5gemma2_decoder"),
    composite("dia", encoder_config="dia_encoder", decoder_config="dia_decoder"),
    composite(
        "blt",
        encoder_config="blt_local_encoder",
        decoder_config="blt_local_decoder",
        global_config="blt_global_transformer",
    ),
    *(other(name, GPTJ, n_positions=2048) for name in ("gptj", "codegen")),
    other("phi3", rule(ROTARY, rope=PHI), max_position_embeddings=4096, **PHI_TRAINED),
    other("phi4_multimodal", rule(ROTARY, rope=PHI), max_position_embeddings=131072, **PHI_TRAINED),
    other("bailing_hybrid", BAILING, max_position_embeddings=262144, qk_rope_head_dim=64),
    other("dbrx", rule(ROTARY, "max_seq_len", LIMITS_ONLY), max_seq_len=2048),
    other("moonshine", rule(ROTARY, rope=LIMITS_ONLY), max_position_embeddings=512),  # shared with its audio encoder
    other(
        "zamba2",
        rule(ROTARY, rope=RotaryFacts(dim_key="attention_head_dim")),
        needs=("use_mem_rope", True),
        max_position_embeddings=4096,
    ),
    other(
        "granitemoehybrid",
        rule(ROTARY, rope=RotaryFacts()),
        needs=("position_embedding_type", "rope"),
        max_position_embeddings=2048,
    ),
    other(
        "falcon",
        rule(ROTARY, rope=RotaryFacts(), when=("alibi", (None, False))),
        rule(ALIBI, when=("alibi", (True,))),
        max_position_embeddings=2048,
    ),
    other("mpt", rule(ALIBI, "max_seq_len", fails=True), max_seq_len=2048),
    # Transformers reads no length of these: published configs state one, or are of models trained at this one.
    other("recurrent_gemma", rule(ROTARY, rope=LIMITS_ONLY), max_position_embeddings=8192),
    other("bloom", rule(ALIBI, "seq_length"), seq_length=2048),
    other("longt5", rule(RELATIVE, "n_positions"), n_positions=4096),
    *(other(name, T5, n_positions=512) for name in ("t5", "mt5", "umt5", "switch_transformers", "udop")),
    other("inkling_text", rule(RELATIVE), max_position_embeddings=131072),
    other("inkling2_text", rule(RELATIVE), max_position_embeddings=1048576),
)
