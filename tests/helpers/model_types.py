"""Tests of all model types: `make test` runs a few of each kind, `make test-slow` all of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ctxextend import list_families
from ctxextend.families.registry import FAMILIES

LEARNED = ("bert", "clip", "encoder-decoder", "gpt2", "perceiver", "whisper")
RESERVED = ("bart", "biogpt", "blip-2", "esm", "led", "lilt", "mpnet", "prophetnet", "roberta")
SINUSOIDAL = ("ctrl", "distilbert", "fsmt", "m2m_100", "speecht5", "xglm")
ROTARY = ("dbrx", "gemma3", "gptj", "modernbert", "phi3", "qwen2_vl", "t5gemma")
USUAL = ("apertus1p5", "exaone", "gpt_oss", "lara_mini", "llama", "llava")
BIASED = ("bloom", "deberta-v2", "falcon", "mpt", "t5")
# Without positions to extend: those of images, audio or time series, none, and other kinds.
UNLIMITED = ("canine", "clvp_encoder", "dac", "mamba", "patchtst", "reformer", "vits", "xlnet")
# Of which no model can be built.
NOT_BUILT = ("dinat", "layoutlmv2", "nougat")
REPRESENTATIVE = {
    *LEARNED,
    *RESERVED,
    *SINUSOIDAL,
    *ROTARY,
    *USUAL,
    *BIASED,
    *UNLIMITED,
    *NOT_BUILT,
}
TYPES = sorted(CONFIG_MAPPING.keys())
WITH_ROWS = {
    table.model_type for table in list_families() if table.scheme in ("learned", "sinusoidal")
}
# With positions that are a rule, such as rotary ones, in all configs.
RULES = FAMILIES.keys() - WITH_ROWS
# Whose default config is invalid.
NO_CONFIG = {"gemma4_assistant"}

# Types of which no model can be built here, and why. They must still be in the registry or rejected
# by name.
NOT_INSTANTIABLE: Mapping[str, str] = {
    **dict.fromkeys(
        [
            "edgetam",
            "edgetam_vision_model",
            "fast_vlm",
            "gemma3n",
            "gemma3n_vision",
            "pe_audio_video",
            "pe_audio_video_encoder",
            "pe_video",
            "pe_video_encoder",
            "perception_lm",
            "timm_backbone",
            "timm_wrapper",
        ],
        "needs timm",
    ),
    "dinat": "needs natten",
    "higgs_audio_v2_tokenizer": "needs torchaudio",
    "layoutlmv2": "needs detectron2",
    **dict.fromkeys(
        [
            "edgetam_mask_decoder",
            "edgetam_prompt_encoder",
            "edgetam_video_mask_decoder",
            "edgetam_video_prompt_encoder",
            "gemma4_unified_audio",
            "gemma4_unified_vision",
            "idefics_perciever",
            "idefics_vision",
            "layoutxlm",
            "nougat",
            "pp_chart2table_vision",
            "sam2_mask_decoder",
            "sam2_prompt_encoder",
            "sam2_video_mask_decoder",
            "sam2_video_prompt_encoder",
            "sam3_geometry_encoder",
            "sam3_lite_text_geometry_encoder",
            "sam3_tracker_mask_decoder",
            "sam3_tracker_prompt_encoder",
            "sam3_tracker_video_mask_decoder",
            "sam3_tracker_video_prompt_encoder",
            "sam_hq_mask_decoder",
            "sam_hq_prompt_encoder",
            "sam_mask_decoder",
            "sam_prompt_encoder",
            "sapiens2_head",
            "t5_gemma_module",
            "vibevoice_diffusion",
        ],
        "transformers has no model class for this config",
    ),
    **dict.fromkeys(
        [
            "cohere_compass",
            "cohere_compass_text",
            "dbrx",
            "deepseek_ocr2",
            "deepseek_ocr2_text",
            "diffusion_gemma",
            "diffusion_gemma_text",
            "dots1",
            "emu3",
            "gemma4_assistant",
            "granite4_vision",
            "hunyuan_vl",
            "lfm2_moe",
            "moonshine_streaming",
            "pp_ocrv5_server_det",
            "pp_ocrv6_medium_det",
            "qwen3_omni_moe",
            "qwen3_omni_moe_talker_text",
            "t5gemma2_decoder",
            "t5gemma2_encoder",
            "t5gemma2_text",
            "vitmatte",
        ],
        "its default config cannot be built",
    ),
}


def parameters(model_types: Iterable[str]) -> list[Any]:
    """Return model types as parameters of a test; all but a few are slow."""
    return [
        pytest.param(name, marks=() if name in REPRESENTATIVE else pytest.mark.slow)
        for name in sorted(model_types)
    ]
