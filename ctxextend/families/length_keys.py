"""Keys of config.json that state a length next to a type's own key, and the table that
generates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from ctxextend.errors import joined
from ctxextend.families.lookup import Keys, TableLocation, nested, whole_number

NO_LIMIT = 10**9  # larger values mean "no limit": transformers writes 1e30


@dataclass(frozen=True)
class LengthKey:
    """A key that people or engines use for the context length, whatever a model type calls it."""

    name: str
    readers: tuple[str, ...] = ()  # engines that read it in the config of the language model


VLLM = "vLLM"
SGLANG = "SGLang"
LLAMA_CPP = "llama.cpp"
LLAVA = "LLaVA"

# vLLM takes the smallest of its keys, but model_max_length before all others:
# `derive_max_model_len_and_key` in vllm/transformers_utils/model_arch_config_convertor.py.
# SGLang and the converter of llama.cpp take the first that they find: `CONTEXT_LENGTH_KEYS` in
# sglang/srt/utils/hf_transformers, `set_gguf_parameters` in llama.cpp's conversion/base.py.
# LLaVA cuts texts and images to tokenizer_model_max_length: `prepare_inputs_labels_for_multimodal`.
# All were read in 2026-11, and not run.
LENGTH_KEYS = (
    LengthKey("max_position_embeddings", (VLLM, SGLANG, LLAMA_CPP)),
    LengthKey("n_positions", (VLLM, LLAMA_CPP)),
    LengthKey("n_ctx", (LLAMA_CPP,)),
    LengthKey("max_seq_len", (VLLM, SGLANG)),
    LengthKey("max_seq_length", (VLLM,)),
    LengthKey("max_sequence_length", (VLLM, SGLANG, LLAMA_CPP)),
    LengthKey("seq_length", (VLLM, SGLANG)),
    LengthKey("seq_len", (VLLM,)),
    LengthKey("sequence_length"),
    LengthKey("model_max_length", (VLLM, SGLANG, LLAMA_CPP)),
    LengthKey("tokenizer_model_max_length", (LLAVA,)),
    LengthKey("max_context_length"),
    LengthKey("context_length"),
    LengthKey("max_model_len"),
)
READERS = {key.name: key.readers for key in LENGTH_KEYS}

# Keys of the config of a language model, inside that of a larger model.
LANGUAGE_CONFIGS = ("text_config", "language_config", "llm_config")

# Keys of the whole model's config that say nothing about the length of its tables, by its type.
UNRELATED = {
    "codegen": ("n_ctx",),  # `CodeGenConfig` writes its default, which has no effect
    "clvp": ("max_position_embeddings",),  # of speech, next to the length of texts
    "musicflamingo": ("max_position_embeddings",),  # of seconds of audio, next to the text config
}


def config_length_keys(location: TableLocation) -> list[tuple[Keys, int]]:
    """Return the other length keys of a location's config, and of configs around it, with values.

    Other keys are not the type's own: neither its key, nor an alias, nor a limit that follows it.
    """
    own_keys = {location.table.config_key.rpartition(".")[2]}
    own_keys |= {*location.table.aliases, *location.table.unused_keys, *location.family.limits}
    unrelated = {*UNRELATED.get(location.family.model_type, ())}
    whole_type = location.config.get("model_type")
    if isinstance(whole_type, str):
        unrelated |= {*UNRELATED.get(whole_type, ())}
    own_paths = _own_paths(location)
    found = list[tuple[Keys, int]]()
    for path in (*own_paths, *around(location)):
        for key in LENGTH_KEYS:
            if key.name in unrelated and (path in own_paths or not path):
                continue
            if path in own_paths and key.name in own_keys:
                continue
            value = whole_number(nested(location.config, (*path, key.name)))
            if value is not None and 0 < value < NO_LIMIT:
                found.append(((*path, key.name), value))
    return found


def _own_paths(location: TableLocation) -> list[Keys]:
    """Return the paths of a location's config, and of the copy that takes precedence over it."""
    return [path[:-1] for path in location.paths_of(location.table.config_key)]


def around(location: TableLocation) -> Iterator[Keys]:
    """Yield the paths of the configs around a language model's, which may state its length too."""
    if location.path and location.path[-1].endswith(LANGUAGE_CONFIGS):
        for depth in range(len(location.path)):
            yield location.path[:depth]


def readers(location: TableLocation, path: Keys) -> tuple[str, ...]:
    """Return the engines that read a key; most read only the language model's own config."""
    names = READERS[path[-1]]
    if path[:-1] in _own_paths(location):
        return names
    return tuple(name for name in names if name == LLAVA)


def may_take(engines: Sequence[str], value: int) -> str:
    """Return what engines may do with a key that disagrees, as a clause; empty if none reads it."""
    if not engines:
        return ""
    return f"{joined(engines)} may take {value} instead"


def agreeing_values(location: TableLocation, positions: int) -> tuple[int, ...]:
    """Return the values that agree with a number of positions, reserved rows counted or not."""
    if not location.table.has_rows:
        return (positions, location.value(location.effective_key))
    return (positions, location.key_value(positions))


class LengthChange(NamedTuple):
    """A planned change of a context length, in usable positions."""

    location: TableLocation
    before: int
    after: int


def length_key_changes(lengths: Sequence[LengthChange], *, fix_limits: bool) -> dict[Keys, int]:
    """Return new values of the keys that agree with an old length, and with `fix_limits` of all."""
    changes = dict[Keys, int]()
    wrong = dict[Keys, int]()
    for location, before, after in lengths:
        for path, value in config_length_keys(location):
            if before == after and value in agreeing_values(location, before):
                changes[path] = value
            elif value == before:
                changes[path] = after
            elif value in agreeing_values(location, before):
                changes[path] = location.key_value(after)
            else:
                wrong[path] = after
    if fix_limits:
        changes = wrong | changes
    config = lengths[0].location.config if lengths else {}
    return {path: value for path, value in changes.items() if nested(config, path) != value}


class HasLocation(Protocol):
    """A table as it was found, planned or reported."""

    @property
    def location(self) -> TableLocation:
        """Its registry entry."""


# Names of parts of a model, the last one if they are nested.
DECODER_PARTS = ("decoder", "speech")  # that of CLVP writes speech
TEXT_PARTS = ("", "text")

Table = TypeVar("Table", bound=HasLocation)


def generating_table(tables: Sequence[Table]) -> Table | None:
    """Return the table whose positions `generate()` uses up: of the decoder, or else of the
    text.
    """
    for table in tables:
        if _last_part(table).endswith(DECODER_PARTS):
            return table
    for table in tables:
        if _last_part(table) in TEXT_PARTS:
            return table
    return tables[0] if tables else None


def _last_part(table: HasLocation) -> str:
    return table.location.part.rpartition(".")[2]


def runs_beyond(location: TableLocation) -> bool:
    """Whether longer inputs run as well, since positions are computed when they are needed."""
    longer = location.table.longer_inputs
    return longer == "get computed rows" or (longer == "run" and location.table.rope is None)


def shares_positions(location: TableLocation) -> bool:
    """Whether prompt and generated text use up the same positions: in models without an encoder."""
    return not location.part.endswith(DECODER_PARTS)
