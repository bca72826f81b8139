"""What a checkpoint is: by its config, by what the user says it is, or by hand for a type that nobody knows."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from ctxextend.checkpoints.dtypes import FLOATS
from ctxextend.checkpoints.folder import ADAPTER_PREFIX, Checkpoint, open_checkpoint
from ctxextend.checkpoints.source import resolve_source
from ctxextend.checkpoints.tensorfile import TensorEntry
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.families.lookup import FAMILIES_HINT, Architecture, Place, by_hand, find_architecture, is_known, nested
from ctxextend.families.registry import FAMILIES
from ctxextend.recipe import Subject, flag_words

__all__ = ["open_subject", "recognize"]

# More rows in front of position 0 than any family has.
MOST_OFFSET_ROWS = 8
CANDIDATES_SHOWN = 5
LENGTH_KEY = "max_position_embeddings"
# What keys are called that state a length.
TELLING = ("pos", "ctx", "context", "len", "block_size")


def open_subject(subject: Subject) -> Checkpoint:
    """Find the checkpoint that a command names, and read its config and headers.

    Raises:
        SourceError: As `resolve_source`.
        CheckpointError: As `open_checkpoint`.
    """
    origin = subject.origin
    source = resolve_source(subject.source, origin.revision, origin.subfolder, origin.variant)
    return open_checkpoint(source, origin.variant)


def recognize(checkpoint: Checkpoint, subject: Subject) -> Architecture:
    """Return the architecture of a checkpoint.

    Args:
        checkpoint: The checkpoint, its headers read.
        subject: What was asked for; `origin.family` and `table` win over what the config says.

    Raises:
        CheckpointError: The config names no model type, or there is no such table.
        UnsupportedModelError: The model has no learned position table, or its type is not known.
    """
    if subject.table is not None:
        return _by_hand(checkpoint, subject)
    model_type = subject.origin.family or checkpoint.config.get("model_type")
    if not checkpoint.config and model_type is None:
        raise _nameless(checkpoint)
    if isinstance(model_type, str) and not is_known(model_type):
        raise _unknown(checkpoint, subject, model_type)
    if parts := _parts_in_registry(checkpoint.config, model_type):
        raise _other_inside(checkpoint, subject, str(model_type), parts)
    where = str(checkpoint.root / checkpoint.config_file) if checkpoint.has_config else str(checkpoint.root)
    return _at_home(checkpoint, find_architecture(checkpoint.config, where, subject.origin.family))


def _parts_in_registry(config: Mapping[str, Any], model_type: Any) -> list[str]:
    """Return the families in a model that is itself refused: it may hold any, where transformers lets it."""
    if not isinstance(model_type, str) or model_type in FAMILIES:
        return []
    nested_types = (value.get("model_type") for value in config.values() if isinstance(value, Mapping))
    return [name for name in nested_types if isinstance(name, str) and name in FAMILIES]


def _other_inside(checkpoint: Checkpoint, subject: Subject, model_type: str, parts: list[str]) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"Models of type {model_type} are not resized as such, but a part of this one is of a known type: "
        f"{', '.join(parts)}.",
        _advice(checkpoint, subject) or f"It holds no tensor that looks like a position table. {FAMILIES_HINT}",
    )


def _nameless(checkpoint: Checkpoint) -> CheckpointError:
    what = checkpoint.weights[0].path
    message, then = f"There is no config.json beside {what} that says what it is.", ""
    if checkpoint.is_adapter:
        message = f"{what} is an adapter of {checkpoint.base}, whose config is not read: its model type is not known."
        then = f"Resize {checkpoint.base}, then load the adapter onto that. If it holds the table too: "
    return CheckpointError(message, f"{then}Say what it is with --family, for example --family gpt2.")


def _at_home(checkpoint: Checkpoint, architecture: Architecture) -> Architecture:
    """Return the architecture with the names that tensors have in an adapter, where it is one."""
    if not checkpoint.is_adapter:
        return architecture
    places = tuple(
        replace(place, prefixes=tuple(ADAPTER_PREFIX + prefix for prefix in place.prefixes))
        for place in architecture.places
    )
    if not any(name in checkpoint.names for place in places for name in place.names):
        raise _no_table(checkpoint, places)
    return replace(architecture, places=places)


def _no_table(checkpoint: Checkpoint, places: tuple[Place, ...]) -> CheckpointError:
    modules = tuple(name.removesuffix("weight") for place in places for name in place.names)
    if any(name.startswith(modules) for name in checkpoint.names):
        return CheckpointError(
            f"{checkpoint.root} holds a PEFT adapter that changes each row of the position table and does not hold it.",
            f"Merge it into {checkpoint.base} with merge_and_unload() and save_pretrained(), and resize that.",
        )
    return CheckpointError(
        f"{checkpoint.root} holds a PEFT adapter without a position table.",
        f"Resize {checkpoint.base}, then load the adapter onto that.",
    )


def _by_hand(checkpoint: Checkpoint, subject: Subject) -> Architecture:
    entries = dict(_entries(checkpoint))
    table, key = str(subject.table), subject.config_key
    if table not in entries:
        raise CheckpointError(
            f"{checkpoint.root} holds no tensor {table}.", _advice(checkpoint, subject) or "Check --table."
        )
    if key is None and checkpoint.has_config:
        raise CheckpointError(
            f"--table {table}: which key of config.json states its length is not known.",
            _advice(checkpoint, subject, table) or "Name it with --config-key.",
        )
    if len(entries[table].shape) != 2:
        raise CheckpointError(
            f"--table {table} has shape {list(entries[table].shape)}, not rows by hidden size.",
            _advice(checkpoint, subject) or "Check --table.",
        )
    stated, rows = nested(checkpoint.config, tuple((key or "").split("."))), entries[table].shape[0]
    if checkpoint.has_config and stated not in (rows, rows - subject.offset):
        raise CheckpointError(
            f"config.json states {key} {stated!r}, and {table} has {rows} rows, {subject.offset} of them in front of "
            "position 0.",
            _advice(checkpoint, subject, table) or "Check --config-key and --offset.",
        )
    inside = stated == rows
    return by_hand(checkpoint.config, table, key or LENGTH_KEY, subject.offset, inside)


def _unknown(checkpoint: Checkpoint, subject: Subject, model_type: str) -> UnsupportedModelError:
    if subject.origin.family is not None:
        near = get_close_matches(model_type.lower(), FAMILIES, 1)
        meant = f"Did you mean --family {near[0]}? " if near else ""
        return UnsupportedModelError(
            f"--family {model_type} is not in ctxextend's registry.", f"{meant}`ctxextend families` lists what is."
        )
    advice = _advice(checkpoint, subject)
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

    @property
    def likelihood(self) -> tuple[bool, ...]:
        """The more of these hold, the first ones first, the likelier it is."""
        return _is_named(self.entry), _tells(self.key), bool(self.key), self.offset == 0

    def command(self, subject: Subject) -> str:
        """Return what to type for it, in place of what was typed."""
        origin = subject.origin
        before = {"revision": origin.revision, "subfolder": origin.subfolder, "variant": origin.variant}
        behind = {"table": self.entry.name, "offset": self.offset or None, "config-key": self.key or "KEY"}
        words = ["ctxextend", subject.command, subject.source, *flag_words(before), *subject.flags, *flag_words(behind)]
        return shlex.join(words)


def _advice(checkpoint: Checkpoint, subject: Subject, table: str | None = None) -> str:
    """List the candidate tables, and the command for the likeliest; empty where there is none."""
    found = sorted(_candidates(checkpoint), key=lambda candidate: candidate.likelihood, reverse=True)
    found = [candidate for candidate in found if table in (None, candidate.entry.name)]
    # Where a name tells, other tensors of as many rows only distract.
    found = ([candidate for candidate in found if _is_named(candidate.entry)] or found)[:CANDIDATES_SHOWN]
    if not found:
        return ""
    shown = "; ".join(
        f"{candidate.entry.name} {list(candidate.entry.shape)}"
        + (f", as long as {candidate.key}{_plus(candidate.offset)}" if candidate.key else "")
        for candidate in found
    )
    return f"Tensors that may be its position table: {shown}. Say which it is: {found[0].command(subject)}"


def _plus(offset: int) -> str:
    return f" + {offset}" if offset else ""


def _is_named(entry: TensorEntry) -> bool:
    return "pos" in entry.name.lower() or "wpe" in entry.name.lower()


def _tells(key: str) -> bool:
    return any(word in key.lower() for word in TELLING)


def _candidates(checkpoint: Checkpoint) -> Iterator[_Candidate]:
    """Yield each tensor that may be the table once, with the likeliest key."""
    lengths = dict(_whole_numbers(checkpoint.config))
    for _, entry in _entries(checkpoint):
        if len(entry.shape) != 2 or entry.dtype not in FLOATS:
            continue
        found = [candidate for key, value in lengths.items() for candidate in _pairs(entry, key, value)]
        if _is_named(entry) and entry.shape[0] > entry.shape[1] // 8:
            found.append(_Candidate(entry, "", 0))
        if found:
            yield max(found, key=lambda candidate: candidate.likelihood)


def _pairs(entry: TensorEntry, key: str, value: int) -> Iterator[_Candidate]:
    """Yield how a key may state a tensor's length: widths and sizes of vocabularies do not."""
    offset = entry.shape[0] - value
    if _tells(key) and (offset == 0 or (_is_named(entry) and 0 < offset <= MOST_OFFSET_ROWS)):
        yield _Candidate(entry, key, offset)
    elif offset == 0 and "size" not in key and value != entry.shape[1]:
        yield _Candidate(entry, key, 0)


def _entries(checkpoint: Checkpoint) -> Iterator[tuple[str, TensorEntry]]:
    return (item for file in checkpoint.weights for item in file.entries.items())


def _whole_numbers(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _whole_numbers(value, f"{path}{key}.")
        elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield f"{path}{key}", value
