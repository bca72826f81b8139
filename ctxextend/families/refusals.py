"""Model types that are known to have no learned position table, and what they have instead."""

from collections.abc import Mapping

__all__ = ["INSTEAD"]

ROTARY = "rotary position embeddings, computed and not learned: set rope_scaling in config.json"
ALIBI = "ALiBi, a penalty on distance: it reads longer texts as it is"
RELATIVE = "relative position biases, shared by all positions: it reads longer texts as it is"
ROTARY_OR_ALIBI = "rotary embeddings, or ALiBi where its config says so: set rope_scaling in config.json"
ROTARY_SINUSOIDS = "rotary embeddings from fixed sinusoids: raise max_position_embeddings in config.json"
RELATIVE_SINUSOIDS = "relative sinusoids, computed and not learned: it reads longer texts as it is"
SINUSOIDAL = "fixed sinusoids, computed and not learned: raise the length in config.json"
NONE = "no position embeddings: it reads longer texts as it is"

INSTEAD: Mapping[str, str] = {
    model_type: what
    for what, model_types in {
        ROTARY: (
            "bitnet",
            "cohere",
            "deepseek_v3",
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
        RELATIVE: ("longt5", "mt5", "switch_transformers", "t5", "udop", "umt5"),
        SINUSOIDAL: ("fsmt", "marian", "pegasus", "pegasus_x", "speech_to_text"),
        ROTARY_OR_ALIBI: ("falcon",),
        ROTARY_SINUSOIDS: ("roformer",),
        RELATIVE_SINUSOIDS: ("xlnet",),
        NONE: ("mamba", "mamba2", "rwkv"),
    }.items()
    for model_type in model_types
}
