"""Model types that are known to have no learned position table, and what they have instead."""

from collections.abc import Mapping

__all__ = ["INSTEAD"]

ROTARY = "rotary position embeddings, computed and not learned: set rope_scaling in config.json"
ALIBI = "ALiBi, a penalty on distance: it reads longer texts as it is"
RELATIVE = "relative position biases, shared by all positions: it reads longer texts as it is"
SINUSOIDAL = "fixed sinusoids, computed and not learned: raise the length in config.json"
NONE = "no position embeddings: it reads longer texts as it is"

INSTEAD: Mapping[str, str] = {
    model_type: what
    for what, model_types in {
        ROTARY: (
            "bitnet",
            "cohere",
            "deepseek_v3",
            "falcon",
            "gemma",
            "gemma2",
            "gemma3_text",
            "gpt_neox",
            "gptj",
            "granite",
            "llama",
            "mistral",
            "mixtral",
            "modernbert",
            "olmo",
            "olmo2",
            "persimmon",
            "phi",
            "phi3",
            "qwen2",
            "qwen3",
            "smollm3",
            "stablelm",
            "starcoder2",
        ),
        ALIBI: ("bloom", "mpt"),
        RELATIVE: ("longt5", "mt5", "switch_transformers", "t5", "udop", "umt5", "xlnet"),
        SINUSOIDAL: ("fsmt", "marian", "pegasus", "pegasus_x", "roformer", "speech_to_text"),
        NONE: ("mamba", "mamba2", "rwkv"),
    }.items()
    for model_type in model_types
}
