"""What a checkpoint is: by its config, by what the user says it is, or by hand for a type that nobody knows."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ctxextend.checkpoints.folder import ADAPTER_PREFIX, Checkpoint
from ctxextend.checkpoints.tensorfile import FLOAT_DTYPES, TensorEntry
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.families.architecture import Architecture, nested
from ctxextend.families.lookup import by_hand, find_architecture, is_known
from ctxextend.recipe import Recipe

__all__ = ["recognize"]

# More rows in front of position 0 than any family has.
MOST_OFFSET_ROWS = 8
CANDIDATES_SHOWN = 5
LENGTH_KEY = "max_position_embeddings"


def recognize(checkpoint: Checkpoint, recipe: Recipe) -> Architecture:
    """Return the architecture of a checkpoint.

    Args:
        checkpoint: The checkpoint, its headers read.
        recipe: What was asked for; `origin.family` and `resize.table` win over what the config says.

    Raises:
        CheckpointError: The config names no model type, or there is no such table.
        UnsupportedModelError: The model has no learned position table, or its type is not known.
    """
    if recipe.resize.table is not None:
        return _by_hand(checkpoint, recipe)
    model_type = recipe.origin.family or checkpoint.config.get("model_type")
    if isinstance(model_type, str) and not is_known(model_type):
        raise _unknown(checkpoint, recipe, model_type)
    where = str(checkpoint.root / checkpoint.config_file) if checkpoint.has_config else str(checkpoint.root)
    return _at_home(checkpoint, find_architecture(checkpoint.config, where, recipe.origin.family))


def _at_home(checkpoint: Checkpoint, architecture: Architecture) -> Architecture:
    """Return the architecture with the names that tensors have in an adapter, where it is one."""
    if not checkpoint.is_adapter:
        return architecture
    places = tuple(
        replace(place, prefixes=tuple(ADAPTER_PREFIX + prefix for prefix in place.prefixes))
        for place in architecture.places
    )
    return replace(architecture, places=places)


def _by_hand(checkpoint: Checkpoint, recipe: Recipe) -> Architecture:
    settings, entries = recipe.resize, dict(_entries(checkpoint))
    table, key = str(settings.table), settings.config_key
    if table not in entries:
        raise CheckpointError(
            f"{checkpoint.root} holds no tensor {table}.", _advice(checkpoint, recipe) or "Check --table."
        )
    if key is None and checkpoint.has_config:
        raise CheckpointError(
            f"--table {table}: which key of config.json states its length is not known.",
            _advice(checkpoint, recipe, table) or "Name it with --config-key.",
        )
    inside = nested(checkpoint.config, tuple((key or "").split("."))) == entries[table].shape[0]
    return by_hand(checkpoint.config, table, key or LENGTH_KEY, settings.offset, inside)


def _unknown(checkpoint: Checkpoint, recipe: Recipe, model_type: str) -> UnsupportedModelError:
    if recipe.origin.family is not None:
        return UnsupportedModelError(
            f"--family {model_type} is not in ctxextend's registry.", "`ctxextend families` lists what is."
        )
    advice = _advice(checkpoint, recipe)
    return UnsupportedModelError(
        f"The model type {model_type!r} is not in ctxextend's registry.",
        advice or "It holds no tensor that looks like a position table. `ctxextend families` lists the types that do.",
    )


@dataclass(frozen=True)
class _Candidate:
    """A tensor that may be a position table, and the key that may state its length."""

    entry: TensorEntry
    key: str
    offset: int

    def command(self, recipe: Recipe) -> str:
        offset = f" --offset {self.offset}" if self.offset else ""
        words = f"ctxextend resize {shlex.quote(recipe.source)} --to {recipe.resize.to}"
        return f"{words} --table {shlex.quote(self.entry.name)}{offset} --config-key {shlex.quote(self.key or 'KEY')}"


def _advice(checkpoint: Checkpoint, recipe: Recipe, table: str | None = None) -> str:
    """List the candidate tables, and the command for the likeliest; empty where there is none."""
    found = sorted(_candidates(checkpoint), key=_likelihood, reverse=True)
    found = [candidate for candidate in found if table in (None, candidate.entry.name)][:CANDIDATES_SHOWN]
    if not found:
        return ""
    shown = "; ".join(
        f"{candidate.entry.name} {list(candidate.entry.shape)}"
        + (f", as long as {candidate.key}{_plus(candidate.offset)}" if candidate.key else "")
        for candidate in found
    )
    return f"Tensors that may be its position table: {shown}. Say which it is: {found[0].command(recipe)}"


def _plus(offset: int) -> str:
    return f" + {offset}" if offset else ""


def _likelihood(candidate: _Candidate) -> tuple[bool, ...]:
    name, key = candidate.entry.name.lower(), candidate.key.lower()
    tells = any(word in key for word in ("pos", "ctx", "context", "len", "block_size"))
    return ("pos" in name or "wpe" in name, tells, bool(key), candidate.offset == 0)


def _candidates(checkpoint: Checkpoint) -> Iterator[_Candidate]:
    lengths = dict(_whole_numbers(checkpoint.config))
    for name, entry in _entries(checkpoint):
        if len(entry.shape) != 2 or entry.dtype not in FLOAT_DTYPES:
            continue
        for offset in range(MOST_OFFSET_ROWS + 1):
            keys = [key for key, value in lengths.items() if value + offset == entry.shape[0] and "size" not in key]
            yield from (_Candidate(entry, key, offset) for key in keys if offset == 0 or "pos" in name)
        if "pos" in name and entry.shape[0] > entry.shape[1] // 8:
            yield _Candidate(entry, "", 0)


def _entries(checkpoint: Checkpoint) -> Iterator[tuple[str, TensorEntry]]:
    return (item for file in checkpoint.weights for item in file.entries.items())


def _whole_numbers(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _whole_numbers(value, f"{path}{key}.")
        elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield f"{path}{key}", value
