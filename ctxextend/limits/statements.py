"""The keys in a checkpoint's files that state a length, and the programs that read each.

Not in this list, since they depend on the model type: its own keys in config.json, its tables and
its buffers (`families.registry`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ctxextend.checkpoint.checkpoint import MODULES, Checkpoint
from ctxextend.checkpoint.filenames import PARAMS_FILE, matches
from ctxextend.errors import CheckpointError, MethodError, joined
from ctxextend.families.registry import MAX_CONFIG_DEPTH, Architecture, find_family
from ctxextend.positions.positions import Keys, Positions, nested, whole_number
from ctxextend.provenance import read_provenance

TRANSFORMERS = "transformers"
GENERATE = "transformers generate"
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


class Meaning(Enum):
    """What a length limit limits."""

    LENGTH = auto()  # the context length, under another key than the model type's own
    TRUNCATION = auto()  # longer inputs are truncated to it
    PADDING = auto()  # inputs are padded to it
    GENERATION = auto()  # generated texts end there


class LengthLimit(NamedTuple):
    """A key of a file that states a length, and who reads it."""

    file: str  # relative to the checkpoint's root
    path: Keys
    value: Any  # as in the file; None if the key is missing
    tokens: int | None  # None if it sets no limit
    meaning: Meaning
    readers: tuple[str, ...]  # programs
    table: str = ""  # name of the positions that it limits


def length_limits(checkpoint: Checkpoint, tables: Sequence[Positions]) -> Iterator[LengthLimit]:
    """Yield all length limits in a checkpoint's files.

    Not among them, since they depend on the model type: its own keys in config.json, its tables and
    its buffers.
    """
    for table in tables:
        for path, tokens in config_length_keys(table):
            programs = readers(table, path)
            yield LengthLimit(
                checkpoint.config_file, path, tokens, tokens, Meaning.LENGTH, programs, table.name
            )
    # Limits of tokenizers follow the first table that reads tokens.
    first_tables = dict[str, str]()
    for table in tables:
        if table.tokenizer is not None:
            first_tables.setdefault(table.tokenizer, table.name)
    for tokenizer, name in first_tables.items():
        for limit in input_limits(checkpoint, tokenizer):
            yield limit._replace(table=name)
    generating = generating_table(tables)
    if generating is not None:
        for key, tokens in lengths_in(checkpoint.params, PARAMS_KEYS).items():
            yield LengthLimit(
                PARAMS_FILE, (key,), tokens, tokens, Meaning.LENGTH, (VLLM,), generating.name
            )
        for limit in generation_limits(checkpoint):
            yield limit._replace(table=generating.name)


def lengths_in(values: Any, keys: Iterable[str]) -> dict[str, int]:
    """Return the lengths that an object states under keys; none if it is not an object."""
    lengths = dict[str, int]()
    if isinstance(values, Mapping):
        for key in keys:
            length = whole_number(values.get(key))
            if length is not None and 0 < length < NO_LIMIT:
                lengths[key] = length
    return lengths


# Keys of the context length in a config

# Of any model type, and the programs that read each in the config of a language model.
# vLLM takes the smallest of its keys, but model_max_length before all others:
# `derive_max_model_len_and_key` in vllm/transformers_utils/model_arch_config_convertor.py.
# SGLang and the converter of llama.cpp take the first that they find: `CONTEXT_LENGTH_KEYS` in
# sglang/srt/utils/hf_transformers, `set_gguf_parameters` in llama.cpp's conversion/base.py.
# LLaVA cuts texts and images to tokenizer_model_max_length:
# `prepare_inputs_labels_for_multimodal`. All were read in 2026-11, and not run.
READERS: Mapping[str, tuple[str, ...]] = {
    "max_position_embeddings": (VLLM, SGLANG, LLAMA_CPP),
    "n_positions": (VLLM, LLAMA_CPP),
    "n_ctx": (LLAMA_CPP,),
    "max_seq_len": (VLLM, SGLANG),
    "max_seq_length": (VLLM,),
    "max_sequence_length": (VLLM, SGLANG, LLAMA_CPP),
    "seq_length": (VLLM, SGLANG),
    "seq_len": (VLLM,),
    "sequence_length": (),
    "model_max_length": (VLLM, SGLANG, LLAMA_CPP),
    "tokenizer_model_max_length": (LLAVA,),
    "max_context_length": (),
    "context_length": (),
    "max_model_len": (),
}
# Those of Mistral's own format, which vLLM reads: the smaller one counts.
PARAMS_KEYS = ("max_position_embeddings", "max_seq_len")
# Those that also read it in a config around the language model's own.
OUTER_READERS = (LLAVA,)


def config_length_keys(location: Positions) -> list[tuple[Keys, int]]:
    """Return the other length keys of a location's config, and of configs around it, with values.

    Other keys are not the type's own: neither its key, nor an alias, nor a limit that follows it;
    and not one that says nothing about the length, in these or in the whole model's config.
    """
    family = location.family
    unrelated = {*family.unrelated_keys}
    whole = find_family(str(location.config.get("model_type")))
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
        for key, value in lengths_in(nested(location.config, path), READERS).items():
            if key not in ignored:
                lengths.append(((*path, key), value))
    return lengths


def following_value(location: Positions, value: int, before: int, after: int) -> int | None:
    """Return the new value of a key that agrees with the old length; None if it does not.

    The key counts what it counted before. If a table with 2 reserved rows goes from 512 to 1024
    positions, 512 becomes 1024, and 514, which counts the reserved rows, becomes 1026. Without
    rows, a key that states the length before scaling goes on stating it.
    """
    if value not in location.values_of_length(before):
        return None
    if before == after:
        return value
    if value == before:
        return after
    return location.key_value(after)


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
PADS_TO_LONGEST = "BatchLongest"  # padding strategy of tokenizers without a length


# By pattern of file names: key, meaning and program.
INPUT_KEYS: Sequence[tuple[str, Keys, Meaning, str]] = (
    (TOKENIZER_CONFIG, ("model_max_length",), Meaning.TRUNCATION, TRANSFORMERS),
    (TOKENIZER, ("truncation", "max_length"), Meaning.TRUNCATION, TOKENIZERS),
    (TOKENIZER, ("padding", "strategy"), Meaning.PADDING, TOKENIZERS),
    (SENTENCE_CONFIG, ("max_seq_length",), Meaning.TRUNCATION, SENTENCE_TRANSFORMERS),
)
OLD_KEY = "max_len"  # model_max_length in old files


def input_limits(checkpoint: Checkpoint, tokenizer: str = "") -> Iterator[LengthLimit]:
    """Yield the length limits in a folder's tokenizer and side files.

    A tokenizer's config that states none sets no limit, but should.

    Args:
        checkpoint: The checkpoint.
        tokenizer: The tokenizer's folder if it has a separate one.
    """
    folders = {PurePosixPath(tokenizer)} if tokenizer else {PurePosixPath("."), checkpoint.model}
    for file in checkpoint.copied:
        path = PurePosixPath(file)
        for pattern, keys, meaning, program in INPUT_KEYS:
            if path.parent not in folders or not matches(path.name, (pattern,)):
                continue
            values = checkpoint.read_object(file)
            if pattern == TOKENIZER_CONFIG and OLD_KEY in values and keys[0] not in values:
                keys = (OLD_KEY,)
            value = nested(values, keys)
            if pattern != TOKENIZER_CONFIG and value in (None, PADS_TO_LONGEST):
                continue
            number = value.get("Fixed") if isinstance(value, dict) else value
            tokens = None
            if type(number) is int and 0 < number < NO_LIMIT:
                tokens = number
            programs: tuple[str, ...] = (program,)
            if program == SENTENCE_TRANSFORMERS and file != sentence_config(checkpoint):
                programs = ()
            yield LengthLimit(file, keys, value, tokens, meaning, programs)


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

    1. The config, by the first key in `READERS`.
    2. The config of its part that reads text, in the same way.
    3. The length to which the tokenizer truncates texts.

    Raises:
        CheckpointError: A file cannot be read.
    """
    for path in ((), *((name,) for name in TEXT_CONFIGS)):
        for name, value in lengths_in(nested(checkpoint.config, path), READERS).items():
            return StatedLength(checkpoint.config_file, ".".join((*path, name)), value)
    for limit in input_limits(checkpoint):
        if limit.meaning is Meaning.TRUNCATION and limit.tokens is not None:
            return StatedLength(limit.file, ".".join(limit.path), limit.tokens)
    return None


# The first trained length, where the rotary settings do not tell it


def with_trained_length(
    architecture: Architecture, checkpoint: Checkpoint | None, trained_length: int | None
) -> Architecture:
    """Return an architecture whose rotary positions know their first trained length, if stated.

    Args:
        architecture: That of the checkpoint, or of a loaded model.
        checkpoint: Its tokenizer files and recipe are read only if the rotary settings leave the
            question open. None of a loaded model.
        trained_length: The length of the first training, in tokens, as the user states it.

    Raises:
        MethodError: The user states it, but nothing of the positions scales.
    """
    locations = list[Positions]()
    for location in architecture.locations:
        if location.methods and trained_length is not None:
            location = replace(location, trained_length=trained_length)
        elif location.methods:
            with suppress(CheckpointError):  # reported when the settings are used
                if location.lengths.question:
                    seen = tuple(_seen_lengths(location, checkpoint))
                    location = replace(location, seen_lengths=seen)
        locations.append(location)
    if trained_length is not None and all(item.trained_length is None for item in locations):
        schemes = " and ".join(dict.fromkeys(location.scheme for location in locations))
        message = (
            f"--trained-length applies to rotary positions that scale, not to {schemes} ones of "
            f"{architecture.family.model_type}."
        )
        raise MethodError(message, "Remove --trained-length.")
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
    provenance = read_provenance(checkpoint)
    if provenance is None:
        return None
    _, after = provenance.steps[-1].rows.get(location.usual_name, (0, 0))
    return after - location.other_rows


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
        for limit in input_limits(checkpoint, location.tokenizer):
            if limit.tokens is not None and may_state_trained_length(limit.file):
                stated.append(limit.tokens)
    return max((value for value in stated if value < length), default=None)


def _seen_lengths(location: Positions, checkpoint: Checkpoint | None) -> Iterator[int]:
    for _, length in config_length_keys(location):
        yield length
    if checkpoint is None:
        return
    recorded = _recorded_length(location, checkpoint)
    if recorded is not None:
        yield recorded
    for limit in input_limits(checkpoint, location.tokenizer or ""):
        if limit.tokens is not None:
            yield limit.tokens


# Limits of generated texts
#
# Source of the rules: ``GenerationConfig.from_pretrained``, its ``from_model_config``, and
# ``generate`` of transformers 5.23.

# Keys of generation_config.json, which older configs have too; the first maximum wins.
MAXIMA = (MAX_NEW_TOKENS, MAX_LENGTH)
GENERATION_KEYS = (*MAXIMA, MIN_LENGTH, MIN_NEW_TOKENS)

# Older versions of transformers wrote all defaults of generation into nested configs.
DEFAULT_MAX_LENGTH = 20
# Without a generation_config.json, transformers completes the outer config by the first of these.
DECODER_CONFIGS = ("decoder", "generator", "text_config")
# Nested configs of other inputs, whose ``max_length`` counts other things, by name or by a key.
NOT_TEXT = "vision|visual|image|video|audio|speech|quantization"
NOT_TEXT_KEYS = {
    "patch_size",
    "image_size",
    "num_channels",
    "num_mel_bins",
    "sampling_rate",
    "conv_dim",
}
# Names of parts of a model, the last one if they are nested.
DECODER_PARTS = ("decoder", "speech")  # the decoder of CLVP, which writes speech, is called so
TEXT_PARTS = ("", "text")


def generation_limits(checkpoint: Checkpoint) -> tuple[LengthLimit, ...]:
    """Return all limits of generated texts in a folder.

    `generate()` uses the generation_config.json next to the model's config. Without this file, it
    uses config.json, if the model generates.
    """
    limits = list[LengthLimit]()
    file = (checkpoint.model / GENERATION_CONFIG).as_posix()
    used_paths = set[Keys]()
    if file in checkpoint.copied:
        for key, tokens in lengths_in(checkpoint.read_object(file), GENERATION_KEYS).items():
            limits.append(
                LengthLimit(file, (key,), tokens, tokens, Meaning.GENERATION, (GENERATE,))
            )
    elif checkpoint.generates:
        used_paths = _used_paths(checkpoint.config)
    for path, tokens in _limits_in_config(checkpoint.config) if checkpoint.has_config else ():
        programs = (GENERATE,) if path in used_paths else ()
        limits.append(
            LengthLimit(checkpoint.config_file, path, tokens, tokens, Meaning.GENERATION, programs)
        )
    return tuple(limits)


def _limits_in_config(config: Mapping[str, Any], path: Keys = ()) -> Iterator[tuple[Keys, int]]:
    for key, tokens in lengths_in(config, GENERATION_KEYS).items():
        is_default = bool(path) and key == MAX_LENGTH and tokens == DEFAULT_MAX_LENGTH
        if not is_default:
            yield (*path, key), tokens
    if len(path) >= MAX_CONFIG_DEPTH:
        return
    for name, part in config.items():
        if not isinstance(part, Mapping):
            continue
        is_named = name in ("decoder", "encoder", "generator") or name.endswith("_config")
        is_text = not re.search(NOT_TEXT, name) and NOT_TEXT_KEYS.isdisjoint(part)
        if is_text and (is_named or "model_type" in part):
            yield from _limits_in_config(part, (*path, name))


def _used_paths(config: Mapping[str, Any]) -> set[Keys]:
    """Return the paths that `generate()` uses in a folder without generation_config.json.

    They are those at the top level and, for keys that it does not state, those in the first of
    `DECODER_CONFIGS` that is not empty.
    """
    used: set[Keys] = {(key,) for key in lengths_in(config, GENERATION_KEYS)}
    stated_parts = [name for name in DECODER_CONFIGS if config.get(name)]
    for part in stated_parts[:1]:
        for key in lengths_in(config[part], GENERATION_KEYS):
            if (key,) not in used:
                used.add((part, key))
    return used


def generating_table(tables: Sequence[Positions]) -> Positions | None:
    """Return the table whose positions generated texts use up; None if none reads text.

    It is the first of the decoder, else the first of the text, else the first that reads tokens.
    """
    parts = [table.part.rpartition(".")[2] for table in tables]
    for table, part in zip(tables, parts, strict=True):
        if part.endswith(DECODER_PARTS):
            return table
    reading = [table for table in tables if table.tokenizer is not None]
    for table in reading:
        if table.part.rpartition(".")[2] in TEXT_PARTS:
            return table
    return reading[0] if reading else None
