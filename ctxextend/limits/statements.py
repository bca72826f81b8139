"""The keys in a checkpoint's files that state a length, and the programs that read each.

Not in this list, since they depend on the model type: its own keys in config.json, its tables and
its buffers (`families.registry`).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, TypeAlias

from ctxextend.checkpoint.filenames import PARAMS_FILE, matches
from ctxextend.checkpoint.folder import CONFIG, MODULES, Checkpoint
from ctxextend.errors import CheckpointError, MethodError, joined
from ctxextend.families.lookup import Architecture
from ctxextend.families.registry import FAMILIES
from ctxextend.positions.positions import Keys, Positions, nested, whole_number
from ctxextend.provenance import read_provenance

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

    Other keys are not the type's own: neither its key, nor an alias, nor a limit that follows it;
    and not one that says nothing about the length, in these or in the whole model's config.
    """
    family = location.family
    unrelated = {*family.unrelated_keys}
    whole = FAMILIES.get(str(location.config.get("model_type")))
    if whole is not None:
        unrelated |= {*whole.unrelated_keys}
    own = {location.config_key.rpartition(".")[2], *location.aliases, *location.unused_keys}
    own |= {*family.limits, *(key.name for key in location.engine_keys)}
    own_paths = [path[:-1] for path in location.paths_of(location.config_key)]
    lengths = list[tuple[Keys, int]]()
    for path in (*own_paths, *location.outer_paths()):
        ignored = set[str]()
        if path in own_paths:
            ignored = own | unrelated
        elif not path:
            ignored = unrelated
        for key in READERS:
            value = whole_number(nested(location.config, (*path, key)))
            if key not in ignored and value is not None and 0 < value < NO_LIMIT:
                lengths.append(((*path, key), value))
    return lengths


class LengthChange(NamedTuple):
    """A planned change of a context length, in usable positions."""

    location: Positions
    before: int
    after: int


def following_value(change: LengthChange, value: int) -> int | None:
    """Return the new value of a key that agrees with the old length; None if it does not.

    The key counts what it counted before. If a table with 2 reserved rows goes from 512 to 1024
    positions, 512 becomes 1024, and 514, which counts the reserved rows, becomes 1026. Without
    rows, a key that states the length before scaling goes on stating it.
    """
    location, before, after = change
    if value not in location.values_of_length(before):
        return None
    if before == after:
        return value
    if value == before:
        return after
    return location.key_value(after)


def params_lengths(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the lengths that Mistral's params.json states, by key."""
    params = checkpoint.params or {}
    lengths = dict[str, int]()
    for key in PARAMS_KEYS:
        value = whole_number(params.get(key))
        if value is not None and 0 < value < NO_LIMIT:
            lengths[key] = value
    return lengths


def readers(location: Positions, path: Keys) -> tuple[str, ...]:
    """Return the programs that read a key; most read only the language model's own config."""
    names = READERS[path[-1]]
    own_paths = [own[:-1] for own in location.paths_of(location.config_key)]
    if path[:-1] in own_paths:
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
            if not matches(path.name, (statement.file,)):
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


# The first trained length, where the rotary settings do not tell it


def with_trained_length(
    architecture: Architecture, checkpoint: Checkpoint, trained_length: int | None
) -> Architecture:
    """Return an architecture whose rotary positions know their first trained length, if stated.

    Args:
        architecture: That of the checkpoint.
        checkpoint: Its tokenizer files and recipe are read only if the rotary settings leave the
            question open.
        trained_length: The length of the first training, in tokens, as the user states it.

    Raises:
        MethodError: The user states it, but nothing of the positions scales.
    """
    if trained_length is not None:
        return state_trained_length(architecture, trained_length)
    locations = list[Positions]()
    for location in architecture.locations:
        with suppress(CheckpointError):  # reported when the settings are used
            if location.lengths.question:
                seen = tuple(_seen_lengths(location, checkpoint))
                location = replace(location, seen_lengths=seen)
        locations.append(location)
    return architecture._replace(locations=tuple(locations))


def state_trained_length(architecture: Architecture, trained_length: int) -> Architecture:
    """Return an architecture whose rotary positions were first trained at a length, in tokens.

    Raises:
        MethodError: Nothing of its positions scales.
    """
    locations = [
        location.with_trained_length(trained_length) for location in architecture.locations
    ]
    if all(location.trained_length is None for location in locations):
        schemes = " and ".join(dict.fromkeys(location.scheme for location in locations))
        message = f"--trained-length applies to rotary positions that scale, not to {schemes} ones"
        raise MethodError(
            f"{message} of {architecture.family.model_type}.", "Remove --trained-length."
        )
    return architecture._replace(locations=tuple(locations))


def with_config_lengths(architecture: Architecture) -> Architecture:
    """Return an architecture whose rotary positions know the lengths that other keys state."""
    locations = list[Positions]()
    for location in architecture.locations:
        seen = tuple(length for _, length in config_length_keys(location))
        locations.append(replace(location, seen_lengths=seen))
    return architecture._replace(locations=tuple(locations))


def may_lack_scaling(location: Positions, checkpoint: Checkpoint) -> bool:
    """Whether a rotary length may have been raised by hand, past the one of the training.

    Unscaled settings look the same as those of a model that was trained at the length. A recipe
    that made the length tells them apart.

    Raises:
        CheckpointError: The config states no valid length, or malformed rotary settings.
    """
    if not location.methods or location.trained_length is not None:
        return False
    lengths = location.lengths
    if lengths.served != lengths.first_trained:
        return False
    return _recorded_length(location, checkpoint) != lengths.context


def _recorded_length(location: Positions, checkpoint: Checkpoint) -> int | None:
    """Return the length that a recipe gave to positions; None without a recipe."""
    provenance = read_provenance(checkpoint)
    if provenance is None:
        return None
    _, after = provenance.steps[-1].rows.get(location.usual_name, (0, 0))
    return location.positions_in(after)


def may_state_trained_length(file: str) -> bool:
    """Whether a limit in a file may be the length of the training.

    Configs and model_max_length of tokenizers state what a model reads. The limits of tokenizers
    and of sentence-transformers are often shorter on purpose.
    """
    name = PurePosixPath(file).name
    return name != TOKENIZER and not matches(name, (SENTENCE_CONFIG,))


def lower_stated_length(location: Positions, checkpoint: Checkpoint, length: int) -> int | None:
    """Return the largest length below one that may be the length of the training.

    Args:
        location: The positions, whose other keys in the config may state it.
        checkpoint: Its tokenizer files may state it.
        length: The length, in tokens.
    """
    stated = [value for _, value in config_length_keys(location)]
    if location.tokenizer is not None:
        for limit in stated_limits(checkpoint, location.tokenizer):
            if limit.tokens is not None and may_state_trained_length(limit.file):
                stated.append(limit.tokens)
    return max((value for value in stated if value < length), default=None)


def _seen_lengths(location: Positions, checkpoint: Checkpoint) -> Iterator[int]:
    """Yield the lengths that a recipe, other keys of the config and tokenizer files state, in
    tokens.
    """
    recorded = _recorded_length(location, checkpoint)
    if recorded is not None:
        yield recorded
    for _, length in config_length_keys(location):
        yield length
    for limit in stated_limits(checkpoint, location.tokenizer or ""):
        if limit.tokens is not None:
            yield limit.tokens
