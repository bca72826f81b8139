"""`resize`, then `verify --deep`, for every model type that can be small, in 32 and 16 bits."""

import copy
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ctxextend import CheckpointError, resize, verify
from tests.helpers import rules, tiny
from tests.helpers.model_types import NO_CONFIG, RULES, WITH_ROWS
from tests.helpers.small_model import SmallModel

MAX_PARAMETERS = 5_000_000
NEED_MORE_THAN_TEXT = (
    "blt_global_transformer",
    "blt_local_decoder",
    "blt_local_encoder",
    "clvp",
    "cohere_asr",
    "gemma4_unified_assistant",
    "idefics",
    "lxmert",
    "moonshine",
    "muse_glimmer_assistant",
    "pe_audio",
    "pi0",
    "qwen2_5_omni_talker",
    "shieldgemma2",
    "tvp",
    "udop",
    "voxtral_realtime",
    "voxtral_realtime_text",
)
READ_SEVERAL_CODES = (
    "bark",
    "dia_decoder",
    "musicgen",
    "musicgen_decoder",
    "musicgen_melody",
    "musicgen_melody_decoder",
)
TOO_LARGE = ("blt_patcher", "hrm_text", "hunyuan_vl_text", "step3p5", "step3p7", "zamba2")
# Types whose outputs are not compared, and why. Their small models are loaded, and their files are
# compared.
NOT_RUN: Mapping[str, str] = {
    **dict.fromkeys(NEED_MORE_THAN_TEXT, "it needs audio, images, boxes or embeddings"),
    **dict.fromkeys(READ_SEVERAL_CODES, "it reads several codes per token"),
    **dict.fromkeys(TOO_LARGE, "its config cannot be made so small that it runs"),
}
# Types whose models are saved in a way that transformers itself cannot load again.
NOT_LOADED = {"jev"}
# Classes to skip, since their weights are saved under names of another class.
SHORT = {"shieldgemma2": 1}
TYPES = sorted((RULES | WITH_ROWS) - NO_CONFIG - NOT_LOADED)


def small_models(model_type: str) -> Iterator[tuple[Any, int]]:
    """Yield small models of a type, the base class first, each with a length to resize it to."""
    classes = tiny.model_classes(model_type)[SHORT.get(model_type, 0) :]
    if model_type in WITH_ROWS:
        for built in tiny.buildable_classes(model_type, classes):
            with suppress(AssertionError, CheckpointError):  # a class without the table
                small = SmallModel(tiny.make_config(model_type), built.model_class)
                if small.found:
                    yield small.model, small.new
        return
    config = rules.make_config(model_type)
    for model_class in classes:
        with suppress(Exception):
            model = tiny.meta_model(model_class, config)
            if sum(parameter.numel() for parameter in model.parameters()) <= MAX_PARAMETERS:
                torch.manual_seed(0)
                yield model_class(copy.deepcopy(config)).train(False), rules.NEW


def half_dtype(model_type: str) -> torch.dtype:
    """Return float16 for one half of the types and bfloat16 for the other."""
    if zlib.crc32(model_type.encode()) % 2:
        return torch.bfloat16
    return torch.float16


def check_verified(model: Any, to: int, folder: Path, expected: set[str]) -> None:
    """Check that all but `expected` checks of a resized model pass, and none fails."""
    source = folder / "source"
    model.save_pretrained(source)
    output = resize(source, to=to, output=folder / "output").output
    result = verify(output, source, deep=True)
    failed = [check for check in result.checks if check.failed]
    assert result.passed, failed
    unchecked = [check for check in result.checks if check.status == "not checked"]
    assert {check.name for check in unchecked} <= expected, unchecked


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TYPES)
def test_verify_deep_passes_for_the_output_of_resize(model_type: str, tmp_path: Path) -> None:
    expected = {"runs", "outputs"} if model_type in NOT_RUN else set[str]()
    models = small_models(model_type)
    first, to = next(models, (None, 0))
    if first is None:
        pytest.skip("no small model can be built")
    check_verified(first, to, tmp_path / "float32", expected)
    second, to = next(models, (first, to))  # a class with a head
    check_verified(second.to(half_dtype(model_type)), to, tmp_path / "half", expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_verify_deep_passes_for_dbrx_with_its_own_names_of_sizes(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    attention = {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 500000.0}
    experts = {
        "ffn_hidden_size": 16,
        "hidden_size": 32,
        "moe_num_experts": 2,
        "moe_top_k": 1,
    }
    sizes: dict[str, Any] = {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 1,
        "max_seq_len": 64,
        "vocab_size": 48,
    }
    config = transformers.DbrxConfig(**sizes, attn_config=attention, ffn_config=experts)
    model: Any = transformers.DbrxForCausalLM(config)
    check_verified(model.to(dtype), 128, tmp_path / "dbrx", set())
