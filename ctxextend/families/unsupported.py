"""Model types without a position table to resize, and the position scheme of each."""

from collections.abc import Mapping
from dataclasses import replace

from ctxextend.families.schema import PositionScheme

NO_CHANGE = "It accepts longer inputs without changes."
NO_TOKENS = "It has no token positions to resize."
FAMILIES_HINT = "List supported model types with `ctxextend families`."
SET_ROPE = "set rope_parameters in config.json (rope_scaling before transformers 5), in the text config if there is one"

ROTARY = PositionScheme(
    "rotary position embeddings, which are not learned", f"{SET_ROPE[0].upper()}{SET_ROPE[1:]}.", "rotary"
)
FIXED_ROTARY = PositionScheme(
    "rotary position embeddings of the default rope type only",
    "Raise n_positions in config.json, or rope_theta in rope_parameters if the config has it.",
    "rotary",
)
ROTARY_OR_OTHER = PositionScheme(
    "rotary position embeddings, ALiBi or none, depending on its config",
    f"If they are rotary, {SET_ROPE}; otherwise it accepts longer inputs without changes.",
)
ALIBI = PositionScheme(
    "ALiBi (linear biases on distances)",
    "It accepts longer inputs without changes; raise max_seq_len if config.json has it.",
    "ALiBi",
)
RELATIVE = PositionScheme("relative positions, which depend only on distances", NO_CHANGE, "relative")
RELATIVE_ONLY = PositionScheme(
    "relative positions only",
    "It accepts longer inputs without changes. Keep max_position_embeddings, the size of its relative embeddings.",
)
ROTARY_OR_RELATIVE = PositionScheme("rotary or relative position embeddings", NO_CHANGE)
OTHER_TYPE = PositionScheme(
    "position embeddings of that type",
    "If it was trained with absolute positions, set position_embedding_type to absolute in config.json.",
)
NOT_LOADED = PositionScheme(
    "fixed sinusoids that transformers 5.23 creates but cannot load: inputs fail",
    "They are not stored: raise max_position_embeddings in config.json, and use another version of transformers.",
)
NO_POSITIONS = PositionScheme("no position embeddings", f"There is nothing to extend. {NO_CHANGE}", "none")
TIME_SERIES = PositionScheme(
    "positions of time steps or time series patches",
    "Raise context_length in config.json. If tensor sizes depend on it, retrain the model at the new length.",
    "time series",
    reads_tokens=False,
)
IMAGES = PositionScheme(
    "only positions of image patches, frames or points, if any", NO_TOKENS, "images", reads_tokens=False
)
AUDIO = PositionScheme("only positions of audio frames, if any", NO_TOKENS, "audio", reads_tokens=False)
AUDIO_WINDOW = replace(AUDIO, advice=f"Its feature extractor fixes the input length. {NO_TOKENS}")

GRID = PositionScheme("axial position embeddings, not one table", "Retrain the model with a different axial_pos_shape.")
HASHED = PositionScheme(
    "a table of character positions as long as its hash tables",
    "Raise max_position_embeddings in config.json, up to num_hash_buckets.",
)
INTERPOLATED = PositionScheme("a table that it interpolates to each input length", "There is nothing to resize.")
TRAINING_ONLY = PositionScheme("a table of its text mapper only in training", "There is nothing to resize.")
EPISODE = PositionScheme(
    "a table of episode time steps, and only position 0 of wpe",
    "For longer episodes, retrain the model with a different max_ep_len.",
    reads_tokens=False,
)
CODEBOOKS = PositionScheme("separate weights per codebook instead of positions", "There is nothing to extend.")

_MODEL_TYPES: Mapping[PositionScheme, str] = {
    ROTARY: """
        EvollaModel afmoe apertus arcee aria aria_text audioflamingo3 axk1 axk2 aya_vision bailing_hybrid bamba beam
        bitnet blt blt_global_transformer blt_local_decoder blt_local_encoder blt_patcher chameleon clvp_encoder cohere
        cohere2 cohere2_moe cohere2_vision cohere_compass cohere_compass_text colmodernvbert colpali colqwen2
        cosmos3_edge cosmos3_edge_text cosmos3_omni csm csm_depth_decoder_model cwm dbrx deepseek_ocr2
        deepseek_ocr2_text deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 deepseek_vl deepseek_vl_hybrid dia
        dia_decoder dia_encoder diffllama diffusion_gemma diffusion_gemma_text doge dots1 dots3_note dots3_note_text
        embedding_gemma2 embedding_gemma2_text emu3 emu3_text_model ernie4_5 ernie4_5_moe esmc eurobert evolla exaone4
        exaone4_5 exaone_moe falcon_h1 fast_vlm flex_olmo flint fun_asr_nano fuyu gemma gemma2 gemma3 gemma3_text
        gemma3n gemma3n_text gemma4 gemma4_assistant gemma4_text gemma4_unified gemma4_unified_assistant
        gemma4_unified_text glm glm4 glm46v glm4_moe glm4_moe_lite glm4v glm4v_moe glm4v_moe_text glm4v_text glm_image
        glm_image_text glm_moe_dsa glm_ocr glm_ocr_text glmasr glmga got_ocr2 gpt_neox gpt_neox_japanese gpt_oss
        gradium_phonon_tts granite granite4_vision granite4_vision_text granite_docling granite_docling_text
        granite_speech granite_speech_plus granite_swa granitemoe granitemoe_swa granitemoeshared gte helium
        higgs_audio_v2 hrm_text hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl hunyuan_vl_text hy_v3 hy_v4 hyperclovax
        hyperclovax_vision_v2 idefics idefics2 idefics3 internlm3 internvl iquestcoder jais2 janus jetmoe jev
        jina_embeddings_v3 kimi_k25 kolibri1 kyutai_speech_to_text laguna lfm2 lfm2_moe lfm2_vl lfm3 lfm3_vl lighton_ocr
        llama llama4 llama4_text llava llava_next llava_next_video llava_onevision longcat_flash mellum mimo_v2_flash
        minicpm3 minicpm_ocr minicpmv4_6 minicpmv4_7 minimax minimax_m2 minimax_m3_vl minimax_m3_vl_text ministral
        ministral3 mistral mistral3 mistral4 mistral_large4 mistral_large4_text mixtral mllama mllama_text_model
        modernbert modernbert-decoder modernvbert molmo2 molmo2_text moonshine moonshine_streaming moshi
        moss_transcribe_diarize muse_glimmer muse_glimmer_assistant muse_glimmer_text muse_spark muse_spark_text
        musicflamingo nanochat nemotron neomme nomic_bert olmo olmo2 olmo3 olmo_hybrid olmoe openai_privacy_filter ovis2
        paddleocr_vl paddleocr_vl_text paligemma pe_audio pe_audio_video pe_video perception_lm persimmon phi phi3
        phi4_multimodal phimoe pi0 pocket_tts pp_chart2table qianfan_ocr qwen2 qwen2_5_omni qwen2_5_omni_talker
        qwen2_5_omni_text qwen2_5_omni_thinker qwen2_5_vl qwen2_5_vl_text qwen2_audio qwen2_moe qwen2_vl qwen2_vl_text
        qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe
        qwen3_omni_moe_talker_code_predictor qwen3_omni_moe_talker_text qwen3_omni_moe_text qwen3_omni_moe_thinker
        qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text qwen4_exp qwen4_exp_text recurrent_gemma seed_oss
        shieldgemma2 smollm3 smolvlm solar_open stablelm starcoder2 step3p5 step3p7 t5_gemma_module t5gemma t5gemma2
        t5gemma2_decoder t5gemma2_encoder t5gemma2_text ultrabert ultravbert unlimited_ocr unlimited_ocr_text vaultgemma
        vibevoice vibevoice_asr video_llama_3 video_llava vipllava voxtral voxtral_realtime voxtral_realtime_text youtu
        zaya
    """,
    FIXED_ROTARY: "codegen ernie4_5_vl_moe ernie4_5_vl_moe_text gptj",
    ROTARY_OR_OTHER: "falcon granitemoehybrid zamba2",
    ALIBI: "bloom mpt",
    RELATIVE: """
        cpmant esmfold2 fastspeech2_conformer fastspeech2_conformer_with_hifigan funnel inkling2 inkling2_text
        inkling_mm_model inkling_text longt5 mt5 pix2struct pix2struct_text_model pop2piano switch_transformers t5 udop
        umt5 vits xlnet
    """,
    NO_POSITIONS: """
        blip_2_qformer falcon_mamba flava_multimodal_model glm5_next glm5_next_text idefics2_perceiver idefics_perciever
        jamba kimi_linear mamba mamba2 molmo2_adapter nemo_speechlm nemotron_h nemotron_h_omni rwkv xlstm zamba
    """,
    TIME_SERIES: "autoformer informer patchtsmixer patchtst time_series_transformer timesfm timesfm2_5",
    IMAGES: """
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
    AUDIO_WINDOW: """
        audio-spectrogram-transformer audioflamingo3_encoder fun_asr_nano_encoder moss_transcribe_diarize_audio
        qwen2_5_omni_audio_encoder qwen2_audio_encoder qwen3_omni_moe_audio_encoder voxtral_encoder
    """,
    GRID: "reformer",
    HASHED: "canine",
    INTERPOLATED: "sam3_lite_text sam3_lite_text_text_model",
    TRAINING_ONLY: "oneformer",
    EPISODE: "decision_transformer",
    CODEBOOKS: "moshi_depth",
}

POSITION_SCHEMES: Mapping[str, PositionScheme] = {
    model_type: scheme for scheme, model_types in _MODEL_TYPES.items() for model_type in model_types.split()
}
