"""The keys in a checkpoint's files that state a length, and the programs that read each.

Not in this list, since they depend on the model type: its own keys in config.json, its tables and
its buffers (`families.registry`).
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, TypeAlias

from ctxextend.checkpoints.filenames import PARAMS_FILE, matches
from ctxextend.checkpoints.folder import CONFIG, MODULES, Checkpoint
from ctxextend.checkpoints.mistral_files import mistral_params
from ctxextend.errors import joined
from ctxextend.families.registry import FAMILIES
from ctxextend.positions.positions import Keys, Positions, nested, whole_number

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


# Keys of the context length in a config

# The programs that read each key.
READERS = {row.key[-1]: row.read_by for row in STATEMENTS if row.file == CONFIG}
PARAMS_KEYS = tuple(row.key[-1] for row in STATEMENTS if row.file == PARAMS_FILE)
# Those that also read it in a config around the language model's own.
OUTER_READERS = (LLAVA,)


def config_length_keys(location: Positions) -> list[tuple[Keys, int]]:
    """Return the other length keys of a location's config, and of configs around it, with values.

    Other keys are not the type's own: neither its key, nor an alias, nor a limit that follows it.
    """
    found = list[tuple[Keys, int]]()
    for path in (*_own_paths(location), *location.around()):
        ignored = _ignored_keys(location, path)
        for key in READERS:
            value = whole_number(nested(location.config, (*path, key)))
            if key not in ignored and value is not None and 0 < value < NO_LIMIT:
                found.append(((*path, key), value))
    return found


def params_lengths(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the lengths that Mistral's params.json states, by key."""
    params = mistral_params(checkpoint) or {}
    lengths = dict[str, int]()
    for key in PARAMS_KEYS:
        value = whole_number(params.get(key))
        if value is not None and 0 < value < NO_LIMIT:
            lengths[key] = value
    return lengths


def _ignored_keys(location: Positions, path: Keys) -> set[str]:
    """Return the keys of one config that are a type's own, or say nothing about the length.

    In the config of a location these are both; in that of the whole model, the unrelated keys; in
    configs in between, none.
    """
    table = location
    is_own = path in _own_paths(location)
    ignored = set[str]()
    if is_own:
        ignored |= {table.config_key.rpartition(".")[2], *table.aliases, *table.unused_keys}
        ignored |= {key.name for key in table.engine_keys}
        ignored |= {*location.family.limits}
    if is_own or not path:
        ignored |= {*location.family.unrelated_keys}
        whole = FAMILIES.get(str(location.config.get("model_type")))
        if whole is not None:
            ignored |= {*whole.unrelated_keys}
    return ignored


def _own_paths(location: Positions) -> list[Keys]:
    """Return the paths of a location's config, and of the copy that takes precedence over it."""
    return [path[:-1] for path in location.paths_of(location.config_key)]


def readers(location: Positions, path: Keys) -> tuple[str, ...]:
    """Return the programs that read a key; most read only the language model's own config."""
    names = READERS[path[-1]]
    if path[:-1] in _own_paths(location):
        return names
    return tuple(name for name in names if name in OUTER_READERS)


def may_take(programs: Sequence[str], value: int) -> str:
    """Say that programs may take a value that disagrees, as a clause; empty without programs."""
    if not programs:
        return ""
    return f"{joined(programs)} may take {value} instead"


# Limits of inputs, in the files of tokenizers and of sentence-transformers

# Files that AutoTokenizer can load.
TOKENIZER_FILES = {
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
}
# Configs of sentence-transformers, in the order in which it looks them up.
SENTENCE_CONFIGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
INPUT_LIMITS = tuple(row for row in STATEMENTS if row.meaning in ("truncation", "padding"))
PADS_TO_LONGEST = "BatchLongest"  # padding strategy of tokenizers without a length


class StatedLimit(NamedTuple):
    """One length limit in a side file."""

    file: str  # relative to the checkpoint's root
    path: Keys
    value: Any  # as in the file; None if the key is missing
    number: Any  # the value, without the name of a padding strategy
    tokens: int | None  # the limit; None if there is none
    statement: LengthStatement


def stated_limits(checkpoint: Checkpoint, tokenizer: str = "") -> Iterator[StatedLimit]:
    """Yield the length limits in a folder's tokenizer and side files.

    `tokenizer` is the tokenizer's folder if it has a separate one.
    """
    folders = {PurePosixPath(tokenizer)} if tokenizer else {PurePosixPath("."), checkpoint.model}
    for file in checkpoint.copied:
        path = PurePosixPath(file)
        if path.parent not in folders:
            continue
        for statement in INPUT_LIMITS:
            if not matches(path.name, statement.file):
                continue
            values = checkpoint.read_object(file)
            keys = statement.key
            old_key = statement.old_key
            if old_key is not None and old_key[0] in values and keys[0] not in values:
                keys = old_key
            value = nested(values, keys)
            if not statement.should_be_stated and value in (None, PADS_TO_LONGEST):
                continue
            number = value.get("Fixed") if isinstance(value, dict) else value
            tokens = None
            if type(number) is int and 0 < number < NO_LIMIT:
                tokens = number
            yield StatedLimit(
                file=file,
                path=keys,
                value=value,
                number=number,
                tokens=tokens,
                statement=statement,
            )


def sentence_config(checkpoint: Checkpoint) -> str | None:
    """Return the config that sentence-transformers uses: its first one that is not empty.

    None without modules.json, or without such a config.
    """
    if MODULES not in checkpoint.copied:
        return None
    for name in SENTENCE_CONFIGS:
        path = (checkpoint.model / name).as_posix()
        if path in checkpoint.copied and checkpoint.read_object(path):
            return path
    return None


# The context length that files state, whatever the model type is

# Configs of the part that reads text, in that of a model with several parts. The first ones are
# those of `get_text_config` in transformers 5.24.
TEXT_CONFIGS = ("text_config", "decoder", "generator", "language_config", "llm_config")


class StatedLength(NamedTuple):
    """A context length that a file states."""

    file: str  # relative to the checkpoint's root
    key: str  # with dots for nested configs
    tokens: int


def stated_length(checkpoint: Checkpoint) -> StatedLength | None:
    """Return the context length that a checkpoint's files state; None if none of them does.

    The first of these that states one counts:

    1. The config, by the first key that `STATEMENTS` lists.
    2. The config of its part that reads text, in the same way.
    3. The length to which the tokenizer truncates texts.

    Raises:
        CheckpointError: A file cannot be read.
    """
    for path in ((), *((name,) for name in TEXT_CONFIGS)):
        for name in READERS:
            key = (*path, name)
            value = whole_number(nested(checkpoint.config, key))
            if value is not None and 0 < value < NO_LIMIT:
                return StatedLength(checkpoint.config_file, ".".join(key), value)
    for limit in stated_limits(checkpoint):
        if limit.statement.meaning == "truncation" and limit.tokens is not None:
            return StatedLength(limit.file, ".".join(limit.path), limit.tokens)
    return None
