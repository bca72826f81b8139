"""What a config must say for its tables' new lengths."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.length_limits import Edit
from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import Architecture, nested
from ctxextend.families.schema import Pin
from ctxextend.plan.tableplan import TablePlan

__all__ = ["config_changes", "config_edits"]


def config_edits(checkpoint: Checkpoint, architecture: Architecture, tables: tuple[TablePlan, ...]) -> Iterator[Edit]:
    """Yield the changes to config.json that go with the tables' new lengths; objects that it lacks are made."""
    config, edits = checkpoint.config, dict[tuple[str, ...], Any]()
    for path, after in config_changes(config, architecture, tables).items():
        while len(path) > 1 and not isinstance(holder := nested(config, path[:-1]), Mapping):
            if holder is not None:
                key = ".".join(path[:-1])
                raise CheckpointError(f"config.json: {key} is {holder!r:.100}, not an object.", "Correct config.json.")
            path, after = path[:-1], {path[-1]: after}
        edits[path] = {**edits.get(path, {}), **after} if isinstance(after, dict) else after
    for path, after in edits.items():
        yield Edit(checkpoint.config_file, path, nested(config, path), after)


def config_changes(
    config: Mapping[str, Any], architecture: Architecture, tables: tuple[TablePlan, ...]
) -> dict[tuple[str, ...], Any]:
    """Return the values that a config must state for the tables' new lengths, by their paths of keys."""
    changes: dict[tuple[str, ...], Any] = {}
    for plan in tables:
        if plan.is_changed:
            changes |= _length_changes(plan) | _pinned(plan) | _raised(config, architecture, plan)
        elif plan.is_mended:
            changes |= _mended(config, architecture, plan)
    return changes


def _length_changes(plan: TablePlan) -> dict[tuple[str, ...], Any]:
    return dict.fromkeys(plan.place.length_paths, plan.place.key_value(plan.max_len_after))


def _mended(config: Mapping[str, Any], architecture: Architecture, plan: TablePlan) -> dict[tuple[str, ...], Any]:
    """Return what makes a config agree with a table that stays: what it leaves out may stay out."""
    stated = _length_changes(plan) | dict.fromkeys(((key,) for key in architecture.family.raised), plan.max_len_after)
    wrong = {path: value for path, value in stated.items() if nested(config, path) not in (None, value)}
    is_default = plan.place.family.defaults.get(plan.place.obeyed_key) == plan.place.key_value(plan.max_len_after)
    is_missing = plan.place.stated(plan.place.obeyed_key) is None and not is_default
    return wrong | (_length_changes(plan) if is_missing else {})


def _pinned(plan: TablePlan) -> dict[tuple[str, ...], Any]:
    place = plan.place
    changes: dict[tuple[str, ...], Any] = {}
    for pin in place.family.pins:
        if pin.condition is None or place.stated(pin.condition):
            value = _PINNED[pin.keeps](pin, plan)
            changes |= dict.fromkeys(place.paths_of(pin.key), value) if value is not None else {}
    return changes


def _old_length(pin: Pin, plan: TablePlan) -> int | None:
    stated = plan.place.stated(pin.key)
    is_length = not isinstance(stated, int) or stated < 1
    return plan.place.key_value(plan.max_len_before) if is_length else None


def _blocks_a_row(pin: Pin, plan: TablePlan) -> int | None:
    """Return how many blocks a row of blocks must have; None where no whole number keeps their sum."""
    before, after = (plan.place.key_value(length) for length in (plan.max_len_before, plan.max_len_after))
    rows, wanted = before // pin.block_size, after // pin.block_size
    blocks = min(rows * plan.place.value(pin.key), rows**2)
    return blocks // wanted if wanted and blocks and blocks % wanted == 0 else None


_PINNED: Mapping[str, Callable[[Pin, TablePlan], int | None]] = {"length": _old_length, "blocks": _blocks_a_row}


def _raised(config: Mapping[str, Any], architecture: Architecture, plan: TablePlan) -> dict[tuple[str, ...], Any]:
    changes: dict[tuple[str, ...], Any] = {}
    for key in architecture.family.raised:
        stated = config.get(key)
        if plan.max_len_after > plan.max_len_before or not isinstance(stated, int) or stated > plan.max_len_after:
            changes[(key,)] = plan.max_len_after
    return changes
