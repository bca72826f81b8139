"""Model types whose positions are no table that can be resized, and what they have instead."""

from collections.abc import Mapping

__all__ = ["INSTEAD", "NOT_TOKENS", "OTHERWISE"]

ROTARY = (
    "rotary position embeddings, computed and not learned: set rope_parameters in config.json (rope_scaling "
    "before transformers 5)"
)
ROTARY_THETA = (
    "rotary position embeddings, of the default kind alone: raise rope_theta under rope_parameters in config.json"
)
ROTARY_N_POSITIONS = "rotary position embeddings, computed and not learned: raise n_positions in config.json"
ROTARY_AS_LONG = "rotary position embeddings, made as long as a text needs: it reads longer texts as it is"
ROTARY_BLT = (
    "rotary position embeddings in its four parts: set rope_parameters under patcher_config, encoder_config, "
    "global_config and decoder_config in config.json (rope_scaling before transformers 5)"
)
ROTARY_DIA = (
    "rotary position embeddings, computed and not learned: set rope_parameters under encoder_config and "
    "decoder_config in config.json (rope_scaling before transformers 5)"
)
ROTARY_T5GEMMA = (
    "rotary position embeddings, computed and not learned: set rope_parameters under encoder and decoder in "
    "config.json (rope_scaling before transformers 5)"
)
ROTARY_SINUSOIDS = (
    "rotary embeddings from fixed sinusoids: raise max_position_embeddings in config.json, and drop "
    "encoder.embed_positions from the weights, so that transformers computes it anew"
)
ROTARY_OR_ALIBI = (
    "rotary embeddings, or a penalty on distance where alibi is set: for the former, set rope_parameters in "
    "config.json (rope_scaling before transformers 5)"
)
ROTARY_OR_NONE = (
    "no position embeddings, or rotary ones where position_embedding_type is rope: for the latter, set "
    "rope_parameters in config.json (rope_scaling before transformers 5)"
)
ROTARY_OR_NONE_ZAMBA2 = (
    "no position embeddings, or rotary ones where use_mem_rope is true: for the latter, set rope_parameters in "
    "config.json (rope_scaling before transformers 5)"
)
RECURRENT_ROTARY = "a recurrence, and rotary embeddings within a window: it reads longer texts as it is"
ALIBI = "ALiBi, a penalty on distance: it reads longer texts as it is"
ALIBI_MAX_SEQ_LEN = "ALiBi, a penalty on distance: raise max_seq_len in config.json"
RELATIVE = "relative position biases, shared by all positions: it reads longer texts as it is"
RELATIVE_LOGITS = (
    "relative position logits, learned for the nearer distances and zero beyond: it reads longer texts as it is"
)
RELATIVE_SINUSOIDS = "relative sinusoids, computed and not learned: it reads longer texts as it is"
RELATIVE_WINDOW = "relative position embeddings within a window: it reads longer texts as it is"
RELATIVE_RESIDUES = "relative positions between residues, clipped at a distance: it reads longer proteins as it is"
SINUSOIDS_KEPT = (
    "fixed sinusoids, computed and not learned: raise max_position_embeddings in config.json, and drop "
    "embed_positions from the weights where it is there, so that transformers computes it anew"
)
SINUSOIDS_MADE = "fixed sinusoids, made as long as a text needs: it reads longer texts as it is"
SINUSOIDS_RELATIVE = (
    "fixed sinusoids for text and relative positions for speech, made as long as an input needs: it reads longer "
    "inputs as it is"
)
SINUSOIDS_MUSICGEN = (
    "fixed sinusoids, made as long as a piece needs, behind the positions of its text encoder: for longer "
    "prompts, see the model named under text_encoder in config.json"
)
SINUSOIDS_SPEECHT5 = (
    "fixed sinusoids and relative position embeddings, shared by all positions: raise max_text_positions and "
    "max_speech_positions in config.json"
)
SINUSOIDS_LENGTH = "fixed sinusoids, computed and not learned: raise max_position_embeddings in config.json"
SINUSOIDS_N_POSITIONS = "fixed sinusoids, computed and not learned: raise n_positions in config.json"
SINUSOIDS_CANARY = (
    "fixed sinusoids for text and relative ones for audio, computed and not learned: raise "
    "max_position_embeddings under decoder_config in config.json"
)
SINUSOIDS_VIDEOPRISM = (
    "fixed sinusoids, computed and not learned: raise max_position_embeddings in config.json, and drop "
    "embeddings.position_embedding and embeddings.position_ids from the weights, so that transformers computes "
    "them anew"
)
SINUSOIDS_COHERE_ASR = (
    "fixed sinusoids, stored as a weight of its decoder: raise max_position_embeddings in config.json, and "
    "compute the further rows of transf_decoder._embedding.position_embedding.pos_enc by the formula of those "
    "that are there"
)
NONE = "no position embeddings: it reads longer texts as it is"
NONE_OF_ITS_OWN = "no position embeddings of its own: there is nothing to extend"
CODEBOOKS = "weights of its own for each codebook, in place of positions: there is nothing to extend"

# A {model_type} model has no learned position table; it uses {what}. {Advice}.
INSTEAD: Mapping[str, str] = {
    model_type: what
    for what, model_types in {
        ROTARY: (
            "afmoe",
            "apertus",
            "arcee",
            "aria_text",
            "axk1",
            "axk2",
            "bailing_hybrid",
            "bamba",
            "beam",
            "bitnet",
            "blt_global_transformer",
            "blt_local_decoder",
            "blt_local_encoder",
            "blt_patcher",
            "chameleon",
            "cohere",
            "cohere2",
            "cohere2_moe",
            "cohere_compass_text",
            "cosmos3_edge_text",
            "csm",
            "csm_depth_decoder_model",
            "cwm",
            "dbrx",
            "deepseek_ocr2_text",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "dia_decoder",
            "dia_encoder",
            "diffllama",
            "diffusion_gemma_text",
            "doge",
            "dots1",
            "dots3_note_text",
            "embedding_gemma2_text",
            "emu3_text_model",
            "ernie4_5",
            "ernie4_5_moe",
            "esmc",
            "eurobert",
            "exaone4",
            "exaone_moe",
            "falcon_h1",
            "flex_olmo",
            "flint",
            "gemma",
            "gemma2",
            "gemma3_text",
            "gemma3n_text",
            "gemma4_text",
            "gemma4_unified_text",
            "glm",
            "glm4",
            "glm4_moe",
            "glm4_moe_lite",
            "glm4v_moe_text",
            "glm4v_text",
            "glm_image_text",
            "glm_moe_dsa",
            "glm_ocr_text",
            "gpt_neox",
            "gpt_neox_japanese",
            "gpt_oss",
            "gradium_phonon_tts",
            "granite",
            "granite4_vision_text",
            "granite_docling_text",
            "granite_swa",
            "granitemoe",
            "granitemoe_swa",
            "granitemoeshared",
            "gte",
            "helium",
            "higgs_audio_v2",
            "hrm_text",
            "hunyuan_v1_dense",
            "hunyuan_v1_moe",
            "hunyuan_vl_text",
            "hy_v3",
            "hy_v4",
            "hyperclovax",
            "internlm3",
            "iquestcoder",
            "jais2",
            "jetmoe",
            "jina_embeddings_v3",
            "kolibri1",
            "kyutai_speech_to_text",
            "laguna",
            "lfm2",
            "lfm2_moe",
            "lfm3",
            "llama",
            "llama4_text",
            "longcat_flash",
            "mellum",
            "mimo_v2_flash",
            "minicpm3",
            "minimax",
            "minimax_m2",
            "minimax_m3_vl_text",
            "ministral",
            "ministral3",
            "mistral",
            "mistral4",
            "mistral_large4_text",
            "mixtral",
            "mllama_text_model",
            "modernbert",
            "modernbert-decoder",
            "molmo2_text",
            "moonshine",
            "moshi",
            "muse_glimmer_assistant",
            "muse_glimmer_text",
            "muse_spark_text",
            "nanochat",
            "nemotron",
            "neomme",
            "nomic_bert",
            "olmo",
            "olmo2",
            "olmo3",
            "olmo_hybrid",
            "olmoe",
            "openai_privacy_filter",
            "paddleocr_vl_text",
            "persimmon",
            "phi",
            "phi3",
            "phimoe",
            "pocket_tts",
            "qwen2",
            "qwen2_5_omni_talker",
            "qwen2_5_omni_text",
            "qwen2_5_vl_text",
            "qwen2_moe",
            "qwen2_vl_text",
            "qwen3",
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_omni_moe_talker_code_predictor",
            "qwen3_omni_moe_talker_text",
            "qwen3_omni_moe_text",
            "qwen3_vl_moe_text",
            "qwen3_vl_text",
            "qwen4_exp_text",
            "seed_oss",
            "smollm3",
            "solar_open",
            "stablelm",
            "starcoder2",
            "step3p5",
            "t5_gemma_module",
            "t5gemma2_decoder",
            "t5gemma2_text",
            "ultrabert",
            "unlimited_ocr_text",
            "vaultgemma",
            "voxtral_realtime_text",
            "youtu",
            "zaya",
        ),
        ROTARY_THETA: ("ernie4_5_vl_moe_text",),
        ROTARY_N_POSITIONS: (
            "codegen",
            "gptj",
        ),
        ROTARY_AS_LONG: ("clvp_encoder",),
        ROTARY_BLT: ("blt",),
        ROTARY_DIA: ("dia",),
        ROTARY_T5GEMMA: ("t5gemma",),
        ROTARY_SINUSOIDS: ("roformer",),
        ROTARY_OR_ALIBI: ("falcon",),
        ROTARY_OR_NONE: ("granitemoehybrid",),
        ROTARY_OR_NONE_ZAMBA2: ("zamba2",),
        RECURRENT_ROTARY: ("recurrent_gemma",),
        ALIBI: ("bloom",),
        ALIBI_MAX_SEQ_LEN: ("mpt",),
        RELATIVE: (
            "cpmant",
            "longt5",
            "mt5",
            "pix2struct_text_model",
            "pop2piano",
            "switch_transformers",
            "t5",
            "umt5",
        ),
        RELATIVE_LOGITS: (
            "inkling2_text",
            "inkling_text",
        ),
        RELATIVE_SINUSOIDS: (
            "fastspeech2_conformer",
            "fastspeech2_conformer_with_hifigan",
            "funnel",
            "xlnet",
        ),
        RELATIVE_WINDOW: ("vits",),
        RELATIVE_RESIDUES: ("esmfold2",),
        SINUSOIDS_KEPT: (
            "fsmt",
            "marian",
            "pegasus",
        ),
        SINUSOIDS_MADE: (
            "kosmos_2_5_text_model",
            "kosmos_2_text_model",
            "m2m_100",
            "musicgen_decoder",
            "musicgen_melody_decoder",
            "nllb-moe",
            "pegasus_x",
            "speech_to_text",
            "xglm",
        ),
        SINUSOIDS_RELATIVE: (
            "seamless_m4t",
            "seamless_m4t_v2",
        ),
        SINUSOIDS_MUSICGEN: (
            "musicgen",
            "musicgen_melody",
        ),
        SINUSOIDS_SPEECHT5: ("speecht5",),
        SINUSOIDS_LENGTH: (
            "canary_decoder",
            "tipsv2_text_model",
        ),
        SINUSOIDS_N_POSITIONS: ("ctrl",),
        SINUSOIDS_CANARY: ("canary",),
        SINUSOIDS_VIDEOPRISM: ("videoprism_text_model",),
        SINUSOIDS_COHERE_ASR: ("cohere_asr",),
        NONE: (
            "falcon_mamba",
            "glm5_next_text",
            "jamba",
            "kimi_linear",
            "mamba",
            "mamba2",
            "nemotron_h",
            "rwkv",
            "xlstm",
            "zamba",
        ),
        NONE_OF_ITS_OWN: (
            "blip_2_qformer",
            "flava_multimodal_model",
            "idefics2_perceiver",
            "idefics_perciever",
            "molmo2_adapter",
        ),
        CODEBOOKS: ("moshi_depth",),
    }.items()
    for model_type in model_types
}

TEXT_ROTARY = (
    "its text model uses rotary position embeddings: set rope_parameters under text_config in config.json "
    "(rope_scaling before transformers 5)"
)
TEXT_ROTARY_FLAT = (
    "its text model uses rotary position embeddings: set rope_parameters in config.json (rope_scaling before "
    "transformers 5)"
)
TEXT_ROTARY_THETA = (
    "its text model uses rotary position embeddings, of the default kind alone: raise rope_theta under "
    "text_config in config.json, in rope_parameters"
)
TEXT_ROTARY_VLM = (
    "its text model uses rotary position embeddings: set rope_parameters under vlm_config.text_config in "
    "config.json (rope_scaling before transformers 5)"
)
TEXT_ROTARY_PI0 = (
    "its text model and its action model use rotary position embeddings: set rope_parameters under "
    "vlm_config.text_config and dit_config in config.json (rope_scaling before transformers 5)"
)
TEXT_ROTARY_THINKER = (
    "its text model uses rotary position embeddings: set rope_parameters under thinker_config.text_config in "
    "config.json (rope_scaling before transformers 5)"
)
TEXT_ROTARY_T5GEMMA2 = (
    "its text models use rotary position embeddings: set rope_parameters under encoder.text_config and decoder "
    "in config.json (rope_scaling before transformers 5)"
)
TEXT_RELATIVE = "its text model uses relative position biases: it reads longer texts as it is"
TEXT_RELATIVE_LAYOUT = (
    "its text has relative position biases, and its tables are over places on a page: it reads longer texts as it is"
)
TEXT_SINUSOIDS_MADE = (
    "its text model uses fixed sinusoids, made as long as a text needs: it reads longer texts as it is"
)
TEXT_SINUSOIDS_LENGTH = (
    "its text model uses fixed sinusoids: raise max_position_embeddings under text_config in config.json"
)
TEXT_SINUSOIDS_VIDEOPRISM = (
    "its text model uses fixed sinusoids: raise max_position_embeddings under text_config in config.json, and "
    "drop text_model.embeddings.position_embedding and position_ids from the weights, so that transformers "
    "computes them anew"
)
TEXT_NONE = "its text model uses no position embeddings: it reads longer texts as it is"
IMAGE_PATCHES = "its table is over patches of an image: there are no token positions to resize"
IMAGE_PATCHES_ROTARY = (
    "its table is over patches of an image, beside rotary embeddings: there are no token positions to resize"
)
IMAGE_PATCHES_RELATIVE = (
    "its tables are over patches of an image and distances between them: there are no token positions to resize"
)
IMAGE_RELATIVE = "it reads images, with relative position biases: there are no token positions to resize"
IMAGE_ROTARY = "it reads images, with rotary embeddings over their patches: there are no token positions to resize"
IMAGE_NONE = "it reads images, without position embeddings: there are no token positions to resize"
IMAGE_BACKBONE = "it reads images, with the positions of its backbone: there are no token positions to resize"
IMAGE_TIMM = (
    "it reads images, with the positions of the timm model that it wraps: there are no token positions to resize"
)
VIDEO_PATCHES = "its tables are over patches and frames of a video: there are no token positions to resize"
VIDEO_SINUSOIDS = "it reads videos, with fixed sinusoids over their patches: there are no token positions to resize"
VIDEO_ROTARY = "it reads videos, with rotary embeddings: there are no token positions to resize"
DETECTION = "it finds objects in images, with positions over their features: there are no token positions to resize"
DETECTION_TOKENS = (
    "its tables are over patches of an image and the objects in it: there are no token positions to resize"
)
DETECTION_ORDER = "its reading-order table is over the parts of a page: there are no token positions to resize"
SEGMENTATION = "it finds masks in images, and its table is over their patches: there are no token positions to resize"
SEGMENTATION_VIDEO = (
    "it finds masks in videos, and its tables are over patches and frames: there are no token positions to resize"
)
SEGMENTATION_TIMM = (
    "it finds masks in images, with the positions of the timm model that it wraps: there are no token positions "
    "to resize"
)
MASK_PROMPTS = "it works on points, boxes and masks in images: there are no token positions to resize"
KEYPOINTS = "it matches points in images, by their coordinates: there are no token positions to resize"
AUDIO_FRAMES = "its table is over frames of audio: there are no token positions to resize"
AUDIO_PATCHES = "its table is over patches of a spectrogram: there are no token positions to resize"
AUDIO_SINUSOIDS = "it reads audio, with fixed sinusoids over its frames: there are no token positions to resize"
AUDIO_CONVOLUTION = "it reads audio, with convolutions for positions: there are no token positions to resize"
AUDIO_CONVOLUTION_RELATIVE = (
    "it reads audio, with convolutions and relative positions: there are no token positions to resize"
)
AUDIO_RELATIVE = "it reads audio, with relative positions: there are no token positions to resize"
AUDIO_ROTARY = "it reads or makes audio, with rotary embeddings over its frames: there are no token positions to resize"
AUDIO_ROTARY_RELATIVE = (
    "it codes audio, with rotary embeddings and relative positions: there are no token positions to resize"
)
AUDIO_NONE = "it reads or makes audio, without position embeddings: there are no token positions to resize"
TIME_SINUSOIDS = (
    "its fixed sinusoids are over time steps: set context_length in config.json, and drop embed_positions from "
    "the weights, so that transformers computes it anew"
)
TIME_PATCHES = (
    "its table is over patches of a time series, and sinusoids by default: train it anew for another context_length"
)
TIME_MIXED = "its layers mix a fixed number of patches of a time series: train it anew for another context_length"
TIME_COMPUTED = "it reads a time series, with fixed sinusoids over its patches: raise context_length in config.json"
TIME_ROTARY = "it reads a time series, with rotary embeddings over its patches: raise context_length in config.json"
TRAJECTORY = (
    "its table, embed_timestep, is over the steps of an episode, and position 0 alone of its wpe is read: for "
    "longer episodes, train it anew with another max_ep_len"
)

# A {model_type} model has no learned table over token positions: {what}. {Advice}.
NOT_TOKENS: Mapping[str, str] = {
    model_type: what
    for what, model_types in {
        TEXT_ROTARY: (
            "aria",
            "audioflamingo3",
            "aya_vision",
            "cohere2_vision",
            "cohere_compass",
            "cosmos3_edge",
            "cosmos3_omni",
            "deepseek_ocr2",
            "deepseek_vl",
            "deepseek_vl_hybrid",
            "diffusion_gemma",
            "dots3_note",
            "embedding_gemma2",
            "emu3",
            "exaone4_5",
            "fast_vlm",
            "fun_asr_nano",
            "fuyu",
            "gemma3",
            "gemma3n",
            "gemma4",
            "gemma4_assistant",
            "gemma4_unified",
            "gemma4_unified_assistant",
            "glm46v",
            "glm4v",
            "glm4v_moe",
            "glm_image",
            "glm_ocr",
            "glmasr",
            "glmga",
            "got_ocr2",
            "granite4_vision",
            "granite_docling",
            "granite_speech",
            "granite_speech_plus",
            "hunyuan_vl",
            "hyperclovax_vision_v2",
            "idefics2",
            "idefics3",
            "internvl",
            "janus",
            "jev",
            "kimi_k25",
            "lfm2_vl",
            "lfm3_vl",
            "lighton_ocr",
            "llama4",
            "llava",
            "llava_next",
            "llava_next_video",
            "llava_onevision",
            "minicpm_ocr",
            "minicpmv4_6",
            "minicpmv4_7",
            "minimax_m3_vl",
            "mistral3",
            "mistral_large4",
            "mllama",
            "modernvbert",
            "molmo2",
            "moss_transcribe_diarize",
            "muse_glimmer",
            "muse_spark",
            "musicflamingo",
            "ovis2",
            "paddleocr_vl",
            "paligemma",
            "pe_audio",
            "pe_audio_video",
            "pe_video",
            "perception_lm",
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
            "qwen4_exp",
            "shieldgemma2",
            "smolvlm",
            "step3p7",
            "t5gemma2_encoder",
            "ultravbert",
            "unlimited_ocr",
            "vibevoice",
            "vibevoice_asr",
            "video_llama_3",
            "video_llava",
            "vipllava",
            "voxtral",
            "voxtral_realtime",
        ),
        TEXT_ROTARY_FLAT: (
            "EvollaModel",
            "deepseek_v4",
            "evolla",
            "idefics",
            "moonshine_streaming",
            "phi4_multimodal",
        ),
        TEXT_ROTARY_THETA: ("ernie4_5_vl_moe",),
        TEXT_ROTARY_VLM: (
            "colmodernvbert",
            "colpali",
            "colqwen2",
        ),
        TEXT_ROTARY_PI0: ("pi0",),
        TEXT_ROTARY_THINKER: (
            "qwen2_5_omni",
            "qwen3_omni_moe",
        ),
        TEXT_ROTARY_T5GEMMA2: ("t5gemma2",),
        TEXT_RELATIVE: (
            "inkling2",
            "inkling_mm_model",
            "pix2struct",
        ),
        TEXT_RELATIVE_LAYOUT: ("udop",),
        TEXT_SINUSOIDS_MADE: (
            "kosmos-2",
            "kosmos-2.5",
        ),
        TEXT_SINUSOIDS_LENGTH: ("tipsv2",),
        TEXT_SINUSOIDS_VIDEOPRISM: ("videoprism",),
        TEXT_NONE: (
            "glm5_next",
            "nemo_speechlm",
            "nemotron_h_omni",
        ),
        IMAGE_PATCHES: (
            "aimv2_vision_model",
            "altclip_vision_model",
            "blip_2_vision_model",
            "blip_vision_model",
            "bridgetower_vision_model",
            "chinese_clip_vision_model",
            "clip_vision_model",
            "clipseg_vision_model",
            "cosmos3_edge_vision",
            "deit",
            "dinov2",
            "dinov2_with_registers",
            "dpt",
            "eomt",
            "flava_image_model",
            "gemma4_unified_vision",
            "git_vision_model",
            "glm_image_vision",
            "granite_docling_vision",
            "groupvit_vision_model",
            "hiera",
            "hunyuan_vl_vision",
            "idefics2_vision",
            "idefics3_vision",
            "idefics_vision",
            "ijepa",
            "instructblip_vision_model",
            "instructblipvideo_vision_model",
            "internvl_vision",
            "janus_vision_model",
            "kosmos_2_5_vision_model",
            "kosmos_2_vision_model",
            "lw_detr_vit",
            "metaclip_2_vision_model",
            "mgp-str",
            "minicpm_ocr_vision",
            "minicpmv4_6_vision",
            "minicpmv4_7_vision",
            "mllama_vision_model",
            "molmo2_vision",
            "ovis2_vision",
            "owlv2_vision_model",
            "owlvit_vision_model",
            "phi4_multimodal_vision",
            "pix2struct_vision_model",
            "pixio",
            "pvt",
            "qianfan_ocr_vision",
            "radio",
            "rf_detr_dinov2",
            "sam2_hiera_det_model",
            "sam2_vision_model",
            "siglip2_vision_model",
            "siglip_vision_model",
            "smolvlm_vision",
            "tipsv2_vision_model",
            "unlimited_ocr_vision_encoder",
            "videomt",
            "vit",
            "vit_mae",
            "vit_msn",
            "vitdet",
            "vitpose_backbone",
            "xclip_vision_model",
        ),
        IMAGE_PATCHES_ROTARY: (
            "cohere_compass_vision",
            "deepseek_ocr2_vision",
            "gemma4_vision",
            "glm4v_moe_vision",
            "glm4v_vision",
            "inkling2_vision",
            "kimi_k25_vision",
            "llama4_vision_model",
            "muse_glimmer_vision",
            "muse_spark_vision",
            "paddleocr_vl_vision",
            "qwen3_5_moe_vision",
            "qwen3_5_vision",
            "qwen3_omni_moe_vision_encoder",
            "qwen3_vl_moe_vision",
            "qwen3_vl_vision",
            "qwen4_exp_vision",
            "sam3_vision_model",
            "sam3_vit_model",
            "step3p5_vision",
        ),
        IMAGE_PATCHES_RELATIVE: (
            "deepseek_ocr2_sam_vision_model",
            "got_ocr2_vision",
            "pp_chart2table_vision",
            "pp_formulanet_vision",
            "sam_hq_vision_model",
            "sam_vision_model",
            "seggpt",
            "slanext",
            "slanext_vision",
            "unlimited_ocr_sam_vision_model",
            "unlimited_ocr_vision",
        ),
        IMAGE_RELATIVE: (
            "beit",
            "data2vec-vision",
            "dinat",
            "donut-swin",
            "levit",
            "maskformer-swin",
            "swin",
            "swin2sr",
            "swinv2",
        ),
        IMAGE_ROTARY: (
            "deepseek_ocr2_encoder",
            "dinov3_vit",
            "dots3_note_vision_encoder",
            "eomt_dinov3",
            "ernie4_5_vl_moe_vision",
            "exaone4_5_vision",
            "glm5_next_vision",
            "glm_ocr_vision",
            "lfm3_vl_vision",
            "minimax_m3_vl_vision",
            "mlcd",
            "mlcd_vision_model",
            "pixtral",
            "qwen2_5_omni_vision_encoder",
            "qwen2_5_vl_vision",
            "qwen2_vl_vision",
            "sapiens2",
            "video_llama_3_vision",
        ),
        IMAGE_NONE: (
            "align_vision_model",
            "bit",
            "chameleon_vqgan",
            "convnext",
            "convnextv2",
            "cvt",
            "dinov3_convnext",
            "efficientnet",
            "emu3_vqgan",
            "flava_image_codebook",
            "florence_vision",
            "focalnet",
            "glm_image_vqmodel",
            "glpn",
            "hgnet_v2",
            "inkling_vision",
            "janus_vqgan",
            "mobilenet_v1",
            "mobilenet_v2",
            "mobilevit",
            "mobilevitv2",
            "poolformer",
            "pp_lcnet",
            "pp_lcnet_v3",
            "pp_lcnet_v4",
            "pp_ocrv5_mobile_det",
            "pp_ocrv5_mobile_rec",
            "pp_ocrv5_server_det",
            "pp_ocrv5_server_rec",
            "pp_ocrv6_medium_det",
            "pp_ocrv6_small_det",
            "pp_ocrv6_small_rec",
            "pp_ocrv6_tiny_rec",
            "pvt_v2",
            "regnet",
            "resnet",
            "rt_detr_resnet",
            "sapiens2_head",
            "segformer",
            "slanet",
            "superpoint",
            "swiftformer",
            "textnet",
            "uvdoc",
            "uvdoc_backbone",
        ),
        IMAGE_BACKBONE: (
            "chmv2",
            "depth_anything",
            "depth_pro",
            "prompt_depth_anything",
            "tipsv2_dpt",
            "upernet",
            "vitmatte",
            "vitpose",
            "zoedepth",
        ),
        IMAGE_TIMM: (
            "edgetam_vision_model",
            "gemma3n_vision",
            "timm_backbone",
            "timm_wrapper",
        ),
        VIDEO_PATCHES: (
            "timesformer",
            "videoprism_vision_model",
            "vivit",
        ),
        VIDEO_SINUSOIDS: ("videomae",),
        VIDEO_ROTARY: (
            "pe_audio_video_encoder",
            "pe_video_encoder",
            "vjepa2",
        ),
        DETECTION: (
            "conditional_detr",
            "d_fine",
            "dab-detr",
            "deformable_detr",
            "deimv2",
            "detr",
            "lw_detr",
            "mask2former",
            "maskformer",
            "pp_doclayout_v3",
            "pp_doclayout_v4",
            "rf_detr",
            "rt_detr",
            "rt_detr_v2",
            "sam3_detr_decoder",
            "sam3_detr_encoder",
            "sam3_lite_text_detr_decoder",
            "sam3_lite_text_detr_encoder",
            "table-transformer",
        ),
        DETECTION_TOKENS: ("yolos",),
        DETECTION_ORDER: ("pp_doclayout_v2",),
        SEGMENTATION: (
            "sam",
            "sam2",
            "sam3_tracker",
            "sam_hq",
        ),
        SEGMENTATION_VIDEO: (
            "edgetam_video",
            "sam2_video",
            "sam3_tracker_video",
        ),
        SEGMENTATION_TIMM: ("edgetam",),
        MASK_PROMPTS: (
            "edgetam_mask_decoder",
            "edgetam_prompt_encoder",
            "edgetam_video_mask_decoder",
            "edgetam_video_prompt_encoder",
            "sam2_mask_decoder",
            "sam2_prompt_encoder",
            "sam2_video_mask_decoder",
            "sam2_video_prompt_encoder",
            "sam3_geometry_encoder",
            "sam3_lite_text_geometry_encoder",
            "sam3_lite_text_mask_decoder",
            "sam3_mask_decoder",
            "sam3_tracker_mask_decoder",
            "sam3_tracker_prompt_encoder",
            "sam3_tracker_video_mask_decoder",
            "sam3_tracker_video_prompt_encoder",
            "sam_hq_mask_decoder",
            "sam_hq_prompt_encoder",
            "sam_mask_decoder",
            "sam_prompt_encoder",
        ),
        KEYPOINTS: (
            "efficientloftr",
            "lightglue",
            "superglue",
        ),
        AUDIO_FRAMES: (
            "audioflamingo3_encoder",
            "moss_transcribe_diarize_audio",
            "qwen2_audio_encoder",
            "voxtral_encoder",
        ),
        AUDIO_PATCHES: ("audio-spectrogram-transformer",),
        AUDIO_SINUSOIDS: (
            "fun_asr_nano_encoder",
            "qwen2_5_omni_audio_encoder",
            "qwen3_asr_encoder",
            "qwen3_omni_moe_audio_encoder",
        ),
        AUDIO_CONVOLUTION: (
            "data2vec-audio",
            "higgs_audio_v2_tokenizer",
            "hubert",
            "sew",
            "unispeech",
            "unispeech-sat",
            "wav2vec2",
            "xcodec",
        ),
        AUDIO_CONVOLUTION_RELATIVE: (
            "sew-d",
            "wav2vec2-conformer",
            "wavlm",
        ),
        AUDIO_RELATIVE: (
            "clap_audio_model",
            "gemma3n_audio",
            "gemma4_audio",
            "granite_speech5_ctc",
            "granite_speech5_encoder",
            "granite_speech_encoder",
            "granite_speech_plus_encoder",
            "nemotron3_5_asr",
            "nemotron_asr_streaming",
            "nemotron_asr_streaming_encoder",
            "parakeet_ctc",
            "parakeet_encoder",
            "parakeet_rnnt",
            "parakeet_tdt",
            "phi4_multimodal_audio",
            "wav2vec2-bert",
        ),
        AUDIO_ROTARY: (
            "dots3_note_audio_encoder",
            "glmasr_encoder",
            "lasr_ctc",
            "lasr_encoder",
            "mimi",
            "mimi_decoder",
            "mimi_encoder",
            "nemotron3_5_transcribe_asr_audio",
            "nemotron3_5_transcribe_audio",
            "nemotron3_5_transcribe_word_timestamp",
            "nemotron3_diarization",
            "nemotron3_diarization_audio",
            "pe_audio_encoder",
            "pocket_tts_audio_tokenizer",
            "pocket_tts_audio_tokenizer_decoder",
            "pocket_tts_audio_tokenizer_encoder",
            "qwen2_5_omni_dit",
            "qwen2_5_omni_token2wav",
            "voxtral_realtime_encoder",
        ),
        AUDIO_ROTARY_RELATIVE: (
            "neucodec",
            "xcodec2",
        ),
        AUDIO_NONE: (
            "dac",
            "encodec",
            "fastspeech2_conformer_hifigan",
            "gemma4_unified_audio",
            "inkling_audio",
            "moonshine_streaming_encoder",
            "muse_spark_audio",
            "qwen2_5_omni_bigvgan",
            "speecht5_hifigan",
            "univnet",
            "vibevoice_acoustic_tokenizer",
            "vibevoice_acoustic_tokenizer_decoder",
            "vibevoice_acoustic_tokenizer_encoder",
            "vibevoice_diffusion",
        ),
        TIME_SINUSOIDS: (
            "autoformer",
            "informer",
            "time_series_transformer",
        ),
        TIME_PATCHES: ("patchtst",),
        TIME_MIXED: ("patchtsmixer",),
        TIME_COMPUTED: ("timesfm",),
        TIME_ROTARY: ("timesfm2_5",),
        TRAJECTORY: ("decision_transformer",),
    }.items()
    for model_type in model_types
}

AXIAL = (
    "learns its positions as the rows and columns of a grid, not as one table: train it anew with another "
    "axial_pos_shape"
)
CHARACTERS = (
    "reads characters, and finds their positions in a table as long as its hash tables, which cannot grow alone: "
    "raise max_position_embeddings in config.json, but not beyond num_hash_buckets"
)
STRETCHED = "stretches its learned position table to the length of each text by itself: there is nothing to resize"
TRAINING_ALONE = (
    "reads images, and the learned position table of its text mapper serves in training alone: there is nothing "
    "to resize"
)

# A {model_type} model {what}. {Advice}.
OTHERWISE: Mapping[str, str] = {
    model_type: what
    for what, model_types in {
        AXIAL: ("reformer",),
        CHARACTERS: ("canine",),
        STRETCHED: (
            "sam3_lite_text",
            "sam3_lite_text_text_model",
        ),
        TRAINING_ALONE: ("oneformer",),
    }.items()
    for model_type in model_types
}
