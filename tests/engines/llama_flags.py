"""The flags of llama-server that give a model rotary settings which its GGUF file lacks."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

LINEAR = 1  # values of LLAMA_ROPE_SCALING_TYPE
YARN = 2


class Flags(NamedTuple):
    """Flags of llama-server, and the same as arguments of the class in Python."""

    text: str
    arguments: Mapping[str, Any]


def flags_of(settings: Mapping[str, Any], architecture: str = "") -> Flags | None:
    """Return the flags that state rotary settings; None if no flag does.

    Args:
        settings: `rope_parameters` of the layers with full attention.
        architecture: As GGUF files name it; needed for an explicit `attention_factor`.
    """
    rope_type = settings["rope_type"]
    if rope_type == "default":
        theta = settings["rope_theta"]
        return Flags(f"--rope-freq-base {theta:g}", {"rope_freq_base": theta})
    if rope_type not in ("linear", "yarn"):
        return None
    factor = settings["factor"]
    texts = [f"--rope-scaling {rope_type}", f"--rope-scale {factor:g}"]
    arguments: dict[str, Any] = {"rope_freq_scale": 1 / factor, "rope_scaling_type": LINEAR}
    if rope_type == "yarn":
        trained = settings["original_max_position_embeddings"]
        texts.append(f"--yarn-orig-ctx {trained}")
        arguments |= {"rope_scaling_type": YARN, "yarn_orig_ctx": trained}
    if "attention_factor" in settings:
        # llama.cpp multiplies this by its own factor of yarn; --yarn-attn-factor has no effect.
        key = f"{architecture}.rope.scaling.attn_factor"
        value = settings["attention_factor"] / (0.1 * math.log(factor) + 1)
        texts.append(f"--override-kv {key}=float:{value:.6g}")
        arguments["kv_overrides"] = {key: value}
    texts.append(f"--rope-freq-base {settings['rope_theta']:g}")
    arguments["rope_freq_base"] = settings["rope_theta"]
    return Flags(" ".join(texts), arguments)
