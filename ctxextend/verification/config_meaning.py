"""What the changes of a model's config mean: other values, or the same ones in another spelling."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.safetensors_file import COMPUTING, DTYPES
from ctxextend.positions.change import Change
from ctxextend.positions.positions import Keys, nested
from ctxextend.verification.json_changes import (
    INFORMATIONAL_KEYS,
    MISSING,
    ValueChange,
    changed_values,
)


def changed_meaning(
    base: Checkpoint,
    tables: Sequence[Change],
    before: Any,
    after: Any,
    changes: Sequence[ValueChange],
) -> list[ValueChange]:
    """Return those `changes` of a config.json that are more than another spelling.

    Rotary settings are compared by `compare_positions`, in either dialect. Of other keys,
    transformers says what they mean: it is imported only if some differ, for example since it has
    saved the checkpoint again, with all of its defaults.
    """
    rotary = [path for table in tables for path in table.positions.settings_paths(table)]
    changes = _outside(rotary, changes)
    if not changes or not isinstance(after, dict):
        return changes
    from ctxextend.models.load import config_as_read

    old = config_as_read(before)
    new = config_as_read(after)
    if old is None or new is None:
        return changes
    configs = (old.values, new.values)
    unread = [item for item in changes if not _is_read(item.path, configs, old.old_keys)]
    stated = {item.path: item for item in changes}
    found = [
        stated.get(item.path, item)  # with the values of the file
        for item in _outside(rotary, changed_values(old.values, new.values))
        if _affects_model(base, item)
    ]
    return [*unread, *found]


def _outside(starts: Sequence[Keys], changes: Iterable[ValueChange]) -> list[ValueChange]:
    """Return the changes whose paths begin with none of some paths."""
    found = list[ValueChange]()
    for change in changes:
        if not any(change.path[: len(start)] == start for start in starts):
            found.append(change)
    return found


def _is_read(path: Keys, configs: Sequence[Mapping[str, Any]], renamed: frozenset[str]) -> bool:
    """Whether transformers keeps a key, under its name or another one.

    A key that it does not keep has no other spelling.
    """
    if path[-1] in renamed:
        return True
    for config in configs:
        parent = nested(config, path[:-1])
        if isinstance(parent, list) or (isinstance(parent, Mapping) and path[-1] in parent):
            return True
    return False


def _affects_model(base: Checkpoint, change: ValueChange) -> bool:
    return change.path not in INFORMATIONAL_KEYS and not _is_stored_dtype(base, change)


def _is_stored_dtype(base: Checkpoint, change: ValueChange) -> bool:
    """Whether a config only states the dtype of the weights, which is transformers' default."""
    if change.path[-1] != "dtype" or change.before not in (None, MISSING):
        return False
    dtypes = {entry.dtype for entry in base.weights.entries.values()}
    stored = {DTYPES[dtype] for dtype in dtypes if dtype in COMPUTING}
    return [*stored] == [change.after]
