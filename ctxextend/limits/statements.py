"""The keys in a checkpoint's files that state a length, and the programs that read each.

Not in this list, since they depend on the model type: its own keys in config.json, its tables and
its buffers (`families.registry`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

from ctxextend.checkpoint.checkpoint import MODULES, Checkpoint
from ctxextend.checkpoint.filenames import matches
from ctxextend.errors import CheckpointError, MethodError, joined
from ctxextend.families.registry import MAX_CONFIG_DEPTH, Architecture, find_family
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


class LengthStatement(NamedTuple):
    """A key of a tokenizer's or side file that states a length in tokens."""

    file: str  # file name, or a pattern of file names
    key: Keys  # path of keys
    # ``truncation``: longer inputs are truncated to it; ``padding``: inputs are padded to it.
    meaning: Literal["truncation", "padding"]
    read_by: tuple[str, ...]  # programs
    old_key: str = ""  # its name in old files
    should_be_stated: bool = False  # whether a file without the key sets no limit, but should


STATEMENTS = (
    LengthStatement(
        file=TOKENIZER_CONFIG,
        key=("model_max_length",),
        meaning="truncation",
        read_by=(TRANSFORMERS,),
        old_key="max_len",
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
)


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


def params_lengths(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the lengths that Mistral's params.json states, by key."""
    return lengths_in(checkpoint.params, PARAMS_KEYS)


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
        for statement in STATEMENTS:
            if not matches(path.name, (statement.file,)):
                continue
            values = checkpoint.read_object(file)
            keys = statement.key
            old_key = statement.old_key
            if old_key and old_key in values and keys[0] not in values:
                keys = (old_key,)
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

    1. The config, by the first key in `READERS`.
    2. The config of its part that reads text, in the same way.
    3. The length to which the tokenizer truncates texts.

    Raises:
        CheckpointError: A file cannot be read.
    """
    for path in ((), *((name,) for name in TEXT_CONFIGS)):
        for name, value in lengths_in(nested(checkpoint.config, path), READERS).items():
            return StatedLength(checkpoint.config_file, ".".join((*path, name)), value)
    for limit in stated_limits(checkpoint):
        if limit.statement.meaning == "truncation" and limit.tokens is not None:
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
        for limit in stated_limits(checkpoint, location.tokenizer):
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
    for limit in stated_limits(checkpoint, location.tokenizer or ""):
        if limit.tokens is not None:
            yield limit.tokens


# Limits of generated texts
#
# Source of the rules: ``GenerationConfig.from_pretrained``, its ``from_model_config``, and
# ``generate`` of transformers 5.23.

# Keys of generation_config.json, which older configs have too; the first maximum wins.
MAXIMA = (MAX_NEW_TOKENS, MAX_LENGTH)
GENERATION_KEYS = (*MAXIMA, MIN_LENGTH, MIN_NEW_TOKENS)

TASKS = "task_specific_params"  # of pipelines, up to transformers 4
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


class GenerationLimit(NamedTuple):
    """A limit of generated texts in a file."""

    file: str  # relative to the checkpoint's root
    path: Keys
    tokens: int
    is_used: bool  # whether `generate()` uses it
    # Whether `generate()` stops at it by default: it is the first of `MAXIMA` that is stated.
    is_deciding: bool = False

    @property
    def key(self) -> str:
        """The last key of its path."""
        return self.path[-1]

    @property
    def is_of_task(self) -> bool:
        """Whether it is for pipelines of one task, in old versions of transformers."""
        return TASKS in self.path

    @property
    def is_default(self) -> bool:
        """Whether it is a default in a nested config, which says nothing."""
        return len(self.path) > 1 and self.key == MAX_LENGTH and self.tokens == DEFAULT_MAX_LENGTH

    @property
    def may_rise(self) -> bool:
        """Whether it is a maximum that a longer context raises."""
        return self.key in MAXIMA and not self.is_of_task and not self.is_default


def generation_limits(checkpoint: Checkpoint) -> tuple[GenerationLimit, ...]:
    """Return all limits of generated texts in a folder.

    `generate()` uses the generation_config.json next to the model's config. Without this file, it
    uses config.json, if the model generates. Another generation_config.json at the root, which some
    folders with modules have, is not used.
    """
    limits = list[GenerationLimit]()
    used_file = (checkpoint.model / GENERATION_CONFIG).as_posix()
    for file in dict.fromkeys((used_file, GENERATION_CONFIG)):
        if file in checkpoint.copied:
            stated = lengths_in(checkpoint.read_object(file), GENERATION_KEYS)
            for key, tokens in stated.items():
                limits.append(GenerationLimit(file, (key,), tokens, is_used=file == used_file))
    used_paths = set[Keys]()
    if used_file not in checkpoint.copied and checkpoint.generates:
        used_paths = _used_paths(checkpoint.config)
    for path, tokens in _limits_in_config(checkpoint.config) if checkpoint.has_config else ():
        is_used = path in used_paths
        limits.append(GenerationLimit(checkpoint.config_file, path, tokens, is_used=is_used))
    used = {limit.key: limit for limit in limits if limit.is_used and not limit.is_default}
    deciding = [used[key] for key in MAXIMA if key in used][:1]
    return tuple(limit._replace(is_deciding=limit in deciding) for limit in limits)


def _limits_in_config(config: Mapping[str, Any], path: Keys = ()) -> Iterator[tuple[Keys, int]]:
    for key, tokens in lengths_in(config, GENERATION_KEYS).items():
        yield (*path, key), tokens
    tasks = config.get(TASKS)
    for task, values in tasks.items() if isinstance(tasks, Mapping) else ():
        for key, tokens in lengths_in(values, GENERATION_KEYS).items():
            yield (*path, TASKS, task, key), tokens
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


def shares_positions(location: Positions) -> bool:
    """Whether the prompt uses up the positions of generated texts too.

    Args:
        location: That of the table that generates. If it is that of a decoder, an encoder reads
            the prompt, with separate positions.
    """
    return not location.part.endswith(DECODER_PARTS)
