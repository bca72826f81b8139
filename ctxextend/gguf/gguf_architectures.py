"""What llama.cpp does with the positions of each architecture of GGUF files.

It reads the length, the base and the scaling in one place, for all architectures
(``llama_model_base::load_hparams`` of llama-model.cpp, ``llama_context`` of llama-context.cpp), and
only a few treat what it has read in their own way. So a GGUF file is planned by the format's own
keys, and not by those of the model type in transformers that it was made from: many architectures
stand for several types, and defaults of transformers do not apply to the file.

Read in llama.cpp as of llama-cpp-python 0.3.36: ``llama_model_rope_type`` and src/models.
https://github.com/ggml-org/llama.cpp/tree/master/src/models
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ctxextend.positions.facts import ALIBI, RELATIVE, ROTARY

YARN_METHOD = "yarn"
LINEAR_METHOD = "linear"
# What the keys of the format can state, the default first.
GGUF_METHODS = (YARN_METHOD, LINEAR_METHOD, "theta")
LEARNED_ROWS: Literal["learned"] = "learned"


class GgufArchitecture(NamedTuple):
    """How llama.cpp computes the positions of an architecture."""

    name: str  # ``general.architecture``
    positions: Literal["rotary", "learned", "ALiBi", "relative"]
    # Of rotary positions: the methods that llama.cpp applies as transformers does.
    methods: tuple[str, ...] = GGUF_METHODS
    reason: str = ""  # why these are not all, as a clause
    # Of learned rows: the class in transformers that files are made from, which tells whether the
    # model has an LM head.
    model_class: str = ""
    # Of rotary positions: what layers with a sliding window do with the base, if there are any.
    #
    # - ``own``: they have another one, or that of the others in transformers too.
    # - ``default``: they take that of the others unless the file states one for them.
    # - ``shared``: they take that of the others, although transformers gives them their own.
    local_base: Literal["own", "default", "shared"] = "own"


ONLY_BASE = ("theta",)
OWN_YARN = "llama.cpp gives yarn settings of this architecture another attention factor"
OWN_TEMPERATURE = "llama.cpp also scales attention by the position of a token there"
OWN_BASE = "its base also follows from other keys"

# Rotary positions that are computed only from the common keys.
PLAIN_ROTARY = (
    "afmoe",
    "apertus",
    "arcee",
    "arctic",
    "bailingmoe",
    "bailingmoe2",
    "bitnet",
    "chameleon",
    "chatglm",
    "codeshell",
    "cogvlm",
    "cohere2",
    "cohere2moe",
    "command-r",
    "dbrx",
    "deci",
    "deepseek",
    "dots1",
    "dream",
    "ernie4_5",
    "ernie4_5-moe",
    "eurobert",
    "exaone",
    "exaone-moe",
    "exaone4",
    "falcon",
    "falcon-h1",
    "gemma",
    "gemma-embedding",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "glm4",
    "glm4moe",
    "gpt-oss",
    "gptneox",
    "granite",
    "granitehybrid",
    "granitemoe",
    "grovemoe",
    "hunyuan-moe",
    "internlm2",
    "jais2",
    "jina-bert-v3",
    "lfm2",
    "lfm2moe",
    "llada",
    "llada-moe",
    "llama",
    "llama-embed",
    "maincoder",
    "mellum",
    "mimo2",
    "minicpm",
    "minicpm3",
    "minimax-m2",
    "modern-bert",
    "nemotron",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "olmo",
    "olmoe",
    "openelm",
    "orion",
    "paddleocr",
    "pangu-embedded",
    "phi2",
    "phi3",
    "phimoe",
    "plamo",
    "plamo2",
    "plamo3",
    "qwen",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "qwen3vl",
    "qwen3vlmoe",
    "rnd1",
    "seed_oss",
    "smallthinker",
    "smollm3",
    "stablelm",
    "starcoder2",
    "step35",
    "xverse",
)

_OTHERS = (
    GgufArchitecture("laguna", ROTARY, local_base="default"),
    GgufArchitecture("olmo2", ROTARY, local_base="shared"),
    # `rope_yarn_log_mul` in deepseek2.cpp, deepseek32.cpp and glm-dsa.cpp.
    GgufArchitecture("deepseek2", ROTARY, methods=ONLY_BASE, reason=OWN_YARN),
    GgufArchitecture("deepseek32", ROTARY, methods=ONLY_BASE, reason=OWN_YARN),
    GgufArchitecture("glm-dsa", ROTARY, methods=ONLY_BASE, reason=OWN_YARN),
    # `yarn_attn_factor` and betas in grok.cpp.
    GgufArchitecture("grok", ROTARY, methods=ONLY_BASE, reason=OWN_YARN),
    # `f_attn_temp_scale` in llama4.cpp and mistral3.cpp.
    GgufArchitecture("llama4", ROTARY, methods=ONLY_BASE, reason=OWN_TEMPERATURE),
    GgufArchitecture("mistral3", ROTARY, methods=ONLY_BASE, reason=OWN_TEMPERATURE),
    GgufArchitecture("mistral4", ROTARY, methods=ONLY_BASE, reason=OWN_TEMPERATURE),
    # `rope_scaling_alpha` in hunyuan-vl.cpp.
    GgufArchitecture("hunyuan_vl", ROTARY, methods=(), reason=OWN_BASE),
    GgufArchitecture("hunyuan-dense", ROTARY, methods=(), reason=OWN_BASE),
    # `pos_embd` in bert.cpp, gpt2.cpp and starcoder.cpp.
    GgufArchitecture("bert", LEARNED_ROWS, model_class="BertModel"),
    GgufArchitecture("gpt2", LEARNED_ROWS, model_class="GPT2LMHeadModel"),
    GgufArchitecture("starcoder", LEARNED_ROWS, model_class="GPTBigCodeForCausalLM"),
    # `f_max_alibi_bias`.
    GgufArchitecture("bloom", ALIBI),
    GgufArchitecture("jais", ALIBI),
    GgufArchitecture("jina-bert-v2", ALIBI),
    GgufArchitecture("mpt", ALIBI),
    GgufArchitecture("refact", ALIBI),
    GgufArchitecture("t5", RELATIVE),
    GgufArchitecture("t5encoder", RELATIVE),
)

GGUF_ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    row.name: row for row in (*(GgufArchitecture(name, ROTARY) for name in PLAIN_ROTARY), *_OTHERS)
}
