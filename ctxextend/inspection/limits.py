"""Every place in a checkpoint that states a length, and who obeys it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.jsontext import load_object
from ctxextend.checkpoints.limits import StatedLimit, stated_limits
from ctxextend.checkpoints.tensorfile import TensorEntry
from ctxextend.families.lookup import Architecture, TableLocation, nested
from ctxextend.families.schema import Buffer

__all__ = ["Limit", "Measured", "find_limits", "readers", "with_mends"]

TRANSFORMERS = "transformers"
SENTENCE_TRANSFORMERS = "sentence-transformers"
TOKENIZERS = "tokenizers"
GENERATION = "transformers generate"
NOBODY = "none"

CLIENTS = {
    "tokenizer": TRANSFORMERS,
    "sentence": SENTENCE_TRANSFORMERS,
    "truncation": TOKENIZERS,
    "padding": TOKENIZERS,
    "generation": GENERATION,
}

# The names of sentence-transformers' own config, in the order in which it looks for them; it obeys the first.
SENTENCE_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

NOT_LOADED = "the model does not load"

# Stands behind a key that the config leaves out, so that transformers' default holds.
LEFT_OUT = " (left out)"


@dataclass(frozen=True)
class Measured:
    """A table as it is in the file, whatever the config says of it.

    Attributes:
        place: Where the registry has it.
        name: Its tensor.
        file: The file that holds it, below the checkpoint's root.
        rows: Its rows.
    """

    place: TableLocation
    name: str
    file: str
    rows: int

    @property
    def positions(self) -> int:
        """Its usable positions."""
        return self.place.positions(self.rows)


@dataclass(frozen=True)
class Limit:
    """One place that states a length.

    Attributes:
        file: Path below the checkpoint's root.
        key: The path of keys with dots, or a tensor's name.
        value: What stands there: a number, a tensor's length, a padding strategy; None where nothing does.
        tokens: How many token positions that means; None where it sets no limit.
        client: Who obeys it.
        table: The table that it is about.
        agrees: Whether it agrees with that table.
        why: What follows where it does not; else empty.
        mend: The command that mends it; None where nothing needs to be.
    """

    file: str
    key: str
    value: Any
    tokens: int | None
    client: str
    table: str
    agrees: bool
    why: str = ""
    mend: str | None = None

    @property
    def stops_loading(self) -> bool:
        """Whether no model can be made of config and weights because of it."""
        return self.why.endswith(NOT_LOADED)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        # 1e400 is read as an infinity, for which JSON has no word.
        is_number = isinstance(self.value, int) or self.value is None
        is_padding = isinstance(self.value, dict) and self.tokens is not None
        return asdict(self) | {"value": self.value if is_number or is_padding else str(self.value)}


def find_limits(checkpoint: Checkpoint, architecture: Architecture, tables: list[Measured]) -> Iterator[Limit]:
    """Yield every place that states a length, those in the config first.

    Args:
        checkpoint: The checkpoint.
        architecture: What the registry knows of it.
        tables: Its tables.

    Raises:
        CheckpointError: A file is not valid JSON.
    """
    yield from _unique_config_limits(checkpoint, architecture, tables)
    for table in tables:
        yield Limit(table.file, table.name, table.rows, table.positions, TRANSFORMERS, table.name, agrees=True)
        yield from _buffer_limits(checkpoint, table)
    for tokenizer, table in readers(tables).items():
        for stated in stated_limits(checkpoint, tokenizer):
            yield _side_limit(checkpoint, stated, table)


def readers(tables: list[Measured]) -> dict[str, Measured]:
    """Return the first table that reads each tokenizer's texts, by the tokenizer's folder."""
    found: dict[str, Measured] = {}
    for table in tables:
        if table.place.tokenizer is not None:
            found.setdefault(table.place.tokenizer, table)
    return found


def _unique_config_limits(
    checkpoint: Checkpoint, architecture: Architecture, tables: list[Measured]
) -> Iterator[Limit]:
    """Yield the config's limits once each: of tables that share a key, by the one that disagrees."""
    found: dict[str, Limit] = {}
    for table in tables if checkpoint.has_config else []:
        for limit in (*_config_limits(checkpoint, table), *_raised(checkpoint, architecture, table)):
            if limit.key not in found or not limit.agrees:
                found[limit.key] = limit
    yield from found.values()


def _config_limits(checkpoint: Checkpoint, table: Measured) -> Iterator[Limit]:
    place = table.place
    for path in place.length_paths:
        value = nested(checkpoint.config, path)
        if value is not None:
            client = TRANSFORMERS if path == place.obeyed_path else NOBODY
            yield _config_limit(checkpoint, table, ".".join(path), value, client)
    default = place.family.defaults.get(place.table.config_key)
    if place.stated(place.obeyed_key) is None and default is not None:
        limit = _config_limit(checkpoint, table, f"{place.config_key}{LEFT_OUT}", default, TRANSFORMERS)
        yield replace(limit, value=None) if limit.agrees else limit


def _config_limit(checkpoint: Checkpoint, table: Measured, key: str, value: Any, client: str) -> Limit:
    is_length = isinstance(value, int) and not isinstance(value, bool)
    agrees = is_length and table.place.rows(value) == table.rows
    tokens = table.place.positions(table.place.rows(value)) if is_length else None
    why = "" if agrees else f"{table.name} has {table.rows} rows: {NOT_LOADED}"
    why = "nothing reads it" if why and client == NOBODY else why
    return Limit(checkpoint.config_file, key, value, tokens, client, table.name, agrees, why)


def _raised(checkpoint: Checkpoint, architecture: Architecture, table: Measured) -> Iterator[Limit]:
    for key in architecture.family.raised:
        value = checkpoint.config.get(key)
        if isinstance(value, int):
            agrees = value == table.positions
            why = "" if agrees else _against(value, table)
            yield Limit(checkpoint.config_file, key, value, value, TRANSFORMERS, table.name, agrees, why)


def _buffer_limits(checkpoint: Checkpoint, table: Measured) -> Iterator[Limit]:
    """Yield the tensors that are sized by the length, those of all layers as one."""
    found = (
        _buffer_limit(checkpoint.relative(file), entry, buffer, table)
        for file in checkpoint.weights
        for entry in file.entries.values()
        if (buffer := table.place.buffer(entry.name))
    )
    yield from dict.fromkeys(limit for limit in found if limit is not None)


def _buffer_limit(file: str, entry: TensorEntry, buffer: Buffer, table: Measured) -> Limit | None:
    length = _buffer_length(buffer, entry.shape)
    if length is None:
        return None
    name = re.sub(r"\.\d+\.", ".*.", entry.name) if "*" in buffer.name else entry.name
    client = TRANSFORMERS if buffer.is_kept else f"old {TRANSFORMERS}"
    wanted = table.place.key_value(table.positions)
    why = "" if length == wanted else f"{table.name} has {table.rows} rows"
    return Limit(file, name, length, length - (wanted - table.positions), client, table.name, not why, why)


def _buffer_length(buffer: Buffer, shape: tuple[int, ...]) -> int | None:
    """Return a buffer's length; None for a scalar of old files."""
    axis = 0 if buffer.content == "rows" else -1
    return shape[axis] if shape else None


def _side_limit(checkpoint: Checkpoint, stated: StatedLimit, table: Measured) -> Limit:
    client = CLIENTS[stated.kind]
    if client == SENTENCE_TRANSFORMERS and stated.file != _sentence_config(checkpoint):
        client = NOBODY
    tokens, positions = stated.tokens, table.positions
    may_be_less = stated.kind in ("padding", "generation")
    agrees = tokens == positions or (may_be_less and (tokens is None or tokens < positions))
    why = "" if agrees else _against(tokens, table)
    if not agrees and stated.kind == "padding":
        why = f"every text is padded to {tokens} tokens, and those beyond the table's {positions} {_beyond(table)}"
    why = "nothing reads it" if why and client == NOBODY else why
    key = ".".join(stated.path)
    return Limit(stated.file, key, stated.value, tokens, client, table.name, agrees, why)


def _against(tokens: int | None, table: Measured) -> str:
    """Say what a limit that is not the table's does to texts."""
    if tokens is None:
        return f"texts of more than {table.positions} tokens are not cut, and {_beyond(table)}"
    if tokens < table.positions:
        return f"texts are cut at {tokens}, and the table has {table.positions} positions"
    return (
        f"the table has {table.positions} positions: texts of {table.positions + 1} to {tokens} tokens {_beyond(table)}"
    )


def _beyond(table: Measured) -> str:
    return "share the last position" if table.place.table.clamps else "fail"


def _sentence_config(checkpoint: Checkpoint) -> str | None:
    """Return the config that sentence-transformers obeys, the first that says anything.

    None where it obeys none: that needs a modules.json.
    """
    if "modules.json" not in checkpoint.copied:
        return None
    paths = ((checkpoint.model / name).as_posix() for name in SENTENCE_CONFIGS)
    return next((path for path in paths if path in checkpoint.copied and load_object(checkpoint.root / path)), None)


def with_mends(limits: list[Limit], commands: Mapping[str, str | None]) -> list[Limit]:
    """Return the limits, those that disagree with the command that mends them.

    Args:
        limits: From `find_limits`.
        commands: The command for each table, by the table's name; None where there is none.
    """
    return [limit if limit.agrees else replace(limit, mend=commands[limit.table]) for limit in limits]
