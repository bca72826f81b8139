"""The differences between two JSON values, and which of them mean something in a model's config."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.safetensors_file import COMPUTING, DTYPES
from ctxextend.positions.positions import Keys, nested

MISSING = object()  # the value of a key that does not exist


class ValueChange(NamedTuple):
    """A value that differs between two JSON values."""

    path: Keys  # keys, and indices of lists as text
    before: Any  # `MISSING` if there is none
    after: Any


def changed_values(before: Any, after: Any, path: Keys = ()) -> Iterator[ValueChange]:
    """Yield every difference between two JSON values; 4 and 4.0 are equal, 1 and true are not."""
    if isinstance(before, list) and isinstance(after, list):
        before = dict(enumerate(before))
        after = dict(enumerate(after))
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            inside = (*path, str(key))
            yield from changed_values(before.get(key, MISSING), after.get(key, MISSING), inside)
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield ValueChange(path, before, after)


def json_text(value: Any) -> str:
    """Return a value as JSON for messages, shortened if it is long."""
    if value is MISSING:
        return "missing"
    return f"{json.dumps(value):.60}"


def changed_meaning(
    base: Checkpoint, before: Any, after: Any, ignored: Callable[[ValueChange], bool]
) -> list[ValueChange]:
    """Return the changes of a config.json that are more than another spelling.

    Transformers says what they mean. It is imported only if some differ, for example since it has
    saved the checkpoint again, with all of its defaults.

    Args:
        base: The checkpoint with the expected content.
        before: This content.
        after: The content of the file.
        ignored: Tells the changes that are compared elsewhere.
    """
    changes = [change for change in changed_values(before, after) if not ignored(change)]
    if not changes or not isinstance(after, dict):
        return changes
    from ctxextend.models.load import config_as_read

    old = config_as_read(before)
    new = config_as_read(after)
    if old is None or new is None:
        return changes
    configs = (old.values, new.values)
    unread = [change for change in changes if not _is_read(change.path, configs, old.old_keys)]
    stated = {change.path: change for change in changes}
    meant = list[ValueChange]()
    for change in changed_values(old.values, new.values):
        if not ignored(change) and not _is_stored_dtype(base, change):
            meant.append(stated.get(change.path, change))  # with the values of the file
    return [*unread, *meant]


def _is_stored_dtype(base: Checkpoint, change: ValueChange) -> bool:
    """Whether a config only states the dtype of the weights, which is transformers' default."""
    if change.path[-1] != "dtype" or change.before not in (None, MISSING):
        return False
    dtypes = {entry.dtype for entry in base.weights.entries.values()}
    return [DTYPES[dtype] for dtype in dtypes if dtype in COMPUTING] == [change.after]


def _is_read(path: Keys, configs: Sequence[Mapping[str, Any]], old_keys: Collection[str]) -> bool:
    """Whether transformers keeps a key, under its name or another one.

    A key that it does not keep has no other spelling.
    """
    if path[-1] in old_keys:
        return True
    for config in configs:
        parent = nested(config, path[:-1])
        if isinstance(parent, list) or (isinstance(parent, Mapping) and path[-1] in parent):
            return True
    return False
