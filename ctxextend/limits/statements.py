"""The keys in a checkpoint's files that state a length, and the programs that read each.

Not in this list, since they depend on the model type: its own keys in config.json, its tables and
its buffers (`families.registry`).
"""

from typing import Literal, NamedTuple, TypeAlias

from ctxextend.checkpoints.filenames import PARAMS_FILE
from ctxextend.checkpoints.folder import CONFIG
from ctxextend.families.lookup import Keys

TRANSFORMERS = "transformers"
GENERATE = "transformers generate"
OLD_PIPELINES = "pipelines of transformers 4"
SENTENCE_TRANSFORMERS = "sentence-transformers"
TOKENIZERS = "tokenizers"
VLLM = "vLLM"
SGLANG = "SGLang"
LLAMA_CPP = "llama.cpp"
LLAVA = "LLaVA"

TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER = "tokenizer.json"
SENTENCE_CONFIG = "sentence_*_config.json"  # one of several model types is in the name
GENERATION_CONFIG = "generation_config.json"

MAX_LENGTH = "max_length"
MAX_NEW_TOKENS = "max_new_tokens"
MIN_LENGTH = "min_length"
MIN_NEW_TOKENS = "min_new_tokens"

NO_LIMIT = 10**9  # larger values mean "no limit": transformers writes 1e30

# ``context``: the context length; ``truncation``: longer inputs are truncated to it; ``padding``:
# inputs are padded to it; ``maximum``, ``minimum``: a limit of generated texts.
Meaning: TypeAlias = Literal["context", "truncation", "padding", "maximum", "minimum"]


class LengthStatement(NamedTuple):
    """A key that states a length in tokens."""

    file: str  # file name, or a pattern of file names
    key: Keys  # path of keys; in config.json also in nested configs
    meaning: Meaning
    read_by: tuple[str, ...]  # programs; of the context length: in the config of a language model
    old_key: Keys | None = None  # its name in old files
    should_be_stated: bool = False  # whether a file without the key sets no limit, but should


STATEMENTS = (
    # The context length, whatever a model type calls it.
    # vLLM takes the smallest of its keys, but model_max_length before all others:
    # `derive_max_model_len_and_key` in vllm/transformers_utils/model_arch_config_convertor.py.
    # SGLang and the converter of llama.cpp take the first that they find: `CONTEXT_LENGTH_KEYS` in
    # sglang/srt/utils/hf_transformers, `set_gguf_parameters` in llama.cpp's conversion/base.py.
    # LLaVA cuts texts and images to tokenizer_model_max_length:
    # `prepare_inputs_labels_for_multimodal`. All were read in 2026-11, and not run.
    LengthStatement(
        file=CONFIG,
        key=("max_position_embeddings",),
        meaning="context",
        read_by=(VLLM, SGLANG, LLAMA_CPP),
    ),
    LengthStatement(
        file=CONFIG, key=("n_positions",), meaning="context", read_by=(VLLM, LLAMA_CPP)
    ),
    LengthStatement(file=CONFIG, key=("n_ctx",), meaning="context", read_by=(LLAMA_CPP,)),
    LengthStatement(file=CONFIG, key=("max_seq_len",), meaning="context", read_by=(VLLM, SGLANG)),
    LengthStatement(file=CONFIG, key=("max_seq_length",), meaning="context", read_by=(VLLM,)),
    LengthStatement(
        file=CONFIG,
        key=("max_sequence_length",),
        meaning="context",
        read_by=(VLLM, SGLANG, LLAMA_CPP),
    ),
    LengthStatement(file=CONFIG, key=("seq_length",), meaning="context", read_by=(VLLM, SGLANG)),
    LengthStatement(file=CONFIG, key=("seq_len",), meaning="context", read_by=(VLLM,)),
    LengthStatement(file=CONFIG, key=("sequence_length",), meaning="context", read_by=()),
    LengthStatement(
        file=CONFIG,
        key=("model_max_length",),
        meaning="context",
        read_by=(VLLM, SGLANG, LLAMA_CPP),
    ),
    LengthStatement(
        file=CONFIG, key=("tokenizer_model_max_length",), meaning="context", read_by=(LLAVA,)
    ),
    LengthStatement(file=CONFIG, key=("max_context_length",), meaning="context", read_by=()),
    LengthStatement(file=CONFIG, key=("context_length",), meaning="context", read_by=()),
    LengthStatement(file=CONFIG, key=("max_model_len",), meaning="context", read_by=()),
    # The same in Mistral's own format: the smaller one counts.
    LengthStatement(
        file=PARAMS_FILE, key=("max_position_embeddings",), meaning="context", read_by=(VLLM,)
    ),
    LengthStatement(file=PARAMS_FILE, key=("max_seq_len",), meaning="context", read_by=(VLLM,)),
    # Limits of inputs.
    LengthStatement(
        file=TOKENIZER_CONFIG,
        key=("model_max_length",),
        meaning="truncation",
        read_by=(TRANSFORMERS,),
        old_key=("max_len",),
        should_be_stated=True,
    ),
    LengthStatement(
        file=TOKENIZER,
        key=("truncation", "max_length"),
        meaning="truncation",
        read_by=(TOKENIZERS,),
    ),
    LengthStatement(
        file=TOKENIZER, key=("padding", "strategy"), meaning="padding", read_by=(TOKENIZERS,)
    ),
    LengthStatement(
        file=SENTENCE_CONFIG,
        key=("max_seq_length",),
        meaning="truncation",
        read_by=(SENTENCE_TRANSFORMERS,),
    ),
    # Limits of generated texts. The first maximum wins. Older versions of transformers write these
    # keys into config.json.
    LengthStatement(
        file=GENERATION_CONFIG, key=(MAX_NEW_TOKENS,), meaning="maximum", read_by=(GENERATE,)
    ),
    LengthStatement(
        file=GENERATION_CONFIG, key=(MAX_LENGTH,), meaning="maximum", read_by=(GENERATE,)
    ),
    LengthStatement(
        file=GENERATION_CONFIG, key=(MIN_LENGTH,), meaning="minimum", read_by=(GENERATE,)
    ),
    LengthStatement(
        file=GENERATION_CONFIG, key=(MIN_NEW_TOKENS,), meaning="minimum", read_by=(GENERATE,)
    ),
)
