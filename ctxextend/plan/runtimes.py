"""The context length that each runtime derives from the rotary settings in config.json, as data
with sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

GITHUB = "https://github.com/"
VLLM_CHANGE = f"{GITHUB}vllm-project/vllm/pull/56446"
UNSCALED = "gemma3"  # in the names of model types whose length vLLM and SGLang never multiply
SAME = dict.fromkeys(("default", "yarn", "llama3", "longrope"), "max")
# No dynamic: since 0.22, vLLM fails beyond max_position_embeddings (vllm-project/vllm#55910);
# earlier versions use the same base at every length (#41236). It starts longrope at the first
# trained length; the option raises it.
VLLM = {**SAME, "linear": "max * factor", "longrope": "original"}


@dataclass(frozen=True)
class Runtime:
    """How a runtime derives the context length of a checkpoint with rotary positions."""

    name: str
    source: str  # URL
    # Product of ``max`` (max_position_embeddings), ``factor``, ``original`` (the first trained
    # length) and ``served`` (what the settings serve) by rope type. Missing rope types are not
    # supported, or mean something else.
    lengths: Mapping[str, str]
    option: str = (
        ""  # of its command line: another length than the derived one; empty: it derives no other
    )


RUNTIMES = (
    Runtime(
        "transformers",
        f"{GITHUB}huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py",
        dict.fromkeys((*SAME, "linear", "proportional", "dynamic", "ntk_alpha"), "served"),
    ),
    Runtime(
        "vLLM up to 0.29", VLLM_CHANGE, {**VLLM, "yarn": "original * factor"}, "--max-model-len"
    ),
    Runtime("vLLM after 0.29", VLLM_CHANGE, VLLM, "--max-model-len"),
    Runtime(
        "SGLang",
        f"{GITHUB}sgl-project/sglang/blob/main/python/sglang/srt/utils/hf_transformers/common.py",
        {**SAME, "linear": "max * factor", "dynamic": "max * factor"},
        "--context-length",
    ),
    # Its converter, which drops dynamic, except for HunYuan.
    Runtime(
        "llama.cpp",
        f"{GITHUB}ggml-org/llama.cpp/blob/master/conversion/base.py",
        {**SAME, "linear": "max"},
    ),
)


def runtime_lengths(
    rope: Mapping[str, Any], max_len: int, served: int, model_type: str = ""
) -> dict[str, int | None]:
    """Return the context length that each runtime derives; None if it does not support the rope
    type.

    `rope` is of the layers with full attention, as in transformers 5; `max_len` is
    max_position_embeddings; `served` is what the settings serve, in tokens: transformers enforces
    no other length.
    """
    first = rope.get("original_max_position_embeddings", max_len)
    values = {"max": max_len, "factor": rope.get("factor", 1), "original": first, "served": served}
    lengths: dict[str, int | None] = {}
    for runtime in RUNTIMES:
        if rule := runtime.lengths.get(rope["rope_type"], ""):
            rule = "max" if runtime.option and UNSCALED in model_type else rule
        lengths[runtime.name] = (
            round(prod(values[name] for name in rule.split(" * "))) if rule else None
        )
    return lengths


def describe_runtimes(lengths: Mapping[str, int | None], requested: int) -> str:
    """Return which runtimes read the requested context length, which another one, and which do not
    load the folder.
    """
    serving = [name for name, length in lengths.items() if length == requested]
    others = [
        f"{name} {length}" for name, length in lengths.items() if length not in (requested, None)
    ]
    options = dict.fromkeys(
        item.option for item in RUNTIMES if lengths[item.name] not in (requested, None)
    )
    flags = " or ".join(f"{option} {requested}" for option in options if option)
    texts = [f"Context length {requested} in {', '.join(serving) or 'no runtime'}"]
    texts += [f"other lengths: {', '.join(others)}{f' (set {flags})' * bool(flags)}"] * bool(others)
    unsupported = [name for name, length in lengths.items() if length is None]
    texts += [f"not supported by {', '.join(unsupported)}"] * bool(unsupported)
    return f"{'; '.join(texts)}.".replace("vLLM up to 0.29, vLLM after 0.29", "vLLM")
