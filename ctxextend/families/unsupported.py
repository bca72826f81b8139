"""Model types without a position table to resize, and the position scheme of each."""

from collections.abc import Mapping
from dataclasses import replace

from ctxextend.families.schema import PositionScheme

NO_CHANGE = "It accepts longer inputs without changes."
NOTHING = "There is nothing to extend."
NO_TOKENS = "It has no token positions to resize."
FAMILIES_HINT = "List supported model types with `ctxextend families`."

NO_SETTINGS = PositionScheme(
    "rotary position embeddings without settings or a stated length", NO_CHANGE, "rotary"
)
CODEBOOK_ROTARY = PositionScheme(
    "rotary position embeddings of a fixed number of codebooks", NOTHING, "rotary"
)
OTHER_TYPE = PositionScheme(
    "position embeddings of that type",
    "If it was trained with absolute positions, set position_embedding_type to absolute in "
    "config.json.",
)
NOT_LOADED = PositionScheme(
    "fixed sinusoids that transformers 5.23 creates but cannot load: inputs fail",
    "They are not stored: raise max_position_embeddings in config.json, and use another version "
    "of transformers.",
)
NO_POSITIONS = PositionScheme("no position embeddings", f"{NOTHING} {NO_CHANGE}", "none")
AUDIO = PositionScheme(
    "only positions of audio frames, if any", NO_TOKENS, "audio", reads_tokens=False
)

GRID = PositionScheme(
    "axial position embeddings, not one table",
    "Retrain the model with a different axial_pos_shape.",
)
INTERPOLATED = PositionScheme(
    "a table that it interpolates to each input length", "There is nothing to resize."
)

_MODEL_TYPES: Mapping[PositionScheme, str] = {
    NO_SETTINGS: "clvp_encoder",
    CODEBOOK_ROTARY: "csm_depth_decoder_model qwen3_omni_moe_talker_code_predictor",
    PositionScheme("relative positions, which depend only on distances", NO_CHANGE, "relative"): """
        cpmant esmfold2 fastspeech2_conformer fastspeech2_conformer_with_hifigan funnel pix2struct pix2struct_text_model
        pop2piano vits xlnet
    """,
    NO_POSITIONS: """
        blip_2_qformer falcon_mamba flava_multimodal_model glm5_next glm5_next_text idefics2_perceiver idefics_perciever
        jamba kimi_linear mamba mamba2 molmo2_adapter nemo_speechlm nemotron_h nemotron_h_omni rwkv xlstm zamba
    """,
    PositionScheme(
        "positions of time steps or time series patches",
        "Raise context_length in config.json. If tensor sizes depend on it, retrain the model at "
        "the new length.",
        "time series",
        reads_tokens=False,
    ): "autoformer informer patchtsmixer patchtst time_series_transformer timesfm timesfm2_5",
    PositionScheme(
        "only positions of image patches, frames or points, if any",
        NO_TOKENS,
        "images",
        reads_tokens=False,
    ): """
        aimv2_vision_model align_vision_model altclip_vision_model beit bit blip_2_vision_model blip_vision_model
        bridgetower_vision_model chameleon_vqgan chinese_clip_vision_model chmv2 clip_vision_model clipseg_vision_model
        cohere_compass_vision conditional_detr convnext convnextv2 cosmos3_edge_vision cvt d_fine dab-detr
        data2vec-vision deepseek_ocr2_encoder deepseek_ocr2_sam_vision_model deepseek_ocr2_vision deformable_detr deimv2
        deit depth_anything depth_pro detr dinat dinov2 dinov2_with_registers dinov3_convnext dinov3_vit donut-swin
        dots3_note_vision_encoder dpt edgetam edgetam_mask_decoder edgetam_prompt_encoder edgetam_video
        edgetam_video_mask_decoder edgetam_video_prompt_encoder edgetam_vision_model efficientloftr efficientnet
        emu3_vqgan eomt eomt_dinov3 ernie4_5_vl_moe_vision exaone4_5_vision flava_image_codebook flava_image_model
        florence_vision focalnet gemma3n_vision gemma4_unified_vision gemma4_vision git_vision_model glm4v_moe_vision
        glm4v_vision glm5_next_vision glm_image_vision glm_image_vqmodel glm_ocr_vision glpn got_ocr2_vision
        granite_docling_vision groupvit_vision_model hgnet_v2 hiera hunyuan_vl_vision idefics2_vision idefics3_vision
        idefics_vision ijepa inkling2_vision inkling_vision instructblip_vision_model instructblipvideo_vision_model
        internvl_vision janus_vision_model janus_vqgan kimi_k25_vision kosmos_2_5_vision_model kosmos_2_vision_model
        levit lfm3_vl_vision lightglue llama4_vision_model lw_detr lw_detr_vit mask2former maskformer maskformer-swin
        metaclip_2_vision_model mgp-str minicpm_ocr_vision minicpmv4_6_vision minicpmv4_7_vision minimax_m3_vl_vision
        mlcd mlcd_vision_model mllama_vision_model mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 molmo2_vision
        muse_glimmer_vision muse_spark_vision ovis2_vision owlv2_vision_model owlvit_vision_model paddleocr_vl_vision
        pe_audio_video_encoder pe_video_encoder phi4_multimodal_vision pix2struct_vision_model pixio pixtral poolformer
        pp_chart2table_vision pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_formulanet_vision pp_lcnet pp_lcnet_v3
        pp_lcnet_v4 pp_ocrv5_mobile_det pp_ocrv5_mobile_rec pp_ocrv5_server_det pp_ocrv5_server_rec pp_ocrv6_medium_det
        pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec prompt_depth_anything pvt pvt_v2 qianfan_ocr_vision
        qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen2_vl_vision qwen3_5_moe_vision qwen3_5_vision
        qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision qwen4_exp_vision radio regnet resnet rf_detr
        rf_detr_dinov2 rt_detr rt_detr_resnet rt_detr_v2 sam sam2 sam2_hiera_det_model sam2_mask_decoder
        sam2_prompt_encoder sam2_video sam2_video_mask_decoder sam2_video_prompt_encoder sam2_vision_model
        sam3_detr_decoder sam3_detr_encoder sam3_geometry_encoder sam3_lite_text_detr_decoder
        sam3_lite_text_detr_encoder sam3_lite_text_geometry_encoder sam3_lite_text_mask_decoder sam3_mask_decoder
        sam3_tracker sam3_tracker_mask_decoder sam3_tracker_prompt_encoder sam3_tracker_video
        sam3_tracker_video_mask_decoder sam3_tracker_video_prompt_encoder sam3_vision_model sam3_vit_model sam_hq
        sam_hq_mask_decoder sam_hq_prompt_encoder sam_hq_vision_model sam_mask_decoder sam_prompt_encoder
        sam_vision_model sapiens2 sapiens2_head segformer seggpt siglip2_vision_model siglip_vision_model slanet slanext
        slanext_vision smolvlm_vision step3p5_vision superglue superpoint swiftformer swin swin2sr swinv2
        table-transformer textnet timesformer timm_backbone timm_wrapper tipsv2_dpt tipsv2_vision_model
        unlimited_ocr_sam_vision_model unlimited_ocr_vision unlimited_ocr_vision_encoder upernet uvdoc uvdoc_backbone
        video_llama_3_vision videomae videomt videoprism_vision_model vit vit_mae vit_msn vitdet vitmatte vitpose
        vitpose_backbone vivit vjepa2 xclip_vision_model yolos zoedepth
    """,
    AUDIO: """
        clap_audio_model dac data2vec-audio dots3_note_audio_encoder encodec fastspeech2_conformer_hifigan gemma3n_audio
        gemma4_audio gemma4_unified_audio glmasr_encoder granite_speech5_ctc granite_speech5_encoder
        granite_speech_encoder granite_speech_plus_encoder higgs_audio_v2_tokenizer hubert inkling_audio lasr_ctc
        lasr_encoder mimi mimi_decoder mimi_encoder moonshine_streaming_encoder muse_spark_audio nemotron3_5_asr
        nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_audio nemotron3_5_transcribe_word_timestamp
        nemotron3_diarization nemotron3_diarization_audio nemotron_asr_streaming nemotron_asr_streaming_encoder neucodec
        parakeet_ctc parakeet_encoder parakeet_rnnt parakeet_tdt pe_audio_encoder phi4_multimodal_audio
        pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder
        qwen2_5_omni_bigvgan qwen2_5_omni_dit qwen2_5_omni_token2wav qwen3_asr_encoder sew sew-d speecht5_hifigan
        unispeech unispeech-sat univnet vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder
        vibevoice_acoustic_tokenizer_encoder vibevoice_diffusion voxtral_realtime_encoder wav2vec2 wav2vec2-bert
        wav2vec2-conformer wavlm xcodec xcodec2
    """,
    replace(AUDIO, advice=f"Its feature extractor fixes the input length. {NO_TOKENS}"): """
        audio-spectrogram-transformer audioflamingo3_encoder fun_asr_nano_encoder moss_transcribe_diarize_audio
        qwen2_5_omni_audio_encoder qwen2_audio_encoder qwen3_omni_moe_audio_encoder voxtral_encoder
    """,
    GRID: "reformer",
    PositionScheme(
        "a table of character positions as long as its hash tables",
        "Raise max_position_embeddings in config.json, up to num_hash_buckets.",
    ): "canine",
    INTERPOLATED: "sam3_lite_text sam3_lite_text_text_model",
    PositionScheme(
        "a table of its text mapper only in training", "There is nothing to resize."
    ): "oneformer",
    PositionScheme(
        "a table of episode time steps, and only position 0 of wpe",
        "For longer episodes, retrain the model with a different max_ep_len.",
        reads_tokens=False,
    ): "decision_transformer",
    PositionScheme("separate weights per codebook instead of positions", NOTHING): "moshi_depth",
}

POSITION_SCHEMES: Mapping[str, PositionScheme] = {
    model_type: scheme
    for scheme, model_types in _MODEL_TYPES.items()
    for model_type in model_types.split()
}
