"""The registry of model types whose positions are a rule, not a table of rows: rotary, ALiBi or
relative. Data only.
"""

from dataclasses import replace
from typing import Any

from ctxextend.families.schema import (
    ALIBI,
    RELATIVE,
    ROTARY,
    Family,
    Part,
    PositionTable,
    Requirement,
    RotaryFacts,
)
from ctxextend.families.unsupported import NO_POSITIONS

LENGTH = "max_position_embeddings"
PARTIAL = "partial_rotary_factor"
FULL, SLIDING = "full_attention", "sliding_attention"

LATENT = RotaryFacts(
    dim_key="qk_rope_head_dim"
)  # latent attention rotates a part of each head, with its own size
LIMITS_ONLY = RotaryFacts(methods=())  # the classes ignore other rotary settings
PER_LAYER_THETA = ("yarn", "linear", "dynamic")  # a list in the config overrides ``rope_theta``
ONLY_THETA = (
    "theta",
)  # the classes accept no other rope type, or only one with settings of the model's own
PHI = RotaryFacts(type_names={"su": "longrope", "yarn": "longrope"}, methods=ONLY_THETA)
PHI_TRAINED: dict[str, Any] = {"original_max_position_embeddings": 4096}
SCALED_QUERIES = ("yarn", "theta")  # queries are scaled by a setting that only yarn has
SPACED = ("proportional", "theta")  # rotated pairs are spaced over the whole head
WIDE: dict[str, Any] = {
    "dim_key": "global_head_dim",
    "methods": SPACED,
}  # full attention has larger heads


def layered(
    theta: float = 10_000, local_theta: float = 10_000, full: str = FULL, **more: Any
) -> RotaryFacts:
    """Return the facts of a type with separate settings for layers with full attention and a
    sliding window.
    """
    defaults: dict[str, Any] = {"local": (SLIDING,), "reads_old": "theta_keys" in more}
    return RotaryFacts({full: theta, SLIDING: local_theta}, **defaults | more)


def unstated(rope_type: str, factor: float, trained: int, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of a config without any."""
    return {
        "": {
            "rope_type": rope_type,
            "factor": factor,
            "original_max_position_embeddings": trained,
            **more,
        }
    }


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
HIGGS = {"low_freq_factor": 0.125, "high_freq_factor": 0.5, "rope_theta": 500_000.0}
YARN: dict[str, Any] = {"beta_fast": 32.0, "beta_slow": 1.0}
MISTRAL = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
PROPORTIONAL, HALF_PROPORTIONAL = (
    {FULL: {"rope_type": "proportional", PARTIAL: share}} for share in (0.25, 0.5)
)
NEOX: dict[str, Any] = {"theta_keys": {"": "rotary_emb_base"}, "partial_key": "rotary_pct"}
BERT_THETAS = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}

# Facts by the model types that they are true of: type:length, or type:length:head_dim if that is
# not hidden_size / num_attention_heads; then @rope_theta of the layers with full attention if it is
# not that of the facts.
_ROTARY = {
    """
        EvollaModel:8192@5e5 afmoe:16384:128 arcee:4096 aria_text:2048 bitnet:2048@5e5 blt_global_transformer:4096@5e5
        blt_local_decoder:24576@5e5 blt_local_encoder:24576@5e5 blt_patcher:8192 chameleon:4096 cohere2:8192
        cohere:8192@5e5 csm:2048@5e5 deepseek_ocr2_text:2048 dia_decoder:3072:128 dia_encoder:1024:128 diffllama:2048
        doge:2048 dots1:2048 emu3_text_model:9216@1e6 ernie4_5:131072:128@5e5 ernie4_5_moe:131072@5e5 esmc:2048
        eurobert:8192 evolla:8192@5e5 exaone4:2048 exaone_moe:2048 falcon_h1:8192 flex_olmo:4096@5e5 flint:262144:128
        gemma2:8192:256 gemma:8192:256 glm4v_text:32768 glm_image_text:131072 glm_ocr_text:131072
        gradium_phonon_tts:8192 granite4_vision_text:2048 granite:2048 granite_docling_text:32768 granitemoe:2048
        granitemoeshared:2048 gte:8192@1.6e5 helium:4096:128@1e5 hrm_text:2048:128 hy_v3:131072:128@11158840
        hyperclovax:2048 idefics:2048 internlm3:32768:128 iquestcoder:131072:128 jais2:8192
        jina_embeddings_v3:8194@2e4 kolibri1:262144:128 kyutai_speech_to_text:750 lfm2:128000@1e6 lfm2_moe:128000@1e6
        llama4_text:131072:128@5e5 llama:2048 minimax_m2:196608:128@5e6 minimax_m3_vl_text:524288:128@5e6
        mistral:131072 mllama_text_model:131072@5e5 molmo2_text:36864:128 moshi:3000
        muse_glimmer_assistant:131072:128@5e5 nanochat:2048 nomic_bert:2048@1e3 olmo2:2048 olmo:2048 olmo_hybrid:65536
        olmoe:4096 paddleocr_vl_text:131072:128@5e5 pocket_tts:8192 qwen2:32768 qwen2_5_omni_talker:32768:128@1e6
        qwen2_5_omni_text:32768@1e6 qwen2_moe:32768 qwen3:32768:128 qwen3_moe:32768 qwen3_omni_moe_talker_text:32768
        qwen3_omni_moe_text:32768@1e6 qwen3_vl_moe_text:128000@5e5 qwen3_vl_text:128000:128@5e5
        qwen4_exp_text:32768:256 seed_oss:524288:128 smollm3:32768@2e6 solar_open:131072:128@1e6 starcoder2:4096
        t5_gemma_module:8192:256 unlimited_ocr_text:32768 vaultgemma:8192:256 voxtral_realtime_text:131072
    """: RotaryFacts(),
    "cohere2_moe:8192:128": RotaryFacts(reads_old=False),
    "qwen2_5_vl_text:32768@1e6 qwen2_vl_text:32768@1e6": RotaryFacts(
        type_names={"mrope": "default"}
    ),
    "hunyuan_vl_text:2048": RotaryFacts(
        type_names={"xdrope": "dynamic"},
        needs_dim=True,
        reads_alpha=True,
    ),
    "hunyuan_v1_dense:2048 hunyuan_v1_moe:2048": RotaryFacts(needs_dim=True, reads_alpha=True),
    "ministral:131072": RotaryFacts(needs_dim=True),
    "minimax:131072@1e6 mixtral:131072@1e6": RotaryFacts(needs_dim=True),
    "ernie4_5_vl_moe_text:131072@5e5 phimoe:131072@1e6": RotaryFacts(methods=ONLY_THETA),
    "granite_swa:8192 granitemoe_swa:2048 muse_glimmer_text:131072:128": RotaryFacts(
        methods=PER_LAYER_THETA
    ),
    "muse_spark_text:1048576:64": RotaryFacts(
        defaults={"": {"rope_theta": 500_000.0}}, methods=PER_LAYER_THETA
    ),
    "cosmos3_edge_text:131072:128@1e8": RotaryFacts(
        defaults={"": {"mrope_section": [24, 20, 20]}}, methods=ONLY_THETA
    ),
    "apertus:65536@1.2e7": RotaryFacts(defaults=unstated("llama3", 8.0, 8192, **LLAMA3)),
    "cwm:131072:128@1e6": RotaryFacts(defaults=unstated("llama3", 16.0, 8192, **LLAMA3)),
    "higgs_audio_v2:2048:128": RotaryFacts(defaults=unstated("llama3", 32.0, 1024, **HIGGS)),
    "gpt_oss:131072:64@1.5e5 openai_privacy_filter:131072:64@1.5e5": RotaryFacts(
        defaults=unstated("yarn", 32.0, 4096, truncate=False, **YARN)
    ),
    "ministral3:262144:128": RotaryFacts(
        defaults=unstated("yarn", 16.0, 16384, rope_theta=1e6, **MISTRAL), methods=SCALED_QUERIES
    ),
    "mistral4:1048576:128": RotaryFacts(
        partial=0.5, defaults=unstated("yarn", 128.0, 8192, **MISTRAL), methods=SCALED_QUERIES
    ),
    "mistral_large4_text:1048576:64": replace(
        LATENT, defaults=unstated("yarn", 2048.0, 512, attention_factor=1.0, **YARN)
    ),
    """
        axk1:32768:64 axk2:131072:32 deepseek_v2:2048:64 deepseek_v3:4096:64 deepseek_v32:163840:64
        glm4_moe_lite:202752:64 glm_moe_dsa:202752:64 hy_v4:262144:64 minicpm3:32768:32 youtu:131072:64
        longcat_flash:131072:64@1e7
    """: LATENT,
    "jetmoe:4096:128": RotaryFacts(dim_key="kv_channels"),
    """
        bamba:262144 glm:131072:128 glm4:131072:128 glm4_moe:131072 glm4v_moe_text:65536 nemotron:4096 persimmon:16384
        phi:2048
    """: RotaryFacts(partial=0.5),
    "qwen3_5_moe_text:32768:256 qwen3_5_text:32768:256 "
    "qwen3_next:32768:256 stablelm:4096": RotaryFacts(partial=0.25),
    "moonshine_streaming:4096": RotaryFacts(defaults={"": {PARTIAL: 0.8}}),
    "gpt_neox:2048": RotaryFacts(partial=0.25, **NEOX),
    "gpt_neox_japanese:2048": RotaryFacts(**NEOX),
    "gemma3_text:131072:256 gemma3n_text:32768:256 t5gemma2_decoder:131072:256 "
    "t5gemma2_text:131072:256": layered(
        1_000_000, theta_keys={SLIDING: "rope_local_base_freq"}, releases_are_scaled=True
    ),
    "modernbert:8192 modernbert-decoder:8192": layered(
        160_000, theta_keys=BERT_THETAS, scales_local=True
    ),
    "cohere_compass_text:8192 mellum:131072:128@5e5 step3p5:128000:128 "
    "ultrabert:32768@2.56e6": layered(),
    "olmo3:2048": layered(500_000, 500_000, theta_keys={SLIDING: ""}),
    "laguna:131072:128@5e5": layered(defaults={FULL: {PARTIAL: 0.5}}),
    "neomme:16384:64@1e6": layered(defaults={FULL: {PARTIAL: 0.25}}),
    "mimo_v2_flash:131072:192@5e6": layered(
        defaults={layers: {PARTIAL: 0.334} for layers in (FULL, SLIDING)}
    ),
    "embedding_gemma2_text:262144:512@1e6": layered(dim_key="global_head_dim"),
    "diffusion_gemma_text:131072:512@1e6 gemma4_text:131072:512@1e6 "
    "gemma4_unified_text:262144:512@1e6": layered(defaults=PROPORTIONAL, **WIDE),
    "lfm3:128000:128@1e6": layered(defaults=HALF_PROPORTIONAL, methods=SPACED),
    "dots3_note_text:524288:256": layered(
        80_000_000,
        50_000,
        "indexed_attention",
        theta_keys={SLIDING: "swa_rope_theta"},
        partial=0.25,
        scales_local=True,
    ),
    # Its full attention has no positions.
    "beam:8192:128": RotaryFacts({SLIDING: 10_000}, local=(SLIDING,), methods=(), reads_old=False),
    "deepseek_v4:1048576:512": RotaryFacts(
        {"compress": 160_000, "main": 10_000},
        local=("main",),
        theta_keys={"compress": "compress_rope_theta"},
        partial=0.125,
    ),
    "zaya:131072:128": RotaryFacts(
        {"hybrid": 5_000_000, "hybrid_sliding": 10_000},
        {layers: {PARTIAL: 0.5} for layers in ("hybrid", "hybrid_sliding")},
        local=("hybrid_sliding",),
        reads_old=False,
    ),
}

# Multimodal models, and the type of their text model after a colon if it is not NAME_text: the
# default, or a fixed one.
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
FLAT = (
    "fuyu",
    "hunyuan_vl",
    "paddleocr_vl",
    "qwen2_5_vl",
    "qwen2_vl",
)  # whose old configs have no ``text_config``
LANGUAGE_PREFIXES = (
    "language_model.",
    "model.language_model.",
)  # of a text model with a table of rows


def rule(
    scheme: str = ROTARY, key: str = LENGTH, rope: RotaryFacts | None = None, **more: Any
) -> PositionTable:
    """Return positions without a table of rows, whose length is in a config key."""
    return PositionTable(
        "rope_parameters" if scheme == ROTARY else key, key, scheme=scheme, rope=rope, **more
    )


def rotary(facts: RotaryFacts, entry: str) -> Family:
    """Return the entry of a model type in `_ROTARY`."""
    entry, _, theta = entry.partition("@")
    name, *sizes = entry.split(":")
    facts = (
        replace(facts, theta={**facts.theta, next(iter(facts.theta)): float(theta)})
        if theta
        else facts
    )
    defaults = dict(zip((LENGTH, facts.dim_key), map(int, sizes), strict=False))
    return Family(name, tables=(rule(rope=facts),), defaults=defaults)


def composite(model_type: str, is_any: bool = False, **texts: str) -> Family:
    """Return the entry of a model of text models, by the key of their config."""
    options: dict[str, Any] = {"is_any": is_any, "is_head": is_any, "is_flat": model_type in FLAT}
    names = [key.removesuffix("_config") for key in texts] if len(texts) > 1 else ["text"]
    prefixes = LANGUAGE_PREFIXES if is_any else ("",)
    parts = (
        Part(name, key, prefixes, texts[key], **options)
        for name, key in zip(names, texts, strict=True)
    )
    return Family(model_type, parts=tuple(parts))


def other(
    model_type: str,
    length: int,
    *tables: PositionTable,
    needs: tuple[Any, ...] = (),
    **defaults: int,
) -> Family:
    """Return the entry of a model with other length keys, or with a rule only for a config value
    that it `needs`.
    """
    requires = (Requirement(needs[0], needs[1], NO_POSITIONS),) if needs else ()
    tables = (
        tuple(replace(table, when=(needs[0], needs[1:])) for table in tables) if needs else tables
    )
    return Family(
        model_type,
        tables=tables,
        defaults={tables[0].config_key: length, **defaults},
        requires=requires,
    )


GPTJ = rule(
    ROTARY, "n_positions", LIMITS_ONLY, aliases=(LENGTH,), unused_keys=("n_ctx",), fails=True
)
T5 = rule(RELATIVE, "n_positions")
BAILING = rule(ROTARY, rope=replace(LATENT, theta={"": 6_000_000}), aliases=("model_max_length",))
FALCON = (
    rule(ROTARY, rope=RotaryFacts(), when=("alibi", (None, False))),
    rule(ALIBI, when=("alibi", (True,))),
)

RULE_FAMILIES = (
    *(rotary(facts, entry) for block, facts in _ROTARY.items() for entry in block.split()),
    *(
        composite(name, is_any, text_config=text or f"{name}_text")
        for is_any, block in ((True, _ANY_TEXT), (False, _FIXED_TEXT))
        for name, _, text in (word.partition(":") for word in block.split())
    ),
    *(
        composite(name, thinker_config=f"{name}_thinker")
        for name in ("qwen2_5_omni", "qwen3_omni_moe")
    ),
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
    *(other(name, 2048, GPTJ) for name in ("gptj", "codegen")),
    other("phi3", 4096, rule(ROTARY, rope=PHI), **PHI_TRAINED),
    other("phi4_multimodal", 131072, rule(ROTARY, rope=PHI), **PHI_TRAINED),
    other("bailing_hybrid", 262144, BAILING, qk_rope_head_dim=64),
    other("dbrx", 2048, rule(ROTARY, "max_seq_len", LIMITS_ONLY)),
    other("moonshine", 512, rule(ROTARY, rope=LIMITS_ONLY)),  # shared with its audio encoder
    other(
        "zamba2",
        4096,
        rule(ROTARY, rope=RotaryFacts(dim_key="attention_head_dim")),
        needs=("use_mem_rope", True),
    ),
    other(
        "granitemoehybrid",
        2048,
        rule(ROTARY, rope=RotaryFacts()),
        needs=("position_embedding_type", "rope"),
    ),
    other("falcon", 2048, *FALCON),
    other("mpt", 2048, rule(ALIBI, "max_seq_len", fails=True)),
    # Transformers reads no length of these: published configs state one, or are of models trained
    # at this one.
    other("recurrent_gemma", 8192, rule(ROTARY, rope=LIMITS_ONLY)),
    other("bloom", 2048, rule(ALIBI, "seq_length")),
    other("longt5", 4096, T5),
    *(other(name, 512, T5) for name in ("t5", "mt5", "umt5", "switch_transformers", "udop")),
    *(
        other(name, length, rule(RELATIVE))
        for name, length in (("inkling_text", 131072), ("inkling2_text", 1048576))
    ),
)
