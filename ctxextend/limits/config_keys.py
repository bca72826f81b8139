"""Find the keys of config.json that state the context length next to a model type's own key."""

from collections.abc import Sequence

from ctxextend.checkpoints.filenames import PARAMS_FILE
from ctxextend.checkpoints.folder import CONFIG, Checkpoint
from ctxextend.checkpoints.mistral_files import mistral_params
from ctxextend.errors import joined
from ctxextend.families.lookup import Keys, TableLocation, around, nested, whole_number
from ctxextend.limits.statements import LLAVA, NO_LIMIT, STATEMENTS

# The programs that read each key.
READERS = {row.key[-1]: row.read_by for row in STATEMENTS if row.file == CONFIG}
PARAMS_KEYS = tuple(row.key[-1] for row in STATEMENTS if row.file == PARAMS_FILE)
# Those that also read it in a config around the language model's own.
OUTER_READERS = (LLAVA,)

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
    found = list[tuple[Keys, int]]()
    for path in (*_own_paths(location), *around(location)):
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


def _ignored_keys(location: TableLocation, path: Keys) -> set[str]:
    """Return the keys of one config that are a type's own, or say nothing about the length.

    In the config of a location these are both; in that of the whole model, the unrelated keys; in
    configs in between, none.
    """
    table = location.table
    is_own = path in _own_paths(location)
    ignored = set[str]()
    if is_own:
        ignored |= {table.config_key.rpartition(".")[2], *table.aliases, *table.unused_keys}
        ignored |= {key.name for key in table.engine_keys}
        ignored |= {*location.family.limits}
    if is_own or not path:
        ignored |= {*UNRELATED.get(location.family.model_type, ())}
        whole_type = location.config.get("model_type")
        if isinstance(whole_type, str):
            ignored |= {*UNRELATED.get(whole_type, ())}
    return ignored


def _own_paths(location: TableLocation) -> list[Keys]:
    """Return the paths of a location's config, and of the copy that takes precedence over it."""
    return [path[:-1] for path in location.paths_of(location.table.config_key)]


def readers(location: TableLocation, path: Keys) -> tuple[str, ...]:
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


def agreeing_values(location: TableLocation, positions: int) -> tuple[int, ...]:
    """Return the values that agree with a number of positions.

    They are this number and, of a table, its rows as its key counts them: 512 and 514 for RoBERTa.
    Of positions without rows it is what the key states, which can be a length before scaling.
    """
    if location.table.has_rows:
        return (positions, location.key_value(positions))
    return (positions, location.value(location.effective_key))
