"""transformers' default sizes of rotary models: configs that equal them may leave the keys out.
Data only.
"""

from collections.abc import Mapping

# Model types by (hidden_size, num_attention_heads); other types have a default size of a head in
# the registry.
_TYPES: Mapping[tuple[int, int], str] = {
    (320, 8): "moonshine_streaming",
    (768, 6): "nanochat",
    (768, 12): """
        blt_patcher eurobert gradium_phonon_tts gte modernbert modernbert-decoder nomic_bert
    """,
    (1024, 8): "doge",
    (1024, 16): """
        blt_local_decoder blt_local_encoder glm_ocr_text granite_docling_text jina_embeddings_v3
        pocket_tts qwen3_omni_moe_talker_text
    """,
    (1280, 10): "unlimited_ocr_text",
    (2048, 16): "blt_global_transformer olmoe qwen2_moe qwen3_vl_moe_text smollm3",
    (2048, 28): "qwen3_omni_moe_text",
    (2048, 32): "csm diffllama kyutai_speech_to_text lfm2_moe phi qwen3_moe",
    (2560, 20): "bitnet ernie4_5_moe ernie4_5_vl_moe_text granite_swa",
    (2560, 32): "arcee gpt_neox_japanese lfm2 stablelm",
    (2560, 40): "esmc",
    (3072, 24): "starcoder2",
    (3072, 32): "phi3 phi4_multimodal",
    (3328, 26): "jais2",
    (3584, 28): "qwen2_5_omni_text",
    (3840, 30): "olmo_hybrid",
    (4096, 32): """
        EvollaModel apertus aria_text bamba chameleon deepseek_ocr2_text emu3_text_model evolla
        exaone4 exaone_moe falcon_h1 flex_olmo glm4v_text glm_image_text granite
        granite4_vision_text granitemoe granitemoe_swa granitemoehybrid granitemoeshared
        hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text hyperclovax idefics llama minimax
        ministral mistral mixtral mllama_text_model moshi olmo olmo2 olmo3 phimoe qwen2 ultrabert
        voxtral_realtime_text
    """,
    (4096, 64): "persimmon",
    (4096, 96): "glm4_moe glm4v_moe_text",
    (4544, 71): "falcon",
    (4608, 32): "dots1",
    (6144, 48): "nemotron",
    (6144, 64): "gpt_neox",
    (8192, 64): "cohere cohere2 cohere_compass_text qwen2_5_vl_text qwen2_vl_text",
}

DEFAULT_SIZES: Mapping[str, Mapping[str, int]] = {
    model_type: {"hidden_size": hidden_size, "num_attention_heads": heads}
    for (hidden_size, heads), model_types in _TYPES.items()
    for model_type in model_types.split()
}
